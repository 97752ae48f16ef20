# SPDX-License-Identifier: Apache-2.0
"""An exploration as one HTML page: data, styles and Plotly's JavaScript in one file that asks for no other."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from gpuscope.benchmarking.explore import units
from gpuscope.benchmarking.text import seconds as time_text
from gpuscope.errors import NotAvailable

if TYPE_CHECKING:
    from gpuscope.benchmarking.explore.operations import Operation
    from gpuscope.benchmarking.explore.result import Exploration, Point

_SIDES = {"cpu": "CPU", "gpu": "GPU", "gpu+transfers": "GPU with transfers"}


def check() -> None:
    """Finds what a page lacks before time is spent on measuring.

    Raises:
        NotAvailable: Plotly is not installed.
    """
    _plotly_version()


def render(found: Exploration) -> str:
    """The page's text.

    Raises:
        NotAvailable: Plotly is not installed.
    """
    version = _plotly_version()
    from plotly.offline import get_plotlyjs

    gpu = found.gpu or f"none: {found.why_no_gpu}"
    environment = {
        **found.environment,
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(found.started)),
        "measured for": time_text(found.seconds),
        "charts": f"Plotly {version}",
    }
    parts = {
        "title": escape(found.gpu or found.cpu),
        "css": _file("page.css"),
        "cpu": escape(found.cpu),
        "gpu": escape(gpu),
        "notices": _notices(found),
        "options": "".join(
            f'<option value="{escape(operation.name)}">{escape(operation.title)}</option>'
            for operation in found.operations
        ),
        "tables": "".join(_table(found, operation) for operation in found.operations),
        "environment": "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in environment.items()
        ),
        "data": _island(found),
        "plotly": get_plotlyjs(),
        "script": _file("page.js"),
    }
    # In one pass: what is put in is not looked at again, whatever it contains.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


def _plotly_version() -> str:
    try:
        import plotly
    except ImportError:
        raise NotAvailable("the page needs Plotly, which is not installed; pip install 'gpuscope[report]'") from None
    return str(plotly.__version__)


def _file(name: str) -> str:
    return resources.files("gpuscope.benchmarking.explore").joinpath(name).read_text(encoding="utf-8")


def _island(found: Exploration) -> str:
    """JSON that no text in it can end: what HTML looks for is written as escapes."""
    text = json.dumps(found.to_dict(), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _notices(found: Exploration) -> str:
    notices = []
    if found.gpu is None:
        notices.append(_notice(f"Only the CPU was measured: {found.why_no_gpu}.", ()))
    if found.interrupted:
        notices.append(_notice("The exploration was interrupted: only what was measured until then is shown.", ()))
    if found.warnings:
        notices.append(_notice("Warnings", found.warnings))
    if found.remarks:
        notices.append(_notice("Left out", found.remarks))
    return "".join(notices)


def _notice(title: str, items: Iterable[str]) -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<div class="notice" role="note">{escape(title)}{f"<ul>{rows}</ul>" if rows else ""}</div>'


def _table(found: Exploration, operation: Operation) -> str:
    sides = [side for side in _SIDES if found.gpu or side == "cpu"]
    heads = []
    for side in sides:
        heads += [_SIDES[side], "throughput", *(["speed-up"] if side != "cpu" else [])]
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
    interval = f"[{time_text(low)}, {time_text(high)}]" if math.isfinite(high - low) else "[unknown]"
    cells = [
        f"{time_text(point.wall.value)} <small>{interval}</small>",
        units.rate(point.rate, operation.unit),
    ]
    if side != "cpu":
        cells.append(units.times(point.speedup.value) if point.speedup is not None else "-")
    return "".join(f"<td>{cell}</td>" for cell in cells)
