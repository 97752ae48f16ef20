# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks as text on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.cli.console import Console

if TYPE_CHECKING:
    from gpuscope.benchmarking.comparison import Comparison
    from gpuscope.benchmarking.result import BenchmarkResult


def report(result: BenchmarkResult | Comparison) -> str:
    """Everything that a reader should know, in lines."""
    from gpuscope.benchmarking.result import BenchmarkResult

    return result.report() if isinstance(result, BenchmarkResult) else _comparison(result)


def show(report: str, out: Console) -> None:
    """A report line by line: the first of a paragraph stands out, and so do warnings."""
    first = True
    for line in report.splitlines():
        text = line.lstrip()
        style = "yellow" if text.startswith("warning:") else "dim" if text.startswith("--") else "bold" if first else ""
        out.line((line, style))
        first = not text


def _comparison(result: Comparison) -> str:
    """The verdict, the time of each, and the warnings."""
    from gpuscope import stats
    from gpuscope.benchmarking.sweeps.points import spread_text
    from gpuscope.benchmarking.text import seconds as time_text

    lines = [str(result)]
    width = max(map(len, result.names))
    for name, samples in zip(result.names, (result.a, result.b), strict=True):
        time = stats.estimate(samples)
        lines.append(
            f"  {name:<{width}}  {result.quantity} {time_text(time.value)} {spread_text(time)}, {time.n} samples"
        )
    for name, kernels in zip(result.names, result.kernels, strict=False):
        lines += [f"    {time_text(k.seconds):>9}  {k.count:6g} x  {k.name}  ({name})" for k in kernels]
    if result.stopped == "interrupted":
        lines.append("  warning: interrupted before the verdict was settled")
    return "\n".join([*lines, *(f"  warning: {warning}" for warning in result.warnings)])
