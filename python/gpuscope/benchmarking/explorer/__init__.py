# SPDX-License-Identifier: Apache-2.0
"""Compares CPU and GPU for kinds of work over sizes."""

from __future__ import annotations

from gpuscope.benchmarking.explorer.backends import OPERATIONS, Operation
from gpuscope.benchmarking.explorer.exploration import Exploration, OperationCrossover, Point
from gpuscope.benchmarking.explorer.measuring import explore

__all__ = ["OPERATIONS", "Exploration", "Operation", "OperationCrossover", "Point", "explore"]
