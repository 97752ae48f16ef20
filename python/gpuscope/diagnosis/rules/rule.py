# SPDX-License-Identifier: Apache-2.0
"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.idle import IdleCause
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.steps import Array

LEAST = 0.02
"""The usual limit of a rule: a cause of 3 % is found, though its share in the recorded steps varies."""
LEAST_OF_KERNELS = 0.025
"""That of rules which tell the most that kernels could save, as if nothing but what they say held them up."""

SPECIAL, GENERAL, UNSPECIFIC = 1.5, 0.8, 0.5
"""Weights of rules: see `Rule`."""

SHORTEST_KERNEL_NS = 2_000
"""An empty kernel takes about as long."""


@dataclass(frozen=True, eq=False)
class Cause:
    """One thing that costs time, as a rule found it.

    Attributes:
        title: what is wrong.
        advice: what to change.
        edit: what of the program would change, at least in the steps that are replayed (`Context.in_replay`).
        where: the places in the program.
        evidence: figures by name; "" for one that says itself what it is.
        share: the time that it is about where that is not what would be saved; then no saving is told.
        is_rare: it does not come in each step, and is judged by the whole run.
    """

    title: str
    advice: str
    edit: Edit = field(default_factory=Edit)
    where: tuple[Where, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)
    share: float | None = None
    is_rare: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule: a pure function from what was recorded to causes; none reads another.

    Attributes:
        id: its name in results.
        summary: what it looks for.
        find: the causes in a recording.
        limit: the share of the time of the steps below which a cause is no finding.
        weight: of two causes with much the same saving the one with the larger weight comes first: a rule that says why
            (`SPECIAL`) before one that says what, that before a wait or own code around it (`GENERAL`), and launching
            last (`UNSPECIFIC`).
        is_note: what it finds is no fault, and leaves the verdict as it is.
        needs: a sentence on what the recording lacks that this rule reads; None when it lacks nothing.
    """

    id: str
    summary: str
    find: Callable[[Context], Iterable[Cause]]
    limit: float
    needs: Callable[[Context], str | None] = lambda context: None
    weight: float = 1.0
    is_note: bool = False


def count_of(count: int, noun: str, several: str = "") -> str:
    """A number of things: "1 step", "2 steps"."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def places(*found: Where | None) -> tuple[Where, ...]:
    """Those that are known."""
    return tuple(each for each in found if each is not None)


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
