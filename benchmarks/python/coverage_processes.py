# SPDX-License-Identifier: Apache-2.0
"""How often the 95 % interval of one process holds the median of all: three functions on the CPU, three on the GPU.

Each function is measured by `benchmark` in so many fresh processes. The truth is the median of all their samples, each
process with the same weight. Beside it: the same of the intervals of ``processes=5``, from five processes each.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Callable
from typing import Any

import coverage
import measure
import numpy as np

from gpuscope import benchmark, stats
from gpuscope.benchmarking.processes import between

PROCESSES, TOGETHER = 100, 5
QUICK = 10
BUDGET = 1.0  # seconds of a process
WEIGHTS = 1001  # quantiles of a process that stand for its samples

NUMBERS = random.Random(1).choices(range(1_000_000), k=2000)
RECORD = {"name": "gpuscope", "values": NUMBERS[:200], "nested": [{"n": n, "text": str(n)} for n in NUMBERS[:20]]}


def add() -> int:
    return sum(NUMBERS)


def sort() -> list[int]:
    return sorted(NUMBERS)


def encode() -> str:
    return json.dumps(RECORD)


@functools.cache
def on_gpu(name: str) -> Callable[[], object]:
    """The workload, made once in a process."""
    return coverage.WORKLOADS[name]()


def call(name: str) -> object:
    return on_gpu(name)()


def held(estimates: list[stats.Estimate], truth: float) -> float:
    return round(float(np.mean([each.low <= truth <= each.high for each in estimates])), 3)


def cover(function: Callable[[], object], processes: int) -> measure.Row:
    load = os.getloadavg()[0]
    found = benchmark(function, processes=processes, budget=BUDGET * processes)
    assert found.processes is not None
    estimates = list(found.processes.estimates)
    parts = np.split(np.asarray(found.samples), np.cumsum([each.n for each in estimates])[:-1])
    truth = float(np.median([np.quantile(part, np.linspace(0, 1, WEIGHTS)) for part in parts]))
    groups = [between(estimates[first : first + TOGETHER]) for first in range(0, len(estimates), TOGETHER)]
    detail: dict[str, Any] = {
        "quantity": found.quantity,
        "processes": len(estimates),
        "truth, us": round(truth * 1e6, 4),
        "spread of processes": found.processes.spread,
        "relative half-width": round(float(np.median([each.relative_half_width for each in estimates])), 5),
        f"share of processes={TOGETHER}": held(groups, truth),
        "load average before and after": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    return {"value": held(estimates, truth), "detail": detail}


def main() -> None:
    options = measure.arguments(__doc__, processes=PROCESSES)
    count = QUICK if options.quick else options.processes
    functions: dict[str, Callable[[], object]] = {f"cpu_{each.__name__}": each for each in (add, sort, encode)}
    rows: dict[str, measure.Row] = {}
    why = measure.why_not_available(gpu=True)
    for name in coverage.WORKLOADS:
        if why:
            rows[name] = {"skipped": why}
        else:
            functions[name] = functools.partial(call, name)
    rows |= {name: cover(function, count) for name, function in functions.items()}
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
