# SPDX-License-Identifier: Apache-2.0
"""Regions gathered by name, shapes and call stack, from the figures of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope.analysis.averages import FunctionEventAvg
from gpuscope.analysis.event_list import DeviceType
from gpuscope.analysis.region_rows import RegionRows
from gpuscope.analysis.shapes import flat_shapes
from gpuscope.trace import ASYNC, NONE, Trace

Array = np.ndarray[Any, Any]
NS_PER_US = 1e3
DENSE = 1 << 20


def group_regions(
    trace: Trace, by_shapes: bool, stack_depth: int, use_device: str | None
) -> Iterator[FunctionEventAvg]:
    """One row for each name and kind of region, and for each shapes and stack if asked, in order of first appearance.

    Nothing in aggregate mode, which keeps no single regions.
    """
    rows = RegionRows(trace)
    if not len(rows):
        return
    path_names = [*trace.summary.path_names, len(trace.summary.names)]
    groups, first = _numbered(np.array(path_names)[rows.path])
    if by_shapes:
        texts = _classes(rows.shapes, lambda shapes: str(flat_shapes(rows.shapes_of(shapes))))
        groups, first = _numbered(groups.astype(np.int64) * (int(texts.max()) + 1) + texts)
    if stack_depth:
        stacks = _classes(rows.stack, lambda stack: _frames(rows, stack, stack_depth))
        groups, first = _numbered(groups.astype(np.int64) * (int(stacks.max()) + 1) + stacks)
    count = len(first)
    groups = groups[rows.counted_as]
    counted = rows.counted_as == np.arange(len(rows))

    def summed(values: Array) -> list[int]:
        """Exact below 2^53."""
        sums: list[int] = np.bincount(groups, weights=values, minlength=count).astype(np.int64).tolist()
        return sums

    instances = trace.instances
    duration_ns = trace.regions.duration_ns
    outermost = instances.outermost
    none = [0] * count
    has_memory, has_shapes = len(trace.memory) > 0, bool(rows.has_shapes.any())
    durations = _core.measure_groups(duration_ns[counted], groups[counted], count)
    columns = zip(
        first.tolist(),
        durations,
        summed(duration_ns * outermost),
        summed(instances.self_cpu_ns),
        summed(instances.device_ns * outermost),
        summed(instances.self_device_ns),
        summed(instances.cpu_bytes * outermost) if has_memory else none,
        summed(instances.self_cpu_bytes) if has_memory else none,
        summed(instances.device_bytes * outermost) if has_memory else none,
        summed(instances.self_device_bytes) if has_memory else none,
        summed(np.maximum(rows.flops, 0)) if has_shapes else none,
        summed(rows.parent == len(rows)),
        strict=True,
    )
    names, kinds, scopes = trace.summary.names, rows.path_kinds, rows.path_scopes
    flags = trace.regions.flags
    for row, stat, cpu, own_cpu, device, own_device, host, own_host, memory, own_memory, flops, top in columns:
        path = int(rows.path[row])
        if path == len(trace.paths) or not stat.count:
            continue
        yield FunctionEventAvg(
            key=names[path_names[path]],
            kind=kinds[path].label,
            device_type=DeviceType.CPU,
            count=stat.count,
            cpu_time_total=cpu / NS_PER_US,
            self_cpu_time_total=own_cpu / NS_PER_US,
            device_time_total=device / NS_PER_US,
            self_device_time_total=own_device / NS_PER_US,
            p50=stat.p50_ns / NS_PER_US,
            p95=stat.p95_ns / NS_PER_US,
            p99=stat.p99_ns / NS_PER_US,
            min=stat.min_ns / NS_PER_US,
            max=stat.max_ns / NS_PER_US,
            bytes=0,
            is_top_level=top > 0,
            use_device=use_device,
            is_async=bool(flags[row] & ASYNC),
            is_user_annotation=kinds[path].is_annotation,
            flops=flops,
            input_shapes=flat_shapes(rows.shapes_of(int(rows.shapes[row]))) if by_shapes else "",
            stack=list(_frames(rows, int(rows.stack[row]), stack_depth)) if stack_depth else [],
            scope=scopes[path],
            cpu_memory_usage=host,
            self_cpu_memory_usage=own_host,
            device_memory_usage=memory,
            self_device_memory_usage=own_memory,
        )


def _frames(rows: RegionRows, stack: int, depth: int) -> Sequence[str]:
    return rows.stack_texts[stack][:depth] if stack < len(rows.stack_texts) else ()


def _numbered(keys: Array) -> tuple[Array, Array]:
    """Keys numbered in the order in which they first come up, and where each does."""
    span = int(keys.max()) + 1
    if span > max(DENSE, 4 * len(keys)):
        _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first)
        places = np.empty(len(first), dtype=np.uint32)
        places[order] = np.arange(len(first), dtype=np.uint32)
        return places[numbers.reshape(-1)], first[order]
    place = np.full(span, len(keys), dtype=np.int64)
    place[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)  # of several, the last assigned stays: the first to come up
    first = np.sort(place[place < len(keys)])
    numbers = np.zeros(span, dtype=np.uint32)
    numbers[keys[first]] = np.arange(len(first), dtype=np.uint32)
    return numbers[keys], first


def _classes(values: Array, name: Callable[[int], Hashable]) -> Array:
    """Numbers for values, one and the same for those that have one name; NONE is a value too."""
    numbers, first = _numbered(np.where(values == NONE, 0, values.astype(np.int64) + 1))
    known: dict[Hashable, int] = {}
    classes = [known.setdefault(name(value), len(known)) for value in values[first].tolist()]
    return np.array(classes, dtype=np.int64)[numbers]
