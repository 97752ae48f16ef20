# SPDX-License-Identifier: Apache-2.0
"""Decides when warm-up and sampling stop: steadiness, convergence and budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core, stats
from gpuscope.stats.autocorrelation import FEWEST_BURSTS
from gpuscope.stats.distributions import normal_quantile
from gpuscope.stats.shape import mann_kendall, theil_sen
from gpuscope.units import format_rough, format_seconds

FEWEST_SAMPLES = 30
FEWEST_INDEPENDENT = 20
# Seconds over which bursts of samples are spread at least, and their number: clocks, schedulers and neighbours change
# over tens of milliseconds, which samples at one moment cannot show. Bursts 6 ms apart seldom miss states of 12 ms; of
# 24 bursts, 1 in 200 runs met none.
SPAN, BURSTS = 0.3, 48
# Filled share of a burst's part of the span at most; samples in a first burst, growth after a look, and most samples.
FILLED, FIRST_BURST, GROWTH, LARGEST_BURST = 0.5, 64, 4, 5000
# Growth of the time between two looks.
NEXT_LOOK = 1.5
# Share of a budget too small for `SPAN`.
SHORTEST_SPAN = 0.6
# Share of any budget for samples, as first calls, which start libraries or compile, may take more than all of it.
FOR_SAMPLES = 0.5

# A drift over a run that is reported (fraction of the value), and the p below which it is believed.
DRIFT = 0.005
CHANCE = 0.01
CONFIDENCE, SEQUENTIAL = 0.95, 0.99
# Standard deviation of GPU times between fresh processes, as a fraction, by memory placement. Of 100 processes each on
# an H100: a kernel of 6.6 us 0.20 %, a copy of 41 us 0.10 %, a GEMM of 5.9 us 0.30 %. Host times have no such figure:
# they depend on other work of the machine.
GPU_PROCESSES_DIFFER = 0.0025

WINDOW = 8
"""Chunks that `is_steady` compares."""
SHORTEST = 0.02
"""Shortest warm-up in seconds: clocks take some milliseconds to leave idle."""

_DRIFT = 0.005
_CLEAR = 1.645  # standard deviations: p below 0.1
_CLOCK_RANGE = 0.01


def now() -> float:
    """Seconds of the monotonic clock, also if Python's clocks are patched."""
    return _core.monotonic_ns() / 1e9


class Budget:
    """Seconds to spend from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._began = seconds, now()

    @property
    def spent(self) -> float:
        """Seconds since it was made."""
        return now() - self._began

    @property
    def left(self) -> float:
        """Seconds left; 0 when it is used up."""
        return max(0.0, self.seconds - self.spent)

    def share(self, fraction: float) -> Budget:
        """A fraction of the whole from now on, at most the seconds left."""
        return Budget(min(self.left, fraction * self.seconds))

    def for_samples(self) -> Budget:
        """The seconds left, at least half of the whole."""
        return Budget(max(self.left, FOR_SAMPLES * self.seconds))


@dataclass(frozen=True)
class Progress:
    """The statistics of the samples so far."""

    estimate: stats.Estimate  # their centre and its interval
    trend: stats.Trend  # how they drifted
    change: stats.Change  # where their level changed most, by the number of the sample
    converged: bool  # the interval is as narrow as wanted, on enough independent samples that do not drift
    enough: bool = False  # converged, or only the spread between processes is too large: more samples do not help
    step_fits: bool = False  # the samples are nearer to the two levels of the change than to the line of the trend

    @property
    def drifts(self) -> bool:
        """The samples drifted or changed by more than 0.5 % over the run, and not by chance."""
        return self.drifted or self.changed

    @property
    def abrupt(self) -> bool:
        """The samples changed, and a step fits better than a steady drift."""
        return self.changed and (not self.drifted or self.step_fits)

    @property
    def drifted(self) -> bool:
        """The samples have a trend."""
        return self.trend.p < CHANCE and abs(self.trend.drift) > DRIFT

    @property
    def changed(self) -> bool:
        """The samples have two levels, before and after."""
        return self.change.p < CHANCE and abs(self.change.size) > DRIFT


def judge(
    samples: NDArray[np.float64],
    tick: float,
    precision: float,
    bursts: Sequence[int] | None = None,
    processes_differ: float = 0.0,
) -> Progress:
    """Judges whether sampling can stop: interval, number, independence and trend of the valid samples.

    The 95 % interval is computed at `SEQUENTIAL` confidence, as repeated looks that stop at a narrow interval lower the
    coverage: to 91 % for samples of two equal modes (benchmarks/python/simulated.py). If samples drift, the interval
    includes the first and the last level. `processes_differ` is the relative standard deviation between processes; it
    is added in quadrature, as a type B uncertainty of the GUM.
    """
    estimate = stats.estimate(samples, tick=tick, confidence=SEQUENTIAL, bursts=bursts)
    trend, change = stats.trend(samples), stats.change(samples)
    if bursts is not None and len(bursts) >= FEWEST_BURSTS:
        ends = np.cumsum(bursts)
        change = stats.change([np.median(burst) for burst in np.split(samples, ends[:-1])])
        change = replace(change, at=int(ends[change.at - 1]))
    progress = Progress(estimate, trend, change, False, _step_fits(samples, trend, change))
    allowed = normal_quantile((1 + CONFIDENCE) / 2) * processes_differ * estimate.value
    low = estimate.value - math.hypot(estimate.value - estimate.low, allowed)
    high = estimate.value + math.hypot(estimate.high - estimate.value, allowed)
    if progress.drifted:
        half = abs(progress.trend.drift) / 2 * estimate.value
        low, high = min(low, estimate.value - half), max(high, estimate.value + half)
    if progress.changed:
        low = min(low, progress.change.before, progress.change.after)
        high = max(high, progress.change.before, progress.change.after)
    within, estimate = estimate, replace(estimate, low=low, high=high, confidence=CONFIDENCE)
    many = estimate.n >= FEWEST_SAMPLES and estimate.n_eff >= FEWEST_INDEPENDENT
    steady = many and not progress.drifts
    converged = steady and estimate.relative_half_width <= precision
    enough = converged or (steady and within.relative_half_width <= precision and allowed >= precision * estimate.value)
    return replace(progress, estimate=estimate, converged=converged, enough=enough)


def _step_fits(samples: NDArray[np.float64], trend: stats.Trend, change: stats.Change) -> bool:
    middle = float(np.median(samples))
    line = middle * (1 + trend.drift * np.linspace(-0.5, 0.5, len(samples)))
    step = np.where(np.arange(len(samples)) < change.at, change.before, change.after)
    return float(np.median(np.abs(samples - step))) < float(np.median(np.abs(samples - line)))


class Bursts:
    """Schedules bursts of samples: when they are taken, their sizes, and when they are judged.

    The span is at least `SPAN`, if `seconds` allow. Each burst is at a random moment of its own part of the span, so
    that bursts are not in phase with a rhythm of the machine. `cost` is the seconds of a sample.
    """

    def __init__(self, seconds: float, random: np.random.Generator) -> None:
        self.next_look = self.span = min(SPAN, SHORTEST_SPAN * seconds)
        self._random, self._largest, self._rest = random, FIRST_BURST, 0.0

    def size(self, cost: float, left: float) -> int:
        """Samples in the next burst: as many as fit into its part of the span and the seconds `left`."""
        room = min(FILLED * self.span / BURSTS, left)
        return max(1, min(int(room / max(cost, 1e-9)), self._largest))

    def pause(self, size: int, cost: float, left: float) -> float:
        """Seconds until the next burst: the rest of the last part, and a random share of its own."""
        spare = max(self.span / BURSTS - size * cost, 0.0)
        begin = float(self._random.uniform(0, spare))
        pause, self._rest = self._rest + begin, spare - begin
        return min(pause, max(left - size * cost, 0.0))

    def looked(self, spent: float) -> None:
        """Plans the next look, with larger bursts."""
        self.next_look = NEXT_LOOK * spent
        self._largest = min(GROWTH * self._largest, LARGEST_BURST)


@dataclass(frozen=True)
class WarmUp:
    """The outcome of a warm-up."""

    steady: bool  # time and clock were steady; False if the time ran out before
    seconds: float  # its duration
    samples: int  # samples taken
    last: tuple[float, ...] = ()  # the last times, up to `WINDOW` chunks
    note: str = ""  # a change in later samples, which then count as warm-up
    sample_seconds: float = 0.0  # duration of a sample

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence if time or clock were not steady, and the note."""
        found = []
        if not self.samples:
            found.append("nothing was warmed up: the budget left no time for it")
        elif not self.steady:
            seen = [one for one in self.last if math.isfinite(one)]
            least, most = (format_seconds(one, 4) for one in (min(seen), max(seen))) if seen else ("", "")
            span = f": {least} to {most} in its last {len(seen)} rounds" if len(seen) > 1 else ""
            found.append(f"time or clock were not steady after {format_rough(self.seconds)} s of warming up{span}")
        return (*found, self.note) if self.note else tuple(found)


def is_steady(seconds: Sequence[float], clock_hz: Sequence[float]) -> bool:
    """Whether the last `WINDOW` chunks show neither a trend nor a change of the clock.

    A trend is significant in the Mann-Kendall test (p below 0.1) and at least 0.5 % over the window (Theil-Sen). Clocks
    may range over 1 %; if none is known (nan) only the time decides.
    """
    if len(seconds) < WINDOW:
        return False
    clocks = np.asarray(clock_hz[-WINDOW:])
    clocks = clocks[np.isfinite(clocks)]
    if len(clocks) and np.ptp(clocks) > _CLOCK_RANGE * np.median(clocks):
        return False
    times = np.asarray(seconds[-WINDOW:])
    if not np.isfinite(times).all():
        return False
    drift = theil_sen(times) * (WINDOW - 1) / float(np.median(times))
    score, variance = mann_kendall(times)
    # Autocorrelation cannot be estimated from so few values.
    return abs(score) - 1 < _CLEAR * math.sqrt(variance) or abs(drift) < _DRIFT
