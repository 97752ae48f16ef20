# SPDX-License-Identifier: Apache-2.0
"""What functions do when they are called, seen in a few calls that are recorded before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core
from gpuscope.benchmark import kernel_times
from gpuscope.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

CALLS = 2
TRACING_TIERS = ("cupti", "cupti-shared")

# MemoryKind::Pageable of cpp/gpuscope/store/schema.h: the driver waits for copies of it.
_PAGEABLE = 1
# How much longer than nothing a stream must be busy to be thought of as used, where nothing is traced.
_NOTICEABLE = 1e-6


@dataclass(frozen=True)
class Facts:
    """What one call of a function does.

    Attributes:
        launches: driver calls that put work on the GPU; 0 where it is not known.
        kernels: the distinct kernels, copies and fills, the longest first.
        synchronizes: it waits for the GPU before it returns.
        other_streams: it has work done on streams other than the one timed.
        allocates: it takes GPU memory from the driver or gives it back.
        launch_seconds: host time of a call.
        call_seconds: host time until its work is done.
        uses_gpu: it puts work on the GPU.
    """

    launches: int
    kernels: tuple[str, ...]
    synchronizes: bool
    other_streams: bool
    allocates: bool
    launch_seconds: float
    call_seconds: float
    uses_gpu: bool


def traced(functions: Sequence[Callable[[], object]], sampler: _core.Sampler) -> tuple[tuple[Facts, ...], str]:
    """Calls each function a few times while CUPTI records.

    Returns:
        A row a function, and why there is none; one of the two is empty.
    """
    if _core.Session.active():
        return (), "another profile is active in this process"
    session = _core.Session(cuda=True, sync=True)
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
    kinds = _kinds_in_calls(trace, called, returned)
    waits = kinds[kernel_times.SYNC] | _waiting_copies(trace, called, returned)
    allocates = kinds[kernel_times.ALLOC] | kinds[kernel_times.FREE]
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
                allocates=bool(allocates[rows].any()),
                launch_seconds=float(np.median(returned[rows] - called[rows])) * 1e-9,
                call_seconds=float(np.median(seconds[rows])),
                uses_gpu=launches > 0 or bool(times.records[rows].any()),
            )
        )
    return tuple(facts)


def _kinds_in_calls(
    trace: Trace, called: NDArray[np.int64], returned: NDArray[np.int64]
) -> dict[int, NDArray[np.bool_]]:
    """For each kind of driver call, which calls of ours made one before they returned."""
    api = trace.api
    call, inside = _within(api.start_ns, called, returned)
    kind = trace.calls.kind[api.call]
    found = {}
    for wanted in (kernel_times.SYNC, kernel_times.ALLOC, kernel_times.FREE):
        found[wanted] = np.zeros(len(called), bool)
        found[wanted][call[inside & (kind == wanted)]] = True
    return found


def _waiting_copies(trace: Trace, called: NDArray[np.int64], returned: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which calls copy in a way that makes the driver wait: not Async by name, or from or to pageable memory."""
    api, copies = trace.api, trace.memcpy
    names = [trace.string(int(name)) for name in trace.calls.name]
    blocking = np.array(["Memcpy" in name and "Async" not in name for name in names], bool)
    pageable = copies.correlation[(copies.source == _PAGEABLE) | (copies.destination == _PAGEABLE)]
    call, inside = _within(api.start_ns, called, returned)
    found = np.zeros(len(called), bool)
    found[call[inside & (blocking[api.call] | np.isin(api.correlation, pageable))]] = True
    return found


def _within(
    start: NDArray[np.int64], called: NDArray[np.int64], returned: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    call = np.searchsorted(called, start, side="right") - 1
    return call, (call >= 0) & (start < returned[call])


def untraced(functions: Sequence[Callable[[], object]], sampler: _core.Sampler) -> tuple[Facts, ...]:
    """What the gate and events alone tell: whether a function waits for the GPU and whether it keeps the stream busy.

    Its launches are not known, and work on other streams is not seen.
    """
    nothing = _median_of(_probe(_nothing, sampler), "stream_s")
    facts = []
    for function in functions:
        gated = sampler.sample([function], np.zeros(1, np.uint32), gate=True, flush=False, events=True)
        chunk = _probe(function, sampler)
        held = bool(gated["held"])
        launch = float(np.median(chunk["returned_ns"] - chunk["called_ns"])) * 1e-9
        stream = _median_of(gated if held else chunk, "stream_s")
        uses_gpu = not held or stream > nothing + _NOTICEABLE
        facts.append(Facts(0, (), not held, False, False, launch, launch + stream, uses_gpu))
    return tuple(facts)


def _probe(function: Callable[[], object], sampler: _core.Sampler) -> dict[str, Any]:
    chunk: dict[str, Any] = sampler.sample([function], np.zeros(CALLS, np.uint32), gate=False, flush=False, events=True)
    return chunk


def _median_of(chunk: dict[str, Any], column: str) -> float:
    return float(np.median(chunk[column]))


def _nothing() -> None:
    pass
