# SPDX-License-Identifier: Apache-2.0
"""A simulated machine with one GPU, for tests of what measures: a host's clock, streams, a driver, CUPTI and NVML.

>>> gpu = install(monkeypatch.setattr)
>>> result = benchmark(lambda: gpu.launch("gemm", 10e-6))

Time is simulated: it runs only by what functions under test and the sampler do, and random moments are the same in
every run, so that tests are exact and fast.
Functions under test act on the machine by `launch`, `copy`, `synchronize`, `allocate` and `work`; tests set how it
behaves by its attributes.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from fakes.gscope import COLUMNS, NONE
from gpuscope import _core, errors

READING_THE_CLOCK = 50e-9  # seconds, of each row of calls on the CPU
START = 1_700_000_000_000_000_000
TIMED, OTHER = 7, 13  # numbers that CUPTI gives to streams: the sampler's, and another one
KINDS = {
    "cuLaunchKernel": 1,
    "cuGraphLaunch": 2,
    "cuMemcpyAsync": 3,
    "cuStreamSynchronize": 5,
    "cuStreamWaitEvent": 5,
    "cuMemAlloc_v2": 6,
    "cuMemAllocAsync": 6,
}
PAGEABLE, PINNED, DEVICE = 1, 2, 3
LIMITS = {"memory_bandwidth": 3.35e12, "fp32_flops": 67e12, "l2_bytes": 50 << 20, "capability": "9.0"}


class GPU:
    """The machine. Durations are seconds; what tests may set:

    Attributes:
        present: whether the driver lists the GPU.
        tier: of CUPTI: "cupti" or "events"; `tier_reason` says why.
        noise: standard deviation of kernels' durations, relative.
        slowdown: a function of the seconds since the start: by how much kernels take longer (1: not at all).
        clock_hz: likewise, the SM clock.
        reasons: likewise, NVML's reasons for lower clocks.
        loses: whether CUPTI loses a record, by its number, counted from 0 over the run.
        launch_seconds: what a launch costs the host.
        flush_seconds: of each of a flush's two kernels.
    """

    def __init__(self, seed: int = 0) -> None:
        self.present, self.tier, self.tier_reason = True, "cupti", ""
        self.noise = 0.0
        self.slowdown = lambda seconds: 1.0
        self.clock_hz = lambda seconds: 1.7e9
        self.reasons = lambda seconds: 0
        self.loses = lambda number: False
        self.launch_seconds, self.flush_seconds = 2e-6, 20e-6
        self.now_ns = START
        self.random = np.random.default_rng(seed)
        self.session: Session | None = None
        self.log: list[str] = []
        self._free = {TIMED: START, OTHER: START}  # when each stream has done all that it was given
        self._correlation = self._records = 0
        self._held: list[Any] | None = None  # what waits behind the closed gate
        self._gave_up_ns = 0
        self._captured: list[tuple[str, float]] | None = None

    # -- what functions under test do --------------------------------------------------------------------------------

    def launch(self, name: str = "kernel", seconds: float = 10e-6, stream: int = TIMED) -> None:
        """Launches a kernel that runs for so long, once its stream comes to it."""
        if self._captured is not None:
            self._captured.append((name, seconds))
            return
        self._put("kernel", self._call("cuLaunchKernel", self.launch_seconds), name, seconds, stream)

    def copy(self, seconds: float = 5e-6, call: str = "cuMemcpyAsync", memory: int = PINNED) -> None:
        """Copies to the host."""
        self._put("memcpy", self._call(call, self.launch_seconds), str(memory), seconds, TIMED)

    def synchronize(self) -> None:
        """Waits for all streams; behind a closed gate, until that gives up."""
        if self._captured is not None:
            raise errors.CudaError("operation not permitted when stream is capturing", "cuStreamSynchronize", 900)
        began = self.now_ns
        if self._held is not None:
            self.now_ns = max(self.now_ns, self._gave_up_ns)
            self.open_gate()
        self.now_ns = max(self.now_ns, *self._free.values()) + 1000
        self._call("cuStreamSynchronize", (self.now_ns - began) * 1e-9, began)

    def wait_event(self) -> None:
        """Lets the stream wait for an event; the host does not wait."""
        self._call("cuStreamWaitEvent", 1e-6)

    def allocate(self, call: str = "cuMemAlloc_v2") -> None:
        """Takes memory from the driver."""
        self._call(call, 5e-6)

    def work(self, seconds: float) -> None:
        """Keeps the host busy."""
        self.now_ns += round(seconds * 1e9)

    # -- what the sampler does ---------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Since the start."""
        return (self.now_ns - START) * 1e-9

    def close_gate(self, timeout_ns: int) -> None:
        self._held, self._gave_up_ns = [], self.now_ns + timeout_ns

    def open_gate(self) -> bool:
        """Lets the held work run; whether the gate had held until now."""
        held, self._held = self._held, None
        if held is None:
            return False
        in_time = self.now_ns <= self._gave_up_ns
        opened = min(self.now_ns, self._gave_up_ns)
        for begin in held:
            begin(opened)
        return in_time

    def event(self) -> list[int]:
        """An event on the timed stream: a list that holds its time once the stream has come to it."""
        times: list[int] = []

        def begin(earliest: int) -> None:
            times.append(max(earliest, self._free[TIMED]))
            self._free[TIMED] = times[0] + 500

        self._enqueue(TIMED, begin)
        return times

    def own(self, name: str, seconds: float) -> None:
        """Launches a kernel of the sampler's."""
        self._put("kernel", self._call("cuLaunchKernel", 1e-6), name, seconds, TIMED, exact=True)

    def replay(self, nodes: list[tuple[str, float]]) -> None:
        """Launches a graph."""
        correlation = self._call("cuGraphLaunch", self.launch_seconds)
        for name, seconds in nodes:
            self._put("kernel", correlation, name, seconds, TIMED)

    def _call(self, name: str, seconds: float, began: int | None = None) -> int:
        """One call of the driver; its correlation id."""
        self._correlation += 1
        start = self.now_ns if began is None else began
        if began is None:
            self.work(seconds)
        if self.session is not None:
            self.session.api.append((start, round(seconds * 1e9), self._correlation, name))
        return self._correlation

    def _put(self, table: str, correlation: int, name: str, seconds: float, stream: int, exact: bool = False) -> None:
        queued, session = self.now_ns, self.session

        def begin(earliest: int) -> None:
            start = max(earliest, queued, self._free[stream])
            factor = 1.0 if exact else self.slowdown((start - START) * 1e-9) * (1 + self.noise * self.random.normal())
            duration = max(1, round(seconds * factor * 1e9))
            self._free[stream] = start + duration
            if session is not None:
                number, self._records = self._records, self._records + 1
                if not self.loses(number):
                    session.records.append((table, start, duration, correlation, name, stream))

        self._enqueue(stream, begin)

    def _enqueue(self, stream: int, begin: Any) -> None:
        if self._held is not None and stream == TIMED:
            self._held.append(begin)
        else:
            begin(self.now_ns)


class Sampler:
    """`_core.Sampler` of the machine."""

    gpu: GPU

    def __init__(self, device: int = 0, stream: int = 0, flush_bytes: int = -1) -> None:
        self.l2_bytes = 50 << 20

    def sample(self, functions, order, *, gate=True, flush=True, events=True, timeout_ns=100_000_000):
        gpu, times, pairs, held = self.gpu, [], [], False
        if gate:
            gpu.close_gate(timeout_ns)
        else:
            gpu.own("gpuscope_meter", 2e-6)
        try:
            for function in order:
                if flush:
                    self._flush()
                start = gpu.event() if events else None
                called = gpu.now_ns
                functions[function]()
                times.append((called, gpu.now_ns))
                pairs.append((start, gpu.event() if events else None))
        finally:
            held = gpu.open_gate()
            self.synchronize()
        stream = [(stop[0] - start[0]) * 1e-9 if events else math.nan for start, stop in pairs]
        return {
            **_columns(times, "called_ns", "returned_ns"),
            "stream_s": np.array(stream),
            "held": held,
            **self._clock(),
        }

    def sample_wall(self, functions, order, *, flush=True):
        times = []
        for function in order:
            if flush:
                self._flush()
                self.synchronize()
            called = self.gpu.now_ns
            functions[function]()
            returned = self.gpu.now_ns
            self.synchronize()
            times.append((called, returned, self.gpu.now_ns))
        return {**_columns(times, "called_ns", "returned_ns", "done_ns"), **self._clock()}

    def synchronize(self) -> None:
        self.gpu.synchronize()

    def _flush(self) -> None:
        self.gpu.own("gpuscope_flush_write", self.gpu.flush_seconds)
        self.gpu.own("gpuscope_flush_read", self.gpu.flush_seconds)

    def _clock(self) -> dict[str, float]:
        return {"clock_hz": self.gpu.clock_hz(self.gpu.seconds)}


class Session:
    """`_core.Session` of the machine; `gpu.log` tells what was asked of it."""

    gpu: GPU
    running: Session | None = None

    def __init__(self, **options) -> None:
        if Session.running is not None:
            raise errors.InvalidArgument("a session is active already; stop it first")
        Session.running = self
        self.tier, self.tier_reason = self.gpu.tier, self.gpu.tier_reason
        self.gpu.log.append("start")

    @staticmethod
    def active() -> bool:
        return Session.running is not None

    def open(self) -> None:
        self.api, self.records = [], []
        self.gpu.session = self
        self.gpu.log.append("open")

    def cut(self) -> Store:
        self.gpu.session = None
        self.gpu.log.append("cut")
        self.gpu.work(1e-3)
        return Store(self.api, self.records)

    def stop(self) -> None:
        if Session.running is self:
            Session.running = self.gpu.session = None
            self.gpu.log.append("stop")


class Store:
    """The tables of a window, as `trace.Trace` reads them."""

    def __init__(self, api: list[Any], records: list[Any]) -> None:
        self.names: list[str] = [""]
        kernels = [record for record in records if record[0] == "kernel"]
        copies = [record for record in records if record[0] == "memcpy"]
        variants = sorted({record[4] for record in kernels})
        calls = sorted({row[3] for row in api})
        start, duration, correlation, call = zip(*api, strict=True) if api else ([],) * 4
        one = [1] * len(variants)
        self.tables: dict[str, dict[str, Any]] = {
            "track": {"stream": [TIMED, OTHER]},
            "variant": {
                "name": list(map(self._id, variants)),
                **{f"{part}_{axis}": one for part in ("grid", "block") for axis in "xyz"},
            },
            "call": {"name": list(map(self._id, calls)), "kind": [KINDS.get(name, 3) for name in calls]},
            "api": {
                "start_ns": start,
                "duration_ns": duration,
                "correlation": correlation,
                "call": [calls.index(name) for name in call],
            },
            "kernel": {**_times(kernels), "variant": [variants.index(record[4]) for record in kernels]},
            "memcpy": {
                **_times(copies),
                "kind": [2] * len(copies),
                "source": [DEVICE] * len(copies),
                "destination": [int(record[4]) for record in copies],
            },
        }

    def columns(self, table: str) -> dict[str, Any]:
        given = self.tables.get(table, {})
        rows = len(next(iter(given.values()), ()))
        empty = {"region": NONE}
        return {
            name: np.array(given.get(name, [empty.get(name, 0)] * rows), dtype)
            for name, dtype in COLUMNS[table].items()
        }

    def rows(self, table: str) -> int:
        return len(next(iter(self.columns(table).values())))

    def string(self, string_id: int) -> str:
        return self.names[string_id]

    def info(self) -> dict[str, str]:
        return {}

    def _id(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)


class Graph:
    """`_core.Graph` of the machine: kernels only."""

    gpu: GPU

    def __init__(self, nodes: list[tuple[str, float]]) -> None:
        self._nodes, self.nodes = nodes, len(nodes)

    @staticmethod
    def capture(function, calls, *, device=0, stream) -> Graph:
        Graph.gpu._captured = nodes = []
        try:
            for _ in range(calls):
                function()
        finally:
            Graph.gpu._captured = None
        return Graph(nodes)

    def launch(self) -> None:
        self.gpu.replay(self._nodes)


def install(patch: Any, **behaviour: Any) -> GPU:
    """Puts the machine where gpuscope looks for one.

    Args:
        patch: as ``monkeypatch.setattr``.
        **behaviour: attributes of `GPU` to set.
    """
    from gpuscope.benchmarking import stopping

    gpu = GPU()
    for name, value in behaviour.items():
        assert hasattr(gpu, name), name
        setattr(gpu, name, value)
    Sampler.gpu = Session.gpu = Graph.gpu = gpu
    Session.running = None
    device = {
        "ordinal": 0,
        "name": "Simulated GPU",
        "uuid": "GPU-0",
        "memory_bytes": 1 << 34,
        "multiprocessors": 132,
        "capability": "9.0",
    }
    facts = {"devices": [device], "cuda_version": "13.0", "driver_version": "580.0"}
    replaced = {
        "Sampler": Sampler,
        "Session": Session,
        "Graph": Graph,
        "environment": lambda: facts if gpu.present else {"devices": []},
        "stream_device": lambda stream: 0,
        "synchronize_stream": lambda stream, device=0: gpu.synchronize(),
        "clock_state": lambda device=0: {"sm_hz": None, "reasons": gpu.reasons(gpu.seconds), "why": "simulated"},
        "device_limits": lambda device=0: dict(LIMITS),
        "time_calls": functools.partial(_time_calls, gpu),
        "now_ns": lambda: gpu.now_ns,
    }
    for name, value in replaced.items():
        patch(_core, name, value, raising=False)
    patch(stopping, "now", lambda: gpu.now_ns * 1e-9)
    make = np.random.default_rng
    patch(np.random, "default_rng", lambda seed=None: make(0 if seed is None else seed))
    return gpu


def _time_calls(gpu: GPU, functions, order, *, repeat=1, longest_ns=10_000_000):
    times = []
    for function in order:
        called, calls = gpu.now_ns, 0
        while calls < repeat and gpu.now_ns - called <= longest_ns:
            functions[function]()
            calls += 1
        gpu.work(READING_THE_CLOCK)
        times.append((called, gpu.now_ns, calls))
    return _columns(times, "called_ns", "returned_ns", "calls")


def _columns(times: list[tuple[int, ...]], *names: str) -> dict[str, Any]:
    return dict(zip(names, np.array(times, np.int64).T, strict=True))


def _times(records: list[Any]) -> dict[str, list[int]]:
    return {
        "start_ns": [record[1] for record in records],
        "duration_ns": [record[2] for record in records],
        "correlation": [record[3] for record in records],
        "track": [0 if record[5] == TIMED else 1 for record in records],
    }
