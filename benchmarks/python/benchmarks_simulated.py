# SPDX-License-Identifier: Apache-2.0
"""How often the interval of `benchmark` holds the truth, under noise of many kinds, by simulation. Needs no GPU.

Calls of about 10 us on a simulated clock. For each kind of noise: the share of runs whose interval of 95 % holds the
true centre, the share that converged, the share of all runs that converged and are more than 1 % off, and seconds.
"""

from __future__ import annotations

import argparse
from unittest import mock

import numpy as np
import simulated

from gpuscope import benchmark
from gpuscope.benchmarking import benchmarks

BUDGET = 2.0
OFF = 0.01


def run(series: simulated.Series, random: np.random.Generator, budget: float) -> tuple[bool, bool, bool, float]:
    """One benchmark: whether its interval holds the truth, it converged, and did so far off; its seconds."""
    machine = simulated.Machine(series, random)
    with machine.installed(), mock.patch.object(benchmarks, "_environment", return_value={}):
        found = benchmark(int, budget=budget)
    truth = series.truth if isinstance(series.truth, float) else series.truth(machine.noise, 0.0, machine.now)
    true = truth * series.call
    held = found.estimate.low <= true <= found.estimate.high
    off = found.converged and abs(found.estimate.value / true - 1) > OFF
    return held, found.converged, off, found.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="benchmarks behind each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--series", default="", help="only those whose name holds this")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of each benchmark")
    options = parser.parse_args()
    print(f"{'noise':28}{'holds truth':>12}{'converged':>11}{'and > 1 % off':>15}{'seconds':>9}")
    for name, series in simulated.SERIES.items():
        if options.series not in name:
            continue
        random = np.random.default_rng(options.seed)
        rows = np.array([run(series, random, options.budget) for _ in range(options.runs)], float)
        held, converged, off, seconds = rows.mean(axis=0)
        print(f"{name:28}{held:12.3f}{converged:11.3f}{off:15.3f}{seconds:9.2f}", flush=True)


if __name__ == "__main__":
    main()
