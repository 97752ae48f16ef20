# SPDX-License-Identifier: Apache-2.0
"""Builds memory events by hand: ``events(("alloc", 0x100, 512), ("free", 0x100, 512))``."""

from __future__ import annotations

import numpy as np

from gpuscope.devices import HOST
from gpuscope.memory.history.events import COLUMNS, SOURCES, Frame, MemoryEvents

START = 1_700_000_000_000_000_000
STEP = 1_000  # ns between events


def events(*rows, frames=None, lost=0):
    """Rows are (action, address, bytes) and then, by keyword in a dict, any other column.

    A region is given by its name.

    `frames` maps numbers of stacks to frames, innermost first, each (function, file, line).
    """
    columns = {name: [] for name in COLUMNS if name != "time_ns"}
    regions = {"": 0}
    in_use = {}
    for action, address, size, *more in rows:
        given = {"device": 0, "stack": 0, "region": "", "thread": 1, "source": "torch", "reserved_bytes": 0}
        given |= more[0] if more else {}
        given["region"] = regions.setdefault(given["region"], len(regions))
        change = size if action == "alloc" else -size
        in_use[given["device"]] = in_use.get(given["device"], 0) + change
        given |= {"address": address, "bytes": change, "source": SOURCES.index(given["source"])}
        given.setdefault("allocated_bytes", max(0, in_use[given["device"]]))
        for name, column in columns.items():
            column.append(given[name])
    known = {number: tuple(Frame(*frame) for frame in stack) for number, stack in (frames or {}).items()}
    return MemoryEvents(
        time_ns=START + STEP * np.arange(len(rows), dtype=np.int64),
        **{name: np.array(column, dtype=COLUMNS[name]) for name, column in columns.items()},
        lost=lost,
        frames=lambda number: known.get(number, ()),
        regions=tuple(regions),
    )


__all__ = ["HOST", "START", "STEP", "events"]
