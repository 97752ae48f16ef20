# SPDX-License-Identifier: Apache-2.0
"""Kernel time of a function that launches three kernels, with more and more host time between the launches.

The kernels stay the same, so the time must not change. What does change counts launch latency as GPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

DELAYS_US = (0, 20, 50, 100, 200)
SPIN_NS = 5000
LAUNCHES = 3
SAMPLES = 300
QUICK_SAMPLES = 60
TOOLS = ("triton do_bench", "event pair")
ROWS = ("host_delays",)


def launches(kernels: Any, delay_us: int) -> Callable[[int], None]:
    """Three launches with a busy host between them."""
    delay_ns = delay_us * 1000

    def run(stream: int = 0) -> None:
        for number in range(LAUNCHES):
            if number and delay_ns:
                until = time.perf_counter_ns() + delay_ns
                while time.perf_counter_ns() < until:
                    pass
            kernels.spin(SPIN_NS, stream)

    return run


def ours(samples: int) -> list[float]:
    """The public estimate of the kernel time for each delay, in seconds."""
    from gpuscope import _core, stats
    from gpuscope.benchmarking.engine import Engine

    kernels = _core.Kernels()
    found = []
    for delay in DELAYS_US:
        with Engine([launches(kernels, delay)]) as engine:
            engine.warm_up(0.2)
            taken = engine.sample("kernel", np.zeros(samples, np.uint32))
            found.append(stats.estimate(taken.seconds["kernel"][taken.valid], tick=engine.tick).value)
    return found


def others() -> dict[str, Any]:
    import timing_tools

    from gpuscope import _core

    timing_tools.begin()
    kernels = _core.Kernels()

    def say(tool: timing_tools.Tool) -> list[float]:
        return [tool(launches(kernels, delay)) for delay in DELAYS_US]

    return timing_tools.with_each({name: timing_tools.TOOLS[name] for name in TOOLS}, say)


def row(seconds: Any) -> measure.Row:
    """The worst change against no delay; the time at each delay."""
    if "error" in seconds:
        return {"error": seconds["error"]}
    changes = [abs(time / seconds[0] - 1) for time in seconds]
    by_delay = {f"{delay} us": round(time * 1e6, 3) for delay, time in zip(DELAYS_US, seconds, strict=True)}
    return {"value": round(max(changes), 5), "detail": {"us, by delay": by_delay}}


def main() -> None:
    options = measure.arguments(__doc__, tool="")
    if options.tool == "others":
        measure.answer({"tools": others()})
        return
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    from gpuscope.errors import NotAvailable

    try:
        rows = {"host_delays": row(ours(QUICK_SAMPLES if options.quick else SAMPLES))}
    except NotAvailable as error:
        measure.answer({"rows": {name: {"skipped": str(error)} for name in ROWS}})
        return
    theirs = measure.child("host_delays.py", "--tool", "others")
    tools = theirs.get("tools", {"other tools": {"error": theirs.get("error", "")}})
    rows["host_delays"]["others"] = {name: row(found) for name, found in tools.items()}
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
