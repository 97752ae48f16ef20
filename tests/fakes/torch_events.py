# SPDX-License-Identifier: Apache-2.0
"""A recording made of what torch.profiler saw, so that both can be asked the same."""

from __future__ import annotations

from typing import Any

from fakes.gscope import NONE
from fakes.recordings import make_trace
from gpuscope.trace import Trace

OP, RANGE = 1, 2


def as_trace(profiler: Any) -> Trace:
    """The operators, annotations and host allocations of a torch.profiler run on the CPU, without numbers of operators.

    torch forgets which allocation was where: each operator's own memory becomes one allocation inside it.
    """
    events = [event for event in profiler.events() if event.name != "[memory]"]
    rows = {id(event): row for row, event in enumerate(events)}
    paths: dict[tuple[int, str, int], int] = {}
    threads: dict[int, int] = {}
    path_of: list[int] = []
    region: dict[str, list[Any]] = {name: [] for name in ("start_ns", "duration_ns", "parent", "path", "thread")}
    detail: dict[str, list[Any]] = {name: [] for name in ("region", "sequence", "shapes", "forward")}
    memory: dict[str, list[Any]] = {name: [] for name in ("start_ns", "bytes", "region", "ordinal")}
    forward_of: dict[int, int] = {}
    for row, event in enumerate(events):
        parent = rows[id(event.cpu_parent)] if event.cpu_parent is not None else NONE
        key = (path_of[parent] if parent != NONE else NONE, event.name, RANGE if event.scope == 7 else OP)
        path_of.append(paths.setdefault(key, len(paths)))
        region["start_ns"].append(round(event.time_range.start * 1000))
        region["duration_ns"].append(round(event.time_range.elapsed_us() * 1000))
        region["parent"].append(parent)
        region["path"].append(path_of[-1])
        region["thread"].append(threads.setdefault(event.thread, len(threads)))
        detail["region"].append(row)
        detail["sequence"].append(event.sequence_nr)
        detail["shapes"].append(str(event.input_shapes))
        detail["forward"].append(forward_of.get(event.sequence_nr, NONE) if event.scope == 1 else NONE)
        if event.scope == 0 and event.sequence_nr >= 0 and "evaluate_function" not in event.name:
            forward_of[event.sequence_nr] = row
        if event.self_cpu_memory_usage:
            memory["start_ns"].append(region["start_ns"][-1])
            memory["bytes"].append(event.self_cpu_memory_usage)
            memory["region"].append(row)
            memory["ordinal"].append(NONE)
    for event in profiler.events():
        if event.name == "[memory]":
            memory["start_ns"].append(round(event.time_range.start * 1000))
            memory["bytes"].append(event.cpu_memory_usage)
            memory["region"].append(NONE)
            memory["ordinal"].append(NONE)
    parents, names, kinds = zip(*paths, strict=True)
    return make_trace(
        {
            "path": {"name": names, "parent": parents, "kind": kinds},
            "thread": {"system_id": list(threads)},
            "region": region,
            "detail": detail,
            "allocation": memory,
        },
        info={"session.tier": "cpu", "session.stop_ns": "1000000000"},
    )
