# SPDX-License-Identifier: Apache-2.0
"""torch's operators, by its callbacks or, if this version's callbacks cannot be used, by its text ranges."""

from __future__ import annotations

import contextlib
import glob
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuscope._core import BACKWARD_LINKS, TorchCallbacks, TorchRanges
from gpuscope.frameworks import torch_memory, torch_profiler
from gpuscope.frameworks.observers import Note, Observer, ObserverOptions
from gpuscope.frameworks.torch_regions import regions_for_torch
from gpuscope.late_imports import WhenImported

_USER_NAME = "gpuscope: a range that the program named"
_OF_ONE_THREAD = (
    "profile_all_threads is False: regions and operators are only of the thread that began the window, and of torch's "
    "threads that work for it"
)
_OF_ALL_THREADS = "regions and operators are of all threads: they can be separated only while torch's profiler is on"
_MEASURED_CALLS = 30
_measured: set[tuple[bool, ...]] = set()  # options for which the cost of callbacks was measured
_studied = False  # whether the layout of torch's objects is known


def observe(options: ObserverOptions, note: Note) -> Observer | None:
    """The observer of torch's operators and allocations; None if neither is requested."""
    return _TorchOperatorsObserver(options, note) if options.operators or options.profile_memory else None


class _TorchOperatorsObserver:
    """Records every operator of every thread while a window is open."""

    def __init__(self, options: ObserverOptions, note: Note) -> None:
        self._options = options
        self._note = note
        self._import = WhenImported("torch", self._begin)
        self._by_callbacks = False
        self._announced = False
        self._profiler: _Profiler | None = None

    def start(self) -> None:
        self._import.watch()

    def stop(self) -> None:
        self._import.cancel()
        regions_for_torch.allow_in_recordings(True)
        if self._options.one_thread:
            TorchRanges.only_profiled(False)
        if self._by_callbacks:
            TorchCallbacks.stop()
            self._by_callbacks = False
        if self._announced:
            torch_profiler.listeners.announce(self, False)
            self._announced = False
        if self._profiler is not None:
            self._profiler.stop()

    def _begin(self) -> None:
        options = self._options
        why = why_no_callbacks() if options.operators else None
        if why is not None:
            self._note(f"torch's operators are recorded at a higher cost, without types: {why}")
            regions_for_torch.allow_in_recordings(False)
            if options.execution_trace:
                self._note(f"regions are missing from the execution trace: {why}")
        self._profiler = self._profiler or _Profiler(options, why is not None, self._note)
        self._profiler.start()
        if options.one_thread:
            done = torch_profiler.is_on() and TorchRanges.only_profiled(True)
            self._note(_OF_ONE_THREAD if done else _OF_ALL_THREADS)
        if options.operators:
            self._announced = True
            torch_profiler.listeners.announce(self, True)
        if options.operators and why is None:
            known = TorchCallbacks.known()
            if options.record_shapes and not known["shapes"]:
                self._note("shapes of operators' inputs are not recorded: this version of torch keeps them elsewhere")
            if options.execution_trace and not known["numbers"]:
                self._note("rows have no Record function id: this version of torch keeps its numbers elsewhere")
            if options.overload_names and not known["overloads"]:
                self._note("overloads are not recorded: this version of torch does not name them")
            self._by_callbacks = True
            _measure(options)
            TorchCallbacks.start(
                shapes=options.record_shapes,
                concrete=options.arguments,
                results=options.with_flops,
                numbers=options.execution_trace,
                overloads=options.overload_names,
                modules=options.with_modules,
            )


class _Profiler:
    """Switches torch's own profiler on for a window, on the thread that opens it and those that work for it.

    It reports operators (as ranges) and allocations. If neither is needed, it is still on: compiled code and data pipes
    make their ranges only while ``torch.autograd._profiler_enabled()`` is True.
    """

    def __init__(self, options: ObserverOptions, operators: bool, note: Note) -> None:
        self._options = options
        self._operators = operators
        self._what = "torch's operators" if operators else "torch's allocations"
        self._note = note
        self._use: torch_profiler.Use | None = None

    def start(self) -> None:
        """Begins. torch must be imported."""
        options = self._options
        # With shapes, torch also converts the arguments of libraries' ranges.
        shapes = options.record_shapes and (options.arguments or self._operators)
        presence = torch_profiler.Need(shapes=shapes)
        need = replace(presence, ranges=self._operators, memory=options.profile_memory)
        if need != presence:
            why = torch_profiler.why_unavailable()
            if not why:
                self._start(need)
                return
            self._note(f"{self._what} are not recorded: {why}")
        if options.operators:
            try:
                self._use = torch_profiler.Use(presence, on_pause=lambda: None, on_resume=lambda: None)
                self._use.begin()
            except Exception as error:
                self._note(f"rows of compiled code and of data pipes may be missing from torch's operators: {error}")

    def _start(self, need: torch_profiler.Need) -> None:
        if need.memory and not torch_profiler.reports_memory():
            self._note("torch's allocations are not recorded: this version of torch reports them in another way")
        elif need.memory and (why := torch_memory.why_opaque()):
            self._note(f"torch's allocations on GPUs are not recorded: {why}; the driver's are in device_memory")
        self._use = torch_profiler.Use(need, self._on_pause, self._want)
        self._want()
        self._use.begin()

    def stop(self) -> None:
        """Ends the use of torch's profiler."""
        if self._use is None:
            return
        TorchRanges.want()
        ended = self._use.end()
        self._use = None
        if not ended:
            self._note("torch's profiler stays on in the thread that began the window, as another one ended it")

    def _want(self) -> None:
        options = self._options
        TorchRanges.want(ranges=self._operators, operands=options.with_flops, memory=options.profile_memory)

    def _on_pause(self) -> None:
        TorchRanges.want()
        self._note(f"{self._what} are missing where torch.profiler ran inside the window")


def switched_off() -> dict[str, str]:
    """Facts for a recording: data that torch's own switches exclude from traces."""
    linked = "torch" not in sys.modules or TorchCallbacks.links_backward()
    return {} if linked else {BACKWARD_LINKS: "off"}


def wants_syncs() -> bool:
    """Whether torch's own switch requests recording of waits for the GPU."""
    return "torch" in sys.modules and TorchCallbacks.records_syncs()


def why_no_callbacks() -> str | None:
    """Why torch's callbacks cannot be used here; None if they can.

    Runs a few small operators once to learn the layout of torch's objects; again if that failed.
    """
    global _studied
    if not _studied:
        reason = _study()
        if reason:
            return reason
        _studied = True
    return None


def _study() -> str:
    try:
        return torch_profiler.call_apart(lambda: TorchCallbacks.study(_USER_NAME, _call_operators))
    except Exception as error:
        return repr(error)


def _measure(options: ObserverOptions) -> None:
    """Measures torch's cost of callbacks with these options, once without and once with its autograd engine."""
    wanted = {"shapes": options.record_shapes, "results": options.with_flops, "numbers": options.execution_trace}
    has_engine = _runs_engine()
    key = (*wanted.values(), has_engine)
    if key in _measured:
        return

    def measure() -> None:
        forward, backward = _calls(has_engine)
        TorchCallbacks.measure(forward, backward, **wanted)

    with contextlib.suppress(Exception):  # an unknown cost is not counted
        torch_profiler.call_apart(measure)
        _measured.add(key)


def _runs_engine() -> bool:
    """Whether a backward pass of ours has no effect on the program.

    With a GPU, the first backward pass starts threads, and a child forked later cannot run one. So the threads must
    exist already, or this torch must support no GPU. Compiled autograd must be off.
    """
    import torch

    if getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False):
        return False
    another = getattr(torch._C, "_get_privateuse1_backend_name", str)() not in ("", "privateuseone")
    if not another and not any(getattr(torch.version, platform, None) for platform in ("cuda", "hip", "xpu")):
        return True
    for name in glob.iglob("/proc/self/task/*/comm"):
        with contextlib.suppress(OSError), open(name, encoding="utf-8", errors="replace") as comm:
            if comm.read().startswith("pt_autograd"):
                return True
    return False


def _calls(has_engine: bool) -> tuple[Callable[[], object], Callable[[], object] | None]:
    """A function that calls operators, and one whose operators the autograd engine calls (None without engine)."""
    import torch

    a, b = torch.zeros(8, device="cpu"), torch.ones(8, device="cpu", requires_grad=True)

    def forward() -> None:
        for _ in range(_MEASURED_CALLS):
            a.add_(1)

    if not has_engine:
        return forward, None
    chain = b
    for _ in range(_MEASURED_CALLS):
        chain = chain * b
    loss = chain.sum()
    engine, gradient = torch.autograd.Variable._execution_engine, torch.ones_like(loss)
    return forward, lambda: engine.run_backward((loss,), (gradient,), True, False, (b,), False, accumulate_grad=False)


def _call_operators() -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Calls operators on the CPU, and describes them for `TorchCallbacks.study`.

    Call it on a new thread, or the one that imports torch: gradients are on there. Calls no Python code of torch, which
    would appear in recordings.
    """
    import torch

    # Sizes and type numbers that are unlikely to occur elsewhere in memory.
    a = torch.empty((3, 5, 7), dtype=torch.float64, device="cpu", requires_grad=True)
    b = torch.empty((5, 7), dtype=torch.int32, device="cpu")
    c = torch.empty((2, 3, 1, 5, 2, 7), dtype=torch.bool, device="cpu")
    z = torch.empty(2, dtype=torch.complex128, device="cpu")
    types = {torch.float64: 7, torch.int32: 3, torch.bool: 11}  # c10::ScalarType
    results = [torch.mul(a, b), torch.neg(a), torch.exp(a)]
    torch._C._set_grad_enabled(False)
    try:
        results.append(torch.logical_not(c))
        torch.sum(a, dim=[0, 2], keepdim=True, dtype=torch.float64)
        torch.threshold(a, 2.5, 8.25)
        torch.cat([a, results[0]], dim=1)
        torch.clamp(a, max=8.25)
        torch.add(z, z, alpha=2.5 + 8.25j)
    finally:
        torch._C._set_grad_enabled(True)
    enter, _ = torch._C._jit_get_operation("profiler::_record_function_enter_new")
    leave, _ = torch._C._jit_get_operation("profiler::_record_function_exit")
    leave(enter(_USER_NAME, _USER_NAME))
    tensors = [a, b, c, *results]
    described = [(tensor._cdata, list(tensor.shape), types[tensor.dtype], list(tensor.stride())) for tensor in tensors]
    calls = [
        ("aten::mul", [0, 1], True, 3),
        ("aten::neg", [0], True, 4),
        ("aten::exp", [0], True, 5),
        ("aten::logical_not", [2], False, 6),
    ]
    of_a, of_result = a._cdata, results[0]._cdata
    bits = [int.from_bytes(struct.pack("=d", number), sys.byteorder) for number in (2.5, 8.25)]
    arguments = [
        ("aten::sum", [("t", [of_a]), ("I", [0, 2]), ("b", [1]), ("i", [types[torch.float64]])]),
        ("aten::threshold", [("t", [of_a]), *(("d", [number]) for number in bits)]),
        ("aten::cat", [("T", [of_a, of_result]), ("i", [1])]),
        ("aten::clamp", [("t", [of_a]), ("n", [0]), ("d", bits[1:])]),
        ("aten::add", [("t", [z._cdata]), ("t", [z._cdata]), ("c", bits)]),
    ]
    return described, calls, arguments, tensors
