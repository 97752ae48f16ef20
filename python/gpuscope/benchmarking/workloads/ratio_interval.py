# SPDX-License-Identifier: Apache-2.0
"""Intervals of rates: one total over another."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats

FEWEST = 10  # of which an interval is given
RESAMPLES = 2000
CONFIDENCE = 0.95


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], seed: int = 0
) -> tuple[float, float] | None:
    """The 95 % interval of ``sum(numerators) / sum(denominators)``; None of fewer than 10.

    By a bootstrap of circular blocks long enough to keep what neighbours repeat of each other: D. N. Politis and
    J. P. Romano, A circular block-resampling procedure for stationary data (1992).

    Args:
        numerators: one a batch, in order.
        denominators: the same.
        seed: of the resampling; the same figures give the same interval.
    """
    n = len(numerators)
    if n < FEWEST:
        return None
    varying = numerators / denominators if np.ptp(denominators) else numerators
    block = min(ceil(2 * stats.autocorrelation_time(varying)), n // 2)
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, n, (RESAMPLES, ceil(n / block)))
    rows = ((starts[:, :, None] + np.arange(block)) % n).reshape(RESAMPLES, -1)[:, :n]
    ratios = numerators[rows].sum(axis=1) / denominators[rows].sum(axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)
