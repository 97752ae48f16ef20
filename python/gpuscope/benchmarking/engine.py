# SPDX-License-Identifier: Apache-2.0
"""Calls functions in a given order and returns the time of each call, or of each row of very short ones.

A dry run first finds out what each function does, which decides how it is sampled and what can be measured of it.
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

GPU_TICK = 32e-9  # of an H100's timestamps; older ones are coarser unless a tool is attached
CPU_TICK = 1e-9
GPU_QUANTITIES: tuple[Quantity, ...] = ("kernel", "span", "stream", "launch")
_HEADLINES: tuple[Quantity, ...] = ("kernel", "stream")
_EVENTS: Quantity = "stream"

DRY_CALLS = 2  # recorded calls of each function before anything is timed
TRACING_TIERS = ("cupti", "cupti-shared")

# Samples calls of functions in an order, as the core does; the same of the functions of an engine.
_Sample = Callable[[Sequence[Callable[[], object]], NDArray[np.uint32]], Mapping[str, Any]]
_Measure = Callable[[_Sample, NDArray[np.uint32]], dict[str, Any]]

# How much longer than with an empty function the stream must be busy to count as used, where nothing is traced.
_NOTICEABLE = 1e-6

# Driver calls that a stream takes while it is held back: a queue holds about a thousand.
_QUEUE = 700
_QUEUE_A_CHUNK = 256
_QUEUED_AROUND_A_CALL = 4  # flushes and events
_LARGEST_CHUNK = 32
# Seconds: chunks are short, so that clocks are read often and Ctrl-C takes effect soon.
_LONGEST_CHUNK = 0.02
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.1, 5.0

# Functions of the CPU alone whose call takes less than `TINY` are called in rows of at most `ROW`, in seconds: reading
# the clock and coming from C++ cost about 50 ns, which is 1 % of the one and 0.3 % of the other.
TINY, ROW, CLOCK = 5e-6, 20e-6, 50e-9
# Rows have so many calls; the last is one of some 20 ns, and none is shorter.
_CALLS = [one * 10**zeros for zeros in range(3) for one in (1, 2, 5)] + [1000]
# Functions that are compared have rows of as many calls, and the slower one's may take half of this. A row whose calls
# became so long that it takes more ends early.
_LONGEST_ROW = 2e-3


@dataclass(frozen=True)
class Facts:
    """What one call of a function does."""

    launches: int  # driver calls that put work on the GPU; 0 where it is not known
    kernels: tuple[str, ...]  # the distinct kernels, copies and fills, the longest first
    synchronizes: bool  # it waits for the GPU before it returns
    other_streams: bool  # some of its work is done on other streams than the one timed
    allocates: bool  # it takes GPU memory from the driver or frees it, not in stream order
    launch_seconds: float  # host time of a call
    call_seconds: float  # host time until its work is done
    uses_gpu: bool  # it puts work on the GPU


@dataclass(frozen=True)
class Plan:
    """How a chunk is sampled."""

    chunk: int  # calls in one chunk
    gate: bool  # the stream is held back until all of the chunk is queued
    alone: bool  # each call meets an idle GPU: a gate and a flush on one stream do not reach work on others
    timeout_ns: int  # after which the gate opens by itself

    def smaller(self) -> Plan:
        """The plan after a gate that did not hold: half as many calls behind it, and none behind it after that."""
        return replace(self, chunk=max(1, self.chunk // 2), gate=self.gate and self.chunk > 1)


class Engine:
    """Samples of some functions on one stream, for benchmarks, comparisons and sweeps. One thread at a time.

    CUPTI is on only while kernel times are taken: take the other quantities first.

    Args:
        functions: called without arguments.
        stream: where they put their work, in any form that `streams.resolve` takes; None is the current stream.
        device: its ordinal; None is the stream's.
        cold: write and read twice the L2 cache before each call, so that no call finds its data there.
        per_call: what runs before and after each call. Each sample is of one call then, with nothing queued around it.

    Attributes:
        on_gpu: every function puts work on the GPU (after `prepare`).
        device_name: of the GPU; "CPU" where there is none.
        device: the GPU's ordinal.
        tick: resolution of the times, in seconds.
        facts: what each function does in a call (after `prepare`).
        absent: why a quantity is not available here (after `prepare`).
        values: what each function returned when it was first called.
        sampler: the core's; None without a GPU.
        reference_hz: the clock of the steady state, against which shifted clocks are found; nan before `warm_up`.
        calls_per_sample: how many calls each time is the mean of; more than 1 after `warm_up` with functions of the CPU
            alone, at least one of which takes less than `TINY`.

    Raises:
        InvalidArgument: there is no function, or the device or the stream is not there, or the stream is of another
            device.
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
        """The first of kernel, stream and wall that can be had."""
        return next((quantity for quantity in _HEADLINES if quantity not in self.absent), "wall")

    @property
    def chunk(self) -> int:
        """How many calls are queued at once."""
        return self._plan.chunk

    @property
    def sample_seconds(self) -> float:
        """What a sample of the longest of the functions takes, as far as is known: first calls may take longer."""
        return max(fact.call_seconds for fact in self.facts) * self.calls_per_sample

    @property
    def gated(self) -> bool:
        """Whether the stream is held back until a chunk is queued."""
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
            if self._early:  # waiting need not show as a driver call
                self.facts = tuple(replace(fact, synchronizes=True) for fact in self.facts)
            self.absent = _absences(self.facts, untraced)
            if self._early and not self.per_call:  # they are launched without waiting
                self.absent.pop("launch", None)
            # Without records, work on other streams is not seen: then the GPU is waited for after each call.
            self._on_cpu = not untraced and not any(fact.uses_gpu for fact in self.facts)
        self.on_gpu = self.sampler is not None and all(fact.uses_gpu for fact in self.facts)
        self._plan = self._planned()

    def warm_up(self, seconds: float) -> WarmUp:
        """Calls the functions in turn until time and clock are steady, or `seconds` have passed; not at all in 0 s.

        Also finds out how many calls a sample needs.
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
            if self._on_cpu and self._lengthen_rows(order, column):  # it was mostly the time of reading the clock
                continue
            times.append(float(np.median(column)))
            clocks.append(float(np.median(chunks.column("clock_hz"))))
            steady = spent.spent >= SHORTEST and is_steady(times, clocks)
        known = [clock for clock in clocks[-WINDOW:] if np.isfinite(clock)]
        self.reference_hz = float(np.median(known)) if known else float("nan")
        sample_seconds = spent.spent / samples if samples else self.sample_seconds
        return WarmUp(steady, spent.spent, samples, tuple(times[-WINDOW:]), sample_seconds=sample_seconds)

    def _lengthen_rows(self, order: NDArray[np.uint32], seconds: NDArray[np.float64]) -> bool:
        """Fits the plan to what calls take, which the first one need not show; whether rows got more calls by that."""
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
        """Calls the functions in turn without keeping their times: what idles is slower or faster afterwards."""
        spent = Budget(seconds)
        while spent.left > 0:
            count = max(len(self._functions), min(self.chunk, int(spent.left / max(self.sample_seconds, 1e-9))))
            order = np.arange(count, dtype=np.uint32) % np.uint32(len(self._functions))
            self._chunks(self._cheapest, order)

    @property
    def _cheapest(self) -> Quantity:
        """What is sampled only to call the functions. A gate that does not hold changes it."""
        return _EVENTS if self.on_gpu and _EVENTS not in self.absent else "wall"

    def sample(self, quantity: Quantity, order: NDArray[np.uint32], seconds: float = math.inf) -> Samples:
        """Calls ``functions[i]`` for each i of `order`, `calls_per_sample` times in a row, and gives a time for each.

        Once `seconds` have passed, no further ones. "kernel" and "span" come together, as do "stream" and "launch".
        Raises NotAvailable where `absent` has it.
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
                # CUPTI's first records are the least sure, and the GPU has idled while it started.
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
        """What `sample` gives of the calls; where something runs before and after each, of one after the other.

        Nothing is queued then while `setup` runs, and its work on the GPU has ended when a call begins: `ended_ns` is
        when the call's has.
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
        """Calls that are not waited for one by one but by a last one, which is left out."""

        def finish() -> None:
            for function in self._early:
                function.finish()

        functions = [*(function.start for function in self._early), finish]
        order = np.append(part, np.uint32(len(self._early)))
        chunk = sampler.sample(functions, order, gate=False, flush=self._cold, events=False)
        rows = {name: column[:-1] for name, column in chunk.items() if isinstance(column, np.ndarray)}
        return {**chunk, **rows, "held": True}

    def release_cupti(self) -> None:
        """Stops recording kernels, which would disturb other measurements. The next kernel pass starts it again."""
        session, self._session = self._session, None
        if session is not None:
            session.stop()

    def close(self) -> None:
        """Gives CUPTI and the GPU's memory back. Further calls do nothing."""
        self.release_cupti()
        self.sampler = None
        self._functions, self._early, self.values = [], [], []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _traced(measure: _Measure, sampler: _core.Sampler, functions: int) -> tuple[tuple[Facts, ...], str]:
    """Has each function called a few times while CUPTI records: a row a function, or else why there is none."""
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
                allocates=bool(allocates[rows][-1]),  # allocators that keep memory have it by then
                launch_seconds=float(np.median(returned[rows] - called[rows])) * 1e-9,
                call_seconds=float(np.median(seconds[rows])),
                uses_gpu=launches > 0 or bool(times.records[rows].any()),
            )
        )
    return tuple(facts)


def _find_waits_and_allocations(
    trace: Trace, called: NDArray[np.int64], returned: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of our calls waited for the GPU, and which allocated or freed its memory out of stream order."""
    api, calls, copies = trace.api, trace.calls, trace.memcpy
    call = np.searchsorted(called, api.start_ns, side="right") - 1
    inside = (call >= 0) & (api.start_ns < returned[call])
    kind = calls.kind[api.call]
    # A stream waits for an event by itself: the host goes on, as after what is Async.
    names = [trace.string(int(name)) for name in calls.name]
    in_order = np.array(["Async" in name or "WaitEvent" in name for name in names], bool)[api.call]
    # The driver waits for copies of pageable memory, also Async ones.
    pageable = copies.correlation[(copies.source == MemoryKind.PAGEABLE) | (copies.destination == MemoryKind.PAGEABLE)]
    waits = np.isin(kind, [CallKind.SYNC, CallKind.MEMCPY]) & ~in_order | np.isin(api.correlation, pageable)
    allocates = np.isin(kind, [CallKind.ALLOC, CallKind.FREE]) & ~in_order

    def calls_that(made: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = np.zeros(len(called), bool)
        found[call[inside & made]] = True
        return found

    return calls_that(waits), calls_that(allocates)


def _untraced(measure: _Measure, sampler: _core.Sampler, functions: int) -> tuple[Facts, ...]:
    """What the gate and events alone show: whether a function waits for the GPU and whether it keeps the stream busy.

    Its launches are not known, and work on other streams is not seen.
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
    """The quantities that such functions do not have, and why. `why_untraced` is empty where there are records."""
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
    """How many calls of each function a sample needs, given what a call of each takes; 1 where none is tiny.

    As many of the shortest as fit into `ROW`, unless that many of the longest take too long.
    """
    if min(seconds) >= TINY:
        return 1
    most = min(ROW / max(min(seconds), CPU_TICK), _LONGEST_ROW / 2 / max(*seconds, CPU_TICK))
    return max((calls for calls in _CALLS if calls <= most), default=1)


def function_name(function: object) -> str:
    """What a function is called in a result."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__name__).rpartition("<locals>.")[2]


def _since_call(chunks: Chunks, column: str) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = (chunks.column(column) - chunks.column("called_ns")) * 1e-9
    return seconds


def _wall(chunks: Chunks) -> NDArray[np.float64]:
    """Of a call until its work was done; without work on a GPU that is when it returned."""
    done = chunks.column("done_ns")
    seconds = _since_call(chunks, "done_ns" if len(done) else "returned_ns")
    seconds /= chunks.column("calls")
    return seconds


class Waiting:
    """A function together with waiting for what it returned, by ``block_until_ready``."""

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
        """Waits for what the last call returned, and returns it."""
        value, self._value = self._value, None
        for array in _arrays(value):
            array.block_until_ready()
        return value


def _arrays(value: Any) -> Iterator[Any]:
    """The arrays in a value whose work may still be waiting to be launched, as JAX's."""
    if hasattr(value, "block_until_ready"):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
