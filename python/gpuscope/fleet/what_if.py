# SPDX-License-Identifier: Apache-2.0
"""What a job would gain if its operations took equally long on all ranks and in all steps, and what makes them differ.

The analysis is that of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI
'25). The ideal time of work is the mean over ranks and steps, that of a transfer the median. The slowdown S is the mean
step time over that with all ideal times.

The cause is our addition. From the ideal, work takes first the mean time of its stage, then that of its rank, then its
own, and transfers at last take their own. Each change adds to the step time what stages, ranks, variation and
communication cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.fleet.dependencies import Column, Operations, Replay, number_rows
from gpuscope.fleet.tables import of_ranks
from gpuscope.results import Abstention, Result, abstained, heading, plain_fields
from gpuscope.tables import align_columns
from gpuscope.units import format_digits, format_seconds, format_share, format_times

EVEN = "even"
RANKS, STAGES, LENGTHS = "slow ranks", "uneven stages", "sequence lengths"
VARIATION, COMMUNICATION = "variation", "communication"
_WORST = 0.03  # of the ranks, at least one
_LEAST_SLOWDOWN = 1.05  # of a job that is not even
_LEAST_LOSS = 1e-3  # of the ideal step, for shares of the loss
_VARY_TOGETHER = 0.9  # correlation of the forward and the backward pass over a microbatch
_FORWARD, _BACKWARD = "forward-compute", "backward-compute"
_MOST_LISTED = 8


@dataclass(frozen=True, repr=False)
class WhatIf(Result):
    """What equal durations would change; printing it shows the cause. Unknown figures are None.

    Attributes:
        slowdown: S, the step time over the ideal one.
        step_s: mean simulated step time in seconds, without delays between operations.
        ideal_s: the same with ideal durations.
        steps: number of steps.
        ranks: number of recorded ranks.
        gpus: number of GPUs of the job.
        expected: number of ranks of the job.
        worst_ranks: the slowest 3 % of the ranks, slowest first.
        by_ranks: M_W, the share of the loss (`step_s` - `ideal_s`) that ideal durations of these ranks remove.
        by_stage: M_S, the same for the last pipeline stage.
        by_operation: slowdown by kind of operation if all other kinds take ideal times.
        shares: of the loss, by "stages", "ranks", "variation" and "communication"; their sum is 1. Empty if the loss is
            below 0.1 % of a step.
        cause: "even", "slow ranks", "uneven stages", "sequence lengths", "variation" or "communication".
        evidence: the cause in words, with its figures.
        why: reasons for unknown figures, by name.
    """

    slowdown: float
    step_s: float
    ideal_s: float
    steps: int
    ranks: int
    gpus: int
    expected: int
    worst_ranks: tuple[int, ...]
    by_ranks: float | None
    by_stage: float | None
    by_operation: Mapping[str, float]
    shares: Mapping[str, float]
    cause: str
    evidence: str
    why: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Times in seconds, shares and factors; None where a figure is not known, ``why`` says why."""
        open_ = [Abstention(name, why) for name, why in self.why.items()]
        return {**heading("what_if"), "abstained": abstained(open_), **plain_fields(self)}

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per kind of operation."""
        return [{"operation": kind, "slowdown": slowdown} for kind, slowdown in self.by_operation.items()]

    def __str__(self) -> str:
        lost = max(0.0, self.step_s - self.ideal_s)
        of = of_ranks(self.ranks, self.expected) if self.ranks < self.expected else f"{self.gpus:,} GPUs"
        lines = [
            f"slowdown {self.slowdown:.3f}: a step takes {format_seconds(self.step_s)}, and "
            f"{format_seconds(self.ideal_s)} with ideal durations",
            f"cause: {self.cause}. {self.evidence}",
            f"lost: {format_digits(lost * self.gpus)} GPU-seconds per step ({of}, {self.steps:,} steps)",
        ]
        if self.shares:
            parts = (f"{name} {format_share(round(share, 3) + 0.0)}" for name, share in self.shares.items())
            lines.append(f"of which: {', '.join(parts)}")
        for name, share, what in (
            ("by_ranks", self.by_ranks, f"the slowest ranks ({_listed(self.worst_ranks)})"),
            ("by_stage", self.by_stage, "the last stage"),
        ):
            known = f"would remove {format_share(round(share, 3) + 0.0)} of the loss" if share is not None else ""
            lines.append(f"ideal durations of {what}: {known or f'unknown, {self.why[name]}'}")
        table = [("operation", "slowdown")]
        table += [(kind, f"{each:.3f}") for kind, each in self.by_operation.items()]
        return "\n".join((*lines, "", *align_columns(table, left=1, rule=True)))


def what_if(operations: Operations, expected: int = 0) -> WhatIf:
    """Simulates the job with ideal durations for all, or for some, of its operations.

    Args:
        operations: of a job.
        expected: number of its ranks, recorded or not.

    Raises:
        InvalidArgument: there are no operations, or they wait for each other in a circle.
    """
    if not len(operations.rank):
        raise InvalidArgument("operations is empty; accepted are operations of at least one step")
    job = _Job(operations)
    actual, ideal = job.step_ns(job.spent), job.step_ns(job.ideal)
    if not ideal > 0:
        raise InvalidArgument("all operations take 0 ns; accepted are operations that take time")
    lost = actual - ideal
    has_loss = lost > _LEAST_LOSS * ideal
    none = f"the loss is below {format_share(_LEAST_LOSS)} of a step"
    kinds = {
        name: job.slow(job.kind == number) / ideal
        for number, name in enumerate(operations.kinds)
        if (job.kind == number).any()
    }
    worst = job.worst_ranks(ideal)
    by_ranks = (actual - job.fixed(np.isin(job.rank, worst))) / lost if has_loss else None
    by_stage, why = None, {} if has_loss else {"by_ranks": none, "by_stage": none, "shares": none}
    if job.last_stage is None:
        why["by_stage"] = "the operations have no pipeline stages"
    elif has_loss:
        by_stage = (actual - job.fixed(job.stage == job.last_stage)) / lost
    shares = job.shares(actual, ideal) if has_loss else {}
    cause, evidence = job.cause(actual / ideal, shares, kinds, worst)
    return WhatIf(
        slowdown=actual / ideal,
        step_s=actual / 1e9,
        ideal_s=ideal / 1e9,
        steps=len(job.replay.steps),
        ranks=len(job.ranks),
        gpus=operations.gpus,
        expected=max(expected, len(job.ranks)),
        worst_ranks=tuple(worst),
        by_ranks=by_ranks,
        by_stage=by_stage,
        by_operation=dict(sorted(kinds.items(), key=lambda each: -each[1])),
        shares=shares,
        cause=cause,
        evidence=evidence,
        why=why,
    )


class _Job:
    """A job's operations in the order of their replay, with their durations in ns and their ideal ones."""

    def __init__(self, operations: Operations) -> None:
        self.replay = Replay(operations)
        order = self.replay.order
        self.step_ns = self.replay.mean_step_ns
        self.kinds = operations.kinds
        self.kind, self.rank, self.step = operations.kind[order], operations.rank[order], operations.step[order]
        self.ranks, self.first, self.at = np.unique(self.rank, return_index=True, return_inverse=True)
        self.stage = operations.stage[order] if operations.stage is not None else np.full(len(order), -1)
        self.replica = operations.replica[order] if operations.replica is not None else None
        self.microbatch = operations.microbatch[order] if operations.microbatch is not None else None
        self.work = self.replay.is_work
        self.spent = self.replay.duration_ns.astype(np.float64)
        self.like = number_rows(operations.like[order] if operations.like is not None else self.kind, self.work)
        self.ideal = _means(self.spent, self.like)
        moves = np.flatnonzero(~self.work)
        self.ideal[moves] = _medians(self.spent[moves], self.like[moves])
        stages = np.unique(self.stage[self.stage >= 0])
        self.last_stage = int(stages[-1]) if len(stages) > 1 else None

    def slow(self, which: Column) -> float:
        """The step time in ns if all but these operations take ideal times."""
        return self.step_ns(np.where(which, self.spent, self.ideal))

    def fixed(self, which: Column) -> float:
        """The step time in ns if these operations take ideal times."""
        return self.step_ns(np.where(which, self.ideal, self.spent))

    def worst_ranks(self, ideal: float) -> list[int]:
        """The slowest ranks, slowest first.

        A rank is as slow as its replica or its stage, whichever slows the job less. This needs fewer simulations than
        one per rank. Without replicas and stages, it is as slow as its work exceeds the ideal.
        """
        if self.replica is not None and self.last_stage is not None:
            slowness = np.full(len(self.ranks), np.inf)
            for column in (self.replica, self.stage):
                of_rank = column[self.first]
                slow = {each: self.slow(column == each) for each in set(of_rank.tolist())}
                slowness = np.minimum(slowness, [slow[each] for each in of_rank.tolist()])
        else:
            slowness = self._work_of_ranks(self.spent - self.ideal)
        worst = np.argsort(-slowness, kind="stable")[: max(1, math.ceil(_WORST * len(self.ranks)))]
        return [int(each) for each in self.ranks[worst]]

    def shares(self, actual: float, ideal: float) -> dict[str, float]:
        """The parts of the loss, by what makes durations differ."""
        times = [
            ideal,
            *(
                self.step_ns(np.where(self.work, spent, self.ideal))
                for spent in (
                    _means(self.spent, number_rows(self.like, self.stage)),
                    _means(self.spent, number_rows(self.like, self.rank)),
                    self.spent,
                )
            ),
            actual,
        ]
        parts = (np.diff(times) / (actual - ideal)).tolist()
        return dict(zip(("stages", "ranks", "variation", "communication"), parts, strict=True))

    def cause(
        self, slowdown: float, shares: Mapping[str, float], kinds: Mapping[str, float], worst: list[int]
    ) -> tuple[str, str]:
        """The cause of the slowdown, and its evidence in a sentence or two."""
        if slowdown < _LEAST_SLOWDOWN or not shares:
            return EVEN, "Equal durations would gain little."
        largest = max(shares, key=lambda name: shares[name])
        cost = f"This costs {format_share(shares[largest])} of the loss."
        if largest == "ranks":
            return RANKS, f"{self._rank_words(worst)} {cost}"
        if largest == "stages":
            return STAGES, f"{self._stage_words()} {cost}"
        if largest == "communication":
            moves = {self.kinds[each] for each in np.unique(self.kind[~self.work])}
            kind = max(moves & {*kinds}, key=lambda each: kinds[each])
            return COMMUNICATION, f"Most of it is {kind}, which slows a step {format_times(kinds[kind])}. {cost}"
        if (together := self._correlation()) is not None and together >= _VARY_TOGETHER:
            return LENGTHS, (
                f"Microbatches take different times on all ranks, equally in the forward and the backward pass "
                f"(correlation {together:.2f}), so their work differs. {cost}"
            )
        return (
            VARIATION,
            f"The same work takes different times from step to step, on no rank more than on others. {cost}",
        )

    def _work_of_ranks(self, spent: Column) -> Column:
        """The total of each rank's work."""
        return np.bincount(self.at, np.where(self.work, spent, 0.0))

    def _stage_words(self) -> str:
        """How much longer the slowest stage works than the median of the others."""
        stages, at = np.unique(self.stage[self.first], return_inverse=True)
        spent = np.bincount(at, self._work_of_ranks(self.spent)) / np.bincount(at)
        slowest = int(spent.argmax())
        name = "The last stage" if stages[slowest] == self.last_stage else f"Stage {stages[slowest]}"
        ratio = spent[slowest] / max(float(np.median(np.delete(spent, slowest))), 1.0)
        return f"{name} works {format_times(ratio)} as long as the others."

    def _rank_words(self, worst: list[int]) -> str:
        """How much slower the worst rank is than the median of its stage."""
        spent, stage = self._work_of_ranks(self.spent), self.stage[self.first]
        rank = int(np.searchsorted(self.ranks, worst[0]))
        ratio = format_times(spent[rank] / max(float(np.median(spent[stage == stage[rank]])), 1.0))
        among = "its stage" if self.last_stage is not None else "all ranks"
        words = f"Rank {worst[0]} takes {ratio} the work time of the median of {among}."
        return words + (f" The slowest ranks are {_listed(worst)}." if len(worst) > 1 else "")

    def _correlation(self) -> float | None:
        """Of the forward and the backward times of microbatches, each over the mean of its rank; None if unknown."""
        if self.microbatch is None or not {_FORWARD, _BACKWARD} <= {*self.kinds}:
            return None
        of_rank = self.spent / np.maximum(_means(self.spent, number_rows(self.like, self.rank)), 1.0)
        key = number_rows(self.rank, self.step, self.microbatch)
        values = []
        for name in (_FORWARD, _BACKWARD):
            rows = np.flatnonzero((self.kind == self.kinds.index(name)) & (self.microbatch >= 0))
            found, first = np.unique(key[rows], return_index=True)
            values.append((found, of_rank[rows[first]]))
        (forward, passed), (backward, returned) = values
        _, one, other = np.intersect1d(forward, backward, return_indices=True)
        if len(one) < 3 or not (passed[one].std() > 0 and returned[other].std() > 0):
            return None
        return float(np.corrcoef(passed[one], returned[other])[0, 1])


def _means(values: Column, number: Column) -> Column:
    """For each value the mean of those with the same number."""
    means: Column = np.bincount(number, values) / np.maximum(np.bincount(number), 1)
    return means[number]


def _medians(values: Column, number: Column) -> Column:
    """For each value the median of those with the same number."""
    if not len(values):
        return values
    ordered = values[np.lexsort((values, number))]
    count = np.bincount(number)
    first = np.cumsum(count) - count
    low, high = first + np.maximum(count - 1, 0) // 2, first + count // 2
    medians: Column = 0.5 * (ordered[np.minimum(low, len(values) - 1)] + ordered[np.minimum(high, len(values) - 1)])
    return medians[number]


def _listed(ranks: list[int] | tuple[int, ...]) -> str:
    more = len(ranks) - _MOST_LISTED
    return ", ".join(map(str, ranks[:_MOST_LISTED])) + (f" and {more:,} others" if more > 0 else "")
