# SPDX-License-Identifier: Apache-2.0
"""Ratios of two sets of samples, with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.errors import InvalidArgument
from gpuscope.stats.autocorrelation import autocorrelation_time, checked, checked_confidence
from gpuscope.stats.distributions import (
    normal_quantile,
    normal_two_sided,
    signed_rank_distribution,
    student_factor,
)
from gpuscope.stats.location import estimate

EXACT = 60  # pairs up to which all signs are enumerated
FEWEST_TO_RESAMPLE, RESAMPLES = 30, 2000
CONFIDENCE = 0.95  # of ratios of sums
MOST_PAIRS = 500  # more are first averaged in groups, as all pairs of them are compared


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval.

    Attributes:
        value: the ratio.
        low: lower end of the interval; 0 with too few samples.
        high: upper end; infinite with too few samples.
        n: pairs, or samples of the shorter side.
        p: probability of a ratio so far from 1 if the true one is 1.
    """

    value: float
    low: float
    high: float
    n: int
    p: float


def paired_ratio(log_ratios: ArrayLike, *, confidence: float = 0.95) -> Ratio:
    """The ratio of pairs that were measured side by side, each given as the logarithm of its ratio.

    The value is the median of the averages of all pairs of log-ratios (J. L. Hodges and E. L. Lehmann, Annals of
    Mathematical Statistics 34, 1963), its interval Wilcoxon's signed-rank interval. p is the share of all choices of
    signs whose sum of signed ranks is as far from 0.

    Raises:
        InvalidArgument: there are no log-ratios, or not all are finite.
    """
    logs = checked(log_ratios, "log_ratios")
    confidence = checked_confidence(confidence)
    n = len(logs)
    points = logs
    if n > MOST_PAIRS:
        size = -(-n // MOST_PAIRS)
        points = logs[: n // size * size].reshape(-1, size).mean(axis=1)
    first, second = np.triu_indices(len(points))
    walsh = np.sort((points[first] + points[second]) / 2)
    middle = float(walsh[(len(walsh) - 1) // 2] + walsh[len(walsh) // 2]) / 2
    outside = _averages_outside(len(points), confidence)
    low, high = (float(walsh[outside - 1]), float(walsh[-outside])) if outside else (-math.inf, math.inf)
    return Ratio(_exp(middle), _exp(low), _exp(high), n, sign_flip_p(points))


def ratio_of_medians(
    numerator: ArrayLike, denominator: ArrayLike, *, tick: float = 0.0, confidence: float = 0.95
) -> Ratio:
    """The ratio of the centres of two sets of samples that were measured apart.

    The interval combines those of the two estimates: G. Y. Zou and A. Donner, Construction of confidence limits about
    effect measures: a general approach, Statistics in Medicine 27 (2008), on logarithms. It does not include changes
    between the two sets; samples in turns and `paired_ratio` do.

    Raises:
        InvalidArgument: a set is empty, not finite, or not of positive numbers.
    """
    sides = []
    for name, samples in (("numerator", numerator), ("denominator", denominator)):
        values = checked(samples, name)
        if (values <= 0).any():
            raise InvalidArgument(f"{name} holds numbers that are not above 0; accepted are positive numbers")
        sides.append(estimate(values, tick=tick, confidence=confidence))
    above, below = sides
    n = min(above.n, below.n)
    value = above.value / below.value
    logs = [[log(side.low), math.log(side.value), log(side.high)] for side in sides]
    down = math.hypot(logs[0][1] - logs[0][0], logs[1][2] - logs[1][1])
    up = math.hypot(logs[0][2] - logs[0][1], logs[1][1] - logs[1][0])
    toward_one = down if value > 1 else up
    if toward_one == 0:
        p = 1.0 if value == 1 else 0.0
    else:
        p = normal_two_sided(math.log(value) / toward_one * normal_quantile((1 + confidence) / 2))
    return Ratio(value, value * math.exp(-down), value * _exp(up), n, p)


def ratio_of_sums(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], seed: int = 0
) -> tuple[float, float] | None:
    """The 95 % interval of ``sum(numerators) / sum(denominators)``; None with fewer than 30.

    By a bootstrap of circular blocks of twice the autocorrelation time: D. N. Politis and J. P. Romano, A circular
    block-resampling procedure for stationary data (1992). For few samples it is widened by Student's factor over the
    normal distribution's, and by the bias of the deviation, ``sqrt(n / (n - 1))``.

    Args:
        numerators: one per batch, in order.
        denominators: the same.
        seed: of the resampling; the same figures give the same interval.
    """
    n = len(numerators)
    if n < FEWEST_TO_RESAMPLE:
        return None
    varying = numerators / denominators if np.ptp(denominators) else numerators
    block = min(math.ceil(2 * autocorrelation_time(varying)), n // 2)
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, n, (RESAMPLES, math.ceil(n / block)))
    rows = ((starts[:, :, None] + np.arange(block)) % n).reshape(RESAMPLES, -1)[:, :n]
    ratios = numerators[rows].sum(axis=1) / denominators[rows].sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    value = numerators.sum() / denominators.sum()
    wider = student_factor(CONFIDENCE, n - 1) / normal_quantile(1 - tail) * math.sqrt(n / (n - 1))
    low, high = value + wider * (np.quantile(ratios, [tail, 1 - tail]) - value)
    return float(low), float(high)


def sign_flip_p(logs: NDArray[np.float64]) -> float:
    """Two-sided p of the signed-rank sum among all flips of signs; zeros are left out."""
    logs = logs[logs != 0]
    n = len(logs)
    if not n:
        return 1.0
    _, place, counts = np.unique(np.abs(logs), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive, total = float(ranks[logs > 0].sum()), n * (n + 1) / 2
    smaller = min(positive, total - positive)
    if n <= EXACT and int(counts.max()) == 1:
        return min(1.0, 2 * float(signed_rank_distribution(n)[: int(smaller) + 1].sum()))
    variance = float((ranks**2).sum()) / 4
    return normal_two_sided((smaller - total / 2) / math.sqrt(variance))


def _averages_outside(n: int, confidence: float) -> int:
    """Place of the interval's ends in the sorted averages, counted from 1 from both ends; 0 without an interval."""
    tail = (1 - confidence) / 2
    if n <= EXACT:
        return int(np.searchsorted(np.cumsum(signed_rank_distribution(n)), tail, "right"))
    deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return max(int(n * (n + 1) / 4 - normal_quantile(1 - tail) * deviation), 0)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def log(value: float) -> float:
    """The logarithm of the end of a ratio's interval, which may be 0 or infinite."""
    if value <= 0:
        return -math.inf
    return math.log(value) if math.isfinite(value) else math.inf
