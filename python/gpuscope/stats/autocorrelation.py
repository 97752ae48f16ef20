# SPDX-License-Identifier: Apache-2.0
"""How many samples in a row tell the same story."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.stats.samples import checked


def autocorrelation_time(samples: ArrayLike) -> float:
    """How many samples are worth one independent sample, for the median: 1 when they are independent.

    From whether each sample lies above the median, so that no outlier and no skew sways it.

    Raises:
        InvalidArgument: the samples are empty or not finite.
    """
    values = checked(samples)
    return integrated_time(np.sign(values - np.median(values)))


def integrated_time(series: NDArray[np.float64]) -> float:
    """1 + 2 x the sum of the autocorrelations of `series`, at least 1.

    Summed in pairs of lags as long as the pairs are positive: C. J. Geyer, Practical Markov chain Monte Carlo,
    Statistical Science 7 (1992), the initial positive sequence.
    """
    n = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred)
    if n < 4 or variance <= 0:
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    correlations = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: n // 2 * 2] / variance
    pairs = correlations[0::2] + correlations[1::2]
    negative = np.flatnonzero(pairs <= 0)
    kept = pairs[: negative[0]] if len(negative) else pairs
    return float(np.clip(2 * kept.sum() - 1, 1.0, n))
