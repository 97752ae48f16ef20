# SPDX-License-Identifier: Apache-2.0
"""Why a program's steps lose time, and how much a fix saves."""

from __future__ import annotations

from gpuscope.costs.energy import DeviceEnergy, Energy, EnergyReport, EnergyRow
from gpuscope.costs.idle_counters import IdleByCounters
from gpuscope.costs.roofline import Roofline, RooflinePoint
from gpuscope.diagnosis.context import Where
from gpuscope.diagnosis.diagnose import check_wanted, diagnose, known_findings
from gpuscope.diagnosis.findings import Diagnosis, Finding
from gpuscope.diagnosis.replay import Edit, Replay, Saving
from gpuscope.steps.breakdown import DeviceBreakdown, Part, StepBreakdown, break_down
from gpuscope.steps.idle import Drain, IdleCause
from gpuscope.steps.steps import Steps, find_steps

__all__ = [
    "DeviceBreakdown",
    "DeviceEnergy",
    "Diagnosis",
    "Drain",
    "Edit",
    "Energy",
    "EnergyReport",
    "EnergyRow",
    "Finding",
    "IdleByCounters",
    "IdleCause",
    "Part",
    "Replay",
    "Roofline",
    "RooflinePoint",
    "Saving",
    "StepBreakdown",
    "Steps",
    "Where",
    "break_down",
    "check_wanted",
    "diagnose",
    "find_steps",
    "known_findings",
]


def __dir__() -> list[str]:
    return __all__
