# SPDX-License-Identifier: Apache-2.0
"""Memory over time in as many steps as a screen can show, with exact sizes at each and no maximum lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.events import SOURCES, Lifetimes, MemoryEvents, events_of, pieces_of

STEPS = 2000
_DRIVER = SOURCES.index("driver")


@dataclass(frozen=True, eq=False)
class Steps:
    """One device's memory at chosen events.

    Attributes:
        events: of that device, without what allocators took from the driver to hand it out: each byte counts once.
        lifetimes: of these events.
        chosen: rows of the events, ascending: from each stretch of time the one with the most in use, and the last.
        before: bytes in use at each step that no event here handed out: from before the history, or lost.
        used: bytes in use at each step.
        reserved: bytes held from the driver at each step, by allocators and by libraries themselves; 0 where no
            allocator says.
        peak: the step with the most in use.
    """

    events: MemoryEvents
    lifetimes: Lifetimes
    chosen: NDArray[np.int64]
    before: NDArray[np.int64]
    used: NDArray[np.int64]
    reserved: NDArray[np.int64]
    peak: int

    def grouped(self, groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Bytes of each group at each step, shape (groups, steps), from the group of each lifetime."""
        changes = np.zeros((count, len(self.chosen) + 1), dtype=np.int64)
        first, end = self.visible()
        np.add.at(changes, (groups, first), self.lifetimes.bytes)
        np.add.at(changes, (groups, end), -self.lifetimes.bytes)
        return np.asarray(np.cumsum(changes, axis=1)[:, :-1])

    def visible(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first step at which each piece lives, and the first one at which it no longer does."""
        died = np.where(self.lifetimes.alive, len(self.events), self.lifetimes.died)
        return np.searchsorted(self.chosen, self.lifetimes.born), np.searchsorted(self.chosen, died)

    def largest(self, groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """The most bytes that each group ever had, also between steps. Shape (count,)."""
        alive = self.lifetimes.alive
        rows = np.concatenate((self.lifetimes.born, self.lifetimes.died[~alive]))
        group = np.concatenate((groups, groups[~alive]))
        change = np.concatenate((self.lifetimes.bytes, -self.lifetimes.bytes[~alive]))
        order = np.lexsort((rows, group))
        sums = np.cumsum(change[order])
        # Those given back and those that live add up differently: each group counts from its own start.
        start = np.searchsorted(group[order], np.arange(count))
        offset = np.where(start > 0, sums[np.maximum(start - 1, 0)] if len(sums) else 0, 0)
        most = np.zeros(count, dtype=np.int64)
        np.maximum.at(most, group[order], sums - offset[group[order]])
        return most


def make_steps(events: MemoryEvents, device: int) -> tuple[Steps, NDArray[np.int64]]:
    """Chooses the events to show.

    Args:
        events: the history; not empty for that device.
        device: ordinal of the GPU, or HOST.

    Returns:
        The steps, and the row in `events.lifetimes()` of each of their lifetimes.
    """
    kept = (events.device == device) & events_of(events, pieces_of(events))
    mine = events.select(kept)
    lifetimes = mine.lifetimes()
    known = np.zeros(len(mine), dtype=np.int64)
    np.add.at(known, lifetimes.born, lifetimes.bytes)
    ended = ~lifetimes.alive
    np.add.at(known, lifetimes.died[ended], -lifetimes.bytes[ended])
    before, reserved, libraries = (np.zeros(len(mine), dtype=np.int64) for _ in range(3))
    for source in np.unique(mine.source):
        rows = np.flatnonzero(mine.source == source)
        if source == _DRIVER:
            libraries = _held(rows, np.cumsum(known[rows]), len(mine))
            libraries[: rows[0]] = 0
        reserved += _held(rows, mine.reserved[rows], len(mine))
        if mine.allocated[rows].any():
            before += _held(rows, np.maximum(mine.allocated[rows] - np.cumsum(known[rows]), 0), len(mine))
    if reserved.any():
        reserved += libraries
    used = np.cumsum(known) + before
    chosen = _chosen(mine.time_ns, used)
    steps = Steps(mine, lifetimes, chosen, before[chosen], used[chosen], reserved[chosen], int(used[chosen].argmax()))
    whole = events.lifetimes().born
    return steps, np.searchsorted(whole, np.flatnonzero(kept)[lifetimes.born])


def _held(rows: NDArray[Any], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Values at some rows, each until the next; the first also before."""
    place = np.searchsorted(rows, np.arange(count), side="right") - 1
    return np.asarray(values[np.maximum(place, 0)])


def _chosen(times: NDArray[np.int64], used: NDArray[np.int64]) -> NDArray[np.int64]:
    count = len(times)
    if count <= STEPS:
        return np.arange(count)
    # Half of the stretches are equally long, half have equally many events: long quiet times do not hide busy ones.
    in_time = np.searchsorted(times, np.linspace(times[0], times[-1], STEPS // 2, endpoint=False))
    by_count = np.linspace(0, count, STEPS // 2, endpoint=False).astype(np.int64)
    edges = np.unique(np.concatenate((in_time, by_count)))
    stretch = np.searchsorted(edges, np.arange(count), side="right") - 1
    order = np.lexsort((used, stretch))
    most = order[np.flatnonzero(np.diff(stretch[order], append=len(edges)))]
    return np.unique(np.append(most, count - 1))
