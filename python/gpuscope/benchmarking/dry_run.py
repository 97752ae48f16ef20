# SPDX-License-Identifier: Apache-2.0
"""What functions do in a few calls that are recorded before anything is timed, and how they are sampled therefore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, MemoryKind
from gpuscope.benchmarking import kernel_times
from gpuscope.benchmarking.samples import Quantity
from gpuscope.errors import GpuscopeError
from gpuscope.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

CALLS = 2
TRACING_TIERS = ("cupti", "cupti-shared")

# How much longer than nothing a stream must be busy to be thought of as used, where nothing is traced.
_NOTICEABLE = 1e-6

# Driver calls that a stream takes while it is held back: a queue holds about a thousand.
_QUEUE = 700
_QUEUE_A_CHUNK = 256
_QUEUED_AROUND_A_CALL = 4  # flushes and events
_LARGEST_CHUNK = 32
# A chunk is over soon, so that clocks are read often and Ctrl-C takes effect soon.
_LONGEST_CHUNK = 0.02
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.1, 5.0


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


def traced(functions: Sequence[Callable[[], object]], sampler: _core.Sampler) -> tuple[tuple[Facts, ...], str]:
    """Calls each function a few times while CUPTI records: a row a function, or else why there is none."""
    if _core.Session.active():
        return (), "another profile is active in this process"
    try:
        session = _core.Session(cuda=True, sync=True)
    except GpuscopeError as error:
        return (), str(error)
    try:
        if session.tier not in TRACING_TIERS:
            return (), session.tier_reason or "CUPTI is not to be had here"
        order = np.repeat(np.arange(len(functions), dtype=np.uint32), CALLS)
        session.open()
        chunk = sampler.sample_wall(functions, order, flush=True)
        trace = Trace(session.cut())
    finally:
        session.stop()
    if len(trace.kernels) and not len(trace.api):
        return (), "no driver calls were recorded to go with the kernels"
    return _facts(trace, chunk, order), ""


def _facts(trace: Trace, chunk: dict[str, Any], order: NDArray[np.uint32]) -> tuple[Facts, ...]:
    called, returned = chunk["called_ns"], chunk["returned_ns"]
    times = kernel_times.measure(trace, called)
    calls = _Calls(trace, called, returned)
    waits, allocates = calls.wait, calls.allocate
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


class _Calls:
    """Which of our calls made some driver call before they returned."""

    def __init__(self, trace: Trace, called: NDArray[np.int64], returned: NDArray[np.int64]) -> None:
        api, calls = trace.api, trace.calls
        self._trace, self._calls = trace, len(called)
        self._call = np.searchsorted(called, api.start_ns, side="right") - 1
        self._inside = (self._call >= 0) & (api.start_ns < returned[self._call])
        self._kind = calls.kind[api.call]
        # A stream waits for an event by itself: the host goes on, as after what is Async.
        names = [trace.string(int(name)) for name in calls.name]
        in_order = np.array(["Async" in name or "WaitEvent" in name for name in names], bool)
        self._in_order = in_order[api.call]

    def _that(self, made: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = np.zeros(self._calls, bool)
        found[self._call[self._inside & made]] = True
        return found

    @property
    def wait(self) -> NDArray[np.bool_]:
        """Wait for the GPU: by a call for that, or a copy that is not Async or of pageable memory."""
        copies = self._trace.memcpy
        # The driver waits for copies of pageable memory.
        pageable = copies.correlation[
            (copies.source == MemoryKind.PAGEABLE) | (copies.destination == MemoryKind.PAGEABLE)
        ]
        waits = (self._kind == CallKind.SYNC) | (self._kind == CallKind.MEMCPY)
        return self._that(waits & ~self._in_order | np.isin(self._trace.api.correlation, pageable))

    @property
    def allocate(self) -> NDArray[np.bool_]:
        """Take memory from the driver or give it back, other than in the order of a stream."""
        memory = (self._kind == CallKind.ALLOC) | (self._kind == CallKind.FREE)
        return self._that(memory & ~self._in_order)


def untraced(functions: Sequence[Callable[[], object]], sampler: _core.Sampler) -> tuple[Facts, ...]:
    """What the gate and events alone show: whether a function waits for the GPU and whether it keeps the stream busy.

    Its launches are not known, and work on other streams is not seen.
    """

    def sample(function: Callable[[], object], calls: int, *, gate: bool) -> dict[str, Any]:
        return dict(sampler.sample([function], np.zeros(calls, np.uint32), gate=gate, flush=False, events=True))

    nothing = float(np.median(sample(lambda: None, CALLS, gate=False)["stream_s"]))
    facts = []
    for function in functions:
        gated, chunk = sample(function, 1, gate=True), sample(function, CALLS, gate=False)
        held = bool(gated["held"])
        launch = float(np.median(chunk["returned_ns"] - chunk["called_ns"])) * 1e-9
        stream = float(np.median((gated if held else chunk)["stream_s"]))
        uses_gpu = not held or stream > nothing + _NOTICEABLE
        facts.append(Facts(0, (), not held, False, False, launch, launch + stream, uses_gpu))
    return tuple(facts)


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


def plan(facts: Sequence[Facts]) -> Plan:
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


def absences(facts: Sequence[Facts], why_untraced: str) -> dict[Quantity, str]:
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
