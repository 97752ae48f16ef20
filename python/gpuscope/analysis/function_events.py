# SPDX-License-Identifier: Apache-2.0
"""Every event of a recording as an object, for scripts written for torch.profiler; columns are faster."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import numpy as np

from gpuscope._core import Flag
from gpuscope.analysis import flops
from gpuscope.analysis.averages import Averages, FunctionEventAvg, key_averages, recording_totals
from gpuscope.analysis.call_tree import StackMetric, known_stack_metric
from gpuscope.analysis.event_index import EventIndex, EventSource
from gpuscope.analysis.event_list import (
    DeviceType,
    EventList,
    TorchNames,
    alias_of,
    device_key,
    device_type,
    format_share,
)
from gpuscope.analysis.rows import (
    ANNOTATIONS,
    DEVICE_KINDS,
    NS_PER_US,
    SCOPE_FUNCTION,
    STEP,
    STEPS,
    Kind,
    RegionRows,
    Shapes,
    flat_shapes,
    nested_shapes,
    parse_concrete_inputs,
)
from gpuscope.paths import write_text
from gpuscope.text import shown
from gpuscope.trace import NONE, Trace

Array = np.ndarray[Any, Any]

# torch.profiler's names of activities.
_ACTIVITIES = {
    Kind.CALL: "cuda_driver",
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.SYNC: "cuda_sync",
    Kind.MEMORY: "cpu_instant_event",
    Kind.PYTHON_FUNCTION: "python_function",
}


class Interval(NamedTuple):
    """Start and end in us from the start of the recording."""

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


class EventMetadata(NamedTuple):
    """The device and launch of GPU work, and the data of a copy or fill, under torch.profiler's names.

    Unrecorded values are None. Metadata of collectives is in `Trace.payloads`.
    """

    registers_per_thread: int | None = None
    shared_memory: int | None = None
    grid: list[int] | None = None
    block: list[int] | None = None
    priority: int | None = None
    blocks_per_sm: float | None = None
    warps_per_sm: float | None = None
    occupancy: dict[str, Any] | None = None
    est_occupancy_pct: float | None = None
    queued: int | None = None
    graph_id: int | None = None
    graph_node_id: int | None = None
    stream: int | None = None
    context: int | None = None
    channel: int | None = None
    channel_type: int | None = None
    bytes: int | None = None
    bandwidth_gb_s: float | None = None
    collective_name: str | None = None
    dtype: str | None = None
    in_msg_nelems: int | None = None
    out_msg_nelems: int | None = None
    in_split_size: str | None = None
    out_split_size: str | None = None
    global_rank_start: int | None = None
    global_rank_stride: int | None = None
    group_size: int | None = None
    process_group_name: str | None = None
    process_group_desc: str | None = None
    group_ranks: str | None = None
    rank: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None
    seq: int | None = None
    is_async: bool | None = None

    def as_in_traces(self) -> dict[str, Any]:
        """The known values, under the names of Chrome traces."""
        known = {name: value for name, value in self._asdict().items() if value is not None}
        return {_IN_TRACES.get(name, name): value for name, value in known.items()}


_IN_TRACES = {
    "registers_per_thread": "registers per thread",
    "shared_memory": "shared memory",
    "graph_id": "graph id",
    "graph_node_id": "graph node id",
    "bandwidth_gb_s": "memory bandwidth (GB/s)",
}


_MOVES = (Kind.MEMCPY, Kind.MEMSET)


class _Share:
    """Descriptor: share of an event's time in the recording's time, as "12.34%"."""

    def __init__(self, time_us: str, total_ns: str) -> None:
        self._time_us = time_us
        self._total_ns = total_ns

    def __get__(self, event: FunctionEvent | None, owner: type) -> Any:
        if event is None:
            return self
        total_ns = getattr(event._source.index.trace.summary, self._total_ns)
        return format_share(getattr(event, self._time_us) * NS_PER_US, total_ns)

    def __set__(self, event: FunctionEvent, value: object) -> None:
        """Does nothing: torch's own table writes the shares that it prints."""


class FunctionEvent(TorchNames):
    """A region, operator, driver call or piece of GPU work, under torch.profiler's names; read from columns."""

    __slots__ = ("_row", "_source", "id")

    count = 1
    node_id = -1  # no cluster
    is_remote = False
    is_legacy = False
    key = alias_of("name")
    cpu_time = alias_of("cpu_time_total")
    device_time = alias_of("device_time_total")

    def __init__(self, source: EventSource[FunctionEvent], row: int, event_id: int) -> None:
        self._source = source
        self._row = row
        self.id = event_id

    def __reduce__(self) -> tuple[Callable[..., FunctionEvent], tuple[EventIndex[FunctionEvent], Kind, int]]:
        return EventIndex.event, (self._source.index, self._source.kind, self._row)  # one recording for all events

    @property
    def name(self) -> str:
        """The name of the region, operator, driver call, kernel (demangled) or copy; "ProfilerStep*" of each step."""
        name: str = self.trace_name
        return STEPS if name.startswith(STEP) else name

    @property
    def trace_name(self) -> str:
        """The name, with the number of a step."""
        return self._source.name(self._row)

    @property
    def kind(self) -> str:
        """Label of the event's `Kind`; for regions "region", "op", "range" or "module"."""
        if self._is_region:
            return self._regions.path_kinds[self._path].name.lower()
        return self._source.kind.label

    @property
    def device_type(self) -> DeviceType:
        """Where it ran."""
        return device_type(self._source.kind.is_device)

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
        start_ns = int(self._source.start_ns[self._row]) - self._source.index.start_ns
        return Interval(start_ns / NS_PER_US, (start_ns + self._duration_ns) / NS_PER_US)

    @property
    def start_us(self) -> float:
        """When it began, in us from the start of the recording."""
        return self.time_range.start

    @property
    def end_us(self) -> float:
        """When it ended, in us from the start of the recording."""
        return self.time_range.end

    @property
    def is_top_level(self) -> bool:
        """It was in no region; for Python functions, in nothing."""
        return self.cpu_parent is None if self.is_python_function else self._source.parent(self._row) == NONE

    @property
    def cpu_parent(self) -> FunctionEvent | None:
        """The region or Python function around it, or in which it was launched; None outside all."""
        caller = self._source.caller(self._row)
        if caller != NONE:
            return self._source.index.event(Kind.PYTHON_FUNCTION, caller)
        parent = self._source.parent(self._row)
        return None if parent == NONE else self._source.index.event(Kind.REGION, parent)

    @property
    def cpu_children(self) -> list[FunctionEvent]:
        """Regions, operators, driver calls and Python functions directly inside."""
        index = self._source.index
        if self.is_python_function:
            return index.called_by(self._row)
        inside = index.inside(self._row, (Kind.REGION, Kind.CALL)) if self._is_region else []
        if not len(index.trace.python_functions):
            return inside
        inside = [event for event in inside if event._source.caller(event._row) == NONE]
        functions = index.inside(self._row, (Kind.PYTHON_FUNCTION,)) if self._is_region else []
        return sorted(inside + functions, key=lambda event: event.id)

    @property
    def is_python_function(self) -> bool:
        """A call of a Python function, or a garbage collection (``with_stack``)."""
        return self._source.kind == Kind.PYTHON_FUNCTION

    @property
    def python_id(self) -> int:
        """The number of the call among those of Python functions, from 1; -1 of other events."""
        return self._row + 1 if self.is_python_function else -1

    @property
    def python_parent_id(self) -> int:
        """`python_id` of the calling function; -1 for none."""
        caller = int(self._source.table.parent[self._row]) if self.is_python_function else NONE
        return caller + 1 if caller < len(self._source.table) else -1

    @property
    def python_module_id(self) -> int:
        """For a call of a torch.nn.Module, its number among those of its class, from 0; -1 otherwise."""
        module = int(self._source.table.module[self._row]) if self.is_python_function else NONE
        return module if module != NONE else -1

    @property
    def kernels(self) -> list[KernelInfo]:
        """The GPU work that a driver call launched, or that was launched directly in a region."""
        index = self._source.index
        if self._source.kind == Kind.CALL:
            work = index.launched_by(int(self._source.table.correlation[self._row]))
        else:
            work = index.inside(self._row, DEVICE_KINDS) if self._is_region else []
        return [KernelInfo(event.name, event.device_index, event.device_time_total) for event in work]

    @property
    def _duration_ns(self) -> int:
        return int(self._source.duration_ns[self._row])

    @property
    def cpu_time_total(self) -> float:
        """Its duration in us; 0 on the GPU."""
        return 0.0 if self._source.kind.is_device else self._duration_ns / NS_PER_US

    @property
    def self_cpu_time_total(self) -> float:
        """CPU time in us without regions and driver calls inside, on the same thread."""
        if self._is_region:
            return int(self._source.index.trace.instances.self_cpu_ns[self._row]) / NS_PER_US
        if self.is_python_function:
            return int(self._source.index.trace.function_nesting.self_cpu_ns[self._row]) / NS_PER_US
        return 0.0 if self._source.kind == Kind.SYNC else self.cpu_time_total

    @property
    def device_time_total(self) -> float:
        """Inclusive GPU time in us."""
        if self._is_region:
            return int(self._source.index.trace.instances.device_ns[self._row]) / NS_PER_US
        return self.self_device_time_total

    @property
    def self_device_time_total(self) -> float:
        """GPU time in us launched in no region inside."""
        if self._is_region:
            return int(self._source.index.trace.instances.self_device_ns[self._row]) / NS_PER_US
        return self._duration_ns / NS_PER_US if self._source.kind.is_device else 0.0

    self_cpu_percent = _Share("self_cpu_time_total", "cpu_ns")
    total_cpu_percent = _Share("cpu_time_total", "cpu_ns")
    total_device_percent = _Share("self_device_time_total", "device_ns")

    # -- torch's numbers that join events ------------------------------------------------------------------------------

    @property
    def external_id(self) -> int:
        """The "External id" of Chrome traces: for regions a number of their own, from 1.

        For driver calls and GPU work, the number of the operator around, or else of the region; 0 outside all.
        """
        if self._is_region:
            return self._row + 1
        region = NONE if self.is_python_function else self._source.parent(self._row)
        if region == NONE or not self._source.index.has_external_ids:
            return 0
        return self._regions.owner(region) + 1

    @property
    def linked_correlation_id(self) -> int:
        """For GPU work and driver calls, the `id` of the region around the launch; 0 for other events."""
        region = NONE if self._is_region or self.is_python_function else self._source.parent(self._row)
        return self._source.index.event(Kind.REGION, region).id if region != NONE else 0

    @property
    def flow_id(self) -> int:
        """Joins a forward operator with its backward one, and a launch with its work, as in Chrome traces; 0: none."""
        if self._is_region:
            forward = int(self._regions.forward[self._row])
            return self._regions.backward_flow(self._row) or self._regions.backward_flow(forward)
        return int(self._source.table.correlation[self._row]) if self.flow_type else 0

    @property
    def flow_type(self) -> int:
        """1 from forward to backward, 2 from a launch to GPU work, 0 for none."""
        if self._is_region:
            return int(self.flow_id != 0)
        return 2 if self._source.has_flow[self._row] else 0

    @property
    def flow_start(self) -> bool:
        """Whether the arrow begins here."""
        if self._is_region:
            return self._regions.backward_flow(self._row) != 0
        return self._source.kind == Kind.CALL and self.flow_type != 0

    @property
    def event_metadata(self) -> EventMetadata | None:
        """Details of GPU work; None for other events."""
        if not self._source.kind.is_device:
            return None
        index = self._source.index
        where = EventMetadata(context=self._source.on_track("context", self._row), stream=self.thread)
        if (node := index.graph_nodes.get((self._source.kind, self._row))) is not None:
            where = where._replace(graph_id=node[0], graph_node_id=node[1])
        if self._source.kind == Kind.KERNEL:
            return where._replace(**index.launch_of(int(self._source.table.variant[self._row])))
        if self._source.kind not in _MOVES:
            return where
        rate = self.bytes / self._duration_ns if self._duration_ns else None
        return where._replace(bytes=self.bytes, bandwidth_gb_s=rate)

    @property
    def bytes(self) -> int:
        """Bytes moved or filled; 0 for other events."""
        return int(self._source.table.bytes[self._row]) if self._source.kind in _MOVES else 0

    @property
    def metadata_json(self) -> str:
        """``event_metadata`` as JSON without braces, as in torch; for regions their place."""
        known = {} if self.event_metadata is None else self.event_metadata.as_in_traces()
        if self._is_region:
            known = {"Ev Idx": self._row}
        return json.dumps(known)[1:-1]

    # -- regions and operators; other events have torch's defaults -----------------------------------------------------

    @property
    def _regions(self) -> RegionRows:
        return self._source.index.regions

    @property
    def _path(self) -> int:
        return int(self._regions.path[self._row])

    @property
    def _is_region(self) -> bool:
        return self._source.kind == Kind.REGION

    @property
    def is_user_annotation(self) -> bool:
        """The program or a library named it; False for operators and modules."""
        return self._is_region and self._regions.path_kinds[self._path] in ANNOTATIONS

    @property
    def is_async(self) -> bool:
        """It may end on another thread: it overlaps other regions and has no self time."""
        return self._is_region and bool(self._source.index.trace.regions.flags[self._row] & Flag.ASYNC)

    @property
    def is_open(self) -> bool:
        """A region or operator that had not ended when the recording did."""
        return self._is_region and bool(self._source.index.trace.regions.flags[self._row] & Flag.OPEN)

    @property
    def activity_type(self) -> str:
        """torch.profiler's activity type: cpu_op, user_annotation, kernel, gpu_memcpy ..."""
        if self._is_region:
            return "user_annotation" if self.is_user_annotation else "cpu_op"
        if self._source.kind == Kind.CALL and self.trace_name.startswith("cuda"):
            return "cuda_runtime"
        return _ACTIVITIES.get(self._source.kind, "graph_launch")

    @property
    def scope(self) -> int:
        """RecordScope of torch: 0 operator, 1 backward function, 7 named by the program or a library."""
        return self._regions.path_scopes[self._path] if self._is_region else SCOPE_FUNCTION

    @property
    def sequence_nr(self) -> int:
        """Autograd's number, equal for a forward operator and its backward one; -1 for none."""
        return int(self._regions.sequence[self._row]) if self._is_region else -1

    @property
    def forward(self) -> FunctionEvent | None:
        """The forward operator of a backward one; None for others, or if it is not in the recording."""
        forward = int(self._regions.forward[self._row]) if self._is_region else NONE
        return self._source.index.event(Kind.REGION, forward) if forward < len(self._regions) else None

    @property
    def fwd_thread(self) -> int:
        """The system's id of the forward operator's thread; 0 without one."""
        forward = self.forward
        return forward.thread if forward is not None else 0

    @property
    def _shapes(self) -> Shapes:
        return self._regions.shapes_of(int(self._regions.shapes[self._row])) if self._is_region else ()

    @property
    def input_shapes(self) -> list[list[int]]:
        """The sizes of each input (``record_shapes``); [] for scalars, lists of tensors and other values."""
        return flat_shapes(self._shapes)

    @property
    def structured_input_shapes(self) -> list[Any]:
        """The sizes of each input, with a list of shapes for a list of tensors."""
        return nested_shapes(self._shapes)

    @property
    def input_dtypes(self) -> list[str]:
        """The types of each input (``record_shapes``), as torch writes them."""
        types = int(self._regions.types[self._row]) if self._is_region else NONE
        return list(self._regions.types_of(types))

    @property
    def structured_input_strides(self) -> list[Any]:
        """The strides of each input (``record_shapes``), in the form of `structured_input_shapes`."""
        strides = int(self._regions.strides[self._row]) if self._is_region else NONE
        return nested_shapes(self._regions.shapes_of(strides))

    @property
    def concrete_inputs(self) -> list[Any]:
        """The numbers and lists of numbers among the inputs (``record_shapes``); None for other inputs."""
        concrete = int(self._regions.concrete_inputs[self._row]) if self._is_region else NONE
        if concrete == NONE:
            return []
        values = parse_concrete_inputs(self._source.index.trace.string(concrete))
        return [list(value) if isinstance(value, tuple) else value for value in values]

    @property
    def kwinputs(self) -> dict[str, Any]:
        """Values by name from a library's range (``record_shapes``) or a program's NVTX range."""
        given = dict(self._regions.keywords.get(self._row, {})) if self._is_region else {}
        given.pop("Module Hierarchy", None)  # from TorchScript, only in traces
        return given

    @property
    def overload_name(self) -> str:
        """The operator's overload, as "Tensor" of aten::add (``capture_overload_names``); "" otherwise."""
        return self._regions.overload_of(self._row) if self._is_region else ""

    @property
    def stack(self) -> list[str]:
        """Python frames as "file.py(12): function", innermost first (``with_stack``).

        A backward operator has its forward one's. A Python function has its callers.
        """
        if self.is_python_function:
            return self._source.callers_of(self._row)
        if self._is_region:
            stack = int(self._source.index.trace.instances.stack[self._row])
        elif self._source.kind == Kind.CALL:
            stack = self._source.index.call_stacks.get(self._row, NONE)
        else:
            return []
        texts = self._regions.stack_texts if stack != NONE else []
        return list(texts[stack]) if stack < len(texts) else []

    @property
    def flops(self) -> int | None:
        """Floating-point operations, from the shapes; 0 if there are none, None with a reason in ``flops_unknown``."""
        count = int(self._source.index.flops[self._row]) if self._is_region else 0
        return count if count >= 0 else None

    @property
    def flops_unknown(self) -> str | None:
        """The reason why ``flops`` is None; None if it is a number."""
        if self.flops is not None:
            return None
        name = self._source.name(self._row)
        if name == flops.CONVOLUTION_BACKWARD:
            return flops.UNKNOWN_GRADIENTS
        return flops.UNKNOWN_SIZE if name in flops.CONVOLUTIONS else flops.UNKNOWN_SHAPES

    def _memory(self, column: str, on_host: bool) -> int:
        if self._is_region:
            return int(getattr(self._source.index.trace.instances, column)[self._row])
        if self._source.kind == Kind.MEMORY and (self._source.table.ordinal[self._row] == NONE) == on_host:
            return int(self._source.table.bytes[self._row])
        return 0

    @property
    def cpu_memory_usage(self) -> int:
        """Bytes of host memory allocated minus freed (``profile_memory``), regions inside included."""
        return self._memory("cpu_bytes", on_host=True)

    @property
    def self_cpu_memory_usage(self) -> int:
        """Bytes of host memory allocated minus freed, without regions inside."""
        return self._memory("self_cpu_bytes", on_host=True)

    @property
    def device_memory_usage(self) -> int:
        """Bytes of GPU memory allocated minus freed (``profile_memory``), regions inside included."""
        return self._memory("device_bytes", on_host=False)

    @property
    def self_device_memory_usage(self) -> int:
        """Bytes of GPU memory allocated minus freed, without regions inside."""
        return self._memory("self_device_bytes", on_host=False)

    @property
    def use_device(self) -> str | None:
        """The text "cuda" if some GPU time was recorded, else None."""
        return "cuda" if self._source.index.trace.summary.has_device else None

    @shown
    def __repr__(self) -> str:
        start, end = self.time_range
        memory = "".join(
            f" {name}={used}" for name in ("cpu_memory_usage", "cuda_memory_usage") if (used := getattr(self, name))
        )
        return f"<FunctionEvent {self.kind} {self.name!r} at {start:.3f}us for {end - start:.3f}us{memory}>"


class Events(EventList[FunctionEvent]):
    """The events of a recording.

    Attributes:
        cut: number of latest events missing because `seconds` were over.
    """

    COLUMNS = (
        *("id", "name", "kind", "start_us", "end_us", "device_index", "device_resource_id", "thread", "is_top_level"),
        *("cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total", "cpu_memory_usage"),
        *("device_memory_usage", "flops", "input_shapes", "sequence_nr"),
    )

    def __init__(self, trace: Trace, seconds: float | None = None) -> None:
        index = EventIndex(trace, FunctionEvent, seconds)
        super().__init__(index.events, **recording_totals(trace))
        self.cut = index.count - len(index.events)
        self._trace = trace

    def key_averages(
        self,
        group_by_input_shapes: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool = False,
    ) -> Averages:
        """The rows of ``key_averages`` of the whole recording."""
        grouping = (group_by_input_shapes, group_by_stack_n, group_by_overload_name)
        return key_averages(self._trace, *grouping, include_python_functions)

    def total_average(self) -> FunctionEventAvg:
        """All events as one row."""
        return self.key_averages().total_average()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the CPU's events as a Chrome trace. ``profile.export_chrome_trace`` writes all events.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        entries = (
            json.dumps(
                {
                    "name": event.trace_name,
                    "ph": "X",
                    "ts": event.time_range.start,
                    "dur": event.time_range.elapsed_us(),
                    "tid": event.thread,
                    "pid": "CPU functions",
                    "args": {},
                }
            )
            for event in self
            if event.device_type == DeviceType.CPU
        )
        write_text(path, f"[{', '.join(entries)}]")

    def supported_export_stacks_metrics(self) -> list[str]:
        """The metrics that ``export_stacks`` accepts."""
        return list(get_args(StackMetric))

    def export_stacks(self, path: str | os.PathLike[str], metric: StackMetric) -> None:
        """Writes one line per event with a call stack, ``outer;inner 123``: its self time in us, for flame graphs.

        Without GPU work all metrics are CPU time, with a warning.

        Raises:
            InvalidArgument: the metric is none of ``supported_export_stacks_metrics``.
            GpuscopeError: the file cannot be written.
        """
        metric = known_stack_metric(metric, self.has_device, stacklevel=3)
        separators = str.maketrans(" ;\t\n", "____")  # the format's separators cannot be in a name
        lines = []
        for event in self:
            time_us = int(getattr(event, device_key(metric)))
            if time_us > 0 and (stack := event.stack):
                lines.append(f"{';'.join(frame.translate(separators) for frame in reversed(stack))} {time_us}\n")
        write_text(path, "".join(lines))


def events(trace: Trace) -> Events:
    """Every event, in order of start. Allocations are events only outside regions.

    Unlike in torch.profiler, an event is included even if it is all that another event of its name contains. Empty in
    aggregate mode, which keeps no single events.
    """
    return Events(trace)
