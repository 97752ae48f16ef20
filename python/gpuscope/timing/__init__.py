# SPDX-License-Identifier: Apache-2.0
"""Timing what the GPU does: events, blocks, and totals by name."""

from __future__ import annotations

from gpuscope.timing.event import Event
from gpuscope.timing.report import Timings
from gpuscope.timing.synchronize import synchronize
from gpuscope.timing.timed import Timed, reset_timings, timed, timings
from gpuscope.timing.timer import Timer
from gpuscope.timing.totals import Spread, Timing

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
