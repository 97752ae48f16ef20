# SPDX-License-Identifier: Apache-2.0
"""Reads the pickles of torch.cuda.memory._dump_snapshot and of gpuscope, without running code in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.errors import CorruptTrace, GpuscopeError
from gpuscope.memory.history.categories import CATEGORIES
from gpuscope.memory.history.events import COLUMNS, SOURCES, AtEnd, Frame, MemoryEvents, Storage
from gpuscope.memory.history.plain_pickle import Damaged, load_plain_pickle
from gpuscope.paths import as_path, open_file

# torch's actions. Memory counts as released at "free_requested"; "free_completed" is when a stream has finished with
# it. In a file without requests (torch's skip_actions), it counts as released at "free_completed".
_REQUESTED, _COMPLETED = "free_requested", "free_completed"
_ALLOCATED = ("active_allocated",)
_ACTIVE = (*_ALLOCATED, "active_pending_free", "active_awaiting_free")
_HELD = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_TORCH, OF_LIBRARIES = SOURCES.index("torch"), SOURCES.index("other")
_BLOCK = 512  # kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp
_LARGEST = 1 << 62
_MOST_DEVICES = 1024


@dataclass(frozen=True)
class FileSegment:
    """A segment that the allocator held from the driver when the file was written.

    Attributes:
        device: ordinal of the GPU.
        address: first byte.
        bytes: size.
        allocated_bytes: in use by the program.
        pool: "default", "graph (1, 0)" for a CUDA graph's, or "private (0, 1)" for the program's own.
        expandable: whether it grows in place.
    """

    device: int
    address: int
    bytes: int
    allocated_bytes: int
    pool: str
    expandable: bool


@dataclass(frozen=True, eq=False)
class MemoryFile:
    """The content of a memory snapshot.

    Attributes:
        path: the file.
        events: allocations and releases of all devices, in order of time; empty without a history. Live blocks with a
            call stack but without an event come first. The source "other" is memory that libraries allocated from the
            driver directly; only files of gpuscope contain it.
        segments: of the allocator, at the end.
        settings: the allocator's settings, as "expandable_segments": True.
        refused_bytes: size of each failed allocation, in order of time.
        refused_devices: ordinal of the GPU of each failed allocation.
        notes: of gpuscope, if it wrote the file.
    """

    path: str
    events: MemoryEvents
    segments: tuple[FileSegment, ...]
    settings: dict[str, Any]
    refused_bytes: tuple[int, ...]
    refused_devices: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def graph_pools(self, device: int) -> tuple[tuple[int, int], ...]:
        """Begin and end address of each segment of private pools, as of CUDA graphs."""
        there = (segment for segment in self.segments if segment.device == device and segment.pool != "default")
        return tuple((segment.address, segment.address + segment.bytes) for segment in there)


def load_memory_snapshot(path: str | os.PathLike[str]) -> MemoryFile:
    """Reads a memory snapshot.

    Torch writes requested sizes, but counts whole blocks of 512 bytes. Sizes here are rounded up to whole blocks, so
    that `allocated_bytes` equals torch's own figure. It is lower if the allocator rounds further
    (``roundup_power2_divisions``) or leaves up to 1 MiB unsplit. Sizes in gpuscope's files are not rounded.

    Args:
        path: a pickle of ``torch.cuda.memory._dump_snapshot``, of gpuscope, or of the list that
            ``torch.cuda.memory_snapshot()`` returns. Only plain data is read, so that files from untrusted sources are
            safe.

    Raises:
        InvalidArgument: there is no such file, or it is a directory, a pipe or a device.
        CorruptTrace: it is damaged, cut off, or contains something else.
        GpuscopeError: the file cannot be read.
    """
    name = os.fspath(as_path(path))
    with open_file(path) as file:
        try:
            return _Interpreter(name, load_plain_pickle(file), file.tell()).file()
        except Damaged as error:
            raise CorruptTrace(
                f"{name} is no whole memory snapshot: {error}, at byte {error.offset:,}", name, error.offset
            ) from None
        except _Unexpected as error:
            raise CorruptTrace(f"{name} is no memory snapshot: {error}", name, file.tell()) from None
        except MemoryError:
            raise GpuscopeError(f"cannot read {name}: there is not enough memory for it") from None


class _Unexpected(Exception):  # noqa: N818
    """Plain data, but no memory snapshot."""


class _Interpreter:
    """Converts the content of a pickle to columns, and validates all of it."""

    def __init__(self, path: str, content: Any, size: int) -> None:
        self._path = path
        self._size = size
        self._content = _typed({"segments": content} if type(content) is list else content, dict, "the file")
        self._block = 1 if "gpuscope" in self._content else _BLOCK
        self._stacks: dict[tuple[Frame, ...], int] = {(): 0}
        self._numbers: dict[int, int] = {}  # by the id of a list of frames; the content keeps the lists alive
        self._regions = {"": 0}
        self._refused: list[tuple[int, int, int]] = []  # time, device, size

    def file(self) -> MemoryFile:
        entries = _list(self._content, "segments")
        segments = tuple(_segment(entry) for entry in entries)
        if "segments" not in self._content:
            raise _Unexpected("it has no segments")
        traces = _list(self._content, "device_traces")
        if len(traces) > _MOST_DEVICES:
            raise _Unexpected("it has more devices than there are")
        if sum(len(_typed(trace, list, "a device's trace")) for trace in traces) > self._size:
            raise _Unexpected("it has one list of events for several devices")
        if sum(len(_list(entry, "blocks")) for entry in entries) > self._size:
            raise _Unexpected("it has one list of blocks for several segments")
        there: dict[int, list[dict[str, Any]]] = {}
        for entry, segment in zip(entries, segments, strict=True):
            there.setdefault(segment.device, []).append(entry)
        traces += [[]] * (1 + max(there, default=-1) - len(traces))
        begin = min((_time(trace[0]) for trace in traces if trace), default=0)
        parts = [self._columns(device, trace, there.get(device, ()), begin) for device, trace in enumerate(traces)]
        columns = {name: np.concatenate([part[name] for part in parts]) if parts else _EMPTY[name] for name in _EMPTY}
        self._refused.sort()
        order = np.argsort(columns["time_ns"], kind="stable")
        frames = list(self._stacks)
        ours = _typed(self._content.get("gpuscope", {}), dict, "what gpuscope wrote")
        private = (segment for segment in segments if segment.pool != "default")
        pools = tuple((segment.address, segment.address + segment.bytes) for segment in private)
        at_end = AtEnd(_tensors(ours), pools)
        settings = self._content.get("allocator_settings")
        return MemoryFile(
            path=self._path,
            events=MemoryEvents(
                **{name: column[order] for name, column in columns.items()},
                lost=_number(ours.get("lost", 0), "lost"),
                frames=lambda number: frames[number] if 0 <= number < len(frames) else (),
                regions=tuple(self._regions),
                at_end=lambda: at_end,
            ),
            segments=segments,
            settings=_plain_values(settings) if isinstance(settings, dict) else {},
            refused_bytes=tuple(size for _, _, size in self._refused),
            refused_devices=tuple(device for _, device, _ in self._refused),
            notes=tuple(_typed(note, str, "a note") for note in _list(ours, "notes")),
        )

    def _columns(
        self, device: int, trace: list[Any], there: Sequence[Mapping[str, Any]], begin: int
    ) -> dict[str, NDArray[Any]]:
        times, addresses, changes, held, stacks, regions, threads, sources = [], [], [], [], [], [], [], []
        actions = [_typed(entry, dict, "an event").get("action") for entry in trace]
        released = _COMPLETED if _COMPLETED in actions and _REQUESTED not in actions else _REQUESTED
        signs = {"alloc": 1, released: -1}
        used, states = ("allocated_size", _ALLOCATED) if released == _REQUESTED else ("active_size", _ACTIVE)
        seen = {_address(event) for event, action in zip(trace, actions, strict=True) if action in (*signs,)}
        older = list(_older(there, states, seen, begin))
        for event in (*older, *trace):
            action = event.get("action")
            if action == "oom":
                self._refused.append((_time(event), device, _number(event.get("size", 0), "size")))
            sign = signs.get(action, 0) if isinstance(action, str) else 0
            holds = _HELD.get(action, 0) if isinstance(action, str) else 0
            if not (sign or holds):
                continue
            size = -(-_number(event.get("size"), "size") // self._block) * self._block
            times.append(_time(event) * 1000)
            addresses.append(_address(event))
            changes.append(sign * size)
            held.append(holds * size)
            stacks.append(self._stack(event.get("frames", [])) if sign else 0)
            regions.append(self._region(event.get("user_metadata", "")))
            sources.append(OF_LIBRARIES if event.get("source") == "driver" else _TORCH)
            threads.append(_number(event.get("thread", 0), "thread", (1 << 64) - 1))
        bytes_, holds_ = (np.array(column, dtype=np.float64) for column in (changes, held))
        if max(np.abs(bytes_).sum(), np.abs(holds_).sum()) > _LARGEST // 2:  # totals may add as much
            raise _Unexpected("its sizes add up to more than any memory")
        change, hold = np.array(changes, dtype=np.int64), np.array(held, dtype=np.int64)
        source = np.array(sources, dtype=np.uint8)
        libraries = np.where(source == OF_LIBRARIES, change, 0)
        columns: dict[str, NDArray[Any]] = {
            "time_ns": np.array(times, dtype=np.int64),
            "address": np.array(addresses, dtype=np.uint64),
            "bytes": change,
            "allocated_bytes": _back_from(
                sum(_number(segment.get(used, segment["allocated_size"]), used) for segment in there)
                - int(libraries.sum()),
                change - libraries,
            ),
            "reserved_bytes": _back_from(sum(segment["total_size"] for segment in there), hold),
            "device": np.full(len(times), device, dtype=np.int32),
            "stack": np.array(stacks, dtype=np.uint32),
            "region": np.array(regions, dtype=np.uint32),
            "thread": np.array(threads, dtype=np.uint64),
            "source": source,
        }
        for name in ("allocated_bytes", "reserved_bytes"):
            columns[name][source == OF_LIBRARIES] = 0  # not reported
        changed = change != 0  # events of segments are already in `reserved_bytes`
        return {name: column[changed] for name, column in columns.items()}

    def _stack(self, frames: Any) -> int:
        number = self._numbers.get(id(frames))
        if number is None:
            stack = tuple(_frame(frame) for frame in _typed(frames, list, "a call stack"))
            number = self._stacks.setdefault(stack, len(self._stacks))
            self._numbers[id(frames)] = number
        return number

    def _region(self, metadata: Any) -> int:
        """The region, if gpuscope wrote the file. In torch's files, programs may write anything there."""
        name = metadata if type(metadata) is str else ""
        return self._regions.setdefault(name, len(self._regions))


_EMPTY: dict[str, NDArray[Any]] = {name: np.empty(0, kind) for name, kind in COLUMNS.items()}


def _back_from(end: int, changes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The running sums that end at `end`, at least 0: the file's end and its history may disagree."""
    if not len(changes):
        return changes
    sums = np.cumsum(changes)
    return np.asarray(np.maximum(min(end, _LARGEST) - int(sums[-1]) + sums, 0), dtype=np.int64)


def _older(
    segments: Sequence[Mapping[str, Any]], states: tuple[str, ...], seen: set[int], begin: int
) -> Iterator[dict[str, Any]]:
    """Events for live blocks with a call stack but without an event: allocated before the history."""
    for segment in segments:
        at = segment["address"]
        for entry in _list(segment, "blocks"):
            block = _typed(entry, dict, "a block")
            at, size = _number(block.get("address", at), "address", (1 << 64) - 1), _number(block.get("size"), "size")
            frames = block.get("frames", _frames_of_old(block))
            if frames and block.get("state") in states and at not in seen:
                yield {"action": "alloc", "addr": at, "size": size, "time_us": begin, "frames": frames}
            at += size


def _frames_of_old(block: Mapping[str, Any]) -> Any:
    """The frames of a block in files of torch up to 2.0: those of its newest user."""
    history = _list(block, "history")
    return _typed(history[0], dict, "a block's history").get("frames") if history else None


def _segment(entry: Any) -> FileSegment:
    known = _typed(entry, dict, "a segment")
    pool: Any = known.get("segment_pool_id", (0, 0))
    if not (
        isinstance(pool, (tuple, list))
        and len(pool) == 2
        and all(type(part) is int and 0 <= part <= _LARGEST for part in pool)
    ):
        raise _Unexpected("the pool of a segment is not two numbers")
    return FileSegment(
        device=_number(known.get("device"), "device", _MOST_DEVICES),
        address=_number(known.get("address"), "address", (1 << 64) - 1),
        bytes=_number(known.get("total_size"), "total_size"),
        allocated_bytes=_number(known.get("allocated_size"), "allocated_size"),
        pool="default" if tuple(pool) == (0, 0) else f"{'graph' if pool[0] else 'private'} ({pool[0]}, {pool[1]})",
        expandable=known.get("is_expandable") is True,
    )


def _tensors(ours: Mapping[str, Any]) -> dict[int, Storage] | None:
    """The live tensors at the end, if gpuscope wrote the file."""
    if ours.get("tensors") is None:
        return None
    found = {}
    for entry in _list(ours, "tensors"):
        if len(_typed(entry, tuple, "a tensor")) != 4:
            raise _Unexpected("a tensor is not four values")
        address, size, device, name = entry
        category = CATEGORIES.index(name) if name in CATEGORIES else None
        found[_number(address, "address", (1 << 64) - 1)] = Storage(
            category, _number(size, "size"), _number(device, "device", _MOST_DEVICES)
        )
    return found


def _plain_values(settings: dict[Any, Any]) -> dict[str, Any]:
    """The settings that are no containers: nested containers could repeat each other many times."""
    return {
        name: value
        for name, value in settings.items()
        if isinstance(name, str) and (value is None or isinstance(value, (bool, int, float, str)))
    }


def _frame(entry: Any) -> Frame:
    known = _typed(entry, dict, "a frame")
    function, file = known.get("name", ""), known.get("filename", "")
    return Frame(_typed(function, str, "a function's name"), _typed(file, str, "a file's name"), _line(known))


def _time(event: Any) -> int:
    return _number(_typed(event, dict, "an event").get("time_us", 0), "time_us", _LARGEST // 1000)


def _address(event: Mapping[str, Any]) -> int:
    return _number(event.get("addr"), "addr", (1 << 64) - 1)


def _line(frame: Mapping[str, Any]) -> int:
    line = frame.get("line", 0)
    return line if type(line) is int and abs(line) < 1 << 31 else 0


def _list(content: Mapping[str, Any], name: str) -> list[Any]:
    return list(_typed(content.get(name, []), list, f"its entry {name!r}"))


def _typed(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise _Unexpected(f"{what} is no {kind.__name__}")
    return value


def _number(value: Any, what: str, largest: int = _LARGEST) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        raise _Unexpected(f"{what} of an entry is no valid number")
    return value
