# SPDX-License-Identifier: Apache-2.0
"""What changed between two jobs: the step and its parts, kernels, and ranks relative to the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import NotAvailable
from gpuscope.fleet.breakdown import PARTS
from gpuscope.fleet.tables import Array, Columns, content_hash, expected_ranks, of_ranks
from gpuscope.results import Abstention, Result, abstained, heading, plain_fields
from gpuscope.stats.means import holm, welch
from gpuscope.tables import align_columns
from gpuscope.text import shorten
from gpuscope.units import format_seconds

_LEAST_STEPS = 4
_LEVEL = 0.05  # of a family of tests
_START_UP = 2.0  # times the median step: leading steps above it are left out
_LEAST = 0.01  # relative difference that is worth a verdict
_SHOWN = 10


@dataclass(frozen=True)
class JobChange:
    """A time before and after.

    Attributes:
        kind: "step", "part", "kernel" or "rank".
        name: of the part, the kernel or the rank.
        before_s: mean per step and rank; of a rank its compute.
        after_s: likewise.
        change: relative difference; of a rank, relative to the change of the other ranks. None if before_s is 0.
        low: of its 95 % interval over steps; None if not known.
        high: likewise.
        verdict: "slower", "faster", "same" (not shown to differ by 1 %) or "" without an interval.
    """

    kind: str
    name: str
    before_s: float
    after_s: float
    change: float | None
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True, repr=False)
class JobDiff(Result):
    """The changes between two jobs; printing it shows them.

    Attributes:
        step: the duration of a step.
        parts: of the step.
        kernels: largest difference first, without intervals, as tables of jobs have only their sums.
        ranks: the ranks whose compute surely changed relative to the others, largest first.
        steps: number of steps that were compared, before and after.
        ranks_seen: number of ranks, before and after.
        notes: limits of the comparison.
        jobs: hashes of the ranks and steps of both.
    """

    step: JobChange
    parts: tuple[JobChange, ...]
    kernels: tuple[JobChange, ...]
    ranks: tuple[JobChange, ...]
    steps: tuple[int, int]
    ranks_seen: tuple[int, int]
    notes: tuple[str, ...]
    jobs: tuple[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Seconds and relative differences."""
        open_ = [Abstention("comparison", each) for each in self.notes]
        return {**heading("job_diff"), "abstained": abstained(open_), **plain_fields(self)}

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per change."""
        return [plain_fields(each) for each in (self.step, *self.parts, *self.kernels, *self.ranks)]

    def __str__(self) -> str:
        found = {"slower": "slower", "faster": "faster", "same": "no difference is shown"}[self.step.verdict]
        step = self.step
        times = f"{format_seconds(step.before_s)} to {format_seconds(step.after_s)}, {_percent(step)}"
        lines = [f"verdict: {found}: a step takes {times}"]
        lines.append(f"{self.steps[0]:,} and {self.steps[1]:,} steps of {self.ranks_seen[0]:,} and "
                     f"{self.ranks_seen[1]:,} ranks")  # fmt: skip
        for title, changes in (("part", self.parts), ("kernel", self.kernels), ("compute of", self.ranks)):
            if changes:
                rows = [(title, "before", "after", "change", "verdict")]
                rows += [
                    (shorten(each.name, 60), format_seconds(each.before_s), format_seconds(each.after_s),
                     _percent(each), each.verdict)
                    for each in changes[:_SHOWN]
                ]  # fmt: skip
                lines += ["", *align_columns(rows, left=(0, 4), rule=True)]
                if len(changes) > _SHOWN:
                    lines.append(f"... and {len(changes) - _SHOWN:,} more")
        return "\n".join([*lines, *(f"note: {each}" for each in self.notes)])


def _percent(change: JobChange) -> str:
    if change.change is None:
        return "new" if change.after_s else "-"
    around = "" if change.low is None else f" ({100 * change.low:+.1f} to {100 * (change.high or 0.0):+.1f} %)"
    return f"{100 * change.change:+.1f} %{around}"


def compare(before: Mapping[str, Columns], after: Mapping[str, Columns]) -> JobDiff:
    """Compares the tables of two jobs.

    Raises:
        NotAvailable: a side has fewer than four steps.
    """
    sides = [_Side(before["step"]), _Side(after["step"])]
    if min(len(side.steps) for side in sides) < _LEAST_STEPS:
        counts = " and ".join(str(len(side.steps)) for side in sides)
        raise NotAvailable(f"the jobs cannot be compared: they have {counts} steps; {_LEAST_STEPS} are needed")
    columns = {"a step": "duration_ns", **PARTS}
    rows = [np.stack([side.means(column) for column in columns.values()], axis=1) for side in sides]
    step, *parts = _changes(list(columns), rows)
    notes = [f"{side.left_out:,} steps at the start {when} are left out" for side, when in
             zip(sides, ("before", "after"), strict=True) if side.left_out]  # fmt: skip
    seen = (len(sides[0].ranks), len(sides[1].ranks))
    for number, job, when in zip(seen, (before, after), ("before", "after"), strict=True):
        if number < (expected := expected_ranks(job["rank"])):
            notes.append(f"{of_ranks(number, expected)} have steps {when}")
    if seen[0] != seen[1]:
        notes.append(f"the jobs have {seen[0]:,} and {seen[1]:,} ranks with steps: times are means per rank")
    return JobDiff(
        step=step,
        parts=tuple(parts),
        kernels=_kernels(before, after),
        ranks=_ranks(sides),
        steps=(len(sides[0].steps), len(sides[1].steps)),
        ranks_seen=seen,
        notes=tuple(notes),
        jobs=(content_hash(before), content_hash(after)),
    )


class _Side:
    """The steps of a job that are compared: not those at the start that take twice the median."""

    def __init__(self, table: Columns) -> None:
        steps, at = np.unique(table["step"], return_inverse=True)
        self._table, self._at = table, at.reshape(-1)
        self._count = np.bincount(self._at, minlength=len(steps))
        self.left_out = 0
        duration = self.means("duration_ns")
        usual = duration <= _START_UP * np.median(duration) if len(steps) else np.zeros(0, bool)
        self.left_out = int(usual.argmax()) if usual.any() else 0
        self.steps = steps[self.left_out :]
        self.ranks, self._rank = np.unique(table["rank"], return_inverse=True)

    def means(self, column: str) -> Array:
        """Of each step, the mean over ranks."""
        sums = np.bincount(self._at, self._table[column], len(self._count))
        found: Array = (sums / np.maximum(self._count, 1))[self.left_out :]
        return found

    def compute(self, ranks: Array) -> Array:
        """Compute by step (rows) and by these ranks (columns), ns; NaN if not known."""
        found = np.full((len(self._count), len(self.ranks)), np.nan)
        found[self._at, self._rank.reshape(-1)] = self._table["compute_ns"]
        return found[self.left_out :, np.searchsorted(self.ranks, ranks)]


def _changes(names: list[str], rows: list[Array]) -> list[JobChange]:
    half, chance = welch(rows[0], rows[1], 1 - _LEVEL)
    sure = chance <= holm(chance, _LEVEL)
    found = []
    for at, name in enumerate(names):
        old, new = (float(side[:, at].mean()) for side in rows)
        change, around = ((new - old) / old, float(half[at]) / old) if old > 0 else (None, 0.0)
        verdict = "same"
        if sure[at] and (change is None or abs(change) >= _LEAST):
            verdict = "slower" if new > old else "faster"
        low, high = (None, None) if change is None else (change - around, change + around)
        kind = "part" if at else "step"
        found.append(JobChange(kind, name, old / 1e9, new / 1e9, change, low, high, verdict))
    return found


def _kernels(before: Mapping[str, Columns], after: Mapping[str, Columns]) -> tuple[JobChange, ...]:
    """Kernels by their hash, with their time per step and rank."""
    names: dict[int, str] = {}
    times: list[dict[int, float]] = []
    for side in (before, after):
        table, steps = side["kernel_stat"], max(len(side["step"]["step"]), 1)
        kernels, first, at = np.unique(table["kernel"], return_index=True, return_inverse=True)
        names |= dict(zip(kernels.tolist(), map(str, table["name"][first].tolist()), strict=True))
        sums = np.bincount(at.reshape(-1), table["total_ns"], len(kernels)) / steps / 1e9
        times.append(dict(zip(kernels.tolist(), sums.tolist(), strict=True)))
    pairs = {kernel: (times[0].get(kernel, 0.0), times[1].get(kernel, 0.0)) for kernel in names}
    order = sorted(pairs, key=lambda kernel: -abs(pairs[kernel][1] - pairs[kernel][0]))
    return tuple(
        JobChange("kernel", names[kernel], old, new, new / old - 1 if old else None, None, None, "")
        for kernel in order
        for old, new in (pairs[kernel],)
    )


def _ranks(sides: list[_Side]) -> tuple[JobChange, ...]:
    """The ranks whose compute surely changed relative to the median rank of each step."""
    common = np.intersect1d(sides[0].ranks, sides[1].ranks)
    compute = [side.compute(common) for side in sides]
    there = np.all([(np.nan_to_num(side) > 0).all(axis=0) for side in compute], axis=0)  # in all steps
    if there.sum() < 3:
        return ()
    logs = [np.log(side[:, there]) for side in compute]
    before, after = (side - np.median(side, axis=1)[:, None] for side in logs)
    half, chance = welch(before, after, 1 - _LEVEL)
    sure = chance <= holm(chance, _LEVEL)
    delta = after.mean(axis=0) - before.mean(axis=0)
    found = []
    for at in np.flatnonzero(sure & (np.abs(np.expm1(delta)) >= _LEAST)).tolist():
        old, new = (float(side[:, there][:, at].mean()) / 1e9 for side in compute)
        change, low, high = np.expm1([delta[at], delta[at] - half[at], delta[at] + half[at]]).tolist()
        verdict = "slower" if change > 0 else "faster"
        found.append(JobChange("rank", f"rank {common[there][at]}", old, new, change, low, high, verdict))
    return tuple(sorted(found, key=lambda each: -abs(each.change or 0.0)))
