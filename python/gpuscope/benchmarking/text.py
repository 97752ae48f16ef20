# SPDX-License-Identifier: Apache-2.0
"""A benchmark's result in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuscope import stats
from gpuscope.benchmarking.rates import verdict

if TYPE_CHECKING:
    from gpuscope.benchmarking.rates import Rate
    from gpuscope.benchmarking.result import BenchmarkResult

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))
_ENDS = {
    "target": "converged",
    "budget": "NOT converged: the budget ran out",
    "interrupted": "NOT converged: interrupted",
}
_SIDE = ("stream", "launch", "wall", "marginal")


def seconds(value: float, digits: int = 4) -> str:
    """A time in the unit in which it has one to three digits before the point, as "12.34 us"."""
    size, unit = next(((size, unit) for size, unit in _UNITS if abs(value) >= size), _UNITS[-1])
    return f"{value / size:#.{digits}g}".rstrip(".") + f" {unit}"


def percent(share: float) -> str:
    """A share, as "3.4 %"."""
    return f"{100 * share:.3g} %"


def line(result: BenchmarkResult) -> str:
    """The result in one line; the warnings are only counted."""
    estimate = result.estimate
    cache = ("cold" if result.cold else "hot") if result.on_gpu else "CPU"
    parts = [f"{result.name}: {result.quantity} {_interval(estimate)}, {cache})"]
    parts += [f"{name} {seconds(result.quantities[name].estimate.value, 3)}" for name in _others(result)]
    parts += [rate(one) for one in result.rates]
    clock = clocks(result)
    if clock and result.on_gpu:
        parts.append(clock)
    parts.append("converged" if result.converged else _ENDS[result.stopped])
    if result.warnings:
        parts.append(f"{len(result.warnings)} warning{'s' if len(result.warnings) > 1 else ''}, see report()")
    return " | ".join(parts)


def report(result: BenchmarkResult) -> str:
    """Every quantity, kernel, rate and warning, a line each."""
    lines = [line(result)]
    for name, measured in result.quantities.items():
        left_out = len(measured.samples) - int(np.count_nonzero(measured.valid))
        lines.append(
            f"  {name:<9} {_interval(measured.estimate)}, {measured.estimate.method}"
            f"{f', {left_out} invalid' if left_out else ''})"
        )
    for why in dict.fromkeys(result.absent.values()):
        names = [name for name, reason in result.absent.items() if reason == why]
        lines.append(f"  {', '.join(names):<9} not measured: {why}")
    if result.kernels:
        total = sum(kernel.seconds for kernel in result.kernels)
        lines.append("  a call's work on the GPU")
        for kernel in result.kernels:
            share = 100 * kernel.seconds / total if total else 0.0
            lines.append(f"    {share:5.1f} %  {seconds(kernel.seconds):>9}  {kernel.count:6g} x  {kernel.name}")
    bound = verdict(result.rates)
    if bound:
        lines.append(f"  {bound}")
    clean = result.clean
    if clean is not None and clean.n < result.n:
        lines.append(f"  without the {result.n - clean.n} tagged samples: {_interval(clean)})")
    lines += [f"  warning: {warning}" for warning in result.warnings]
    return "\n".join(lines)


def clocks(result: BenchmarkResult) -> str:
    """The SM clock of the samples and what share of them it was held down in; empty where it is not known."""
    known = result.clock_hz[np.isfinite(result.clock_hz)]
    if not len(known):
        return ""
    text = f"SM {np.median(known) / 1e6:.0f} MHz"
    for tags, what in ((result.capped, "power-capped"), (result.throttled, "throttled or shifted")):
        if tags.any():
            text += f", {what} {percent(tags.mean())}"
    return text


def rate(one: Rate) -> str:
    """A rate and its share of the peak, as "2.41 TB/s = 79 % of measured peak"."""
    size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if one.value >= size), _PREFIXES[-1])
    text = f"{one.value / size:.3g} {prefix}{one.unit}"
    return text if one.percent_of_peak is None else f"{text} = {one.percent_of_peak:.0f} % of measured peak"


def _others(result: BenchmarkResult) -> list[str]:
    return [name for name in _SIDE if name in result.quantities and name != result.quantity]


def _interval(estimate: stats.Estimate) -> str:
    half = 100 * estimate.relative_half_width
    width = f"+-{half:.2g} %" if math.isfinite(half) else "+-? %"
    confidence = f"{100 * estimate.confidence:g} %"
    return f"{seconds(estimate.value)} {width} ({confidence}, n={estimate.n}, n_eff={estimate.n_eff:.0f}"
