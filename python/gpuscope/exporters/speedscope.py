# SPDX-License-Identifier: Apache-2.0
"""Recordings for https://www.speedscope.app: a profile for each thread and each stream.

The format is that of https://www.speedscope.app/file-format-schema.json: names once, as frames, and for each profile
the times at which frames open and close, properly nested.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from gpuscope import _core
from gpuscope._core import Flag
from gpuscope.analysis.python_samples import SampledFrames, by_value
from gpuscope.errors import InvalidArgument
from gpuscope.paths import check_writable, replacing
from gpuscope.spans import free_lanes
from gpuscope.trace import Trace, command_line

SUFFIXES = (".json",)
MOST_BYTES = 450_000_000
"""Most text in a file: browsers limit a string to 512 MiB, and speedscope reads a file as one."""

Array = np.ndarray[Any, Any]
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_EVENT_BYTES = 64  # most of one event: its frame and its time have at most 10 and 19 digits
_WEIGHT_BYTES = 48  # most of a sample's weight and of the gap after it


class _Frames:
    """The JSON of frames, by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> Array:
        return np.array([self.number(name=name) for name in names], np.int64)

    def number(self, **frame: str | int) -> int:
        return self.numbers.setdefault(json.dumps(frame), len(self.numbers))


def export_speedscope(trace: Trace, path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> None:
    """Writes a file for speedscope: calls and regions of each thread, GPU work of each stream, samples of each thread.

    Concurrent GPU work of a stream, as of branches of a CUDA graph, has a profile for each lane; so have ranges that do
    not nest. A span that outlasts the span around it is cut there and continues after it. If this concerns more than an
    eighth of all spans, their rest is left out. GPU work without timestamps is left out too.

    If the file would exceed `most_bytes`, only the first events of each thread and stream are written. The title in
    speedscope reports this, and cut spans.

    Args:
        trace: the recording.
        path: ends in ``.json``.
        most_bytes: most text to write, in bytes.

    Raises:
        InvalidArgument: the suffix is another, or the recording has only totals (``mode="aggregate"``).
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, SUFFIXES)
    if trace.info.get("session.mode") == "aggregate":
        raise InvalidArgument(
            "the recording is of mode='aggregate', which has no events; accepted are 'full' and 'ring'"
        )
    frames = _Frames()
    lanes = [lane for lane in (*_threads(trace, frames), *_streams(trace, frames)) if len(lane[1])]
    sampled, stacks = list(_samples(trace)), _stacks(trace, frames)
    profiles = [*lanes, *sampled]
    begin_ns = min((int(start.min()) for _, start, _, _ in profiles), default=0)
    size = 2 * _EVENT_BYTES * sum(len(start) for _, start, _, _ in lanes)
    size += sum(_WEIGHT_BYTES + len(stacks[stack]) for _, _, _, rows in sampled for stack in rows.tolist())
    names = ", ".join(frames.numbers)
    room = most_bytes - len(names) - 1024 - 512 * len(profiles)
    share = min(1.0, max(room, 0) / max(size, 1))
    cut = left_out = 0
    with replacing(checked) as file:
        head = {"$schema": _SCHEMA, "exporter": f"gpuscope@{_core.__version__}"}
        file.write(f'{json.dumps(head)[:-1]}, "shared": {{"frames": [{names}]}}, "profiles": ['.encode())
        for number, (name, start, duration, frame) in enumerate(profiles):
            kept = len(start) if share == 1.0 else int(len(start) * share)
            left_out += len(start) - kept
            file.write(b",\n" if number else b"\n")
            start, duration, frame = start[:kept] - begin_ns, duration[:kept], frame[:kept]
            if number < len(lanes):
                cut += _write_lane(file, name, start, duration, frame)
            else:
                _write_samples(file, name, start, duration, frame, stacks)
        title = command_line(trace.info) or "recording"
        notes = [f"the first {share:.0%} of the events, as more cannot be read"] if left_out else []
        notes += [f"{cut:,} spans cut where they overlap"] if cut else []
        title = f"{title} ({'; '.join(notes)})" if notes else title
        file.write(f'\n], "name": {json.dumps(title)}, "activeProfileIndex": 0}}\n'.encode())


def _threads(trace: Trace, frames: _Frames) -> Iterator[tuple[str, Array, Array, Array]]:
    """Name, starts, durations and frames of each thread."""
    tables = functions, regions, api = trace.python_functions, trace.regions, trace.api
    of_paths = frames.of(trace.string(int(name)) for name in trace.paths.name)
    of_calls = frames.of(trace.string(int(name)) for name in trace.calls.name)
    names, function = np.unique(functions.name, return_inverse=True)
    of_functions = frames.of(map(trace.string, names.tolist()))
    thread, start, duration = (
        np.concatenate([table[name] for table in tables]) for name in ("thread", "start_ns", "duration_ns")
    )
    frame = np.concatenate([of_functions[function], of_paths[regions.path], of_calls[api.call]])
    nests = np.ones(len(thread), bool)
    nests[len(functions) : len(functions) + len(regions)] = (regions.flags & Flag.ASYNC) == 0
    for number, rows in by_value(thread):
        name = _thread(trace, number)
        nested = rows[nests[rows]]
        yield name, *_in_order(start[nested], duration[nested], frame[nested])
        ranges = rows[~nests[rows]]
        yield from _side_by_side(f"{name} (ranges)", start[ranges], duration[ranges], frame[ranges])


def _thread(trace: Trace, number: int) -> str:
    return f"thread {trace.threads.system_id[number]} {trace.string(int(trace.threads.name[number]))}".strip()


def _samples(trace: Trace) -> Iterator[tuple[str, Array, Array, Array]]:
    """Name, starts, durations and rows of stacks of each thread's samples."""
    table = trace.python_samples
    for number, rows in by_value(table.thread):
        columns = (table[name][rows] for name in ("start_ns", "duration_ns", "stack"))
        yield f"{_thread(trace, number)} (Python samples)", *_in_order(*columns)


def _stacks(trace: Trace, frames: _Frames) -> list[str]:
    """The list of frames of each stack that samples refer to; an empty one at the end."""
    texts = ["[]"] * (len(trace.stacks) + 1)
    for stack, caller, function, file, line in SampledFrames(trace).rows:
        frame = frames.number(name=function, file=file, line=line)
        texts[stack] = f"{texts[caller][:-1]}{',' if caller >= 0 else ''}{frame}]"
    return texts


def _streams(trace: Trace, frames: _Frames) -> Iterator[tuple[str, Array, Array, Array]]:
    """Name, starts, durations and frames of each stream."""
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
    for number, rows in by_value(track):
        device, stream = int(trace.tracks.device[number]), int(trace.tracks.stream[number])
        yield from _side_by_side(f"GPU {device} stream {stream}", start[rows], duration[rows], frame[rows])


def _side_by_side(name: str, start: Array, duration: Array, frame: Array) -> Iterator[tuple[str, Array, Array, Array]]:
    """Spans that do not nest, in as many lanes as needed so that none overlap."""
    start, duration, frame = _in_order(start, duration, frame)
    lane = free_lanes(start, start + duration)
    for number in range(int(lane.max(initial=-1)) + 1):
        rows = lane == number
        yield f"{name} (lane {number + 1})" if number else name, start[rows], duration[rows], frame[rows]


def _copies(trace: Trace, frames: _Frames) -> Array:
    """The frame of each copy."""
    names, codes = next((texts, codes) for name, texts, codes in trace.store.frame("memcpy") if name == "name")
    found: Array = frames.of(map(str, names))[codes]
    return found


def _in_order(start: Array, duration: Array, frame: Array) -> tuple[Array, Array, Array]:
    """Sorted by begin, outer spans first."""
    order = np.lexsort((-duration, start))
    return start[order], duration[order], frame[order]


def _write_samples(file: BinaryIO, name: str, start: Array, duration: Array, stack: Array, stacks: list[str]) -> None:
    """Writes one profile; time without samples has no stack."""
    gap_ns = np.maximum(start[1:] - (start + duration)[:-1], 0)
    gaps = np.flatnonzero(gap_ns)
    weights = np.insert(duration, gaps + 1, gap_ns[gaps])
    stack = np.insert(stack.astype(np.int64), gaps + 1, -1)
    first = int(start[0]) if len(start) else 0
    head = {"type": "sampled", "name": name, "unit": "nanoseconds", "startValue": first}
    head |= {"endValue": first + int(weights.sum()), "weights": weights.tolist()}
    samples = ",".join(stacks[row] for row in stack.tolist())
    file.write(f'{json.dumps(head)[:-1]}, "samples": [{samples}]}}'.encode())


def _write_lane(file: BinaryIO, name: str, start: Array, duration: Array, frame: Array) -> int:
    """Writes one profile; returns the number of cut spans."""
    end = start + duration
    first, last = (int(start[0]), int(end.max())) if len(start) else (0, 0)
    head = {"type": "evented", "name": name, "unit": "nanoseconds", "startValue": first, "endValue": last}
    file.write(f'{json.dumps(head)[:-1]}, "events": ['.encode())
    opened: list[tuple[int, int]] = []  # end and frame
    events: list[str] = []
    outlasting: list[tuple[int, int, int, int]] = []  # rests of cut spans, a heap: start, number, end and frame
    cut: set[int] = set()
    continued = 0
    most_continued = 1000 + len(start) // 8  # many concurrent tasks would give a quadratic number of events

    def close(number: int, at: int) -> None:
        events.append(f'{{"type":"C","frame":{number},"at":{at}}}')

    def close_until(at: int) -> None:
        while opened and opened[-1][0] <= at:
            ended, inner = opened.pop()
            close(inner, ended)

    def open_span(begins: int, span: int, ends: int, number: int) -> None:
        nonlocal continued
        close_until(begins)
        if opened and ends > opened[-1][0]:
            around_ends = opened[-1][0]
            cut.add(span)
            if continued < most_continued:
                heapq.heappush(outlasting, (around_ends, span, ends, number))
                continued += 1
            ends = around_ends
        events.append(f'{{"type":"O","frame":{number},"at":{begins}}}')
        opened.append((ends, number))

    wrote = False
    for span, (begins, ends, number) in enumerate(zip(start.tolist(), end.tolist(), frame.tolist(), strict=True)):
        while outlasting and outlasting[0][0] <= begins:
            open_span(*heapq.heappop(outlasting))
        open_span(begins, span, ends, number)
        if len(events) > 1 << 14:
            file.write((("," if wrote else "") + ",".join(events)).encode())
            events.clear()
            wrote = True
    while outlasting:
        open_span(*heapq.heappop(outlasting))
    close_until(last)
    if events:
        file.write((("," if wrote else "") + ",".join(events)).encode())
    file.write(b"]}")
    return len(cut)
