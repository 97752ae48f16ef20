# SPDX-License-Identifier: Apache-2.0
"""Calls functions in any order under control and returns the time of every single call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core, streams
from gpuscope.benchmarking import dry_run, kernel_times, stopping
from gpuscope.benchmarking.dry_run import Facts, Plan, absences, plan
from gpuscope.benchmarking.samples import Chunks, Quantity, Samples, no_collection
from gpuscope.benchmarking.stopping import SHORTEST, WINDOW, WarmUp, is_steady
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.trace import Trace

GPU_TICK = 32e-9  # of an H100's timestamps; older ones are coarser unless a tool is attached
CPU_TICK = 1e-9
GPU_QUANTITIES: tuple[Quantity, ...] = ("kernel", "span", "stream", "launch")
_HEADLINES: tuple[Quantity, ...] = ("kernel", "stream")
_EVENTS: Quantity = "stream"


class Engine:
    """Samples of some functions on one stream, for benchmarks, comparisons and sweeps. One thread at a time.

    CUPTI is on only while kernel times are taken: take the other quantities first.

    Args:
        functions: called without arguments.
        stream: where they put their work, in any form that `streams.resolve` takes; None is the current stream.
        device: its ordinal; None is the stream's.
        cold: write and read twice the L2 cache before each call, so that no call finds its data there.

    Attributes:
        on_gpu: every function puts work on the GPU (after `prepare`).
        device_name: of the GPU; "CPU" where there is none.
        device: the GPU's ordinal.
        tick: resolution of the times, in seconds.
        facts: what each function does in a call (after `prepare`).
        absent: why a quantity cannot be had here (after `prepare`).
        values: what each function returned when it was first called.
        sampler: the core's; None without a GPU.
        reference_hz: the clock of the steady state, against which shifted clocks are found; nan before `warm_up`.

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
    ) -> None:
        if not functions or not all(map(callable, functions)):
            raise InvalidArgument("functions holds none, or what cannot be called; accepted are functions")
        devices = _core.environment()["devices"]
        if device is not None and not devices:
            raise NotAvailable(f"device is {device}, but this machine has no NVIDIA GPU that CUDA shows")
        if device is not None and not 0 <= device < len(devices):
            raise InvalidArgument(f"device is {device!r}; accepted are 0 to {len(devices) - 1}")
        self.stream = streams.resolve(stream, device)
        self.device = self.stream.device
        self.sampler = _core.Sampler(self.device, self.stream.handle) if devices else None
        self.device_name = str(devices[self.device]["name"]) if devices else "CPU"
        self.on_gpu = bool(devices)
        self.reference_hz = float("nan")
        self.facts: tuple[Facts, ...] = ()
        self.absent: dict[Quantity, str] = {}
        self.values: list[object] = []
        self._functions = list(functions)
        self._early: list[Waiting] = []
        self._cold, self._plan = cold, Plan(1, False, False, 0)
        self._session: _core.Session | None = None
        self._unsettled = False

    @property
    def tick(self) -> float:
        """Resolution of the headline's times, in seconds."""
        return GPU_TICK if self.on_gpu else CPU_TICK

    def tick_of(self, quantity: Quantity) -> float:
        """Resolution of the times of a quantity, in seconds."""
        return self.tick if quantity in ("kernel", "span", "stream") else CPU_TICK

    @property
    def headline(self) -> Quantity:
        """The first of kernel, stream and wall that can be had."""
        return next((quantity for quantity in _HEADLINES if quantity not in self.absent), "wall")

    @property
    def chunk(self) -> int:
        """How many calls are queued at once."""
        return self._plan.chunk

    @property
    def gated(self) -> bool:
        """Whether the stream is held back until a chunk is queued."""
        return self._plan.gate

    def prepare(self) -> None:
        """Calls each function once, then a few times recorded, and decides how to sample. Further calls do nothing."""
        if self.facts:
            return
        began = stopping.now()
        self.values = [function() for function in self._functions]
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
                self.facts, untraced = dry_run.traced(self._functions, self.sampler)
                if untraced:
                    self.facts = dry_run.untraced(self._functions, self.sampler)
            if self._early:  # waiting need not show as a driver call
                self.facts = tuple(replace(fact, synchronizes=True) for fact in self.facts)
            self.absent = absences(self.facts, untraced)
            if self._early:  # they are launched without waiting
                self.absent.pop("launch", None)
        self.on_gpu = self.sampler is not None and all(fact.uses_gpu for fact in self.facts)
        self._plan = plan(self.facts)

    def warm_up(self, seconds: float) -> WarmUp:
        """Calls the functions in turn until time and clock are steady, or `seconds` have passed."""
        self.prepare()
        spent = stopping.Budget(seconds)
        order = np.arange(max(self.chunk, len(self._functions)), dtype=np.uint32) % np.uint32(len(self._functions))
        times: list[float] = []
        clocks: list[float] = []
        steady = False
        while not steady and spent.left > 0:
            # A gate that does not hold changes what can be measured.
            quantity: Quantity = _EVENTS if self.on_gpu and _EVENTS not in self.absent else "wall"
            chunks = self._chunks(quantity, order)
            column = chunks.column("stream_s") if quantity == _EVENTS else _wall(chunks)
            times.append(float(np.median(column)))
            clocks.append(float(np.median(chunks.column("clock_hz"))))
            steady = spent.spent >= SHORTEST and is_steady(times, clocks)
        known = [clock for clock in clocks[-WINDOW:] if np.isfinite(clock)]
        self.reference_hz = float(np.median(known)) if known else float("nan")
        return WarmUp(steady, spent.spent, len(times) * len(order))

    def sample(self, quantity: Quantity, order: NDArray[np.uint32]) -> Samples:
        """Calls ``functions[i]`` for each i of `order` and returns a row for each.

        "kernel" and "span" come together, as do "stream" and "launch". Raises NotAvailable where `absent` has it.
        """
        self.prepare()
        if quantity in self.absent:
            raise NotAvailable(f"{quantity} time cannot be measured: {self.absent[quantity]}")
        order = np.ascontiguousarray(order, dtype=np.uint32)
        if quantity in ("kernel", "span"):
            return self._sample_kernels(order)
        self.release_cupti()
        chunks = self._chunks(quantity, order)
        if quantity == "wall":
            return chunks.samples(order, {"wall": _wall(chunks)})
        seconds: dict[Quantity, NDArray[np.float64]] = {"launch": _since_call(chunks, "returned_ns")}
        if _EVENTS not in self.absent:
            held = chunks.column("held").astype(bool)
            seconds["stream"] = np.where(held, chunks.column("stream_s"), np.nan)
        return chunks.samples(order, seconds)

    def _sample_kernels(self, order: NDArray[np.uint32]) -> Samples:
        if self._session is None:
            if _core.Session.active():
                raise NotAvailable("kernel time cannot be measured: another profile is active in this process")
            self._session = _core.Session(cuda=True)
            self._unsettled = True
        self._session.open()
        try:
            if self._unsettled and self.chunk > 1:
                # CUPTI's first records are the least sure, and the GPU has idled while it started.
                self._chunks("kernel", order[: self.chunk])
            self._unsettled = False
            chunks = self._chunks("kernel", order)
        finally:
            trace = Trace(self._session.cut())
        times = kernel_times.measure(trace, chunks.column("called_ns"))
        kernels = tuple(times.shares(times.valid & (order == function)) for function in range(len(self._functions)))
        span = np.where(chunks.column("held").astype(bool), times.span, np.nan)
        return chunks.samples(
            order,
            {"kernel": times.busy, "span": span},
            valid=times.valid & (times.records > 0),
            signature=times.signature,
            kernels=kernels,
        )

    def _chunks(self, quantity: Quantity, order: NDArray[np.uint32]) -> Chunks:
        chunks = Chunks(None if self.sampler is None else self.device, self.reference_hz)
        position = 0
        with no_collection():
            while position < len(order):
                part = order[position : position + self.chunk]
                chunks.add(self._chunk(quantity, part), len(part))
                position += len(part)
        return chunks

    def _chunk(self, quantity: Quantity, part: NDArray[np.uint32]) -> dict[str, Any]:
        if self.sampler is None:
            return dict(_core.time_calls(self._functions, part))
        if quantity == "wall" or (quantity == "kernel" and self._plan.alone):
            return dict(self.sampler.sample_wall(self._functions, part, flush=self._cold))
        if quantity == "launch" and self._early:
            return self._early_chunk(self.sampler, part)
        gate = self._plan.gate
        events = quantity in (_EVENTS, "launch") and _EVENTS not in self.absent
        chunk = self.sampler.sample(
            self._functions, part, gate=gate, flush=self._cold, events=events, timeout_ns=self._plan.timeout_ns
        )
        if not gate:
            return {**chunk, "held": True}
        if not chunk["held"]:
            self._plan = self._plan.smaller()
            if not self._plan.gate:
                self.absent.setdefault(_EVENTS, "the gate does not hold until a call is queued")
        return chunk

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


def function_name(function: object) -> str:
    """What a function is called in a result."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__name__).rpartition("<locals>.")[2]


def _since_call(chunks: Chunks, column: str) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = (chunks.column(column) - chunks.column("called_ns")) * 1e-9
    return seconds


def _wall(chunks: Chunks) -> NDArray[np.float64]:
    """Until the work was done; on a machine without GPU that is when the call returned."""
    done = chunks.column("done_ns")
    return _since_call(chunks, "done_ns" if len(done) else "returned_ns")


class Waiting:
    """A function together with waiting for what it returned, by ``block_until_ready``."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._value: object = None

    def __call__(self) -> object:
        """Calls the function and waits."""
        self.start()
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
