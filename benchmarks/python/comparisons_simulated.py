# SPDX-License-Identifier: Apache-2.0
"""How often `compare` is wrong, and how often it finds what is there, by simulation. Needs no GPU.

Two functions of about 10 us on a simulated clock, under noise of many kinds, the second one longer by a given ratio.
Prints how often each verdict came, how often the interval held the ratio, and the seconds that it took.
"""

from __future__ import annotations

import argparse
import collections
import itertools

import numpy as np
import simulated

from gpuscope import compare

BUDGET, MARGIN = 1.0, 0.01
# Equal functions, just beyond the margin, and what must be found.
RATIOS = (1.0, 1.011, 1.02)
EVICTED = 1.3
UNDER_EVICTION = ("normal 5 %", "AR(1) 0.9", "two states 70/30 of 20 ms", "drift 4 % a second", "ticks untold")
VERDICTS = ("faster", "slower", "same", "inconclusive")


def first() -> None:
    """The function to compare with."""


def second() -> None:
    """The function to compare."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="comparisons behind each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--series", default="", help="only those whose name holds this")
    options = parser.parse_args()
    kinds = [(name, series, 1.0) for name, series in simulated.SERIES.items()]
    kinds += [(f"{name}, evicted", simulated.SERIES[name], EVICTED) for name in UNDER_EVICTION]
    print(
        f"{'noise':36}{'b / a':>8}" + "".join(f"{verdict:>13}" for verdict in VERDICTS) + f"{'held':>8}{'seconds':>9}"
    )
    for (name, series, evicted), ratio in itertools.product(kinds, RATIOS):
        if options.series not in name:
            continue
        random = np.random.default_rng(options.seed)
        found, held, seconds = collections.Counter(), 0, 0.0
        for _ in range(options.runs):
            machine = simulated.Machine(series, random, (1.0, ratio), evicted)
            with machine.installed():
                one = compare(first, second, budget=BUDGET, margin=MARGIN, seed=int(random.integers(2**32)))
            found[one.verdict] += 1
            held += one.ratio.low <= ratio <= one.ratio.high
            seconds += one.seconds
        shares = "".join(f"{found[verdict] / options.runs:13.3f}" for verdict in VERDICTS)
        print(f"{name:36}{ratio:8.3f}{shares}{held / options.runs:8.3f}{seconds / options.runs:9.2f}", flush=True)


if __name__ == "__main__":
    main()
