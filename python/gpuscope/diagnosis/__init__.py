# SPDX-License-Identifier: Apache-2.0
"""What the time of a program's steps went to."""

from __future__ import annotations

from gpuscope.diagnosis.breakdown import DeviceBreakdown, Part, StepBreakdown, break_down
from gpuscope.diagnosis.idle import Drain, IdleCause
from gpuscope.diagnosis.replay import Edit, Replay, Saving, make_replay
from gpuscope.diagnosis.steps import Steps, find_steps

__all__ = [
    "DeviceBreakdown",
    "Drain",
    "Edit",
    "IdleCause",
    "Part",
    "Replay",
    "Saving",
    "StepBreakdown",
    "Steps",
    "break_down",
    "find_steps",
    "make_replay",
]
