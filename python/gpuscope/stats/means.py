# SPDX-License-Identifier: Apache-2.0
"""Differences of means, of many quantities at a time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpuscope.stats.distributions import student_factor

MOST_LIKE = 0.9
"""The most that neighbouring rows are taken to repeat of each other."""

Values = NDArray[np.float64]


def welch(
    before: Values,
    after: Values,
    confidence: float,
    tick: float = 0.0,
    groups: NDArray[np.int64] | None = None,
) -> tuple[Values, Values]:
    """Of each column half of the interval of the difference of the means, and how likely that is to be chance.

    B. L. Welch's test (Biometrika 34, 1947) with the effective number of rows on each side. The chance is that of the
    normal distribution at the place that D. L. Wallace (Annals of Mathematical Statistics 30, 1959) gives for
    Student's t: within 0.01 of it in standard deviations from 3 degrees of freedom on.

    Args:
        before: (rows, columns), at least two rows, in the order in which they were taken.
        after: likewise.
        confidence: of the intervals.
        tick: resolution of the clock, which values without any spread lie on.
        groups: of each column; those of one are known no better, as shares of themselves, than the median of all of
            them, row by row: a clock or a temperature moves them together, for longer than each shows by itself.
    """
    errors, sizes = zip(*(_errors(side, tick, groups) for side in (before, after)), strict=True)
    together = np.maximum(errors[0] + errors[1], np.finfo(np.float64).tiny)
    doubts: Values = errors[0] ** 2 / (sizes[0] - 1) + errors[1] ** 2 / (sizes[1] - 1)
    freedom = np.maximum(together**2 / np.maximum(doubts, np.finfo(np.float64).tiny), 1.0)
    half = np.sqrt(together) * np.array([student_factor(confidence, each) for each in np.round(freedom, 1).tolist()])
    t_squared = (after.mean(axis=0) - before.mean(axis=0)) ** 2 / together
    z = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t_squared / freedom))
    return half, np.array([math.erfc(each / math.sqrt(2)) for each in z.tolist()])


def _errors(rows: Values, tick: float, groups: NDArray[np.int64] | None) -> tuple[Values, Values]:
    """The variance of each mean, and how many rows it comes from."""
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
    """How many independent rows these are worth, by the first autocorrelation of each column; 2 at least."""
    count = len(rows)
    own = rows - rows.mean(axis=0)
    squares = (own**2).sum(axis=0)
    like = (own[1:] * own[:-1]).sum(axis=0) / np.where(squares > 0, squares, 1.0)
    like = np.clip(like + 1 / count, 0.0, MOST_LIKE)  # the estimate is too low by about 1/n
    size: Values = np.maximum(count * (1 - like) / (1 + like), 2.0)
    return size


def holm(chance: Values, level: float) -> NDArray[np.bool_]:
    """Which are sure, if at most a share `level` of all families of equals is to have any that is.

    S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979); it
    holds whatever the tests have to do with each other.
    """
    order = np.argsort(chance, kind="stable")
    limits = level / np.arange(len(chance), 0, -1)
    sure = np.zeros(len(chance), bool)
    sure[order] = np.logical_and.accumulate(chance[order] <= limits)
    return sure
