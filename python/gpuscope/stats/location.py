# SPDX-License-Identifier: Apache-2.0
"""The centre and the quantiles of samples, each with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.arguments import check_fraction
from gpuscope.stats.autocorrelation import (
    Dependence,
    autocorrelation_time,
    checked,
    checked_bursts,
    checked_by_batches,
    checked_confidence,
    checked_tick,
    of_bursts,
    time_for_mean,
    time_for_median,
)
from gpuscope.stats.distributions import median_rank, normal_quantile, student_factor

CONFIDENCE = 0.95  # of a quantile's interval
# With quartiles closer than this many ticks, the median is the clock's and not the kernel's.
COARSE = 4.0
RANKS = 0.25  # precision of the ends of a median's interval
# The trimmed mean leaves out at most this share on each side, and only samples further out than COARSE ticks.
TRIMMED = 0.1
# Samples are multiples of the tick when this share of them is this near to one, in ticks.
ON_TICK_SHARE, ON_TICK = 0.9, 0.125
# A clock shows its tick if at most this share of the samples are different. Levels closer than ROUNDING, as a share of
# the longest, differ only by the conversion to floating point.
MOST_LEVELS, ROUNDING = 0.5, 1e-9
# What an estimated autocorrelation time adds to the inverse degrees of freedom, and the most of it; see `_student`.
DOUBT, MOST_DOUBT = 5.0, 0.2


@dataclass(frozen=True)
class Estimate:
    """The centre of samples with its interval, in the samples' unit.

    Attributes:
        value: the estimate.
        low: lower end of the interval; minus infinity with too few samples.
        high: upper end; infinity with too few samples.
        n: number of samples.
        n_eff: number of independent samples that they are worth.
        method: "median" or "trimmed mean"; in sweeps "mean of visits".
        confidence: how often such an interval contains the true centre.
    """

    value: float
    low: float
    high: float
    n: int
    n_eff: float
    method: str
    confidence: float

    @property
    def relative_half_width(self) -> float:
        """Half of the interval as a fraction of the value; infinite when that is not defined."""
        if self.value == 0 or not math.isfinite(self.high - self.low):
            return math.inf
        return (self.high - self.low) / 2 / abs(self.value)


def estimate(
    samples: ArrayLike,
    *,
    tick: float = 0.0,
    confidence: float = 0.95,
    bursts: Sequence[int] | NDArray[np.int64] | None = None,
) -> Estimate:
    """The centre of samples taken one after the other, with its interval.

    The median, by order statistics; samples that the clock's tick made equal count as spread over the tick. If the
    spread is small against the tick, the trimmed mean is used instead. Both intervals are widened by the correlation of
    the samples. If all samples are the same, the interval is half a tick to each side.

    With bursts, the interval comes from the differences between bursts, so it includes noise slower than a burst. For
    the median it contains the values that a test of the share of samples below them does not reject (C. A. Francisco
    and W. A. Fuller, Quantile estimation with a complex survey design, Annals of Statistics 19, 1991).

    Args:
        samples: in the order they were taken.
        tick: resolution of the clock, in the samples' unit, default 0. If the samples are multiples of another tick,
            that one is used.
        confidence: how often the interval must contain the true centre.
        bursts: number of samples taken at each of several moments, in order; None is one by one.

    Raises:
        InvalidArgument: the samples are empty or not finite, or another argument is out of range.
    """
    values = checked(samples)
    confidence = checked_confidence(confidence)
    sizes = checked_bursts(bursts, len(values))
    values, tick = on_ticks(values, checked_tick(tick))
    ordered = np.sort(values)
    n = len(values)
    if ordered[0] == ordered[-1]:
        half = tick / 2 if median_rank(n, confidence) >= 1 else math.inf
        value = float(ordered[0])
        method = "trimmed mean" if tick else "median"
        return Estimate(value, value - half, value + half, n, float(n), method, confidence)
    if is_coarse(ordered, tick):
        return _trimmed_mean(values, ordered, tick, confidence, sizes)
    return _median(values, ordered, tick, confidence, sizes)


def on_ticks(values: NDArray[np.float64], tick: float) -> tuple[NDArray[np.float64], float]:
    """The samples rounded to the coarser of the given and the detected tick that fits, and that tick.

    Conversions between clocks round too: without rounding, samples that are equal in ticks would count as different.
    Samples that fit neither are returned as they are.
    """
    for candidate in sorted({tick, detected_tick(values)} - {0.0}, reverse=True):
        middle = np.partition(values, len(values) // 2)[len(values) // 2]
        rounded: NDArray[np.float64] = middle + np.round((values - middle) / candidate) * candidate
        if (np.abs(values - rounded) <= ON_TICK * candidate).mean() >= ON_TICK_SHARE:
            return rounded, candidate
    return values, tick


def is_coarse(ordered: NDArray[np.float64], tick: float) -> bool:
    """Whether the spread of sorted samples is small against the clock's tick."""
    n = len(ordered)
    return bool(tick and ordered[(3 * n) // 4 - (n % 4 == 0)] - ordered[n // 4] < COARSE * tick)


def detected_tick(values: NDArray[np.float64]) -> float:
    """The step that samples are multiples of, as from a clock that ticks; 0 if there is none.

    It is the smallest distance between two of them, if most are equal to others and all are multiples of it.
    """
    levels = np.unique(values)
    if not 2 <= len(levels) <= MOST_LEVELS * len(values):
        return 0.0
    steps = np.diff(levels)
    steps = steps[steps > ROUNDING * abs(float(levels[-1]))]
    tick = float(steps.min()) if len(steps) else 0.0
    if not tick:
        return 0.0
    multiples = levels / tick
    return tick if (np.abs(multiples - np.round(multiples)) <= ON_TICK).all() else 0.0


def _median(
    values: NDArray[np.float64],
    ordered: NDArray[np.float64],
    tick: float,
    confidence: float,
    sizes: NDArray[np.int64] | None,
) -> Estimate:
    n = len(values)
    middle = (n + 1) / 2
    low, centre, high = (float(ordered[i]) for i in (n // 10, (n - 1) // 2, n - 1 - n // 10))
    centre = (centre + float(ordered[n // 2])) / 2
    # Order statistics need no factor of Student's; the estimated autocorrelation time does.
    if sizes is None:
        tau = checked_by_batches(time_for_median(values, centre, low, high), np.sign(values - centre))
        factor = _student(confidence, 0.0, tau, n) / normal_quantile((1 + confidence) / 2)
        half = (middle - median_rank(n, confidence)) * math.sqrt(tau) * factor
        ends = middle - half, middle + half
    else:
        tau = of_bursts(np.sign(values - centre), sizes).time
        aways = (_furthest(values, ordered, confidence, sizes, side) for side in (-1, 1))
        ends = middle - next(aways), middle + next(aways)
    low, high = (_at_rank(ordered, rank, tick) for rank in ends)
    return Estimate(_at_rank(ordered, middle, tick), low, high, n, n / max(tau, 1.0), "median", confidence)


def _furthest(
    values: NDArray[np.float64], ordered: NDArray[np.float64], confidence: float, sizes: NDArray[np.int64], side: int
) -> float:
    """How many ranks below (side -1) or above (1) the middle the median may be, from the differences between bursts.

    A value is not the median if the share of samples below it is too far from a half. The error of that share is taken
    at the value itself. At the samples' median bursts differ less: of a frequent and a rare state, it is inside the
    frequent one.
    """
    n = len(values)
    inside, outside = 0.0, n / 2
    while outside - inside > RANKS:
        away = (inside + outside) / 2
        signs = np.sign(values - _at_rank(ordered, (n + 1) / 2 + side * away, 0.0))
        found = of_bursts(signs, sizes)
        reach = _student_of_bursts(confidence, found) * math.sqrt(found.time * n * float(signs.var())) / 2
        inside, outside = (away, outside) if away <= reach else (inside, away)
    return outside


def _student(confidence: float, inverse_freedom: float, tau: float, n: int) -> float:
    """Student's factor; the uncertainty of tau adds to the inverse of the degrees of freedom.

    With DOUBT, intervals keep their coverage even if samples are taken until the interval is narrow, which happens most
    often if tau was estimated too short.
    """
    inverse_freedom += min(DOUBT * max(tau - 1, 0.0) / n, MOST_DOUBT)
    if inverse_freedom <= 1e-9:
        return normal_quantile((1 + confidence) / 2)
    return student_factor(confidence, 1 / inverse_freedom)


def _student_of_bursts(confidence: float, found: Dependence) -> float:
    return _student(confidence, found.between / (found.units - 1), found.between, found.units)


def _at_rank(ordered: NDArray[np.float64], rank: float, tick: float) -> float:
    """The sample of a fractional rank from 1, infinite beyond the ends; equal ones are spread over their tick."""
    if not 1 <= rank <= len(ordered):
        return math.copysign(math.inf, rank - 1)
    sides = []
    for whole in (math.floor(rank), math.ceil(rank)):
        sample = float(ordered[whole - 1])
        begin, end = np.searchsorted(ordered, sample, "left"), np.searchsorted(ordered, sample, "right")
        sides.append(sample + tick * ((whole - 0.5 - float(begin)) / float(end - begin) - 0.5))
    return sides[0] + (rank - math.floor(rank)) * (sides[1] - sides[0])


def _trimmed_mean(
    values: NDArray[np.float64],
    ordered: NDArray[np.float64],
    tick: float,
    confidence: float,
    sizes: NDArray[np.int64] | None,
) -> Estimate:
    """The mean of the samples within COARSE ticks of the median, at least of the central 80 %.

    The interval: J. W. Tukey and D. H. McLaughlin, Less vulnerable confidence and significance procedures for
    location, Sankhya A 25 (1963). The difference of two rounded timestamps is one of two multiples of the tick, whose
    mean is the true time. To cut off the rarer one by a fixed share would bias the mean by a tenth of a tick.
    """
    n = len(values)
    middle = float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below = int(np.searchsorted(ordered, middle - COARSE * tick, "left"))
    above = n - int(np.searchsorted(ordered, middle + COARSE * tick, "right"))
    cut = min(max(below, above), int(TRIMMED * n))
    kept = n - 2 * cut
    value = float(ordered[cut : n - cut].mean())
    winsorised = np.clip(values, ordered[cut], ordered[n - cut - 1])
    if sizes is None:
        tau = checked_by_batches(time_for_mean(winsorised), winsorised)
        student = _student(confidence, 1 / max(kept - 1, 1), tau, n)
    else:
        found = of_bursts(winsorised, sizes)
        tau, student = found.time, _student_of_bursts(confidence, found)
    # As if one more sample were a tick further away: the samples may have missed a rare tick.
    variance = float(winsorised.var(ddof=1)) + tick**2 / n
    error = math.sqrt(variance * tau / n) * n / kept
    half = student * error
    return Estimate(value, value - half, value + half, n, n / max(tau, 1.0), "trimmed mean", confidence)


@dataclass(frozen=True)
class Quantile:
    """A quantile, in the samples' unit.

    Attributes:
        q: which one, as 0.99.
        value: of the samples, interpolated as ``numpy.quantile`` does.
        low: lower end of its 95 % interval; None with too few samples.
        high: upper end, likewise.
        why: why there is no interval; empty when there is.
    """

    q: float
    value: float
    low: float | None
    high: float | None
    why: str


def quantile(samples: ArrayLike, q: float) -> Quantile:
    """A quantile with its 95 % interval between order statistics.

    No shape is assumed: the number of samples below the true quantile is binomial (H. A. David and H. N. Nagaraja,
    Order Statistics, 3rd edition, 7.1), with the number of independent samples as its count.

    Args:
        samples: in the order they were taken.
        q: above 0 and below 1.

    Raises:
        InvalidArgument: the samples are empty or not finite, or q is out of range.
    """
    q = check_fraction("q", q)
    values = checked(samples)
    value = float(np.quantile(values, q))
    n = max(int(len(values) / autocorrelation_time(values)), 1)
    needed = fewest_samples(q)
    if n < needed:
        worth = "" if n == len(values) else f", as much as {n} independent sample{'' if n == 1 else 's'},"
        why = f"p{100 * q:g} of {len(values)} samples{worth} has no interval: {needed:.7g} are needed"
        return Quantile(q, value, None, None, why)
    ordered = np.sort(values)
    scale = len(ordered) / n
    low, high = (ordered[min(int((rank - 1) * scale), len(ordered) - 1)] for rank in quantile_ranks(n, q))
    return Quantile(q, value, float(min(low, value)), float(max(high, value)), "")


def fewest_samples(q: float) -> float:
    """Fewest samples whose smallest and largest enclose the quantile often enough on both sides.

    All n samples are below the quantile with probability q^n. That may be half of the allowed share of misses.
    """
    return float(np.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-min(q, 1 - q))))


def quantile_ranks(n: int, q: float) -> tuple[int, int]:
    """Ranks, counted from 1, of the order statistics that enclose the quantile of `n` samples."""
    tail = (1 - CONFIDENCE) / 2
    counts = np.arange(n + 1)
    factorials = np.array([math.lgamma(k + 1) for k in counts])
    logs = factorials[n] - factorials - factorials[::-1] + counts * math.log(q) + (n - counts) * math.log(1 - q)
    below = np.cumsum(np.exp(logs))
    lower = int(counts[below <= tail][-1]) + 1 if (below <= tail).any() else 1
    upper = int(counts[below >= 1 - tail][0]) + 1
    return lower, min(upper, n)
