# SPDX-License-Identifier: Apache-2.0
"""Why a rank arrives late at its collectives: the causes of its idle time before them, and low clocks."""

from __future__ import annotations

import os
from collections import defaultdict

import numpy as np

from gpuscope.analysis.device_samples import Series
from gpuscope.fleet.tables import Array, Columns, empty
from gpuscope.spans import overlaps
from gpuscope.steps.breakdown import break_down
from gpuscope.steps.host_waits import program_frame, spans_seen
from gpuscope.steps.idle import WAITING, IdleCause, IdlePieces, explain_steps
from gpuscope.steps.steps import Steps
from gpuscope.trace import Trace

THROTTLED = "throttled clock"
SYNCHRONIZATION = "synchronization"
LEAST_NS = 100_000
"""Shorter times have no row."""

_LEAST_BELOW = 0.03  # of the clock, which has steps of 15 MHz
_BUSY = 50  # percent: idle GPUs lower their clock
_NO_REASONS = (IdleCause.BACK_TO_BACK, IdleCause.UNSEEN, IdleCause.NO_WORK_AFTER)


def find_reasons(
    trace: Trace, device: int | None, thread: int, windows: tuple[Array, Array], idle_ns: Array, compute_ns: Array
) -> Columns:
    """The table `reason` of one rank, without the column `rank`.

    A reason has one row in each window. Its rows are as long as the reason took in the window, and follow each other
    from the start of the window.

    Args:
        trace: the recording.
        device: CUDA's number of the GPU; None without one.
        thread: row of ``trace.threads`` of the thread that takes the steps.
        windows: starts and ends of the times before collectives, in order and without overlap.
        idle_ns: time without GPU work in each.
        compute_ns: time with kernels in each.
    """
    starts, ends = windows
    found = [_throttled(trace, device, starts, ends, compute_ns)]
    long = np.flatnonzero(idle_ns > LEAST_NS)
    if len(long):
        steps = Steps(starts[long], ends[long], "before collectives")
        devices = break_down(trace, steps).devices
        of_device = [each.pieces for each in devices if each.device == device]
        pieces = of_device[0] if of_device else explain_steps(trace, steps, thread)
        found += _of_pieces(trace, pieces, thread, steps.start_ns)
    rows = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    order = np.argsort(rows["start_ns"], kind="stable")
    return {name: values[order] for name, values in rows.items()}


def _rows(starts: Array, durations: Array, reason: str) -> Columns:
    """The rows that last long enough."""
    long = np.flatnonzero(durations > LEAST_NS)
    starts = starts[long]
    ends = starts + durations[long].astype(np.int64)
    return {"start_ns": starts, "end_ns": ends, "reason": np.full(len(long), reason, object)}


def _of_pieces(trace: Trace, pieces: IdlePieces, thread: int, starts: Array) -> list[Columns]:
    totals: defaultdict[str, Array] = defaultdict(lambda: np.zeros(len(starts)))  # of windows, by reason
    for cause in IdleCause:
        rows = pieces.having(cause)
        if cause == IdleCause.HOST_CODE:
            _add_host_code(trace, pieces, rows, thread, totals)
        elif cause not in _NO_REASONS:
            label = SYNCHRONIZATION if cause in WAITING else cause.label
            np.add.at(totals[label], pieces.step[rows], pieces.cause_ns[cause, rows])
    found, next_ns = [], starts.copy()
    for reason, total_ns in totals.items():
        found.append(_rows(next_ns, total_ns, reason))
        next_ns += total_ns.astype(np.int64)
    return found


def _add_host_code(trace: Trace, pieces: IdlePieces, rows: Array, thread: int, totals: dict[str, Array]) -> None:
    """Divides the program's code among the functions that samples of the launching thread saw."""
    spent, step, samples = pieces.cause_ns[IdleCause.HOST_CODE, rows], pieces.step[rows], trace.python_samples
    threads = np.append(trace.api.thread, thread)[pieces.launch[rows]]
    known = np.zeros(len(rows), bool)
    for each in np.unique(threads).tolist():
        own = np.flatnonzero(threads == each)
        seen = np.flatnonzero((samples.thread == each) & (samples.duration_ns > 0))
        seen = seen[np.argsort(samples.start_ns[seen], kind="stable")]
        begun, left = spans_seen(trace, seen)
        begins, ends = pieces.start_ns[rows[own]], pieces.end_ns[rows[own]]
        piece, sample = overlaps((begun, left), begins, ends)
        shared = np.minimum(left[sample], ends[piece]) - np.maximum(begun[sample], begins[piece])
        seen_ns = np.bincount(piece, shared, len(own))
        known[own] = seen_ns > 0
        time = shared / np.maximum(seen_ns[piece], 1) * spent[own[piece]]
        stacks, stack = np.unique(samples.stack[seen[sample]], return_inverse=True)
        functions = np.array([_function(trace, each) for each in stacks.tolist()], object)[stack]
        for function in dict.fromkeys(functions.tolist()):
            here = np.flatnonzero(functions == function)
            np.add.at(totals[function], step[own[piece[here]]], time[here])
    # Without the wait for the GPU before it, this code would have run while the GPU worked.
    after_wait = (pieces.drain[rows] >= 0) & (pieces.waited_ns[rows] >= spent)
    for reason, chosen in ((SYNCHRONIZATION, after_wait), (IdleCause.HOST_CODE.label, ~after_wait)):
        np.add.at(totals[reason], step[chosen & ~known], spent[chosen & ~known])


def _function(trace: Trace, stack: int) -> str:
    """The function of the program, "tokenize (data.py)"; of code outside of functions its line, "train.py:12"."""
    if stack >= len(trace.stacks):
        return IdleCause.HOST_CODE.label
    frame = program_frame(trace, stack)
    file, function = (trace.string(int(trace.stacks[name][frame])) for name in ("file", "function"))
    file = os.path.basename(file)
    return f"{file}:{int(trace.stacks.line[frame])}" if function == "<module>" else f"{function} ({file})"


def _throttled(trace: Trace, device: int | None, starts: Array, ends: Array, compute_ns: Array) -> Columns:
    """By how much kernels took longer than at the highest clock, at the start of each window."""
    table = trace.device_samples
    idle = (table.busy_percent >= 0) & (table.busy_percent < _BUSY)
    rows = np.flatnonzero((table.device == (-1 if device is None else device)) & (table.sm_mhz > 0) & ~idle)
    if len(rows) == 0 or len(starts) == 0:
        return {name: values for name, values in empty("reason").items() if name != "rank"}
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    most = max(table.sm_max_mhz[rows].max(), table.sm_mhz[rows].max())
    clock = Series(table.start_ns[rows], table.sm_mhz[rows])
    below = 1 - clock.integral(starts, ends) / np.maximum(ends - starts, 1) / most
    lost_ns = np.where(below >= _LEAST_BELOW, below * compute_ns, 0.0)
    return _rows(starts, lost_ns, THROTTLED)
