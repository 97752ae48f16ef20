# SPDX-License-Identifier: Apache-2.0
"""Every event of a recording as an object, for scripts written for torch.profiler; the columns are faster."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpuscope import _core
from gpuscope.analysis.audit import audit
from gpuscope.analysis.event_list import DeviceType, EventList
from gpuscope.analysis.kinds import Kind
from gpuscope.trace import NONE, Table, Trace

NS_PER_US = 1e3
Array = np.ndarray[Any, Any]


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


class FunctionEvent:
    """One region, driver call, or piece of GPU work, under torch.profiler's names. Reads the columns when asked."""

    __slots__ = ("_row", "_source", "id")

    def __init__(self, source: _Source, row: int, event_id: int) -> None:
        self._source = source
        self._row = row
        self.id = event_id

    @property
    def name(self) -> str:
        """The name of the region, driver call, kernel (demangled) or copy."""
        return self._source.name(self._row)

    @property
    def key(self) -> str:
        """The name."""
        return self.name

    @property
    def kind(self) -> str:
        """A region, kernel, memcpy, memset, call, sync or graph launch."""
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
    def is_user_annotation(self) -> bool:
        """It is a region."""
        return self._source.kind == Kind.REGION

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
        """Regions and driver calls directly inside."""
        return self._source.recording.inside(self._row, (Kind.REGION, Kind.CALL)) if self.is_user_annotation else []

    @property
    def kernels(self) -> list[KernelInfo]:
        """The GPU work that a driver call launched, or that was launched directly in a region."""
        recording = self._source.recording
        if self._source.kind == Kind.CALL:
            work = recording.launched_by(int(self._source.table.correlation[self._row]))
        else:
            work = recording.inside(self._row, DEVICE_KINDS) if self.is_user_annotation else []
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
        if not self.is_user_annotation:
            return 0.0 if self._source.kind == Kind.SYNC else self.cpu_time_total
        same_thread = (child for child in self.cpu_children if child.thread == self.thread)
        return max(0.0, self.cpu_time_total - sum(child.cpu_time_total for child in same_thread))

    @property
    def device_time_total(self) -> float:
        """Inclusive GPU time in us."""
        if self.is_user_annotation:
            return int(self._source.recording.device_ns[self._row]) / NS_PER_US
        return self.self_device_time_total

    @property
    def device_time(self) -> float:
        """Inclusive GPU time in us."""
        return self.device_time_total

    @property
    def self_device_time_total(self) -> float:
        """GPU time in us launched in no region inside."""
        if self.is_user_annotation:
            return int(self._source.recording.self_device_ns[self._row]) / NS_PER_US
        return self._duration_ns / NS_PER_US if self._source.kind.is_device else 0.0

    @property
    def cuda_time(self) -> float:
        """``device_time`` under its old name."""
        return self.device_time

    @property
    def cuda_time_total(self) -> float:
        """``device_time_total`` under its old name."""
        return self.device_time_total

    @property
    def self_cuda_time_total(self) -> float:
        """``self_device_time_total`` under its old name."""
        return self.self_device_time_total

    @property
    def is_async(self) -> bool:
        """Never."""
        return False

    @property
    def is_remote(self) -> bool:
        """Never."""
        return False

    @property
    def node_id(self) -> int:
        """-1: no cluster."""
        return -1

    def __repr__(self) -> str:
        start, end = self.time_range
        return f"<FunctionEvent {self.kind} {self.name!r} at {start:.3f}us for {end - start:.3f}us>"


DEVICE_KINDS = tuple(kind for kind in Kind if kind.is_device)


class _Source:
    """The events of one table."""

    def __init__(self, recording: _Recording, kind: Kind, table: Table) -> None:
        self.recording = recording
        self.kind = kind
        self.table = table
        self.start_ns = table.start_ns
        self.duration_ns = table.duration_ns
        self.regions = table.parent if kind == Kind.REGION else table.region
        self.ids: Array = np.empty(0, dtype=np.int64)  # each row's place in the list of events

    def name(self, row: int) -> str:
        if self.kind == Kind.KERNEL:
            names = self.recording.kernel_names
            variant = int(self.table.variant[row])
            return names[variant] if variant < len(names) else ""
        return _core.event_name(self.recording.trace.store, int(self.kind), row)

    def on_track(self, column: str, row: int) -> int:
        if not self.kind.is_device:
            return -1
        values = self.recording.trace.tracks[column]
        track = int(self.table.track[row])
        return int(values[track]) if track < len(values) else -1

    def thread(self, row: int) -> int:
        if self.kind.is_device or "thread" not in self.table:
            return self.on_track("stream", row)
        ids = self.recording.trace.threads.system_id
        thread = int(self.table.thread[row])
        return int(ids[thread]) if thread < len(ids) else thread

    def parent(self, row: int) -> int:
        region = int(self.regions[row])
        return region if region < len(self.recording.trace.regions) else NONE

    @cached_property
    def by_region(self) -> tuple[Array, Array]:
        return _index(self.regions)

    @cached_property
    def by_correlation(self) -> tuple[Array, Array]:
        return _index(self.table.correlation)


class _Recording:
    """All events in order of time, and what finds one from another; each index is made when first needed."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        tables = {
            Kind.REGION: trace.regions,
            Kind.CALL: trace.api,
            Kind.KERNEL: trace.kernels,
            Kind.MEMCPY: trace.memcpy,
            Kind.MEMSET: trace.memset,
            Kind.GRAPH_LAUNCH: trace.graph_launches,
            Kind.SYNC: trace.sync,
        }
        self.sources = {kind: _Source(self, kind, table) for kind, table in tables.items()}
        starts = np.concatenate([source.start_ns for source in self.sources.values()])
        begun = trace.info.get("session.start_ns", "")
        self.start_ns = int(begun) if begun.isdecimal() else int(starts.min()) if len(starts) else 0

        order = np.argsort(starts, kind="stable")  # what begins together stays in the order of the tables: outer first
        ids = np.empty_like(order)
        ids[order] = np.arange(len(order))
        events: list[FunctionEvent] = []
        for source in self.sources.values():
            first = len(events)
            source.ids = ids[first : first + len(source.table)]
            events.extend(FunctionEvent(source, row, event_id) for row, event_id in enumerate(source.ids.tolist()))
        self.events: list[FunctionEvent] = [events[place] for place in order.tolist()]

    def event(self, kind: Kind, row: int) -> FunctionEvent:
        return self.events[int(self.sources[kind].ids[row])]

    def inside(self, region: int, kinds: tuple[Kind, ...]) -> list[FunctionEvent]:
        """Events directly in a region, in order of time."""
        return self._find(kinds, "by_region", region)

    def launched_by(self, correlation: int) -> list[FunctionEvent]:
        """GPU work of one driver call, in order of time."""
        return self._find(DEVICE_KINDS, "by_correlation", correlation) if correlation else []

    def _find(self, kinds: tuple[Kind, ...], index: str, value: int) -> list[FunctionEvent]:
        places: list[int] = []
        for kind in kinds:
            source = self.sources[kind]
            rows, values = getattr(source, index)
            first, last = np.searchsorted(values, [value, value + 1])
            places.extend(source.ids[rows[first:last]].tolist())
        return [self.events[place] for place in sorted(places)]

    @cached_property
    def kernel_names(self) -> list[str]:
        return self.trace.kernel_names()

    @cached_property
    def self_device_ns(self) -> Array:
        """For each region, the GPU time launched directly in it."""
        count = len(self.trace.regions)
        total = np.zeros(count + 1, dtype=np.int64)  # the last is for work outside every region
        for kind in DEVICE_KINDS:
            source = self.sources[kind]
            np.add.at(total, np.minimum(source.regions, count), source.duration_ns)
        return total[:count]

    @cached_property
    def device_ns(self) -> Array:
        """For each region, the GPU time launched in it and below, or between its CUDA events."""
        regions, paths = self.trace.regions, self.trace.paths
        count = len(regions)
        total = np.append(self.self_device_ns, 0)
        depths = np.append(paths.depth, 0)[np.minimum(regions.path, len(paths))]
        measured = self.trace.region_gpu
        own = np.full(count, -1, dtype=np.int64)
        known = measured.region < count
        own[measured.region[known]] = measured.duration_ns[known]
        for depth in range(int(depths.max(initial=0)), -1, -1):
            rows = np.flatnonzero(depths == depth)
            timed = rows[own[rows] >= 0]
            total[timed] = own[timed]
            np.add.at(total, np.minimum(regions.parent[rows], count), total[rows])
        return total[:count]


def _index(values: Array) -> tuple[Array, Array]:
    """Rows in the order of their values, and the values in that order."""
    rows = np.argsort(values, kind="stable")
    return rows, values[rows].astype(np.int64)


def events(trace: Trace) -> EventList[FunctionEvent]:
    """Every region, driver call, kernel, copy, fill and synchronization, in order of their start.

    Empty in aggregate mode, which keeps no single events.
    """
    summary = trace.summary
    return EventList(
        _Recording(trace).events,
        self_cpu_time_total=summary.cpu_ns / NS_PER_US,
        self_device_time_total=summary.device_ns / NS_PER_US,
        has_device=summary.has_device,
        verdict=audit(trace).verdict,
    )
