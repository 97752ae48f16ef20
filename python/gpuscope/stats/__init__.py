# SPDX-License-Identifier: Apache-2.0
"""Statistics of samples taken one after the other: centres, quantiles, drifts, modes and ratios.

Only NumPy is needed. `benchmarks/python/simulated.py` shows how often the intervals cover the true value.
"""

from __future__ import annotations

from gpuscope.stats.autocorrelation import autocorrelation_time
from gpuscope.stats.location import Estimate, Quantile, estimate, quantile
from gpuscope.stats.ratio import Ratio, paired_ratio, ratio_of_medians, ratio_of_sums
from gpuscope.stats.shape import Change, Mode, Trend, change, modes, trend

__all__ = [
    "Change",
    "Estimate",
    "Mode",
    "Quantile",
    "Ratio",
    "Trend",
    "autocorrelation_time",
    "change",
    "estimate",
    "modes",
    "paired_ratio",
    "quantile",
    "ratio_of_medians",
    "ratio_of_sums",
    "trend",
]
