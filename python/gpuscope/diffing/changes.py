# SPDX-License-Identifier: Apache-2.0
"""Results of a comparison of two versions of a program: changes of nodes, both sides, doubts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.diagnosis.context import Where
from gpuscope.diagnosis.findings import OWN_CODE, Diagnosis, Finding
from gpuscope.results import Abstention
from gpuscope.steps.steps import WHOLE_RUN, Steps
from gpuscope.targets import Target
from gpuscope.trace import Trace
from gpuscope.units import format_seconds, format_share

ENOUGH_RUNS = 3
"""With this many recordings per side, recordings are compared with each other instead of their steps."""
LEAST_STEPS = 4
LEAST_SHARED = 0.5
"""Two sides are comparable if nodes of both take at least this share of the time of either side."""
ONE_RUN_MARGIN = 0.1
"""The margin for single runs: runs of one program may differ by as much."""
NOT_COMPARABLE = "not comparable"
STEP, RUN = "step", "run"

_WORTH_A_WORD = 0.1
_MOSTLY = 0.8
_TIMES = 1.5  # from here on "2.3 times faster", below "18.2 % faster"
_NS_PER_S = 1e9
_NUMBERS = re.compile(r"\d+")


def is_windows(source: str) -> bool:
    """Whether steps of this source are windows of time, or the whole run."""
    return source.startswith("windows") or source == WHOLE_RUN


@dataclass(frozen=True)
class Change:
    """Time of a node before and after, per step or run. Times in ns.

    Attributes:
        kind: "step", "run", "gpu", "host", "function" or "idle".
        path: the regions around it, outermost first; for a function its file.
        name: of the kernel, copy, region, function or cause, as it is after.
        before_ns: mean per step or run.
        after_ns: likewise.
        interval_ns: of the difference, by steps, by runs, or by samples and calls of one run; infinite with too few.
            In 95 % of comparisons all intervals contain the true differences, so one without 0 is certain.
        count_before: number per step or run; 0 for idle time, functions and steps.
        count_after: likewise.
        verdict: "slower" or "faster" if the time of each one changed; "more often" or "less often" if their number did;
            for idle time "more" or "less"; "new" or "gone"; "same" if the difference is certainly within the margin;
            else "inconclusive" or "not comparable".
        was: the name before, if it is another.
        where_before: a function's line with most of the time, or None.
        where_after: likewise.
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
    where_before: Where | None = None
    where_after: Where | None = None

    @property
    def where(self) -> Where | None:
        """A function's line with most of the time, on the side with more time."""
        if self.after_ns > self.before_ns:
            return self.where_after or self.where_before
        return self.where_before or self.where_after

    @property
    def label(self) -> str:
        """For display: "forward/gemm", "add_tax (etl.py:18)"."""
        if self.kind != "function":
            return "/".join((*self.path, self.name))
        where = self.where or Where()
        name = where.module if self.name == "<module>" else self.name
        return f"{name} ({where})" if where.file else name

    @property
    def size_ns(self) -> tuple[float, float]:
        """The least of the interval of the difference, 0 or below if it is not certain; and the difference."""
        return self.interval_ns[0] if self.delta_ns > 0 else -self.interval_ns[1], abs(self.delta_ns)

    @property
    def times(self) -> str:
        """How the time changed, in words: "3.6 times faster", "4.2 % slower"."""
        if not (self.before_ns and self.after_ns) or self.delta_ns == 0:
            return "the same" if self.delta_ns == 0 else "new" if self.after_ns else "gone"
        times = max(self.ratio, 1 / self.ratio)
        size = f"{times:.1f} times" if times >= _TIMES else f"{100 * abs(self.ratio - 1):.1f} %"
        return f"{size} {'slower' if self.delta_ns > 0 else 'faster'}"

    @property
    def delta_ns(self) -> float:
        """Time after minus time before."""
        return self.after_ns - self.before_ns

    @property
    def ratio(self) -> float:
        """After over before; infinite for a new node."""
        return self.after_ns / self.before_ns if self.before_ns else math.inf if self.after_ns else 1.0

    @property
    def slower_ns(self) -> float:
        """The part of the difference that comes from the time of each one."""
        if not (self.count_before and self.count_after):
            return 0.0 if self.count_before or self.count_after else self.delta_ns
        return self.count_after * (self.after_ns / self.count_after - self.before_ns / self.count_before)

    @property
    def more_often_ns(self) -> float:
        """The part that comes from their number."""
        return self.delta_ns - self.slower_ns

    def to_dict(self) -> dict[str, Any]:
        """Plain values, times in seconds per step or run."""
        return {
            "kind": self.kind,
            "path": list(self.path),
            "name": self.name,
            "was": self.was,
            "verdict": self.verdict,
            "before_s": self.before_ns / _NS_PER_S,
            "after_s": self.after_ns / _NS_PER_S,
            "difference_s": self.delta_ns / _NS_PER_S,
            "interval_s": [end / _NS_PER_S for end in self.interval_ns],
            "count_before": self.count_before,
            "count_after": self.count_after,
            "slower_s": self.slower_ns / _NS_PER_S,
            "more_often_s": self.more_often_ns / _NS_PER_S,
            "where_before": _place_text(self.where_before),
            "where_after": _place_text(self.where_after),
        }


def _place_text(where: Where | None) -> str | None:
    return f"{where.file}:{where.line}" if where is not None and where.file else None


@dataclass(frozen=True)
class Promise:
    """The saving of a finding in the recording before, and whether the finding is gone.

    Attributes:
        id: of the finding's rule, as R15.
        title: its title.
        saving: the promised share of a step; None if it was not known.
        is_gone: True if the recording after does not have it, or has it as a small one of at most half its size. None
            if that recording lacks the data to find it.
        key: of the finding in the recording before.
    """

    id: str
    title: str
    saving: float | None
    is_gone: bool | None
    key: str = ""

    @property
    def worth(self) -> str:
        """The promised saving, in words."""
        return "nothing" if self.saving is None else format_share(self.saving)

    @property
    def state(self) -> str:
        """Whether it is gone, in words."""
        if self.is_gone is None:
            return "may be gone: the recording after lacks the data to find it"
        return "is gone" if self.is_gone else "is still there"


def promises_of(before: Diagnosis, after: Diagnosis) -> tuple[Promise, ...]:
    """The findings before, without own functions, which are compared themselves.

    Several findings of one cause are matched one to one, those of the same place first.
    """
    findings = [each for each in before.findings if each.id != OWN_CODE]
    large, small = ([part for each in of for part in (each, *each.parts)] for of in (after.findings, after.small))
    left = [*large, *small]
    there = set()
    for alike in (_at_same_place, _same):
        for number, finding in enumerate(findings):
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
        Promise(each.id, each.title, each.saving, is_gone(number, each), each.key)
        for number, each in enumerate(findings)
    )


def _has_gpus(found: Diagnosis) -> bool:
    return found.breakdown is not None and bool(found.breakdown.devices)


def _size(finding: Finding) -> float:
    return finding.share if finding.saving is None else finding.saving


def _same(one: Finding, other: Finding) -> bool:
    """Whether they have one cause. A rule may have several, with different titles."""
    return one.id == other.id and _NUMBERS.sub("#", one.title) == _NUMBERS.sub("#", other.title)


def _at_same_place(one: Finding, other: Finding) -> bool:
    """Whether they have one cause, and one function or kernel."""
    return _same(one, other) and _place(one) == _place(other)


def _place(finding: Finding) -> list[tuple[str | None, ...]]:
    """The place with most of it, without the line: edits above move lines."""
    return [(at.file, at.function, at.region, at.kernel) for at in finding.where[:1]]


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        program: its name.
        runs: number of recordings.
        steps: number of compared steps of all recordings; of runs if runs are compared.
        left_out: steps that are not compared: warm-up, and cut ones.
        source: how the steps were found: windows if any recording has none, else as in the first recording.
        busy_ns: work of the busiest GPU, mean per step or run.
        incomplete: why recordings are incomplete, by their audits.
        waited_ns: waits for a CPU that other processes used; the times of a run exclude them.
        recordings: hash of the content of each recording.
    """

    program: str
    runs: int
    steps: int
    left_out: int
    source: str
    busy_ns: float
    incomplete: tuple[str, ...]
    waited_ns: float = 0.0
    recordings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class MedianStep:
    """The step of a recording with the median duration.

    Attributes:
        trace: the recording.
        steps: its steps.
        number: the place of the median step among `steps`; -1 without steps.
    """

    trace: Trace
    steps: Steps
    number: int

    @classmethod
    def of(cls, trace: Trace, steps: Steps) -> MedianStep:
        """The median step of a recording."""
        order = np.argsort(steps.durations_ns, kind="stable").tolist()
        return cls(trace, steps, order[(len(order) - 1) // 2] if order else -1)


@dataclass(frozen=True, repr=False, eq=False)
class Differences:
    """The comparison of two sides, without its texts.

    Attributes:
        step: change of the time of a step, or of the run.
        changes: nodes that changed certainly and by more than the margin, the largest difference in time first. Certain
            is 5 % over all nodes together, by Holm's method, weighted by time.
        nodes: all nodes: `changes`, then uncertain ones, the most certain first, then unchanged ones.
        before: the first side.
        after: the second.
        unlike: conditions that differ, a sentence each.
        matched: share of the time in common nodes of the most important kind, on the side with less.
        shared: the largest such share of any kind and side; below a half, the sides are not comparable.
        margin: share of a node's time below which a difference does not count.
        promises: savings promised by the diagnosis before.
        replicates: source of the intervals: "steps", "runs" or "samples and calls of one run".
        medians: the median step of the first recording of each side.
        unit: "step" or "run".
        not_compared: omitted comparisons with the reason, a sentence each.
        target: whether the step or run after meets the target; None without one.
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
    unit: str = STEP
    shared: float = 1.0
    not_compared: tuple[str, ...] = ()
    target: Target | None = None

    @property
    def verdict(self) -> str:
        """The verdict of the step or the run."""
        return self.step.verdict

    @property
    def is_comparable(self) -> bool:
        """Whether both sides are versions of one program, by their common nodes."""
        return self.shared >= LEAST_SHARED

    @property
    def uncertain(self) -> tuple[Change, ...]:
        """Inconclusive nodes with more than a tenth of the difference of a step or run."""
        least = _WORTH_A_WORD * abs(self.step.delta_ns)
        of = (node for node in self.nodes if node.verdict == "inconclusive" and abs(node.delta_ns) > least)
        is_open = self.verdict in ("slower", "faster") or (self.unit, self.verdict) == (RUN, "inconclusive")
        return tuple(of) if is_open else ()

    @property
    def cause(self) -> Change | None:
        """The largest change in the direction of the whole, preferably a function; None without changes."""
        alike = [each for each in self.changes if each.delta_ns * self.step.delta_ns > 0] or self.changes
        return next((each for each in alike if each.kind == "function"), next(iter(alike), None))

    @property
    def has_steps(self) -> bool:
        """Whether the steps are the program's, or at least repeat in it."""
        return not any(is_windows(side.source) for side in (self.before, self.after))

    @property
    def abstentions(self) -> tuple[Abstention, ...]:
        """Doubts, omitted comparisons and findings that may be gone, with their reasons."""
        promises = (each for each in self.promises if each.is_gone is None)
        return (
            *(Abstention("verdict", why) for why in self.doubts),
            *(Abstention("comparison", why) for why in self.not_compared),
            *(Abstention(each.id, "the recording after lacks the data to find it") for each in promises),
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt the result, a sentence each."""
        found = list(self.unlike)
        for name, side in (("before", self.before), ("after", self.after)):
            found += [f"the recording {name} is incomplete: {reason}" for reason in side.incomplete]
        if not self.is_comparable or self.matched < _MOSTLY:
            share, are = (self.matched, "may be") if self.is_comparable else (self.shared, "are")
            found.append(f"only {format_share(share)} of the time is in common nodes: these {are} two programs")
        if self.before.waited_ns or self.after.waited_ns:
            before, after = (format_seconds(side.waited_ns / _NS_PER_S) for side in (self.before, self.after))
            found.append(
                "other processes had the CPUs: the main thread waited for them, "
                f"{before} before and {after} after, and this is left out of all times"
            )
        if not self.is_comparable:
            return tuple(found)
        if not self.nodes:
            found.append("nothing shows that both are versions of one program")
        if self.unit == RUN:
            found.append(self._why_runs())
        if self.replicates == "runs":
            return tuple(found)
        more = f"give {ENOUGH_RUNS} recordings or more a side"
        if self.unit == RUN:
            runs = "one run each was" if self.before.runs == self.after.runs == 1 else "few runs were"
            found.append(
                f"{runs} compared: run-to-run variation is not in the intervals, and differences below "
                f"{format_share(self.margin)} count as the same; {more}"
            )
            return tuple(found)
        if min(self.before.steps, self.after.steps) < LEAST_STEPS:
            found.append(f"fewer than {LEAST_STEPS} steps on a side cannot separate a change from chance; record more")
        found.append(f"the intervals know how steps differ, not how runs do: {more} to tell a change from another day")
        return tuple(found)

    def _why_runs(self) -> str:
        without = [side for side in (self.before, self.after) if is_windows(side.source)]
        where = "" if len(without) == 2 else f" {'before' if without[0] is self.before else 'after'}"
        return f"no steps are known{where}, so whole runs are compared; mark steps by gpuscope.step()"
