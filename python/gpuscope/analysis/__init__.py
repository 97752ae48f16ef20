# SPDX-License-Identifier: Apache-2.0
"""Results of a recording: tables, trees, single events, and the audit."""

from __future__ import annotations

from gpuscope.analysis.averages import Averages, FunctionEventAvg, key_averages
from gpuscope.analysis.call_tree import Node, Tree, tree
from gpuscope.analysis.completeness import Audit, audit
from gpuscope.analysis.event_list import DeviceType, EventList
from gpuscope.analysis.function_events import Events, FunctionEvent, events
from gpuscope.analysis.module_totals import Modules, ModuleTotal, modules
from gpuscope.analysis.python_samples import SampledCall, SampledFunction, Samples, samples
from gpuscope.analysis.rows import Kind

__all__ = [
    "Audit",
    "Averages",
    "DeviceType",
    "EventList",
    "Events",
    "FunctionEvent",
    "FunctionEventAvg",
    "Kind",
    "ModuleTotal",
    "Modules",
    "Node",
    "SampledCall",
    "SampledFunction",
    "Samples",
    "Tree",
    "audit",
    "events",
    "key_averages",
    "modules",
    "samples",
    "tree",
]


def __dir__() -> list[str]:
    return __all__
