# SPDX-License-Identifier: Apache-2.0
"""CPU against GPU: which is faster for which work, from which size on."""

from __future__ import annotations

from gpuscope.benchmarking.explore.explorer import explore
from gpuscope.benchmarking.explore.operations import OPERATIONS, Operation
from gpuscope.benchmarking.explore.result import Crossover, Exploration, Point

__all__ = ["OPERATIONS", "Crossover", "Exploration", "Operation", "Point", "explore"]
