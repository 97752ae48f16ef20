# SPDX-License-Identifier: Apache-2.0
"""One row for each name: how often, how long, on the CPU and on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope import _core
from gpuscope.analysis.audit import audit
from gpuscope.analysis.event_list import DeviceType, EventList
from gpuscope.analysis.kinds import KINDS, Kind
from gpuscope.analysis.old_names import OldNames
from gpuscope.analysis.table import format_time
from gpuscope.errors import InvalidArgument
from gpuscope.trace import Trace

NS_PER_US = 1e3


@dataclass(frozen=True)
class FunctionEventAvg(OldNames):
    """All events of one kind and name. Times are in us, under torch.profiler's names.

    A region's device time is that of the GPU work launched inside it. Inclusive times count only the outermost region
    of a name on a call path, so recursion counts nothing twice.

    Attributes:
        key: the name: of a region, of a driver call, of a kernel (demangled), or as "Memcpy HtoD (Pageable -> Device)".
        kind: region, kernel, memcpy, memset, call, sync or graph launch.
        count: how many there were.
        cpu_time_total: inclusive CPU time.
        self_cpu_time_total: CPU time without regions and driver calls inside.
        device_time_total: inclusive GPU time.
        self_device_time_total: GPU time launched in no region inside.
        p50: the median duration: of regions and calls on the CPU, of GPU work on the GPU. p95, p99, min, max likewise.
        bytes: moved or filled.
        is_top_level: some instance was in no region.
    """

    key: str
    kind: str
    device_type: DeviceType
    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    device_time_total: float
    self_device_time_total: float
    p50: float
    p95: float
    p99: float
    min: float
    max: float
    bytes: int
    is_top_level: bool
    use_device: str | None = None
    node_id: int = -1
    is_async: bool = False
    is_remote: bool = False
    is_legacy: bool = False
    flops: int = 0
    input_shapes: tuple[()] = ()
    stack: tuple[()] = ()
    overload_name: str = ""
    scope: int = 0
    cpu_memory_usage: int = 0
    device_memory_usage: int = 0
    self_cpu_memory_usage: int = 0
    self_device_memory_usage: int = 0

    @property
    def is_user_annotation(self) -> bool:
        """It is a region."""
        return self.kind == Kind.REGION.label

    @property
    def cpu_time(self) -> float:
        """Inclusive CPU time per event, in us."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Inclusive GPU time per event, in us."""
        return self.device_time_total / self.count if self.count else 0.0

    @property
    def cuda_memory_usage(self) -> int:
        """``device_memory_usage`` under its old name."""
        return self.device_memory_usage

    @property
    def self_cuda_memory_usage(self) -> int:
        """``self_device_memory_usage`` under its old name."""
        return self.self_device_memory_usage

    @property
    def cpu_time_str(self) -> str:
        """``cpu_time`` with its unit."""
        return format_time(self.cpu_time)

    @property
    def cpu_time_total_str(self) -> str:
        """``cpu_time_total`` with its unit."""
        return format_time(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self) -> str:
        """``self_cpu_time_total`` with its unit."""
        return format_time(self.self_cpu_time_total)

    @property
    def device_time_str(self) -> str:
        """``device_time`` with its unit."""
        return format_time(self.device_time)

    @property
    def device_time_total_str(self) -> str:
        """``device_time_total`` with its unit."""
        return format_time(self.device_time_total)

    @property
    def self_device_time_total_str(self) -> str:
        """``self_device_time_total`` with its unit."""
        return format_time(self.self_device_time_total)


class Averages(EventList[FunctionEventAvg]):
    """What ``key_averages`` gives."""

    def total_average(self) -> FunctionEventAvg:
        """All rows as one, as torch.profiler sums them: inclusive times add up what is inside each other."""
        return FunctionEventAvg(
            key="Total",
            kind="total",
            device_type=DeviceType.CPU,
            count=sum(row.count for row in self),
            cpu_time_total=sum(row.cpu_time_total for row in self),
            self_cpu_time_total=self.self_cpu_time_total,
            device_time_total=sum(row.device_time_total for row in self),
            self_device_time_total=self.self_device_time_total,
            p50=0.0,
            p95=0.0,
            p99=0.0,
            min=min((row.min for row in self), default=0.0),
            max=max((row.max for row in self), default=0.0),
            bytes=sum(row.bytes for row in self),
            is_top_level=True,
            use_device="cuda" if self.has_device else None,
        )


def key_averages(trace: Trace, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Averages:
    """One row for each region, kernel, copy, fill, driver call and synchronization, by name.

    Args:
        trace: the recording.
        group_by_input_shape: accepted as torch does; shapes are not recorded, so that it groups nothing.
        group_by_stack_n: accepted as torch does; stacks are not recorded, so that it groups nothing.

    Returns:
        The rows, in the order in which regions and then work of each kind first came up.

    Raises:
        InvalidArgument: ``group_by_stack_n`` is not a whole number from 0.
    """
    if type(group_by_stack_n) is not int or group_by_stack_n < 0:
        raise InvalidArgument(f"group_by_stack_n is {group_by_stack_n!r}; accepted are whole numbers from 0")
    summary = trace.summary
    names = summary.names
    use_device = "cuda" if summary.has_device else None
    return Averages(
        (_average(total, names, use_device) for total in summary.totals if total.kind in KINDS),
        self_cpu_time_total=summary.cpu_ns / NS_PER_US,
        self_device_time_total=summary.device_ns / NS_PER_US,
        has_device=summary.has_device,
        verdict=audit(trace).verdict,
    )


def _average(total: _core.NameStat, names: list[str], use_device: str | None) -> FunctionEventAvg:
    kind = KINDS[total.kind]
    durations = total.durations
    return FunctionEventAvg(
        key=names[total.name],
        kind=kind.label,
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
    )
