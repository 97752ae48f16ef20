# SPDX-License-Identifier: Apache-2.0
"""CPU against GPU: which is faster for which work, from which size on."""

from __future__ import annotations

from gpuscope.benchmark.explore.explorer import explore
from gpuscope.benchmark.explore.operations import OPERATIONS, Operation
from gpuscope.benchmark.explore.result import Crossover, Exploration, Point

__all__ = ["OPERATIONS", "Crossover", "Exploration", "Operation", "Point", "explore"]
