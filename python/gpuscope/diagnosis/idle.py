# SPDX-License-Identifier: Apache-2.0
"""Why a GPU had nothing to do: every nanosecond of its idle time has one cause.

A gap ends with the work that came next. Was that queued before the gap began, the gap is the device's. Otherwise it is
the host's, and is told by what the thread did that launched the work, from the beginning of the gap to its call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, FunctionKind, RegionKind
from gpuscope.analysis.rows import ANNOTATIONS
from gpuscope.diagnosis.steps import Array, Steps
from gpuscope.trace import NONE, Trace


class IdleCause(IntEnum):
    """What kept the GPU idle. Of what the launching thread did at once, the lowest counts."""

    WAKE_UP = 0
    ALLOCATION = 1
    COPY_CALL = 2
    DRIVER_CALL = 3
    COMPILING = 4
    DATA_WAIT = 5
    GARBAGE = 6
    FRAMEWORK = 7
    HOST_CODE = 8
    LAUNCH_CALL = 9
    LAUNCH_LATENCY = 10
    BACK_TO_BACK = 11
    DEVICE_WAIT = 12
    UNSEEN = 13
    NO_WORK_AFTER = 14

    @property
    def label(self) -> str:
        """Its name in results."""
        return _LABELS[self]


_LABELS = {
    IdleCause.WAKE_UP: "waking up from a wait",
    IdleCause.ALLOCATION: "allocating memory",
    IdleCause.COPY_CALL: "in a call that copies",
    IdleCause.DRIVER_CALL: "in another driver call",
    IdleCause.COMPILING: "compiling",
    IdleCause.DATA_WAIT: "waiting for data",
    IdleCause.GARBAGE: "garbage collection",
    IdleCause.FRAMEWORK: "in operators of the framework",
    IdleCause.HOST_CODE: "other code of the program",
    IdleCause.LAUNCH_CALL: "in the launching call",
    IdleCause.LAUNCH_LATENCY: "from launch to start",
    IdleCause.BACK_TO_BACK: "between work that was queued",
    IdleCause.DEVICE_WAIT: "queued, held back on the GPU",
    IdleCause.UNSEEN: "launch not recorded",
    IdleCause.NO_WORK_AFTER: "no work after it",
}

# Calls that wait for the GPU: all that synchronize, and copies as far as they do.
_BLOCKING = (int(CallKind.SYNC), int(CallKind.MEMCPY))
_CALL_CAUSES = {
    int(CallKind.ALLOC): IdleCause.ALLOCATION,
    int(CallKind.FREE): IdleCause.ALLOCATION,
    int(CallKind.MEMCPY): IdleCause.COPY_CALL,
    int(CallKind.MEMSET): IdleCause.COPY_CALL,
}
# torch's data loader, tf.data and DALI; and, of regions that the program names itself, whole names for a wait for data.
_LOADER = re.compile(r"data_?loader|tf_?data|nvidia\.dali", re.IGNORECASE)
_DATA = re.compile(
    r"((load|loading|fetch|get|read|next|wait for)[ _.-]?)?(data|batch|batches|inputs?|samples?)"
    r"([ _.-]?(load|loading|fetch|wait|time))?|load|loading|fetch",
    re.IGNORECASE,
)
# Of torch.compile ("_compile.compile_inner (dynamo_timed)"), Triton and XLA; not the code that was compiled.
_COMPILING = re.compile(r"dynamo_timed|(^|[^a-z])compil(e|es|ing|ation)([^a-z]|$)|XlaCompile", re.IGNORECASE)
_HOST_CAUSES = len(range(IdleCause.HOST_CODE))  # the last column of a division is what none of them fills

# Work that follows other work at once starts within some microseconds, and so does work on an idle GPU after its
# launch. How many is learned from the recording itself: twice the median, within these limits.
_BACK_TO_BACK_NS = (1_000, 10_000)
_LATENCY_NS = (2_000, 30_000)


@dataclass(frozen=True)
class Drain:
    """Calls of one function at one place that waited until the GPU had nothing left to do.

    Attributes:
        call: the driver's function.
        where: the line, where call stacks were recorded, else the regions around; "" outside all.
        count: how often.
        idle_ns: how long the GPU then was idle until the waiting thread began its next launch.
    """

    call: str
    where: str
    count: int
    idle_ns: int


@dataclass(frozen=True, eq=False)
class Idle:
    """The idle time of one GPU.

    Attributes:
        per_step_ns: an array with a row a step and a column an `IdleCause`.
        drains: the calls after which it was idle, the most idle time first.
    """

    per_step_ns: Array
    drains: tuple[Drain, ...]


def explain_idle(trace: Trace, steps: Steps, device_work: Work, idle_ns: Array) -> Idle:
    """The causes of the idle time of the GPU that the work is of; in each step they add up to `idle_ns`."""
    gaps = _gaps(steps, device_work)
    per_step = np.zeros((len(steps), len(IdleCause)), np.int64)
    calls = _Calls(trace)
    launch = calls.of_correlation(device_work.correlation[gaps.next])
    seen = launch >= 0
    began = np.where(seen, calls.start_ns[launch], gaps.start_ns)
    ended = np.where(seen, calls.end_ns[launch], gaps.start_ns)
    late = seen & (ended > gaps.start_ns)

    back_to_back = _learned(gaps.end_ns[seen & ~late] - gaps.start_ns[seen & ~late], _BACK_TO_BACK_NS)
    waits = np.maximum(gaps.end_ns - ended, 0)
    latency = np.minimum(waits, _learned(waits[late], _LATENCY_NS))

    # (a, s) the host's, (s, e) in the call, then what held it back, and the latency at the end.
    host_end = np.where(late, np.clip(began, gaps.start_ns, gaps.end_ns), gaps.start_ns)
    call_end = np.where(late, np.clip(ended, host_end, gaps.end_ns), host_end)
    latency_start = np.where(late, gaps.end_ns - latency, gaps.end_ns)
    short = gaps.end_ns - gaps.start_ns <= back_to_back
    held = np.where(~seen, IdleCause.UNSEEN, np.where(~late & short, IdleCause.BACK_TO_BACK, IdleCause.DEVICE_WAIT))
    pieces = (
        (host_end, call_end, np.full(len(held), IdleCause.LAUNCH_CALL)),
        (call_end, latency_start, held),
        (latency_start, gaps.end_ns, np.full(len(held), IdleCause.LAUNCH_LATENCY)),
    )
    starts, ends, causes = (np.concatenate(each) for each in zip(*pieces, strict=True))
    fixed, _ = _core.divide_time(steps.start_ns, steps.end_ns, starts, ends, causes.astype(np.uint8), len(IdleCause))
    per_step += fixed[:, :-1]

    host = late & (host_end > gaps.start_ns)
    drained: dict[int, int] = {}
    for thread in np.unique(calls.thread[launch[host]]):
        of_thread = host & (calls.thread[launch] == thread)
        _explain_host(trace, steps, calls, int(thread), gaps.start_ns[of_thread], host_end[of_thread], per_step)
        calls.add_drained(int(thread), gaps.start_ns[of_thread], host_end[of_thread], drained)

    per_step[:, IdleCause.NO_WORK_AFTER] += idle_ns - per_step.sum(axis=1)
    return Idle(per_step, _grouped(trace, drained))


@dataclass(frozen=True, eq=False)
class Work:
    """What ran on one GPU, in any order."""

    start_ns: Array
    end_ns: Array
    correlation: Array


@dataclass(frozen=True, eq=False)
class _Gaps:
    start_ns: Array
    end_ns: Array
    next: Array  # the row of the work that ends each


def _gaps(steps: Steps, work: Work) -> _Gaps:
    """Where nothing ran, from the first step to the last work or the end of the last step."""
    ran = work.end_ns > work.start_ns
    order = np.flatnonzero(ran)[np.argsort(work.start_ns[ran], kind="stable")]
    first_ns, last_ns = int(steps.start_ns[0]), int(steps.end_ns[-1])
    starts = np.minimum(work.start_ns[order], last_ns)
    until = np.maximum.accumulate(np.append(first_ns, work.end_ns[order]))[:-1]
    idle = starts > until
    return _Gaps(until[idle], starts[idle], order[idle])


def _learned(times: Array, limits: tuple[int, int]) -> int:
    return int(np.clip(2 * np.median(times), *limits)) if len(times) else limits[0]


def _explain_host(
    trace: Trace, steps: Steps, calls: _Calls, thread: int, starts: Array, ends: Array, per_step: Array
) -> None:
    """Adds what a thread did in these spans, which are in order."""
    kinds = [calls.of_thread(thread, starts), *_regions_of_thread(trace, thread), _garbage_of_thread(trace, thread)]
    work_starts, work_ends, causes = (np.concatenate(each) for each in zip(*kinds, strict=True))
    at, starts, ends = _cut(steps, starts, ends)
    divided, _ = _core.divide_time(starts, ends, work_starts, work_ends, causes.astype(np.uint8), _HOST_CAUSES)
    np.add.at(per_step[:, : _HOST_CAUSES + 1], at, divided)


def _cut(steps: Steps, starts: Array, ends: Array) -> tuple[Array, Array, Array]:
    """The spans as far as they lie in steps, cut where these end; with the step of each piece."""
    first = np.searchsorted(steps.end_ns, starts, side="right")
    last = np.searchsorted(steps.start_ns, ends, side="left") - 1
    count = np.maximum(last - first + 1, 0)
    span = np.repeat(np.arange(len(starts)), count)
    within = np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count)
    step = first[span] + within
    cut_starts = np.maximum(starts[span], steps.start_ns[step])
    cut_ends = np.minimum(ends[span], steps.end_ns[step])
    kept = cut_ends > cut_starts
    return step[kept], cut_starts[kept], cut_ends[kept]


Spans = tuple[Array, Array, Array]
"""Starts, ends, and the cause of each."""


class _Calls:
    """The driver calls of the recording."""

    def __init__(self, trace: Trace) -> None:
        api = trace.api
        kinds = np.append(trace.calls.kind, int(CallKind.OTHER))
        self.kind = kinds[np.minimum(api.call, len(kinds) - 1)]
        # One more, so that -1 can be looked up.
        self.start_ns = np.append(api.start_ns, 0)
        self.end_ns = np.append(api.start_ns + api.duration_ns, 0)
        self.thread = np.append(api.thread.astype(np.int64), -1)
        self._by_correlation = np.argsort(api.correlation, kind="stable")
        self._correlation = api.correlation[self._by_correlation]

    def of_correlation(self, wanted: Array) -> Array:
        """The row of the call with each number; -1 without."""
        if len(self._correlation) == 0:
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(self._correlation, wanted), len(self._correlation) - 1)
        found: Array = np.where(self._correlation[at] == wanted, self._by_correlation[at], -1)
        return found

    def _rows(self, thread: int) -> Array:
        rows = np.flatnonzero(self.thread[:-1] == thread)
        ordered: Array = rows[np.argsort(self.start_ns[rows], kind="stable")]
        return ordered

    def of_thread(self, thread: int, idle_starts: Array) -> Spans:
        """What its calls mean while the GPU is idle, from these moments on."""
        rows = self._rows(thread)
        kind, starts, ends = self.kind[rows], self.start_ns[rows], self.end_ns[rows]
        causes = np.full(len(rows), int(IdleCause.DRIVER_CALL))
        for number, cause in _CALL_CAUSES.items():
            causes[kind == number] = cause
        # One that waited for the work before: the GPU was busy when it began, and idle when it ended.
        at = np.searchsorted(idle_starts, ends, side="right") - 1
        waited = np.isin(kind, _BLOCKING) & (at >= 0) & (starts < idle_starts[np.maximum(at, 0)])
        causes[waited] = IdleCause.WAKE_UP
        return starts, ends, causes

    def add_drained(self, thread: int, idle_starts: Array, idle_ends: Array, drained: dict[int, int]) -> None:
        """Adds, for each gap before which a call of the thread waited for the GPU, the time from its end on."""
        rows = self._rows(thread)
        rows = rows[np.isin(self.kind[rows], _BLOCKING)]
        if len(rows) == 0:
            return
        at = np.searchsorted(self.start_ns[rows], idle_starts, side="left") - 1
        call = rows[np.maximum(at, 0)]
        waited = (at >= 0) & (self.end_ns[call] >= idle_starts) & (self.end_ns[call] <= idle_ends)
        for row, time in zip(call[waited].tolist(), (idle_ends - self.end_ns[call])[waited].tolist(), strict=True):
            drained[row] = drained.get(row, 0) + time


def _regions_of_thread(trace: Trace, thread: int) -> list[Spans]:
    regions, paths = trace.regions, trace.paths
    causes = np.full(len(paths) + 1, -1)
    for path, (name, kind) in enumerate(zip(paths.name.tolist(), paths.kind.tolist(), strict=True)):
        text = trace.string(name)
        if _COMPILING.search(text):
            causes[path] = IdleCause.COMPILING
        elif _LOADER.search(text) or (kind in ANNOTATIONS and _DATA.fullmatch(text)):
            causes[path] = IdleCause.DATA_WAIT
        elif kind == RegionKind.OP:
            causes[path] = IdleCause.FRAMEWORK
    of_region = causes[np.minimum(regions.path, len(paths))]
    rows = np.flatnonzero((regions.thread == thread) & (of_region >= 0))
    starts = regions.start_ns[rows]
    return [(starts, starts + regions.duration_ns[rows], of_region[rows])]


def _garbage_of_thread(trace: Trace, thread: int) -> Spans:
    functions = trace.python_functions
    rows = np.flatnonzero((functions.thread == thread) & (functions.kind == int(FunctionKind.GARBAGE)))
    starts = functions.start_ns[rows]
    return starts, starts + functions.duration_ns[rows], np.full(len(rows), int(IdleCause.GARBAGE))


def _grouped(trace: Trace, drained: dict[int, int]) -> tuple[Drain, ...]:
    totals: dict[tuple[str, str], list[int]] = {}
    for row, idle_ns in drained.items():
        call = int(trace.api.call[row])
        name = trace.string(int(trace.calls.name[call])) if call < len(trace.calls) else ""
        totals.setdefault((name, _caller(trace, row)), []).append(idle_ns)
    drains = (Drain(name, where, len(times), sum(times)) for (name, where), times in totals.items())
    return tuple(sorted(drains, key=lambda drain: -drain.idle_ns))


def _caller(trace: Trace, call: int) -> str:
    stacks = trace.call_stacks
    at = int(np.searchsorted(stacks.api, call)) if len(stacks) else 0
    if at < len(stacks) and int(stacks.api[at]) == call and int(stacks.stack[at]) < len(trace.stacks):
        frame = int(stacks.stack[at])
        return f"{trace.string(int(trace.stacks.file[frame]))}:{int(trace.stacks.line[frame])}"
    region = int(trace.api.region[call])
    names: list[str] = []
    path: Any = trace.regions.path[region] if region < len(trace.regions) else NONE
    while path < len(trace.paths):
        names.append(trace.string(int(trace.paths.name[path])))
        parent = int(trace.paths.parent[path])
        path = parent if parent < path else NONE
    return " > ".join(reversed(names))
