# SPDX-License-Identifier: Apache-2.0
"""Rules, and the causes that they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.replay import Edit
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.steps import Array

LEAST = 0.02
"""Default limit, below 3 %: a cause of 3 % is found even if its share in the recorded steps varies."""
LEAST_OF_KERNELS = 0.025
"""Limit of rules with an upper bound as saving: they assume that nothing else limits the kernels."""

SPECIAL, GENERAL, UNSPECIFIC = 1.5, 0.8, 0.5
"""Weights of rules: see `Rule`."""

SHORTEST_KERNEL_NS = 2_000
"""An empty kernel takes about as long."""


@dataclass(frozen=True, eq=False)
class Cause:
    """A cause of lost time, found by a rule.

    Attributes:
        title: the problem.
        advice: the change that removes it.
        edit: the effect of the change on the program, at least in the replayed steps (`Context.in_replay`).
        where: the places in the program.
        evidence: figures by name; "" if the figure needs no name.
        share: share of the time that the cause concerns, if no saving can be predicted; None otherwise.
        is_rare: the cause is not in each step, and is judged by the whole run.
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
    """A pure function from a recording to causes; no rule reads another's results.

    Attributes:
        id: its name in results.
        summary: the cause that it looks for.
        find: returns the causes in a recording.
        limit: least share of the time of the steps for a finding.
        weight: of two causes with nearly the same saving, the one with the larger weight comes first. `SPECIAL` rules
            explain why, rules of weight 1 say what, `GENERAL` rules find a wait or own code around it, and
            `UNSPECIFIC` ones are about launching.
        is_note: its findings are no faults and do not change the verdict.
        needs: returns a sentence on missing data that the rule reads; None if nothing is missing.
    """

    id: str
    summary: str
    find: Callable[[Context], Iterable[Cause]]
    limit: float
    needs: Callable[[Context], str | None] = lambda context: None
    weight: float = 1.0
    is_note: bool = False


def needs(missing: str, has: Callable[[Context], object]) -> Callable[[Context], str | None]:
    """For `Rule.needs`: the sentence `missing` if the recording does not have the data."""
    return lambda context: None if has(context) else missing


def count_of(count: int, noun: str, several: str = "") -> str:
    """A number of things: "1 step", "2 steps"."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def places(*found: Where | None) -> tuple[Where, ...]:
    """The known places."""
    return tuple(each for each in found if each is not None)


def kernel_edit(context: Context, work: Array, factors: Array) -> Edit:
    """Shortens these kernels to `factors` of their time."""
    assert context.device is not None
    chosen = context.in_replay(context.work_launch[work])
    return Edit(kernels=context.device.work.rows[work[chosen]], kernel_factors=factors[chosen])


def host_edit(context: Context, pieces: Array, causes: Sequence[IdleCause] = ()) -> Edit:
    """Removes the host time of launching threads between the begin of the idle pieces and their launch.

    With `causes`, removes only the time of the causes, at the end: an earlier wait for data remains.
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
