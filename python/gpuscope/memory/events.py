# SPDX-License-Identifier: Apache-2.0
"""What allocators handed out and took back, as columns, and how long each allocation lived."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuscope import plots
from gpuscope.devices import HOST
from gpuscope.errors import InvalidArgument
from gpuscope.results import import_pandas, write_parquet
from gpuscope.text import shown

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

NEVER = -1  # in place of an event: not seen
# By number: who reported an event. "driver" is memory that any library takes from the CUDA driver itself.
SOURCES = ("torch", "cupy", "driver", "other", "numpy")

_DRIVER = SOURCES.index("driver")


class Frame(NamedTuple):
    """One line of a call stack.

    Attributes:
        function: qualified name.
        file: path as Python knows it.
        line: counted from 1; the one being executed.
    """

    function: str
    file: str
    line: int

    @shown
    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


def _no_frames(stack: int) -> tuple[Frame, ...]:
    return ()


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """Allocations and releases in the order they happened, one row each. Sizes are bytes.

    Attributes:
        time_ns: ns since the Unix epoch.
        address: of the allocation.
        bytes: negative when given back; -1 where that does not say how much.
        allocated_bytes: handed out by that allocator on that device, this counted; 0 where it does not report it.
        reserved_bytes: held by that allocator on that device; 0 where it does not report it.
        device: ordinal of the GPU, HOST for host memory.
        stack: number of the call stack, for `frames`; 0 for none.
        region: number of the region that the program was in, an index of `regions`; 0 for none.
        thread: the system's number of the thread.
        source: a number, see SOURCES.
        lost: older events that are no longer kept.
        frames: the call stack of a number, innermost frame first; () when there is none.
        regions: names of the regions by their numbers.
    """

    time_ns: NDArray[np.int64]
    address: NDArray[np.uint64]
    bytes: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]
    device: NDArray[np.int32]
    stack: NDArray[np.uint32]
    region: NDArray[np.uint32]
    thread: NDArray[np.uint64]
    source: NDArray[np.uint8]
    lost: int = 0
    frames: Callable[[int], tuple[Frame, ...]] = field(default=_no_frames, repr=False)
    regions: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.time_ns)

    def __repr__(self) -> str:
        return f"<MemoryEvents: {len(self)}{f', {self.lost} older ones lost' if self.lost else ''}>"

    def to_pandas(self) -> Any:
        """The columns as a DataFrame, regions and sources by their names.

        Raises:
            NotAvailable: pandas is not installed.
        """
        frame = import_pandas().DataFrame({name: getattr(self, name) for name in COLUMNS})
        frame["region"] = [self.regions[number] for number in self.region.tolist()]
        frame["source"] = [SOURCES[number] for number in self.source.tolist()]
        return frame

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_pandas` as a Parquet file.

        Raises:
            NotAvailable: pandas or pyarrow is not installed.
            GpuscopeError: the file cannot be written.
        """
        write_parquet(self.to_pandas(), path)

    def plot(self, device: int | None = None, ax: Axes | None = None) -> Axes:
        """The bytes in use over time, each byte once: of all allocators, and what libraries took from the driver.

        Args:
            device: ordinal of the GPU, HOST for the host's memory; None takes the device with the most in use.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: that device has no events.
        """
        levels = max(levels_of(self, allocations_of(self), device), key=lambda one: one.most, default=None)
        if levels is None or not len(levels.rows):
            raise InvalidArgument(f"device is {device}; accepted are {sorted({*self.device.tolist()})}")
        seconds = (self.time_ns[levels.rows] - int(self.time_ns[0])) / 1e9
        title = f"device {int(self.device[levels.rows[0]])}"
        return plots.levels(seconds, {"in use": levels.total[1:]}, what="memory", ax=ax, title=title)

    def select(self, rows: NDArray[Any]) -> MemoryEvents:
        """Some of the rows, by numbers or a mask, in their order."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return MemoryEvents(**columns, lost=self.lost, frames=self.frames, regions=self.regions)

    def lifetimes(self) -> Lifetimes:
        """Each allocation that was handed out here, with the event that took it back.

        Releases of what was handed out before the first event are left out. A second allocation at an address that was
        not seen released ends the first at that moment.
        """
        return _paired(self)


COLUMNS: dict[str, type[np.integer[Any]]] = {
    "time_ns": np.int64,
    "address": np.uint64,
    "bytes": np.int64,
    "allocated_bytes": np.int64,
    "reserved_bytes": np.int64,
    "device": np.int32,
    "stack": np.uint32,
    "region": np.uint32,
    "thread": np.uint64,
    "source": np.uint8,
}
"""Names of the columns, and their types."""


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Allocations in the order in which they were handed out.

    Attributes:
        born: row of the event that handed it out.
        died: row of the event that took it back, NEVER when it still lives.
        address: of the allocation.
        bytes: its size.
        device: ordinal of the GPU, HOST for host memory.
        stack: where it was handed out.
        source: a number, see SOURCES.
    """

    born: NDArray[np.int64]
    died: NDArray[np.int64]
    address: NDArray[np.uint64]
    bytes: NDArray[np.int64]
    device: NDArray[np.int32]
    stack: NDArray[np.uint32]
    source: NDArray[np.uint8]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Those not given back."""
        return np.asarray(self.died == NEVER)

    def select(self, rows: NDArray[np.bool_]) -> Lifetimes:
        """Some of them, by a mask, in their order."""
        return Lifetimes(**{name: getattr(self, name)[rows] for name in Lifetimes.__dataclass_fields__})

    def __len__(self) -> int:
        return len(self.born)


def _paired(events: MemoryEvents) -> Lifetimes:
    # Sorted by address and time, an event's successor is its end.
    order = np.lexsort((np.arange(len(events)), events.address, events.device, events.source))
    same = np.zeros(len(order), dtype=bool)
    if len(order):
        here, following = order[:-1], order[1:]
        same[:-1] = (
            (events.address[here] == events.address[following])
            & (events.device[here] == events.device[following])
            & (events.source[here] == events.source[following])
        )
    successor = np.full(len(order), NEVER, dtype=np.int64)
    successor[order] = np.where(same, np.roll(order, -1), NEVER)
    born = np.flatnonzero(events.bytes > 0)
    return Lifetimes(
        born=born,
        died=successor[born],
        address=events.address[born],
        bytes=events.bytes[born],
        device=events.device[born],
        stack=events.stack[born],
        source=events.source[born],
    )


def allocations_of(events: MemoryEvents) -> Lifetimes:
    """All allocations but the segments of frameworks whose own allocations are among the events."""
    allocations = events.lifetimes()
    return allocations.select(~is_segment(events, allocations))


def counted_events(events: MemoryEvents, allocations: Lifetimes) -> NDArray[np.bool_]:
    """A mask over the events: those that add up to what is in use, each byte once.

    What a framework frees of before the first event counts, as its allocator says how much there was.
    """
    counted = np.asarray(events.source != _DRIVER)
    counted[allocations.born] = True
    counted[allocations.died[~allocations.alive]] = True
    return counted


def is_segment(events: MemoryEvents, allocations: Lifetimes) -> NDArray[np.bool_]:
    """A mask over the allocations: taken from the driver by an allocator whose own allocations are among the events.

    There are two signs: a framework's allocation lies within, or the framework's next event on that device shows that
    it holds as much more as was taken (memory that is mapped later has no address in common). A growth explains no
    more bytes than its own: what a library took shortly before a segment is not the framework's.
    """
    driver = allocations.source == _DRIVER
    if not driver.any() or (events.source == _DRIVER).all():
        return np.zeros(len(allocations), dtype=bool)
    found = np.zeros(len(allocations), dtype=bool)
    inside = _contains(allocations, driver)
    found[driver] = inside | _explains_growth(events, allocations, driver, inside)
    return found


def _contains(allocations: Lifetimes, driver: NDArray[np.bool_]) -> NDArray[np.bool_]:
    inside = np.zeros(int(driver.sum()), dtype=bool)
    devices = allocations.device[driver]
    for device in np.unique(devices):
        held = np.sort(allocations.address[~driver & (allocations.device == device)])
        here = devices == device
        begin = allocations.address[driver][here]
        end = begin + allocations.bytes[driver][here].astype(np.uint64)
        inside[here] = np.searchsorted(held, begin) < np.searchsorted(held, end)
    return inside


def _explains_growth(
    events: MemoryEvents, allocations: Lifetimes, driver: NDArray[np.bool_], inside: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    explained = np.zeros(int(driver.sum()), dtype=bool)
    devices, born, size = allocations.device[driver], allocations.born[driver], allocations.bytes[driver]
    for source in np.unique(events.source[events.source != _DRIVER]):
        for device in np.unique(devices):
            rows = np.flatnonzero((events.source == source) & (events.device == device))
            grew = np.diff(events.reserved_bytes[rows], prepend=events.reserved_bytes[rows[:1]])
            following = np.searchsorted(rows, born)
            within = np.flatnonzero((devices == device) & (following < len(rows)))
            within = within[grew[following[within]] >= size[within]]
            # Segments that are known come first, then the latest: an allocator reports its memory right after.
            order = within[np.lexsort((-born[within], ~inside[within]))]
            left = grew.tolist()
            for allocation, event, taken in zip(
                order.tolist(), following[order].tolist(), size[order].tolist(), strict=True
            ):
                if taken <= left[event]:
                    left[event] -= taken
                    explained[allocation] = True
    return explained


class Levels:
    """What was in use on a device: before the first of its rows, and after each of them.

    Attributes:
        rows: of the events that count.
        total: in use by all sources.
        by_source: in use by each source, as its allocator says on a GPU; where it does not, as the events add up.
        peak: where most was in use; 0 is before the first row.
        most: what was in use then.
    """

    def __init__(self, events: MemoryEvents, rows: NDArray[np.int64], change: NDArray[np.int64]) -> None:
        self.rows = rows
        self.on_gpu = bool(len(rows)) and int(events.device[rows[0]]) != HOST
        self.by_source: dict[int, NDArray[np.int64]] = {}
        total = np.zeros(len(rows) + 1, dtype=np.int64)
        for source in np.unique(events.source[rows]).tolist():
            own = np.flatnonzero(events.source[rows] == source)
            said = events.allocated_bytes[rows[own]]
            # torch's figure of host memory lacks what threads that do not report gave back: it only grows.
            if self.on_gpu and source != _DRIVER and said.any():
                before = max(0, int(said[0] - events.bytes[rows[own[0]]]))
            else:
                before, said = 0, np.cumsum(change[rows[own]])
            level = np.concatenate([[before], said])[np.searchsorted(own, np.arange(len(total)))]
            self.by_source[source] = level
            total += level
        self.total = total
        # A later moment that is as high as the beginning tells more.
        self.peak = 0 if total[0] > total[1:].max(initial=-1) else 1 + int(np.argmax(total[1:]))
        self.most = int(total[self.peak])


def levels_of(events: MemoryEvents, allocations: Lifetimes, device: int | None) -> list[Levels]:
    """Those of one device, or of each."""
    counted = counted_events(events, allocations)
    change = np.zeros(len(events), dtype=np.int64)
    change[allocations.born] = allocations.bytes
    change[allocations.died[~allocations.alive]] -= allocations.bytes[~allocations.alive]
    asked = np.unique(events.device[counted]).tolist() if device is None else [device]
    return [Levels(events, np.flatnonzero(counted & (events.device == one)), change) for one in asked]
