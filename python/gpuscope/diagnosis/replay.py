# SPDX-License-Identifier: Apache-2.0
"""Savings of fixes: replays the recorded steps without some of their causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.stats.distributions import median_rank, student_factor
from gpuscope.steps.steps import Array, Steps, as_passed, profiler_spans
from gpuscope.threads import cached_property
from gpuscope.trace import Table, Trace, number_of
from gpuscope.units import format_share

ACCEPTED_ERROR = 0.03
"""Largest error of replayed steps for the model to be accepted."""
ACCEPTED_UNLAUNCHED = 0.05
"""Largest share of the work without a recorded launch."""
LEAST_STEPS, FEWEST_FOR_AN_INTERVAL = 2, 5
MOST_CALLS = 100_000
"""Number of driver calls up to which all steps are replayed; with more, that many calls' share of the steps."""
RUNS, LEAD_IN, LEAST_REPLAYED = 4, 3, 16
"""Number of runs of replayed steps, most steps that lead in to each, and least number of steps."""
CONFIDENCE = 0.95
_EVENTS = ("launch", "copy", "call", "region")  # events whose cost the audit has


def _no_rows() -> Array:
    return np.zeros(0, np.int64)


def _no_factors() -> Array:
    return np.zeros(0, np.float64)


def _no_spans() -> Array:
    return np.zeros((0, 3), np.int64)


@dataclass(frozen=True, eq=False)
class Edit:
    """Changes of a recording by a fix. Rows that the recording does not have change nothing.

    Attributes:
        unwaited: rows of ``trace.api``: calls that no longer wait for the GPU; their other time stays.
        removed_calls: rows of ``trace.api``: calls that are no longer made, with the work that they launched.
        host_spans: int64 of shape (n, 3): row of ``trace.threads``, start and end in ns: time of a host thread that is
            no longer spent; calls in it are still made.
        kernels: rows of ``trace.kernels``.
        kernel_factors: float64: remaining share of the duration of each of `kernels`.
        copies: rows of ``trace.memcpy``.
        copy_factors: likewise; 0: hidden behind other work, or gone.
    """

    unwaited: Array = field(default_factory=_no_rows)
    removed_calls: Array = field(default_factory=_no_rows)
    host_spans: Array = field(default_factory=_no_spans)
    kernels: Array = field(default_factory=_no_rows)
    kernel_factors: Array = field(default_factory=_no_factors)
    copies: Array = field(default_factory=_no_rows)
    copy_factors: Array = field(default_factory=_no_factors)


@dataclass(frozen=True)
class Saving:
    """The saving of edits, as shares of the wall time of the steps.

    Attributes:
        value: of the time of all steps.
        low: the lower end of its interval.
        high: the upper end.
        usual: the lower end of the interval of the median of the steps; with too few steps, the least of any.
    """

    value: float
    low: float
    high: float
    usual: float


class Replay:
    """Recorded steps that can be run again with edits.

    The model has queues: host threads are pieces of fixed length between driver calls, and streams begin their work in
    order. Waits come from the calls and from recorded times. The model is accepted if it reproduces the recorded steps
    within `ACCEPTED_ERROR`. Of a long recording, some steps from all over it are replayed.

    A step ends when the host has left it and the work launched by then is done. So a program whose host runs ahead is
    as fast as its GPU.

    Args:
        trace: the recording.
        steps: those that count, as `find_steps` gives them.

    Attributes:
        error: distance of replayed / recorded from 1 without edits, the median over the steps; inf without a model.
        reason: why the model is not accepted and no saving is known; None if it is accepted.
        is_whole: all steps are replayed, not some of a long recording.
    """

    def __init__(self, trace: Trace, steps: Steps) -> None:
        self._trace, self._steps = trace, steps
        self._model: _core.QueueModel | None = None
        self._runs = _runs(trace, steps)
        self.is_whole = len(self._runs) == 1
        self._unchanged_ns = np.zeros(0)
        self.error = math.inf
        self.reason: str | None = _missing(trace, steps)
        if self.reason is not None:
            return
        self._model = model = _core.QueueModel(trace.store)
        self.reason = _unlaunched(model)
        recorded_ns = np.concatenate(
            [run.durations(model.recorded(run.moments(steps), steps.thread)) for run in self._runs]
        )
        self._unchanged_ns = self._replayed(model, Edit())
        lasted = recorded_ns > 0
        if lasted.any():
            self.error = float(np.median(np.abs(self._unchanged_ns[lasted] / recorded_ns[lasted] - 1)))
        # The program itself, with or without edits, does not wait for the profiler.
        self._own = Edit(host_spans=profiler_spans(trace))
        if len(self._own.host_spans):
            self._unchanged_ns = self._replayed(model, self._own)
        if self.reason is None and self.error > ACCEPTED_ERROR:
            found = format_share(self.error) if math.isfinite(self.error) else "without any time"
            self.reason = f"the replayed steps are off by {found}; {format_share(ACCEPTED_ERROR)} are accepted"

    def leave_out_recording(self) -> None:
        """Removes the cost of recording from the replayed steps, so that savings are of the program's own time.

        The audit's cost of each event is subtracted from the host where the event is. A host that waits for something
        else than the GPU would wait longer instead.
        """
        costs = {f"{each}_ns": number_of(self._trace.info, f"audit.{each}_cost_ns") for each in _EVENTS}
        costs["copy_ns"] = costs["copy_ns"] or costs["launch_ns"]  # a recording may have only the cost of launches
        if self._model is not None and self.reason is None and any(costs.values()):
            self._model.take_out(self._trace.store, **costs)
            self._unchanged_ns = self._replayed(self._model, self._own)

    @cached_property
    def _passed(self) -> Steps:
        return as_passed(self._trace, self._steps)

    def saving(self, edits: Sequence[Edit]) -> Saving | None:
        """The saving of all these edits together; None if the model is not accepted, see `reason`.

        It is 1 - time with the edits / time without, both replayed and summed over the steps. It is of the sum because
        the ends of steps vary: if one step is too long, the next is too short. The 95 % interval is that of a ratio of
        sums, Student's, from the differences of the steps; with too few steps, the least and the most of any step. A
        negative value is a loss.

        Raises:
            InvalidArgument: a field of an edit has another shape than documented.
        """
        edit = _joined(edits)
        if self._model is None or self.reason is not None:
            return None
        lasted = self._unchanged_ns > 0
        with_ns = self._replayed(self._model, _joined([self._own, edit]))[lasted].astype(float)
        without_ns = self._unchanged_ns[lasted].astype(float)
        count = len(with_ns)
        remains = float(with_ns.sum() / without_ns.sum())
        shares = np.sort(1 - with_ns / without_ns)
        if count < FEWEST_FOR_AN_INTERVAL:
            return Saving(1 - remains, float(shares[0]), float(shares[-1]), float(shares[0]))
        usual = float(np.interp(median_rank(count, CONFIDENCE) - 1, np.arange(count), shares))
        # Cochran, Sampling Techniques, 6.4: the error of a ratio of sums, from the steps' residuals.
        off_ns = with_ns - remains * without_ns
        error = math.sqrt(count / (count - 1) * float(np.square(off_ns).sum())) / float(without_ns.sum())
        reach = student_factor(CONFIDENCE, count - 1) * error
        return Saving(1 - remains, 1 - remains - reach, min(1 - remains + reach, 1.0), usual)

    def _replayed(self, model: _core.QueueModel, edit: Edit) -> Array:
        """Duration of each replayed step, with an edit."""
        changes = {each.name: getattr(edit, each.name) for each in fields(Edit)}
        steps = self._steps
        return np.concatenate(
            [run.durations(model.replayed(run.moments(steps), steps.thread, **changes)) for run in self._runs]
        )

    def share(self, edit: Edit) -> float:
        """The share of the time of the steps that an edit changes: idle time of the GPU, and its work.

        It is not a saving and needs no model.
        """
        trace, steps = self._trace, self._passed
        calls = np.union1d(edit.unwaited, edit.removed_calls)
        calls = calls[(calls >= 0) & (calls < len(trace.api))]
        starts = np.append(trace.api.start_ns[calls], edit.host_spans[:, 1])
        ends = np.append(trace.api.start_ns[calls] + trace.api.duration_ns[calls], edit.host_spans[:, 2])
        host_ns, _ = self._divided(starts, ends)
        device_ns = np.zeros(len(steps))

        def add(table: Table, rows: Array, shares: Array | float) -> None:
            nonlocal device_ns
            device_ns = device_ns + self._in_steps(table.start_ns[rows], table.duration_ns[rows] * shares)

        removed = trace.api.correlation[calls[np.isin(calls, edit.removed_calls)]]
        for table in (trace.kernels, trace.graph_launches, trace.memcpy, trace.memset):
            add(table, np.flatnonzero(np.isin(table.correlation, removed)), 1.0)
        for table, rows, factors in (
            (trace.kernels, edit.kernels, edit.kernel_factors),
            (trace.memcpy, edit.copies, edit.copy_factors),
        ):
            known = (rows >= 0) & (rows < len(table))
            add(table, rows[known], 1 - np.clip(np.nan_to_num(factors[known], nan=1.0), 0, 1))
        changed_ns = np.minimum(host_ns, self._idle_ns) + device_ns
        chosen = slice(None) if self.is_whole else _in_runs(self._runs)
        return float(min(changed_ns[chosen].sum() / max(steps.durations_ns[chosen].sum(), 1), 1.0))

    def _in_steps(self, starts: Array, lengths: Array) -> Array:
        """The sum of the lengths in each step."""
        at = self._passed.at(starts)
        inside = at >= 0
        sums: Array = np.bincount(at[inside], lengths[inside], len(self._steps)).astype(float)
        return sums

    @cached_property
    def _idle_ns(self) -> Array:
        """Idle time of the busiest stream in each step; work of other streams may overlap it."""
        trace = self._trace
        tables = (trace.kernels, trace.graph_launches, trace.memcpy, trace.memset)
        tracks, starts, lengths = (
            np.concatenate([table[column] for table in tables]) for column in ("track", "start_ns", "duration_ns")
        )
        if len(tracks):
            here = tracks == np.argmax(np.bincount(tracks, lengths))
            starts, lengths = starts[here], lengths[here]
        return self._divided(starts, starts + lengths)[1]

    def _divided(self, starts: Array, ends: Array) -> tuple[Array, Array]:
        """Time of each step inside these spans, and outside."""
        kept = ends > starts
        spans = (starts[kept], ends[kept], np.zeros(np.count_nonzero(kept), np.uint8))
        alone, _ = _core.divide_time(self._passed.start_ns, self._passed.end_ns, [spans], 1)
        return alone[0], alone[1]


@dataclass(frozen=True)
class _ReplayedSteps:
    """Steps that are replayed one after the other; the first `lead` steps are not counted."""

    first: int
    count: int
    lead: int

    def moments(self, steps: Steps) -> Array:
        """Start and end of each step, in order."""
        these = slice(self.first, self.first + self.count)
        moments: Array = np.stack([steps.start_ns[these], steps.end_ns[these]], axis=1).reshape(-1)
        return moments

    def durations(self, passed: Array) -> Array:
        """Duration of each step after the lead-in."""
        durations: Array = np.maximum(passed[1::2] - passed[::2], 0)[self.lead :]
        return durations


def _runs(trace: Trace, steps: Steps) -> list[_ReplayedSteps]:
    """All steps as one run, or several runs of some steps, evenly spread, if there are too many calls."""
    every = len(steps)
    affordable = max(LEAST_REPLAYED, every * MOST_CALLS // max(len(trace.api), 1))
    if affordable >= every:  # the first is left out: nothing is queued when it begins
        return [_ReplayedSteps(0, every, int(every > FEWEST_FOR_AN_INTERVAL))]
    count = affordable // RUNS
    lead = min(LEAD_IN, count // 2)
    return [_ReplayedSteps(int(first), count, lead) for first in np.linspace(0, every - count, RUNS)]


def _in_runs(runs: Sequence[_ReplayedSteps]) -> Array:
    """The steps that are replayed, each once."""
    return np.unique(np.concatenate([np.arange(run.first, run.first + run.count) for run in runs]))


def is_replayed(trace: Trace, steps: Steps) -> Array:
    """Whether an edit of each step affects a replay: in a long recording, only replayed steps and their neighbours.

    One more entry, which is true, is for everything outside the steps.
    """
    chosen = _in_runs(_runs(trace, steps))
    found = np.zeros(len(steps) + 1, bool)
    for beside in (-1, 0, 1):
        found[np.clip(chosen + beside, 0, len(steps))] = True
    found[-1] = True
    return found


def _missing(trace: Trace, steps: Steps) -> str | None:
    """Why the recording cannot be replayed; None if it can."""
    if trace.info.get("session.mode") == "aggregate":
        return 'aggregate mode keeps totals alone; record with mode="full" or "ring"'
    if not any(map(len, (trace.kernels, trace.graph_launches, trace.memcpy, trace.memset))):
        return "no GPU work was recorded"
    if len(trace.api) == 0:
        return "no calls of the driver were recorded"
    if len(steps) < LEAST_STEPS:
        count = "one step says" if len(steps) == 1 else "no step says"
        return f"{count} nothing of others; {LEAST_STEPS} are needed"
    return None


def _unlaunched(model: _core.QueueModel) -> str | None:
    """The reason if too many launches are missing; None otherwise."""
    every = model.works + model.unlaunched
    if model.unlaunched <= ACCEPTED_UNLAUNCHED * every:
        return None
    return f"the launches of {model.unlaunched:,} of {every:,} kernels, copies and fills were not recorded"


def _joined(edits: Sequence[Edit]) -> Edit:
    """One edit with the changes of all."""
    parts: dict[str, list[Array]] = {each.name: [getattr(Edit(), each.name)] for each in fields(Edit)}
    for edit in edits:
        for name, values in parts.items():
            values.append(_column(edit, name, like=values[0]))
        for name, factors in (("kernels", "kernel_factors"), ("copies", "copy_factors")):
            rows, of_each = len(parts[name][-1]), len(parts[factors][-1])
            if rows != of_each:
                raise InvalidArgument(
                    f"{factors} has {of_each:,} entries; accepted is one for each of the {rows:,} {name}"
                )
    return Edit(**{name: np.concatenate(values) for name, values in parts.items()})


def _column(edit: Edit, name: str, like: Array) -> Array:
    """A field of an edit with the required type and columns."""
    values = np.asarray(getattr(edit, name)).astype(like.dtype)
    if values.size == 0:
        return like
    if values.ndim != like.ndim or values.shape[1:] != like.shape[1:]:
        accepted = "(n, 3): thread, start and end in ns" if like.ndim == 2 else "(n,)"
        raise InvalidArgument(f"{name} has the shape {values.shape}; accepted is {accepted}")
    return values
