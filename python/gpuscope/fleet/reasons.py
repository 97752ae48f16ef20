# SPDX-License-Identifier: Apache-2.0
"""Why a rank arrives late at its collectives: the causes of its idle time before them, and low clocks."""

from __future__ import annotations

import os

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
_UNKNOWN = (IdleCause.UNSEEN, IdleCause.NO_WORK_AFTER)


def find_reasons(
    trace: Trace, device: int | None, thread: int, windows: tuple[Array, Array], idle_ns: Array, compute_ns: Array
) -> Columns:
    """The table `reason` of one rank, without the column `rank`.

    The reasons of a gap follow each other in its row order, as only their durations are known.

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
        found += _of_pieces(trace, pieces, thread)
    rows = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    order = np.argsort(rows["start_ns"], kind="stable")
    return {name: values[order] for name, values in rows.items()}


def _rows(starts: Array, durations: Array, reasons: Array | list[str]) -> Columns:
    """The rows that last long enough."""
    long = np.flatnonzero(durations > LEAST_NS)
    starts, names = starts[long], np.array(reasons, object)[long]
    return {"start_ns": starts, "end_ns": starts + durations[long].astype(np.int64), "reason": names}


def _of_pieces(trace: Trace, pieces: IdlePieces, thread: int) -> list[Columns]:
    begins = pieces.start_ns + np.cumsum(pieces.cause_ns, axis=0) - pieces.cause_ns
    found = []
    for cause in IdleCause:
        if cause in _UNKNOWN or not pieces.present[cause]:
            continue
        spent = pieces.cause_ns[cause]
        names = np.full(len(pieces), SYNCHRONIZATION if cause in WAITING else cause.label, object)
        if cause == IdleCause.HOST_CODE:
            # Without a wait for the GPU before it, this code would have run while the GPU worked.
            names[(pieces.drain >= 0) & (pieces.waited_ns >= spent)] = SYNCHRONIZATION
            _name_code(trace, pieces, np.flatnonzero(spent > LEAST_NS), thread, names)
        found.append(_rows(begins[cause], spent, names))
    return found


def _name_code(trace: Trace, pieces: IdlePieces, rows: Array, thread: int, names: Array) -> None:
    """Gives pieces the name of the program's function that most samples of the launching thread saw."""
    samples = trace.python_samples
    threads = np.append(trace.api.thread, thread)[pieces.launch[rows]]
    for each in np.unique(threads).tolist():
        own, seen = rows[threads == each], np.flatnonzero((samples.thread == each) & (samples.duration_ns > 0))
        seen = seen[np.argsort(samples.start_ns[seen], kind="stable")]
        begun, left = spans_seen(trace, seen)
        piece, sample = overlaps((begun, left), pieces.start_ns[own], pieces.end_ns[own])
        if len(piece) == 0:
            continue
        shared = np.minimum(left[sample], pieces.end_ns[own[piece]])
        shared -= np.maximum(begun[sample], pieces.start_ns[own[piece]])
        stacks, stack = np.unique(samples.stack[seen[sample]], return_inverse=True)
        functions, place = np.unique([_function(trace, each) for each in stacks.tolist()], return_inverse=True)
        times = np.bincount(piece * len(functions) + place[stack], shared, len(own) * len(functions))
        times = times.reshape(len(own), len(functions))
        known = times.any(axis=1)
        names[own[known]] = functions[times[known].argmax(axis=1)]


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
    return _rows(starts, lost_ns, [THROTTLED] * len(starts))
