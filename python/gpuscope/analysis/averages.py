# SPDX-License-Identifier: Apache-2.0
"""The rows of ``key_averages`` and the list that they stand in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuscope.analysis.event_list import DeviceType, EventList
from gpuscope.analysis.formatted_times import FormattedTimes
from gpuscope.analysis.old_names import OldNames


@dataclass(frozen=True)
class FunctionEventAvg(OldNames, FormattedTimes):
    """All events of one kind and name. Times are in us, memory in bytes, under torch.profiler's names.

    The device time of a region or operator is that of the GPU work launched inside it. Inclusive times and memory count
    only the outermost region of a name on a call path, so recursion counts nothing twice.

    Attributes:
        key: the name: of a region or operator, of a driver call, of a kernel (demangled), or as
            "Memcpy HtoD (Pageable -> Device)"; "[memory]" for memory taken or given back outside every region.
        kind: region, op (an operator of a framework), range (an annotation of a library), module, kernel, memcpy,
            memset, call, sync, graph launch or memory.
        count: how many there were; an operator that is all that one of its name has inside is not counted, as in torch.
        cpu_time_total: inclusive CPU time.
        self_cpu_time_total: CPU time without regions and driver calls inside.
        device_time_total: inclusive GPU time.
        self_device_time_total: GPU time launched in no region inside.
        p50: the median duration: of regions and calls on the CPU, of GPU work on the GPU. p95, p99, min, max likewise.
        bytes: moved or filled.
        is_top_level: some instance was in no region.
        cpu_memory_usage: host memory taken less given back, where ``profile_memory`` was on; device_memory_usage
            likewise on the GPU, self_cpu_memory_usage and self_device_memory_usage in no region inside.
        input_shapes: sizes of each input; [] for what is no tensor; "" unless rows were grouped by them.
        flops: floating-point operations summed, of those operators whose shapes tell them; see ``analysis.flops``.
        stack: the innermost Python frames, as many as rows were grouped by.
        scope: torch's RecordScope: 0 for operators, 1 for backward functions, 7 for what a program or library named.
        is_user_annotation: it is such a name.
        is_async: it may end on another thread, overlaps what runs beside it and has no time of its own.
        overload_name: always "": torch's operator ranges do not tell overloads.
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
    is_user_annotation: bool = False
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

    @property
    def cpu_time(self) -> float:
        """Inclusive CPU time per event, in us."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Inclusive GPU time per event, in us."""
        return self.device_time_total / self.count if self.count else 0.0


class Averages(EventList[FunctionEventAvg]):
    """What ``key_averages`` gives."""

    def total_average(self) -> FunctionEventAvg:
        """All rows as one, as torch.profiler sums them: inclusive figures add up what is inside each other."""

        def total(name: str) -> Any:
            return sum(getattr(row, name) for row in self)

        return FunctionEventAvg(
            key="Total",
            kind="total",
            device_type=DeviceType.CPU,
            self_cpu_time_total=self.self_cpu_time_total,
            self_device_time_total=self.self_device_time_total,
            p50=0.0,
            p95=0.0,
            p99=0.0,
            min=min((row.min for row in self), default=0.0),
            max=max((row.max for row in self), default=0.0),
            is_top_level=True,
            use_device="cuda" if self.has_device else None,
            **{name: total(name) for name in _SUMMED},
        )


_SUMMED = (
    *("count", "cpu_time_total", "device_time_total", "bytes", "flops", "cpu_memory_usage", "device_memory_usage"),
    *("self_cpu_memory_usage", "self_device_memory_usage"),
)
