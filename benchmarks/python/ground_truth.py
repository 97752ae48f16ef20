# SPDX-License-Identifier: Apache-2.0
"""Kernel time against kernels that know their own duration, from 1 us to 10 ms; other tools' figures beside it.

The truth is the mean of what the kernel measures inside itself, from its first to its last look at the GPU's clock. A
kernel begins before that and ends after it, by a constant that is fitted and reported.
"""

from __future__ import annotations

import functools
import random
import time
from typing import Any

import measure
import numpy as np

DURATIONS_US = (1, 2, 3, 5, 7, 10, 20, 50, 100, 200, 500, 1000, 10_000)
OFFSETS_NS = (8, 16, 24)  # parts of the clock's tick
OFFSETS_FROM_NS = (2000, 5000)
OTHERS_NS = (2000, 5000, 10_000, 50_000, 200_000, 1_000_000)
ROUNDS = 3
SECONDS = 45.0  # a round that would begin later is left out
TICK = 32e-9
ROWS = ("kernel_time_error", "kernel_time_slope")


def durations() -> list[int]:
    """All durations in ns."""
    return sorted([us * 1000 for us in DURATIONS_US] + [ns + more for ns in OFFSETS_FROM_NS for more in OFFSETS_NS])


def calls(nanoseconds: int, quick: bool) -> int:
    """How many samples of a duration a round takes: half a second's worth, flushes included."""
    return max(40, min(400, int(0.5e9 / (nanoseconds + 150_000)))) // (2 if quick else 1)


def sample(kernels: Any, nanoseconds: int, count: int) -> tuple[list[float], float]:
    """Kernel times of so many calls, and the mean of the ns that the kernels measured inside themselves."""
    from gpuscope.benchmarking.engine import Engine

    with Engine([functools.partial(kernels.spin, nanoseconds)]) as engine:
        engine.warm_up(0.1)
        kernels.synchronize()
        kernels.spun()
        samples = engine.sample("kernel", np.zeros(count, np.uint32))
        spun, total_ns = kernels.spun()
    if spun < count:
        raise RuntimeError(f"{spun} kernels measured themselves in {count} calls of {nanoseconds} ns")
    return samples.seconds["kernel"][samples.valid].tolist(), total_ns / spun


def ours(quick: bool) -> list[dict[str, float]]:
    """By duration, in seconds: the truth and the public estimate of the kernel time."""
    from gpuscope import _core, stats

    kernels = _core.Kernels()
    times: dict[int, list[float]] = {ns: [] for ns in durations()}
    truths: dict[int, list[float]] = {ns: [] for ns in durations()}
    order, began = random.Random(0), time.monotonic()
    for number in range(1 if quick else ROUNDS):
        if number and (time.monotonic() - began) * (number + 1) / number > SECONDS:
            break
        for ns in order.sample(durations(), len(times)):
            count = calls(ns, quick)
            measured, spun_ns = sample(kernels, ns, count)
            times[ns] += measured
            truths[ns].append(spun_ns * 1e-9)
    table = []
    for ns in times:
        estimate = stats.estimate(times[ns], tick=TICK)
        table.append(
            {
                "asked": ns * 1e-9,
                "truth": float(np.mean(truths[ns])),
                "kernel": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "n": estimate.n,
            }
        )
    return table


def allowed(truth: np.ndarray) -> np.ndarray:
    return np.maximum(TICK, 0.01 * truth)


def fit(table: list[dict[str, float]]) -> tuple[np.ndarray, float, float, float]:
    """Errors past the constant; the constant, the slope of kernel time over truth and the intercept beside it."""
    truth, kernel = (np.array([row[name] for row in table]) for name in ("truth", "kernel"))
    weights = 1 / np.maximum(TICK, 1e-3 * truth)
    slope, intercept = np.polyfit(truth, kernel, 1, w=weights)
    constant = float(np.average(kernel - truth, weights=weights**2))
    return kernel - truth - constant, constant, float(slope), float(intercept)


def others() -> dict[str, Any]:
    """By tool, what it says of each duration, and the truth of the very calls that it made; seconds."""
    import timing_tools

    from gpuscope import _core

    timing_tools.begin()
    kernels = _core.Kernels()

    def say(tool: timing_tools.Tool) -> list[list[float]]:
        found = []
        for ns in OTHERS_NS:
            kernels.synchronize()
            kernels.spun()
            said = tool(functools.partial(kernels.spin, ns))
            kernels.synchronize()
            spun, total_ns = kernels.spun()
            found.append([said, total_ns * 1e-9 / spun])
        return found

    return timing_tools.with_each(timing_tools.TOOLS, say)


def other_row(found: Any, constant: float) -> measure.Row:
    """A tool's row: its worst error in the unit of ours, and its relative error at each duration."""
    if "error" in found:
        return {"error": found["error"]}
    said, truth = np.array(found).T
    error = said - truth - constant
    shares = error / (truth + constant)
    relative = {f"{ns / 1000:g} us": round(float(share), 4) for ns, share in zip(OTHERS_NS, shares, strict=True)}
    return {"value": round(float(np.max(np.abs(error) / allowed(truth))), 2), "relative": relative}


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
        table = ours(options.quick)
    except NotAvailable as error:
        measure.answer({"rows": {name: {"skipped": str(error)} for name in ROWS}})
        return
    error, constant, slope, intercept = fit(table)
    scaled = np.abs(error) / allowed(np.array([row["truth"] for row in table]))
    for row, left in zip(table, error, strict=True):
        row["error_ns"] = round(float(left) * 1e9, 2)
    detail = {"constant_ns": round(constant * 1e9, 1), "table": table}
    rows: dict[str, measure.Row] = {
        "kernel_time_error": {"value": round(float(scaled.max()), 4), "detail": detail},
        "kernel_time_slope": {
            "value": round(abs(slope - 1), 6),
            "detail": {"slope": slope, "intercept_ns": round(intercept * 1e9, 1)},
        },
    }
    theirs = measure.child("ground_truth.py", "--tool", "others")
    tools = theirs.get("tools", {"other tools": {"error": theirs.get("error", "")}})
    rows["kernel_time_error"]["others"] = {name: other_row(found, constant) for name, found in tools.items()}
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
