# SPDX-License-Identifier: Apache-2.0
"""The tree of a recording's events under torch's names, for torch's pattern matcher and other tools."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpuscope._core import Flag, FunctionKind
from gpuscope.analysis.function_events import FunctionEvent
from gpuscope.analysis.rows import NS_PER_US, REGION_LABELS
from gpuscope.threads import cached_property
from gpuscope.trace import NONE, number_of

if TYPE_CHECKING:
    from gpuscope.trace import Trace

_MODULE = "nn.Module: "
_FRAME = re.compile(r"(.*)\((\d{1,9})\): (.*)", re.DOTALL)
_DTYPES = {
    "unsigned char": "uint8",
    "signed char": "int8",
    "short int": "int16",
    "int": "int32",
    "long int": "int64",
    "c10::Half": "float16",
    "float": "float32",
    "double": "float64",
    "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "bool": "bool",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
}


def _of_torch(name: str, otherwise: Any) -> Any:
    """The member `name` of torch's profiler module; `otherwise` without torch."""
    return getattr(sys.modules.get("torch._C._profiler"), name, otherwise)


class _Fields:
    """The fields of one kind of event. They are instances of torch's class too, as of ``_ExtraFields_TorchOp``."""

    NAME: ClassVar[str]

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return _of_torch(self.NAME, type(self))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TensorMetadata(_Fields):
    """One tensor among an operator's inputs; its address is not recorded.

    Attributes:
        sizes: its sizes.
        strides: its strides.
        dtype: its torch.dtype; None for those in a list of tensors, and without torch.
    """

    NAME = "_TensorMetadata"
    impl_ptr: ClassVar[None] = None
    storage_data_ptr: ClassVar[None] = None
    id: ClassVar[None] = None
    allocation_id: ClassVar[None] = None

    sizes: list[int]
    strides: list[int]
    dtype: Any


@dataclass(frozen=True)
class TorchOp(_Fields):
    """An operator or region.

    Attributes:
        name: its name.
        sequence_number: autograd's number; -1 for none.
        scope: torch's RecordScope.
        inputs: tensors, lists of them and numbers, in order; None for others (``record_shapes``).
        allow_tf32_cublas: whether torch allows TF32 now; it is not recorded.
    """

    NAME = "_ExtraFields_TorchOp"

    name: str
    sequence_number: int
    scope: Any
    inputs: list[Any]
    allow_tf32_cublas: bool


@dataclass(frozen=True)
class PyFrameState:
    """A function of Python.

    Attributes:
        file_name: where it is defined, as in traces.
        line_number: the line at which it begins.
        function_name: its name.
    """

    file_name: str = ""
    line_number: int = 0
    function_name: str = ""

    @classmethod
    def parse(cls, name: str) -> PyFrameState:
        """Reads ``file.py(12): function``; anything else is the name of a function."""
        found = _FRAME.fullmatch(name)
        return cls(found[1], int(found[2]), found[3]) if found else cls(function_name=name)


@dataclass(frozen=True)
class NNModuleInfo:
    """The torch.nn.Module that was called; its parameters are not recorded.

    Attributes:
        cls_name: the name of its class.
    """

    cls_name: str


@dataclass(frozen=True)
class PyCall(_Fields):
    """A call of a Python function.

    Attributes:
        callsite: the function.
        caller: the function around it, where it is defined.
        module: the torch.nn.Module that was called; None if none was.
        optimizer: always None.
    """

    NAME = "_ExtraFields_PyCall"
    optimizer: ClassVar[None] = None

    callsite: PyFrameState
    caller: PyFrameState
    module: NNModuleInfo | None


@dataclass(frozen=True)
class PyCCall(_Fields):
    """A call of a function that is written in C.

    Attributes:
        caller: the Python function around it, where it is defined.
    """

    NAME = "_ExtraFields_PyCCall"

    caller: PyFrameState


@dataclass(frozen=True)
class Allocation(_Fields):
    """Memory that was allocated or freed.

    Attributes:
        ptr: its address; None for a failed allocation.
        alloc_size: bytes, negative when freed.
        total_allocated: bytes allocated on that device afterwards.
        total_reserved: bytes that the allocator had reserved there.
        device: the torch.device; its name without torch.
    """

    NAME = "_ExtraFields_Allocation"
    id: ClassVar[None] = None
    allocation_id: ClassVar[None] = None

    ptr: int | None
    alloc_size: int
    total_allocated: int
    total_reserved: int
    device: Any


@dataclass(frozen=True)
class OutOfMemory(Allocation):
    """An allocation that failed."""

    NAME = "_ExtraFields_OutOfMemory"


@dataclass(frozen=True)
class Kineto(_Fields):
    """A driver call or GPU work: see ``kineto_results.events()``."""

    NAME = "_ExtraFields_Kineto"


class ProfilerEvent:
    """One event of the tree.

    Attributes:
        id: its number, unique in the tree.
        name: as in Chrome traces.
        overload_name: which operator of its name it is; "" if not recorded.
        start_tid: the system's id of the thread; for GPU work the stream's number.
        start_time_ns: when it began, in ns since the Unix epoch.
        duration_time_ns: how long it was.
        correlation_id: its number in ``kineto_results.events()``; 0 for allocations.
        parent: the event around it on its thread, for GPU work the driver call; None for the outermost.
        children: events directly inside, in order of time.
    """

    def __init__(
        self,
        id: int,  # noqa: A002 - torch's name
        name: str,
        tag: str,
        thread: int,
        start_ns: int,
        duration_ns: int,
        make_fields: Callable[[ProfilerEvent], _Fields],
        correlation_id: int = 0,
        overload_name: str = "",
    ) -> None:
        self.id = id
        self.name = name
        self.overload_name = overload_name
        self.start_tid = thread
        self.start_time_ns = start_ns
        self.duration_time_ns = duration_ns
        self.correlation_id = correlation_id
        self.parent: ProfilerEvent | None = None
        self.children: list[ProfilerEvent] = []
        self._tag = tag
        self._make_fields = make_fields

    @property
    def end_time_ns(self) -> int:
        """When it ended, in ns since the Unix epoch."""
        return self.start_time_ns + self.duration_time_ns

    @property
    def tag(self) -> Any:
        """The kind of event: torch's ``_EventType``; its name without torch."""
        return getattr(_of_torch("_EventType", None), self._tag, self._tag)

    @cached_property
    def extra_fields(self) -> _Fields:
        """The fields of its kind of event."""
        return self._make_fields(self)

    @property
    def typed(self) -> tuple[Any, _Fields]:
        """``tag`` and ``extra_fields``."""
        return self.tag, self.extra_fields

    def __repr__(self) -> str:
        return f"<ProfilerEvent {self._tag} {self.name!r}, {len(self.children)} inside>"


def build_tree(trace: Trace, found: Sequence[FunctionEvent], first_id: int) -> list[ProfilerEvent]:
    """The outermost events of a recording by thread, each with those inside.

    As in torch's tree, only threads that were in a Python function when the recording began have calls of Python
    functions. Modules (``with_modules``) and garbage collections are not in it.

    Args:
        trace: the recording.
        found: its events.
        first_id: the first ``correlation_id``.
    """
    start_ns = number_of(trace.info, "session.start_ns")
    on_threads: list[ProfilerEvent] = []
    elsewhere: list[tuple[ProfilerEvent, FunctionEvent]] = []
    nodes: dict[int, ProfilerEvent] = {}  # by the event's id
    launches: dict[int, ProfilerEvent] = {}  # driver calls by the arrow to their work
    threads = _threads_from_before(trace)
    for event in found:
        tag, make_fields = _kind_of(trace, event)
        if not tag or (tag.startswith("Py") and event.thread not in threads):
            continue
        interval = event.time_range
        begins_ns = start_ns + round(interval.start * NS_PER_US)
        duration_ns = round(interval.elapsed_us() * NS_PER_US)
        around = event.cpu_parent if event.is_open else None
        if around is not None and around.id in nodes:  # as in torch, an open event ends with its parent
            duration_ns = min(duration_ns, nodes[around.id].end_time_ns - begins_ns)
        node = ProfilerEvent(
            *(event.id, event.trace_name, tag, event.thread, begins_ns, duration_ns, make_fields),
            correlation_id=first_id + event.id,
            overload_name=event.overload_name,
        )
        nodes[event.id] = node
        is_call = tag == "Kineto" and event.kind == "call"
        if is_call:
            launches[event.flow_id] = node
        if (tag == "Kineto" and not is_call) or event.is_async:
            elsewhere.append((node, event))
        else:
            on_threads.append(node)
    on_threads += _allocations(trace, len(found))
    on_threads.sort(key=lambda node: (node.start_tid, node.start_time_ns, -node.end_time_ns, node.id))
    roots = _nest(on_threads)
    for node, event in elsewhere:
        launch = launches.get(event.flow_id) if event.flow_id and not event.is_async else None
        region = event.cpu_parent
        node.parent = launch or (nodes.get(region.id) if region is not None else None)
        (roots if node.parent is None else node.parent.children).append(node)
    for siblings in (roots, *(node.children for node in nodes.values())):
        siblings.sort(key=attrgetter("start_time_ns"))
    return roots


def _nest(nodes: list[ProfilerEvent]) -> list[ProfilerEvent]:
    """Sets parent and children of nodes, which are sorted by thread and time; returns the outermost."""
    roots: list[ProfilerEvent] = []
    around: list[ProfilerEvent] = []
    for node in nodes:
        # Regions of tasks may overlap. One that ends earlier is not around this one; later events inside both belong
        # to this one.
        while around and (
            around[-1].start_tid != node.start_tid
            or around[-1].end_time_ns <= node.start_time_ns
            or around[-1].end_time_ns < node.end_time_ns
        ):
            around.pop()
        node.parent = around[-1] if around else None
        (roots if node.parent is None else node.parent.children).append(node)
        around.append(node)
    return roots


def _threads_from_before(trace: Trace) -> frozenset[int]:
    """The system's ids of the threads that were in a Python function when the recording began."""
    functions = trace.python_functions
    threads = np.unique(functions.thread[functions.flags & Flag.CLIPPED != 0])
    return frozenset(trace.threads.system_id[threads].tolist())


def _kind_of(trace: Trace, event: FunctionEvent) -> tuple[str, Callable[[ProfilerEvent], _Fields]]:
    """The name of torch's ``_EventType``, "" for events that are not in the tree, and the function for the fields."""
    if event.is_python_function:
        kind = int(trace.python_functions.kind[event.python_id - 1])
        if kind == FunctionKind.PYTHON:
            return "PyCall", _python_call
        return ("PyCCall" if kind == FunctionKind.BUILT_IN else ""), lambda node: PyCCall(_caller(node))
    if event.kind in REGION_LABELS:
        return ("" if event.kind == "module" else "TorchOp"), lambda node: _torch_op(event)
    return ("" if event.kind == "memory" else "Kineto"), lambda node: Kineto()


def _python_call(node: ProfilerEvent) -> PyCall:
    module = NNModuleInfo(node.name[len(_MODULE) :].rpartition("_")[0]) if node.name.startswith(_MODULE) else None
    return PyCall(PyFrameState.parse(node.name), _caller(node), module)


def _caller(node: ProfilerEvent) -> PyFrameState:
    outer = node.parent
    while outer is not None and (outer._tag != "PyCall" or outer.name.startswith(_MODULE)):
        outer = outer.parent
    return PyFrameState.parse(outer.name) if outer is not None else PyFrameState()


def _torch_op(event: FunctionEvent) -> TorchOp:
    torch = sys.modules.get("torch")
    allows = False
    with contextlib.suppress(AttributeError, RuntimeError):  # programs may have set it in torch's newer way
        allows = torch._C._get_cublas_allow_tf32()  # type: ignore[union-attr]
    scope = _of_torch("RecordScope", int)(event.scope)
    shapes, strides, types = event.structured_input_shapes, event.structured_input_strides, event.input_dtypes
    numbers = event.concrete_inputs
    inputs: list[Any] = []
    for place, sizes in enumerate(shapes):
        kind = types[place] if place < len(types) else ""
        steps = strides[place] if place < len(strides) else []
        if kind in _DTYPES:
            inputs.append(TensorMetadata(list(sizes), list(steps), getattr(torch, _DTYPES[kind], None)))
        elif kind == "TensorList":
            both = zip(sizes, steps, strict=False)
            inputs.append([TensorMetadata(list(its_sizes), list(its), None) for its_sizes, its in both])
        else:
            number = numbers[place] if place < len(numbers) else None
            inputs.append(number if not isinstance(number, list) else None)  # as torch's
    return TorchOp(event.trace_name, event.sequence_nr, scope, inputs, allows)


def _allocations(trace: Trace, first_id: int) -> list[ProfilerEvent]:
    """Allocations, including failed ones, on all devices."""
    made: list[ProfilerEvent] = []
    ids = trace.threads.system_id
    for table, name, kind in (
        (trace.memory, "[memory]", Allocation),
        (trace.failed_allocations, "[OutOfMemory]", OutOfMemory),
    ):
        for row in range(len(table)):
            address = int(table.address[row]) if kind is Allocation else None
            sizes = int(table.bytes[row]), int(table.allocated_bytes[row]), int(table.reserved_bytes[row])
            fields = _always(kind(address, *sizes, _device(int(table.ordinal[row]))))
            thread = int(ids[table.thread[row]])
            at_ns = int(table.start_ns[row])
            made.append(ProfilerEvent(first_id + len(made), name, kind.__name__, thread, at_ns, 0, fields))
    return made


def _always(fields: _Fields) -> Callable[[ProfilerEvent], _Fields]:
    return lambda node: fields


def _device(ordinal: int) -> Any:
    make: Callable[[str], Any] = getattr(sys.modules.get("torch"), "device", str)
    return make("cpu" if ordinal == NONE else f"cuda:{ordinal}")
