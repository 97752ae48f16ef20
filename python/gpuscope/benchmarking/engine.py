# SPDX-License-Identifier: Apache-2.0
"""Calls functions in a given order and returns the time of each call, or of each row of very short calls.

A dry run first finds the facts of each function; they decide how it is sampled and which quantities it has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core, streams
from gpuscope._core import CallKind, MemoryKind
from gpuscope.arguments import Quantity, check_count, check_done
from gpuscope.benchmarking import kernel_times, stopping
from gpuscope.benchmarking.per_call import PerCall
from gpuscope.benchmarking.samples import Chunks, Samples, no_collection
from gpuscope.benchmarking.stopping import SHORTEST, WINDOW, Budget, WarmUp, is_steady
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.text import brief
from gpuscope.trace import Trace

GPU_TICK = 32e-9  # of an H100's timestamps; older GPUs are coarser unless a tool is attached
CPU_TICK = 1e-9
GPU_QUANTITIES: tuple[Quantity, ...] = ("kernel", "span", "stream", "launch")
_HEADLINES: tuple[Quantity, ...] = ("kernel", "stream")
_EVENTS: Quantity = "stream"

DRY_CALLS = 2  # recorded calls of each function before anything is timed
TRACING_TIERS = ("cupti", "cupti-shared")

# Samples given functions in an order, and those of an engine.
_Sample = Callable[[Sequence[Callable[[], object]], NDArray[np.uint32]], Mapping[str, Any]]
_Measure = Callable[[_Sample, NDArray[np.uint32]], dict[str, Any]]

# Without traces, a stream counts as used if it is busy this much longer than with an empty function.
_NOTICEABLE = 1e-6

# Driver calls that are queued on a stream behind a gate: a queue holds about a thousand.
_QUEUE = 700
_QUEUE_A_CHUNK = 256
_QUEUED_AROUND_A_CALL = 4  # flushes and events
_LARGEST_CHUNK = 32
# Seconds: chunks are short, so that clocks are read often and Ctrl-C takes effect soon.
_LONGEST_CHUNK = 0.02
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.1, 5.0

# CPU functions with calls shorter than `TINY` are called in rows of at most `ROW`, in seconds. Reading the clock and
# the call from C++ cost `CLOCK`: 1 % of `TINY` and 0.3 % of `ROW`.
TINY, ROW, CLOCK = 5e-6, 20e-6, 50e-9
# Possible numbers of calls in a row; the largest is for calls of some 20 ns, and none is shorter.
_CALLS = [one * 10**zeros for zeros in range(3) for one in (1, 2, 5)] + [1000]
# Rows of compared functions have as many calls; the slower function's may take half of this. A row that takes longer
# than this ends early.
_LONGEST_ROW = 2e-3


@dataclass(frozen=True)
class Facts:
    """Facts about one call of a function."""

    launches: int  # driver calls that put work on the GPU; 0 if not known
    kernels: tuple[str, ...]  # the distinct kernels, copies and fills, the longest first
    synchronizes: bool  # it waits for the GPU before it returns
    other_streams: bool  # some of its work runs on other streams than the timed one
    allocates: bool  # it allocates or frees GPU memory by the driver, not in stream order
    launch_seconds: float  # host time of a call
    call_seconds: float  # host time until its work is done
    uses_gpu: bool  # it puts work on the GPU


@dataclass(frozen=True)
class Plan:
    """How a chunk is sampled."""

    chunk: int  # calls in one chunk
    gate: bool  # a gate holds the stream until the whole chunk is queued
    alone: bool  # each call starts on an idle GPU: a gate and a flush on one stream do not affect other streams
    timeout_ns: int  # after which the gate opens by itself

    def smaller(self) -> Plan:
        """The plan after a gate that did not hold: half as many calls, finally no gate."""
        return replace(self, chunk=max(1, self.chunk // 2), gate=self.gate and self.chunk > 1)


class Engine:
    """Samples of some functions on one stream, for benchmarks, comparisons and sweeps. One thread at a time.

    Kernel times need CUPTI, which disturbs other quantities: sample the others first.

    Args:
        functions: called without arguments.
        stream: the stream of their work, in any form that `streams.resolve` takes; None is the current stream.
        device: ordinal of the GPU; None is the stream's.
        cold: write and read twice the L2 cache before each call, so that no call finds its data there.
        per_call: runs before and after each call. Each sample is then of one call, with nothing queued around it.

    Attributes:
        on_gpu: every function puts work on the GPU (after `prepare`).
        device_name: of the GPU; "CPU" without one.
        device: the GPU's ordinal.
        tick: resolution of the times, in seconds.
        facts: of each function (after `prepare`).
        absent: why a quantity is not available here (after `prepare`).
        values: the result of each function's first call.
        sampler: the core's; None without a GPU.
        reference_hz: the clock of the steady state, to find shifted clocks; nan before `warm_up`.
        calls_per_sample: calls behind each time; above 1 after `warm_up` if no function uses the GPU and one takes
            less than `TINY`.

    Raises:
        InvalidArgument: there is no function, no such device or stream, or the stream is of another device.
    """

    def __init__(
        self,
        functions: Sequence[Callable[[], object]],
        *,
        stream: object = None,
        device: int | None = None,
        cold: bool = True,
        per_call: PerCall | None = None,
    ) -> None:
        if not functions or not all(map(callable, functions)):
            raise InvalidArgument("functions holds none, or what cannot be called; accepted are functions")
        devices = _core.environment()["devices"]
        if device is not None:
            device = check_count("device", device, 0)
        if device is not None and not devices:
            raise NotAvailable(f"device is {brief(device)}, but this machine has no NVIDIA GPU that CUDA shows")
        if device is not None and not 0 <= device < len(devices):
            raise InvalidArgument(f"device is {brief(device)}; accepted are 0 to {len(devices) - 1}")
        streams.refuse_capture("a measurement", device)
        self.stream = streams.resolve(stream, device)
        self.device = self.stream.device
        self.sampler = _core.Sampler(self.device, self.stream.handle) if devices else None
        self.device_name = str(devices[self.device]["name"]) if devices else "CPU"
        self.on_gpu = bool(devices)
        self.reference_hz = float("nan")
        self.calls_per_sample = 1
        self.facts: tuple[Facts, ...] = ()
        self.absent: dict[Quantity, str] = {}
        self.values: list[object] = []
        self._functions = list(functions)
        self._early: list[Waiting] = []
        self._cold, self._plan = cold, Plan(1, False, False, 0)
        self.per_call = per_call or PerCall()
        self._on_cpu = not devices
        self._session: _core.Session | None = None
        self._session_is_new = False

    @property
    def tick(self) -> float:
        """Resolution of the headline's times, in seconds."""
        return GPU_TICK if self.on_gpu else CPU_TICK / self.calls_per_sample

    def tick_of(self, quantity: Quantity) -> float:
        """Resolution of the times of a quantity, in seconds."""
        return self.tick if quantity in ("kernel", "span", "stream") else CPU_TICK / self.calls_per_sample

    @property
    def headline(self) -> Quantity:
        """The first of kernel, stream and wall that is available."""
        return next((quantity for quantity in _HEADLINES if quantity not in self.absent), "wall")

    @property
    def chunk(self) -> int:
        """Calls queued at once."""
        return self._plan.chunk

    @property
    def sample_seconds(self) -> float:
        """Estimated seconds of a sample of the slowest function; first calls may take longer."""
        return max(fact.call_seconds for fact in self.facts) * self.calls_per_sample

    @property
    def gated(self) -> bool:
        """Whether a gate holds the stream until a chunk is queued."""
        return self._plan.gate

    def prepare(self) -> None:
        """Calls each function once, then a few times recorded, and decides how to sample. Further calls do nothing."""
        if self.facts:
            return
        began = stopping.now()
        self.values = [check_done(function_name(each), self.per_call.call(each)) for each in self._functions]
        if self.sampler is None:
            seconds = (stopping.now() - began) / len(self._functions)
            self.facts = tuple(Facts(0, (), False, False, False, seconds, seconds, False) for _ in self._functions)
            why = "this machine has no NVIDIA GPU that CUDA shows"
            self.absent = dict.fromkeys(GPU_QUANTITIES, why)
        else:
            if next(_arrays(self.values), None) is not None:
                self._early = [Waiting(function) for function in self._functions]
                self._functions = list(self._early)
            self.sampler.synchronize()
            with no_collection():
                self.facts, untraced = _traced(self._measured, self.sampler, len(self._functions))
                if untraced:
                    self.facts = _untraced(self._measured, self.sampler, len(self._functions))
            if self._early:  # their wait may not be a driver call
                self.facts = tuple(replace(fact, synchronizes=True) for fact in self.facts)
            self.absent = _absences(self.facts, untraced)
            if self._early and not self.per_call:  # `_early_chunk` launches them without waiting
                self.absent.pop("launch", None)
            # Without records, work on other streams is not seen: so each call waits for the GPU.
            self._on_cpu = not untraced and not any(fact.uses_gpu for fact in self.facts)
        self.on_gpu = self.sampler is not None and all(fact.uses_gpu for fact in self.facts)
        self._plan = self._planned()

    def warm_up(self, seconds: float) -> WarmUp:
        """Calls the functions in turn until time and clock are steady, for at most `seconds`.

        Also sets the number of calls in a sample.
        """
        self.prepare()
        spent = Budget(seconds)
        times: list[float] = []
        clocks: list[float] = []
        steady, samples = False, 0
        while not steady and spent.left > 0:
            quantity = self._cheapest
            count = max(self.chunk, len(self._functions))
            order = np.arange(count, dtype=np.uint32) % np.uint32(len(self._functions))
            chunks = self._chunks(quantity, order)
            samples += len(order)
            column = chunks.column("stream_s") if quantity == _EVENTS else _wall(chunks)
            if self._on_cpu and self._lengthen_rows(order, column):  # the time was mostly that of reading the clock
                continue
            times.append(float(np.median(column)))
            clocks.append(float(np.median(chunks.column("clock_hz"))))
            steady = spent.spent >= SHORTEST and is_steady(times, clocks)
        known = [clock for clock in clocks[-WINDOW:] if np.isfinite(clock)]
        self.reference_hz = float(np.median(known)) if known else float("nan")
        sample_seconds = spent.spent / samples if samples else self.sample_seconds
        return WarmUp(steady, spent.spent, samples, tuple(times[-WINDOW:]), sample_seconds=sample_seconds)

    def _lengthen_rows(self, order: NDArray[np.uint32], seconds: NDArray[np.float64]) -> bool:
        """Fits the plan to the times of warm calls; returns whether rows got longer."""
        before = self.calls_per_sample
        medians = [float(np.median(seconds[order == function])) for function in range(len(self._functions))]
        pairs = zip(self.facts, medians, strict=True)
        self.facts = tuple(replace(fact, launch_seconds=each, call_seconds=each) for fact, each in pairs)
        self._plan = self._planned()
        self.calls_per_sample = max(before, 1 if self.per_call else calls_in_a_row(medians))
        return self.calls_per_sample > before

    def _planned(self) -> Plan:
        plan = _plan(self.facts)
        return replace(plan, chunk=1) if self.per_call else plan

    def keep_busy(self, seconds: float) -> None:
        """Calls the functions in turn without keeping times, as idling changes the speed."""
        spent = Budget(seconds)
        while spent.left > 0:
            count = max(len(self._functions), min(self.chunk, int(spent.left / max(self.sample_seconds, 1e-9))))
            order = np.arange(count, dtype=np.uint32) % np.uint32(len(self._functions))
            self._chunks(self._cheapest, order)

    @property
    def _cheapest(self) -> Quantity:
        """The quantity for calls whose times are not kept. It changes when a gate does not hold."""
        return _EVENTS if self.on_gpu and _EVENTS not in self.absent else "wall"

    def sample(self, quantity: Quantity, order: NDArray[np.uint32], seconds: float = math.inf) -> Samples:
        """Calls ``functions[i]`` for each i of `order` and returns a time for each.

        Each is called `calls_per_sample` times in a row. Stops after `seconds`. "kernel" and "span" are measured
        together, as are "stream" and "launch". Raises NotAvailable if the quantity is in `absent`.
        """
        self.prepare()
        if quantity in self.absent:
            raise NotAvailable(f"{quantity} time cannot be measured: {self.absent[quantity]}")
        order = np.ascontiguousarray(order, dtype=np.uint32)
        if quantity in ("kernel", "span"):
            return self._sample_kernels(order, seconds)
        self.release_cupti()
        chunks = self._chunks(quantity, order, seconds)
        order = order[: chunks.calls]
        if quantity == "wall":
            return chunks.samples(order, {"wall": _wall(chunks)})
        times: dict[Quantity, NDArray[np.float64]] = {"launch": _since_call(chunks, "returned_ns")}
        if _EVENTS not in self.absent:
            held = chunks.column("held").astype(bool)
            times["stream"] = np.where(held, chunks.column("stream_s"), np.nan)
        return chunks.samples(order, times)

    def _sample_kernels(self, order: NDArray[np.uint32], seconds: float) -> Samples:
        if self._session is None:
            if _core.Session.active():
                raise NotAvailable("kernel time cannot be measured: another profile is active in this process")
            self._session = _core.Session(cuda=True)
            self._session_is_new = True
        self._session.open()
        try:
            if self._session_is_new and self.chunk > 1:
                # CUPTI's first records are the least reliable, and the GPU has idled while CUPTI started.
                self._chunks("kernel", order[: self.chunk])
            self._session_is_new = False
            chunks = self._chunks("kernel", order, seconds)
        finally:
            trace = Trace(self._session.cut())
        order = order[: chunks.calls]
        times = kernel_times.measure(trace, chunks.column("called_ns"), chunks.column("ended_ns"))
        kernels = tuple(times.shares(times.valid & (order == function)) for function in range(len(self._functions)))
        span = np.where(chunks.column("held").astype(bool), times.span, np.nan)
        return chunks.samples(
            order,
            {"kernel": times.busy, "span": span},
            valid=times.valid & (times.records > 0),
            signature=times.signature,
            kernels=kernels,
        )

    def _chunks(self, quantity: Quantity, order: NDArray[np.uint32], seconds: float = math.inf) -> Chunks:
        chunks, spent = Chunks(None if self._on_cpu else self.device, self.reference_hz), Budget(seconds)
        with no_collection():
            while chunks.calls < len(order) and (spent.left or not chunks.calls):
                part = order[chunks.calls : chunks.calls + self.chunk]
                chunks.add(self._chunk(quantity, part), len(part))
        return chunks

    def _chunk(self, quantity: Quantity, part: NDArray[np.uint32]) -> dict[str, Any]:
        if self.sampler is None or self._on_cpu:
            rows: dict[str, Any] = {"repeat": self.calls_per_sample, "longest_ns": round(_LONGEST_ROW * 1e9)}
            return self._measured(functools.partial(_core.time_calls, **rows), part)
        if quantity == "wall" or (quantity == "kernel" and self._plan.alone):
            return self._measured(functools.partial(self.sampler.sample_wall, flush=self._cold), part)
        if quantity == "launch" and self._early:
            return self._early_chunk(self.sampler, part)
        gate = self._plan.gate
        events = quantity in (_EVENTS, "launch") and _EVENTS not in self.absent
        settings: dict[str, Any] = {"flush": self._cold, "events": events, "timeout_ns": self._plan.timeout_ns}
        chunk = self._measured(functools.partial(self.sampler.sample, gate=gate, **settings), part)
        if not gate:
            return {**chunk, "held": True}
        if not chunk["held"]:
            self._plan = self._plan.smaller()
            if not self._plan.gate:
                self.absent.setdefault(_EVENTS, "the gate does not hold until a call is queued")
        return chunk

    def _measured(self, sample: _Sample, order: NDArray[np.uint32]) -> dict[str, Any]:
        """The chunk that `sample` returns for the calls; with `per_call` they are sampled one by one.

        Then nothing is queued while `setup` runs, and its GPU work has ended when a call begins. `ended_ns` is when the
        call's own work has ended.
        """
        if not self.per_call:
            return dict(sample(self._functions, order))
        chunks: list[dict[str, Any]] = []
        for number in order:
            with self.per_call.around(self._functions[number]) as call:
                if self.sampler is not None:
                    for array in _arrays((getattr(call, "args", ()), getattr(call, "keywords", {}))):
                        array.block_until_ready()
                    self.sampler.synchronize()
                chunk = dict(sample([call], np.zeros(1, np.uint32)))
                chunks.append({**chunk, "ended_ns": np.array([_core.now_ns()])})
        columns = [name for name, column in chunks[0].items() if isinstance(column, np.ndarray)]
        return {**chunks[-1], **{name: np.concatenate([chunk[name] for chunk in chunks]) for name in columns}}

    def _early_chunk(self, sampler: _core.Sampler, part: NDArray[np.uint32]) -> dict[str, Any]:
        """Samples calls without waiting for each: a last call waits for all, and is dropped."""

        def finish() -> None:
            for function in self._early:
                function.finish()

        functions = [*(function.start for function in self._early), finish]
        order = np.append(part, np.uint32(len(self._early)))
        chunk = sampler.sample(functions, order, gate=False, flush=self._cold, events=False)
        rows = {name: column[:-1] for name, column in chunk.items() if isinstance(column, np.ndarray)}
        return {**chunk, **rows, "held": True}

    def release_cupti(self) -> None:
        """Stops recording kernels until the next kernel pass, as it disturbs other measurements."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()

    def close(self) -> None:
        """Releases CUPTI and the GPU's memory. Further calls do nothing."""
        self.release_cupti()
        self.sampler = None
        self._functions, self._early, self.values = [], [], []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _traced(measure: _Measure, sampler: _core.Sampler, functions: int) -> tuple[tuple[Facts, ...], str]:
    """The facts of each function by a few calls that CUPTI records, or why there are none."""
    if _core.Session.active():
        return (), "another profile is active in this process"
    try:
        session = _core.Session(cuda=True, sync=True)
    except GpuscopeError as error:
        return (), str(error)
    try:
        if session.tier not in TRACING_TIERS:
            return (), session.tier_reason or "CUPTI is not available here"
        order = np.repeat(np.arange(functions, dtype=np.uint32), DRY_CALLS)
        session.open()
        chunk = measure(functools.partial(sampler.sample_wall, flush=True), order)
        trace = Trace(session.cut())
    finally:
        session.stop()
    if len(trace.kernels) and not len(trace.api):
        return (), "no driver calls were recorded to go with the kernels"
    return _facts(trace, chunk, order), ""


def _facts(trace: Trace, chunk: dict[str, Any], order: NDArray[np.uint32]) -> tuple[Facts, ...]:
    called, returned = chunk["called_ns"], chunk["returned_ns"]
    times = kernel_times.measure(trace, called, chunk.get("ended_ns"))
    waits, allocates = _find_waits_and_allocations(trace, called, returned)
    seconds = (chunk["done_ns"] - called) * 1e-9
    facts = []
    for function in range(int(order.max()) + 1):
        rows = order == function
        launches = int(times.launches[rows].max())
        facts.append(
            Facts(
                launches=launches,
                kernels=tuple(kernel.name for kernel in times.shares(rows)),
                synchronizes=bool(waits[rows].any()),
                other_streams=bool(times.elsewhere[rows].any()),
                allocates=bool(allocates[rows][-1]),  # caching allocators already have the memory
                launch_seconds=float(np.median(returned[rows] - called[rows])) * 1e-9,
                call_seconds=float(np.median(seconds[rows])),
                uses_gpu=launches > 0 or bool(times.records[rows].any()),
            )
        )
    return tuple(facts)


def _find_waits_and_allocations(
    trace: Trace, called: NDArray[np.int64], returned: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which calls waited for the GPU, and which allocated or freed its memory outside of stream order."""
    api, calls, copies = trace.api, trace.calls, trace.memcpy
    call = np.searchsorted(called, api.start_ns, side="right") - 1
    inside = (call >= 0) & (api.start_ns < returned[call])
    kind = calls.kind[api.call]
    # Async calls and a stream's wait for an event do not block the host.
    names = [trace.string(int(name)) for name in calls.name]
    in_order = np.array(["Async" in name or "WaitEvent" in name for name in names], bool)[api.call]
    # The driver waits for copies of pageable memory, even if Async.
    pageable = copies.correlation[(copies.source == MemoryKind.PAGEABLE) | (copies.destination == MemoryKind.PAGEABLE)]
    waits = np.isin(kind, [CallKind.SYNC, CallKind.MEMCPY]) & ~in_order | np.isin(api.correlation, pageable)
    allocates = np.isin(kind, [CallKind.ALLOC, CallKind.FREE]) & ~in_order

    def calls_that(made: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = np.zeros(len(called), bool)
        found[call[inside & made]] = True
        return found

    return calls_that(waits), calls_that(allocates)


def _untraced(measure: _Measure, sampler: _core.Sampler, functions: int) -> tuple[Facts, ...]:
    """Facts without traces: gate and events show waits for the GPU and work on the stream.

    Launches are not known, and work on other streams is not seen.
    """

    def sample(function: int, calls: int, *, gate: bool) -> dict[str, Any]:
        samples = functools.partial(sampler.sample, gate=gate, flush=False, events=True)
        return measure(samples, np.full(calls, function, np.uint32))

    empty = sampler.sample([lambda: None], np.zeros(DRY_CALLS, np.uint32), gate=False, flush=False, events=True)
    nothing = float(np.median(empty["stream_s"]))
    facts = []
    for function in range(functions):
        gated, chunk = sample(function, 1, gate=True), sample(function, DRY_CALLS, gate=False)
        held = bool(gated["held"])
        launch = float(np.median(chunk["returned_ns"] - chunk["called_ns"])) * 1e-9
        stream = float(np.median((gated if held else chunk)["stream_s"]))
        uses_gpu = not held or stream > nothing + _NOTICEABLE
        facts.append(Facts(0, (), not held, False, False, launch, launch + stream, uses_gpu))
    return tuple(facts)


def _plan(facts: Sequence[Facts]) -> Plan:
    """The plan for functions that take turns."""
    launches = max(fact.launches for fact in facts)
    call_seconds = max(fact.call_seconds for fact in facts)
    by_queue = _QUEUE_A_CHUNK // (launches + _QUEUED_AROUND_A_CALL)
    by_time = int(_LONGEST_CHUNK / max(call_seconds, 1e-9))
    chunk = max(1, min(by_queue, by_time, _LARGEST_CHUNK))
    waits = any(fact.synchronizes or fact.allocates for fact in facts)
    expected = 10 * chunk * max(fact.launch_seconds for fact in facts)
    timeout = min(max(expected, _SHORTEST_TIMEOUT), _LONGEST_TIMEOUT)
    alone = any(fact.other_streams for fact in facts)
    return Plan(chunk, launches <= _QUEUE and not waits, alone, round(timeout * 1e9))


def _absences(facts: Sequence[Facts], why_untraced: str) -> dict[Quantity, str]:
    """The quantities that functions with these facts lack, and why. `why_untraced`: why there are no records."""
    idle = [number for number, fact in enumerate(facts) if not fact.uses_gpu]
    if idle:
        what = "the function puts" if len(facts) == 1 else f"function {idle[0]} puts"
        why = f"{what} no work on the GPU"
        return {"kernel": why, "span": why, "stream": why, "launch": why}
    absent: dict[Quantity, str] = {}
    if why_untraced:
        absent["kernel"] = absent["span"] = why_untraced
    if any(fact.synchronizes for fact in facts):
        absent["launch"] = "the function waits for the GPU inside, so that its own time includes the GPU's"
    if any(fact.other_streams for fact in facts):
        absent["stream"] = "work runs on other streams than the one timed; give it as stream="
    elif any(fact.synchronizes for fact in facts):
        absent["stream"] = "the function waits for the GPU inside, so that stream time would include launch latency"
    elif any(fact.allocates for fact in facts):
        absent["stream"] = "the function allocates GPU memory, which may wait for the GPU, so that it cannot be gated"
    elif any(fact.launches > _QUEUE for fact in facts):
        absent["stream"] = f"more than {_QUEUE} launches a call do not fit into a stream's queue behind a gate"
    return absent


def calls_in_a_row(seconds: Sequence[float]) -> int:
    """Calls of each function in a sample, given the seconds of a call of each; 1 if no call is tiny.

    As many of the shortest as fit into `ROW`, unless as many of the longest take too long.
    """
    if min(seconds) >= TINY:
        return 1
    most = min(ROW / max(min(seconds), CPU_TICK), _LONGEST_ROW / 2 / max(*seconds, CPU_TICK))
    return max((calls for calls in _CALLS if calls <= most), default=1)


def function_name(function: object) -> str:
    """The name of a function in a result."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__name__).rpartition("<locals>.")[2]


def _since_call(chunks: Chunks, column: str) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = (chunks.column(column) - chunks.column("called_ns")) * 1e-9
    return seconds


def _wall(chunks: Chunks) -> NDArray[np.float64]:
    """Seconds from each call until its work was done; without GPU work, until it returned."""
    done = chunks.column("done_ns")
    seconds = _since_call(chunks, "done_ns" if len(done) else "returned_ns")
    seconds /= chunks.column("calls")
    return seconds


class Waiting:
    """Calls a function and waits for its result by ``block_until_ready``."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._value: object = None

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Calls the function and waits."""
        self._value = self._function(*args, **kwargs)
        return self.finish()

    def start(self) -> None:
        """Calls the function."""
        self._value = self._function()

    def finish(self) -> object:
        """Waits for the last call's result and returns it."""
        value, self._value = self._value, None
        for array in _arrays(value):
            array.block_until_ready()
        return value


def _arrays(value: Any) -> Iterator[Any]:
    """The arrays in a value whose work may not be launched yet, as JAX's."""
    if hasattr(value, "block_until_ready"):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
