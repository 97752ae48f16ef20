# SPDX-License-Identifier: Apache-2.0
"""Autocorrelation: how many independent samples correlated ones are worth. Also the checks of arguments.

Sums of products avoid dot products: for long arrays these start BLAS threads, which wait for each other on busy cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.arguments import as_float, check_fraction
from gpuscope.errors import InvalidArgument
from gpuscope.text import brief

# Correlations of neighbours above this cannot be distinguished from drift.
STRONGEST = 0.98
# Short runs of independent samples may seem negatively correlated, down to this autocorrelation time.
SHORTEST = 0.9
# With many samples, the means of batches give the variance directly. BATCHES_DOUBT is Student's factor over the normal
# distribution's, squared, for 15 degrees of freedom at 95 %.
BATCHES, SHORTEST_BATCH, BATCHES_DOUBT = 16, 32, 1.18
CORRELATED = 2.0  # a time that is not 1, or a ratio of two times that is not chance
LEAST = 0.1  # the least time, if the means of all batches happen to agree
DIRECT_LAGS = 64  # lags that are summed one by one, as most sums are short; by Fourier transform beyond
FEWEST_BURSTS = 8  # whose differences show how correlated samples are


def checked(samples: ArrayLike, name: str = "samples") -> NDArray[np.float64]:
    """The samples as a flat array; raises InvalidArgument unless they are finite numbers, at least one."""
    try:
        values = np.asarray(samples, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} are not numbers; accepted is a sequence of numbers") from None
    except OverflowError:
        raise InvalidArgument(f"{name} hold an integer that no float can hold; accepted are finite numbers") from None
    if values.ndim != 1:
        raise InvalidArgument(f"{name} have {values.ndim} dimensions; accepted is one")
    if not len(values):
        raise InvalidArgument(f"{name} are empty; accepted is at least one number")
    if not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise InvalidArgument(f"{name} hold {bad} of {len(values)} that are not finite; accepted are finite numbers")
    return values


def checked_confidence(confidence: float) -> float:
    """The confidence; raises InvalidArgument unless it is between 0 and 1."""
    return check_fraction("confidence", confidence)


def checked_tick(tick: float) -> float:
    """The tick; raises InvalidArgument when it is negative or not finite."""
    if not 0 <= as_float(tick) < math.inf:
        raise InvalidArgument(f"tick is {brief(tick)}; accepted is the clock's resolution, 0 or above")
    return float(tick)


def checked_bursts(bursts: Sequence[int] | NDArray[np.int64] | None, n: int) -> NDArray[np.int64] | None:
    """The sizes of bursts; None for samples one by one, and for too few bursts to compare.

    Raises InvalidArgument unless the sizes are above 0 and add up to `n`.
    """
    if bursts is None:
        return None
    sizes = checked(bursts, "bursts")
    if (sizes % 1).any() or (sizes < 1).any() or int(sizes.sum()) != n:
        raise InvalidArgument(
            f"bursts do not add up to {n} samples; accepted are their sizes, in order, integers from 1"
        )
    return sizes.astype(np.int64) if len(sizes) >= FEWEST_BURSTS and len(sizes) < n else None


@dataclass(frozen=True)
class Dependence:
    """How correlated samples are.

    Attributes:
        time: number of samples that are worth one independent sample.
        between: the same for the units that `time` was estimated from.
        units: number of units, which are samples or bursts.
    """

    time: float
    between: float
    units: int


def of_bursts(series: NDArray[np.float64], sizes: NDArray[np.int64]) -> Dependence:
    """The dependence of samples taken in bursts, for any correlation within a burst.

    How much more the bursts' sums vary than sums of independent samples: the design effect of L. Kish, Survey Sampling
    (1965), 5.4, with bursts as clusters. The correlation of neighbouring bursts is included.
    """
    n, count = len(series), len(sizes)
    centred = series - series.mean()
    variance = _product(centred, centred) / n
    if variance <= 0:
        return Dependence(1.0, 1.0, count)
    sums = np.add.reduceat(centred, np.concatenate([[0], np.cumsum(sizes)[:-1]]))
    between = max(time_for_mean(sums), 1.0)
    effect = _product(sums, sums) * count / (count - 1) / (n * variance)
    return Dependence(min(max(effect * between, 1.0), float(n)), between, count)


def autocorrelation_time(samples: ArrayLike) -> float:
    """How many samples are worth one independent sample, for the median: 1 when they are independent.

    Computed from whether each sample is above the median, so outliers and skew do not matter.

    Raises:
        InvalidArgument: the samples are empty or not finite.
    """
    values = checked(samples)
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return max(time_for_median(values, float(middle), float(low), float(high)), 1.0)


def time_for_median(values: NDArray[np.float64], middle: float, low: float, high: float) -> float:
    """The autocorrelation time of the signs: the longer of two estimates, as too short a time narrows the interval.

    The first sums the autocorrelations, whatever their form; with few samples it stops early. The second assumes a
    first-order process with the correlation of neighbours, of values clipped to `low` and `high`. Its signs correlate
    by 2/pi arcsin(rho^lag).
    """
    rho = _of_neighbours(np.clip(values, low, high))
    if rho > 0:
        fading = rho ** np.arange(1, 400)
        first_order = 1 + 4 / math.pi * float(np.arcsin(fading).sum())
    else:
        first_order = 1 + 4 / math.pi * math.asin(rho)
    return min(max(integrated_time(np.sign(values - middle)), first_order), float(len(values)))


def time_for_mean(values: NDArray[np.float64]) -> float:
    """As `time_for_median`, for the mean of values without outliers."""
    rho = _of_neighbours(values)
    return min(max(integrated_time(values), (1 + rho) / (1 - rho)), float(len(values)))


def checked_by_batches(guess: float, series: NDArray[np.float64]) -> float:
    """The time by the means of batches if samples are many and correlated, else the guess.

    Sums of autocorrelations stop where these turn negative, so they are far too long for samples that oscillate.
    """
    size = len(series) // BATCHES
    variance = float(series.var())
    if guess < CORRELATED or size < max(SHORTEST_BATCH, CORRELATED * guess) or variance <= 0:
        return guess
    means = series[: size * BATCHES].reshape(BATCHES, size).mean(axis=1)
    found = max(BATCHES_DOUBT * size * float(means.var(ddof=1)) / variance, LEAST)
    return found if found < guess / CORRELATED else guess


def integrated_time(series: NDArray[np.float64]) -> float:
    """1 + 2 x the sum of the autocorrelations of `series`, at least SHORTEST.

    Pairs of lags are summed as long as they are positive: C. J. Geyer, Practical Markov chain Monte Carlo, Statistical
    Science 7 (1992), the initial positive sequence.
    """
    n = len(series)
    centred = series - series.mean()
    variance = _product(centred, centred)
    if n < 4 or variance <= 0:
        return 1.0
    total = -1.0
    for lag in range(0, min(DIRECT_LAGS, n - 1), 2):
        pair = _product(centred[lag:], centred[: n - lag])
        pair = (pair + _product(centred[lag + 1 :], centred[: n - lag - 1])) / variance
        if pair <= 0:
            return max(total, SHORTEST)
        total += 2 * pair
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    correlations = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: n // 2 * 2] / variance
    pairs = correlations[0::2] + correlations[1::2]
    negative = np.flatnonzero(pairs <= 0)
    kept = pairs[: negative[0]] if len(negative) else pairs
    return min(max(2 * float(kept.sum()) - 1, SHORTEST), float(n))


def _of_neighbours(series: NDArray[np.float64]) -> float:
    """The correlation of neighbours, corrected for the bias of a mean from the same few samples.

    The bias: M. G. Kendall, Note on bias in the estimation of autocorrelation, Biometrika 41 (1954).
    """
    n = len(series)
    centred = series - series.mean()
    variance = _product(centred, centred)
    if n < 4 or variance <= 0:
        return 0.0
    rho = _product(centred[1:], centred[:-1]) / variance
    return min(max(rho + (1 + 3 * rho) / n, -0.3), STRONGEST)


def _product(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    return float((first * second).sum())
