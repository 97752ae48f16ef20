# SPDX-License-Identifier: Apache-2.0
"""Where a process's memory goes: on the GPU, of all libraries, and on the host. Here are the types of the results.

Each is imported from its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope.memory.batch_size import MaxBatchSize as MaxBatchSize
    from gpuscope.memory.batch_size import Try as Try
    from gpuscope.memory.events import Frame as Frame
    from gpuscope.memory.events import Lifetimes as Lifetimes
    from gpuscope.memory.events import MemoryEvents as MemoryEvents
    from gpuscope.memory.fragments import Fragmentation as Fragmentation
    from gpuscope.memory.history import MemoryHistory as MemoryHistory
    from gpuscope.memory.leaks import Leak as Leak
    from gpuscope.memory.leaks import LeakReport as LeakReport
    from gpuscope.memory.ledger import LedgerRow as LedgerRow
    from gpuscope.memory.ledger import MemoryLedger as MemoryLedger
    from gpuscope.memory.out_of_memory import OutOfMemory as OutOfMemory
    from gpuscope.memory.out_of_memory_reports import OutOfMemoryReports as OutOfMemoryReports
    from gpuscope.memory.peak import PeakPlace as PeakPlace
    from gpuscope.memory.peak import PeakReport as PeakReport
    from gpuscope.memory.snapshot import DeviceMemory as DeviceMemory
    from gpuscope.memory.snapshot import MemoryDifference as MemoryDifference
    from gpuscope.memory.snapshot import MemorySnapshot as MemorySnapshot
    from gpuscope.memory.snapshot_reader import MemoryFile as MemoryFile
    from gpuscope.memory.stages import MemoryStage as MemoryStage
    from gpuscope.memory.stages import MemoryStages as MemoryStages

_MODULE_OF = {
    "DeviceMemory": "snapshot",
    "Fragmentation": "fragments",
    "Frame": "events",
    "Leak": "leaks",
    "LeakReport": "leaks",
    "LedgerRow": "ledger",
    "Lifetimes": "events",
    "MaxBatchSize": "batch_size",
    "MemoryDifference": "snapshot",
    "MemoryEvents": "events",
    "MemoryFile": "snapshot_reader",
    "MemoryHistory": "history",
    "MemoryLedger": "ledger",
    "MemorySnapshot": "snapshot",
    "MemoryStage": "stages",
    "MemoryStages": "stages",
    "OutOfMemory": "out_of_memory",
    "OutOfMemoryReports": "out_of_memory_reports",
    "PeakPlace": "peak",
    "PeakReport": "peak",
    "Try": "batch_size",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
