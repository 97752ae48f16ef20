# SPDX-License-Identifier: Apache-2.0
"""What a comparison of two versions of a program finds: changes of nodes, both sides, doubts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.diagnosis.findings import Diagnosis, Finding
from gpuscope.diagnosis.steps import WHOLE_RUN, Steps
from gpuscope.trace import Trace
from gpuscope.units import format_share

ENOUGH_RUNS = 3
"""Recordings a side from which on they are compared with each other, instead of their steps."""
LEAST_STEPS = 4
SAME_PROGRAM = 0.8
"""The share of the time that must be of nodes that both have; with less they are two programs."""
NO_STEPS = "nothing repeats, so that windows of time are compared and not work; mark steps by gpuscope.step()"

_WORTH_A_WORD = 0.1
_NS_PER_S = 1e9
_NUMBERS = re.compile(r"\d+")


def is_windows(source: str) -> bool:
    """Whether steps that were found so are windows of time, or the whole run."""
    return source.startswith("windows") or source == WHOLE_RUN


@dataclass(frozen=True)
class Change:
    """What a node takes before and after, a step. Times in ns.

    Attributes:
        kind: "step", "gpu", "host" or "idle".
        path: the regions around it, outermost first.
        name: of the kernel, copy, region or cause, as it is after.
        before_ns: mean a step.
        after_ns: likewise.
        interval_ns: 95 % interval of the difference, by Student's t of the steps or runs; infinite with too few.
        count_before: how often a step; 0 of idle time and steps.
        count_after: likewise.
        verdict: "slower" and "faster" where each takes another time, "more often" and "less often" where the number
            is what changed, "new", "gone", "same" where the interval lies within the margin, or "inconclusive".
        was: the name before, where it is another.
    """

    kind: str
    path: tuple[str, ...]
    name: str
    before_ns: float
    after_ns: float
    interval_ns: tuple[float, float]
    count_before: float
    count_after: float
    verdict: str
    was: str | None = None

    @property
    def delta_ns(self) -> float:
        """How much more it takes after."""
        return self.after_ns - self.before_ns

    @property
    def ratio(self) -> float:
        """After over before; infinite for what is new."""
        return self.after_ns / self.before_ns if self.before_ns else math.inf if self.after_ns else 1.0

    @property
    def slower_ns(self) -> float:
        """The part of the difference that comes of how long each takes."""
        if not (self.count_before and self.count_after):
            return 0.0 if self.count_before or self.count_after else self.delta_ns
        return self.count_after * (self.after_ns / self.count_after - self.before_ns / self.count_before)

    @property
    def more_often_ns(self) -> float:
        """The part that comes of how many there are."""
        return self.delta_ns - self.slower_ns

    def to_dict(self) -> dict[str, Any]:
        """Plain values, times in seconds a step."""
        return {
            "kind": self.kind,
            "path": list(self.path),
            "name": self.name,
            "was": self.was,
            "verdict": self.verdict,
            "before": self.before_ns / _NS_PER_S,
            "after": self.after_ns / _NS_PER_S,
            "difference": self.delta_ns / _NS_PER_S,
            "interval": [end / _NS_PER_S for end in self.interval_ns],
            "count_before": self.count_before,
            "count_after": self.count_after,
            "slower": self.slower_ns / _NS_PER_S,
            "more_often": self.more_often_ns / _NS_PER_S,
        }


@dataclass(frozen=True)
class Promise:
    """What a diagnosis of the recording before said that a fix would save.

    Attributes:
        id: of the finding, as R15.
        title: its title.
        saving: the share of a step that was promised; None where it was not known.
        is_gone: the diagnosis of the recording after does not find it, nor as a small thing more than half of it; None
            where that recording lacks what it is found by.
        is_bound: the saving is the most that could be had.
    """

    id: str
    title: str
    saving: float | None
    is_gone: bool | None
    is_bound: bool = False

    @property
    def worth(self) -> str:
        """What was promised, in words."""
        if self.saving is None:
            return "nothing"
        return f"{'at most ' * self.is_bound}{format_share(self.saving)}"

    @property
    def state(self) -> str:
        """Whether it is gone, in words."""
        if self.is_gone is None:
            return "may be gone: the recording after lacks what it is found by"
        return "is gone" if self.is_gone else "is still there"


def promises_of(before: Diagnosis, after: Diagnosis) -> tuple[Promise, ...]:
    """The findings before. Of those that say the same, as many are still there as after says it."""
    large, small = ([part for each in of for part in (each, *each.parts)] for of in (after.findings, after.small))
    left = [*large, *small]
    there = set()
    for alike in (_at_same_place, _same):
        for number, finding in enumerate(before.findings):
            others = (each for each in left if alike(finding, each))
            other = next((each for each in others if each not in small or 2 * _size(each) > _size(finding)), None)
            if other is not None and number not in there:
                there.add(number)
                left.remove(other)
    sees_gpus = _has_gpus(after) or not _has_gpus(before)

    def is_gone(number: int, finding: Finding) -> bool | None:
        if number in there:
            return False
        return True if sees_gpus and finding.id not in after.blind else None

    return tuple(
        Promise(each.id, each.title, each.saving, is_gone(number, each), each.is_bound)
        for number, each in enumerate(before.findings)
    )


def _has_gpus(found: Diagnosis) -> bool:
    return found.breakdown is not None and bool(found.breakdown.devices)


def _size(finding: Finding) -> float:
    return finding.share if finding.saving is None else finding.saving


def _same(one: Finding, other: Finding) -> bool:
    """Whether they are of one cause: a rule may know several, which have their titles."""
    return one.id == other.id and _NUMBERS.sub("#", one.title) == _NUMBERS.sub("#", other.title)


def _at_same_place(one: Finding, other: Finding) -> bool:
    """Whether they are of one cause, and of one function or kernel."""
    return _same(one, other) and _place(one) == _place(other)


def _place(finding: Finding) -> list[tuple[str | None, ...]]:
    """Where most of it is, without the line: lines move with what is changed above them."""
    return [(at.file, at.function, at.region, at.kernel) for at in finding.where[:1]]


@dataclass(frozen=True)
class Side:
    """One side.

    Attributes:
        program: what ran.
        runs: recordings.
        steps: of all of them, those looked at.
        left_out: steps that were not, as they start up or are cut.
        source: how the steps were found, as words: of windows if any recording has none, else of the first.
        busy_ns: how long the busiest GPU worked, mean a step.
        incomplete: why recordings are incomplete, as their audits say.
    """

    program: str
    runs: int
    steps: int
    left_out: int
    source: str
    busy_ns: float
    incomplete: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class MedianStep:
    """The step of a recording that takes as long as half of them.

    Attributes:
        trace: the recording.
        steps: those that it was found among.
        number: which of these it is; -1 where there are none.
    """

    trace: Trace
    steps: Steps
    number: int

    @classmethod
    def of(cls, trace: Trace, steps: Steps) -> MedianStep:
        """That of these steps."""
        order = np.argsort(steps.durations_ns, kind="stable").tolist()
        return cls(trace, steps, order[(len(order) - 1) // 2] if order else -1)


@dataclass(frozen=True, repr=False, eq=False)
class Differences:
    """What was found of two sides, without its texts.

    Attributes:
        step: of the time of a step.
        changes: nodes that changed, certainly (5 % over all of them together, by Holm's method) and by more than the
            margin, those with the largest difference in time first.
        nodes: all nodes, likewise.
        before: the first side.
        after: the second.
        unlike: what was not the same of the two, a sentence each.
        matched: the share of the time that is of nodes which both sides have.
        margin: the share of a node's time below which a difference does not count.
        promises: what the diagnosis before promised.
        replicates: "steps" or "runs": what the intervals come from.
        medians: the median step of the first recording of each side.
    """

    step: Change
    changes: tuple[Change, ...]
    nodes: tuple[Change, ...]
    before: Side
    after: Side
    unlike: tuple[str, ...]
    matched: float
    margin: float
    promises: tuple[Promise, ...]
    replicates: str
    medians: tuple[MedianStep, MedianStep]

    @property
    def verdict(self) -> str:
        """That of a step."""
        return self.step.verdict

    @property
    def uncertain(self) -> tuple[Change, ...]:
        """Nodes that may be a tenth of the difference of a step or more, and cannot be told from chance."""
        least = _WORTH_A_WORD * abs(self.step.delta_ns)
        of = (node for node in self.nodes if node.verdict == "inconclusive" and abs(node.delta_ns) > least)
        return tuple(of) if self.verdict in ("slower", "faster") else ()

    @property
    def has_steps(self) -> bool:
        """Whether steps are the program's, or at least what repeats in it."""
        return not any(is_windows(side.source) for side in (self.before, self.after))

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a reader should know before believing it, a sentence each."""
        found = list(self.unlike)
        for name, side in (("before", self.before), ("after", self.after)):
            found += [f"the recording {name} is incomplete: {reason}" for reason in side.incomplete]
        if not self.has_steps:
            found.append(NO_STEPS)
        if self.matched < SAME_PROGRAM:
            found.append(f"only {format_share(self.matched)} of the time is of what both have: these are two programs")
        if self.replicates == "steps":
            if min(self.before.steps, self.after.steps) < LEAST_STEPS:
                found.append(f"fewer than {LEAST_STEPS} steps on a side cannot say what is chance; record more")
            found.append(
                "the intervals know how steps differ, not how runs do: "
                f"give {ENOUGH_RUNS} recordings or more a side to tell a change from another day"
            )
        return tuple(found)
