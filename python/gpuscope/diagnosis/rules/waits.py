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
    kinds = context.call_kind[calls]
    before = context.call_before[calls]
    # A framework copies without waiting and then waits for the stream.
    copying = np.where(kinds == int(CallKind.MEMCPY), calls, np.where(before >= 0, before, 0))
    follows = (kinds == int(CallKind.MEMCPY)) | ((before >= 0) & (context.call_kind[copying] == int(CallKind.MEMCPY)))
    copy = np.where(follows, context.copy_of_call[copying], -1)
    known = copy >= 0
    size, source, target, way = (
        np.where(known, context.column("memcpy", name, np.where(known, copy, context.copies[0])), 0)
        if len(context.copies)
        else np.zeros(len(calls), int)
        for name in ("bytes", "source", "destination", "kind")
    )
    to_host = way == int(CopyKind.DEVICE_TO_HOST)
    pageable = (source == int(MemoryKind.PAGEABLE)) | (target == int(MemoryKind.PAGEABLE))
    found = np.full(len(calls), _Wait.SYNCHRONIZE.value)
    found[known & ~pageable] = _Wait.PINNED_COPY.value
    found[known & pageable] = _Wait.PAGEABLE_COPY.value
    reads = context.calls_inside(_READS_VALUE.search, calls)
    found[(known & to_host & (size <= SMALL_COPY_BYTES)) | reads] = _Wait.VALUE.value
    found[kinds == int(CallKind.FREE)] = _Wait.FREE.value
    return found


def drained(context: Context, kind: str) -> tuple[Array, Array]:
    """The idle pieces that begin with a wait of this kind, by the name of a `_Wait`, and the call of each."""
    pieces, calls, kinds = context.once(_draining)
    chosen = np.flatnonzero(kinds == _Wait[kind].value)
    return pieces[chosen], calls[chosen]


def _draining(context: Context) -> tuple[Array, Array, Array]:
    """The idle pieces that begin with a wait, the call of each, and what that is about."""
    pieces = np.flatnonzero(context.pieces.drain >= 0)
    calls = context.pieces.drain[pieces]
    return pieces, calls, _kinds(context, calls) if len(calls) else calls


def _segments(context: Context) -> Array:
    """How many idle pieces that begin with a wait there were until each piece, with it."""
    found: Array = np.cumsum(context.pieces.drain >= 0)
    return found


def claim_of(context: Context, heads: Array, beside_ns: Array | None = None) -> Claim:
    """What is idle after these waits until the next wait, as far as the host would be ahead without them.

    It would be by as long as it waits, and by what each takes beside the waiting.
    """
    pieces, segment = context.pieces, context.once(_segments)
    chosen = np.zeros(int(segment[-1]) + 1 if len(segment) else 1, bool)
    chosen[segment[heads]] = True
    rows = np.flatnonzero(chosen[segment])
    if len(rows) == 0:
        return Claim()
    there = pieces.sum_of(HOST, rows)
    ahead = np.zeros(len(chosen))
    ahead[segment[heads]] = pieces.waited_ns[heads] + pieces.sum_of(WAITING, heads)
    if beside_ns is not None:
        ahead[segment[heads]] += beside_ns
    before = np.cumsum(there) - there
    first = np.append(True, segment[rows][1:] != segment[rows][:-1])
    before -= np.repeat(before[first], np.diff(np.append(np.flatnonzero(first), len(rows))))
    most = np.clip(ahead[segment[rows]] - before, 0, there)
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
        copies = context.copy_of_call[
            np.maximum(np.where(_copies(context, waits), waits, context.call_before[waits]), 0)
        ]
        copies = copies[copies >= 0]
        if len(copies) and kind != "SYNCHRONIZE":
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
    calls = np.flatnonzero((context.call_kind == int(CallKind.SYNC)) & (context.call_step >= 0))
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
    copies = np.where(_copies(context, waits), waits, context.call_before[waits])
    read = (copies >= 0) & _copies(context, np.maximum(copies, 0))
    read &= context.trace.api.start_ns[np.maximum(copies, 0)] >= starts
    return distinct(copies[read], len(context.trace.api))


def _calls_around(context: Context, waits: Array) -> tuple[Array, Array]:
    """From when to when the program is in the call of a library that waits, which launches nothing.

    That is one of Python, as ``torch.cuda.synchronize()``, or the operator that reads a value; without either the wait.
    """
    api = context.trace.api
    starts = api.start_ns[waits]
    ends = starts + api.duration_ns[waits]
    threads = api.thread[waits].astype(np.int64)
    every = np.flatnonzero(np.bincount(threads, minlength=1)).tolist()

    def widen(begins: Array, until: Array, known: Array) -> None:
        for thread in every:
            launches = context.launches_of(thread)
            here = np.flatnonzero(known & (threads == thread))
            if len(launches):
                after = count_before(launches, begins[here], equal=False)
                has_none = (after == len(launches)) | (launches[np.minimum(after, len(launches) - 1)] >= until[here])
                here = here[has_none]
            starts[here], ends[here] = np.minimum(starts[here], begins[here]), np.maximum(ends[here], until[here])

    regions = context.outermost_regions(_READS_VALUE.search, waits)
    known = regions >= 0
    table = context.trace.regions
    if known.any():
        begins = np.where(known, table.start_ns[np.maximum(regions, 0)], starts)
        widen(begins, np.where(known, begins + table.duration_ns[np.maximum(regions, 0)], ends), known)
    functions, rows = context.trace.python_functions, context.library_calls
    for thread in every if len(rows) else ():
        own = rows[functions.thread[rows] == thread]
        if len(own) == 0:
            continue
        own = own[np.argsort(functions.start_ns[own], kind="stable")]
        begins = functions.start_ns[own]
        at = np.maximum(count_before(begins, api.start_ns[waits], equal=True) - 1, 0)
        until = (begins + functions.duration_ns[own])[at]
        inside = (threads == thread) & (begins[at] <= api.start_ns[waits])
        inside &= until >= api.start_ns[waits] + api.duration_ns[waits]
        widen(begins[at], until, inside)
    return starts, ends


def _copies(context: Context, calls: Array) -> Array:
    copying: Array = context.call_kind[calls] == int(CallKind.MEMCPY)
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
