# SPDX-License-Identifier: Apache-2.0
"""From which size on the GPU is faster than the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np

from gpuscope.benchmarking.sweeps.crossings import Answer, answer, size_text
from gpuscope.benchmarking.sweeps.points import Series, SweepPoint, spread_text
from gpuscope.benchmarking.sweeps.rounds import Rounds
from gpuscope.benchmarking.sweeps.sweep import checked_axes, prepared
from gpuscope.benchmarking.text import seconds as time_text
from gpuscope.errors import InvalidArgument
from gpuscope.results import json_text

SCHEMA = 1
FOR_THE_GRID = 0.6  # of the budget; the rest refines
REFINEMENTS = 8  # most sizes added for one answer
CLOSE_ENOUGH = 1.05  # ratio of the sizes around a crossing below which nothing is added

_TITLES = {"cpu": "CPU", "gpu": "GPU", "transfers": "GPU with transfers"}


@dataclass(frozen=True, eq=False)
class Crossover:
    """Which is faster at which size. ``str(crossover)`` gives the answers in words, then the figures.

    Attributes:
        axis: name of the size.
        without_transfers: the answer for the computation alone.
        with_transfers: the answer for copying in, computing and copying out; None when it was not asked for.
        curves: "cpu", "gpu" and, if asked for, "transfers": the points by ascending size, of wall time.
        stopped: "target", "budget", "interrupted" or "failed".
        warnings: what a reader should know, a sentence each.
    """

    axis: str
    without_transfers: Answer
    with_transfers: Answer | None
    curves: Mapping[str, tuple[SweepPoint, ...]]
    stopped: str
    warnings: tuple[str, ...]

    @property
    def value(self) -> float | None:
        """The size of the only crossing, without transfers; None when there is none, or are several."""
        found = self.without_transfers.crossings
        return found[0].value if len(found) == 1 else None

    def __str__(self) -> str:
        lines = [f"{self.axis}, computation alone: {self.without_transfers}"]
        if self.with_transfers is not None:
            lines.append(f"{self.axis}, with transfers: {self.with_transfers}")
        return "\n".join([*lines, self.table(), *self.warnings])

    def table(self) -> str:
        """One line a size: the time of each, and how much faster than the CPU the GPU is."""
        cells = {key: {p.parameters[self.axis]: p for p in points} for key, points in self.curves.items()}
        rows = [[self.axis, *(_TITLES[key] for key in cells), *(f"CPU / {_TITLES[key]}" for key in list(cells)[1:])]]
        for size, base in cells["cpu"].items():
            row = [size_text(float(cast(float, size)))]
            points = [column[size] for column in cells.values()]
            row += [f"{time_text(p.estimate.value)} {spread_text(p.estimate)}" if p.estimate else "-" for p in points]
            for point in points[1:]:
                both = base.estimate and point.estimate
                row.append(f"{base.estimate.value / point.estimate.value:.3g}x" if both else "-")  # type: ignore[union-attr]
            rows.append(row)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""
        return {
            "schema": SCHEMA,
            "axis": self.axis,
            "without_transfers": self.without_transfers.to_dict(),
            "with_transfers": self.with_transfers.to_dict() if self.with_transfers else None,
            "curves": {key: [point.to_dict() for point in points] for key, points in self.curves.items()},
            "stopped": self.stopped,
            "warnings": list(self.warnings),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The text of ``to_dict``; also written to `path` when one is given."""
        return json_text(self.to_dict(), path)

    def plot(self) -> Any:
        """A Plotly figure: time over size on logarithmic axes, with intervals and the crossings.

        Raises:
            NotAvailable: Plotly is not installed.
        """
        from gpuscope.benchmarking.sweeps.crossover_chart import figure

        return figure(self.axis, self.curves, _TITLES, self.without_transfers, self.with_transfers)


def crossover(
    cpu_fn: Callable[..., Any],
    gpu_fn: Callable[..., Any],
    *,
    transfers: Callable[..., Any] | None = None,
    cold: bool = False,
    target: float = 0.02,
    budget: float = 10.0,
    stream: object = None,
    device: int | None = None,
    progress: Callable[[str], object] | None = None,
    **axis: Iterable[float],
) -> Crossover:
    """Finds the size from which on the GPU is faster: ``crossover(on_cpu, on_gpu, n=[64, 256, 1024, 4096])``.

    The functions are factories as in ``sweep``: ``on_gpu(n=64)`` makes the inputs, on the GPU, and returns the callable
    to time. What is compared is wall time, from the call to the completion of its work, as a caller waits for it.
    The sizes given are measured in rounds of random order; then further sizes are measured where the curves cross,
    each in the (geometric) middle of what is left, whole numbers when all sizes are. Ctrl-C keeps what there is.

    Args:
        cpu_fn: factory of the computation on the CPU.
        gpu_fn: factory of the computation on the GPU, inputs and outputs staying there.
        transfers: factory of a callable that copies in, computes and copies out.
        cold: whether the GPU's L2 cache is flushed before each call; a CPU's caches never are.
        target: half of the 95 % interval over the value at which a point is done.
        budget: seconds for everything.
        stream: where the functions put their work, in any form that ``streams.resolve`` knows.
        device: ordinal of the GPU.
        progress: called with one line after each visit of a point.
        axis: the sizes, at least two.

    Raises:
        InvalidArgument: there is not exactly one axis, its values are not at least two different numbers above 0, or
            another argument is out of range.
    """
    name, sizes = _checked_sizes(axis)
    makers = {"cpu": cpu_fn, "gpu": gpu_fn} | ({"transfers": transfers} if transfers else {})
    search = _Search(name, makers, Rounds(target, cold=cold, stream=stream, device=device, progress=progress))
    stopped = search.measure(sizes, budget, FOR_THE_GRID * budget)
    curves = search.curves(target)
    return Crossover(
        axis=name,
        without_transfers=search.answer("gpu"),
        with_transfers=search.answer("transfers") if transfers else None,
        curves=curves,
        stopped=stopped,
        warnings=tuple(_remarks(curves)),
    )


class _Search:
    """The series of each curve and size, and where to measure next."""

    def __init__(self, axis: str, makers: Mapping[str, Callable[..., Any]], rounds: Rounds) -> None:
        self.axis = axis
        self.makers = makers
        self.rounds = rounds
        self.series: dict[str, dict[float, Series]] = {key: {} for key in makers}

    def measure(self, sizes: Sequence[float], budget: float, for_the_grid: float) -> str:
        """The sizes given, then those that narrow a crossing down; returns why it stopped."""
        started = perf_counter()
        stopped = self.rounds.run([each for size in sizes for each in self.add(size)], for_the_grid)
        whole = all(isinstance(size, Integral) for size in sizes)
        for _ in range(REFINEMENTS):
            left = budget - (perf_counter() - started)
            sizes = self.between(whole) if left > 0 and stopped in ("target", "budget") else []
            if not sizes:
                break
            stopped = self.rounds.run([each for size in sizes for each in self.add(size)], left / 2)
        return stopped

    def add(self, size: float) -> list[Series]:
        """One size, on each curve."""
        added = []
        for key, maker in self.makers.items():
            parameters = {self.axis: size}
            self.series[key][size] = Series(
                parameters, partial(prepared, maker, parameters), "wall", f"{_TITLES[key]}, "
            )
            added.append(self.series[key][size])
        return added

    def between(self, whole: bool) -> list[float]:
        """The middles of the crossings' surroundings that are not narrow yet."""
        found: dict[float, None] = {}
        for key in list(self.makers)[1:]:
            for crossing in self.answer(key).crossings:
                known = sorted(self.series[key])
                below = max(size for size in known if size <= crossing.value)
                above = min((size for size in known if size > crossing.value), default=below)
                middle = float(np.sqrt(below * above))
                size: float = round(middle) if whole else middle
                if above / below > CLOSE_ENOUGH and below < size < above:
                    found[size] = None
        return list(found)

    def answer(self, key: str) -> Answer:
        """Of one curve against the CPU's, where both were measured."""
        cpu, gpu = self.series["cpu"], self.series[key]
        both = [size for size in sorted(cpu) if len(cpu[size].samples) and len(gpu[size].samples)]
        return answer(both, [cpu[size].samples for size in both], [gpu[size].samples for size in both])

    def curves(self, target: float) -> dict[str, tuple[SweepPoint, ...]]:
        """The results by ascending size."""
        why = "not measured: interrupted"
        return {key: tuple(sizes[n].point(target, why) for n in sorted(sizes)) for key, sizes in self.series.items()}


def _checked_sizes(axis: Mapping[str, Iterable[float]]) -> tuple[str, list[float]]:
    if len(axis) != 1:
        given = ", ".join(axis) or "none"
        raise InvalidArgument(f"axis is {given}; accepted is exactly one, as n=[64, 256, 1024]")
    ((name, values),) = checked_axes(axis).items()
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
            raise InvalidArgument(f"{name} has {value!r}; accepted are numbers above 0")
    sizes = sorted({cast(float, value) for value in values})
    if len(sizes) < 2:
        raise InvalidArgument(f"{name} has one size, {sizes[0]}; accepted are at least two")
    return name, sizes


def _remarks(curves: Mapping[str, tuple[SweepPoint, ...]]) -> list[str]:
    found = []
    for key, points in curves.items():
        found += [f"{_TITLES[key]}, {p.name}: {p.error}" for p in points if p.error]
        for text in dict.fromkeys(text for p in points for text in p.warnings):
            found.append(f"{_TITLES[key]}, {'; '.join(p.name for p in points if text in p.warnings)}: {text}")
    return found
