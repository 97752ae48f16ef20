# SPDX-License-Identifier: Apache-2.0
"""The profiler that users hold: torch.profiler's names over gpuscope's collector."""

from __future__ import annotations

from gpuscope.profiler.activities import ProfilerActivity, kineto_available, supported_activities
from gpuscope.profiler.facade import _default_schedule_fn as _default_schedule_fn
from gpuscope.profiler.facade import _KinetoProfile as _KinetoProfile
from gpuscope.profiler.facade import profile
from gpuscope.profiler.lifecycle import step
from gpuscope.profiler.schedules import ProfilerAction, Schedule, schedule
from gpuscope.profiler.trace_handler import tensorboard_trace_handler
from gpuscope.recording import Recording, load

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "Recording",
    "Schedule",
    "kineto_available",
    "load",
    "profile",
    "schedule",
    "step",
    "supported_activities",
    "tensorboard_trace_handler",
]


def __dir__() -> list[str]:
    return __all__
