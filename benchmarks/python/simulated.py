# SPDX-License-Identifier: Apache-2.0
"""How often intervals of `benchmark`, verdicts of `compare`, and results of `crossover` and `sweep` are right.

Calls take their true time with noise of a known kind, on a simulated clock. Needs no GPU. The detail of a row has the
figures of each kind of noise. `compare` has the second function longer by a given ratio. In `crossover` and `sweep` all
calls of a visit share a factor, because they share clocks and placement of memory.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any
from unittest import mock

import measure
import numpy as np
from numpy.typing import NDArray

from gpuscope import _core, benchmark, compare, crossover, sweep
from gpuscope.benchmarking import benchmarks, engine, rounds, stopping

Floats = NDArray[np.float64]
OVERHEAD = 2e-6  # seconds that a call, or a row of them, costs beyond its time
TICK = 32e-9


@dataclass(frozen=True)
class Series:
    """Noise, and where its centre is.

    Attributes:
        noise: factors of a call's time, given the generator and when the calls begin, in seconds of the machine.
        truth: the median of all factors, or of those between two times.
        call: seconds a call takes without noise.
        tick: of the clock, in seconds.
        told: whether gpuscope is told of that.
    """

    noise: Callable[[np.random.Generator], Callable[[Floats], Floats]]
    truth: float | Callable[[Any, float, float], float] = 1.0
    call: float = 10e-6
    tick: float = 1e-9
    told: bool = True


def independent(draw: Callable[[np.random.Generator, int], Floats]) -> Callable[..., Any]:
    return lambda random: lambda when: draw(random, len(when))


def first_order(rho: float, spread: float = 0.05) -> Callable[..., Any]:
    """A normal process of first order over calls."""

    def make(random: np.random.Generator) -> Callable[[Floats], Floats]:
        state = random.normal()

        def noise(when: Floats) -> Floats:
            nonlocal state
            found = np.empty(len(when))
            for first in range(0, len(when), 128):
                part = slice(first, min(first + 128, len(when)))
                fading = rho ** np.arange(1, part.stop - part.start + 1)
                shocks = math.sqrt(1 - rho**2) * random.normal(size=len(fading))
                found[part] = fading * (state + np.cumsum(shocks / fading))
                state = float(found[part.stop - 1])
            return 1 + spread * found

        return noise

    return make


def states(slower: float, fast: float, slow: float, spread: float = 0.01) -> Callable[..., Any]:
    """Two states that last so many seconds each on average, as a Markov chain."""

    def make(random: np.random.Generator) -> Callable[[Floats], Floats]:
        first = int(random.random() < slow / (fast + slow))
        lengths = random.exponential(1.0, 4000) * np.where((np.arange(4000) + first) % 2, slow, fast)
        switches = np.cumsum(lengths)

        def noise(when: Floats) -> Floats:
            is_slow = (np.searchsorted(switches, when) + first) % 2
            return (1 + slower * is_slow) * (1 + spread * random.normal(size=len(when)))

        return noise

    return make


def of_time(level: Callable[[Floats, float], Floats], spread: float = 0.005) -> Callable[..., Any]:
    """A level that depends on the time and a random phase between 0 and 1."""

    def make(random: np.random.Generator) -> Callable[[Floats], Floats]:
        phase = random.random()

        def noise(when: Floats) -> Floats:
            return level(when, phase) * (1 + spread * random.normal(size=len(when)))

        noise.median = lambda begin, end: float(np.median(level(np.linspace(begin, end, 10_001), phase)))  # type: ignore[attr-defined]
        return noise

    return make


def of_run(noise: Any, begin: float, end: float) -> float:
    """The median of the level over the run, where it has none for good."""
    return float(noise.median(begin, end))


def _upper(share: float, spread: float) -> float:
    """The median of two well separated groups: a quantile of the lower one, which has this share."""
    return 1 + spread * NormalDist().inv_cdf(0.5 / share)


SERIES = {
    "normal 5 %": Series(independent(lambda random, n: 1 + 0.05 * random.normal(size=n))),
    "lognormal 20 %": Series(independent(lambda random, n: np.exp(0.2 * random.normal(size=n)))),
    "Pareto 1.5": Series(independent(lambda random, n: 1 + random.pareto(1.5, n)), 2 ** (1 / 1.5)),
    "t2, 5 %": Series(independent(lambda random, n: np.maximum(1 + 0.05 * random.standard_t(2, n), 0.01))),
    "bimodal 90/10": Series(
        independent(lambda random, n: (1 + 0.3 * (random.random(n) < 0.1)) * (1 + 0.01 * random.normal(size=n))),
        _upper(0.9, 0.01),
    ),
    "bimodal 50/50": Series(
        independent(lambda random, n: 1 + 0.2 * (random.random(n) < 0.5) + 0.01 * random.normal(size=n)), 1.1
    ),
    **{f"AR(1) {rho}": Series(first_order(rho)) for rho in (0.3, 0.6, 0.9, 0.99, 0.995)},
    "two states 70/30 of 20 ms": Series(states(0.1, 0.028, 0.012), _upper(0.7, 0.01)),
    "sine 2 % of 300 ms": Series(of_time(lambda when, phase: 1 + 0.02 * np.sin(2 * np.pi * (when / 0.3 + phase)))),
    "bursts 45 of 100 ms": Series(
        of_time(lambda when, phase: np.where((when / 0.1 + phase) % 1 < 0.45, 1.5, 1.0), 0.01), _upper(0.55, 0.01)
    ),
    "drift 4 % a second": Series(of_time(lambda when, phase: 1 + 0.04 * (when + phase)), of_run),
    "step of 3 %": Series(of_time(lambda when, phase: np.where(when > phase, 1.03, 1.0)), of_run),
    "rows of short calls": Series(independent(lambda random, n: 1 + 0.05 * random.normal(size=n)), 1.0, 0.2e-6),
    "rows, two states 70/30": Series(states(0.1, 0.028, 0.012), _upper(0.7, 0.001), 0.2e-6),
    "ticks told": Series(independent(lambda random, n: 1 + 0.005 * random.normal(size=n)), 1.0, 2.01e-6, TICK),
    "ticks untold": Series(independent(lambda random, n: 1 + 0.005 * random.normal(size=n)), 1.0, 2.01e-6, TICK, False),
}


class Machine:
    """Calls functions on a clock of its own: the n-th takes ``factors[n]`` times as long as the series says.

    After another function than itself it takes `evicted` times as long: each evicts the other's data from a cache.
    """

    def __init__(
        self, series: Series, random: np.random.Generator, factors: tuple[float, ...] = (1.0,), evicted: float = 1.0
    ) -> None:
        self.series, self.now = series, 0.0
        self.noise = series.noise(random)
        self._random, self._factors, self._evicted, self._last = random, np.array(factors), evicted, 0

    def time_calls(
        self, functions: object, order: NDArray[np.uint32], *, repeat: int = 1, longest_ns: int = 0
    ) -> dict[str, Any]:
        """As ``_core.time_calls``, without rows that end early."""
        series, rows = self.series, len(order)
        calls = np.repeat(order, repeat)
        changed = np.diff(calls.astype(np.int64), prepend=self._last) != 0
        self._last = int(order[-1])
        true = series.call * self._factors[calls] * np.where(changed, self._evicted, 1.0)
        overhead = np.where(np.arange(1, len(calls) + 1) % repeat, 0.0, OVERHEAD)
        steps = true + overhead
        seconds = true * self.noise(self.now + np.cumsum(steps) - steps)
        self.now += float((seconds + overhead).sum())
        begin = self._random.random(rows)  # between two ticks
        returned = np.floor(begin + seconds.reshape(rows, repeat).sum(axis=1) / series.tick) * series.tick
        return {"called_ns": np.zeros(rows), "returned_ns": returned * 1e9, "calls": np.full(rows, repeat)}

    def clock(self) -> float:
        """As ``stopping.now``."""
        return self.now

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces the machine that gpuscope sees."""
        with (
            mock.patch.object(_core, "time_calls", self.time_calls),
            mock.patch.object(_core, "environment", return_value={"devices": []}),
            mock.patch.object(stopping, "now", self.clock),
            mock.patch.multiple(engine, _QUEUE_A_CHUNK=4096, _LARGEST_CHUNK=256),  # larger chunks simulate faster
            mock.patch.object(engine, "CPU_TICK", self.series.tick if self.series.told else 1e-9),
            # Coarse ticks are a GPU's, whose calls are not repeated.
            mock.patch.object(engine, "TINY", engine.TINY if self.series.tick < TICK else 0.0),
        ):
            yield


# -- one benchmark ----------------------------------------------------------------------------------------------------

OFF = 0.01


def run(series: Series, random: np.random.Generator) -> tuple[bool, bool, bool, float]:
    """One benchmark: whether its interval holds the truth, it converged, and did so far off; its seconds."""
    machine = Machine(series, random)
    with machine.installed(), mock.patch.object(benchmarks, "_environment", return_value={}):
        found = benchmark(int, budget=2.0)
    truth = series.truth if isinstance(series.truth, float) else series.truth(machine.noise, 0.0, machine.now)
    true = truth * series.call
    held = found.estimate.low <= true <= found.estimate.high
    off = found.converged and abs(found.estimate.value / true - 1) > OFF
    return held, found.converged, off, found.seconds


def of_benchmarks(runs: int) -> dict[str, measure.Row]:
    detail = {}
    for name, series in SERIES.items():
        random = np.random.default_rng(SEED)
        rows = np.array([run(series, random) for _ in range(runs)], float).mean(axis=0)
        detail[name] = named(rows, "held", "converged", "and > 1 % off", "seconds")
    missed = 1 - float(np.mean([row["held"] for row in detail.values()]))
    off = max(row["and > 1 % off"] for row in detail.values())
    return {"simulated_missed": {"value": round(missed, 4), "detail": detail}, "simulated_off": {"value": off}}


# -- two functions ----------------------------------------------------------------------------------------------------

RATIOS = (1.0, 1.011, 1.02)  # equal functions, just beyond the margin, and what must be found
MARGIN, EVICTED = 0.01, 1.3
UNDER_EVICTION = ("normal 5 %", "AR(1) 0.9", "two states 70/30 of 20 ms", "drift 4 % a second", "ticks untold")
VERDICTS = ("faster", "slower", "same", "inconclusive")


def first() -> None:
    """The function to compare with."""


def second() -> None:
    """The function to compare."""


def of_comparisons(runs: int) -> dict[str, measure.Row]:
    kinds = [(name, series, 1.0) for name, series in SERIES.items()]
    kinds += [(f"{name}, evicted", SERIES[name], EVICTED) for name in UNDER_EVICTION]
    detail = {}
    false = 0.0
    for (name, series, evicted), ratio in itertools.product(kinds, RATIOS):
        random = np.random.default_rng(SEED)
        found: collections.Counter[str] = collections.Counter()
        held, seconds = 0, 0.0
        for _ in range(runs):
            machine = Machine(series, random, (1.0, ratio), evicted)
            with machine.installed():
                one = compare(first, second, budget=1.0, margin=MARGIN, seed=int(random.integers(2**32)))
            found[one.verdict] += 1
            held += one.ratio.low <= ratio <= one.ratio.high
            seconds += one.seconds
        figures = [found[verdict] / runs for verdict in VERDICTS]
        detail[f"{name}, {ratio:g}"] = named([*figures, held / runs, seconds / runs], *VERDICTS, "held", "seconds")
        if ratio == 1.0:
            false += (figures[0] + figures[1]) / len(kinds)
    return {"simulated_false": {"value": round(false, 4), "detail": detail}}


# -- many sizes and configurations ------------------------------------------------------------------------------------

EFFECTS = (0.0, 0.01, 0.03)  # standard deviations of a visit's factor
BUDGET = 4.0
SIZES, EXPONENT = (64, 256, 1024, 4096), 0.9
FASTER = 0.05


class Visited(Machine):
    """A machine that is another one at each visit."""

    def __init__(self, random: np.random.Generator, effect: float) -> None:
        super().__init__(SERIES["normal 5 %"], random)
        self._effect = effect

    def visit(self, seconds: float) -> Callable[[], object]:
        """Makes a function that takes so long, during this visit."""
        self._factors = np.array([seconds / self.series.call * math.exp(self._effect * self._random.normal())])
        return int


def crossing(random: np.random.Generator, effect: float, budget: float) -> tuple[float, ...]:
    """Whether there is one crossing, it is held, half of its interval over its value, and seconds over the budget."""
    machine = Visited(random, effect)
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
    machine = Visited(random, effect)
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


def of_rounds(runs: int) -> dict[str, measure.Row]:
    detail = {}
    for effect in EFFECTS:
        random = np.random.default_rng(SEED)
        rows = np.array([crossing(random, effect, BUDGET) for _ in range(runs)])
        figures = [*np.nanmean(rows[:, :3], axis=0), rows[:, 3].max()]
        detail[f"crossover, {effect:g}"] = named(figures, "one", "held", "half width", "budget")
    wrong = 0.0
    for (count, faster), effect in itertools.product(((2, 0.0), (2, FASTER), (10, 0.0), (10, FASTER)), EFFECTS):
        random = np.random.default_rng(SEED)
        rows = np.array([winner(random, effect, BUDGET, count, faster) for _ in range(runs)])
        title = f"{count} configurations, " + (f"one {faster:.0%} faster" if faster else "all equal")
        figures = [*rows[:, :4].mean(axis=0), rows[:, 4].max()]
        detail[f"{title}, {effect:g}"] = named(figures, "single", "wrong", "right", "within", "budget")
        wrong = max(wrong, float(figures[1]))
    return {"simulated_wrong": {"value": round(wrong, 4), "detail": detail}}


SEED = 1
PARTS: dict[str, Callable[[int], dict[str, measure.Row]]] = {
    "benchmark": of_benchmarks,
    "compare": of_comparisons,
    "rounds": of_rounds,
}


def named(figures: Any, *names: str) -> dict[str, float]:
    return {name: round(float(figure), 4) for name, figure in zip(names, figures, strict=True)}


def main() -> None:
    options = measure.arguments(__doc__, runs=20, only=",".join(PARTS))
    runs = 5 if options.quick else options.runs
    rows: dict[str, measure.Row] = {}
    for part in options.only.split(","):
        rows |= PARTS[part](runs)
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
