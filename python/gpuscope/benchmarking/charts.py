# SPDX-License-Identifier: Apache-2.0
"""Charts of sweeps and comparisons: times over the values of an axis, and the calls of two functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gpuscope import stats
from gpuscope.arguments import as_float
from gpuscope.benchmarking.rounds import SweepPoint
from gpuscope.figures import Distribution
from gpuscope.page.chart import Axis, Line, Mark, View
from gpuscope.units import format_seconds

T = TypeVar("T")
Look = tuple[int, str, str]
"""Slot of the palette, symbol and dash of a line."""

_SLOTS = (7, 1, 11, 3, 9, 5, 0, 2, 4, 6, 8, 10)
"""Colors of the palette, in an order whose neighbours differ much."""
_SYMBOLS, _DASHES = ("circle", "square", "diamond", "cross"), ("solid", "dash", "dot")
_WIDE = 8.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
_SHOWN, _MARGIN = (0.01, 0.99), 0.25
_MOST_NAMED = 12


def view_of_points(axes: Mapping[str, Sequence[object]], points: Sequence[SweepPoint], text: str) -> View:
    """Times over the numeric axis with most values, one line per combination of the others.

    If no axis is numeric, the x values are the positions on the longest axis. Failed points are excluded.
    """
    numeric = {axis: values for axis, values in axes.items() if all(map(math.isfinite, map(as_float, values)))}
    across = max(numeric or axes, key=lambda axis: len(axes[axis]))
    texts = _distinct(_text(point, across) for point in points)

    def place(point: SweepPoint) -> float:
        return as_float(point.parameters[across]) if numeric else float(texts.index(_text(point, across)))

    groups: dict[str, list[tuple[float, stats.Estimate]]] = {}
    for point in points:
        if point.estimate is not None:
            others = ", ".join(f"{axis}={value}" for axis, value in point.plain_parameters.items() if axis != across)
            groups.setdefault(others or across, []).append((place(point), point.estimate))
    lines = []
    for number, (name, known) in enumerate(groups.items()):
        dash = _DASHES[number // len(_SLOTS) % len(_DASHES)]
        look = _SLOTS[number % len(_SLOTS)], _SYMBOLS[number % len(_SYMBOLS)], dash
        lines.append(curve(name, look, known, joined=bool(numeric)))
    quantities = _distinct(point.quantity for point in points if point.quantity)
    title = across if numeric else f"{across}: {_legend(texts)}"
    x = Axis(title, "count", log=bool(numeric) and _is_wide(size for line in lines for size in line.x))
    y = Axis(f"{' or '.join(quantities)} time".strip(), "time", log=_is_wide(time for line in lines for time in line.y))
    return View(f"time over {across}", x, y, tuple(lines), text=text)


def curve(
    name: str, look: Look, known: Iterable[tuple[float, stats.Estimate | stats.Ratio]], *, joined: bool = True
) -> Line:
    """Estimates over x with their intervals, by ascending x."""
    pairs = sorted(known, key=lambda pair: pair[0])
    value, low, high = ([getattr(each, part) for _, each in pairs] for part in ("value", "low", "high"))
    return Line(name, [x for x, _ in pairs], value, *look, joined=joined, low=low, high=high)


def view_of_calls(names: Sequence[str], times: Sequence[Distribution], quantity: str, text: str) -> View:
    """The times of functions in call order, their distributions, and a line for each centre.

    The initial range shows 98 % of each function's calls; outliers are marked at the edge, and counted.
    """
    lines, marks, ends = [], [], []
    for number, (name, each) in enumerate(zip(names, times, strict=True)):
        slot, symbol = _SLOTS[number % len(_SLOTS)], _SYMBOLS[number % len(_SYMBOLS)]
        lines.append(Line(name, list(range(len(each))), each.samples.tolist(), slot, symbol, joined=False))
        centre = stats.estimate(each.samples)
        label = f"{name} {format_seconds(centre.value, 4)}".replace(" us", " µs")
        marks.append(Mark("y", centre.value, centre.low, centre.high, label, slot))
        ends += [each.quantile(q) for q in _SHOWN]
    beside = _MARGIN * (max(ends) - min(ends)) or 0.01 * abs(max(ends))
    y = Axis(f"{quantity} time", "time", shown=(min(ends) - beside, max(ends) + beside))
    return View(quantity, Axis("call"), y, tuple(lines), tuple(marks), text=text, bars=True)


def _text(point: SweepPoint, axis: str) -> str:
    return str(point.plain_parameters[axis])


def _legend(texts: Sequence[str]) -> str:
    """As "0 float16, 1 float32"."""
    named = ", ".join(f"{place} {text}" for place, text in enumerate(texts[:_MOST_NAMED]))
    return named + (f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else "")


def _distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _is_wide(values: Iterable[float]) -> bool:
    known = list(values)
    return bool(known) and min(known) > 0 and max(known) >= _WIDE * min(known)
