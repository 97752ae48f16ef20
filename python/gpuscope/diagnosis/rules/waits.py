# SPDX-License-Identifier: Apache-2.0
"""The program waits for the GPU, which then runs out of work.

A wait costs the idle time after it, but at most its own length: without the wait the host would be that far ahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import partial

import numpy as np

from gpuscope._core import CallKind, CopyKind, MemoryKind
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import GENERAL, SPECIAL, Cause, Rule, places
from gpuscope.spans import count_before
from gpuscope.steps.steps import Array, distinct
from gpuscope.units import format_bytes, format_digits, format_seconds

SMALL_COPY_BYTES = 64 << 10
"""Pageable copies to the GPU up to this size are staged by the driver and return at once (CUDA driver API, API
synchronization behavior). A copy to the host of up to this size counts as reading a value."""

# torch's operators that read values from the GPU.
_READS_VALUE = re.compile(
    r"_local_scalar_dense|^aten::(item|is_nonzero|nonzero|equal|masked_select|unique)|^aten::_?unique"
)
_MOST_LINES = 4


class _Wait(Enum):
    VALUE = 0
    PAGEABLE_COPY = 1
    PINNED_COPY = 2
    SYNCHRONIZE = 3
    FREE = 4


def _kinds(context: Context, calls: Array) -> Array:
    """The kind of each wait, a `_Wait`."""
    found = np.full(len(calls), _Wait.SYNCHRONIZE.value, np.uint8)
    copying = _copying(context, calls)
    known = np.flatnonzero(copying >= 0)
    copy = context.copy_of_call[copying[known]]
    known, copy = known[copy >= 0], copy[copy >= 0]
    if len(known):
        size, source, target, way = (
            context.column("memcpy", name, copy) for name in ("bytes", "source", "destination", "kind")
        )
        pageable = (source == int(MemoryKind.PAGEABLE)) | (target == int(MemoryKind.PAGEABLE))
        found[known] = np.where(pageable, _Wait.PAGEABLE_COPY.value, _Wait.PINNED_COPY.value)
        found[known[(way == int(CopyKind.DEVICE_TO_HOST)) & (size <= SMALL_COPY_BYTES)]] = _Wait.VALUE.value
    found[context.calls_inside(_READS_VALUE.search, calls)] = _Wait.VALUE.value
    found[context.trace.call_kinds[calls] == int(CallKind.FREE)] = _Wait.FREE.value
    return found


def _copying(context: Context, calls: Array) -> Array:
    """For each wait the call that makes the copy it waits for, a row of ``trace.api``; -1 without one.

    A framework copies asynchronously and then waits for the stream.
    """
    if not context.once(_has_copies):
        return np.full(len(calls), -1)
    found = np.where(_copies(context, calls), calls, context.call_before[calls])
    found[~_copies(context, found)] = -1
    return found


def drained(context: Context, kind: str) -> tuple[Array, Array]:
    """The idle pieces that begin with a wait of this kind, a name of `_Wait`, and the call of each."""
    pieces, calls, kinds = context.once(_draining)
    chosen = np.flatnonzero(kinds == _Wait[kind].value)
    return pieces[chosen], calls[chosen]


def _draining(context: Context) -> tuple[Array, Array, Array]:
    """The idle pieces that begin with a wait, the call of each, and its kind."""
    pieces = context.pieces.heads
    calls = context.pieces.drain[pieces]
    return pieces, calls, _kinds(context, calls) if len(calls) else calls


def _at_lines(context: Context, kind: str, title: str, advice: str) -> Iterator[Cause]:
    heads, calls = drained(context, kind)
    if len(heads) == 0:
        return
    weights = context.pieces.waited_ns[heads]
    idle = _on_idle(context, calls) if kind == "SYNCHRONIZE" else calls[:0]
    at_line = dict(context.lines(idle, np.ones(len(idle))))
    for where, group in context.lines(calls, weights)[:_MOST_LINES]:
        api = context.trace.api
        waits = distinct(np.append(calls[group], idle[at_line[where]] if where in at_line else idle[:0]), len(api))
        # A wait before the steps may leave the GPU idle in the first step.
        count = max(int((context.call_step[waits] >= 0).sum()), 1) / len(context.steps)
        name = context.trace.string(int(context.trace.calls.name[api.call[waits[0]]]))
        mean = float(api.duration_ns[waits].mean()) / 1e9
        evidence = {"": f"{format_digits(count)} times a step", f"{name} waits": f"{format_seconds(mean)} each"}
        if kind != "SYNCHRONIZE" and len(copies := _copies_of(context, waits)):
            evidence["for"] = format_bytes(float(np.median(context.column("memcpy", "bytes", copies))))
        starts, ends = _calls_around(context, waits)
        asked = context.in_replay(waits)
        if kind == "PINNED_COPY":  # the copy remains
            edit = Edit(unwaited=waits[asked])
        else:
            edit = _edit(context, waits[asked], starts[asked], ends[asked], kind)
        yield Cause(title, advice, edit, places(where), evidence)


def _on_idle(context: Context, drains: Array) -> Array:
    """Calls in the steps that synchronize while the GPU is already idle: they take time too."""
    calls = np.flatnonzero((context.trace.call_kinds == int(CallKind.SYNC)) & (context.call_step >= 0))
    calls = calls[~np.isin(calls, drains)]
    found: Array = calls[_kinds(context, calls) == _Wait.SYNCHRONIZE.value]
    return found


def _edit(context: Context, waits: Array, starts: Array, ends: Array, kind: str) -> Edit:
    """Removes these waits, and the library calls around them, from `starts` to `ends`."""
    spans = np.stack([context.trace.api.thread[waits].astype(np.int64), starts, ends], axis=1)
    if kind == "SYNCHRONIZE":
        return Edit(unwaited=waits, host_spans=spans)
    return Edit(unwaited=waits, removed_calls=_reading(context, waits, starts), host_spans=spans)


def _reading(context: Context, waits: Array, starts: Array) -> Array:
    """The calls that make the copies these calls wait for, in library calls that begin at `starts`."""
    copies = _copying(context, waits)
    read = np.flatnonzero(copies >= 0)
    read = read[context.trace.api.start_ns[copies[read]] >= starts[read]]
    return distinct(copies[read], len(context.trace.api))


def _has_copies(context: Context) -> bool:
    return bool((context.trace.call_kinds == int(CallKind.MEMCPY)).any())


def _copies_of(context: Context, waits: Array) -> Array:
    """The copies, as work, that these calls or the calls before them make."""
    if len(context.copies) == 0:
        return np.zeros(0, np.int64)
    found = context.copy_of_call[np.maximum(np.where(_copies(context, waits), waits, context.call_before[waits]), 0)]
    return found[found >= 0]


def _calls_around(context: Context, waits: Array) -> tuple[Array, Array]:
    """Start and end of the library call around each wait, if it launches nothing.

    It is a Python call such as ``torch.cuda.synchronize()``, or the operator that reads a value; otherwise the wait.
    """
    api = context.trace.api
    starts = api.start_ns[waits]
    ends = starts + api.duration_ns[waits]
    threads = api.thread[waits]
    every = np.flatnonzero(np.bincount(threads, minlength=1)).tolist()

    def widen(rows: Array, begins: Array, until: Array) -> None:
        for thread in every:
            launches = context.launches_of(thread)
            own, first, last = rows, begins, until
            if len(every) > 1:
                here = threads[rows] == thread
                own, first, last = rows[here], begins[here], until[here]
            if len(launches):
                after = count_before(launches, first, equal=False)
                has_none = (after == len(launches)) | (launches[np.minimum(after, len(launches) - 1)] >= last)
                own, first, last = own[has_none], first[has_none], last[has_none]
            starts[own], ends[own] = np.minimum(starts[own], first), np.maximum(ends[own], last)

    regions = context.outermost_regions(_READS_VALUE.search, waits)
    known = np.flatnonzero(regions >= 0)
    table = context.trace.regions
    if len(known):
        begins = table.start_ns[regions[known]]
        widen(known, begins, begins + table.duration_ns[regions[known]])
    functions, library = context.trace.python_functions, context.library_calls
    for thread in every if len(library) else ():
        own = library[functions.thread[library] == thread]
        if len(own) == 0:
            continue
        own = own[np.argsort(functions.start_ns[own], kind="stable")]
        begins = functions.start_ns[own]
        at = np.maximum(count_before(begins, api.start_ns[waits], equal=True) - 1, 0)
        until = (begins + functions.duration_ns[own])[at]
        inside = (threads == thread) & (begins[at] <= api.start_ns[waits])
        inside &= until >= api.start_ns[waits] + api.duration_ns[waits]
        rows = np.flatnonzero(inside)
        widen(rows, begins[at[rows]], until[rows])
    return starts, ends


def _copies(context: Context, calls: Array) -> Array:
    copying: Array = context.trace.call_kinds[calls] == int(CallKind.MEMCPY)
    return copying


_values = partial(
    _at_lines,
    kind="VALUE",
    title="reading a value from the GPU leaves it idle",
    advice="keep the value on the GPU (sum, compare, torch.where there), or read it only every 50 steps",
)
_pinned = partial(
    _at_lines,
    kind="PINNED_COPY",
    title="the program waits for a copy of pinned memory",
    advice="use non_blocking=True, and wait for an event before the data is used",
)
_synchronizes = partial(
    _at_lines,
    kind="SYNCHRONIZE",
    title="an explicit synchronize leaves the GPU idle",
    advice="remove it, or wait for an event; to measure times, read events after the loop",
)

RULES = (
    Rule("R10", "waits for copies of pinned memory", _pinned, 0.01, weight=SPECIAL),
    Rule("R15", "values read from the GPU", _values, 0.01, weight=GENERAL),
    Rule("R16", "explicit synchronization", _synchronizes, 0.01, weight=GENERAL),
)
