# SPDX-License-Identifier: Apache-2.0
"""Writes the memory history in the format of ``torch.cuda.memory._dump_snapshot``, for PyTorch's memory_viz."""

from __future__ import annotations

import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.devices import HOST
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.frameworks import torch_memory
from gpuscope.memory.addresses import AddressRange, AddressRanges
from gpuscope.memory.history.categories import CATEGORIES
from gpuscope.memory.history.events import NEVER, SOURCES, MemoryEvents
from gpuscope.memory.history.history import history_events
from gpuscope.paths import as_path, check_writable, replacing
from gpuscope.units import first_line

SUFFIXES = (".pickle", ".pkl")
# The viewer at pytorch.org/memory_viz reads protocols 2 to 4.
_PROTOCOL = 4
_HOST_NOTE = "no GPU was used: device 0 is the host's memory, and its segments are where pieces lie close together"
_DRIVER = SOURCES.index("driver")
# Blocks of unknown segments are grouped into one if their distance is at most 2 MiB, the smallest segment of torch
# (kSmallBuffer in c10/cuda/CUDACachingAllocator.cpp).
_CLOSE = 2 << 20
Frames = list[dict[str, Any]]
FramesOf = Callable[[int], Frames]


def dump_memory_snapshot(path: str | os.PathLike[str]) -> Path:
    """Writes torch's segments and the memory history to a file for PyTorch's own tools.

    It opens at https://pytorch.org/memory_viz and with ``python -m torch.cuda._memory_viz trace_plot FILE``. Segments
    and blocks are torch's, with the Python stacks of the history. The trace of each GPU contains the history's events.
    Allocations of libraries at the CUDA driver appear as segments. The program's region is in ``user_metadata``. If no
    GPU was used, device 0 is the host's memory. Without a history of gpuscope, the file is torch's own.

    Args:
        path: the file, with suffix .pickle, .pkl or none. An existing file is replaced.

    Returns:
        The path.

    Raises:
        InvalidArgument: the name has another suffix.
        NotAvailable: there is neither a history nor a GPU that torch uses.
        GpuscopeError: the file cannot be written.
    """
    target = as_path(path)
    if target.suffix.lower() not in ("", *SUFFIXES):
        raise InvalidArgument(f"path is {str(target)!r}; accepted are names that end with .pickle or .pkl, or without")
    check_writable(target)
    snapshot = torch_snapshot()
    with replacing(target) as file:
        pickle.dump(snapshot, file, protocol=_PROTOCOL)
    return target


def torch_snapshot() -> dict[str, Any]:
    """The content of `dump_memory_snapshot`: the dict of ``torch.cuda.memory._snapshot()``.

    Entries of a library's own allocations at the driver have "source": "driver". With a history, there is the key
    "gpuscope". It contains "notes" on differences from torch's files, "lost", the number of older events no longer
    kept, and "tensors", the live tensors at the end with their categories.
    """
    events, notes = _events(), []
    try:
        data = torch_memory.full_snapshot()
    except Exception as error:  # only torch's own allocator has segments
        data = None
        notes.append(f"torch does not tell of its segments: {first_line(error)}")
    if events is None:
        if data is None:
            why = notes[0] if notes else "torch uses no GPU"
            raise NotAvailable(
                f"a memory snapshot is not available: no history was recorded, and {why}; "
                "call gpuscope.record_memory_history() first"
            )
        return data
    data = data or {}
    of_torch = data.get("segments", [])
    frames = _shared_frames(events)
    gpus = sorted({*events.device[events.device >= 0].tolist(), *(segment["device"] for segment in of_torch)})
    if gpus:
        by_device = [events.select(events.device == device) for device in range(gpus[-1] + 1)]
        segments = [
            Segments(device, [one for one in of_torch if one["device"] == device], of, frames)
            for device, of in enumerate(by_device)
        ]
    else:  # device 0 is host memory, whose segments are unknown
        by_device = [events.select(events.device == HOST)]
        segments = [Segments(0, [], by_device[0], frames)]
        notes.insert(0, _HOST_NOTE)
    return {
        "segments": [segment for of_device in segments for segment in of_device.all],
        "device_traces": [_trace(of, found, frames) for of, found in zip(by_device, segments, strict=True)],
        "allocator_settings": data.get("allocator_settings", {}),
        "external_annotations": data.get("external_annotations", []),
        "gpuscope": {"notes": notes, "lost": events.lost, "tensors": _tensors(events, is_host=not gpus)},
    }


def _tensors(events: MemoryEvents, *, is_host: bool) -> list[tuple[int, int, int, str]] | None:
    """Address, bytes, device and category ("" for none) of each live tensor at the end; None if unknown."""
    known = events.at_end().tensors
    if known is None:
        return None
    return [
        (address, size, 0 if is_host else device, "" if category is None else CATEGORIES[category])
        for address, (category, size, device) in known.items()
        if (device == HOST) == is_host
    ]


def _events() -> MemoryEvents | None:
    try:
        return history_events()
    except NotAvailable:
        return None


def _shared_frames(events: MemoryEvents) -> Callable[[int], Frames]:
    """The frames of a stack in torch's form. One list per stack, so that pickle writes each once."""
    known: dict[int, Frames] = {0: []}

    def frames(stack: int) -> Frames:
        if stack not in known:
            known[stack] = [
                {"name": frame.function, "filename": frame.file, "line": frame.line} for frame in events.frames(stack)
            ]
        return known[stack]

    return frames


_DRIVER = SOURCES.index("driver")


def _trace(events: MemoryEvents, segments: Segments, frames: Callable[[int], Frames]) -> list[dict[str, Any]]:
    """One device's events as torch's entries, with events of its segments."""
    entries: list[dict[str, Any]] = []

    def add(action: str, allocation: AddressRange, time_ns: int, stack: int, **more: str) -> None:
        entries.append(
            {
                "action": action,
                "addr": allocation.address,
                "size": allocation.bytes,
                "stream": 0,
                "time_us": time_ns // 1000,
                "frames": frames(stack),
                **more,
            }
        )

    rows = zip(
        *(getattr(events, name).tolist() for name in ("time_ns", "address", "bytes", "stack", "region", "source")),
        strict=True,
    )
    for row, (time_ns, address, size, stack, region, source) in enumerate(rows):
        allocation = AddressRange(address, abs(size))
        for segment in segments.first_seen_at.get(row, ()):
            add("segment_alloc", segment, time_ns, 0)
        is_allocation = source != _DRIVER or row in segments.whole
        more = {"source": "driver"} if source == _DRIVER else {}
        more |= {"user_metadata": events.regions[region]} if region else {}
        comes, goes = "segment_alloc", "segment_free"
        if source == _DRIVER and segments.is_expandable(allocation):
            comes, goes = "segment_map", "segment_unmap"
        if source == _DRIVER and size > 0:
            add(comes, allocation, time_ns, stack)
        if is_allocation and size > 0:
            add("alloc", allocation, time_ns, stack, **more)
        if is_allocation and size < 0:
            add("free_requested", allocation, time_ns, stack, **more)
            add("free_completed", allocation, time_ns, stack, **more)
        if source == _DRIVER and size < 0:
            add(goes, allocation, time_ns, stack)
        for segment in segments.last_seen_at.get(row, ()):
            add("segment_free", segment, time_ns, 0)
    return entries


class Segments:
    """One device's segments: torch's, allocations of other libraries at the driver, and segments implied by blocks.

    Attributes:
        all: segments that exist at the end, in torch's form.
        first_seen_at: implied segments that no longer exist at the end, by row of their first event. Without segments
            that have blocks from before the history.
        last_seen_at: implied segments that no longer exist at the end, by row of their last event.
        whole: rows of events at the driver whose memory no allocator divides: segment and block in one.
    """

    def __init__(self, device: int, of_torch: list[dict[str, Any]], events: MemoryEvents, frames: FramesOf) -> None:
        self._device = device
        self._frames = frames
        self._alive = _Alive(events)
        self._expandable = [segment for segment in of_torch if segment.get("is_expandable")]
        self.all = [self._with_frames(segment) for segment in of_torch]
        self.first_seen_at: dict[int, list[AddressRange]] = defaultdict(list)
        self.last_seen_at: dict[int, list[AddressRange]] = defaultdict(list)
        torch = _spans_of(self.all)
        self.whole = self._alive.whole_rows(torch)
        self._add_driver_allocations()
        self._add_implied(events)

    def is_expandable(self, allocation: AddressRange) -> bool:
        """Whether an allocation is in one of torch's expandable segments."""
        return any(
            segment["address"] <= allocation.address < segment["address"] + segment["total_size"]
            for segment in self._expandable
        )

    def _with_frames(self, segment: dict[str, Any]) -> dict[str, Any]:
        blocks = []
        address = segment["address"]
        for block in segment["blocks"]:
            stack = self._alive.stacks.get(block.get("address", address), 0)
            frames = block.get("frames") or (self._frames(stack) if block["state"] != "inactive" else [])
            blocks.append({**block, "frames": frames})
            address += block["size"]
        return {"frames": [], **segment, "blocks": blocks}

    def _add_driver_allocations(self) -> None:
        driver = self._alive.driver
        addresses = np.array([allocation.address for allocation, _ in driver], dtype=np.uint64)
        for (allocation, stack), is_torch in zip(driver, _spans_of(self.all).holds(addresses).tolist(), strict=True):
            if not is_torch:
                whole = self._alive.is_whole(allocation)
                self.all.append(self._segment(allocation, stack, [(allocation, stack)] if whole else None))

    def _add_implied(self, events: MemoryEvents) -> None:
        driver = events.source == _DRIVER
        known = _spans_of(self.all).joined(
            AddressRanges.merged(events.address[driver], np.abs(events.bytes[driver]).astype(np.uint64))
        )
        rows = np.flatnonzero(~driver & ~known.holds(events.address))
        if not len(rows):
            return
        address, size = events.address[rows], np.abs(events.bytes[rows]).astype(np.uint64)
        spans = AddressRanges.merged(address, size, _CLOSE, between=known)
        span_of = spans.index(address)
        first = rows[np.unique(span_of, return_index=True)[1]]
        last = rows[len(rows) - 1 - np.unique(span_of[::-1], return_index=True)[1]]
        older = set(span_of[np.isin(rows, self._alive.older)].tolist())
        for number, (allocation, begin, end) in enumerate(zip(spans, first.tolist(), last.tolist(), strict=True)):
            if self._alive.within(allocation):
                self.all.append(self._segment(allocation, 0, None))
                continue
            if number not in older:
                self.first_seen_at[begin].append(allocation)
            self.last_seen_at[end].append(allocation)

    def _segment(
        self, allocation: AddressRange, stack: int, alive: list[tuple[AddressRange, int]] | None
    ) -> dict[str, Any]:
        held = self._alive.within(allocation) if alive is None else alive
        in_use = sum(part.bytes for part, _ in held)
        return {
            "device": self._device,
            "address": allocation.address,
            "total_size": allocation.bytes,
            "allocated_size": in_use,
            "active_size": in_use,
            "requested_size": in_use,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": self._frames(stack),
            "blocks": list(_blocks(allocation, held, self._frames)),
        }


def _blocks(segment: AddressRange, alive: list[tuple[AddressRange, int]], frames: FramesOf) -> Iterator[dict[str, Any]]:
    """The blocks of a segment, in use and inactive, without gaps."""

    def block(address: int, size: int, state: str, stack: int) -> dict[str, Any]:
        fields = {"address": address, "size": size, "requested_size": size, "state": state}
        return {**fields, "frames": frames(stack)}

    at = segment.address
    for allocation, stack in alive:
        if allocation.address > at:
            yield block(at, allocation.address - at, "inactive", 0)
        yield block(*allocation, "active_allocated", stack)
        at = allocation.address + allocation.bytes
    if at < segment.address + segment.bytes:
        yield block(at, segment.address + segment.bytes - at, "inactive", 0)


class _Alive:
    """The live allocations of one device, with their stacks."""

    def __init__(self, events: MemoryEvents) -> None:
        self._lifetimes = lifetimes = events.lifetimes()
        last = {
            kind: _disjoint(
                lifetimes.born[rows].tolist(),
                lifetimes.address[rows].tolist(),
                lifetimes.bytes[rows].tolist(),
                lifetimes.stack[rows].tolist(),
            )
            for kind, rows in (
                ("driver", lifetimes.alive & (lifetimes.source == _DRIVER)),
                ("allocations", lifetimes.alive & (lifetimes.source != _DRIVER)),
            )
        }
        self.driver = last["driver"]
        self._allocations = last["allocations"]
        self._starts = np.array([allocation.address for allocation, _ in self._allocations], dtype=np.uint64)
        self.stacks = {allocation.address: stack for allocation, stack in self._allocations}
        # Rows of releases whose allocation is from before the history.
        self.older = np.setdiff1d(np.flatnonzero(events.bytes < 0), lifetimes.died)
        pools = events.source != _DRIVER
        self._ever = np.unique(events.address[pools])

    def within(self, segment: AddressRange) -> list[tuple[AddressRange, int]]:
        """Allocations whose first byte is in a segment, by address."""
        first, last = np.searchsorted(self._starts, _bounds(segment))
        return self._allocations[first:last]

    def is_whole(self, segment: AddressRange) -> bool:
        """Whether no allocator ever returned an address inside a segment."""
        first, last = np.searchsorted(self._ever, _bounds(segment))
        return bool(first == last)

    def whole_rows(self, torch: AddressRanges) -> set[int]:
        """Rows of whole allocations within the history, without those in `torch`."""
        taken = self._lifetimes.source == _DRIVER
        address, size = self._lifetimes.address[taken], self._lifetimes.bytes[taken].astype(np.uint64)
        whole = np.searchsorted(self._ever, address) == np.searchsorted(self._ever, address + size)
        whole &= ~torch.holds(address)
        rows = np.append(self._lifetimes.born[taken][whole], self._lifetimes.died[taken][whole])
        return set(rows.tolist()) - {NEVER}


def _spans_of(segments: list[dict[str, Any]]) -> AddressRanges:
    address, size = (
        np.array([segment[key] for segment in segments], dtype=np.uint64) for key in ("address", "total_size")
    )
    return AddressRanges.merged(address, size)


def _bounds(segment: AddressRange) -> NDArray[np.uint64]:
    return np.array([segment.address, segment.address + segment.bytes], dtype=np.uint64)


def _disjoint(born: list[int], address: list[int], size: list[int], stack: list[int]) -> list[tuple[AddressRange, int]]:
    """Disjoint allocations by address. Of two that overlap the later is kept: the other's release was not seen."""
    kept: list[tuple[int, AddressRange, int]] = []
    for start, when, length, where in sorted(zip(address, born, size, stack, strict=True)):
        allocation = AddressRange(start, length)
        while kept and kept[-1][1].address + kept[-1][1].bytes > start and kept[-1][0] < when:
            kept.pop()
        if not kept or kept[-1][1].address + kept[-1][1].bytes <= start:
            kept.append((when, allocation, where))
    return [(allocation, where) for _, allocation, where in kept]
