# SPDX-License-Identifier: Apache-2.0
"""How often `crossover` holds the truth and `sweep` names the fastest, by simulation. Needs no GPU.

Calls of about 10 us on a simulated clock. All calls of a visit share a factor, as they share clocks, the placement of
memory and what caches hold; a call has noise of 5 % beside it. Curves that cross at a known size: the share of
crossovers with one crossing, and the share of those whose interval of 95 % holds it. Ten configurations that are equal,
two, and ten of which one is 5 % faster: the share of sweeps that name one, a wrong one, and the right one.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from unittest import mock

import numpy as np
import simulated

from gpuscope import crossover, sweep
from gpuscope.benchmarking import rounds

NOISE = simulated.SERIES["normal 5 %"]
EFFECTS = (0.0, 0.01, 0.03)  # standard deviations of a visit's factor
BUDGET = 4.0
SIZES, EXPONENT = (64, 256, 1024, 4096), 0.9
FASTER = 0.05


class Machine(simulated.Machine):
    """A machine that is another one at each visit."""

    def __init__(self, random: np.random.Generator, effect: float) -> None:
        super().__init__(NOISE, random)
        self._effect = effect

    def visit(self, seconds: float) -> Callable[[], object]:
        """Makes a function that takes so long, during this visit."""
        self._factors = np.array([seconds / self.series.call * math.exp(self._effect * self._random.normal())])
        return int


def crossing(random: np.random.Generator, effect: float, budget: float) -> tuple[float, ...]:
    """Whether there is one crossing, it is held, half of its interval over its value, and seconds over the budget."""
    machine = Machine(random, effect)
    truth = math.exp(random.uniform(math.log(80), math.log(3300)))
    with machine.installed(), mock.patch.object(rounds, "random", mock.Mock(Random=lambda: Shuffled(random))):
        found = crossover(
            lambda n: machine.visit(10e-6 * (n / truth) ** EXPONENT), lambda n: machine.visit(10e-6), n=SIZES,
            budget=budget, cold=False,
        )  # fmt: skip
    crossings = found.without_transfers.crossings
    if len(crossings) != 1:
        return 0.0, math.nan, math.nan, machine.now / budget
    low, high = crossings[0].low, crossings[0].high
    return 1.0, float(low <= truth <= high), (high - low) / 2 / crossings[0].value, machine.now / budget


def winner(random: np.random.Generator, effect: float, budget: float, count: int, faster: float) -> tuple[float, ...]:
    """Whether one point is named, a wrong one, the right one; how far those tied differ; seconds over the budget."""
    machine = Machine(random, effect)
    best = int(random.integers(count))
    with machine.installed(), mock.patch.object(rounds, "random", mock.Mock(Random=lambda: Shuffled(random))):
        found = sweep(
            lambda kind: machine.visit(10e-6 * (1 - faster * (kind == best))), kind=range(count), budget=budget
        )
    named = [point.parameters["kind"] for point in found.fastest]
    single = len(named) == 1
    right = single and bool(faster) and named == [best]
    return float(single), float(single and not right), float(right), found.fastest_within, machine.now / budget


class Shuffled:
    """`random.Random`, from NumPy's generator."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def shuffle(self, items: list[object]) -> None:
        """In place."""
        items[:] = [items[place] for place in self._random.permutation(len(items))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="behind each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of each")
    parser.add_argument("--only", choices=("crossover", "sweep"), help="one of the two tables")
    options = parser.parse_args()
    if options.only != "sweep":
        print(f"{'crossover':34}{'visits':>8}{'one':>8}{'held':>8}{'+-':>8}{'budget':>8}", flush=True)
        for effect in EFFECTS:
            random = np.random.default_rng(options.seed)
            rows = np.array([crossing(random, effect, options.budget) for _ in range(options.runs)])
            show("", effect, [*np.nanmean(rows[:, :3], axis=0), rows[:, 3].max()])
    if options.only != "crossover":
        print(f"{'sweep':34}{'visits':>8}{'single':>8}{'wrong':>8}{'right':>8}{'within':>8}{'budget':>8}", flush=True)
        for (count, faster), effect in itertools.product(((2, 0.0), (2, FASTER), (10, 0.0), (10, FASTER)), EFFECTS):
            random = np.random.default_rng(options.seed)
            rows = np.array([winner(random, effect, options.budget, count, faster) for _ in range(options.runs)])
            title = f"{count} configurations, " + (f"one {faster:.0%} faster" if faster else "all equal")
            show(title, effect, [*rows[:, :4].mean(axis=0), rows[:, 4].max()])


def show(title: str, effect: float, figures: list[float]) -> None:
    """One row of a table."""
    print(f"{title:34}{effect:8.2f}" + "".join(f"{figure:8.3f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
