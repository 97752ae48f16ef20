# SPDX-License-Identifier: Apache-2.0
"""The shape of samples: their modes, and whether they drift or change while they are taken."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.stats.autocorrelation import autocorrelation_time, checked, checked_tick
from gpuscope.stats.distributions import normal_two_sided

FEWEST_SAMPLES = 30
SMALLEST_SHARE = 0.05
GRID = 512
# A valley separates two modes if its density is below DEPTH of the lower peak by ERRORS standard errors. Then 0 to
# 0.5 % of series with one mode seem to have two (normal, lognormal, exponential, t2, Pareto 1.5).
DEPTH = 0.7
ERRORS = 2.3
# Widths of kernels, relative to Silverman's, that are tried until one shows several modes. A wider one gathers more of
# a small, distant group.
WIDTHS = (1, 2, 4)

# All pairs of samples are compared; longer runs are first reduced to at most so many medians.
MOST_POINTS = 200


@dataclass(frozen=True)
class Mode:
    """A mode of the samples' distribution.

    Attributes:
        value: median of the samples of this mode, in the samples' unit.
        share: of all samples.
    """

    value: float
    share: float


def modes(samples: ArrayLike, *, tick: float = 0.0) -> tuple[Mode, ...]:
    """The modes of the samples' distribution, from the smallest.

    Peaks of a kernel density. Two peaks are one mode unless the valley between them is clearly less dense, in counts.

    Args:
        samples: in any order.
        tick: resolution of the clock, in the samples' unit; its steps are not modes.

    Raises:
        InvalidArgument: the samples are empty or not finite, or the tick is negative.
    """
    values = np.sort(checked(samples))
    tick = checked_tick(tick)
    enough = len(values) >= FEWEST_SAMPLES
    borders = next(filter(None, (_borders(values, tick, factor) for factor in WIDTHS if enough)), [])
    ends = [0, *borders, len(values)]
    return tuple(
        Mode(float(np.median(values[begin:end])), (end - begin) / len(values))
        for begin, end in itertools.pairwise(ends)
    )


def _borders(values: NDArray[np.float64], tick: float, factor: float) -> list[int]:
    """The indices that separate the sorted values into modes, by a kernel `factor` times as wide as Silverman's."""
    n = len(values)
    low, high = values[int(0.01 * n)], values[-1 - int(0.01 * n)]
    quartiles = values[(3 * n) // 4] - values[n // 4]
    spread = min(float(values.std()), quartiles / 1.34) or float(values.std())
    # No kernel is narrower than a step of the grid, which extends three widths beyond the first and the last value.
    width = max(factor * 0.9 * spread * n**-0.2, 0.8 * tick, (high - low) / (GRID - 7))
    if width <= 0:
        return []
    grid = np.linspace(low - 3 * width, high + 3 * width, GRID)
    step = grid[1] - grid[0]
    if step < 2 * np.spacing(np.abs(grid).max()):  # the values differ by rounding only
        return []
    counts = np.histogram(values, bins=GRID, range=(grid[0] - step / 2, grid[-1] + step / 2))[0]
    reach = np.arange(-int(4 * width / step) - 1, int(4 * width / step) + 2)
    kernel = np.exp(-0.5 * (reach * step / width) ** 2)
    # In counts of a window of the kernel's effective width, so that its noise is that of counts.
    window = 2 * np.sqrt(np.pi) * width / step
    density = np.convolve(counts, kernel / kernel.sum(), "same") * window
    inner = density[1:-1]
    peaks = [int(i) for i in np.flatnonzero((inner > density[:-2]) & (inner >= density[2:])) + 1]
    while len(peaks) > 1:
        valleys = [a + int(np.argmin(density[a : b + 1])) for a, b in itertools.pairwise(peaks)]
        ends = [0, *(int(np.searchsorted(values, grid[valley])) for valley in valleys), n]
        clear = [
            _clearness(density[valley], min(density[a], density[b]))
            for a, b, valley in zip(peaks[:-1], peaks[1:], valleys, strict=True)
        ]
        small = [i for i in range(len(peaks)) if ends[i + 1] - ends[i] < SMALLEST_SHARE * n]
        if small:
            del peaks[min(small, key=lambda i: ends[i + 1] - ends[i])]
            continue
        weakest = int(np.argmin(clear))
        if clear[weakest] >= ERRORS:
            return ends[1:-1]
        del peaks[weakest if density[peaks[weakest]] < density[peaks[weakest + 1]] else weakest + 1]
    return []


def _clearness(valley: float, peak: float) -> float:
    """How many standard errors of the counts the valley is below DEPTH of the lower peak.

    Computed on square roots, whose errors do not depend on the counts (F. J. Anscombe, The transformation of Poisson,
    binomial and negative-binomial data, Biometrika 35, 1948).
    """
    return 2 * (math.sqrt(DEPTH * peak + 3 / 8) - math.sqrt(max(valley, 0.0) + 3 / 8)) / math.sqrt(1 + DEPTH)


@dataclass(frozen=True)
class Trend:
    """How samples drifted.

    Attributes:
        drift: relative change from the first to the last sample along the line of Theil and Sen: 0.02 is 2 % up.
        p: probability of so clear a trend by chance.
    """

    drift: float
    p: float


def trend(samples: ArrayLike) -> Trend:
    """The drift of samples taken at even pace, and the probability of such a drift by chance.

    The drift is the median slope between all pairs (P. K. Sen, Journal of the American Statistical Association 63,
    1968), relative to the median. The test is Mann's and Kendall's, its variance widened by the autocorrelation of the
    residuals.

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
    # From the first to the last sample, half a group beyond the first and last point.
    drift = slope * n * (len(values) - 1) / len(values) / middle
    s, variance = mann_kendall(points)
    tau = autocorrelation_time(points - slope * np.arange(n))
    if variance <= 0:
        return Trend(drift, 1.0)
    return Trend(drift, normal_two_sided((abs(s) - 1 if s else 0.0) / math.sqrt(variance * tau)))


@dataclass(frozen=True)
class Change:
    """Where samples changed most.

    Attributes:
        before: median up to the change.
        after: median from the change on.
        at: index of the first sample after it; the number of samples with too few to compare.
        p: probability of so clear a change by chance.
    """

    before: float
    after: float
    at: int
    p: float

    @property
    def size(self) -> float:
        """The relative change: 0.02 is 2 % up."""
        return self.after / self.before - 1 if self.before else 0.0


def change(samples: ArrayLike) -> Change:
    """The clearest change of level within samples taken at even pace, and the probability of such a change by chance.

    The test of A. N. Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28 (1979), its
    variance widened by the autocorrelation of the residuals.

    Raises:
        InvalidArgument: the samples are empty or not finite.
    """
    values = checked(samples)
    points = _medians(values)
    n = len(points)
    middle = float(np.median(values))
    if n < 3:
        return Change(middle, middle, len(values), 1.0)
    signs = np.sign(points[:, None] - points[None, :]).sum(axis=1)
    sums = np.cumsum(signs)[:-1]
    at = int(np.argmax(np.abs(sums))) + 1
    levels = float(np.median(points[:at])), float(np.median(points[at:]))
    left_over = np.concatenate([points[:at] - levels[0], points[at:] - levels[1]])
    tau = autocorrelation_time(left_over)
    p = min(1.0, 2 * math.exp(-6 * float(sums[at - 1]) ** 2 / ((n**3 + n**2) * tau)))
    first = at * -(-len(values) // MOST_POINTS)
    return Change(float(np.median(values[:first])), float(np.median(values[first:])), first, p)


def theil_sen(points: NDArray[np.float64]) -> float:
    """The median slope between all pairs of points one apart."""
    first, second = np.triu_indices(len(points), 1)
    return float(np.median((points[second] - points[first]) / (second - first)))


def mann_kendall(points: NDArray[np.float64]) -> tuple[float, float]:
    """Rising pairs less falling ones, and its variance for independent points, corrected for ties."""
    n = len(points)
    first, second = np.triu_indices(n, 1)
    s = float(np.sign(points[second] - points[first]).sum())
    ties = np.unique(points, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    return s, variance


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians of at most `MOST_POINTS` groups of neighbours."""
    size = -(-len(values) // MOST_POINTS)
    if size == 1:
        return values
    whole = len(values) // size * size
    medians: NDArray[np.float64] = np.median(values[:whole].reshape(-1, size), axis=1)
    return medians
