# SPDX-License-Identifier: Apache-2.0
"""How much slower than the fastest candidate the winner of `tune` is, under noise of many kinds, and how long it takes.

Calls take their true time with the noises of simulated.py, on a simulated clock: as long as there, and 1 ms, which
leaves about a hundred calls of each candidate. Needs no GPU. Beside it is the usual
way: each candidate once, for as long as Triton's do_bench takes (25 ms of warm-up, the median of 100 ms of calls). The
regret is the true time of the winner over that of the fastest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import measure
import numpy as np
from simulated import OVERHEAD, SEED, SERIES, Machine, Series, named

from gpuscope import tune

WARM_UP, SAMPLING = 0.025, 0.1  # seconds, of do_bench


@dataclass(frozen=True)
class Space:
    """Candidates: their number, and the standard deviation of the logarithm of their times."""

    count: int
    spread: float


LONG = 1e-3  # seconds of a call
SPACES = (Space(8, 0.02), Space(8, 0.1), Space(16, 0.05))


def factors_of(space: Space, random: np.random.Generator) -> tuple[float, ...]:
    """The candidates' times, over that of a middle one."""
    return tuple(np.exp(space.spread * random.normal(size=space.count)).tolist())


def by_do_bench(machine: Machine, factors: tuple[float, ...]) -> int:
    """The candidate with the shortest median, each measured once."""
    medians = []
    for each, factor in enumerate(factors):
        cost = machine.series.call * factor + OVERHEAD
        for seconds in (WARM_UP, SAMPLING):
            order = np.full(max(1, int(seconds / cost)), each, np.uint32)
            returned = machine.time_calls((), order)["returned_ns"]
        medians.append(float(np.median(returned)))
    return int(np.argmin(medians))


def run(series: Series, space: Space, random: np.random.Generator) -> tuple[float, ...]:
    """Regret of tune and of do_bench, their seconds, and whether the fastest was the winner or among the ties."""
    factors = factors_of(space, random)
    fastest = min(factors)
    machine = Machine(series, random, factors)
    with machine.installed():
        found = tune({str(each): int for each in range(space.count)}, seed=int(random.integers(2**32)))
    other = Machine(series, random, factors)
    usual = by_do_bench(other, factors)
    kept = str(factors.index(fastest)) in (found.winner, *found.ties)
    return factors[int(found.winner)] / fastest, factors[usual] / fastest, machine.now, other.now, float(kept)


def main() -> None:
    options = measure.arguments(__doc__, runs=20, only="")
    runs = 2 if options.quick else options.runs
    detail, every = {}, []
    for (name, series), long in itertools.product(SERIES.items(), (False, True)):
        title = f"{name}, 1 ms" if long else name
        if options.only not in title:
            continue
        random = np.random.default_rng(SEED)
        chosen = replace(series, call=LONG) if long else series
        rows = np.array([run(chosen, space, random) for space in SPACES for _ in range(runs)])
        detail[title] = named(rows.mean(axis=0), "regret", "do_bench's", "seconds", "do_bench's seconds", "kept")
        every.append(rows)
    rows = np.concatenate(every)
    regret, usual, seconds, theirs, kept = rows.mean(axis=0)
    others = {"do_bench": {"value": round(float(usual), 4)}}
    measure.answer(
        {
            "rows": {
                "tune_regret": {"value": round(float(regret), 4), "detail": detail, "others": others},
                "tune_seconds": {"value": round(float(seconds / theirs), 3)},
                "tune_missed": {"value": round(1 - float(kept), 4)},
            }
        }
    )


if __name__ == "__main__":
    main()
