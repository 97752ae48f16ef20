# SPDX-License-Identifier: Apache-2.0
"""One row for each name: how often, how long, on the CPU and on the GPU, and what memory and arithmetic it took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core, plots
from gpuscope._core import Flag
from gpuscope.analysis.completeness import audit, has_every_region, kept_ns
from gpuscope.analysis.event_list import (
    SORT_KEYS,
    DeviceType,
    EventList,
    TorchNames,
    device_key,
    device_type,
    format_share,
)
from gpuscope.analysis.flops import count_flops
from gpuscope.analysis.python_samples import outside_regions_ns
from gpuscope.analysis.rows import (
    ANNOTATIONS,
    KINDS,
    MEMORY,
    NS_PER_US,
    OUTSIDE,
    Kind,
    RegionRows,
    flat_shapes,
    region_kind,
)
from gpuscope.arguments import check_count
from gpuscope.errors import InvalidArgument
from gpuscope.spans import union_ns
from gpuscope.text import brief
from gpuscope.trace import NONE, Trace, number_of
from gpuscope.units import US_PER_S

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes


@dataclass
class FunctionEventAvg(TorchNames):
    """All events of one kind and name. Times are in us, memory in bytes, under torch.profiler's names.

    Self time: the time in which the region was the innermost open region of its thread or task. Device time: the GPU
    work launched in the region before it ended. Inclusive times and memory count only the outermost region of a name
    on a call path. See docs/explanation/times.md.

    Attributes:
        key: name of the region, operator, driver call or kernel (demangled), or "Memcpy HtoD (Pageable -> Device)".
            "[memory]" is memory allocated or freed outside every region. "[outside every region]" is the time there,
            if Python was sampled.
        kind: region, op (operator of a framework), range (annotation of a library) or module. GPU work: kernel, memcpy
            or memset. Host: call, sync, graph launch, memory, python function or outside.
        count: number of events. As in torch, an event that is all that another of its name contains is not counted.
        cpu_time_total: inclusive CPU time. For decorated coroutines and generators, the time their bodies ran.
        elapsed_time_total: time from start to end: CPU time plus the time coroutines and generators were suspended.
        self_cpu_time_total: CPU time without the regions and driver calls inside, and without Python functions inside
            if those are rows too.
        device_time_total: inclusive GPU time.
        self_device_time_total: GPU time launched directly, in no region inside.
        p50: median duration, on the GPU for GPU work. p95, p99, min and max likewise. p50, p95 and p99 of a sum of rows
            are unknown and 0.
        bytes: moved or filled.
        is_top_level: at least one event was in no region.
        cpu_memory_usage: host memory allocated minus freed (``profile_memory``). device_memory_usage is the GPU's.
            self_cpu_memory_usage and self_device_memory_usage exclude regions inside.
        input_shapes: sizes of each input, [] for a non-tensor; "" unless rows are grouped by shape.
        flops: sum over the operators whose shapes determine them; see ``analysis.flops``.
        stack: the innermost Python frames, as many as rows are grouped by.
        scope: torch's RecordScope: 0 operator, 1 backward function, 7 named by the program or a library.
        is_user_annotation: the program or a library gave the name.
        cpu_parent: None, as is cpu_children. torch takes both from one event; `events` has them for each event.
        self_cpu_percent: share of the recording's self CPU time, as text. total_cpu_percent is the inclusive time's
            share, total_device_percent the share of GPU time.
        is_python_function: a Python function, or garbage collections.
        is_async: the region may end on another thread, overlaps others and has no self time.
        overload_name: the operator's overload if rows are grouped by overload; else "".
    """

    key: str = ""
    kind: str = ""
    device_type: DeviceType = DeviceType.CPU
    count: int = 0
    cpu_time_total: float = 0.0
    elapsed_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    device_time_total: float = 0.0
    self_device_time_total: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    min: float = 0.0
    max: float = 0.0
    bytes: int = 0
    is_top_level: bool = True
    use_device: str | None = None
    node_id: int = -1
    is_async: bool = False
    is_user_annotation: bool = False
    is_python_function: bool = False
    is_remote: bool = False
    is_legacy: bool = False
    flops: int = 0
    input_shapes: list[list[int]] | str = ""
    stack: list[str] = field(default_factory=list)
    overload_name: str = ""
    scope: int = 0
    cpu_memory_usage: int = 0
    device_memory_usage: int = 0
    self_cpu_memory_usage: int = 0
    self_device_memory_usage: int = 0
    self_cpu_percent: str = "NaN"
    total_cpu_percent: str = "NaN"
    total_device_percent: str = "NaN"

    cpu_parent = cpu_children = None

    def add(self, other: Any) -> FunctionEventAvg:
        """Adds a row of the same key, of another rank say, or an event; ``+=`` does the same.

        A row without a key, as ``FunctionEventAvg()`` is, takes over that of `other`, and what belongs to it.

        Raises:
            InvalidArgument: `other` is neither a row nor an event, or has another key.
        """
        if not isinstance(other, TorchNames):
            raise InvalidArgument(f"other is a {type(other).__name__}; accepted are events and rows of averages")
        added: Any = other
        if not self.key:
            for name in _OF_THE_KEY:
                setattr(self, name, getattr(added, name))
        elif added.key != self.key:
            raise InvalidArgument(f"other is a row of {added.key!r}; accepted are those of {self.key!r}")
        duration = added.device_time_total if self.device_type == DeviceType.CUDA else added.cpu_time_total
        shortest = getattr(added, "min", duration)
        self.min = min(self.min, shortest) if self.count else shortest
        self.max = max(self.max, getattr(added, "max", duration))
        for name in ("self_cpu_time_total", "self_device_time_total", *_SUMMED):
            missing = added.cpu_time_total if name == "elapsed_time_total" else 0  # of an event
            setattr(self, name, getattr(self, name) + (getattr(added, name, missing) or 0))
        self.is_top_level = self.is_top_level or added.is_top_level
        self.p50 = self.p95 = self.p99 = 0.0
        self.self_cpu_percent = self.total_cpu_percent = self.total_device_percent = "NaN"
        return self

    __iadd__ = add

    @property
    def cpu_time(self) -> float:
        """Inclusive CPU time per event, in us."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def elapsed_time(self) -> float:
        """Time from start to end per event, in us."""
        return self.elapsed_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Inclusive GPU time per event, in us."""
        return self.device_time_total / self.count if self.count else 0.0


class Averages(EventList[FunctionEventAvg]):
    """What ``key_averages`` gives."""

    COLUMNS = tuple(field.name for field in fields(FunctionEventAvg))

    def plot(self, metric: str | None = None, top: int = 15, ax: Axes | None = None) -> Axes:
        """A bar a row, the longest first.

        Args:
            metric: a time or memory of `FunctionEventAvg`; by default the GPU's own time where there is any, else the
                CPU's.
            top: so many bars at most.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: it is no such figure, or `top` is below 1.
        """
        metric = metric or ("self_device_time_total" if self.has_device else "self_cpu_time_total")
        name = device_key(metric) if isinstance(metric, str) else metric
        if name not in _PLOTTED:
            raise InvalidArgument(
                f"metric is {brief(metric)}; accepted are {', '.join(_PLOTTED)}, with cuda, xpu or "
                "privateuse1 also accepted for device"
            )
        rows = self.sorted_by(name)[: check_count("top", top, 1)]
        quantity, size = ("B", 1.0) if "memory" in name or name == "bytes" else ("s", 1 / US_PER_S)
        values = [float(getattr(row, name)) * size for row in rows]
        return plots.bars([row.key for row in rows], values, quantity=quantity, what=metric, ax=ax)

    def total_average(self) -> FunctionEventAvg:
        """All rows as one. As in torch.profiler, inclusive figures of nested rows are added up."""
        totals: dict[str, Any] = {name: sum(getattr(row, name) for row in self) for name in _SUMMED}
        return FunctionEventAvg(
            key="Total",
            kind="total",
            device_type=device_type(False),
            self_cpu_time_total=self.self_cpu_time_total,
            self_device_time_total=self.self_device_time_total,
            min=min((row.min for row in self), default=0.0),
            max=max((row.max for row in self), default=0.0),
            use_device="cuda" if self.has_device else None,
            **totals,
        )


_PLOTTED = tuple(key for key in SORT_KEYS if key not in ("count", "flops", "key"))  # times and memory


_SUMMED = (
    *("count", "cpu_time_total", "elapsed_time_total", "device_time_total", "bytes", "flops", "cpu_memory_usage"),
    *("device_memory_usage", "self_cpu_memory_usage", "self_device_memory_usage"),
)


_OF_THE_KEY = (
    *("key", "kind", "device_type", "use_device", "node_id", "is_async", "is_top_level", "is_user_annotation", "scope"),
    *("is_python_function", "is_remote", "is_legacy", "input_shapes", "stack", "overload_name"),
)


Array = np.ndarray[Any, Any]


def key_averages(
    trace: Trace,
    group_by_input_shape: bool = False,
    group_by_stack_n: int = 0,
    group_by_overload_name: bool = False,
    include_python_functions: bool = False,
) -> Averages:
    """One row for each name of a region, operator, driver call or piece of GPU work.

    Args:
        trace: the recording.
        group_by_input_shape: group regions and operators by the shapes of their inputs too (``record_shapes``).
        group_by_stack_n: and by so many of the innermost Python frames (``with_stack``).
        group_by_overload_name: and by overload (torch's ``_ExperimentalConfig(capture_overload_names=True)``).
        include_python_functions: add a row for each Python function (``with_stack``); shares are of their time too.

    Returns:
        The rows, regions, work and then Python functions, in the order in which they first occurred. In aggregate mode,
        which keeps no single events, nothing is grouped by shapes and stacks.

    Raises:
        InvalidArgument: ``group_by_stack_n`` is not a whole number from 0.
    """
    if type(group_by_stack_n) is not int or group_by_stack_n < 0:
        raise InvalidArgument(f"group_by_stack_n is {brief(group_by_stack_n)}; accepted are whole numbers from 0")
    summary = trace.summary
    names = summary.names
    use_device = "cuda" if summary.has_device else None
    frames = min(group_by_stack_n, len(trace.stacks))
    regions = summary.regions
    if group_by_input_shape or frames or group_by_overload_name:
        keys = (bool(group_by_input_shape), frames, bool(group_by_overload_name))
        regions = _core.group_regions(trace.store, summary, *keys)
    with_functions = include_python_functions and len(trace.python_functions) > 0
    grouped_by = (group_by_input_shape, frames, group_by_overload_name)
    rows = list(_region_averages(trace, regions, *grouped_by, with_functions))
    rows += [_average(total, summary, names[total.name]) for total in summary.totals if total.kind in KINDS]
    rows += _outside_memory(trace, use_device)
    totals = recording_totals(trace)
    cpu_ns = summary.cpu_ns
    if with_functions:
        nesting = trace.function_nesting
        cpu_ns += int(nesting.self_cpu_ns.sum() + nesting.region_self_cpu_ns.sum() - trace.instances.self_cpu_ns.sum())
        rows += _function_averages(trace, use_device)
    elif outside_ns := outside_regions_ns(trace):
        cpu_ns += outside_ns
        rows.append(_outside(outside_ns, use_device))
    if with_functions or cpu_ns != summary.cpu_ns:
        totals["self_cpu_time_total"] = cpu_ns / NS_PER_US
        rows = [
            replace(
                row,
                self_cpu_percent=format_share(row.self_cpu_time_total * NS_PER_US, cpu_ns),
                total_cpu_percent=format_share(row.cpu_time_total * NS_PER_US, cpu_ns),
            )
            for row in rows
        ]
    lacks = {
        "shapes were recorded: record_shapes": group_by_input_shape and not any(row.input_shapes for row in rows),
        "stacks were recorded: with_stack": group_by_stack_n and not any(row.stack for row in rows),
    }
    missing = [what for what in lacks if lacks[what] and f"metadata.{what.split()[-1]}" not in trace.info]
    return Averages(rows, **totals, note="; ".join(f"no {what}=True" for what in missing))


def recording_totals(trace: Trace) -> dict[str, Any]:
    """The attributes of a recording's `EventList`."""
    return {
        "self_cpu_time_total": trace.summary.cpu_ns / NS_PER_US,
        "self_device_time_total": trace.summary.device_ns / NS_PER_US,
        "use_device": "cuda" if trace.summary.has_device else None,
        "profile_memory": len(trace.memory) > 0,
        "with_flops": trace.info.get("metadata.with_flops") == "1",
        "verdict": audit(trace).verdict,
    }


def _region_averages(
    trace: Trace, regions: _core.RegionGroups, by_shape: bool, frames: int, by_overload: bool, with_functions: bool
) -> Iterator[FunctionEventAvg]:
    """The rows of regions from the single regions that are kept."""
    if not len(trace.regions):
        return
    rows = RegionRows(trace)
    names, scopes, flags, stacks = trace.summary.names, rows.path_scopes, trace.regions.flags, trace.instances.stack
    totals = regions.totals

    def sums(values: Array) -> list[int]:
        group = np.minimum(regions.group_of_row, len(totals))
        weights = np.bincount(group, weights=values, minlength=len(totals) + 1)[:-1]
        return [int(weight) for weight in weights]  # exact below 2^53

    flops = sums(np.maximum(count_flops(rows), 0)) if rows.has_shapes.any() else [0] * len(totals)
    self_ns = sums(trace.function_nesting.region_self_cpu_ns) if with_functions else None
    for place, (total, count) in enumerate(zip(totals, flops, strict=True)):
        row = total.first_row
        stack = int(stacks[row])
        average = _average(
            total,
            trace.summary,
            names[total.name],
            is_async=bool(flags[row] & Flag.ASYNC),
            flops=count,
            input_shapes=flat_shapes(rows.shapes_of(int(rows.shapes[row]))) if by_shape else "",
            stack=list(rows.stack_texts[stack][:frames]) if frames and stack < len(rows.stack_texts) else [],
            scope=scopes[int(rows.path[row])],
            overload_name=rows.overload_of(row) if by_overload else "",
        )
        if self_ns is not None:
            average.self_cpu_time_total = self_ns[place] / NS_PER_US
        yield average


def _average(total: _core.NameStat, summary: _core.Summary, name: str, **details: Any) -> FunctionEventAvg:
    kind = KINDS[total.kind]
    durations = total.durations
    opened_by = region_kind(total.region_kind)
    return FunctionEventAvg(
        key=name,
        kind=opened_by.name.lower() if kind == Kind.REGION else kind.label,
        device_type=device_type(kind.is_device),
        count=durations.count,
        cpu_time_total=total.cpu_ns / NS_PER_US,
        elapsed_time_total=(total.cpu_ns + total.suspended_ns) / NS_PER_US,
        self_cpu_time_total=total.self_cpu_ns / NS_PER_US,
        device_time_total=total.device_ns / NS_PER_US,
        self_device_time_total=total.self_device_ns / NS_PER_US,
        self_cpu_percent=format_share(total.self_cpu_ns, summary.cpu_ns),
        total_cpu_percent=format_share(total.cpu_ns, summary.cpu_ns),
        total_device_percent=format_share(total.self_device_ns, summary.device_ns),
        p50=durations.p50_ns / NS_PER_US,
        p95=durations.p95_ns / NS_PER_US,
        p99=durations.p99_ns / NS_PER_US,
        min=durations.min_ns / NS_PER_US,
        max=durations.max_ns / NS_PER_US,
        bytes=total.bytes,
        is_top_level=total.is_top_level,
        use_device="cuda" if summary.has_device else None,
        is_user_annotation=kind == Kind.REGION and opened_by in ANNOTATIONS,
        cpu_memory_usage=total.cpu_bytes,
        self_cpu_memory_usage=total.self_cpu_bytes,
        device_memory_usage=total.device_bytes,
        self_device_memory_usage=total.self_device_bytes,
        **details,
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
        device_type=device_type(False),
        count=count,
        use_device=use_device,
        cpu_memory_usage=host,
        self_cpu_memory_usage=host,
        device_memory_usage=device,
        self_device_memory_usage=device,
    )


def _outside(time_ns: int, use_device: str | None) -> FunctionEventAvg:
    """The row of the time outside every region."""
    return FunctionEventAvg(
        key=OUTSIDE,
        kind=Kind.OUTSIDE.label,
        device_type=device_type(False),
        count=1,
        cpu_time_total=time_ns / NS_PER_US,
        elapsed_time_total=time_ns / NS_PER_US,
        self_cpu_time_total=time_ns / NS_PER_US,
        use_device=use_device,
    )


def outside_every_region(trace: Trace) -> FunctionEventAvg | None:
    """The time in which no thread was in a region or driver call, and the GPU's for work launched there.

    Where Python was sampled, the CPU time is that of the samples, as `key_averages` has it: of all threads. None where
    that time is not known, as in aggregate mode and where regions were left out, or is nothing.
    """
    cpu_ns = outside_regions_ns(trace) or _uncovered_ns(trace)
    device_ns = sum(
        work.durations.total_ns
        for work in trace.summary.work
        if work.path == NONE and work.kind in KINDS and KINDS[work.kind].is_device
    )
    if not cpu_ns and not device_ns:
        return None
    device_us = device_ns / NS_PER_US
    row = _outside(cpu_ns, "cuda" if trace.summary.has_device else None)
    return replace(row, device_time_total=device_us, self_device_time_total=device_us)


def _uncovered_ns(trace: Trace) -> int:
    """How long of the recording no region and no driver call went on; 0 where not all single ones are there."""
    spans = [table for table in (trace.regions, trace.api) if len(table)]
    if not spans or not has_every_region(trace):
        return 0
    starts = np.concatenate([table.start_ns for table in spans])
    recorded_ns = kept_ns(trace, starts)
    ends = starts + np.concatenate([table.duration_ns for table in spans])
    first, last = (number_of(trace.info, f"session.{end}_ns") for end in ("start", "stop"))
    starts, ends = np.clip(starts, first, last), np.clip(ends, first, last)
    covered_ns = union_ns(starts, ends)
    return max(0, recorded_ns - covered_ns) if covered_ns else 0  # regions without times tell nothing of the rest


def _function_averages(trace: Trace, use_device: str | None) -> Iterator[FunctionEventAvg]:
    """The rows of Python functions, by name."""
    functions, nesting = trace.python_functions, trace.function_nesting
    order = np.argsort(functions.name, kind="stable")
    _, first = np.unique(functions.name[order], return_index=True)
    for rows in sorted(np.split(order, first[1:]), key=lambda rows: int(rows[0])):
        durations = functions.duration_ns[rows]
        p50, p95, p99 = np.percentile(durations, (50, 95, 99))
        yield FunctionEventAvg(
            key=trace.string(int(functions.name[rows[0]])),
            kind=Kind.PYTHON_FUNCTION.label,
            device_type=device_type(False),
            count=len(rows),
            cpu_time_total=int(nesting.total_cpu_ns[rows].sum()) / NS_PER_US,
            self_cpu_time_total=int(nesting.self_cpu_ns[rows].sum()) / NS_PER_US,
            p50=p50 / NS_PER_US,
            p95=p95 / NS_PER_US,
            p99=p99 / NS_PER_US,
            min=int(durations.min()) / NS_PER_US,
            max=int(durations.max()) / NS_PER_US,
            is_top_level=bool(((nesting.caller[rows] == NONE) & (nesting.region[rows] == NONE)).any()),
            is_python_function=True,
            use_device=use_device,
        )
