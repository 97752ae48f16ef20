# SPDX-License-Identifier: Apache-2.0
"""What a framework's allocator has handed out, by the region that the program was in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpuscope.memory import history
from gpuscope.memory.events import SOURCES, MemoryEvents
from gpuscope.memory.places import cached_lines, line_text
from gpuscope.memory.sources.pool import Segment
from gpuscope.memory.spans import Spans


@dataclass(frozen=True)
class HandedOut:
    """Live memory that was handed out in one region.

    Attributes:
        region: its name; "" for none.
        bytes: how much.
        where: the program's line that had the largest piece of it; "" if not known.
    """

    region: str
    bytes: int
    where: str


def events_so_far() -> MemoryEvents | None:
    """Of the history that is being recorded; None without one, as what an ended one has alive may long be gone."""
    return history.history_events() if history.recording() else None


def handed_out(events: MemoryEvents, library: str, device: int, apart: Iterable[Segment] = ()) -> list[HandedOut]:
    """The live pieces of a library's allocator on a device, those of a region together, the most bytes first.

    Args:
        events: what its allocator told.
        library: one of SOURCES.
        device: ordinal of the GPU.
        apart: segments whose pieces are left out.
    """
    if library not in SOURCES:
        return []
    of_library = events.select((events.source == SOURCES.index(library)) & (events.device == device))
    pieces = of_library.lifetimes()
    left_out = np.array([(segment.address, segment.bytes) for segment in apart], dtype=np.uint64).reshape(-1, 2)
    alive = np.flatnonzero(pieces.alive & ~Spans.merged(left_out[:, 0], left_out[:, 1]).holds(pieces.address))
    line_of = cached_lines(events.frames)
    regions = of_library.region[pieces.born[alive]]
    found = []
    for number in np.unique(regions):
        rows = alive[regions == number]
        largest = rows[np.argmax(pieces.bytes[rows])]
        where = line_text(line_of(int(pieces.stack[largest])), "")
        found.append(HandedOut(events.regions[number], int(pieces.bytes[rows].sum()), where))
    return sorted(found, key=lambda each: each.bytes, reverse=True)
