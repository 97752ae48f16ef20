# SPDX-License-Identifier: Apache-2.0
"""The events of a recording as lanes of a timeline: one lane a stream, a level of nested regions, a row of waits.

Times are ticks of 32 ns, the resolution of GPU timestamps, from the first event. With too many events for a page,
single ones are kept only in important windows, and each long lane has sums over the whole time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuscope._core import Flag
from gpuscope.exporters.page.report_names import Names, path_texts
from gpuscope.page.planes import STEPS, TIMES, Array, PageColumn
from gpuscope.spans import free_lanes, union
from gpuscope.steps.breakdown import StepBreakdown
from gpuscope.steps.steps import calls_of
from gpuscope.trace import NONE, Trace, number_of

TICK_NS = 32
MOST_EVENTS = 3_000_000
MOST_GAPS = 100_000  # pieces of idle time, the longest
_WHOLE_LANE = 20_000  # lanes with at most so many events are kept whole
_BUCKETS = 8192  # of the sums of other lanes
_LONGEST_GAPS = 10
_BESIDE_A_STEP = 16  # a view of a step has 1/16 of its length more on each side
_DEEPEST = 512
_MOST_LEVELS = 40  # lanes of nested functions; deeper ones are merged into the last
_MOST_BESIDE = 8  # lanes for overlapping events
_SLOW_TO_SPREAD = 300_000
_NUMBER = re.compile(r"\d+")
_BACKWARD = "autograd"  # PyTorch names its threads pt_autograd_0 and so on
_EMPTY = np.zeros(0, np.int64)


@dataclass(eq=False)
class Lane:
    """Events that do not overlap, in order of time.

    Attributes:
        table: its table: work, calls, regions, functions, samples or idle.
        rows: rows of its table that the page contains, in order of time.
        every: all rows.
        total: how many events were recorded, also those missing in the page.
        sums: over the whole time, if the page does not contain all events.
    """

    table: str
    rows: Array
    total: int
    sums: dict[str, Any] | None = None
    every: Array = field(default_factory=lambda: _EMPTY)

    def __post_init__(self) -> None:
        self.every = self.rows


@dataclass(eq=False)
class Group:
    """Lanes under one title."""

    title: str
    kind: str
    lanes: list[Lane] = field(default_factory=list)


@dataclass(eq=False)
class _Table:
    start: Array
    end: Array
    thing: Array


class Lanes:
    """All lanes of a recording.

    Attributes:
        zero_ns: time 0 in ns.
        span: the length in ticks.
        names: of all events.
        groups: in the order in which they are shown.
        windows: spans of ticks in which long lanes have single events; empty if the page contains all events.
        total: how many events were recorded.
        kept: how many events the page contains; all without `reduces`.
    """

    def __init__(self, trace: Trace, breakdown: StepBreakdown | None, names: Names, *, reduces: bool = True) -> None:
        self._trace, self.names = trace, names
        self._tables: dict[str, _Table] = {}
        self._links: Array = _EMPTY
        self._paths: Array = _EMPTY
        self.groups: list[Group] = []
        self.zero_ns, self.span = _limits(trace, breakdown)
        self._threads(breakdown)
        self._devices(breakdown)
        self.total = self._count()
        self.windows: list[tuple[int, int]] = []
        if reduces and self.total > MOST_EVENTS:
            self._reduce(breakdown)
        self.kept = self._count()

    def _count(self) -> int:
        """The number of events, without idle time."""
        return sum(len(lane.rows) for group in self.groups for lane in group.lanes if lane.table != "idle")

    def ticks(self, moments_ns: Array) -> Array:
        """Moments in ticks."""
        found: Array = np.clip((moments_ns - self.zero_ns) // TICK_NS, 0, self.span)
        return found

    def columns(self) -> tuple[dict[str, PageColumn], list[dict[str, Any]], dict[str, list[int]]]:
        """The columns of each table, the groups with the rows of their lanes, and the first rows of lanes."""
        return columns_of([Stretch(self, 0, self.span)], [(0, group) for group in self.groups])

    def has_events(self, group: Group, start: int, end: int) -> bool:
        """Whether a group has any between two ticks."""
        return any(np.diff(self._inside(lane, start, end)) > 0 for lane in group.lanes)

    # -- tables --------------------------------------------------------------------------------------------------------

    def _add(self, table: str, start_ns: Array, duration_ns: Array, thing: Array) -> None:
        start = self.ticks(start_ns)
        self._tables[table] = _Table(start, self.ticks(start_ns + duration_ns), thing)

    def _threads(self, breakdown: StepBreakdown | None) -> None:
        trace, names = self._trace, self.names
        regions, calls, functions = trace.regions, trace.api, trace.python_functions
        self._add("regions", regions.start_ns, regions.duration_ns, names.of_paths(regions.path))
        self._add("calls", calls.start_ns, calls.duration_ns, names.of_calls(calls.call))
        self._add("functions", functions.start_ns, functions.duration_ns, names.of_strings(functions.name))
        depth = _depths(regions.parent, regions.thread)
        level = _depths(functions.parent, functions.thread)
        asynchronous = (regions.flags & Flag.ASYNC) != 0
        alike = _threads_alike(trace, _threads_in_order(trace, breakdown.steps.thread if breakdown else None))
        samples = self._samples({thread for threads in alike if len(threads) > 1 for thread in threads})
        for threads in alike:
            title = _thread_title(trace, threads[0])
            title += f" and {len(threads) - 1} alike" if len(threads) > 1 else ""
            of_regions, of_functions = [], []
            for thread in threads:
                own = regions.thread == thread
                of_regions += [*_by_level(own & ~asynchronous, depth), own & asynchronous]
                of_functions += _by_level(functions.thread == thread, level)
            self._group(title, "regions", "regions", of_regions)
            self._group(f"{title}: Python", "functions", "functions", of_functions)
            sampled = [rows for thread in threads for rows in samples.get(thread, [])]
            self._group(f"{title}: Python, sampled", "samples", "samples", sampled)
            self._group(f"{title}: driver calls", "calls", "calls", [calls.thread == thread for thread in threads])

    def _devices(self, breakdown: StepBreakdown | None) -> None:
        trace, names = self._trace, self.names
        tables = [trace.kernels, trace.graph_launches, trace.memcpy, trace.memset]
        thing = np.concatenate(
            [
                names.of_variants(trace.kernels.variant),
                names.of_graphs(trace.graph_launches),
                names.of_copies(trace.memcpy),
                names.of_fills(trace.memset),
            ]
        )
        starts, lasted = (np.concatenate([table[name] for table in tables]) for name in ("start_ns", "duration_ns"))
        self._add("work", starts, lasted, thing)
        self._links = calls_of(trace, np.concatenate([table.correlation for table in tables]))
        self._paths = _paths_of(trace, names, np.concatenate([table.region for table in tables]))
        track = np.concatenate([table.track for table in tables]).astype(np.int64)
        tracks = trace.tracks
        titles = {
            row: f"GPU {tracks.device[row]} stream {tracks.stream[row]}" if row < len(tracks) else "GPU"
            for row in np.flatnonzero(np.bincount(track, minlength=1)).tolist()
        }
        devices = {device.device: device for device in (breakdown.devices if breakdown else ())}
        self._idle(devices)
        shown: set[int] = set()
        for row in sorted(titles, key=lambda row: (int(tracks.device[row]) if row < len(tracks) else 0, row)):
            self._group(titles[row], "stream", "work", [track == row])
            shown.add(int(tracks.device[row]) if row < len(tracks) else 0)
        first = 0
        for number in sorted(devices):
            rows = np.arange(first, first + min(len(devices[number].pieces), MOST_GAPS))
            first += len(rows)
            cut = f", the {MOST_GAPS:,} longest gaps" if len(devices[number].pieces) > MOST_GAPS else ""
            self._group(f"GPU {number} idle, by cause{cut}", "idle", "idle", [rows])

    def _idle(self, devices: dict[int, Any]) -> None:
        starts, ends, things = [_EMPTY], [_EMPTY], [_EMPTY]
        for number in sorted(devices):
            pieces = devices[number].pieces
            longest = np.arange(len(pieces))
            if len(pieces) > MOST_GAPS:
                lasted = pieces.end_ns - pieces.start_ns
                longest = np.sort(np.argpartition(lasted, -MOST_GAPS)[-MOST_GAPS:])
            starts.append(pieces.start_ns[longest])
            ends.append(pieces.end_ns[longest])
            most = pieces.cause_ns[:, longest].argmax(axis=0) if len(longest) else _EMPTY
            things.append(self.names.of_causes(most))
        start, end, thing = map(np.concatenate, (starts, ends, things))
        self._add("idle", start, end - start, thing)

    def _samples(self, workers: set[int]) -> dict[int, list[Array]]:
        """Levels of sampled functions by thread; successive samples under the same caller are merged.

        A worker has one level: the innermost function of the program, or the function outside of it.
        """
        samples = self._trace.python_samples
        if len(samples) == 0 or self._trace.info.get("session.mode") == "aggregate":
            self._add("samples", _EMPTY, _EMPTY, _EMPTY)
            return {}
        chains = {
            stack: self.names.of_frames(_frames(self._trace, stack)) for stack in np.unique(samples.stack).tolist()
        }
        starts: list[int] = []
        ends: list[int] = []
        things: list[int] = []
        found: dict[int, list[Array]] = {}
        for thread in np.unique(samples.thread).tolist():
            own = np.flatnonzero((samples.thread == thread) & (samples.duration_ns > 0))
            own = own[np.argsort(samples.start_ns[own], kind="stable")]
            levels: list[list[int]] = []
            open_: list[tuple[int, int]] = []  # the function at each level, and its row
            until = -1
            spans = zip(samples.start_ns[own].tolist(), samples.duration_ns[own].tolist(), samples.stack[own].tolist(),
                        strict=True)  # fmt: skip
            for start, lasted, stack in spans:
                chain = chains[stack]
                if thread in workers and chain:
                    chain = [next(filter(self.names.is_own, reversed(chain)), chain[-1])]
                same = 0
                while start <= until + TICK_NS and same < min(len(open_), len(chain)) and open_[same][0] == chain[same]:
                    ends[open_[same][1]] = start + lasted
                    same += 1
                del open_[same:]
                for level in range(same, len(chain)):
                    open_.append((chain[level], len(starts)))
                    while len(levels) <= level:
                        levels.append([])
                    levels[level].append(len(starts))
                    starts.append(start)
                    ends.append(start + lasted)
                    things.append(chain[level])
                until = start + lasted
            found[thread] = [np.array(rows, np.int64) for rows in levels]
        start = np.array(starts, np.int64)
        self._add("samples", start, np.array(ends, np.int64) - start, np.array(things, np.int64))
        return found

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _group(self, title: str, kind: str, table: str, chosen: Sequence[Array]) -> None:
        made = [Lane(table, rows, len(rows)) for each in chosen for rows in self._spread(table, each)]
        if made:
            self.groups.append(Group(title, kind, made))

    def _spread(self, table: str, chosen: Array) -> Iterator[Array]:
        """The chosen rows in order of time; overlapping ones are in lanes of their own."""
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        if len(rows) == 0:
            return
        start, end = self._tables[table].start, self._tables[table].end
        if (start[rows[1:]] < start[rows[:-1]]).any():
            rows = rows[np.argsort(start[rows], kind="stable")]
        if len(rows) > _SLOW_TO_SPREAD:  # work of many streams in one lane: later events cover earlier ones
            yield rows
            return
        lane = free_lanes(start[rows], end[rows], shortest=1, most=_MOST_BESIDE)
        for each in range(int(lane.max()) + 1):
            yield rows[lane == each]

    # -- more than a page holds ----------------------------------------------------------------------------------------

    def _reduce(self, breakdown: StepBreakdown | None) -> None:
        lanes = [lane for group in self.groups for lane in group.lanes]
        long = [lane for lane in lanes if len(lane.rows) > _WHOLE_LANE and lane.table != "idle"]
        room = MOST_EVENTS - self._count() + sum(len(lane.rows) for lane in long)
        for start, end in self._windows_that_matter(breakdown):
            counts = sum(last - first for first, last in (self._inside(lane, start, end) for lane in long))
            if counts > room:
                continue
            room -= counts
            self.windows.append((start, end))
        self.windows = _joined(self.windows)
        for lane in long:
            lane.sums = self._sums(lane)
            spans = [np.arange(*self._inside(lane, *window)) for window in self.windows]
            lane.rows = lane.rows[np.unique(np.concatenate([_EMPTY, *spans]))]

    def _inside(self, lane: Lane, start: int, end: int) -> tuple[int, int]:
        table, rows = self._tables[lane.table], lane.rows
        starts = table.start[rows]
        first = max(int(np.searchsorted(starts, start)) - 1, 0)
        if first < len(starts) and table.end[rows[first]] <= start:
            first += 1
        return first, max(int(np.searchsorted(starts, end)), first)

    def _windows_that_matter(self, breakdown: StepBreakdown | None) -> Iterator[tuple[int, int]]:
        """The first, median, slowest and last steps, then the longest gaps."""
        if breakdown is None or len(breakdown.steps) == 0:
            return
        steps = breakdown.steps
        lasted = steps.durations_ns
        order = np.argsort(lasted, kind="stable")
        starts, ends = self.ticks(steps.start_ns), self.ticks(steps.end_ns)
        for step in dict.fromkeys((0, int(order[len(order) // 2]), int(order[-1]), len(steps) - 1)):
            around = int(ends[step] - starts[step]) // _BESIDE_A_STEP
            yield max(int(starts[step]) - around, 0), min(int(ends[step]) + around, self.span)
        for device in breakdown.devices:
            pieces = device.pieces
            gaps = pieces.end_ns - pieces.start_ns
            for gap in np.argsort(-gaps, kind="stable")[:_LONGEST_GAPS].tolist():
                around = max(int(gaps[gap]) // TICK_NS // 10, 100)
                start, end = (int(self.ticks(each[gap : gap + 1])[0]) for each in (pieces.start_ns, pieces.end_ns))
                yield max(start - around, 0), min(end + around, self.span)

    def _sums(self, lane: Lane) -> dict[str, Any]:
        """Sums in equal buckets of the whole time: the filled share, the events that begin, and the longest event."""
        table = self._tables[lane.table]
        start, end = table.start[lane.rows], table.end[lane.rows]
        edges = np.linspace(0, self.span + 1, _BUCKETS + 1)
        before = np.append(0, np.cumsum(end - start))
        at = np.searchsorted(start, edges, side="right") - 1
        inside = np.clip(edges - start[np.maximum(at, 0)], 0, (end - start)[np.maximum(at, 0)])
        filled = np.where(at >= 0, before[np.maximum(at, 0)] + inside, 0.0)
        share = np.clip(np.diff(filled) / (edges[1] - edges[0]), 0, 1)
        firsts = np.searchsorted(start, edges, side="left")
        keys = (end - start) << 24 | table.thing[lane.rows]
        longest = np.maximum.reduceat(np.append(keys, 0), np.minimum(firsts[:-1], len(keys)))
        nothing = np.diff(firsts) == 0
        longest[nothing] = keys[np.clip(at[:-1][nothing], 0, len(keys) - 1)]
        return {
            "busy": np.round(share * 255).astype(int),
            "count": np.diff(firsts),
            "thing": longest & 0xFFFFFF,
        }


@dataclass(frozen=True, eq=False)
class Stretch:
    """The events between two ticks of a recording.

    Attributes:
        lanes: of the recording.
        start: first tick.
        end: last tick.
        is_cut: times are cut to the stretch and count from its start; otherwise they are those of the recording.
    """

    lanes: Lanes
    start: int
    end: int
    is_cut: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole recording."""
        return self.start == 0 and self.end == self.lanes.span

    def rows(self, lane: Lane) -> Array:
        """The rows of a lane's table in the stretch."""
        if self.is_whole and self.is_cut:
            return lane.rows
        table, rows = self.lanes._tables[lane.table], lane.every
        starts = table.start[rows]
        return rows[(starts < self.end) & ((starts >= self.start) | (table.end[rows] > self.start))]

    def times(self, moments: Array) -> Array:
        """Moments as in the page."""
        return moments if self.is_whole or not self.is_cut else np.clip(moments, self.start, self.end) - self.start


def columns_of(
    stretches: Sequence[Stretch], groups: Sequence[tuple[int, Group]]
) -> tuple[dict[str, PageColumn], list[dict[str, Any]], dict[str, list[int]]]:
    """The columns of stretches that share one axis of time, each from its start on.

    Args:
        stretches: of recordings whose names are numbered together.
        groups: the index of the stretch, and the group, in the order in which they are shown.

    Returns:
        The columns of each table, the groups with the rows of their lanes, and the first rows of lanes.
    """
    parts: dict[str, list[tuple[int, Array]]] = {}
    firsts: dict[str, list[int]] = {name: [] for each in stretches for name in each.lanes._tables}
    counts = dict.fromkeys(firsts, 0)
    made: list[dict[str, Any]] = []
    for at, group in groups:
        lanes = []
        for lane in group.lanes:
            rows, first = stretches[at].rows(lane), counts[lane.table]
            parts.setdefault(lane.table, []).append((at, rows))
            firsts[lane.table].append(first)
            counts[lane.table] = end = first + len(rows)
            total = lane.total if stretches[at].is_whole else len(rows)
            sums = lane.sums if stretches[at].is_whole else None
            lanes.append({"table": lane.table, "first": first, "end": end, "total": total, "sums": sums})
        made.append({"title": stretches[at].lanes.names.id(group.title), "kind": group.kind, "lanes": lanes})
    columns: dict[str, PageColumn] = {}
    for name, pieces in parts.items():
        tables = [(stretches[at], stretches[at].lanes._tables[name], rows) for at, rows in pieces]
        starts, ends = (
            np.concatenate([stretch.times(getattr(table, which)[rows]) for stretch, table, rows in tables])
            for which in ("start", "end")
        )
        if len(starts) == 0:
            continue
        columns[f"{name}-start"] = PageColumn(starts, TIMES, firsts[name])
        columns[f"{name}-length"] = PageColumn(ends - starts)
        columns[f"{name}-thing"] = PageColumn(np.concatenate([table.thing[rows] for _, table, rows in tables]))
    if counts.get("work") and counts.get("calls"):
        columns["work-call"] = PageColumn(_links_of(stretches, parts), STEPS)
    if counts.get("work"):
        columns["work-path"] = PageColumn(
            np.concatenate([stretches[at].lanes._paths[rows] for at, rows in parts["work"]])
        )
    return columns, made, {name: at for name, at in firsts.items() if at}


def _links_of(stretches: Sequence[Stretch], parts: dict[str, list[tuple[int, Array]]]) -> Array:
    """For each event of GPU work, the position of its call in the written columns, from 1; 0 for none."""
    places = [np.zeros(len(stretch.lanes._tables["calls"].start) + 1, np.int64) for stretch in stretches]
    count = 0
    for at, rows in parts["calls"]:
        places[at][rows] = np.arange(count + 1, count + len(rows) + 1)
        count += len(rows)
    return np.concatenate([places[at][stretches[at].lanes._links[rows]] for at, rows in parts["work"]])


def _paths_of(trace: Trace, names: Names, region: Array) -> Array:
    """For each event of GPU work, 1 plus the number of the text of its launching regions; 0 for none."""
    texts = [*path_texts(trace), ""]
    paths = np.minimum(np.append(trace.regions.path, NONE), len(texts) - 1).astype(np.int64)
    path = paths[np.minimum(region, len(paths) - 1)]
    known = np.zeros(len(texts), np.int64)
    for each in np.flatnonzero(np.bincount(path, minlength=len(texts))).tolist():
        known[each] = names.id(texts[each]) + 1 if texts[each] else 0
    found: Array = known[path]
    return found


def _limits(trace: Trace, breakdown: StepBreakdown | None) -> tuple[int, int]:
    """The first moment of all events in ns, and the last in ticks after it."""
    tables = (
        *(trace.kernels, trace.graph_launches, trace.memcpy, trace.memset, trace.api, trace.regions),
        *(trace.python_functions, trace.python_samples, trace.memory, trace.counter_samples),
    )
    first, last = [], []
    for table in tables:
        if len(table):
            first.append(int(table.start_ns.min()))
            ends = table.start_ns + table.duration_ns if "duration_ns" in table else table.start_ns
            last.append(int(ends.max()))
    if breakdown is not None and len(breakdown.steps):
        first.append(int(breakdown.steps.start_ns[0]))
        last.append(int(breakdown.steps.end_ns[-1]))
    zero = min(first, default=0)
    return zero, max((max(last, default=0) - zero) // TICK_NS + 1, 1)


def _depths(parent: Array, thread: Array) -> Array:
    """How many rows of the same thread are around each row.

    Each pass looks twice as far up as the one before, so that deep nesting needs few passes.
    """
    count = len(parent)
    above = np.append(np.minimum(parent, count), count).astype(np.int64)
    threads = np.append(thread.astype(np.int64), -1)
    depth = (threads[above] == threads).astype(np.int64)
    depth[count] = 0
    for _ in range(_DEEPEST.bit_length()):
        if (above == count).all():
            break
        depth += depth[above]
        above = above[above]
    found: Array = depth[:count]
    return found


def _by_level(chosen: Array, depth: Array) -> list[Array]:
    rows = np.flatnonzero(chosen)
    levels = np.minimum(depth[rows], _MOST_LEVELS)
    return [rows[levels == each] for each in range(int(levels.max(initial=-1)) + 1)]


def _threads_in_order(trace: Trace, leader: int | None) -> list[int]:
    """The threads with events: the one that takes the steps, those of autograd, then the others by their load.

    If no thread is known to take steps, the first is the main thread, else the first one that called the driver.
    """
    counts = np.zeros(max(len(trace.threads), 1), np.int64)
    for table in (trace.regions, trace.api, trace.python_functions, trace.python_samples):
        if len(table):
            counts += np.bincount(np.minimum(table.thread, len(counts) - 1), minlength=len(counts))
    if leader is None:
        calls, process = trace.api, number_of(trace.info, "process.id")
        main = np.flatnonzero((trace.threads.system_id == process) & (counts[: len(trace.threads)] > 0))
        leader = int(main[0]) if len(main) else int(calls.thread[calls.start_ns.argmin()]) if len(calls) else None
    found: list[int] = np.argsort(-counts, kind="stable").tolist()
    found = [thread for thread in found if counts[thread]]
    return sorted(found, key=lambda thread: (thread != leader, _BACKWARD not in _thread_title(trace, thread)))


def _threads_alike(trace: Trace, threads: list[int]) -> list[list[int]]:
    """Groups of threads whose names differ only in numbers, as those of a pool; the first thread is by itself."""
    found: dict[str, list[int]] = {}
    for thread in threads[1:]:
        found.setdefault(_NUMBER.sub("", _thread_title(trace, thread)), []).append(thread)
    return [threads[:1], *found.values()] if threads else []


def _thread_title(trace: Trace, thread: int) -> str:
    if thread >= len(trace.threads):
        return "thread"
    name = trace.string(int(trace.threads.name[thread]))
    return name or f"thread {int(trace.threads.system_id[thread])}"


def _frames(trace: Trace, stack: int) -> list[int]:
    """The rows of ``trace.stacks`` around a stack and itself, outermost first, up to the number of lanes."""
    stacks = trace.stacks
    found: list[int] = []
    while stack != NONE and stack < len(stacks) and len(found) < _DEEPEST:
        found.append(stack)
        stack = int(stacks.parent[stack])
    return found[::-1][:_MOST_LEVELS]


def _joined(windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    starts, ends = union(*np.array(windows, np.int64).reshape(-1, 2).T)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
