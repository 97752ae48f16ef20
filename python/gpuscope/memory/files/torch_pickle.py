# SPDX-License-Identifier: Apache-2.0
"""The memory history as the file that PyTorch's memory_viz opens, the one of ``torch.cuda.memory._dump_snapshot``."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.events import HOST, SOURCES, MemoryEvents
from gpuscope.memory.files.torch_segments import Segments, host_segments, torch_segments
from gpuscope.memory.history import history_events
from gpuscope.memory.spans import Piece
from gpuscope.paths import as_path, check_writable, replacing

SUFFIXES = (".pickle", ".pkl")

# The viewer at pytorch.org/memory_viz reads protocols 2 to 4.
_PROTOCOL = 4
_HOST_NOTE = "no GPU was used: device 0 is the host's memory, and its segments are where pieces lie close together"

Frames = list[dict[str, Any]]


def dump_memory_snapshot(path: str | os.PathLike[str]) -> Path:
    """Write torch's segments and the memory history to a file for PyTorch's own tools.

    It opens at https://pytorch.org/memory_viz and with ``python -m torch.cuda._memory_viz trace_plot FILE``. Segments
    and blocks are torch's, with the Python stacks of the history; what the history has of each GPU is its trace, with
    what libraries took from the CUDA driver as segments; the region that the program was in is an entry's metadata
    (``user_metadata``). Where no GPU was used the host's memory stands as device 0.
    Without a history the file has the segments alone.

    Args:
        path: the file; its name ends with .pickle, .pkl or has no suffix. A file of that name is replaced.

    Returns:
        The path.

    Raises:
        InvalidArgument: the name ends otherwise.
        NotAvailable: there is neither a history nor a GPU that torch uses.
        GpuscopeError: the file cannot be written.
    """
    target = as_path(path)
    if target.suffix.lower() not in ("", *SUFFIXES):
        raise InvalidArgument(f"path is {str(target)!r}; accepted are names that end with .pickle or .pkl, or without")
    check_writable(target, ())
    snapshot = torch_snapshot()
    with replacing(target) as file:
        pickle.dump(snapshot, file, protocol=_PROTOCOL)
    return target


def torch_snapshot() -> dict[str, Any]:
    """What `dump_memory_snapshot` writes: the dict of ``torch.cuda.memory._snapshot()``.

    What a library took from the driver for itself has "source": "driver" in its entries. Beside torch's keys,
    "gpuscope" holds "notes" on what is not as torch would have it, and "lost", the number of older events that are no
    longer kept.

    Raises:
        NotAvailable: there is neither a history nor a GPU that torch uses.
    """
    events = _events()
    found = torch_segments()
    if events is None:
        if found.data is None:
            why = f": {found.notes[0]}" if found.notes else ""
            raise NotAvailable(
                f"a memory snapshot is not available: no history was recorded, and torch uses no GPU{why}; "
                "call gpuscope.record_memory_history() first"
            )
        return {**found.data, "gpuscope": {"notes": ["no history was recorded", *found.notes], "lost": 0}}
    notes = [*found.notes]
    frames = _shared_frames(events)
    gpus = sorted({*events.device[events.device >= 0].tolist(), *(segment["device"] for segment in found.segments)})
    traces: list[list[dict[str, Any]]]
    if gpus:
        by_device = [events.select(events.device == device) for device in range(gpus[-1] + 1)]
        all_segments = [Segments(device, found.of(device), of, frames) for device, of in enumerate(by_device)]
    else:
        host = events.select(events.device == HOST)
        notes.insert(0, _HOST_NOTE)
        by_device, all_segments = [host], [host_segments(host, frames)]
    traces = [_trace(of, segments, frames) for of, segments in zip(by_device, all_segments, strict=True)]
    data = found.data or {}
    return {
        "segments": [segment for segments in all_segments for segment in segments.all],
        "device_traces": traces,
        "allocator_settings": data.get("allocator_settings", {}),
        "external_annotations": data.get("external_annotations", []),
        "gpuscope": {"notes": notes, "lost": events.lost},
    }


def _events() -> MemoryEvents | None:
    try:
        return history_events()
    except NotAvailable:
        return None


def _shared_frames(events: MemoryEvents) -> Callable[[int], Frames]:
    """The frames of a stack as torch spells them; one list a stack, so that the file has each once."""
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
    """One device's events as torch's entries, with the segments that came and went around them."""
    entries: list[dict[str, Any]] = []

    def add(action: str, piece: Piece, time_ns: int, stack: int, **more: str) -> None:
        entries.append(
            {
                "action": action,
                "addr": piece.address,
                "size": piece.bytes,
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
        piece = Piece(address, abs(size))
        for segment in segments.first_seen_at.get(row, ()):
            add("segment_alloc", segment, time_ns, 0)
        is_piece = source != _DRIVER or row in segments.whole
        more = {"source": "driver"} if source == _DRIVER else {}
        more |= {"user_metadata": events.regions[region]} if region else {}
        if source == _DRIVER and size > 0:
            add("segment_map" if segments.is_expandable(piece) else "segment_alloc", piece, time_ns, stack)
        if is_piece and size > 0:
            add("alloc", piece, time_ns, stack, **more)
        if is_piece and size < 0:
            add("free_requested", piece, time_ns, stack, **more)
            add("free_completed", piece, time_ns, stack, **more)
        if source == _DRIVER and size < 0:
            add("segment_free", piece, time_ns, stack)
        for segment in segments.last_seen_at.get(row, ()):
            add("segment_free", segment, time_ns, 0)
    return entries
