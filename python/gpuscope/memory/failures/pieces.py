# SPDX-License-Identifier: Apache-2.0
"""The newest allocations and the lines whose pieces live, from recorded events."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.events import SOURCES, MemoryEvents
from gpuscope.memory.failures.report import Allocation, LivePieces
from gpuscope.memory.places import line_text, program_line

MOST = 10  # allocations and lines that a report lists
# A line leaks, it is suspected, when many pieces of it live, born all through the time recorded. What a model or an
# optimizer keeps is born at the start, activations at the end.
_MANY = 20
_QUARTER_SHARE = 0.1


def of_library(events: MemoryEvents, library: str, device: int | None) -> MemoryEvents:
    """The events of one library's allocator on one device; the driver's for libraries that take from it themselves."""
    known = SOURCES.index(library) if library in SOURCES else SOURCES.index("driver")
    rows = events.source == known
    if not rows.any():
        rows = events.source != SOURCES.index("driver")
    if device is not None:
        rows &= events.device == device
    return events.select(rows)


def last_allocations(events: MemoryEvents) -> tuple[Allocation, ...]:
    """The newest ones, newest first."""
    rows = np.flatnonzero(events.bytes > 0)[-MOST:][::-1]
    return tuple(
        Allocation(int(events.bytes[row]), _line(events, int(events.stack[row])), events.regions[events.region[row]])
        for row in rows
    )


def largest_lines(events: MemoryEvents) -> tuple[LivePieces, ...]:
    """The lines whose pieces live, most bytes first."""
    pieces = events.lifetimes()
    alive = np.flatnonzero(pieces.alive)
    rows_of: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for stack in np.unique(pieces.stack[alive]):
        rows_of[_line(events, int(stack))].append(alive[pieces.stack[alive] == stack])
    found = []
    for line, parts in rows_of.items():
        rows = np.concatenate(parts)
        grows = _born_throughout(events.time_ns[pieces.born[rows]], events.time_ns)
        found.append(LivePieces(int(pieces.bytes[rows].sum()), len(rows), line, grows))
    return tuple(sorted(found, key=lambda each: -each.bytes)[:MOST])


def _line(events: MemoryEvents, stack: int) -> str:
    return line_text(program_line(events.frames(stack)), "")


def _born_throughout(births: NDArray[np.int64], times: NDArray[np.int64]) -> bool:
    if len(births) < _MANY or times[-1] <= times[0]:
        return False
    quarters = np.minimum(4 * (births - times[0]) // (times[-1] - times[0]), 3)
    return bool((np.bincount(quarters, minlength=4) >= _QUARTER_SHARE * len(births)).all())
