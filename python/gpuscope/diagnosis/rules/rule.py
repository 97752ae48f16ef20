# SPDX-License-Identifier: Apache-2.0
"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuscope.diagnosis.claims import Claim
from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.replay import Edit

LEAST = 0.02
"""The usual limit of a rule: a cause of 3 % is found, though its share in the recorded steps varies."""
LEAST_OF_KERNELS = 0.025
"""That of rules which tell the most that kernels could save, as if nothing but what they say held them up."""


SHORTEST_KERNEL_NS = 2_000
"""An empty kernel takes about as long."""


@dataclass(frozen=True, eq=False)
class Cause:
    """One thing that costs time, as a rule found it.

    Attributes:
        title: what is wrong.
        advice: what to change.
        claim: the time that would be saved at most.
        edit: what of the program would change, at least in the steps that are replayed (`Context.in_replay`).
        where: the places in the program.
        evidence: figures by name; "" for one that says itself what it is.
        share: the time that it is about where that is not what would be saved; then no saving is told.
        is_rare: it does not come in each step, and is judged by the whole run.
    """

    title: str
    advice: str
    claim: Claim
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
        is_special: it says why there is what a more general rule finds too: of the two, this comes first unless it is
            about much less.
        is_note: what it finds is no fault, and leaves the verdict as it is.
        needs: a sentence on what the recording lacks that this rule reads; None when it lacks nothing.
    """

    id: str
    summary: str
    find: Callable[[Context], Iterable[Cause]]
    limit: float
    needs: Callable[[Context], str | None] = lambda context: None
    is_special: bool = False
    is_note: bool = False


def count_of(count: int, noun: str, several: str = "") -> str:
    """A number of things: "1 step", "2 steps"."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def places(*found: Where | None) -> tuple[Where, ...]:
    """Those that are known."""
    return tuple(each for each in found if each is not None)
