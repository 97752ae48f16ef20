# SPDX-License-Identifier: Apache-2.0
"""Explorations that nobody measured, with known curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscope.benchmarking.backends import OPERATIONS
from gpuscope.benchmarking.crossovers import Answer, Crossing
from gpuscope.benchmarking.explorer import Exploration, OperationCrossover, Point
from gpuscope.stats import Estimate, Ratio

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)

# Seconds: a fixed cost, and one for each element.
COSTS = {"cpu": (1e-6, 2e-9), "gpu": (2e-5, 2e-11), "gpu+transfers": (8e-5, 9e-10)}


def wall(seconds: float, spread: float = 0.05) -> Estimate:
    return Estimate(seconds, seconds * (1 - spread), seconds * (1 + spread), 200, 150.0, "median", 0.95)


def exploration(
    *, gpu: bool = True, sizes: Sequence[int] = SIZES, names: Sequence[str] = ("matmul", "copy"), **changes: Any
) -> Exploration:
    """Two operations whose curves cross, the same for both."""
    operations = tuple(operation for operation in OPERATIONS if operation.name in names)
    sides: tuple[Any, ...] = ("cpu", "gpu", "gpu+transfers") if gpu else ("cpu",)
    points, crossovers = [], []
    for operation in operations:
        for n in sizes:
            times = {side: COSTS[side][0] + COSTS[side][1] * n * n for side in sides}
            for side in sides:
                faster = times["cpu"] / times[side]
                speedup = Ratio(faster, faster * 0.93, faster * 1.07, 200, 0.001) if side != "cpu" else None
                rate = operation.work(n, 4) / times[side]
                points.append(Point(operation.name, n, side, wall(times[side]), rate, speedup, True))
        if gpu:
            for transfers, place in ((False, 100.0), (True, 268.0)):
                crossing = Crossing(place, place * 0.9, place * 1.1, (64.0, 512.0), "above")
                answer = Answer("one", (crossing,), (float(min(sizes)), float(max(sizes))))
                crossovers.append(OperationCrossover(operation.name, transfers, answer))
    facts: dict[str, Any] = {
        "operations": operations,
        "points": tuple(points),
        "crossovers": tuple(crossovers),
        "dtype": "float32",
        "cpu": "Fake CPU, 8 logical CPUs, NumPy 2.0",
        "gpu": "Fake GPU, PyTorch 2.0" if gpu else None,
        "why_no_gpu": "" if gpu else "PyTorch finds no GPU",
        "remarks": (),
        "warnings": (),
        "environment": {"GPU": "Fake GPU", "CPU": "Fake CPU", "NumPy": "2.0"},
        "started": 1_700_000_000.0,
        "seconds": 12.5,
        "interrupted": False,
    }
    return Exploration(**{**facts, **changes})
