# SPDX-License-Identifier: Apache-2.0
"""What an event tells beyond name and time: shapes, autograd's numbers, call stacks, memory, arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuscope.analysis import flops
from gpuscope.analysis.kinds import Kind
from gpuscope.analysis.region_rows import SCOPE_FUNCTION
from gpuscope.analysis.shapes import Shapes, flat_shapes, nested_shapes
from gpuscope.trace import ASYNC, NONE

if TYPE_CHECKING:
    from gpuscope.analysis.event_index import Source
    from gpuscope.analysis.events import FunctionEvent
    from gpuscope.analysis.region_rows import RegionRows

# torch.profiler's names of activities.
_ACTIVITIES = {
    Kind.CALL: "cuda_driver",
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.SYNC: "cuda_sync",
    Kind.MEMORY: "cpu_instant_event",
}


class EventDetails:
    """The part of a FunctionEvent that regions and operators alone have; of other events it is what torch gives."""

    __slots__ = ()
    _source: Source[FunctionEvent]
    _row: int

    @property
    def _regions(self) -> RegionRows:
        return self._source.recording.regions

    @property
    def _path(self) -> int:
        return int(self._regions.path[self._row])

    @property
    def _is_region(self) -> bool:
        return self._source.kind == Kind.REGION

    @property
    def is_user_annotation(self) -> bool:
        """The program, or a library, named that stretch of it; operators and modules are none."""
        return self._is_region and self._regions.path_kinds[self._path].is_annotation

    @property
    def is_async(self) -> bool:
        """It may have ended on another thread: it overlaps what ran beside it and has no time of its own."""
        return self._is_region and bool(self._source.recording.trace.regions.flags[self._row] & ASYNC)

    @property
    def activity_type(self) -> str:
        """torch.profiler's word for what it is: cpu_op, user_annotation, kernel, gpu_memcpy ..."""
        if self._is_region:
            return "user_annotation" if self.is_user_annotation else "cpu_op"
        return _ACTIVITIES.get(self._source.kind, "graph_launch")

    @property
    def scope(self) -> int:
        """The RecordScope in torch: 0 of operators, 1 of backward functions, 7 of what was named by hand."""
        return self._regions.path_scopes[self._path] if self._is_region else SCOPE_FUNCTION

    @property
    def sequence_nr(self) -> int:
        """Autograd's number, the same for a forward operator and its backward one; -1 for none."""
        return int(self._regions.sequence[self._row]) if self._is_region else -1

    @property
    def forward(self) -> FunctionEvent | None:
        """Of a backward operator the forward one; None for others and where it is not in the recording."""
        forward = int(self._regions.forward[self._row]) if self._is_region else NONE
        return self._source.recording.event(Kind.REGION, forward) if forward < len(self._regions) else None

    @property
    def fwd_thread(self) -> int:
        """The system's id of the thread of the forward operator; 0 where there is none."""
        forward = self.forward
        return forward.thread if forward is not None else 0

    @property
    def _shapes(self) -> Shapes:
        return self._regions.shapes_of(int(self._regions.shapes[self._row])) if self._is_region else ()

    @property
    def input_shapes(self) -> list[list[int]]:
        """The sizes of each input (``record_shapes``); [] for scalars, lists of tensors and what is no tensor."""
        return flat_shapes(self._shapes)

    @property
    def structured_input_shapes(self) -> list[Any]:
        """Likewise, with a list of shapes for a list of tensors."""
        return nested_shapes(self._shapes)

    @property
    def stack(self) -> list[str]:
        """Python frames as "file.py(12): function", innermost first (``with_stack``); backward: the forward one's."""
        if self._is_region:
            stack = int(self._regions.stack[self._row])
        elif self._source.kind == Kind.CALL:
            stack = self._source.recording.call_stacks.get(self._row, NONE)
        else:
            return []
        texts = self._regions.stack_texts if stack != NONE else []
        return list(texts[stack]) if stack < len(texts) else []

    @property
    def flops(self) -> int | None:
        """Floating-point operations, from the shapes; 0 for what has none, None where ``flops_unknown`` says why."""
        count = int(self._regions.flops[self._row]) if self._is_region else 0
        return count if count >= 0 else None

    @property
    def flops_unknown(self) -> str | None:
        """Why ``flops`` is None; None where it is a number."""
        if self.flops is not None:
            return None
        name = self._source.name(self._row)
        if name == flops.CONVOLUTION_BACKWARD:
            return flops.UNKNOWN_GRADIENTS
        return flops.UNKNOWN_SIZE if name in flops.CONVOLUTIONS else flops.UNKNOWN_SHAPES

    def _memory(self, column: str, on_host: bool) -> int:
        if self._is_region:
            return int(getattr(self._source.recording.trace.instances, column)[self._row])
        if self._source.kind == Kind.MEMORY and (self._source.table.ordinal[self._row] == NONE) == on_host:
            return int(self._source.table.bytes[self._row])
        return 0

    @property
    def cpu_memory_usage(self) -> int:
        """Bytes of host memory taken less given back (``profile_memory``), inside included."""
        return self._memory("cpu_bytes", on_host=True)

    @property
    def self_cpu_memory_usage(self) -> int:
        """Likewise, in no region inside."""
        return self._memory("self_cpu_bytes", on_host=True)

    @property
    def device_memory_usage(self) -> int:
        """Bytes of GPU memory taken less given back (``profile_memory``), inside included."""
        return self._memory("device_bytes", on_host=False)

    @property
    def self_device_memory_usage(self) -> int:
        """Likewise, in no region inside."""
        return self._memory("self_device_bytes", on_host=False)

    @property
    def overload_name(self) -> str:
        """Always "": torch's operator ranges do not tell overloads."""
        return ""

    @property
    def use_device(self) -> str | None:
        """Where some GPU time was recorded "cuda", None elsewhere."""
        return "cuda" if self._source.recording.trace.summary.has_device else None

    @property
    def is_python_function(self) -> bool:
        """Never: Python functions are not recorded, ``stack`` names them."""
        return False

    @property
    def is_remote(self) -> bool:
        """Never."""
        return False

    @property
    def is_legacy(self) -> bool:
        """Never."""
        return False

    @property
    def node_id(self) -> int:
        """-1: no cluster."""
        return -1
