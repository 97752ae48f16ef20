# SPDX-License-Identifier: Apache-2.0
"""How long it takes to know a 5 us kernel to 1 %, from the call of benchmark() to its result."""

from __future__ import annotations

import contextlib
import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import measure

SPIN_NS = 5000
TARGET = 0.01
CALLS = 15
QUICK_CALLS = 5
ROWS = ("time_to_interval",)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def ours(calls: int) -> measure.Row:
    from gpuscope import _core
    from gpuscope.benchmarking.benchmarks import benchmark

    kernel = functools.partial(_core.Kernels().spin, SPIN_NS)
    runs = [timed(lambda: benchmark(kernel, target=TARGET)) for _ in range(calls + 1)]
    seconds = [spent for spent, _ in runs[1:]]
    detail = {
        "first call, s": round(runs[0][0], 3),
        "slowest, s": round(max(seconds), 3),
        "converged": sum(result.converged for _, result in runs[1:]) / calls,
        "samples": statistics.median(result.n for _, result in runs[1:]),
        "kernel, us": round(statistics.median(result.median for _, result in runs[1:]) * 1e6, 4),
    }
    return {"value": round(statistics.median(seconds), 4), "detail": detail}


def do_bench(calls: int) -> measure.Row:
    """With its defaults, which promise no precision."""
    import timing_tools

    from gpuscope import _core

    timing_tools.begin()
    kernel = functools.partial(_core.Kernels().spin, SPIN_NS)
    runs = [timed(lambda: timing_tools.do_bench(kernel)) for _ in range(calls + 1)]
    said = statistics.median(result for _, result in runs[1:])
    spent = statistics.median(spent for spent, _ in runs[1:])
    return {"value": round(spent, 4), "unit": "s", "kernel, us": round(said * 1e6, 4)}


def nvbench(calls: int) -> measure.Row:
    """With its defaults; it prints the times, so that only what it takes is told."""
    import cuda.bench

    from gpuscope import _core, streams

    kernels = _core.Kernels()

    def spin(state: Any) -> None:
        state.exec(lambda launch: kernels.spin(SPIN_NS, streams.resolve(launch.get_stream()).handle))

    cuda.bench.register(spin)
    spent, _ = timed(lambda: cuda.bench.run_all_benchmarks(["nvbench"]))
    return {"value": round(spent, 3), "unit": "s"}


OTHERS = {"triton do_bench": do_bench, "nvbench": nvbench}


def main() -> None:
    options = measure.arguments(__doc__, tool="")
    calls = QUICK_CALLS if options.quick else CALLS
    if options.tool:
        with contextlib.redirect_stdout(sys.stderr):
            found = OTHERS[options.tool](calls)
        measure.answer(found)
        return
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    row = ours(calls)
    row["others"] = {name: measure.child("time_to_interval.py", "--tool", name, seconds=60) for name in OTHERS}
    measure.answer({"rows": {"time_to_interval": row}})


if __name__ == "__main__":
    main()
