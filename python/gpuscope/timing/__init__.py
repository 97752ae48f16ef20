# SPDX-License-Identifier: Apache-2.0
"""Timing what the GPU does: events, blocks, and totals by name."""

from __future__ import annotations

from gpuscope.timing.events import Event, synchronize
from gpuscope.timing.timer import Timer
from gpuscope.timing.totals import Spread, Timed, Timing, Timings, reset_timings, timed, timings

__all__ = [
    "Event",
    "Spread",
    "Timed",
    "Timer",
    "Timing",
    "Timings",
    "reset_timings",
    "synchronize",
    "timed",
    "timings",
]


def __dir__() -> list[str]:
    return __all__
