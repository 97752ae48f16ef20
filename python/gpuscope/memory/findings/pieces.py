# SPDX-License-Identifier: Apache-2.0
"""The pieces of memory that events tell of, each byte once.

What a framework takes from the driver to hand out is told of twice: as the driver's pieces and as the framework's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.events import SOURCES, Lifetimes, MemoryEvents

_DRIVER = SOURCES.index("driver")


def pieces_of(events: MemoryEvents) -> Lifetimes:
    """All pieces but the segments of frameworks whose own pieces are among the events."""
    pieces = events.lifetimes()
    return select(pieces, ~_is_segment(events, pieces))


def select(pieces: Lifetimes, rows: NDArray[np.bool_]) -> Lifetimes:
    """Some of the pieces, by a mask, in their order."""
    return Lifetimes(**{name: getattr(pieces, name)[rows] for name in Lifetimes.__dataclass_fields__})


def _is_segment(events: MemoryEvents, pieces: Lifetimes) -> NDArray[np.bool_]:
    """A mask over the pieces: taken from the driver by an allocator whose own pieces are among the events.

    Two signs tell: a framework's piece lies within, or the framework's next event on that device says that it holds
    as much more as was taken (memory that is mapped later has no address in common).
    """
    driver = pieces.source == _DRIVER
    if not driver.any() or (events.source == _DRIVER).all():
        return np.zeros(len(pieces), dtype=bool)
    found = np.zeros(len(pieces), dtype=bool)
    found[driver] = _contains(pieces, driver) | _explains_growth(events, pieces, driver)
    return found


def _contains(pieces: Lifetimes, driver: NDArray[np.bool_]) -> NDArray[np.bool_]:
    inside = np.zeros(int(driver.sum()), dtype=bool)
    devices = pieces.device[driver]
    for device in np.unique(devices):
        held = np.sort(pieces.address[~driver & (pieces.device == device)])
        here = devices == device
        begin = pieces.address[driver][here]
        end = begin + pieces.bytes[driver][here].astype(np.uint64)
        inside[here] = np.searchsorted(held, begin) < np.searchsorted(held, end)
    return inside


def _explains_growth(events: MemoryEvents, pieces: Lifetimes, driver: NDArray[np.bool_]) -> NDArray[np.bool_]:
    explained = np.zeros(int(driver.sum()), dtype=bool)
    devices, born, size = pieces.device[driver], pieces.born[driver], pieces.bytes[driver]
    for source in np.unique(events.source[events.source != _DRIVER]):
        for device in np.unique(devices):
            rows = np.flatnonzero((events.source == source) & (events.device == device))
            if not len(rows):
                continue
            grew = np.diff(events.reserved[rows], prepend=events.reserved[rows[0]])
            following = np.searchsorted(rows, born)
            within = (devices == device) & (following < len(rows))
            explained[within] |= grew[following[within]] >= size[within]
    return explained
