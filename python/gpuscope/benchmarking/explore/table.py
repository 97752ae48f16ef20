# SPDX-License-Identifier: Apache-2.0
"""An exploration as text for a terminal of 80 columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuscope.benchmarking.explore import units
from gpuscope.benchmarking.text import seconds as time_text

if TYPE_CHECKING:
    from gpuscope.benchmarking.explore.operations import Operation
    from gpuscope.benchmarking.explore.result import Exploration, Point

_HEADINGS = ("n", "CPU", "GPU", "speed-up", "GPU+transfers", "speed-up")
_WIDTHS = (6, 16, 16, 8, 16, 8)


def render(found: Exploration) -> str:
    """A block for each operation, then remarks and warnings."""
    lines = [f"CPU  {found.cpu}", f"GPU  {found.gpu or f'none: {found.why_no_gpu}'}", ""]
    for operation in found.operations:
        lines += [*_block(found, operation), ""]
    if found.interrupted:
        lines.append("interrupted: only what was measured until then is shown")
    lines += [f"left out: {remark}" for remark in found.remarks]
    lines += [f"warning: {warning}" for warning in found.warnings]
    return "\n".join(lines).rstrip("\n") + "\n"


def _block(found: Exploration, operation: Operation) -> list[str]:
    columns = len(_HEADINGS) if found.gpu else 2
    title = f"{operation.title} ({operation.name}), n x n {found.dtype}"
    by_size: dict[int, dict[str, Point]] = {}
    for point in found.points:
        if point.operation == operation.name:
            by_size.setdefault(point.n, {})[point.side] = point
    if not by_size:
        return [title, "  nothing was measured"]
    rule = "  ".join("-" * width for width in _WIDTHS[:columns])
    rows = [rule, _row(_HEADINGS[:columns]), rule]
    for n, sides in sorted(by_size.items()):
        cpu, gpu, moved = (sides.get(side) for side in ("cpu", "gpu", "gpu+transfers"))
        cells = (f"{n:,}", _time(cpu), _time(gpu), _speedup(gpu), _time(moved), _speedup(moved))
        rows.append(_row(cells[:columns]))
    verdicts = [f"  {crossover.verdict}" for crossover in found.crossovers if crossover.operation == operation.name]
    return [title, *rows, *verdicts]


def _row(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=False))


def _time(point: Point | None) -> str:
    """The time and how far the true one may lie from it."""
    if point is None:
        return "-"
    width = point.wall.relative_half_width
    return f"{time_text(point.wall.value)} +-{f'{width:.1%}' if math.isfinite(width) else '?'}"


def _speedup(point: Point | None) -> str:
    return units.times(point.speedup.value) if point is not None and point.speedup is not None else "-"
