# SPDX-License-Identifier: Apache-2.0
"""The result of an exploration, as text, JSON and one HTML page."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from gpuscope.benchmarking.crossovers import Answer
from gpuscope.benchmarking.explorer.backends import Operation
from gpuscope.page.chart import SCRIPTS as CHART_SCRIPTS
from gpuscope.page.chart import STYLES
from gpuscope.page.markup import facts_list, file_of_page, island, page_of
from gpuscope.paths import write_text
from gpuscope.results import Result, plain_fields
from gpuscope.stats import Estimate, Ratio
from gpuscope.tables import align_columns
from gpuscope.units import format_rate, format_seconds, format_times

Side = Literal["cpu", "gpu", "gpu+transfers"]

SCHEMA = 1

SIDES = {"cpu": "CPU", "gpu": "GPU", "gpu+transfers": "GPU with transfers"}
_HEADINGS = ("n", "CPU", "GPU", "speed-up", "GPU+transfers", "speed-up")


@dataclass(frozen=True)
class Point:
    """One operation at one size on one side.

    Attributes:
        operation: its name.
        n: rows and columns of the matrices.
        side: "cpu"; "gpu": data in GPU memory; "gpu+transfers": data in host memory before and after.
        wall: seconds from the call to its completion.
        rate: work per second of the estimate, in the unit of the operation.
        speedup: the CPU's time over this one, at the same size; None on the CPU.
        converged: whether the interval of `wall` is as narrow as requested.
    """

    operation: str
    n: int
    side: Side
    wall: Estimate
    rate: float
    speedup: Ratio | None
    converged: bool


@dataclass(frozen=True)
class OperationCrossover:
    """The size from which the GPU is faster than the CPU.

    Attributes:
        operation: the operation's name.
        transfers: whether moving the data counts.
        answer: the crossings of the two curves, with intervals.
    """

    operation: str
    transfers: bool
    answer: Answer

    @property
    def verdict(self) -> str:
        """The answer in words."""
        return f"{'with transfers' if self.transfers else 'data on the GPU'}: {self.answer}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"operation": self.operation, "transfers": self.transfers, **self.answer.to_dict()}


@dataclass(frozen=True, repr=False)
class Exploration(Result):
    """CPU against GPU over kinds of work and sizes.

    Attributes:
        operations: the measured operations, in order.
        points: one per operation, size and side, sorted.
        crossovers: per operation, with the data on the GPU and with transfers; empty without a GPU.
        dtype: number type of the matrices.
        cpu: processor and library of the CPU side.
        gpu: processor and library of the GPU side; None without a GPU.
        why_no_gpu: why there is none; empty with a GPU.
        remarks: the excluded points, and why.
        warnings: reasons for less certain figures.
        environment: machine and versions.
        started: seconds since the epoch.
        seconds: duration.
        interrupted: whether it was stopped before all points were measured.
    """

    operations: tuple[Operation, ...]
    points: tuple[Point, ...]
    crossovers: tuple[OperationCrossover, ...]
    dtype: str
    cpu: str
    gpu: str | None
    why_no_gpu: str
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    environment: dict[str, str]
    started: float
    seconds: float
    interrupted: bool

    def curve(self, operation: str, side: Side) -> tuple[Point, ...]:
        """The points of one operation on one side, by size."""
        return tuple(point for point in self.points if (point.operation, point.side) == (operation, side))

    def table(self) -> str:
        """Text: per operation the sizes with times and speed-ups, then the crossover."""
        lines = [f"CPU  {self.cpu}", f"GPU  {self.gpu or f'none: {self.why_no_gpu}'}", ""]
        for operation in self.operations:
            lines += [*_block(self, operation), ""]
        if self.interrupted:
            lines.append("interrupted: only what was measured until then is shown")
        lines += [f"left out: {remark}" for remark in self.remarks]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines).rstrip("\n") + "\n"

    def to_html(self) -> str:
        """One self-contained page: data, styles and scripts."""
        return _page(self)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the page of `to_html`.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        write_text(path, self.to_html())

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: times in seconds, None if not known."""
        return {
            "schema": SCHEMA,
            "kind": "gpuscope exploration",
            **plain_fields(self),
            "operations": [{key: getattr(each, key) for key in ("name", "title", "unit")} for each in self.operations],
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per point; times in seconds, rates in the unit of the operation."""
        return [plain_fields(point) for point in self.points]

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        sizes = sorted({point.n for point in self.points})
        of_sizes = f", n from {sizes[0]} to {sizes[-1]}" if sizes else ""
        kinds = ", ".join(operation.name for operation in self.operations)
        return f"<Exploration: {kinds}: {len(self.points)} points{of_sizes}>"


def _block(found: Exploration, operation: Operation) -> list[str]:
    columns = len(_HEADINGS) if found.gpu else 2
    title = f"{operation.title} ({operation.name}), n x n {found.dtype}"
    by_size: dict[int, dict[str, Point]] = {}
    for point in found.points:
        if point.operation == operation.name:
            by_size.setdefault(point.n, {})[point.side] = point
    if not by_size:
        return [title, "  nothing was measured"]
    rows = [_HEADINGS[:columns]]
    for n, sides in sorted(by_size.items()):
        cpu, gpu, moved = (sides.get(side) for side in ("cpu", "gpu", "gpu+transfers"))
        cells = (f"{n:,}", _time(cpu), _time(gpu), _speedup(gpu), _time(moved), _speedup(moved))
        rows.append(cells[:columns])
    verdicts = [f"  {crossover.verdict}" for crossover in found.crossovers if crossover.operation == operation.name]
    return [title, *align_columns(rows, rule=True), *verdicts]


def _time(point: Point | None) -> str:
    """The time and the half width of its interval."""
    if point is None:
        return "-"
    width = point.wall.relative_half_width
    return f"{format_seconds(point.wall.value, 4)} +-{f'{width:.1%}' if math.isfinite(width) else '?'}"


def _speedup(point: Point | None) -> str:
    return format_times(point.speedup.value) if point is not None and point.speedup is not None else "-"


SCRIPTS = (*CHART_SCRIPTS[:-1], "explorer.js")
"""The modules of the page, each after those that it imports from."""


def _page(found: Exploration) -> str:
    gpu = found.gpu or f"none: {found.why_no_gpu}"
    environment = {
        **found.environment,
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(found.started)),
        "measured for": format_seconds(found.seconds, 4),
    }
    parts = {
        "title": f"CPU against GPU: {escape(found.gpu or found.cpu)}",
        "cpu": escape(found.cpu),
        "gpu": escape(gpu),
        "notices": _notices(found),
        "warnings": _notice("Warnings", found.warnings) if found.warnings else "",
        "options": "".join(
            f'<option value="{escape(operation.name)}">{escape(operation.title)}</option>'
            for operation in found.operations
        ),
        "figure": file_of_page("figure.html"),
        "tables": "".join(_table(found, operation) for operation in found.operations),
        "environment": facts_list(environment),
        "data": island(found.to_dict()),
    }
    return page_of("explorer.html", parts, styles=STYLES, scripts=SCRIPTS, data_id="exploration", package=__package__)


def _notices(found: Exploration) -> str:
    notices = []
    if found.gpu is None:
        notices.append(_notice(f"Only the CPU was measured: {found.why_no_gpu}.", ()))
    if found.interrupted:
        notices.append(_notice("The exploration was interrupted: only what was measured until then is shown.", ()))
    if found.remarks:
        notices.append(_notice("Left out", found.remarks))
    return "".join(notices)


def _notice(title: str, items: Iterable[str]) -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<div class="notice" role="note">{escape(title)}{f"<ul>{rows}</ul>" if rows else ""}</div>'


def _table(found: Exploration, operation: Operation) -> str:
    sides = [side for side in SIDES if found.gpu or side == "cpu"]
    heads = []
    for side in sides:
        heads += [SIDES[side], "throughput", *(["speed-up"] if side != "cpu" else [])]
    points: dict[tuple[int, str], Point] = {
        (point.n, point.side): point for point in found.points if point.operation == operation.name
    }
    rows = []
    for n in sorted({n for n, _ in points}):
        cells = "".join(_cells(points.get((n, side)), side, operation) for side in sides)
        rows.append(f'<tr><th scope="row">{n:,}</th>{cells}</tr>')
    verdicts = "".join(
        f"<p>{escape(crossover.verdict)}</p>" for crossover in found.crossovers if crossover.operation == operation.name
    )
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in ("n", *heads))
    caption = escape(f"{operation.title}, n by n {found.dtype}")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{verdicts}</div>"
    )


def _cells(point: Point | None, side: str, operation: Operation) -> str:
    if point is None:
        return "<td>-</td>" * (2 if side == "cpu" else 3)
    low, high = point.wall.low, point.wall.high
    interval = f"[{format_seconds(low, 4)}, {format_seconds(high, 4)}]" if math.isfinite(high - low) else "[unknown]"
    cells = [
        f"{format_seconds(point.wall.value, 4)} <small>{interval}</small>",
        format_rate(point.rate, operation.unit),
    ]
    if side != "cpu":
        cells.append(format_times(point.speedup.value) if point.speedup is not None else "-")
    return "".join(f"<td>{cell}</td>" for cell in cells)
