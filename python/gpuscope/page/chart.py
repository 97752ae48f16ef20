# SPDX-License-Identifier: Apache-2.0
"""Figures of results as an interactive page: lines with intervals, points and marks, on axes robust to outliers."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from gpuscope.page.markup import facts_list, file_of_page, island, page_of, shown, table
from gpuscope.paths import check_writable, write_text
from gpuscope.text import one_line
from gpuscope.units import format_digits, format_rate, format_seconds, format_times

SCRIPTS = ("units.js", "theme.js", "axis.js", "pen.js", "keys.js", "series.js", "chart_page.js", "chart.js")
"""The modules of the page, each after those that it imports from."""

STYLES = ("parts.css", "chart.css")

Kind = Literal["time", "times", "rate", "count"]
"""The kind of numbers: seconds, ratios, work a second, or plain."""

Notices = Mapping[str, Sequence[str]]
"""Sentences for the reader, and the items of the list below each."""

_MOST_ROWS = 500  # of a table; the chart has them all
_NUMBER_OF_DIGITS = 7  # that a page keeps of a value


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        title: in words.
        kind: kind of its numbers.
        unit: of the work, for "rate".
        log: whether it begins logarithmic; the reader may change it.
        ticks: the only values to mark if it is logarithmic; None marks round ones.
        shown: the range at the beginning; None fits the lines without their intervals.
    """

    title: str
    kind: Kind = "count"
    unit: str = ""
    log: bool = False
    ticks: Sequence[float] | None = None
    shown: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """Values over x.

    Attributes:
        name: its name.
        x: positions.
        y: a value for each.
        slot: its color of the palette's twelve.
        symbol: "circle", "square", "diamond" or "cross", besides the color.
        dash: "solid", "dash" or "dot".
        joined: a line with intervals; otherwise only points.
        low: begin of each interval; infinite if unknown; None without intervals.
        high: end of each interval.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    slot: int
    symbol: str = "circle"
    dash: str = "solid"
    joined: bool = True
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Mark:
    """A line across the figure, and its interval as a band."""

    axis: Literal["x", "y"]
    value: float
    low: float
    high: float
    label: str
    slot: int


@dataclass(frozen=True)
class View:
    """One figure.

    Attributes:
        name: its name in the list of figures.
        x: the horizontal axis.
        y: the vertical axis.
        lines: curves and points.
        marks: lines across the figure.
        text: its message, a sentence.
        bars: whether to show a histogram of the values.
    """

    name: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    text: str = ""
    bars: bool = False


class Chart:
    """Figures of a result, as a page that needs nothing but a browser; a notebook shows it.

    Args:
        title: of the page.
        views: the figures; the reader chooses one.
        facts: names and values, above the figure.
        above: notices between the facts and the figure, each with the items of its list.
        below: notices below the figure.
        environment: machine and versions, at the end.
    """

    def __init__(
        self,
        title: str,
        views: Sequence[View],
        facts: Mapping[str, str] | None = None,
        *,
        above: Notices | None = None,
        below: Notices | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.title = title
        self.views = tuple(views)
        self._facts = facts or {}
        self._above, self._below = above or {}, below or {}
        self._environment = environment or {}

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values; unknown values are None."""
        return {"views": [_plain(view) for view in self.views]}

    def to_html(self) -> str:
        """The page."""
        options = "".join(f"<option>{shown(view.name)}</option>" for view in self.views)
        parts = {
            "title": shown(self.title[:300]),
            "facts": _facts(self._facts),
            "above": _notices(self._above),
            "views": f'<label>Quantity <select id="view">{options}</select></label>\n' if len(self.views) > 1 else "",
            "figure": file_of_page("figure.html"),
            "below": _notices(self._below),
            "tables": "".join(map(_table, self.views)),
            "environment": _facts(self._environment, "<h2>Environment</h2>"),
            "data": island(self.to_dict()),
        }
        return page_of("chart.html", parts, styles=STYLES, scripts=SCRIPTS)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the page.

        Raises:
            InvalidArgument: the path has another suffix than .html.
            GpuscopeError: the file cannot be written.
        """
        write_text(check_writable(path, (".html", ".htm")), self.to_html())

    def show(self) -> None:
        """Opens the page in the browser, from a temporary file that is not removed."""
        import webbrowser

        descriptor, path = tempfile.mkstemp(prefix="gpuscope-chart-", suffix=".html")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(self.to_html())
        webbrowser.open(Path(path).as_uri())

    def _repr_html_(self) -> str:
        """The page in a frame that may only run scripts."""
        frame = 'sandbox="allow-scripts" style="width:100%;height:640px;border:0"'
        return f'<iframe title="{shown(self.title)}" {frame} srcdoc="{escape(self.to_html())}"></iframe>'

    def __repr__(self) -> str:
        names = ", ".join(view.name for view in self.views)
        return one_line(f"<Chart of {self.title}: {names}; write_html(path), show()>")


def number_text(kind: Kind, value: float, unit: str = "") -> str:
    """A value of a kind in words."""
    if not math.isfinite(value):
        return "unknown"
    if kind == "time":
        return format_seconds(value, 4)
    if kind == "times":
        return format_times(value)
    if kind == "rate":
        return format_rate(value, unit)
    return f"{value:,.0f}" if value == round(value) else format_digits(value)


def _plain(view: View) -> dict[str, Any]:
    axes = {name: {**vars(axis), "title": one_line(axis.title)} for name, axis in (("x", view.x), ("y", view.y))}
    lines = [
        {**vars(line), "name": one_line(line.name)}
        | {name: _numbers(getattr(line, name)) for name in ("x", "y", "low", "high")}
        for line in view.lines
    ]
    marks = [{**vars(mark), "low": _number(mark.low), "high": _number(mark.high)} for mark in view.marks]
    texts = {"name": one_line(view.name), "text": one_line(view.text)}
    return {**texts, **axes, "lines": lines, "marks": marks, "bars": view.bars}


def _numbers(values: Sequence[float] | None) -> list[float | None] | None:
    return None if values is None else [_number(value) for value in values]


def _number(value: float) -> float | None:
    return float(f"{value:.{_NUMBER_OF_DIGITS}g}") if math.isfinite(value) else None


def _facts(facts: Mapping[str, str], heading: str = "") -> str:
    found = facts_list(facts)
    return f'{heading}<dl class="facts">{found}</dl>' if found else ""


def _notices(notices: Notices) -> str:
    made = []
    for text, items in notices.items():
        rows = "".join(f"<li>{shown(item)}</li>" for item in items)
        made.append(f'<div class="notice" role="note">{shown(text)}{f"<ul>{rows}</ul>" if rows else ""}</div>')
    return "\n".join(made)


def _table(view: View) -> str:
    """A row for each x with the values of all lines, then the message."""
    header, places = [view.x.title], []
    for line in view.lines:
        header += [line.name, "95 % interval"] if line.low is not None else [line.name]
        places.append({x: place for place, x in enumerate(line.x)})
    every = sorted({x for line in view.lines for x in line.x})
    rows = []
    for x in every[:_MOST_ROWS]:
        cells = [number_text(view.x.kind, x, view.x.unit)]
        for line, at in zip(view.lines, places, strict=True):
            cells += _cells(view.y, line, at.get(x))
        rows.append(list(map(shown, cells)))
    more = f", the first {_MOST_ROWS:,} of {len(every):,}" if len(every) > _MOST_ROWS else ""
    text = f"<p>{shown(view.text)}</p>" if view.text else ""
    return table(header, rows, caption=f"{view.name or view.y.title}{more}") + text


def _cells(axis: Axis, line: Line, place: int | None) -> list[str]:
    """A value and, if the line has intervals, its interval."""
    if place is None:
        return ["-"] if line.low is None else ["-", "-"]
    cells = [number_text(axis.kind, line.y[place], axis.unit)]
    if line.low is not None and line.high is not None:
        ends = (line.low[place], line.high[place])
        known = all(map(math.isfinite, ends))
        cells.append(" to ".join(number_text(axis.kind, end, axis.unit) for end in ends) if known else "unknown")
    return cells
