# SPDX-License-Identifier: Apache-2.0
"""Captures CUDA graphs of a function's GPU work, and measures the time of one more call in them.

A replay of n calls takes a + b n. The constant a (graph launch and events) is an artefact of the method. The slope b is
the time of a call in an endless row: its kernels and the gaps between them. See Chen and Revels, "Robust benchmarking
in noisy environments" (HPEC 2016), and Criterion's linear sampling.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core, stats
from gpuscope.benchmarking.samples import no_collection
from gpuscope.benchmarking.stopping import now
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.frameworks import cupy, torch
from gpuscope.frameworks.graph_capture import (
    DEFAULT_STREAMS,
    WARM_UP_CALLS,
    Captured,
    EmptyGraph,
    call_repeatedly,
    not_captured,
)

if TYPE_CHECKING:
    from gpuscope.streams import Stream

    _Capture = Callable[[Callable[[], object], int, Stream], Captured]

TICK = 32e-9  # of the GPU's clock for events
MULTIPLES = (1, 2, 4)

SHORTEST = 1000 * TICK  # of a replay: the tick is 0.1 % of it
LONGEST = 5e-3
MOST_CALLS = 4096  # in one graph
FEWEST_ROUNDS = 30
ROUNDS_A_CHUNK = 10


def capture(function: Callable[[], object], calls: int, *, stream: Stream) -> Captured:
    """Captures `calls` calls of `function` into one CUDA graph, to be replayed on `stream`.

    The function is first called a few times without capture; its errors there are raised unchanged.

    Raises:
        InvalidArgument: `calls` is below 1.
        NotAvailable: the capture failed, as the function waits for the GPU, uses the legacy default stream, allocates
            outside of a pool or the like. No stream is left capturing.
    """
    if calls < 1:
        raise InvalidArgument(f"calls is {calls}; accepted are whole numbers of 1 or more")
    with no_collection():  # a collection may free GPU memory or destroy streams, which is illegal during capture
        for capture_graph in _captures():
            try:
                return capture_graph(function, calls, stream)
            except EmptyGraph:
                continue
    raise not_captured("nothing that it does comes onto the stream that is captured")


def _captures() -> list[_Capture]:
    """The ways to capture here, in the order to try: the frameworks in use, else the driver."""
    found: list[_Capture] = [torch.capture_graph] if torch.initialized() else []
    if hasattr(sys.modules.get("cupy"), "cuda"):
        found.append(cupy.capture_graph)
    return found or [_capture_by_driver]


def _capture_by_driver(function: Callable[[], object], calls: int, stream: Stream) -> Captured:
    if stream.handle in DEFAULT_STREAMS:
        raise not_captured("it uses the default stream, which cannot be captured; pass a stream of its own")
    results: list[object] = []
    call_repeatedly(function, WARM_UP_CALLS)
    _core.synchronize_stream(stream.handle, stream.device)
    try:
        graph = _core.Graph.capture(
            lambda: results.append(function()), calls, device=stream.device, stream=stream.handle
        )
    except Exception as error:
        raise not_captured(error) from error
    if graph.nodes == 0:
        raise EmptyGraph
    return Captured(calls, graph.launch, graph.nodes, "driver", [graph, results, function])


@dataclass(frozen=True)
class Marginal:
    """The slope, its samples and the intercept; times in seconds."""

    estimate: stats.Estimate  # the time of one more call
    samples: NDArray[np.float64]  # one slope per round
    overhead: stats.Estimate  # the intercept: the constant part of a replay
    calls: tuple[int, ...]  # number of calls in each graph
    converged: bool  # the interval is as narrow as requested
    seconds: float  # duration of the measurement with the captures


def marginal(
    function: Callable[[], object],
    sampler: _core.Sampler,
    stream: Stream,
    *,
    precision: float = 0.01,
    budget: float = 1.0,
    seed: int = 0,
) -> Marginal:
    """Measures the slope of the replay time of CUDA graphs of k, 2k and 4k calls, hot and behind a gate.

    Stops once half of the interval's width is `precision` of the slope, or after `budget` seconds.

    Raises:
        NotAvailable: the function cannot be captured, or the gate does not hold until its replays are queued.
    """
    began = now()
    random = np.random.default_rng(seed)
    with contextlib.ExitStack() as stack:
        calls = calls_a_graph(lambda count: _replay_seconds(function, count, sampler, stream), budget)
        captured = [stack.enter_context(capture(function, count, stream=stream)) for count in calls]
        stack.callback(sampler.synchronize)  # runs before the graphs are freed
        launches = [graph.launch for graph in captured]
        tick = TICK / (calls[-1] - calls[0])
        rounds = np.empty((0, len(calls)))
        size = ROUNDS_A_CHUNK
        for launch in launches:
            launch()
        sampler.synchronize()
        while True:
            chunk = _rounds(launches, sampler, random, size)
            late = now() - began >= budget
            if chunk is None:  # too many replays for the stream's queue behind a gate
                if size == 1 and (late or not len(rounds)):
                    raise NotAvailable("the marginal time: the gate does not hold until the replays are queued")
                size = max(1, size // 2)
                continue
            rounds = np.vstack((rounds, chunk))
            samples, overheads = slopes(rounds, calls)
            estimate = stats.estimate(samples, tick=tick)
            converged = len(rounds) >= FEWEST_ROUNDS and estimate.relative_half_width <= precision
            if converged or (late and len(rounds) > 1):
                overhead = stats.estimate(overheads, tick=TICK)
                return Marginal(estimate, samples, overhead, calls, converged, now() - began)


def calls_a_graph(replay_seconds: Callable[[int], float], budget: float = math.inf) -> tuple[int, ...]:
    """Numbers of calls in the graphs, so that the shortest replay is many ticks and the longest ends soon.

    `replay_seconds` captures that many calls and returns the time of a replay; captures may take half of the budget.
    """
    began = now()
    count = 1
    seconds = replay_seconds(count)
    host_seconds = (now() - began) / (count + WARM_UP_CALLS)
    affordable = budget / 2 / max(host_seconds, 1e-9) / sum(MULTIPLES)
    most = max(1, int(min(MOST_CALLS // MULTIPLES[-1], affordable)))
    while seconds < SHORTEST and count < most:
        # A replay's constant part makes the first guess too small, so it is repeated until long enough.
        count = min(most, max(count * 2, math.ceil(count * SHORTEST / max(seconds, TICK))))
        seconds = replay_seconds(count)
    while count > 1 and seconds * MULTIPLES[-1] > LONGEST:
        count, seconds = count // 2, seconds / 2
    return tuple(count * multiple for multiple in MULTIPLES)


def slopes(seconds: NDArray[np.float64], calls: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Slope and intercept of the least-squares line of each round; `seconds` is rounds by graphs."""
    x = np.asarray(calls, dtype=np.float64)
    centred = x - x.mean()
    slope = seconds @ centred / (centred @ centred)
    return slope, seconds.mean(axis=1) - slope * x.mean()


def _replay_seconds(function: Callable[[], object], count: int, sampler: _core.Sampler, stream: Stream) -> float:
    with capture(function, count, stream=stream) as captured:
        try:
            captured.launch()  # the first replay also brings the graph to the GPU
            sampler.synchronize()
            chunk = sampler.sample([captured.launch], np.zeros(3, dtype=np.uint32), gate=True, flush=False)
        finally:
            sampler.synchronize()
    return float(np.median(chunk["stream_s"]))


def _rounds(
    launches: list[Callable[[], object]], sampler: _core.Sampler, random: np.random.Generator, size: int
) -> NDArray[np.float64] | None:
    """Times of `size` rounds, each graph once a round in random order; None when the gate did not hold."""
    turns = np.array([random.permutation(len(launches)) for _ in range(size)], dtype=np.uint32)
    chunk = sampler.sample(launches, turns.ravel(), gate=True, flush=False)
    if not chunk["held"]:
        return None
    seconds = np.empty((size, len(launches)))
    np.put_along_axis(seconds, turns.astype(np.intp), chunk["stream_s"].reshape(size, -1), axis=1)
    return seconds
