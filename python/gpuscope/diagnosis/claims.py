# SPDX-License-Identifier: Apache-2.0
"""What time of a GPU findings put down to their causes: no nanosecond counts twice, whoever names it first has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope import _core
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.idle import IdleCause
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.steps import Array

WAITING = (IdleCause.OTHER_GPU, IdleCause.WAKE_UP)
"""What of the idle time the host spends in calls that wait for GPUs."""

HOST = (
    *WAITING,
    IdleCause.COPY_CALL,
    IdleCause.DRIVER_CALL,
    IdleCause.FRAMEWORK,
    IdleCause.HOST_CODE,
    IdleCause.LAUNCH_CALL,
    IdleCause.LAUNCH_LATENCY,
)
"""The causes that a host which was ahead of the GPU would not have: all that have no finding of their own."""


def _none() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Claim:
    """The time that would be saved at most.

    Attributes:
        pieces: entries of the context's idle pieces, each at most once.
        causes: which of their time.
        most_ns: and how much of that at most in each; None for all.
        work: work of the device, each at most once.
        work_ns: how much of each.
    """

    pieces: Array = field(default_factory=_none)
    causes: Sequence[IdleCause] = ()
    most_ns: Array | None = None
    work: Array = field(default_factory=_none)
    work_ns: Array = field(default_factory=_none)


class Ledger:
    """How much of each piece of time nobody has claimed yet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._has = context.pieces.present
        self._idle: dict[IdleCause, Array] = {}  # what is left of a cause, once something of it was taken
        self._work: Array | None = None
        # By claim, which live as long as this: how long its work runs alone, and what it has if nothing of it is taken.
        self._times: dict[int, Array] = {}
        self._whole: dict[int, Array] = {}
        self._is_taken = np.zeros(len(context.pieces), bool)
        self._is_work_taken = np.zeros(len(context.duration_ns), bool)

    def left(self, claim: Claim) -> Array:
        """What is left of a claim in each step, in ns."""
        if self._is_taken[claim.pieces].any() or self._is_work_taken[claim.work].any():
            return self._left(claim)
        if id(claim) not in self._whole:
            self._whole[id(claim)] = self._left(claim)
        return self._whole[id(claim)]

    def _left(self, claim: Claim) -> Array:
        context, count = self._context, len(self._context.steps)
        idle_ns = self._idle_of(claim, take=False)
        # Of no entries, it counts in integers.
        per_step = np.bincount(context.pieces.step[claim.pieces], idle_ns, count).astype(np.float64, copy=False)
        if len(claim.work):
            inside = context.work_step[claim.work] >= 0
            saved = np.minimum(self._work_of(claim), self._time_of(claim))
            per_step += np.bincount(context.work_step[claim.work][inside], saved[inside], count)
        return per_step

    def take(self, claim: Claim) -> None:
        """Takes that: it is gone from then on."""
        self._idle_of(claim, take=True)
        self._is_taken[claim.pieces] = True
        self._is_work_taken[claim.work] = True
        if len(claim.work):
            there = self._work_of(claim)
            if self._work is None:
                self._work = self._context.duration_ns.astype(np.float64)
            self._work[claim.work] -= there

    def _idle_of(self, claim: Claim, *, take: bool) -> Array:
        """What is left in each piece of a claim."""
        causes = [cause for cause in claim.causes if self._has[cause]]
        if take:
            for cause in causes:
                if cause not in self._idle:
                    self._idle[cause] = self._context.pieces.cause_ns[cause].copy()
        left = [self._idle.get(cause, self._context.pieces.cause_ns[cause]) for cause in causes]
        most = None if claim.most_ns is None else claim.most_ns.astype(np.int64)
        return _core.claim_time(left, claim.pieces, most, take)

    def _work_of(self, claim: Claim) -> Array:
        """What is left of each piece of work of a claim."""
        work = self._context.duration_ns if self._work is None else self._work
        found: Array = np.minimum(work[claim.work], claim.work_ns)
        return found

    def _time_of(self, claim: Claim) -> Array:
        """How long each piece of work of a claim ran without one before it: what runs at once takes its time once."""
        if id(claim) not in self._times:
            self._times[id(claim)] = self._context.time_ns(claim.work)
        return self._times[id(claim)]


def shared_ns(context: Context, one: Claim, other: Claim) -> float:
    """The time that both claim, limits left aside."""
    pieces, work = (np.zeros(count, bool) for count in (len(context.pieces), len(context.duration_ns)))
    pieces[one.pieces], work[one.work] = True, True
    rows = other.pieces[pieces[other.pieces]]
    causes = sorted(set(map(int, one.causes)) & set(map(int, other.causes)))
    both = other.work[work[other.work]]
    idle_ns = sum(int(context.pieces.cause_ns[cause][rows].sum()) for cause in causes)
    return float(idle_ns) + float(context.duration_ns[both].sum())


def late_claim(context: Context, cause: IdleCause, pieces: Array, spans: Array) -> Claim:
    """What these idle pieces have of a cause, and what the host did late because of it.

    A launching thread that had not stood still would be ahead by all the time that it did so, of which some passed
    before the GPU was idle: what it does until its launch would not keep the GPU waiting as far.

    Args:
        context: the recording.
        cause: why the thread stood still.
        pieces: entries of the context's idle pieces.
        spans: when it did: rows of a thread, a start and an end in ns; those of a thread in order and apart.
    """
    idle = context.pieces
    threads = np.append(context.trace.api.thread.astype(np.int64), context.main_thread)[idle.launch[pieces]]
    ahead = np.zeros(len(pieces))
    for thread in np.unique(threads).tolist():
        here = np.flatnonzero(threads == thread)
        own = spans[spans[:, 0] == thread]
        before = np.append(0, np.cumsum(own[:, 2] - own[:, 1]))
        first = np.searchsorted(own[:, 2], idle.start_ns[pieces[here]], side="right")
        last = np.searchsorted(own[:, 1], idle.end_ns[pieces[here]], side="left")
        ahead[here] = before[np.maximum(last, first)] - before[first]
    return Claim(pieces, (cause, *HOST), np.maximum(ahead, idle.cause_ns[cause, pieces]))


def kernel_edit(context: Context, work: Array, factors: Array) -> Edit:
    """Of each of these kernels so much remains."""
    assert context.device is not None
    chosen = context.in_replay(context.work_launch[work])
    return Edit(kernels=context.device.work.rows[work[chosen]], kernel_factors=factors[chosen])


def host_edit(context: Context, pieces: Array, causes: Sequence[IdleCause] = ()) -> Edit:
    """The launching threads no longer spend what lies between the beginning of these idle pieces and their launch.

    With `causes` it is the end of that, as long as these took: what was before, as a wait for data, is left.
    """
    idle, api = context.pieces, context.trace.api
    known = pieces[(idle.launch[pieces] >= 0) & context.in_replay(idle.launch[pieces])]
    calls = idle.launch[known]
    until = np.minimum(idle.end_ns[known], api.start_ns[calls] + api.duration_ns[calls])
    since = idle.start_ns[known]
    if causes:
        since = np.maximum(since, until - idle.sum_of(causes, known))
    spans = np.stack([api.thread[calls].astype(np.int64), since, until], axis=1)
    return Edit(host_spans=spans[spans[:, 2] > spans[:, 1]])
