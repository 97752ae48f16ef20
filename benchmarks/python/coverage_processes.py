# SPDX-License-Identifier: Apache-2.0
"""How often the 95 % interval of one process holds the centre of all: three functions on the CPU, three on the GPU.

Each function is measured by `benchmark` in 20 fresh processes, as who measures in one process does. The truth is
what the same estimator says of all their samples, each process with the same weight: the plain median of times that lie
on the ticks of a clock is one of these ticks. Beside it: the same of the intervals of ``processes=5``, from five
processes each. ``--only NAME,NAME`` measures those functions.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import coverage
import measure
import numpy as np

from gpuscope import benchmark, stats
from gpuscope.benchmarking.engine import CPU_TICK, GPU_TICK
from gpuscope.benchmarking.processes import between

PROCESSES, TOGETHER = 20, 5
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


@dataclass(frozen=True)
class Measured:
    """What one process found."""

    estimate: stats.Estimate
    samples: np.ndarray  # quantiles, `WEIGHTS` of them, each a sample
    quantity: str
    tick: float


def measured(function: Callable[[], object]) -> Measured:
    found = benchmark(function, budget=BUDGET)
    samples = np.quantile(found.samples, np.linspace(0, 1, WEIGHTS), method="inverted_cdf")
    return Measured(found.estimate, samples, found.quantity, GPU_TICK if found.on_gpu else CPU_TICK)


def cover(function: Callable[[], object], processes: int) -> measure.Row:
    load = os.getloadavg()[0]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        found = list(pool.map(measured, [function] * processes))
    estimates = [each.estimate for each in found]
    values = np.array([each.value for each in estimates])
    truth = stats.estimate(np.concatenate([each.samples for each in found]), tick=found[0].tick).value
    groups = [between(estimates[first : first + TOGETHER]) for first in range(0, len(estimates), TOGETHER)]
    detail: dict[str, Any] = {
        "quantity": found[0].quantity,
        "processes": len(estimates),
        "truth, us": round(truth * 1e6, 4),
        "spread of processes": round(float(values.std(ddof=1) / values.mean()), 5),
        "relative half-width": round(float(np.median([each.relative_half_width for each in estimates])), 5),
        "too low, too high": [
            round(float(np.mean([each.high < truth for each in estimates])), 3),
            round(float(np.mean([each.low > truth for each in estimates])), 3),
        ],
        f"share of processes={TOGETHER}": held(groups, truth),
        "load average before and after": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    return {"value": held(estimates, truth), "detail": detail}


def main() -> None:
    options = measure.arguments(__doc__, processes=PROCESSES, only="")
    count = QUICK if options.quick else options.processes
    functions: dict[str, Callable[[], object]] = {f"cpu_{each.__name__}": each for each in (add, sort, encode)}
    if not measure.why_not_available(gpu=True):
        functions |= {name: functools.partial(call, name) for name in coverage.WORKLOADS}
    wanted = set(filter(None, options.only.split(",")))
    found = {name: cover(function, count) for name, function in functions.items() if not wanted or name in wanted}
    missed = round(1 - float(np.mean([row["value"] for row in found.values()])), 4)
    measure.answer({"rows": {"processes_missed": {"value": missed, "detail": found}}})


if __name__ == "__main__":
    main()
