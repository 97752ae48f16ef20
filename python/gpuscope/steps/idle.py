# SPDX-License-Identifier: Apache-2.0
"""Causes of GPU idle time: every nanosecond has one cause.

A gap ends with the next work. If that work was queued before the gap began, the gap is attributed to the device.
Otherwise it is attributed to the activities of the launching thread from the start of the gap to the launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, FunctionKind, OverheadKind, RegionKind, SyncKind
from gpuscope.analysis.rows import ANNOTATIONS
from gpuscope.frameworks.python_functions import FILES
from gpuscope.spans import count_before, overlaps
from gpuscope.steps.host_waits import cpu_waits, lock_waits, own_stacks, program_frame
from gpuscope.steps.steps import Array, Steps, is_one_of, profiler_spans, usual
from gpuscope.threads import cached_property, thread_pool
from gpuscope.trace import NONE, Trace

if TYPE_CHECKING:
    from concurrent.futures import Future


class IdleCause(IntEnum):
    """Causes of GPU idle time. If several apply to the launching thread at once, the lowest number counts."""

    OTHER_GPU = 0
    WAKE_UP = 1
    LOADING = 2
    PROFILER = 3
    ALLOCATION = 4
    COPY_CALL = 5
    DRIVER_CALL = 6
    COMPILING = 7
    DATA_WAIT = 8
    GARBAGE = 9
    FILES = 10
    CPU_LIMIT = 11
    CPU_WAIT = 12
    LOCK = 13
    FRAMEWORK = 14
    HOST_CODE = 15
    LAUNCH_CALL = 16
    LAUNCH_LATENCY = 17
    BACK_TO_BACK = 18
    EVENT_WAIT = 19
    DEVICE_WAIT = 20
    UNSEEN = 21
    NO_WORK_AFTER = 22

    @property
    def label(self) -> str:
        """Its name in results."""
        return _LABELS[self]


WAITING = (IdleCause.OTHER_GPU, IdleCause.WAKE_UP)
"""Causes in which the host is in a call that waits for GPUs."""

HOST = (
    *WAITING,
    IdleCause.COPY_CALL,
    IdleCause.DRIVER_CALL,
    IdleCause.FRAMEWORK,
    IdleCause.HOST_CODE,
    IdleCause.LAUNCH_CALL,
    IdleCause.LAUNCH_LATENCY,
)
"""Causes of idle time that have no finding of their own."""

_LABELS = {
    IdleCause.OTHER_GPU: "waiting for another GPU",
    IdleCause.WAKE_UP: "waking up from a wait",
    IdleCause.LOADING: "loading or compiling code in the driver",
    IdleCause.PROFILER: "profiler overhead",
    IdleCause.ALLOCATION: "allocating memory",
    IdleCause.COPY_CALL: "in a copy call",
    IdleCause.DRIVER_CALL: "in another driver call",
    IdleCause.COMPILING: "compiling",
    IdleCause.DATA_WAIT: "waiting for data",
    IdleCause.GARBAGE: "garbage collection",
    IdleCause.FILES: "reading or writing files or sockets",
    IdleCause.CPU_LIMIT: "stopped by the container's CPU limit",
    IdleCause.CPU_WAIT: "waiting for a CPU",
    IdleCause.LOCK: "waiting for the GIL or a lock",
    IdleCause.FRAMEWORK: "in framework operators",
    IdleCause.HOST_CODE: "other program code",
    IdleCause.LAUNCH_CALL: "in launch calls",
    IdleCause.LAUNCH_LATENCY: "launch latency",
    IdleCause.BACK_TO_BACK: "between queued work",
    IdleCause.EVENT_WAIT: "queued, waiting for an event of another stream",
    IdleCause.DEVICE_WAIT: "queued, held back on the GPU",
    IdleCause.UNSEEN: "launch not recorded",
    IdleCause.NO_WORK_AFTER: "after the last work",
}

# Calls that wait for the GPU: synchronizing calls, and copies that synchronize.
_BLOCKING = (CallKind.SYNC, CallKind.MEMCPY)
# Freeing memory waits for the whole GPU too.
_DRAINING = (*_BLOCKING, CallKind.FREE)
_CAUSE_OF_CALL = np.full(256, IdleCause.DRIVER_CALL, np.uint8)
_CAUSE_OF_CALL[[int(CallKind.ALLOC), int(CallKind.FREE)]] = IdleCause.ALLOCATION
_CAUSE_OF_CALL[[int(CallKind.MEMCPY), int(CallKind.MEMSET)]] = IdleCause.COPY_CALL
# Names of torch's data loader, tf.data and DALI; and full names of the program's own regions that wait for data.
_LOADER = re.compile(r"data_?loader|tf_?data|nvidia\.dali", re.IGNORECASE)
_DATA = re.compile(
    r"((load|loading|fetch|get|read|next|wait for)[ _.-]?)?(data|batch|batches|inputs?|samples?)"
    r"([ _.-]?(load|loading|fetch|wait|time))?|load|loading|fetch",
    re.IGNORECASE,
)
# Compilers: torch.compile ("_compile.compile_inner (dynamo_timed)"), Triton and XLA; not the compiled code.
_COMPILING = re.compile(r"dynamo_timed|(^|[^a-z])compil(e|es|ing|ation)([^a-z]|$)|XlaCompile", re.IGNORECASE)
# Overheads of the driver and CUPTI on a thread. A full command buffer is none: it means work for the GPU.
_OVERHEADS = {
    int(OverheadKind.DRIVER_COMPILER): IdleCause.LOADING,
    int(OverheadKind.RUNTIME_TRIGGERED_MODULE_LOADING): IdleCause.LOADING,
    int(OverheadKind.LAZY_FUNCTION_LOADING): IdleCause.LOADING,
    int(OverheadKind.CUPTI_BUFFER_FLUSH): IdleCause.PROFILER,
    int(OverheadKind.CUPTI_INSTRUMENTATION): IdleCause.PROFILER,
    int(OverheadKind.CUPTI_RESOURCE): IdleCause.PROFILER,
    int(OverheadKind.ACTIVITY_BUFFER_REQUEST): IdleCause.PROFILER,
    int(OverheadKind.UVM_ACTIVITY_INIT): IdleCause.PROFILER,
}
_HOST_CAUSES = len(range(IdleCause.HOST_CODE))  # the last row of a division is time without a cause

# Queued work starts some microseconds after the work before it, and launched work after its launch if the GPU is idle.
# The limit is twice the median of the recording, within these bounds.
_BACK_TO_BACK_NS = (1_000, 10_000)
_LATENCY_NS = (2_000, 30_000)
_MANY = 8  # counting in a table of this many times the entries is faster than sorting them


@dataclass(frozen=True)
class Drain:
    """Calls of one function at one place that waited until the GPU was out of work.

    Attributes:
        call: the driver's function.
        where: the line if call stacks were recorded, else the regions around it; "" outside all regions.
        count: number of calls.
        idle_ns: GPU idle time after the calls, until the waiting thread began its next launch.
    """

    call: str
    where: str
    count: int
    idle_ns: int


@dataclass(frozen=True, eq=False)
class IdlePieces:
    """The idle time of one GPU in order of time: one piece per gap, cut at the ends of steps.

    Attributes:
        step: the step of each piece.
        start_ns: the start.
        end_ns: the end.
        next: row of the device's work that ended the gap.
        launch: row of ``trace.api`` of the call that launched this work; -1 if it was not recorded.
        drain: row of ``trace.api`` of the call that waited for all work before the gap; -1 for none.
        waited_ns: how long `drain` had waited when the gap began: without it the host would be that far ahead.
        cause_ns: time per cause, of shape (causes, pieces); a column adds up to its piece.
    """

    step: Array
    start_ns: Array
    end_ns: Array
    next: Array
    launch: Array
    drain: Array
    waited_ns: Array
    cause_ns: Array

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def present(self) -> tuple[bool, ...]:
        """Whether any piece has each cause."""
        return tuple(bool(each.max(initial=0)) for each in self.cause_ns)

    @cached_property
    def heads(self) -> Array:
        """The pieces that begin with a wait."""
        return np.flatnonzero(self.drain >= 0)

    def having(self, cause: IdleCause) -> Array:
        """The pieces with a cause."""
        return np.flatnonzero(self.cause_ns[cause]) if self.present[cause] else np.zeros(0, np.int64)

    def sum_of(self, causes: Iterable[IdleCause], rows: Array) -> Array:
        """Time of several causes together in each piece of `rows`."""
        total = np.zeros(len(rows), np.int64)
        for cause in causes:
            if self.present[cause]:
                total += self.cause_ns[cause, rows]
        return total


@dataclass(frozen=True, eq=False)
class Idle:
    """The idle time of one GPU.

    Attributes:
        trace: the recording.
        per_step_ns: time per cause, of shape (steps, causes).
        pieces: the time before the last work, piece by piece.
        draining: rows of ``trace.api`` of the calls after which the GPU was idle.
        drained_ns: idle time after each draining call, until the waiting thread began its next launch.
    """

    trace: Trace
    per_step_ns: Array
    pieces: IdlePieces
    draining: Array
    drained_ns: Array

    @cached_property
    def drains(self) -> tuple[Drain, ...]:
        """The calls after which the GPU was idle, by function and place, most idle time first."""
        return _grouped(self.trace, self.draining, self.drained_ns)

    def __getstate__(self) -> dict[str, Any]:
        """Includes the drains instead of the recording."""
        return {**vars(self), "drains": self.drains, "trace": None}


def explain_idle(trace: Trace, steps: Steps, device_work: Work, idle_ns: Array, others_ns: Array) -> Idle:
    """The causes of one GPU's idle time; in each step they add up to `idle_ns`.

    `others_ns` are the sorted end times of work on other GPUs.
    """
    gaps = _gaps(steps, device_work)
    calls = _Calls(trace, others_ns)
    launch = device_work.launch[gaps.next]
    seen = launch >= 0
    began, ended = calls.start_ns[launch], calls.end_ns[launch]
    for each in (began, ended):
        np.copyto(each, gaps.start_ns, where=~seen)
    late = seen & (ended > gaps.start_ns)

    back_to_back = _learned(gaps.end_ns[seen & ~late] - gaps.start_ns[seen & ~late], _BACK_TO_BACK_NS)
    waits = np.maximum(gaps.end_ns - ended, 0)
    latency = np.minimum(waits, _learned(waits[late], _LATENCY_NS))

    # A gap is: time of the host, the launch call, time held back on the GPU, launch latency.
    host_end = np.clip(began, gaps.start_ns, gaps.end_ns)
    np.copyto(host_end, gaps.start_ns, where=~late)
    call_end = np.clip(ended, host_end, gaps.end_ns)
    latency_start = gaps.end_ns - latency * late
    held = np.full(len(launch), IdleCause.DEVICE_WAIT, np.uint8)
    held[~late & (gaps.end_ns - gaps.start_ns <= back_to_back)] = IdleCause.BACK_TO_BACK
    held[~seen] = IdleCause.UNSEEN
    for_event = _waits_for_event(trace, device_work, gaps.next, began)
    held[(held == IdleCause.DEVICE_WAIT) & for_event] = IdleCause.EVENT_WAIT

    gap, step, starts, ends = _cut(steps, gaps.start_ns, gaps.end_ns)
    is_whole = len(gap) == len(launch) and bool((gap[1:] != gap[:-1]).all())  # no gap was cut or left out

    def of_pieces(values: Array) -> Array:
        return values if is_whole else values[gap]

    host_until, call_until, latency_from = map(of_pieces, (host_end, call_end, latency_start))
    host = late & (host_end > gaps.start_ns)
    drain, waited_ns = np.full(len(launch), -1), np.zeros(len(launch), np.int64)
    cause_ns = np.zeros((len(IdleCause), len(gap)), np.int64)
    with thread_pool(1) as pool:
        divided_of: list[tuple[Array, Future[Array]]] = []
        for thread in np.flatnonzero(np.bincount(calls.thread[launch[host]], minlength=1)).tolist():
            here = host & (calls.thread[launch] == thread)
            of_thread = np.flatnonzero(here)
            rows = np.flatnonzero(of_pieces(here) & (starts < host_until))
            spans = starts[rows], np.minimum(ends[rows], host_until[rows])
            since = gaps.start_ns[of_thread]
            divided_of.append((rows, pool.submit(_explain_host, trace, calls, thread, since, *spans)))
            call = calls.draining(thread, since, host_end[of_thread])
            drain[of_thread] = call
            waited_ns[of_thread] = (since - calls.start_ns[call]) * (call >= 0)

        _overlap(starts, ends, host_until, call_until, out=cause_ns[IdleCause.LAUNCH_CALL])
        held_ns = _overlap(starts, ends, call_until, latency_from)
        rows = np.flatnonzero(held_ns)
        cause_ns[of_pieces(held)[rows], rows] = held_ns[rows]
        _overlap(starts, ends, latency_from, ends, out=cause_ns[IdleCause.LAUNCH_LATENCY])
        after, by, drained_by, ahead_ns = map(of_pieces, (gaps.next, launch, drain, waited_ns))
        for rows, division in divided_of:
            divided = division.result()
            for cause in np.flatnonzero(divided.max(axis=1, initial=0)).tolist():
                cause_ns[cause, rows] = divided[cause]

    for thread in np.unique(overheads_by_thread(trace)).tolist():
        in_calls = np.maximum(starts, host_until), np.minimum(ends, call_until)
        rows = np.flatnonzero(of_pieces(late & (calls.thread[launch] == thread)) & (in_calls[1] > in_calls[0]))
        divided = _divided(in_calls[0][rows], in_calls[1][rows], [overheads_of_thread(trace, thread)])
        for cause in np.flatnonzero(divided[:-1].any(axis=1)).tolist():
            cause_ns[cause, rows] += divided[cause]
            cause_ns[IdleCause.LAUNCH_CALL, rows] -= divided[cause]

    pieces = IdlePieces(step, starts, ends, after, by, drained_by, ahead_ns, cause_ns)
    per_step = _per_step(steps, pieces)
    per_step[:, IdleCause.NO_WORK_AFTER] += idle_ns - per_step.sum(axis=1)
    drained = np.flatnonzero(drain >= 0)
    by_call = drain[drained]
    return Idle(trace, per_step, pieces, by_call, host_end[drained] - calls.end_ns[by_call])


def explain_steps(trace: Trace, steps: Steps, thread: int) -> IdlePieces:
    """Time of a thread in the steps of a program without a GPU: one piece per step, with causes of the host."""
    count = len(steps)
    cause_ns = np.zeros((len(IdleCause), count), np.int64)
    cause_ns[: _HOST_CAUSES + 1] = _explain_host(
        trace, _Calls(trace, np.zeros(0, np.int64)), thread, steps.start_ns, steps.start_ns, steps.end_ns
    )
    none = np.full(count, -1)
    return IdlePieces(np.arange(count), steps.start_ns, steps.end_ns, none, none, none, np.zeros(count, int), cause_ns)


def _per_step(steps: Steps, pieces: IdlePieces) -> Array:
    """Time per step and cause; the pieces are in order of steps."""
    per_step = np.zeros((len(steps), len(IdleCause)), np.int64)
    edges = count_before(pieces.step, np.arange(len(steps) + 1), equal=False)
    filled = np.flatnonzero(np.diff(edges))
    for cause in np.flatnonzero(pieces.present).tolist():
        per_step[filled, cause] = np.add.reduceat(pieces.cause_ns[cause], edges[filled])
    return per_step


def _overlap(starts: Array, ends: Array, other_starts: Array, other_ends: Array, out: Array | None = None) -> Array:
    shared: Array = np.minimum(ends, other_ends, out=out)
    shared -= np.maximum(starts, other_starts)
    return np.maximum(shared, 0, out=shared)


@dataclass(frozen=True, eq=False)
class Work:
    """Work of one GPU, in any order; `launch` is the row of ``trace.api`` of its launch, or -1."""

    start_ns: Array
    end_ns: Array
    launch: Array
    track: Array


@dataclass(frozen=True, eq=False)
class _Gaps:
    start_ns: Array
    end_ns: Array
    next: Array  # row of the work that ends each gap


def _gaps(steps: Steps, work: Work) -> _Gaps:
    """Time without work, from the first step to the last work or the end of the last step."""
    order = np.flatnonzero(work.end_ns > work.start_ns)
    order = order[np.argsort(work.start_ns[order], kind="stable")]
    first_ns, last_ns = int(steps.start_ns[0]), int(steps.end_ns[-1])
    starts = np.minimum(work.start_ns[order], last_ns)
    until = np.append(first_ns, work.end_ns[order])[:-1]
    np.maximum.accumulate(until, out=until)
    idle = np.flatnonzero(starts > until)
    return _Gaps(until[idle], starts[idle], order[idle])


def _learned(times: Array, limits: tuple[int, int]) -> int:
    return int(np.clip(2 * usual(times), *limits))


def _explain_host(trace: Trace, calls: _Calls, thread: int, idle_starts: Array, starts: Array, ends: Array) -> Array:
    """Time of a thread in sorted spans by cause: a row per cause up to HOST_CODE, a column per span."""
    kinds = [
        calls.of_thread(thread, idle_starts),
        calls.for_others(thread),
        *_regions_of_thread(trace, thread),
        *_functions_of_thread(trace, thread),
        *_waits_of_thread(trace, thread),
        overheads_of_thread(trace, thread),
        _profiler_of_thread(trace, thread),
    ]
    return _divided(starts, ends, kinds)


def overheads_by_thread(trace: Trace) -> Array:
    """The row of ``trace.threads`` of each row of ``trace.overheads``; -1 for none."""
    known = trace.threads.system_id.astype(np.int64)
    order = np.argsort(known, kind="stable")
    wanted = trace.overheads.system_id.astype(np.int64)
    if len(known) == 0 or len(wanted) == 0:
        return np.full(len(wanted), -1)
    at = order[np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)]
    found: Array = np.where(known[at] == wanted, at, -1)
    return found


def overheads_of_thread(trace: Trace, thread: int) -> Spans:
    """Time of a thread that the driver and CUPTI took to load code and for themselves (with `overheads`)."""
    overheads = trace.overheads
    causes = np.full(len(overheads), -1)
    for kind, cause in _OVERHEADS.items():
        causes[overheads.kind == kind] = cause
    rows = np.flatnonzero((causes >= 0) & (overheads_by_thread(trace) == thread))
    starts = overheads.start_ns[rows]
    return starts, starts + overheads.duration_ns[rows], causes[rows]


def _profiler_of_thread(trace: Trace, thread: int) -> Spans:
    """Time of a thread that the profiler took between steps."""
    spans = profiler_spans(trace)
    spans = spans[spans[:, 0] == thread]
    return spans[:, 1], spans[:, 2], np.full(len(spans), int(IdleCause.PROFILER))


def _divided(starts: Array, ends: Array, kinds: Iterable[Spans]) -> Array:
    """Time per cause in these sorted spans: a row per cause and one for none, a column per span."""
    lists = [(begins, until, causes.astype(np.uint8, copy=False)) for begins, until, causes in kinds if len(begins)]
    divided: Array
    divided, _ = _core.divide_time(starts, ends, lists, _HOST_CAUSES)
    return divided


def _waits_for_event(trace: Trace, work: Work, chosen: Array, launched: Array) -> Array:
    """Whether a stream wait for an event precedes each launch directly.

    "Directly" is after the previous launch on the stream. It is known only if such waits were recorded.
    """
    waits = trace.sync
    rows = np.flatnonzero(waits.kind == int(SyncKind.STREAM_WAIT_EVENT))
    if len(rows) == 0:
        return np.zeros(len(chosen), bool)
    begun = np.where(work.launch >= 0, np.append(trace.api.start_ns, 0)[work.launch], work.start_ns)
    found = np.zeros(len(chosen), bool)
    for track in np.unique(waits.track[rows]).tolist():
        asked = np.sort(waits.start_ns[rows[waits.track[rows] == track]])
        launches = np.sort(begun[work.track == track])
        here = np.flatnonzero(work.track[chosen] == track)
        before = count_before(launches, launched[here], equal=False) - 1
        last = np.where(before >= 0, launches[np.maximum(before, 0)], np.iinfo(np.int64).min)
        latest = count_before(asked, launched[here], equal=False) - 1
        found[here] = (latest >= 0) & (asked[np.maximum(latest, 0)] > last)
    return found


def _cut(steps: Steps, starts: Array, ends: Array) -> tuple[Array, Array, Array, Array]:
    """The parts of the spans in steps, cut at the ends of steps, with the span and the step of each part."""
    lasting = np.flatnonzero(steps.durations_ns > 0)
    begins, until = steps.start_ns[lasting], steps.end_ns[lasting]
    step, span = overlaps((starts, ends), begins, until)
    return span, lasting[step], np.maximum(starts[span], begins[step]), np.minimum(ends[span], until[step])


Spans = tuple[Array, Array, Array]
"""Starts, ends, and the cause of each."""


class _Calls:
    """The driver calls of the recording; one empty call if there are none, so that index -1 works."""

    def __init__(self, trace: Trace, others_ns: Array) -> None:
        api = trace.api
        self.kind = _or_zero(trace.call_kinds, int(CallKind.OTHER))
        self.start_ns = _or_zero(api.start_ns)
        self.end_ns = _or_zero(api.start_ns + api.duration_ns)
        self.thread = _or_zero(api.thread)
        self._others_ns = others_ns
        self._rows: dict[int, Array | slice] = {}

    def _of(self, thread: int) -> Array | slice:
        """The rows of a thread in order."""
        if thread not in self._rows:
            here = self.thread == thread
            rows: Array | slice = slice(None) if here.all() else np.flatnonzero(here)
            starts = self.start_ns[rows]
            if (starts[1:] < starts[:-1]).any():
                order = np.argsort(starts, kind="stable")
                rows = order if isinstance(rows, slice) else rows[order]
            self._rows[thread] = rows
        return self._rows[thread]

    def of_thread(self, thread: int, idle_starts: Array) -> Spans:
        """Causes of a thread's calls, if the GPU is idle from `idle_starts` on."""
        rows = self._of(thread)
        kind, starts, ends = self.kind[rows], self.start_ns[rows], self.end_ns[rows]
        causes = _CAUSE_OF_CALL[kind]
        # A call that waited for work: the GPU was busy when the call began, and idle when it ended.
        waits = np.flatnonzero(is_one_of(kind, _BLOCKING))
        at = count_before(idle_starts, ends[waits], equal=True) - 1
        waited = (at >= 0) & (starts[waits] < idle_starts[at])
        causes[waits[waited]] = IdleCause.WAKE_UP
        return starts, ends, causes

    def for_others(self, thread: int) -> Spans:
        """Waiting calls up to the last end of work on another GPU: they wait for that work while this GPU is idle."""
        if len(self._others_ns) == 0:
            return (np.zeros(0, np.int64),) * 3
        rows = self._of(thread)
        waits = np.flatnonzero(is_one_of(self.kind[rows], _BLOCKING))
        starts, ends = self.start_ns[rows][waits], self.end_ns[rows][waits]
        last = count_before(self._others_ns, ends, equal=True) - 1
        until = np.where(last >= 0, np.append(self._others_ns, 0)[last], starts)
        kept = until > starts
        return starts[kept], until[kept], np.full(int(kept.sum()), int(IdleCause.OTHER_GPU))

    def draining(self, thread: int, idle_starts: Array, idle_ends: Array) -> Array:
        """For each gap, the row of the call of the thread that waited for the GPU and ended in it; -1 without."""
        rows = self._of(thread)
        drains = np.flatnonzero(is_one_of(self.kind[rows], _DRAINING))
        rows = drains if isinstance(rows, slice) else rows[drains]
        if len(rows) == 0:
            return np.full(len(idle_starts), -1)
        at = count_before(self.start_ns[rows], idle_starts, equal=False) - 1
        found: Array = rows[at]
        ended = self.end_ns[found]
        found[(at < 0) | (ended < idle_starts) | (ended > idle_ends)] = -1
        return found


def _or_zero(values: Array, zero: int = 0) -> Array:
    return values if len(values) else np.full(1, zero, values.dtype)


def causes_of_paths(trace: Trace) -> Array:
    """The `IdleCause` of each row of ``trace.paths``; -1 for none, and in one more entry at the end."""
    paths = trace.paths
    causes = np.full(len(paths) + 1, -1, np.int8)
    for path, (name, kind) in enumerate(zip(paths.name.tolist(), paths.kind.tolist(), strict=True)):
        text = trace.string(name)
        if _COMPILING.search(text):
            causes[path] = IdleCause.COMPILING
        elif _LOADER.search(text) or (kind in ANNOTATIONS and _DATA.fullmatch(text)):
            causes[path] = IdleCause.DATA_WAIT
        elif kind == RegionKind.OP:
            causes[path] = IdleCause.FRAMEWORK
    return causes


def _regions_of_thread(trace: Trace, thread: int) -> list[Spans]:
    regions, causes = trace.regions, causes_of_paths(trace)
    of_region = causes[np.minimum(regions.path, len(causes) - 1)]
    rows = np.flatnonzero((regions.thread == thread) & (of_region >= 0))
    starts = regions.start_ns[rows]
    return [(starts, starts + regions.duration_ns[rows], of_region[rows])]


def function_rows(trace: Trace, cause: IdleCause) -> Array:
    """The rows of ``trace.python_functions`` that collect garbage, or read and write files and sockets."""
    functions = trace.python_functions
    garbage = functions.kind == int(FunctionKind.GARBAGE)
    if cause == IdleCause.GARBAGE:
        return np.flatnonzero(garbage)
    names, place = np.unique(functions.name, return_inverse=True)
    files = np.array([bool(FILES.search(trace.string(name))) for name in names.tolist()] + [False])[place.reshape(-1)]
    return np.flatnonzero(files & ~garbage)


def _functions_of_thread(trace: Trace, thread: int) -> list[Spans]:
    functions = trace.python_functions
    spans: list[Spans] = []
    for cause in (IdleCause.GARBAGE, IdleCause.FILES):
        rows = function_rows(trace, cause)
        rows = rows[functions.thread[rows] == thread]
        starts = functions.start_ns[rows]
        spans.append((starts, starts + functions.duration_ns[rows], np.full(len(rows), int(cause))))
    return spans


def _waits_of_thread(trace: Trace, thread: int) -> list[Spans]:
    limited, waited = cpu_waits(trace, thread)
    kinds = (
        (limited, IdleCause.CPU_LIMIT),
        (waited, IdleCause.CPU_WAIT),
        (lock_waits(trace, thread), IdleCause.LOCK),
    )
    return [(starts, ends, np.full(len(starts), int(cause))) for (starts, ends), cause in kinds]


def _grouped(trace: Trace, rows: Array, idle_ns: Array) -> tuple[Drain, ...]:
    """The draining calls by function and place."""
    keys = _places_of(trace, rows) * (len(trace.calls) + 1) + np.minimum(trace.api.call[rows], len(trace.calls))
    if len(keys) and int(keys.max()) > _MANY * len(keys):  # too large for a table
        keys = np.unique(keys, return_inverse=True)[1].reshape(-1)
    counts, sums = np.bincount(keys), np.bincount(keys, idle_ns)
    first = np.full(len(counts), len(keys))
    first[keys[::-1]] = np.arange(len(keys))[::-1]
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for each in np.argsort(first)[: np.count_nonzero(counts)].tolist():  # a line may have several stacks
        row = int(rows[first[each]])
        call = int(trace.api.call[row])
        name = trace.string(int(trace.calls.name[call])) if call < len(trace.calls) else ""
        place = name, _caller(trace, row)
        count, total = totals.get(place, (0, 0))
        totals[place] = count + int(counts[each]), total + int(sums[each])
    drains = (Drain(name, where, count, total) for (name, where), (count, total) in totals.items())
    return tuple(sorted(drains, key=lambda drain: -drain.idle_ns))


def _places_of(trace: Trace, calls: Array) -> Array:
    """A number for what `_caller` uses: the stack of each call, or its path if it has no stack."""
    frames, paths = len(trace.stacks), len(trace.paths)
    places = np.minimum(own_stacks(trace)[calls], frames).astype(np.int64)
    without = np.flatnonzero(places == frames)
    if len(without):
        path = np.append(trace.regions.path, NONE)[np.minimum(trace.api.region[calls[without]], len(trace.regions))]
        places[without] += np.minimum(path, paths)
    return places


def _caller(trace: Trace, call: int) -> str:
    stacks = trace.call_stacks
    at = int(np.searchsorted(stacks.api, stacks.api.dtype.type(call))) if len(stacks) else 0
    if at < len(stacks) and int(stacks.api[at]) == call and int(stacks.stack[at]) < len(trace.stacks):
        frame = program_frame(trace, int(stacks.stack[at]))
        return f"{trace.string(int(trace.stacks.file[frame]))}:{int(trace.stacks.line[frame])}"
    region = int(trace.api.region[call])
    names: list[str] = []
    path: Any = trace.regions.path[region] if region < len(trace.regions) else NONE
    while path < len(trace.paths):
        names.append(trace.string(int(trace.paths.name[path])))
        parent = int(trace.paths.parent[path])
        path = parent if parent < path else NONE
    return " > ".join(reversed(names))
