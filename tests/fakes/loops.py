# SPDX-License-Identifier: Apache-2.0
"""Training loops that are written as what host and GPU do, played on a small machine, and come out as recordings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fakes.gscope import NONE
from fakes.recordings import make_trace
from gpuscope._core import CallKind, CopyKind, Flag, FunctionKind, MemoryKind, OverheadKind, RegionKind, schema
from gpuscope.counters import names
from gpuscope.trace import Trace

US = 1000
SMS = 132
_QUEUE = 1024  # launches that may wait; the next call waits for room
_LATENCY = 4 * US
_GAP = 1 * US
PRODUCT, ADD = "nvjet_hsh_128x256", "void at::native::vectorized_elementwise_kernel<4>"
_CALLS = {
    "cuLaunchKernel": CallKind.LAUNCH,
    "cuGraphLaunch": CallKind.GRAPH_LAUNCH,
    "cuMemcpyHtoDAsync": CallKind.MEMCPY,
    "cuMemcpyDtoHAsync": CallKind.MEMCPY,
    "cuMemcpyHtoD": CallKind.MEMCPY,
    "cuMemcpyDtoH": CallKind.MEMCPY,
    "cuStreamSynchronize": CallKind.SYNC,
    "cuEventSynchronize": CallKind.SYNC,
    "cuMemAlloc": CallKind.ALLOC,
    "cuMemFree": CallKind.FREE,
}


class Loop:
    """One thread and one GPU with streams; times are in us, and go on as calls are made."""

    def __init__(self, capability: tuple[int, int] = (9, 0), info: dict[str, str] | None = None) -> None:
        self.now = 1000 * US
        self._free: dict[int, int] = {}  # of each stream, when it has nothing left
        self._queued: list[int] = []  # when work ends
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._strings: dict[str, dict[Any, int]] = {}
        self._regions: list[int] = []
        self._functions: list[int] = []
        self._stack = NONE
        self._number = 0
        self._counted: dict[str, int] = {}
        self._asked_at = self.now
        self.turn = 0  # of the loop
        self.capability = capability
        self.info = info or {}

    # -- the program -------------------------------------------------------------------------------------------------

    def steps(self, count: int = 12, waits: bool = True) -> Iterator[int]:
        """Marks each turn as a step; the host is ahead of the GPU by one at most, unless it never waits."""
        ends = 0
        for number in range(count):
            self.turn = number
            with self.region(f"ProfilerStep#{number}", RegionKind.REGION):
                yield number
                if waits and ends > self.now:
                    self._call("cuEventSynchronize", 1)
                    self._until(ends)
                ends = max(self._free.values(), default=0)

    def work(self, us: float) -> None:
        """The host does something."""
        self.now += int(us * US)

    @contextlib.contextmanager
    def region(self, name: str, kind: RegionKind = RegionKind.OP, **details: str) -> Iterator[None]:
        """A region, with texts of its details; operators take the line that is set."""
        outer = self._regions[-1] if self._regions else NONE
        above = self._rows["region"][outer]["path"] if outer != NONE else NONE
        path = self._known("path", (name, above, int(kind)), name=name, parent=above, kind=int(kind))
        row = self._add("region", start_ns=self.now, duration_ns=0, parent=outer, path=path)
        if details or self._stack != NONE:
            texts = {column: details.get(column, NONE) for column in ("types", "shapes")}
            self._add("detail", region=row, forward=NONE, stack=self._stack, **texts)
        self._regions.append(row)
        yield
        self._regions.pop()
        self._rows["region"][row]["duration_ns"] = self.now - self._rows["region"][row]["start_ns"]

    @contextlib.contextmanager
    def function(self, name: str, kind: FunctionKind = FunctionKind.PYTHON) -> Iterator[None]:
        """A call of a Python function, or a garbage collection."""
        parent = self._functions[-1] if self._functions else NONE
        row = self._add("python_function", start_ns=self.now, duration_ns=0, name=name, parent=parent, kind=int(kind))
        self._functions.append(row)
        yield
        self._functions.pop()
        self._rows["python_function"][row]["duration_ns"] = self.now - self._rows["python_function"][row]["start_ns"]

    @contextlib.contextmanager
    def at(self, file: str, line: int, function: str = "step") -> Iterator[None]:
        """Calls are made at this line."""
        outer = self._stack
        values = {"parent": outer, "function": function, "file": file, "line": line}
        self._stack = self._known("stack", (outer, file, line), **values)
        yield
        self._stack = outer

    def launch(
        self, name: str = PRODUCT, gpu: float = 100, host: float = 5, *, stream: int = 7, **variant: int
    ) -> None:
        """Launches a kernel; `variant` has grid_x, block_x, registers and the like."""
        correlation = self._call("cuLaunchKernel", host, room=True)
        start, duration = self._run(gpu, stream)
        values = {"grid_x": 4 * SMS, "block_x": 128, "registers": 32, "local_bytes": 0} | variant
        values |= {f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "yz"}
        kind = self._known("variant", (name, *values.values()), name=name, **values)
        self._work("kernel", start, duration, correlation, stream, variant=kind, flags=0)

    def graph(self, kernels: int, gpu: float, host: float = 10, *, name: str = PRODUCT, **variant: int) -> None:
        """Launches a CUDA graph of so many kernels."""
        correlation = self._call("cuGraphLaunch", host, room=True)
        for _ in range(kernels):
            start, duration = self._run(gpu, 7)
            values = {"grid_x": 4 * SMS, "block_x": 128, "registers": 32, "local_bytes": 0} | variant
            values |= {f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "yz"}
            kind = self._known("variant", (name, *values.values()), name=name, **values)
            self._work("kernel", start, duration, correlation, 7, variant=kind, flags=int(Flag.IN_GRAPH))

    def copy(
        self, size: int, gpu: float, *, to_gpu: bool = True, pinned: bool = False, waits: bool = False, stream: int = 7
    ) -> None:
        """Copies; the call returns when it is done where it waits."""
        way = "HtoD" if to_gpu else "DtoH"
        correlation = self._call(f"cuMemcpy{way}{'' if waits else 'Async'}", 5)
        start, duration = self._run(gpu, stream)
        host = MemoryKind.PINNED if pinned else MemoryKind.PAGEABLE
        ends = (host, MemoryKind.DEVICE) if to_gpu else (MemoryKind.DEVICE, host)
        kind = CopyKind.HOST_TO_DEVICE if to_gpu else CopyKind.DEVICE_TO_HOST
        values = {"bytes": size, "kind": int(kind), "source": int(ends[0]), "destination": int(ends[1])}
        self._work("memcpy", start, duration, correlation, stream, **values)
        if waits:
            self._until(start + duration)

    def load(self, us: float) -> None:
        """The driver loads code in a launching call, as it does when a kernel is first used."""
        kind = int(OverheadKind.LAZY_FUNCTION_LOADING)
        self._add("overhead", start_ns=self.now, duration_ns=int(us * US), kind=kind, system_id=1)
        self.launch(gpu=5, host=us + 3)

    def fill(self, gpu: float = 2) -> None:
        """Fills memory."""
        correlation = self._call("cuLaunchKernel", 5)
        start, duration = self._run(gpu, 7)
        self._work("memset", start, duration, correlation, 7, bytes=4096)

    def wait(self) -> None:
        """Waits for all that was launched."""
        self._call("cuStreamSynchronize", 2)
        self._until(max(self._free.values(), default=0))

    def allocate(self, host: float) -> None:
        """Takes memory from the driver."""
        self._call("cuMemAlloc", host)

    def release(self, host: float = 5) -> None:
        """Gives it back, which waits for the GPU."""
        self._call("cuMemFree", host)
        self._until(max(self._free.values(), default=0))

    def held(self, reserved: int) -> None:
        """PyTorch's allocator then holds so much."""
        self._add("allocation", start_ns=self.now, bytes=1, reserved_bytes=reserved, allocated_bytes=1, ordinal=0)

    # -- what holds the host up ----------------------------------------------------------------------------------------

    def wait_for_cpu(self, us: float, thread: int = 0) -> None:
        """The thread could go on and has no CPU for so long."""
        time = int(us * US)
        self._add("thread_wait", start_ns=self.now, duration_ns=time, cpu_ns=0, wait_ns=time, thread=thread)
        self.now += time

    def sampled(self, since: int, on_cpu: float, thread: int = 0, looks: int = 1) -> None:
        """So many looks saw a thread at the line that is set, from a moment until now, for this share on a CPU."""
        time = self.now - since
        row = {"start_ns": since, "duration_ns": time, "cpu_ns": int(on_cpu * time), "count": looks}
        self._add("python_sample", **row, stack=self._stack, thread=thread)

    def process(self, since: int, on_cpu: float, *, wait: float = 0.0, read: int = 0, process: int = 4243) -> None:
        """What a process that the program started used from a moment until now, times as shares of that."""
        time = self.now - since
        used = {"cpu_ns": int(on_cpu * time), "wait_ns": int(wait * time), "read_bytes": read}
        self._add("process_usage", start_ns=since, duration_ns=time, **used, process=process)

    def counted(self, since: int, every: float = 100, **values: float) -> None:
        """The hardware counters of these names, of `gpuscope.counters.names`, from a moment until now."""
        for start in range(since, self.now - int(every * US) + 1, int(every * US)):
            sample = self._add("counter_sample", start_ns=start, duration_ns=int(every * US), device=0)
            for name, value in values.items():
                metric = getattr(names, name)
                counter = self._known("counter", metric, name=metric, unit="percent", description="")
                self._add("counter_value", sample=sample, counter=counter, value=value)

    def asked(self, since: int, every: float = 100, **values: int) -> None:
        """What NVML told from a moment until now: columns of samples, and counters as shares of the time."""
        columns = {table.name: [each.name for each in table.columns] for table in schema()}
        counters = {name: share for name, share in values.items() if name in columns["device_counter"]}
        for moment in (*range(since, self.now, int(every * US)), self.now):
            sample = {name: values.get(name, -1) for name in columns["device_sample"]}
            self._add("device_sample", **{**sample, "start_ns": moment, "device": 0})
            for name, share in counters.items():
                self._counted[name] = self._counted.get(name, 0) + int(share * (moment - self._asked_at))
            row = {name: self._counted.get(name, -1) for name in columns["device_counter"]}
            self._add("device_counter", **{**row, "start_ns": moment, "device": 0})
            self._asked_at = moment

    def container(self, since: int, *, throttled: float = 0.0, io_wait: float = 0.0) -> None:
        """What held up the container from a moment until now, in us."""
        stopped = {"throttled_ns": int(throttled * US), "throttled_periods": int(throttled > 0)}
        waited = {"io_wait_ns": int(io_wait * US)}
        times = {"start_ns": since, "duration_ns": self.now - since}
        self._add("control_group_usage", **times, **stopped, **waited)

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _call(self, name: str, host: float, *, room: bool = False) -> int:
        start = self.now
        self.now += int(host * US)
        if room and len(self._queued) >= _QUEUE:
            self.now = max(self.now, self._queued[-_QUEUE])
        self._number += 1
        region = self._regions[-1] if self._regions else NONE
        call = list(_CALLS).index(name)
        times = {"start_ns": start, "duration_ns": self.now - start}
        row = self._add("api", **times, correlation=self._number, region=region, call=call)
        if self._stack != NONE:
            self._add("call_stack", api=row, stack=self._stack)
        return self._number

    def _until(self, moment: int) -> None:
        """The last call returns not before that."""
        self.now = max(self.now, moment + 3 * US)
        self._rows["api"][-1]["duration_ns"] = self.now - self._rows["api"][-1]["start_ns"]

    def _run(self, gpu: float, stream: int) -> tuple[int, int]:
        start = max(self.now + _LATENCY, self._free.get(stream, 0) + _GAP)
        self._free[stream] = start + int(gpu * US)
        self._queued.append(self._free[stream])
        return start, int(gpu * US)

    def _work(self, table: str, start: int, duration: int, correlation: int, stream: int, **values: int) -> None:
        track = self._known("track", stream, device=0, context=1, stream=stream)
        region = self._regions[-1] if self._regions else NONE
        times = {"start_ns": start, "duration_ns": duration, "correlation": correlation}
        self._add(table, **times, region=region, track=track, **values)

    def _add(self, table: str, **values: Any) -> int:
        self._rows.setdefault(table, []).append(values)
        return len(self._rows[table]) - 1

    def _known(self, table: str, key: Any, **values: Any) -> int:
        known = self._strings.setdefault(table, {})
        if key not in known:
            known[key] = self._add(table, **values)
        return known[key]

    def tables(self) -> dict[str, dict[str, list[Any]]]:
        """What was recorded."""
        major, minor = self.capability
        device = {"ordinal": 0, "name": "NVIDIA H100", "multiprocessors": SMS, "memory_bytes": 80 << 30}
        device |= {"capability_major": major, "capability_minor": minor}
        rows = {
            **self._rows,
            "call": [{"name": name, "kind": int(kind)} for name, kind in _CALLS.items()],
            "thread": [{"system_id": 1, "name": "MainThread"}, *self._other_threads()],
            "device": [device],
        }
        return {name: {column: [row[column] for row in each] for column in each[0]} for name, each in rows.items()}

    def _other_threads(self) -> list[dict[str, Any]]:
        seen = (row["thread"] for table in ("python_sample", "thread_wait") for row in self._rows.get(table, ()))
        return [{"system_id": 1 + thread, "name": f"Thread-{thread}"} for thread in range(1, max(seen, default=0) + 1)]

    def trace(self) -> Trace:
        """The recording."""
        end = max([self.now, *self._free.values()])
        kernels = len(self._rows.get("kernel", ()))
        facts = {
            "session.mode": "full",
            "session.tier": "cupti",
            "session.start_ns": str(1000 * US),
            "session.stop_ns": str(end),
            "process.argv": "python train.py",
            "process.id": "4242",
            "audit.launches": str(kernels),
            "audit.kernels": str(kernels),
        }
        return make_trace(self.tables(), info={**facts, **self.info})
