# SPDX-License-Identifier: Apache-2.0
"""Categories of the memory in a recording, from the operators and regions in which it was taken and given back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.categories import UNKNOWN, Phase, between_neighbours, by_phase, phase_of
from gpuscope.memory.events import SOURCES, Frame, MemoryEvents
from gpuscope.trace import NONE, Trace

_DEEPEST = 1000  # regions in regions
_MODULE = 3  # the kind of a path that is a call of a torch.nn.Module
_BACKWARD = "autograd::engine::evaluate_function: "
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")


def categories(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The category of what each row of `trace.memory` takes or gives back, a number of `CATEGORIES`.

    Args:
        trace: the recording. Autograd's operators and the optimizer's regions are always in it; what belongs to the
            forward is known from modules (``with_modules``), call stacks (``with_stack``) or, without both, from the
            operators that autograd's refer to.
        rows: of one device, in order of time.

    Returns:
        Shape (rows,); what was taken before the recording is UNKNOWN.
    """
    memory = trace.memory
    phase_of_region, operator_of_region = _regions(trace)
    region = memory.region[rows]
    inside = region != NONE
    where = np.where(inside, region, 0)
    phases, operators = np.full(len(rows), Phase.UNKNOWN, dtype=np.uint8), np.full(len(rows), -1, dtype=np.int64)
    if len(phase_of_region):
        phases[inside], operators[inside] = phase_of_region[where][inside], operator_of_region[where][inside]
    events = _events(trace, rows)
    lifetimes = events.lifetimes()
    found = by_phase(lifetimes, between_neighbours(phases, events.thread), operators)
    by_row = np.full(len(rows), UNKNOWN, dtype=np.uint8)
    by_row[lifetimes.born] = found
    ended = ~lifetimes.alive
    ends = lifetimes.died[ended]
    released = events.bytes[ends] < 0  # else the release was not seen, and the row begins another piece
    by_row[ends[released]] = found[ended][released]
    return by_row


def _regions(trace: Trace) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Phase of each region, and the region of autograd's operator that it lies in, -1 for none."""
    regions, paths, details = trace.regions, trace.paths, trace.details
    count = len(regions)
    if not count:
        return np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    of_path = np.array(
        [_named(trace.string(name), kind) for name, kind in zip(paths.name.tolist(), paths.kind.tolist(), strict=True)],
        dtype=np.uint8,
    )
    phases = of_path[regions.path]
    operators = np.where(phases == Phase.BACKWARD, np.arange(count), -1)
    # What a stack says comes behind what the region's own name says.
    told = (details.stack != NONE) & (phases[details.region] == Phase.UNKNOWN)
    by_stack = np.array([phase_of(frames) for frames in _stacks(trace)], dtype=np.uint8)
    if told.any():
        phases[details.region[told]] = by_stack[details.stack[told]]
    forward = details.forward[details.forward != NONE]
    phases[forward[np.isin(phases[forward], (Phase.UNKNOWN, Phase.OUTSIDE))]] = Phase.FORWARD
    parent = np.where(regions.parent == NONE, np.arange(count), regions.parent)
    for _ in range(_DEEPEST):
        outer = phases[parent]
        # An outer region decides, but for a forward that is computed again within a backward.
        known = (
            (outer != Phase.UNKNOWN)
            & (outer != Phase.OUTSIDE)
            & (phases != outer)
            & ~((outer == Phase.BACKWARD) & (phases == Phase.FORWARD))
        )
        inherits = (operators < 0) & (operators[parent] >= 0)
        if not (known.any() or inherits.any()):
            break
        phases[known] = outer[known]
        operators[inherits] = operators[parent][inherits]
    phases[phases == Phase.UNKNOWN] = Phase.OUTSIDE
    return phases, operators


def _named(name: str, kind: int) -> int:
    if name.startswith(_BACKWARD):
        return Phase.BACKWARD
    if name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER
    return Phase.FORWARD if kind == _MODULE else Phase.UNKNOWN


def _stacks(trace: Trace) -> list[tuple[Frame, ...]]:
    stacks = trace.stacks
    known: list[tuple[Frame, ...]] = []
    rows = zip(*(stacks[column].tolist() for column in ("parent", "function", "file", "line")), strict=True)
    for row, (parent, function, file, line) in enumerate(rows):
        callers = known[parent] if parent < row else ()
        known.append((Frame(trace.string(function), trace.string(file), line), *callers))
    return known


def _events(trace: Trace, rows: NDArray[np.int64]) -> MemoryEvents:
    memory = trace.memory
    numbers: dict[str, Any] = {
        "allocated": memory.allocated_bytes[rows].astype(np.int64),
        "reserved": memory.reserved_bytes[rows].astype(np.int64),
        "thread": memory.thread[rows].astype(np.uint64) + np.uint64(1),
    }
    return MemoryEvents(
        time_ns=memory.start_ns[rows],
        address=memory.address[rows],
        bytes=memory.bytes[rows],
        device=memory.ordinal[rows].astype(np.int32),
        stack=np.zeros(len(rows), dtype=np.uint32),
        region=np.zeros(len(rows), dtype=np.uint32),
        source=np.full(len(rows), SOURCES.index("torch"), dtype=np.uint8),
        **numbers,
    )
