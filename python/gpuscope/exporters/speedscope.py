# SPDX-License-Identifier: Apache-2.0
"""Recordings for https://www.speedscope.app: a profile for each thread and each stream.

The format is that of https://www.speedscope.app/file-format-schema.json: names once, as frames, and for each profile
when frames open and close, properly nested.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from gpuscope import _core
from gpuscope._core import Flag
from gpuscope.errors import InvalidArgument
from gpuscope.paths import check_writable, replacing
from gpuscope.trace import NONE, Trace, command_line

SUFFIXES = (".json",)
MOST_BYTES = 450_000_000
"""Of text: browsers hold no string of more than 512 MiB, and speedscope reads a file as one."""

Array = np.ndarray[Any, Any]
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_EVENT_BYTES = 64  # the most that one takes: its frame and its time have at most 10 and 19 digits


class _Frames:
    """Names by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> Array:
        return np.array([self.numbers.setdefault(name, len(self.numbers)) for name in names], np.int64)


def export_speedscope(trace: Trace, path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> None:
    """Writes a file for speedscope: regions and driver calls of each thread, GPU work of each stream.

    GPU work of a stream that runs at one time, as branches of a CUDA graph do, has a profile for each lane, and so have
    ranges that nest in nothing. Spans of a thread that overlap without lying in each other are cut where the one around
    them ends.
    Of recordings that would take more than speedscope can read, the first events of each thread and stream are
    written; then, and where spans were cut, the name that speedscope shows says so. GPU work without timestamps is left
    out.

    Args:
        trace: the recording.
        path: ends in ``.json``.
        most_bytes: how much text is written at most.

    Raises:
        InvalidArgument: the suffix is another, or the recording has totals alone (``mode="aggregate"``).
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, SUFFIXES)
    if trace.info.get("session.mode") == "aggregate":
        raise InvalidArgument(
            "the recording is of mode='aggregate', which has no events; accepted are 'full' and 'ring'"
        )
    frames = _Frames()
    lanes = [lane for lane in (*_threads(trace, frames), *_streams(trace, frames)) if len(lane[1])]
    begin_ns = min((int(start.min()) for _, start, _, _ in lanes), default=0)
    events = 2 * sum(len(start) for _, start, _, _ in lanes)
    names = [{"name": name} for name in frames.numbers]
    room = most_bytes - len(json.dumps(names)) - 1024 - 512 * len(lanes)
    share = min(1.0, max(room, 0) / max(events * _EVENT_BYTES, 1))
    cut = left_out = 0
    with replacing(checked) as file:
        head = {"$schema": _SCHEMA, "exporter": f"gpuscope@{_core.__version__}", "shared": {"frames": names}}
        file.write(f'{json.dumps(head)[:-1]}, "profiles": ['.encode())
        for number, (name, start, duration, frame) in enumerate(lanes):
            kept = len(start) if share == 1.0 else int(len(start) * share)
            left_out += len(start) - kept
            file.write(b",\n" if number else b"\n")
            cut += _write_lane(file, name, start[:kept] - begin_ns, duration[:kept], frame[:kept])
        title = command_line(trace.info) or "recording"
        notes = [f"the first {share:.0%} of the events, as more cannot be read"] if left_out else []
        notes += [f"{cut:,} spans cut where they overlap"] if cut else []
        title = f"{title} ({'; '.join(notes)})" if notes else title
        file.write(f'\n], "name": {json.dumps(title)}, "activeProfileIndex": 0}}\n'.encode())


def _threads(trace: Trace, frames: _Frames) -> Iterator[tuple[str, Array, Array, Array]]:
    """Name, starts, durations and frames of each thread."""
    regions, api = trace.regions, trace.api
    of_paths = frames.of(trace.string(int(name)) for name in trace.paths.name)
    of_calls = frames.of(trace.string(int(name)) for name in trace.calls.name)
    thread = np.concatenate([regions.thread, api.thread])
    start, duration = (np.concatenate([regions[name], api[name]]) for name in ("start_ns", "duration_ns"))
    frame = np.concatenate([of_paths[regions.path], of_calls[api.call]]) if len(thread) else np.zeros(0, np.int64)
    nests = np.ones(len(thread), bool)
    nests[: len(regions)] = (regions.flags & Flag.ASYNC) == 0
    for number, rows in _by(thread):
        system_id = int(trace.threads.system_id[number])
        name = f"thread {system_id} {trace.string(int(trace.threads.name[number]))}".strip()
        nested = rows[nests[rows]]
        yield name, *_in_order(start[nested], duration[nested], frame[nested])
        ranges = rows[~nests[rows]]
        yield from _side_by_side(f"{name} (ranges)", start[ranges], duration[ranges], frame[ranges])


def _streams(trace: Trace, frames: _Frames) -> Iterator[tuple[str, Array, Array, Array]]:
    """Likewise of each stream."""
    none = np.zeros(0, np.int64)
    kernels, copies, fills, graphs = trace.kernels, trace.memcpy, trace.memset, trace.graph_launches
    of_variants = frames.of(trace.kernel_names())
    numbers, graph = np.unique(graphs.graph, return_inverse=True)
    frame = np.concatenate(
        [
            of_variants[kernels.variant] if len(kernels) else none,
            _copies(trace, frames) if len(copies) else none,
            np.repeat(frames.of([_core.MEMSET_NAME]), len(fills)) if len(fills) else none,
            frames.of(f"{_core.GRAPH_NAME} {number}" for number in numbers.tolist())[graph],
        ]
    )
    tables = (kernels, copies, fills, graphs)
    track, start, duration, flags = (
        np.concatenate([table[name] for table in tables]) for name in ("track", "start_ns", "duration_ns", "flags")
    )
    timed = (flags & Flag.ZERO_TIME) == 0
    track, start, duration, frame = (values[timed] for values in (track, start, duration, frame))
    for number, rows in _by(track):
        device, stream = int(trace.tracks.device[number]), int(trace.tracks.stream[number])
        yield from _side_by_side(f"GPU {device} stream {stream}", start[rows], duration[rows], frame[rows])


def _side_by_side(name: str, start: Array, duration: Array, frame: Array) -> Iterator[tuple[str, Array, Array, Array]]:
    """What does not nest, in as many lanes as it takes for none to overlap."""
    start, duration, frame = _in_order(start, duration, frame)
    lane = _lanes(start, start + duration)
    for number in range(int(lane.max(initial=-1)) + 1):
        rows = lane == number
        yield f"{name} (lane {number + 1})" if number else name, start[rows], duration[rows], frame[rows]


def _lanes(start: Array, end: Array) -> Array:
    """The first lane that is free at each start; starts are in order."""
    lane = np.zeros(len(start), np.int64)
    if not (start[1:] < np.maximum.accumulate(end)[:-1]).any():
        return lane
    free_at: list[int] = []
    for row, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        number = next((number for number, at in enumerate(free_at) if at <= begins), len(free_at))
        free_at[number : number + 1] = [ends]
        lane[row] = number
    return lane


def _copies(trace: Trace, frames: _Frames) -> Array:
    """The frame of each copy."""
    names, codes = next((texts, codes) for name, texts, codes in trace.store.frame("memcpy") if name == "name")
    found: Array = frames.of(map(str, names))[codes]
    return found


def _by(numbers: Array) -> Iterator[tuple[int, Array]]:
    """The rows of each number."""
    order = np.argsort(numbers, kind="stable")
    edges = np.flatnonzero(np.diff(numbers[order])) + 1
    for rows in np.split(order, edges):
        if len(rows) and int(numbers[rows[0]]) != NONE:
            yield int(numbers[rows[0]]), rows


def _in_order(start: Array, duration: Array, frame: Array) -> tuple[Array, Array, Array]:
    """By begin, and what lies around others first."""
    order = np.lexsort((-duration, start))
    return start[order], duration[order], frame[order]


def _write_lane(file: BinaryIO, name: str, start: Array, duration: Array, frame: Array) -> int:
    """Writes one profile; how many spans had to be cut."""
    end = start + duration
    first, last = (int(start[0]), int(end.max())) if len(start) else (0, 0)
    head = {"type": "evented", "name": name, "unit": "nanoseconds", "startValue": first, "endValue": last}
    file.write(f'{json.dumps(head)[:-1]}, "events": ['.encode())
    opened: list[tuple[int, int]] = []  # end and frame
    events: list[str] = []
    cut = 0

    def close(number: int, at: int) -> None:
        events.append(f'{{"type":"C","frame":{number},"at":{at}}}')

    wrote = False
    for begins, ends, number in zip(start.tolist(), end.tolist(), frame.tolist(), strict=True):
        while opened and opened[-1][0] <= begins:
            ended, inner = opened.pop()
            close(inner, ended)
        if opened and ends > opened[-1][0]:
            ends = opened[-1][0]
            cut += 1
        events.append(f'{{"type":"O","frame":{number},"at":{begins}}}')
        opened.append((ends, number))
        if len(events) > 1 << 14:
            file.write((("," if wrote else "") + ",".join(events)).encode())
            events.clear()
            wrote = True
    while opened:
        ended, inner = opened.pop()
        close(inner, ended)
    if events:
        file.write((("," if wrote else "") + ",".join(events)).encode())
    file.write(b"]}")
    return cut
