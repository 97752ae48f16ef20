# SPDX-License-Identifier: Apache-2.0
"""Differences of means, of many quantities at a time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpuscope.stats.distributions import normal_quantile, normal_two_sided, student_factor

MOST_LIKE = 0.9
"""Upper limit of the autocorrelation of neighbouring rows."""

Values = NDArray[np.float64]


def welch(
    before: Values,
    after: Values,
    confidence: float | Values,
    tick: float = 0.0,
    groups: NDArray[np.int64] | None = None,
) -> tuple[Values, Values]:
    """Half of the interval of each column's difference of means, and the probability of the difference by chance.

    B. L. Welch's test (Biometrika 34, 1947) with the effective number of rows on each side. The probability is that of
    the normal distribution at the place that D. L. Wallace (Annals of Mathematical Statistics 30, 1959) gives for
    Student's t: within 0.01 of it in standard deviations from 3 degrees of freedom on.

    Args:
        before: (rows, columns), at least two rows, in the order in which they were taken.
        after: likewise.
        confidence: of the intervals, one for all columns or one per column.
        tick: resolution of the clock; the variance includes its rounding.
        groups: of each column. In a group, no relative error is below that of the rows' medians over its columns. A
            clock or a temperature moves the columns together, for longer than each one shows.
    """
    errors, sizes = zip(*(_errors(side, tick, groups) for side in (before, after)), strict=True)
    together = np.maximum(errors[0] + errors[1], np.finfo(np.float64).tiny)
    doubts: Values = errors[0] ** 2 / (sizes[0] - 1) + errors[1] ** 2 / (sizes[1] - 1)
    freedom = np.maximum(together**2 / np.maximum(doubts, np.finfo(np.float64).tiny), 1.0)
    levels = np.broadcast_to(confidence, freedom.shape).tolist()
    half = np.sqrt(together) * np.array(list(map(student_factor, levels, np.round(freedom, 1).tolist())))
    t_squared = (after.mean(axis=0) - before.mean(axis=0)) ** 2 / together
    z = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t_squared / freedom))
    return half, np.array([math.erfc(each / math.sqrt(2)) for each in z.tolist()])


def of_known_variance(delta: Values, variance: Values, confidence: float | Values) -> tuple[Values, Values]:
    """As `welch`, for differences with known variances, by the normal distribution."""
    levels = np.broadcast_to(confidence, delta.shape).tolist()
    spread = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
    half = spread * np.array([normal_quantile((1 + each) / 2) for each in levels])
    return half, np.array([normal_two_sided(each) for each in (delta / spread).tolist()])


def variance_of_sums(values: Values, groups: NDArray[np.int64], count: int) -> Values:
    """The variance of the sum of each group, by the mean square successive difference.

    Only the differences of neighbouring values count as error, not drift or a single change. One value shows no
    variance. J. von Neumann, R. H. Kent, H. R. Bellinson and B. I. Hart, The mean square successive difference,
    Annals of Mathematical Statistics 12 (1941).

    Args:
        values: in the order in which they were taken.
        groups: of each value, below `count`.
        count: number of groups.
    """
    order = np.argsort(groups, kind="stable")
    group, ordered = groups[order], values[order].astype(np.float64)
    inside = group[1:] == group[:-1]
    squares = np.bincount(group[1:][inside], np.diff(ordered)[inside] ** 2, count)
    size = np.maximum(np.bincount(groups, minlength=count), 2)
    found: Values = squares / 2 * size / (size - 1)
    return found


def variance_of_samples(places: NDArray[np.int64], lasted: Values, count: int) -> Values:
    """The variance of the time that samples at equal distances give each place.

    If neighbouring samples are of two places, both times are uncertain by a sample. The variance is the mean square
    successive difference of the time that each sample adds to a place, as in K. M. Wolter, Introduction to Variance
    Estimation (2nd edition, 2007), chapter 8, on systematic samples.

    Args:
        places: of the samples of one thread, in order, below `count`.
        lasted: time that each sample stands for.
        count: number of places.
    """
    goes = np.flatnonzero(places[1:] != places[:-1])
    either = np.concatenate([goes, goes + 1])
    found: Values = np.bincount(places[either], lasted[either] ** 2 / 2, count).astype(np.float64)
    return found


def _errors(rows: Values, tick: float, groups: NDArray[np.int64] | None) -> tuple[Values, Values]:
    """The variance of each mean, and the number of rows that it comes from."""
    size = effective_rows(rows)
    error: Values = (rows.var(axis=0, ddof=1) + tick**2 / 12) / size
    means = rows.mean(axis=0)
    each, count = np.unique(groups if groups is not None else [], return_counts=True)
    for group in each[count > 1]:
        columns = np.flatnonzero((groups == group) & (means > 0))
        if len(columns) == 0:
            continue
        common = np.median(rows[:, columns] / means[columns], axis=1)[:, None]
        of_common = effective_rows(common)
        least = means[columns] ** 2 * (common.var(ddof=1) / of_common)
        size[columns] = np.where(least > error[columns], of_common, size[columns])
        error[columns] = np.maximum(error[columns], least)
    return error, size


def effective_rows(rows: Values) -> Values:
    """The number of independent rows, by the first autocorrelation of each column; 2 at least."""
    count = len(rows)
    own = rows - rows.mean(axis=0)
    squares = (own**2).sum(axis=0)
    like = (own[1:] * own[:-1]).sum(axis=0) / np.where(squares > 0, squares, 1.0)
    like = np.clip(like + 1 / count, 0.0, MOST_LIKE)  # the estimate is too low by about 1/n
    size: Values = np.maximum(count * (1 - like) / (1 + like), 2.0)
    return size


def holm(chance: Values, level: float, weights: Values | None = None) -> Values:
    """The level of each test: a test is significant if its chance is not above it.

    If nothing differs, at most a share `level` of families has a significant test, for any dependence between tests.
    A test with a large weight loses little to many with small ones. S. Holm, A simple sequentially rejective multiple
    test procedure, Scandinavian Journal of Statistics 6 (1979); with weights, Y. Benjamini and Y. Hochberg, Multiple
    hypotheses testing with weights, Scandinavian Journal of Statistics 24 (1997).

    Args:
        chance: of each test.
        level: of the family.
        weights: of each test, independent of its chance; None weighs all the same.
    """
    weights = np.ones(len(chance)) if weights is None else np.maximum(weights, np.finfo(np.float64).tiny)
    order = np.argsort(chance / weights, kind="stable")
    left = np.cumsum(weights[order][::-1])[::-1]  # of this test and all after it
    limits = level * weights[order] / left
    stops = np.flatnonzero(chance[order] > limits)
    if len(stops):
        limits[stops[0] :] = level * weights[order][stops[0] :] / left[stops[0]]
    levels = np.empty(len(chance))
    levels[order] = limits
    return levels
