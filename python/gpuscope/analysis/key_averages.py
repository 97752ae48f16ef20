# SPDX-License-Identifier: Apache-2.0
"""One row for each name: how often, how long, on the CPU and on the GPU, and what memory and arithmetic it took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuscope import _core
from gpuscope.analysis.audit import audit
from gpuscope.analysis.averages import Averages, FunctionEventAvg
from gpuscope.analysis.event_list import DeviceType
from gpuscope.analysis.kinds import KINDS, MEMORY, Kind, RegionKind
from gpuscope.analysis.region_groups import group_regions
from gpuscope.errors import InvalidArgument
from gpuscope.trace import NONE, Trace

NS_PER_US = 1e3


def key_averages(
    trace: Trace, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
) -> Averages:
    """One row for each region, operator, kernel, copy, fill, driver call and synchronization, by name.

    Args:
        trace: the recording.
        group_by_input_shape: tell regions and operators apart by the shapes of their inputs too (``record_shapes``).
        group_by_stack_n: and by so many of the innermost Python frames (``with_stack``).
        group_by_overload_name: accepted as torch does; overloads are not recorded, so that it groups nothing.

    Returns:
        The rows, in the order in which regions and then work of each kind first came up. In aggregate mode, which keeps
        no single events, nothing is told apart by shapes and stacks.

    Raises:
        InvalidArgument: ``group_by_stack_n`` is not a whole number from 0.
    """
    if type(group_by_stack_n) is not int or group_by_stack_n < 0:
        raise InvalidArgument(f"group_by_stack_n is {group_by_stack_n!r}; accepted are whole numbers from 0")
    summary = trace.summary
    names = summary.names
    use_device = "cuda" if summary.has_device else None
    rows = list(group_regions(trace, group_by_input_shape, group_by_stack_n, use_device))
    single_regions = bool(rows)
    for total in summary.totals:
        if total.kind in KINDS and not (single_regions and total.kind == Kind.REGION):
            rows.append(_average(total, names[total.name], use_device))
    rows.extend(_outside_memory(trace, use_device))
    return Averages(
        rows,
        self_cpu_time_total=summary.cpu_ns / NS_PER_US,
        self_device_time_total=summary.device_ns / NS_PER_US,
        has_device=summary.has_device,
        has_memory=len(trace.memory) > 0,
        verdict=audit(trace).verdict,
    )


def _average(total: _core.NameStat, name: str, use_device: str | None) -> FunctionEventAvg:
    kind = KINDS[total.kind]
    durations = total.durations
    label: dict[str, Any] = {"kind": kind.label}
    if kind == Kind.REGION:
        region_kind = RegionKind.of(total.region_kind)
        label = {"kind": region_kind.label, "is_user_annotation": region_kind.is_annotation}
    return FunctionEventAvg(
        key=name,
        device_type=DeviceType.CUDA if kind.is_device else DeviceType.CPU,
        count=durations.count,
        cpu_time_total=total.cpu_ns / NS_PER_US,
        self_cpu_time_total=total.self_cpu_ns / NS_PER_US,
        device_time_total=total.device_ns / NS_PER_US,
        self_device_time_total=total.self_device_ns / NS_PER_US,
        p50=durations.p50_ns / NS_PER_US,
        p95=durations.p95_ns / NS_PER_US,
        p99=durations.p99_ns / NS_PER_US,
        min=durations.min_ns / NS_PER_US,
        max=durations.max_ns / NS_PER_US,
        bytes=total.bytes,
        is_top_level=total.is_top_level,
        use_device=use_device,
        **label,
    )


def _outside_memory(trace: Trace, use_device: str | None) -> Iterator[FunctionEventAvg]:
    """The row of the memory that was taken or given back outside every region, if any was."""
    memory = trace.memory
    outside = memory.region >= len(trace.regions)
    count = int(outside.sum())
    if not count:
        return
    on_host = memory.ordinal == NONE
    host = int(memory.bytes[outside & on_host].sum())
    device = int(memory.bytes[outside & ~on_host].sum())
    yield FunctionEventAvg(
        key=MEMORY,
        kind=Kind.MEMORY.label,
        device_type=DeviceType.CPU,
        count=count,
        cpu_time_total=0.0,
        self_cpu_time_total=0.0,
        device_time_total=0.0,
        self_device_time_total=0.0,
        p50=0.0,
        p95=0.0,
        p99=0.0,
        min=0.0,
        max=0.0,
        bytes=0,
        is_top_level=True,
        use_device=use_device,
        cpu_memory_usage=host,
        self_cpu_memory_usage=host,
        device_memory_usage=device,
        self_device_memory_usage=device,
    )
