# SPDX-License-Identifier: Apache-2.0
"""Allocations of real PyTorch programs on the CPU as memory events, taken from a recording with call stacks."""

from __future__ import annotations

import numpy as np

import gpuscope
from gpuscope.devices import HOST
from gpuscope.memory.history.events import SOURCES, Frame, MemoryEvents
from gpuscope.trace import NONE


def record(run):
    """Events of what `run()` allocates. A release outside of every operator has no stack."""
    with gpuscope.profile(profile_memory=True, with_stack=True) as profiler:
        run()
    return from_trace(profiler.trace)


def from_trace(trace):
    memory = trace.memory
    rows = np.argsort(memory.start_ns, kind="stable")
    stack_of = dict(zip(trace.details.region.tolist(), trace.details.stack.tolist(), strict=True))
    parents = trace.regions.parent.tolist()

    def stack(region):
        while region != NONE:
            if stack_of.get(region, NONE) != NONE:
                return stack_of[region] + 1
            region = parents[region]
        return 0

    count = len(rows)
    return MemoryEvents(
        time_ns=memory.start_ns[rows],
        address=memory.address[rows],
        bytes=memory.bytes[rows],
        allocated_bytes=memory.allocated_bytes[rows].astype(np.int64),
        reserved_bytes=memory.reserved_bytes[rows].astype(np.int64),
        device=np.full(count, HOST, dtype=np.int32),
        stack=np.array([stack(region) for region in memory.region[rows].tolist()], dtype=np.uint32),
        region=np.zeros(count, dtype=np.uint32),
        thread=trace.threads.system_id[memory.thread[rows]].astype(np.uint64),
        source=np.full(count, SOURCES.index("torch"), dtype=np.uint8),
        frames=_frames(trace),
    )


def _frames(trace):
    stacks = trace.stacks
    known = [()]
    for parent, function, file, line in zip(
        *(stacks[name].tolist() for name in ("parent", "function", "file", "line")), strict=True
    ):
        callers = known[parent + 1] if parent + 1 < len(known) else ()
        known.append((Frame(trace.string(function), trace.string(file), line), *callers))
    return lambda number: known[number] if number < len(known) else ()
