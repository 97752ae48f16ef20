# SPDX-License-Identifier: Apache-2.0
"""What a recording comes to: tables, trees, single events, and the audit of it all."""

from __future__ import annotations

from gpuscope.analysis.audit import Audit, audit
from gpuscope.analysis.averages import Averages, FunctionEventAvg
from gpuscope.analysis.event_list import DeviceType, EventList
from gpuscope.analysis.events import Events, FunctionEvent, events
from gpuscope.analysis.key_averages import key_averages
from gpuscope.analysis.kinds import Kind
from gpuscope.analysis.modules import Modules, ModuleTotal, modules
from gpuscope.analysis.tree import Node, Tree, tree

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
    "Tree",
    "audit",
    "events",
    "key_averages",
    "modules",
    "tree",
]
