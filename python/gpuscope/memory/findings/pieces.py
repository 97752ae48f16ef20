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
    return select(pieces, ~is_segment(events, pieces))


def events_of(events: MemoryEvents, pieces: Lifetimes) -> NDArray[np.bool_]:
    """A mask over the events: those that add up to what is in use, each byte once.

    What a framework gives back of before the first event counts, as its allocator says how much there was.

    Args:
        events: the history.
        pieces: `pieces_of` it.
    """
    counted = np.asarray(events.source != _DRIVER)
    counted[pieces.born] = True
    counted[pieces.died[~pieces.alive]] = True
    return counted


def select(pieces: Lifetimes, rows: NDArray[np.bool_]) -> Lifetimes:
    """Some of the pieces, by a mask, in their order."""
    return Lifetimes(**{name: getattr(pieces, name)[rows] for name in Lifetimes.__dataclass_fields__})


def is_segment(events: MemoryEvents, pieces: Lifetimes) -> NDArray[np.bool_]:
    """A mask over the pieces: taken from the driver by an allocator whose own pieces are among the events.

    Two signs tell: a framework's piece lies within, or the framework's next event on that device says that it holds
    as much more as was taken (memory that is mapped later has no address in common). A growth explains no more bytes
    than its own: what a library took shortly before a segment is not the framework's.

    Args:
        events: the history.
        pieces: its ``lifetimes()``.
    """
    driver = pieces.source == _DRIVER
    if not driver.any() or (events.source == _DRIVER).all():
        return np.zeros(len(pieces), dtype=bool)
    found = np.zeros(len(pieces), dtype=bool)
    inside = _contains(pieces, driver)
    found[driver] = inside | _explains_growth(events, pieces, driver, inside)
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


def _explains_growth(
    events: MemoryEvents, pieces: Lifetimes, driver: NDArray[np.bool_], inside: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    explained = np.zeros(int(driver.sum()), dtype=bool)
    devices, born, size = pieces.device[driver], pieces.born[driver], pieces.bytes[driver]
    for source in np.unique(events.source[events.source != _DRIVER]):
        for device in np.unique(devices):
            rows = np.flatnonzero((events.source == source) & (events.device == device))
            grew = np.diff(events.reserved[rows], prepend=events.reserved[rows[:1]])
            following = np.searchsorted(rows, born)
            within = np.flatnonzero((devices == device) & (following < len(rows)))
            within = within[grew[following[within]] >= size[within]]
            # Segments that are known come first, then the latest: an allocator tells of its memory right after.
            order = within[np.lexsort((-born[within], ~inside[within]))]
            left = grew.tolist()
            for piece, event, taken in zip(
                order.tolist(), following[order].tolist(), size[order].tolist(), strict=True
            ):
                if taken <= left[event]:
                    left[event] -= taken
                    explained[piece] = True
    return explained
