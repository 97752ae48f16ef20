# SPDX-License-Identifier: Apache-2.0
"""Why a thread of the program was not on a CPU, and where threads were in Python, by the sampler."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpuscope._core import CallKind
from gpuscope.memory.history.call_stacks import is_program
from gpuscope.spans import covered_ns, in_turn
from gpuscope.steps.steps import Array, is_one_of
from gpuscope.trace import NONE, Trace

NOT_KNOWN = -1
"""The value of columns that Linux did not report."""

# A thread waits for another one that ran for most of the time, if both together use at most one core. A thread that
# runs at the same time does not block it.
_MOST, _ONE_CORE = 0.8, 1.2
_LEAST_LOCK_NS = 500_000  # half of the time between two samples, which is their resolution

DEEPEST = 512
"""The most frames and regions to look through; deeper ones are those of damaged files."""

Spans = tuple[Array, Array]
"""Starts and ends, in ns."""


def program_frame(trace: Trace, stack: int) -> int:
    """The innermost frame of a row of ``trace.stacks`` that is the program's own, or else its innermost one."""
    stacks, frame = trace.stacks, stack
    for _ in range(DEEPEST):
        if frame >= len(stacks):
            break
        if is_program(trace.string(int(stacks.file[frame]))):
            return frame
        frame = int(stacks.parent[frame])
    return stack


def cpu_waits(trace: Trace, thread: int) -> tuple[Spans, Spans]:
    """When a thread was ready and waited for a CPU: because of its control group's limit, and for other reasons.

    Linux counts a wait when it ends, so the wait is at the end of its row. Within a row of the control group, the share
    of waits due to the limit is the throttled time over the time of all waits.
    """
    waits = trace.thread_waits
    rows = np.flatnonzero(waits.thread == thread)
    rows = rows[np.argsort(waits.start_ns[rows], kind="stable")]
    ends = waits.start_ns[rows] + waits.duration_ns[rows]
    starts = ends - np.minimum(waits.wait_ns[rows], waits.duration_ns[rows])
    limited = starts + ((ends - starts) * _throttled_share(trace, ends)).astype(np.int64)
    return (starts, limited), (limited, ends)


def _throttled_share(trace: Trace, moments: Array) -> Array:
    """The share of waits due to the limit, in the control group's row around each moment."""
    groups, waits = trace.control_group_usages, trace.thread_waits
    rows = np.flatnonzero(groups.throttled_ns != NOT_KNOWN)
    rows = rows[np.argsort(groups.start_ns[rows], kind="stable")]
    if len(rows) == 0:
        return np.zeros(len(moments))
    begins = groups.start_ns[rows]

    def row_of(times: Array) -> Array:
        return np.maximum(np.searchsorted(begins, times, side="left") - 1, 0)

    totals = np.bincount(row_of(waits.start_ns + waits.duration_ns), waits.wait_ns, len(rows))
    shares = np.minimum(groups.throttled_ns[rows] / np.maximum(totals, 1), 1.0)
    found: Array = shares[row_of(moments)]
    return found


def own_stacks(trace: Trace) -> Array:
    """The row of ``trace.stacks`` of each row of ``trace.api``, and of one more for -1; `NONE` without its own."""
    known, count = trace.call_stacks, len(trace.api)
    found = np.full(count + 1, NONE, np.uint32)
    found[np.minimum(known.api, count)[::-1]] = known.stack[::-1]  # of several the first
    found[count] = NONE
    return found


def lock_waits(trace: Trace, thread: int) -> Spans:
    """When a thread stood still in Python while other threads of Python ran: for the GIL or a lock.

    The wait is before the first call of the driver in a row, or after the last: between calls the thread runs or waits
    for the GPU. If a row ends with a wait, the next row begins with the rest of it, however short.
    """
    samples = trace.python_samples
    rows = np.flatnonzero((samples.thread == thread) & (samples.duration_ns > 0))
    if len(rows) == 0 or len(rows) == len(samples):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = rows[np.argsort(samples.start_ns[rows], kind="stable")]
    starts, lasted, on_cpu = samples.start_ns[rows], samples.duration_ns[rows], samples.cpu_ns[rows]
    ends = starts + lasted
    off = np.maximum(lasted - on_cpu - covered_ns(*_blocking_calls(trace, thread), starts, ends), 0)
    ran = running_ns(trace, np.flatnonzero(samples.thread != thread), starts, ends)
    before, after = _around_calls(trace, thread, starts, ends)
    possible = (ran >= _MOST * off) & (ran + on_cpu <= _ONE_CORE * lasted)
    waits = possible & (off >= _LEAST_LOCK_NS)
    follows = np.append(False, starts[1:] == ends[:-1])
    at_end = waits & (after >= before)
    at_end &= ~(follows & np.roll(at_end, 1))  # the wait before ended in it
    goes_on = follows & np.roll(at_end, 1)
    waits |= possible & (off > 0) & goes_on
    begins = np.where((after > before) & ~goes_on, ends - off, starts)
    return begins[waits], (begins + off)[waits]


def _blocking_calls(trace: Trace, thread: int) -> Spans:
    """The calls of a thread that may wait for the GPU, also off the CPU, in order and apart."""
    api = trace.api
    blocking = is_one_of(trace.call_kinds, (CallKind.SYNC, CallKind.MEMCPY, CallKind.FREE))
    calls = np.flatnonzero(blocking & (api.thread == thread))
    return in_turn(api.start_ns[calls], (api.start_ns + api.duration_ns)[calls])


def _around_calls(trace: Trace, thread: int, starts: Array, ends: Array) -> Spans:
    """Time in each span before the first of a thread's driver calls in it, and after the last."""
    api = trace.api
    calls = np.flatnonzero(api.thread == thread)
    begun = np.sort(api.start_ns[calls])
    left = np.sort((api.start_ns + api.duration_ns)[calls])
    first, last = np.searchsorted(left, starts, side="right"), np.searchsorted(begun, ends) - 1
    before = np.clip(np.append(begun, np.iinfo(np.int64).max)[first], starts, ends) - starts
    after = ends - np.clip(np.append(left, np.iinfo(np.int64).min)[last], starts, ends)
    return before, after


def running_ns(trace: Trace, rows: Array, starts: Array, ends: Array) -> Array:
    """CPU time of the threads of some rows of ``trace.python_samples`` in each span, added up."""
    samples = trace.python_samples
    total = np.zeros(len(starts))
    if len(rows) == 0 or len(starts) == 0:
        return total
    first_ns = samples.start_ns[rows].min()
    for thread in np.unique(samples.thread[rows]).tolist():
        own = rows[samples.thread[rows] == thread]
        own = own[np.argsort(samples.start_ns[own], kind="stable")]
        begins = samples.start_ns[own] - first_ns
        times = np.stack(in_turn(begins, begins + samples.duration_ns[own]), axis=1).ravel()
        after = np.cumsum(samples.cpu_ns[own])
        spent = np.stack([after - samples.cpu_ns[own], after], axis=1).ravel()
        total += np.interp(ends - first_ns, times, spent) - np.interp(starts - first_ns, times, spent)
    return total


def spans_seen(trace: Trace, rows: Array) -> Spans:
    """The estimated spans in which threads were at the places of `rows` of ``trace.python_samples``.

    A row begins with the last sample that found the thread elsewhere. The thread left there before the first sample of
    the row. If most of the time between is before its first driver call, or after its last one, it left at that call.
    Otherwise half way is assumed.
    """
    samples = trace.python_samples
    starts, lasted, threads = samples.start_ns[rows], samples.duration_ns[rows], samples.thread[rows]
    order = np.lexsort((starts, threads))
    before, after = order[:-1], order[1:]
    goes_on = (threads[before] == threads[after]) & ((starts + lasted)[before] == starts[after])
    before, after = before[goes_on], after[goes_on]
    window = lasted[after] // np.maximum(samples["count"][rows][after].astype(np.int64), 1)
    went = window // 2
    api = trace.api
    for thread in np.unique(threads[after]).tolist():
        calls = np.flatnonzero(api.thread == thread)
        here = np.flatnonzero(threads[after] == thread)
        if len(calls) == 0:
            continue
        begins = np.sort(api.start_ns[calls])
        ends = np.maximum.accumulate((api.start_ns + api.duration_ns)[calls][np.argsort(api.start_ns[calls])])
        since, until = starts[after[here]], starts[after[here]] + window[here]
        first, last = np.searchsorted(begins, since), np.searchsorted(begins, until) - 1
        called = first <= last
        head = np.where(called, begins[np.minimum(first, len(begins) - 1)] - since, 0)
        tail = np.where(called, until - ends[np.maximum(last, 0)], 0)
        silent = 2 * np.maximum(head, tail) > window[here]
        went[here] = np.where(silent, np.where(head >= tail, head, window[here] - tail), went[here])
    begun, left = starts.copy(), starts + lasted
    begun[after] += went
    left[before] += went
    return begun, left


def stacks_in(trace: Trace, threads: Iterable[int], starts: Array, ends: Array, column: str) -> dict[int, float]:
    """Sampled time of some threads in spans that are in order and apart, by row of ``trace.stacks``, in ns.

    `column` is ``duration_ns`` or ``cpu_ns``.
    """
    samples = trace.python_samples
    rows = np.flatnonzero(np.isin(samples.thread, list(threads)) & (samples.duration_ns > 0))
    if len(rows) == 0 or len(starts) == 0:
        return {}
    shared = covered_ns(starts, ends, *spans_seen(trace, rows)) / samples.duration_ns[rows] * samples[column][rows]
    stacks = samples.stack[rows]
    totals = np.bincount(stacks, shared)
    return {int(stack): float(totals[stack]) for stack in np.flatnonzero(totals > 0)}
