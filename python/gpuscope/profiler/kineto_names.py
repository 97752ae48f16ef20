# SPDX-License-Identifier: Apache-2.0
"""Events under the names of torch's own records, for libraries that read ``prof.profiler.kineto_results``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from gpuscope.analysis.function_events import FunctionEvent, events
from gpuscope.analysis.rows import NS_PER_US
from gpuscope.errors import NotAvailable

if TYPE_CHECKING:
    import os

    from gpuscope.trace import Trace

# What is an attribute of another name in a FunctionEvent.
_ATTRIBUTES = {
    "name": "trace_name",
    "correlation_id": "id",
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
        *("kwinputs", "linked_correlation_id", "metadata_json", "overload_name", "python_id", "python_module_id"),
        *("python_parent_id", "scope", "sequence_nr", "stack", "structured_input_shapes", "structured_input_strides"),
    }
)


class KinetoEvent:
    """One event; what a `FunctionEvent` has as attributes are functions here, as in torch."""

    def __init__(self, event: FunctionEvent, trace_start_ns: int) -> None:
        self._event = event
        self._trace_start_ns = trace_start_ns

    def start_ns(self) -> int:
        """When it began, in ns since the Unix epoch."""
        return self._trace_start_ns + round(self._event.start_us * NS_PER_US)

    def end_ns(self) -> int:
        """When it ended, likewise."""
        return self.start_ns() + self.duration_ns()

    def duration_ns(self) -> int:
        """How long it was."""
        return round(self._event.time_range.elapsed_us() * NS_PER_US)

    def nbytes(self) -> int:
        """What an allocation outside every region took or gave back; 0 of others."""
        if self._event.kind != "memory":
            return 0
        return self._event.cpu_memory_usage or self._event.device_memory_usage

    def cuda_elapsed_us(self) -> int:
        """The GPU time where CUDA events alone measured it: always -1, as torch has it for none."""
        return -1

    def privateuse1_elapsed_us(self) -> int:
        """Likewise."""
        return -1

    def is_hidden_event(self) -> bool:
        """Always False."""
        return False

    def extra_meta(self) -> dict[str, str]:
        """What is known of GPU work, as texts."""
        known = self._event.event_metadata
        return {} if known is None else {key: str(value) for key, value in known._asdict().items() if value is not None}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        attribute = name if name in _SAME_NAME else _ATTRIBUTES.get(name)
        if attribute is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return lambda: getattr(self._event, attribute)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_ATTRIBUTES, *_SAME_NAME})

    def __repr__(self) -> str:
        return repr(self._event).replace("FunctionEvent", "KinetoEvent", 1)


class KinetoResults:
    """What ``prof.profiler.kineto_results`` is."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def events(self) -> list[KinetoEvent]:
        """Every event, in order of time."""
        start_ns = self.trace_start_ns()
        return [KinetoEvent(event, start_ns) for event in events(self._trace)]

    def trace_start_ns(self) -> int:
        """When the recording began, in ns since the Unix epoch."""
        return int(self._trace.info.get("session.start_ns", "0") or 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a Chrome trace."""
        from gpuscope.exporters import export_chrome_trace

        export_chrome_trace(self._trace.store, path)

    def experimental_event_tree(self) -> NoReturn:
        """Raises NotAvailable: the tree is of Kineto's own records."""
        raise NotAvailable(
            "experimental_event_tree is not available: gpuscope records without Kineto; prof.tree() is its call tree"
        )
