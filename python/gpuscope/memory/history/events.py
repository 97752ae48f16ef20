# SPDX-License-Identifier: Apache-2.0
"""Allocations and releases as columns, and the lifetime of each allocation."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

NEVER = -1  # instead of the row of an event: not seen
# By number: the reporter of an event. "driver" is memory that any library allocates from the CUDA driver directly.
SOURCES = ("torch", "cupy", "driver", "other", "numpy")

_DRIVER = SOURCES.index("driver")


class Frame(NamedTuple):
    """One line of a call stack.

    Attributes:
        function: qualified name.
        file: path as Python reports it.
        line: the executed line, counted from 1.
    """

    function: str
    file: str
    line: int

    @shown
    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


class Storage(NamedTuple):
    """Memory of a live tensor of PyTorch.

    Attributes:
        category: index into `gpuscope.memory.history.categories.CATEGORIES`; None: decided by the allocating code.
        bytes: size.
        device: ordinal of the GPU, HOST for host memory.
    """

    category: int | None
    bytes: int
    device: int


class AtEnd(NamedTuple):
    """PyTorch's memory at the end of the events.

    Attributes:
        tensors: storage of each tensor that Python can reach, by address; None if unknown.
        graph_pools: begin and end address of each segment of private pools, as of CUDA graphs.
    """

    tensors: Mapping[int, Storage] | None = None
    graph_pools: Sequence[tuple[int, int]] = ()


def _no_frames(stack: int) -> tuple[Frame, ...]:
    return ()


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """Allocations and releases in the order they happened, one row each. Sizes are bytes.

    Attributes:
        time_ns: ns since the Unix epoch.
        address: of the allocation.
        bytes: negative for a release; -1 if the release does not report its size.
        allocated_bytes: in use of that allocator and device after the event; 0 if not reported.
        reserved_bytes: held by that allocator on that device; 0 if not reported.
        device: ordinal of the GPU, HOST for host memory.
        stack: number of the call stack, for `frames`; 0 for none.
        region: the program's region, an index of `regions`; 0 for none.
        thread: the system's number of the thread.
        source: index of SOURCES.
        lost: number of older events that are no longer kept.
        frames: the call stack of a number, innermost frame first; () for none.
        regions: names of the regions.
        at_end: PyTorch's tensors and pools at the end.
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
    at_end: Callable[[], AtEnd] = field(default=AtEnd, repr=False)

    def __len__(self) -> int:
        return len(self.time_ns)

    def __repr__(self) -> str:
        return f"<MemoryEvents: {len(self)}{f', {self.lost} older ones lost' if self.lost else ''}>"

    def to_pandas(self) -> Any:
        """The columns as a DataFrame, with names of regions and sources.

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
        """Draws the bytes in use over time, each byte once, including allocations at the driver.

        Args:
            device: ordinal of the GPU, HOST for host memory; None: the device with the highest peak.
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
        return replace(self, **columns)

    def lifetimes(self) -> Lifetimes:
        """Each allocation with its release.

        Releases of allocations from before the first event are excluded. If a release was not seen, the next
        allocation at that address ends the allocation.
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
    """Allocations in order of time.

    Attributes:
        born: row of the allocation's event.
        died: row of the release's event, NEVER if it is still live.
        address: of the allocation.
        bytes: size.
        device: ordinal of the GPU, HOST for host memory.
        stack: number of the call stack.
        source: index of SOURCES.
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
        """A mask: allocations that were not released."""
        return np.asarray(self.died == NEVER)

    def select(self, rows: NDArray[np.bool_]) -> Lifetimes:
        """The allocations of a mask, in their order."""
        return Lifetimes(**{name: getattr(self, name)[rows] for name in Lifetimes.__dataclass_fields__})

    def __len__(self) -> int:
        return len(self.born)


def _paired(events: MemoryEvents) -> Lifetimes:
    # Sorted by address and time, an allocation's successor is its end.
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
    """All allocations, without segments of frameworks whose own allocations are among the events."""
    allocations = events.lifetimes()
    return allocations.select(~is_segment(events, allocations))


def counted_events(events: MemoryEvents, allocations: Lifetimes) -> NDArray[np.bool_]:
    """A mask over the events that add up to the memory in use, each byte once.

    A framework's releases of older memory count, because its allocator reports the amount in use.
    """
    counted = np.asarray(events.source != _DRIVER)
    counted[allocations.born] = True
    counted[allocations.died[~allocations.alive]] = True
    return counted


def is_segment(events: MemoryEvents, allocations: Lifetimes) -> NDArray[np.bool_]:
    """A mask over the allocations: segments of frameworks whose own allocations are among the events.

    An allocation at the driver is a segment if a framework's allocation is inside it. It is also one if the framework's
    next event on that device shows growth by its size: memory that is mapped later shares no address. A growth explains
    only its own number of bytes, so an allocation of another library shortly before is not counted as a segment.
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
            # Known segments come first, then the latest: an allocator reports its memory right after.
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
    """Memory in use on a device, before the first row and after each row.

    Attributes:
        rows: of the events that count.
        total: in use by all sources.
        by_source: in use by each source. On a GPU the allocator's own figure, otherwise the sum of the events.
        peak: index of the maximum in `total`; 0 is before the first row.
        most: bytes in use at the peak.
    """

    def __init__(self, events: MemoryEvents, rows: NDArray[np.int64], change: NDArray[np.int64]) -> None:
        self.rows = rows
        self.on_gpu = bool(len(rows)) and int(events.device[rows[0]]) != HOST
        self.by_source: dict[int, NDArray[np.int64]] = {}
        total = np.zeros(len(rows) + 1, dtype=np.int64)
        for source in np.unique(events.source[rows]).tolist():
            own = np.flatnonzero(events.source[rows] == source)
            said = events.allocated_bytes[rows[own]]
            # torch's figure of host memory lacks releases by threads that do not report: it only grows.
            if self.on_gpu and source != _DRIVER and said.any():
                before = max(0, int(said[0] - events.bytes[rows[own[0]]]))
            else:
                before, said = 0, np.cumsum(change[rows[own]])
            level = np.concatenate([[before], said])[np.searchsorted(own, np.arange(len(total)))]
            self.by_source[source] = level
            total += level
        self.total = total
        # Of equal maxima, a row is preferred over the beginning: it has an event.
        self.peak = 0 if total[0] > total[1:].max(initial=-1) else 1 + int(np.argmax(total[1:]))
        self.most = int(total[self.peak])


def levels_of(events: MemoryEvents, allocations: Lifetimes, device: int | None) -> list[Levels]:
    """The levels of one device, or of each device."""
    counted = counted_events(events, allocations)
    change = np.zeros(len(events), dtype=np.int64)
    change[allocations.born] = allocations.bytes
    change[allocations.died[~allocations.alive]] -= allocations.bytes[~allocations.alive]
    asked = np.unique(events.device[counted]).tolist() if device is None else [device]
    return [Levels(events, np.flatnonzero(counted & (events.device == one)), change) for one in asked]
