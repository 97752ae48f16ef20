# SPDX-License-Identifier: Apache-2.0
"""What a fix is worth: how long the recorded steps would have taken with some of their causes gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope import _core
from gpuscope.diagnosis.steps import Array, Steps
from gpuscope.trace import Trace


def _no_rows() -> Array:
    return np.zeros(0, np.int64)


def _no_factors() -> Array:
    return np.zeros(0, np.float64)


def _no_spans() -> Array:
    return np.zeros((0, 3), np.int64)


@dataclass(frozen=True, eq=False)
class Edit:
    """What a fix would change of what was recorded. Rows that the recording does not have change nothing.

    Attributes:
        unwaited: rows of ``trace.api``: calls that no longer wait for the GPU; they keep the time that they take
            without waiting.
        removed_calls: rows of ``trace.api``: calls that are no longer made, with the work that they launched.
        host_spans: int64 of shape (n, 3): row of ``trace.threads``, start and end in ns: time of a host thread that is
            no longer spent; calls in it are still made.
        kernels: rows of ``trace.kernels``.
        kernel_factors: float64: what remains of the duration of each of these.
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
    """What edits save, as shares of the wall time of the steps.

    Attributes:
        value: the median over the steps; of a bound, the most that can be saved.
        low: the lower end of the interval of that median over the steps; 0 of a bound.
        high: the upper end.
        is_bound: no model reproduced the steps: `value` is an upper bound.
    """

    value: float
    low: float
    high: float
    is_bound: bool


class Replay:
    """Recorded steps that can be run again with edits.

    Attributes:
        error: how far the replayed unchanged steps are from the recorded ones: |replayed / recorded - 1|, the median
            over the steps; inf without a model.
        reason: why the model is not accepted, so that savings are bounds; None when it is.
    """

    def __init__(self, trace: Trace, steps: Steps, error: float, reason: str | None) -> None:
        self._trace, self._steps = trace, steps
        self.error = error
        self.reason = reason

    def saving(self, edits: Sequence[Edit]) -> Saving:
        """What all these edits save together."""
        return self._bound(edits)

    def _bound(self, edits: Sequence[Edit]) -> Saving:
        """No step gets shorter by more than is taken out of it; and what the host does less of only ends idle time.

        The time of a step is the length of a longest path through waits and work, which no edit shortens by more than
        the sum of what it takes from pieces of that path.
        """
        trace, steps = self._trace, self._steps
        host_ns, device_ns = np.zeros(len(steps)), np.zeros(len(steps))
        for edit in edits:
            calls = np.union1d(edit.unwaited, edit.removed_calls).astype(np.int64)
            calls = calls[(calls >= 0) & (calls < len(trace.api))]
            host_ns += self._in_steps(trace.api.start_ns[calls], trace.api.duration_ns[calls])
            spans = edit.host_spans
            host_ns += self._in_steps(spans[:, 1], spans[:, 2] - spans[:, 1])
            for table, rows, factors in (
                (trace.kernels, edit.kernels, edit.kernel_factors),
                (trace.memcpy, edit.copies, edit.copy_factors),
            ):
                known = (rows >= 0) & (rows < len(table))
                saved = table.duration_ns[rows[known]] * (1 - np.clip(factors[known], 0, 1))
                device_ns += self._in_steps(table.start_ns[rows[known]], saved)
        idle_ns = self._idle_ns()
        durations = np.maximum(steps.durations_ns, 1)
        value = float(np.median(np.minimum((np.minimum(host_ns, idle_ns) + device_ns) / durations, 1.0)))
        return Saving(value, 0.0, value, is_bound=True)

    def _in_steps(self, starts: Array, lengths: Array) -> Array:
        """The sum of the lengths in each step."""
        steps = self._steps
        at = np.searchsorted(steps.start_ns, starts, side="right") - 1
        inside = (at >= 0) & (starts < steps.end_ns[np.maximum(at, 0)])
        sums: Array = np.bincount(at[inside], lengths[inside], len(steps))
        return sums

    def _idle_ns(self) -> Array:
        """Of each step, how long no GPU did anything."""
        trace, steps = self._trace, self._steps
        tables = (trace.kernels, trace.graph_launches, trace.memcpy, trace.memset)
        starts = np.concatenate([table.start_ns for table in tables])
        ends = starts + np.concatenate([table.duration_ns for table in tables])
        alone, _ = _core.divide_time(steps.start_ns, steps.end_ns, starts, ends, np.zeros(len(starts), np.uint8), 1)
        idle: Array = alone[:, -1]
        return idle


def make_replay(trace: Trace, steps: Steps) -> Replay:
    """The steps of a recording, to be run again with edits."""
    return Replay(trace, steps, float("inf"), "no model of the recording was made")
