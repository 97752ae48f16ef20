# SPDX-License-Identifier: Apache-2.0
"""Timing of GPU work: events, blocks, and totals by name."""

from __future__ import annotations

from gpuscope.timing.events import Event, synchronize
from gpuscope.timing.timer import Timed, Timer, timed
from gpuscope.timing.totals import Spread, Timing, Timings, reset_timings, timings

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
