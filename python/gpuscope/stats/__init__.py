# SPDX-License-Identifier: Apache-2.0
"""Statistics of samples that were taken one after the other: centres, drifts, modes and ratios, with their doubt.

Only NumPy is needed. `benchmarks/python/statistics_simulated.py` shows how often the intervals hold the truth.
"""

from __future__ import annotations

from gpuscope.stats.autocorrelation import autocorrelation_time
from gpuscope.stats.estimate import Estimate, estimate
from gpuscope.stats.modes import Mode, modes
from gpuscope.stats.ratio import Ratio, paired_ratio, ratio_of_medians
from gpuscope.stats.trend import Trend, trend

__all__ = [
    "Estimate",
    "Mode",
    "Ratio",
    "Trend",
    "autocorrelation_time",
    "estimate",
    "modes",
    "paired_ratio",
    "ratio_of_medians",
    "trend",
]
