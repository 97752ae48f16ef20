# SPDX-License-Identifier: Apache-2.0
"""When a machine has warmed up: the time of a call and the clock have stopped changing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.stats.shape import mann_kendall, theil_sen

WINDOW = 8
"""Chunks that are looked at."""
SHORTEST = 0.02
"""Seconds before which nothing is called steady: clocks take some milliseconds to leave idle."""

_DRIFT = 0.005
_CLEAR = 1.645  # standard deviations: p below 0.1
_CLOCK_RANGE = 0.01


@dataclass(frozen=True)
class WarmUp:
    """How warming up ended.

    Attributes:
        steady: time and clock were steady; False when the time for it ran out before.
        seconds: how long it took.
        calls: how many calls were made.
    """

    steady: bool
    seconds: float
    calls: int


def is_steady(seconds: Sequence[float], clock_hz: Sequence[float]) -> bool:
    """Whether the last `WINDOW` chunks show neither a trend nor a change of the clock.

    A trend is one that Mann's and Kendall's test sees (p below 0.1) and that amounts to 0.5 % over the window (Theil
    and Sen). Clocks may range over 1 %; where none is known the time decides alone.

    Args:
        seconds: the time of a call in each chunk so far.
        clock_hz: the SM clock in each chunk; nan where it is not known.
    """
    if len(seconds) < WINDOW:
        return False
    clocks = np.asarray(clock_hz[-WINDOW:])
    clocks = clocks[np.isfinite(clocks)]
    if len(clocks) and np.ptp(clocks) > _CLOCK_RANGE * np.median(clocks):
        return False
    times = np.asarray(seconds[-WINDOW:])
    if not np.isfinite(times).all():
        return False
    drift = theil_sen(times) * (WINDOW - 1) / float(np.median(times))
    score, variance = mann_kendall(times)
    # Without regard to autocorrelation, of which so few values tell nothing.
    return abs(score) - 1 < _CLEAR * math.sqrt(variance) or abs(drift) < _DRIFT
