# SPDX-License-Identifier: Apache-2.0
"""Histories of many tests, one number per run: where their level changed, and how much runs differ.

A single history is too short to show how much its runs differ: from three runs the standard deviation is known to a
factor of six. So the histories of all tests are used together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.stats.distributions import student_factor

CONFIDENCE = 0.99  # that no history of the session is cut where nothing changed
LONGEST = 200  # runs of a history that are looked at, the latest ones
PASSES = 4  # each leaves out the steps at the changes that the pass before found
LEAST_SCALE = 1e-6  # of runs that happen to be equal

ALIKE = 10.0  # degrees of freedom that the other histories give to the scale of one

MAD = 1.4826  # the normal distribution's standard deviation over its median absolute deviation
# P. J. Rousseeuw and C. Croux, Alternatives to the median absolute deviation, JASA 88 (1993): the share of the numbers
# from which a standard deviation is as precise.
MAD_EFFICIENCY = 0.37


@dataclass(frozen=True)
class Spread:
    """How much runs of the same code differ.

    Attributes:
        variance: between runs, of one number per run.
        freedom: degrees of freedom of the variance; infinite if it is taken as known.
    """

    variance: float
    freedom: float


def changes(histories: Sequence[Sequence[float]], noises: Sequence[float]) -> list[list[int]]:
    """For each history, the indices of the first runs after a change of its level, in order.

    Least squares with a penalty for each change, by dynamic programming: B. Jackson et al., An algorithm for optimal
    partitioning of data on an interval, IEEE Signal Processing Letters 12 (2005). The penalty is the squared quantile
    that any place of any history exceeds by chance in 1 % of sessions. It is Student's with few degrees of freedom, as
    histories differ in scale. The scale is the median difference of neighbouring runs, which few changes do not move:
    of all histories, drawn toward the history's own as it gets longer.

    Args:
        histories: the oldest run first.
        noises: the least standard deviation of a run of each history.
    """
    latest = [np.asarray(history[-LONGEST:], np.float64) for history in histories]
    steps = [np.abs(np.diff(history)) for history in latest]
    places = sum(len(step) for step in steps)
    found: list[list[int]] = [[] for _ in histories]
    if not places:
        return found
    confidence = 1 - (1 - CONFIDENCE) / places
    for _ in range(PASSES):
        quiet = [np.delete(step, np.array(begins, int) - 1) for step, begins in zip(steps, found, strict=True)]
        typical = _low_median(np.concatenate(quiet))
        before = found
        found = []
        for history, step, noise in zip(latest, quiet, noises, strict=True):
            own = MAD_EFFICIENCY * len(step)
            square = (ALIKE * typical**2 + own * _low_median(step) ** 2) / (ALIKE + own)
            variance = max(MAD**2 / 2 * square, noise**2, LEAST_SCALE**2)
            freedom = min(MAD_EFFICIENCY * places, ALIKE + own)
            # More than 1 counts as 2: this finds a new level of a single run, without more false cuts.
            freedom = max(freedom, 2.0) if freedom > 1 else 1.0
            found.append(_partition(history, student_factor(confidence, freedom) ** 2 * variance))
        if found == before:
            break
    skipped = [len(history) - len(part) for history, part in zip(histories, latest, strict=True)]
    return [[more + begin for begin in begins] for more, begins in zip(skipped, found, strict=True)]


def pooled_spreads(variances: Sequence[float], freedoms: Sequence[int]) -> list[Spread | None]:
    """How much the runs of each test differ, by its own variance and those of all tests; None when nothing is known.

    Each variance is drawn toward the common one, less so if the tests differ by more than chance: G. K. Smyth, Linear
    models and empirical Bayes methods for assessing differential expression, Statistical Applications in Genetics and
    Molecular Biology 3 (2004), section 6.2. Tests without a variance of their own get the common one.

    Args:
        variances: between the runs of each test, above 0; any number if there is one run.
        freedoms: of each variance, its runs less its levels; 0 if it is not known.
    """
    freedom = np.asarray(freedoms, np.float64)
    known = freedom > 0
    total = float(freedom.sum())
    if not known.any():
        return [None] * len(freedoms)
    values, weights = np.asarray(variances, np.float64)[known], freedom[known]
    prior = float(values @ weights) / total
    prior_freedom = 0.0
    if len(values) > 1:
        logs = np.log(values) - np.array([digamma(d / 2) - math.log(d / 2) for d in weights])
        excess = float(logs.var(ddof=1)) - sum(trigamma(d / 2) for d in weights) / len(weights)
        if excess > 0:
            prior_freedom = 2 * _inverse_trigamma(excess)
            prior = math.exp(float(logs.mean()) + digamma(prior_freedom / 2) - math.log(prior_freedom / 2))
        else:
            prior_freedom = math.inf
    found: list[Spread | None] = []
    for variance, own in zip(variances, freedoms, strict=True):
        if math.isinf(prior_freedom):
            found.append(Spread(prior, total))
        elif own or prior_freedom:
            both = prior_freedom + own
            mixed = (prior_freedom * prior + (own * variance if own else 0.0)) / both
            found.append(Spread(mixed, min(both, total)))
        else:
            found.append(Spread(prior, total))
    return found


def spread_of_changes(changes: Sequence[float]) -> Spread:
    """How much two runs differ, from the changes of many tests between them, if most tests did not change.

    By the median absolute deviation from the median: a few changed tests or the same change of all tests do not enlarge
    it. The variance is that of one run, half of a difference's.
    """
    values = np.asarray(changes, np.float64)
    deviation = MAD * float(np.median(np.abs(values - np.median(values))))
    return Spread(deviation**2 / 2, max(MAD_EFFICIENCY * len(values), 1.0))


def digamma(x: float) -> float:
    """The derivative of the logarithm of the gamma function, for `x` above 0.

    By recurrence to 6 and the asymptotic series from there: Abramowitz and Stegun (1964), 6.3.5 and 6.3.18.
    """
    below = 0.0
    while x < 6:
        below, x = below + 1 / x, x + 1
    square = 1 / (x * x)
    return math.log(x) - 1 / (2 * x) - square * (1 / 12 - square * (1 / 120 - square / 252)) - below


def trigamma(x: float) -> float:
    """The derivative of `digamma`: Abramowitz and Stegun (1964), 6.4.6 and 6.4.12."""
    below = 0.0
    while x < 6:
        below, x = below + 1 / (x * x), x + 1
    square = 1 / (x * x)
    return below + 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square / 42))


def _inverse_trigamma(value: float) -> float:
    """By bisection: trigamma decreases, and is between 1/x and 1/x + 1/x^2."""
    low, high = 1 / (value + 1), 1 / value + 1 / math.sqrt(value) + 1
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(middle) > value else (low, middle)
    return (low + high) / 2


def _low_median(values: NDArray[np.float64]) -> float:
    """The median, the lower of two middle values; a change in few values does not reach it."""
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else 0.0


def _partition(history: NDArray[np.float64], penalty: float) -> list[int]:
    """Where the segments after the first begin in the partition with the least squares and penalties."""
    n = len(history)
    centred = history - history.mean()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    if squares[n] <= penalty:  # no change is worth the penalty
        return []
    best = np.zeros(n + 1)
    begin = np.zeros(n + 1, np.int64)
    for end in range(1, n + 1):
        begins = np.arange(end)
        total = best[:end] + squares[end] - squares[:end] - (sums[end] - sums[:end]) ** 2 / (end - begins) + penalty
        begin[end] = int(np.argmin(total))
        best[end] = total[begin[end]]
    found = [int(begin[n])]
    while found[-1] > 0:
        found.append(int(begin[found[-1]]))
    return found[-2::-1]
