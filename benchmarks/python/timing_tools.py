# SPDX-License-Identifier: Apache-2.0
"""Other tools that time GPU work: each takes a function and says, in seconds, how long a call of it takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

REPEATS = 100

Tool = Callable[[Callable[[], object]], float]


def do_bench(function: Callable[[], object]) -> float:
    import triton.testing

    return float(triton.testing.do_bench(function, warmup=25, rep=100, return_mode="median")) * 1e-3


def do_bench_cudagraph(function: Callable[[], object]) -> float:
    import torch
    import triton.testing

    with torch.cuda.stream(torch.cuda.Stream()):  # it captures the current stream
        return float(triton.testing.do_bench_cudagraph(function, rep=50, return_mode="median")) * 1e-3


def cupyx_benchmark(function: Callable[[], object]) -> float:
    import cupyx.profiler

    times = cupyx.profiler.benchmark(function, n_repeat=REPEATS, n_warmup=10).gpu_times
    return float(statistics.median(times.ravel().tolist()))


def torch_timer(function: Callable[[], object]) -> float:
    import torch.utils.benchmark

    timer = torch.utils.benchmark.Timer("function()", globals={"function": function})
    return float(timer.blocked_autorange(min_run_time=0.2).median)


def event_pair(function: Callable[[], object]) -> float:
    """What programs do by hand: an event, the call, an event."""
    import torch

    times = []
    for _ in range(REPEATS + 10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times[10:])


TOOLS: dict[str, Tool] = {
    "triton do_bench": do_bench,
    "triton do_bench_cudagraph": do_bench_cudagraph,
    "cupyx benchmark": cupyx_benchmark,
    "torch Timer": torch_timer,
    "event pair": event_pair,
}


def begin() -> None:
    """Makes torch's CUDA, so that `streams.current` is the stream that the tools time; raises where there is none."""
    import torch

    torch.zeros(1, device="cuda")


def with_each(tools: dict[str, Tool], measure_with: Callable[[Tool], Any]) -> dict[str, Any]:
    """By tool, what it measured, or why it could not."""
    found: dict[str, Any] = {}
    for name, tool in tools.items():
        try:
            found[name] = measure_with(tool)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return found
