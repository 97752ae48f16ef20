# SPDX-License-Identifier: Apache-2.0
"""Whether samples drift while they are taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.stats.autocorrelation import autocorrelation_time
from gpuscope.stats.distributions import normal_two_sided
from gpuscope.stats.samples import checked

# All pairs of samples are compared; longer runs are first put together to so many medians.
MOST_POINTS = 400


@dataclass(frozen=True)
class Trend:
    """How samples drifted.

    Attributes:
        drift: relative change from the first to the last sample along the line of Theil and Sen: 0.02 is 2 % up.
        p: how likely so clear a trend is without one.
    """

    drift: float
    p: float


def trend(samples: ArrayLike) -> Trend:
    """The drift of samples taken at even pace, and how likely chance alone makes such a one.

    The drift is the median slope between all pairs (P. K. Sen, Journal of the American Statistical Association 63,
    1968), relative to the median. The test is Mann's and Kendall's, its variance widened by the autocorrelation of
    what the line leaves over.

    Raises:
        InvalidArgument: the samples are empty or not finite.
    """
    values = checked(samples)
    middle = float(np.median(values))
    points = _medians(values)
    n = len(points)
    if n < 3 or middle == 0:
        return Trend(0.0, 1.0)
    slope = theil_sen(points)
    # From the first to the last sample, which lie half a group outside of the first and last point.
    drift = slope * n * (len(values) - 1) / len(values) / middle
    s, variance = mann_kendall(points)
    tau = autocorrelation_time(points - slope * np.arange(n))
    if variance <= 0:
        return Trend(drift, 1.0)
    return Trend(drift, normal_two_sided((abs(s) - 1 if s else 0.0) / math.sqrt(variance * tau)))


def theil_sen(points: NDArray[np.float64]) -> float:
    """The median slope between all pairs of points one apart."""
    first, second = np.triu_indices(len(points), 1)
    return float(np.median((points[second] - points[first]) / (second - first)))


def mann_kendall(points: NDArray[np.float64]) -> tuple[float, float]:
    """Rising pairs less falling ones, and the variance of that among independent points, ties heeded."""
    n = len(points)
    first, second = np.triu_indices(n, 1)
    s = float(np.sign(points[second] - points[first]).sum())
    ties = np.unique(points, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    return s, variance


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians of as many groups of neighbours as can be compared pair by pair."""
    size = -(-len(values) // MOST_POINTS)
    if size == 1:
        return values
    whole = len(values) // size * size
    medians: NDArray[np.float64] = np.median(values[:whole].reshape(-1, size), axis=1)
    return medians
