# SPDX-License-Identifier: Apache-2.0
"""Events under the names of torch's own records, for libraries that read ``prof.profiler.kineto_results``."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gpuscope.analysis.function_events import FunctionEvent, events
from gpuscope.analysis.rows import NS_PER_US, REGION_LABELS
from gpuscope.profiler.event_tree import ProfilerEvent, build_tree
from gpuscope.trace import number_of

if TYPE_CHECKING:
    import os

    from gpuscope.trace import Trace

# Functions whose attribute in a FunctionEvent has another name.
_ATTRIBUTES = {
    "name": "trace_name",
    "start_thread_id": "thread",
    "end_thread_id": "thread",
    "fwd_thread_id": "fwd_thread",
    "shapes": "input_shapes",
    "dtypes": "input_dtypes",
}
_SAME_NAME = frozenset(
    {
        *("activity_type", "concrete_inputs", "device_index", "device_resource_id", "device_type", "external_id"),
        *("flops", "flow_id", "flow_start", "flow_type", "is_async", "is_python_function", "is_user_annotation"),
        *("kwinputs", "metadata_json", "overload_name", "python_id", "python_module_id"),
        *("python_parent_id", "scope", "sequence_nr", "stack", "structured_input_shapes", "structured_input_strides"),
    }
)


class KinetoEvent:
    """One event; the attributes of a `FunctionEvent` are functions here, as in torch."""

    def __init__(self, event: FunctionEvent, trace_start_ns: int, first_id: int) -> None:
        self._event = event
        self._trace_start_ns = trace_start_ns
        self._first_id = first_id

    def start_ns(self) -> int:
        """When it began, in ns since the Unix epoch."""
        return self._trace_start_ns + round(self._event.start_us * NS_PER_US)

    def end_ns(self) -> int:
        """When it ended, likewise."""
        return self.start_ns() + self.duration_ns()

    def duration_ns(self) -> int:
        """How long it was."""
        return round(self._event.time_range.elapsed_us() * NS_PER_US)

    def correlation_id(self) -> int:
        """Its number, which no other event of the process has."""
        return self._first_id + self._event.id

    def linked_correlation_id(self) -> int:
        """For GPU work and driver calls, the number of the region that launched it; else 0."""
        parent = None if self._event.kind in REGION_LABELS else self._event.cpu_parent
        return self._first_id + parent.id if parent is not None else 0

    def nbytes(self) -> int:
        """Bytes that an allocation outside every region took or gave back; 0 for other events."""
        if self._event.kind != "memory":
            return 0
        return self._event.cpu_memory_usage or self._event.device_memory_usage

    def cuda_elapsed_us(self) -> int:
        """The GPU time measured by CUDA events: always -1, torch's value for none."""
        return -1

    def privateuse1_elapsed_us(self) -> int:
        """Likewise."""
        return -1

    def is_hidden_event(self) -> bool:
        """Always False."""
        return False

    def extra_meta(self) -> dict[str, str]:
        """The metadata of GPU work, as texts."""
        known = self._event.event_metadata
        return {} if known is None else {key: json.dumps(value) for key, value in known.as_in_traces().items()}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        attribute = name if name in _SAME_NAME else _ATTRIBUTES.get(name)
        if attribute is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return lambda: getattr(self._event, attribute)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_ATTRIBUTES, *_SAME_NAME})

    def __repr__(self) -> str:
        return repr(self._event).replace("FunctionEvent", "KinetoEvent", 1)


class _Ids:
    """Numbers for events, fixed for a recording and unique among recordings. Any thread."""

    def __init__(self) -> None:
        self._next = 1
        self._lock = Lock()
        self._first: WeakKeyDictionary[Trace, int] = WeakKeyDictionary()

    def take(self, trace: Trace, count: int) -> int:
        """The first number of a recording with `count` events."""
        with self._lock:
            if trace not in self._first:
                if self._next + count > _MAX_ID:
                    self._next = 1
                self._first[trace] = self._next
                self._next += count
            return self._first[trace]


_MAX_ID = 1 << 31  # fits the 32 bits that CUPTI's have
_ids = _Ids()


class KinetoResults:
    """The type of ``prof.profiler.kineto_results``.

    Attributes:
        trace: the recording, as columns.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._tree: list[ProfilerEvent] | None = None

    def events(self) -> list[KinetoEvent]:
        """Every event, in order of time."""
        start_ns = self.trace_start_ns()
        found = events(self.trace)
        first_id = _ids.take(self.trace, len(found))
        return [KinetoEvent(event, start_ns, first_id) for event in found]

    def trace_start_ns(self) -> int:
        """When the recording began, in ns since the Unix epoch."""
        return number_of(self.trace.info, "session.start_ns")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a Chrome trace."""
        from gpuscope.exporters import export_chrome_trace

        export_chrome_trace(self.trace.store, path)

    def experimental_event_tree(self) -> list[ProfilerEvent]:
        """The outermost events, each with those inside: the same each time. See `build_tree`."""
        if self._tree is None:
            found = events(self.trace)
            self._tree = build_tree(self.trace, found, _ids.take(self.trace, len(found)))
        return list(self._tree)
