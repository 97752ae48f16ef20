# SPDX-License-Identifier: Apache-2.0
"""When warming up and sampling stop, by steadiness, convergence and budget."""

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
# Seconds that bursts of samples are spread over at least, and how many of them are in that: clocks, schedulers and
# neighbours change over tens of milliseconds, which no number of samples in one of them can show. States that last
# 12 ms are seldom missed by bursts 6 ms apart; of 24 bursts, 1 in 200 runs met none.
SPAN, BURSTS = 0.3, 48
# A burst takes at most this share of the time for it, and at first at most so many samples; then so many times more.
FILLED, FIRST_BURST, GROWTH, LARGEST_BURST = 0.5, 64, 4, 5000
# After the first look, the next one comes when the time has grown by this.
NEXT_LOOK = 1.5
# Of a budget too small for the span.
SHORTEST_SPAN = 0.6
# Of any budget, for samples: libraries start and functions are compiled when they are first called, which may take more
# than all of it.
FOR_SAMPLES = 0.5

# A drift over a run that is reported (fraction of the value), and the p below which it is believed.
DRIFT = 0.005
CHANCE = 0.01
CONFIDENCE, SEQUENTIAL = 0.95, 0.99
# Standard deviation of GPU times between fresh processes, as a fraction: what lies where in memory, which no sample of
# one process shows. Of 100 each on an H100: a kernel of 6.6 us 0.20 %, a copy of 41 us 0.10 %, a GEMM of 5.9 us 0.30 %.
# Times on the host differ by what else the machine does, of which there is no one figure.
GPU_PROCESSES_DIFFER = 0.0025

WINDOW = 8
"""Chunks that are looked at."""
SHORTEST = 0.02
"""Seconds before which nothing is called steady: clocks take some milliseconds to leave idle."""

_DRIFT = 0.005
_CLEAR = 1.645  # standard deviations: p below 0.1
_CLOCK_RANGE = 0.01


def now() -> float:
    """Seconds of a clock that only runs forward, and that nothing in Python can stop."""
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
        """A part of the whole, from now on, as far as it is there."""
        return Budget(min(self.left, fraction * self.seconds))

    def for_samples(self) -> Budget:
        """What is left: half of the whole at least, whatever what came before took."""
        return Budget(max(self.left, FOR_SAMPLES * self.seconds))


@dataclass(frozen=True)
class Progress:
    """The statistics of the samples so far."""

    estimate: stats.Estimate  # their centre and its interval
    trend: stats.Trend  # how they drifted
    change: stats.Change  # where their level changed most, by the number of the sample
    converged: bool  # the interval is as narrow as wanted, on enough independent samples that do not drift
    enough: bool = False  # or it would be if processes did not differ by more: further samples do not help
    step_fits: bool = False  # the samples lie nearer to the two levels of the change than to the line of the trend

    @property
    def drifts(self) -> bool:
        """The samples drifted or changed by more than 0.5 % over the run, and not by chance."""
        return self.drifted or self.changed

    @property
    def abrupt(self) -> bool:
        """They changed, and one step describes them better than a steady drift."""
        return self.changed and (not self.drifted or self.step_fits)

    @property
    def drifted(self) -> bool:
        """They went one way."""
        return self.trend.p < CHANCE and abs(self.trend.drift) > DRIFT

    @property
    def changed(self) -> bool:
        """They were of another level before than after."""
        return self.change.p < CHANCE and abs(self.change.size) > DRIFT


def judge(
    samples: NDArray[np.float64],
    tick: float,
    target: float,
    bursts: Sequence[int] | None = None,
    processes_differ: float = 0.0,
) -> Progress:
    """Whether sampling can stop: interval, number, independence and trend of the valid samples.

    The interval is one of 95 %. To look several times and to stop when it is narrow lowers its coverage: of samples
    that gather around two values, half at each, 91 % of the intervals held the truth (benchmarks_simulated.py). A
    higher confidence makes up for that. Where samples drift there is no one centre: the interval then holds where they
    came from and where they went. `processes_differ` is the standard deviation, relative to the centre, of what is
    known to differ between processes: it is added in quadrature, as an uncertainty of type B of the GUM is.
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
    converged = steady and estimate.relative_half_width <= target
    enough = converged or (steady and within.relative_half_width <= target and allowed >= target * estimate.value)
    return replace(progress, estimate=estimate, converged=converged, enough=enough)


def _step_fits(samples: NDArray[np.float64], trend: stats.Trend, change: stats.Change) -> bool:
    middle = float(np.median(samples))
    line = middle * (1 + trend.drift * np.linspace(-0.5, 0.5, len(samples)))
    step = np.where(np.arange(len(samples)) < change.at, change.before, change.after)
    return float(np.median(np.abs(samples - step))) < float(np.median(np.abs(samples - line)))


class Bursts:
    """When bursts of samples are taken, how large they are, and when they are looked at.

    Each comes at a random moment of its own part of the span, so that no rhythm of the machine can fall in with theirs
    and no part is without one, over at least `SPAN`, as far as `seconds` allow. `size` and `pause` are given what a
    call costs, in seconds.
    """

    def __init__(self, seconds: float, random: np.random.Generator) -> None:
        self.next_look = self.span = min(SPAN, SHORTEST_SPAN * seconds)
        self._random, self._largest, self._rest = random, FIRST_BURST, 0.0

    def size(self, cost: float, left: float) -> int:
        """How many samples the next burst has: as many as fit into its part of the span, and into what is left."""
        room = min(FILLED * self.span / BURSTS, left)
        return max(1, min(int(room / max(cost, 1e-9)), self._largest))

    def pause(self, size: int, cost: float, left: float) -> float:
        """Seconds until it begins, so that `BURSTS` fill the span: the rest of the last one's part, some of its own."""
        spare = max(self.span / BURSTS - size * cost, 0.0)
        begin = float(self._random.uniform(0, spare))
        pause, self._rest = self._rest + begin, spare - begin
        return min(pause, max(left - size * cost, 0.0))

    def looked(self, spent: float) -> None:
        """Plans the next look after one that was not enough, with larger bursts."""
        self.next_look = NEXT_LOOK * spent
        self._largest = min(GROWTH * self._largest, LARGEST_BURST)


@dataclass(frozen=True)
class WarmUp:
    """How warming up ended."""

    steady: bool  # time and clock were steady; False when the time for it ran out before
    seconds: float  # how long it took
    samples: int  # how many were taken
    last: tuple[float, ...] = ()  # the last times, up to `WINDOW` chunks
    note: str = ""  # what changed while samples were already taken, which count as warming up
    sample_seconds: float = 0.0  # what a sample takes

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence when time or clock were not steady, and one on what counts as warming up."""
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

    A trend is one that Mann's and Kendall's test sees (p below 0.1) and that amounts to 0.5 % over the window (Theil
    and Sen). Clocks may range over 1 %; where none is known (nan) the time decides alone.
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
    # Without regard to autocorrelation, which cannot be estimated from so few values.
    return abs(score) - 1 < _CLEAR * math.sqrt(variance) or abs(drift) < _DRIFT
