# SPDX-License-Identifier: Apache-2.0
"""The program waits for the GPU, which then has nothing left to do.

A wait while the GPU works costs nothing by itself. What it costs is the idle time after it, and no more of that than
the host had waited: without the wait it would be ahead by so much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from functools import partial

import numpy as np

from gpuscope._core import CallKind, CopyKind, MemoryKind
from gpuscope.diagnosis.claims import HOST, WAITING, Claim
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import Cause, Rule, places
from gpuscope.diagnosis.steps import Array, count_before, distinct
from gpuscope.units import format_bytes, format_digits, format_seconds

SMALL_COPY_BYTES = 64 << 10
"""Pageable copies to the GPU up to this size are staged by the driver and return at once (CUDA driver API, API
synchronization behavior); as large a copy to the host is still a value that is read."""

# torch's operators that read values of the GPU.
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
    """What each of these calls that wait is about."""
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
    """Of each of these calls the one that copies what it waits for, a row of ``trace.api``; -1 without.

    A framework copies without waiting and then waits for the stream.
    """
    if not context.once(_has_copies):
        return np.full(len(calls), -1)
    found = np.where(_copies(context, calls), calls, context.call_before[calls])
    found[~_copies(context, found)] = -1
    return found


def drained(context: Context, kind: str) -> tuple[Array, Array]:
    """The idle pieces that begin with a wait of this kind, by the name of a `_Wait`, and the call of each."""
    pieces, calls, kinds = context.once(_draining)
    chosen = np.flatnonzero(kinds == _Wait[kind].value)
    return pieces[chosen], calls[chosen]


def _draining(context: Context) -> tuple[Array, Array, Array]:
    """The idle pieces that begin with a wait, the call of each, and what that is about."""
    pieces = context.pieces.heads
    calls = context.pieces.drain[pieces]
    return pieces, calls, _kinds(context, calls) if len(calls) else calls


def _pieces_until_next(context: Context) -> Array:
    """From each idle piece that begins with a wait to the next such piece, how many there are; 0 for the others."""
    heads, count = context.pieces.heads, len(context.pieces)
    found = np.zeros(count, np.int64)
    found[heads] = np.diff(heads, append=count)
    return found


def claim_of(context: Context, heads: Array, beside_ns: Array | None = None) -> Claim:
    """What is idle after these waits until the next wait, as far as the host would be ahead without them.

    `heads` are the idle pieces that begin with them, in order. The host would be ahead by as long as it waits, and by
    what each takes beside the waiting.
    """
    pieces = context.pieces
    if len(heads) == 0:
        return Claim()
    count = context.once(_pieces_until_next)[heads]
    first = np.cumsum(count) - count  # among the rows of all
    rows = np.repeat(heads - first, count)
    rows += np.arange(len(rows))
    there = pieces.sum_of(HOST, rows)
    ahead = (pieces.waited_ns[heads] + pieces.sum_of(WAITING, heads)).astype(np.float64)
    if beside_ns is not None:
        ahead += beside_ns
    before = np.cumsum(there)
    before -= there
    most = np.repeat(ahead + before[first], count)
    most -= before
    np.clip(most, 0, there, out=most)
    kept = most > 0
    return Claim(rows[kept], HOST, most[kept])


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
        # One from before the steps may have left the GPU without work in the first.
        count = max(int((context.call_step[waits] >= 0).sum()), 1) / len(context.steps)
        name = context.trace.string(int(context.trace.calls.name[api.call[waits[0]]]))
        mean = float(api.duration_ns[waits].mean()) / 1e9
        evidence = {"": f"{format_digits(count)} times a step", f"{name} waits": f"{format_seconds(mean)} each"}
        if kind != "SYNCHRONIZE" and len(copies := _copies_of(context, waits)):
            evidence["for"] = format_bytes(float(np.median(context.column("memcpy", "bytes", copies))))
        starts, ends = _calls_around(context, waits)
        beside = np.maximum(ends - starts - api.duration_ns[waits], 0)
        heading = count_before(waits, calls[group], equal=False)  # among the waits, which are in order
        more = np.isin(waits, idle) if len(idle) else np.zeros(len(waits), bool)
        if more.any():
            first = heading[np.argsort(api.start_ns[calls[group]], kind="stable")]
            after = np.searchsorted(api.start_ns[waits[first]], api.start_ns[waits[more]]) - 1
            np.add.at(beside, first[np.maximum(after, 0)], np.where(after >= 0, ends[more] - starts[more], 0))
        asked = context.in_replay(waits)
        if kind == "PINNED_COPY":  # which is made all the same
            claim, edit = claim_of(context, heads[group]), Edit(unwaited=waits[asked])
        else:
            claim, edit = (
                claim_of(context, heads[group], beside[heading]),
                _edit(context, waits[asked], starts[asked], ends[asked], kind),
            )
        if kind == "VALUE":  # nor is what is read copied
            read = context.copy_of_call[_reading(context, waits, starts)]
            work = read[(read >= 0) & (context.work_step[read] >= 0)]
            claim = replace(claim, work=work, work_ns=context.exposed_ns(work))
        yield Cause(title, advice, claim, edit, places(where), evidence)


def _on_idle(context: Context, drains: Array) -> Array:
    """The calls in the steps that synchronize as well, with nothing left to wait for: they take time all the same."""
    calls = np.flatnonzero((context.trace.call_kinds == int(CallKind.SYNC)) & (context.call_step >= 0))
    calls = calls[~np.isin(calls, drains)]
    found: Array = calls[_kinds(context, calls) == _Wait.SYNCHRONIZE.value]
    return found


def _edit(context: Context, waits: Array, starts: Array, ends: Array, kind: str) -> Edit:
    """Without these waits, and the calls of libraries from `starts` to `ends` that wait."""
    spans = np.stack([context.trace.api.thread[waits].astype(np.int64), starts, ends], axis=1)
    if kind == "SYNCHRONIZE":
        return Edit(unwaited=waits, host_spans=spans)
    return Edit(unwaited=waits, removed_calls=_reading(context, waits, starts), host_spans=spans)


def _reading(context: Context, waits: Array, starts: Array) -> Array:
    """The calls that copy what is then waited for, in the calls of libraries that begin at `starts`."""
    copies = _copying(context, waits)
    read = np.flatnonzero(copies >= 0)
    read = read[context.trace.api.start_ns[copies[read]] >= starts[read]]
    return distinct(copies[read], len(context.trace.api))


def _has_copies(context: Context) -> bool:
    return bool((context.trace.call_kinds == int(CallKind.MEMCPY)).any())


def _copies_of(context: Context, waits: Array) -> Array:
    """The copies, as pieces of work, that these calls make or that the calls before them do."""
    if len(context.copies) == 0:
        return np.zeros(0, np.int64)
    found = context.copy_of_call[np.maximum(np.where(_copies(context, waits), waits, context.call_before[waits]), 0)]
    return found[found >= 0]


def _calls_around(context: Context, waits: Array) -> tuple[Array, Array]:
    """From when to when the program is in the call of a library that waits, which launches nothing.

    That is one of Python, as ``torch.cuda.synchronize()``, or the operator that reads a value; without either the wait.
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
    title="a value of the GPU is read, which leaves it without work",
    advice="keep the value on the GPU (sum, compare, torch.where there), or read it each 50 steps only",
)
_pinned = partial(
    _at_lines,
    kind="PINNED_COPY",
    title="a copy of pinned memory is waited for",
    advice="non_blocking=True, and wait for an event only where the data is used",
)
_synchronizes = partial(
    _at_lines,
    kind="SYNCHRONIZE",
    title="an explicit synchronize leaves the GPU without work",
    advice="remove it, or wait for an event; times are read from events without waiting in the loop",
)

RULES = (
    Rule("R10", "copies of pinned memory that are waited for", _pinned, 0.01, is_special=True),
    Rule("R15", "values that are read from the GPU", _values, 0.01),
    Rule("R16", "explicit synchronization", _synchronizes, 0.01),
)
