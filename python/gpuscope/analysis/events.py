# SPDX-License-Identifier: Apache-2.0
"""Every event of a recording as an object, for scripts written for torch.profiler; the columns are faster."""

from __future__ import annotations

import os
from typing import NamedTuple

from gpuscope.analysis.audit import audit
from gpuscope.analysis.averages import Averages, FunctionEventAvg
from gpuscope.analysis.event_details import EventDetails
from gpuscope.analysis.event_index import Recording, Source
from gpuscope.analysis.event_list import DeviceType, EventList
from gpuscope.analysis.formatted_times import FormattedTimes
from gpuscope.analysis.key_averages import key_averages
from gpuscope.analysis.kinds import DEVICE_KINDS, STEP, STEPS, Kind
from gpuscope.analysis.list_exports import STACK_METRICS, write_chrome, write_stacks
from gpuscope.analysis.old_names import OldNames
from gpuscope.trace import NONE, Trace

NS_PER_US = 1e3


class Interval(NamedTuple):
    """A stretch of time in us from the start of the recording."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Its length in us."""
        return self.end - self.start


class KernelInfo(NamedTuple):
    """GPU work that an event launched; the duration is in us."""

    name: str
    device: int
    duration: float


class FunctionEvent(EventDetails, OldNames, FormattedTimes):
    """One region, operator, driver call or piece of GPU work, under torch.profiler's names; read from columns."""

    __slots__ = ("_row", "_source", "id")

    def __init__(self, source: Source[FunctionEvent], row: int, event_id: int) -> None:
        self._source = source
        self._row = row
        self.id = event_id

    @property
    def name(self) -> str:
        """The name of the region, operator, driver call, kernel (demangled) or copy; "ProfilerStep*" of each step."""
        name: str = self.trace_name
        return STEPS if name.startswith(STEP) else name

    @property
    def trace_name(self) -> str:
        """The same, with the number of a step."""
        return self._source.name(self._row)

    @property
    def key(self) -> str:
        """The name."""
        return self.name

    @property
    def kind(self) -> str:
        """A region, op, range, module, kernel, memcpy, memset, call, sync, graph launch or memory."""
        if self._is_region:
            return self._regions.path_kinds[self._path].label
        return self._source.kind.label

    @property
    def count(self) -> int:
        """One."""
        return 1

    @property
    def device_type(self) -> DeviceType:
        """Where it ran."""
        return DeviceType.CUDA if self._source.kind.is_device else DeviceType.CPU

    @property
    def device_index(self) -> int:
        """The GPU's number; -1 on the CPU."""
        return self._source.on_track("device", self._row)

    @property
    def device_resource_id(self) -> int:
        """The CUDA stream's number; on the CPU the thread."""
        return self._source.on_track("stream", self._row) if self._source.kind.is_device else self.thread

    @property
    def thread(self) -> int:
        """The system's id of the thread; on the GPU the CUDA stream's number."""
        return self._source.thread(self._row)

    @property
    def time_range(self) -> Interval:
        """When it ran, in us from the start of the recording."""
        start_ns = int(self._source.start_ns[self._row]) - self._source.recording.start_ns
        return Interval(start_ns / NS_PER_US, (start_ns + self._duration_ns) / NS_PER_US)

    @property
    def is_top_level(self) -> bool:
        """It lay in no region."""
        return self._source.parent(self._row) == NONE

    @property
    def cpu_parent(self) -> FunctionEvent | None:
        """The region it lies in, or was launched in; None outside every region."""
        parent = self._source.parent(self._row)
        return None if parent == NONE else self._source.recording.event(Kind.REGION, parent)

    @property
    def cpu_children(self) -> list[FunctionEvent]:
        """Regions, operators and driver calls directly inside."""
        return self._source.recording.inside(self._row, (Kind.REGION, Kind.CALL)) if self._is_region else []

    @property
    def kernels(self) -> list[KernelInfo]:
        """The GPU work that a driver call launched, or that was launched directly in a region."""
        recording = self._source.recording
        if self._source.kind == Kind.CALL:
            work = recording.launched_by(int(self._source.table.correlation[self._row]))
        else:
            work = recording.inside(self._row, DEVICE_KINDS) if self._is_region else []
        return [KernelInfo(event.name, event.device_index, event.device_time_total) for event in work]

    @property
    def _duration_ns(self) -> int:
        return int(self._source.duration_ns[self._row])

    @property
    def cpu_time_total(self) -> float:
        """Its duration in us; 0 on the GPU."""
        return 0.0 if self._source.kind.is_device else self._duration_ns / NS_PER_US

    @property
    def cpu_time(self) -> float:
        """Its duration in us; 0 on the GPU."""
        return self.cpu_time_total

    @property
    def self_cpu_time_total(self) -> float:
        """CPU time in us without regions and driver calls inside, on the same thread."""
        if self._is_region:
            return int(self._source.recording.trace.instances.self_cpu_ns[self._row]) / NS_PER_US
        return 0.0 if self._source.kind == Kind.SYNC else self.cpu_time_total

    @property
    def device_time_total(self) -> float:
        """Inclusive GPU time in us."""
        if self._is_region:
            return int(self._source.recording.trace.instances.device_ns[self._row]) / NS_PER_US
        return self.self_device_time_total

    @property
    def device_time(self) -> float:
        """Inclusive GPU time in us."""
        return self.device_time_total

    @property
    def self_device_time_total(self) -> float:
        """GPU time in us launched in no region inside."""
        if self._is_region:
            return int(self._source.recording.trace.instances.self_device_ns[self._row]) / NS_PER_US
        return self._duration_ns / NS_PER_US if self._source.kind.is_device else 0.0

    def __repr__(self) -> str:
        start, end = self.time_range
        return f"<FunctionEvent {self.kind} {self.name!r} at {start:.3f}us for {end - start:.3f}us>"


class Events(EventList[FunctionEvent]):
    """What ``events`` gives."""

    def __init__(self, trace: Trace) -> None:
        summary = trace.summary
        super().__init__(
            Recording(trace, FunctionEvent).events,
            self_cpu_time_total=summary.cpu_ns / NS_PER_US,
            self_device_time_total=summary.device_ns / NS_PER_US,
            has_device=summary.has_device,
            has_memory=len(trace.memory) > 0,
            verdict=audit(trace).verdict,
        )
        self._trace = trace

    def key_averages(
        self, group_by_input_shapes: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False
    ) -> Averages:
        """The rows of ``key_averages`` of the whole recording."""
        return key_averages(self._trace, group_by_input_shapes, group_by_stack_n, group_by_overload_name)

    def total_average(self) -> FunctionEventAvg:
        """All events as one row."""
        return self.key_averages().total_average()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the events of the CPU as a Chrome trace; the profiler's own method of this name writes everything.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        write_chrome(self, path)

    def supported_export_stacks_metrics(self) -> list[str]:
        """What ``export_stacks`` accepts."""
        return list(STACK_METRICS)

    def export_stacks(self, path: str | os.PathLike[str], metric: str) -> None:
        """Writes one line an event with a call stack, ``outer;inner 123``, its own time in us, for flame graphs.

        Raises:
            InvalidArgument: the metric is none of ``supported_export_stacks_metrics``.
            GpuscopeError: the file cannot be written.
        """
        write_stacks(self, path, metric)


def events(trace: Trace) -> Events:
    """Every region, operator, driver call, kernel, copy, fill, synchronization, and allocation outside regions.

    In order of their start; also those that torch.profiler leaves out, for they are all that one of their name has
    inside. Empty in aggregate mode, which keeps no single events.
    """
    return Events(trace)
