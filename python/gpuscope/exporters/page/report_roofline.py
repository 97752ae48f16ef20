# SPDX-License-Identifier: Apache-2.0
"""The roofline of a report: kernels and regions against the GPU's peaks, as a drawing and a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from gpuscope.costs.roofline import BANDWIDTH, COUNTERS, Roofline, RooflinePoint
from gpuscope.page.markup import share_text, shown, table, time_text
from gpuscope.units import format_digits, format_rate

_ROWS = 20
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 760, 300, 70, 40, 14, 16
_SMALLEST, _LARGEST = 4.0, 11.0  # radii


def roofline_section(found: Roofline) -> str:
    """The table, and the drawing if a row has both bytes and operations."""
    points = [each for each in (*found.kernels, *found.regions) if each.bandwidth or each.compute]
    if not points:
        return ""
    known = ", ".join(
        f"{name} {format_rate(value, 'B' if name == BANDWIDTH else 'FLOP')}" for name, value in found.peaks.items()
    )
    notes = [f"Measured peaks of GPU {found.device} {found.gpu}: {known or 'not known'}."]
    notes += [f"No peak of {name}: {reason}." for name, reason in found.reasons.items()]
    notes += [f"Not known: {each}." for each in found.unseen]
    parts = [_drawing([each for each in points if each.intensity], found.peaks)]
    for title, group in (("Kernels", found.kernels), ("Regions", found.regions)):
        shown_points = [each for each in group if each.bandwidth or each.compute][:_ROWS]
        if shown_points:
            header = ("name", "time", "memory", "of peak", "computes", "of peak", "FLOP/B", "limit", "bytes by")
            cells = map(_cells, shown_points)
            parts.append(table(header, cells, caption=f"{title} against the peaks", numbers=range(1, 7)))
    return "".join(parts) + "".join(f'<p class="hint">{shown(note)}</p>' for note in notes)


def _cells(point: RooflinePoint) -> tuple[str, ...]:
    def share(value: float | None) -> str:
        return "-" if value is None else share_text(value)

    return (
        f"<code>{shown(point.name[-160:])}</code>",
        time_text(point.seconds * 1e9),
        "-" if point.bandwidth is None else format_rate(point.bandwidth, "B"),
        share(point.share_of_bandwidth),
        "-" if point.compute is None else format_rate(point.compute, "FLOP"),
        share(point.share_of_compute),
        "-" if point.intensity is None else format_digits(point.intensity),
        shown(point.limit or "-"),
        shown(point.bandwidth_from or "-"),
    )


def _drawing(points: Sequence[RooflinePoint], peaks: dict[str, float]) -> str:
    if not points:
        return ""
    xs = [each.intensity or 1.0 for each in points]
    ys = [each.compute or 1.0 for each in points]
    roofs = {name: value for name, value in peaks.items() if name != BANDWIDTH}
    bandwidth = peaks.get(BANDWIDTH)
    left, right = math.floor(math.log10(min(xs)) - 0.3), math.ceil(math.log10(max(xs)) + 0.3)
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max([*ys, *roofs.values()])) + 0.1)

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log10(value) - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP)

    parts = [*_grid(left, right, low, high, x, y)]
    for name, value in roofs.items():
        knee = value / bandwidth if bandwidth else 10.0**left
        start = max(knee, 10.0**left)
        if start < 10.0**right:
            parts.append(_roof(x(start), x(10.0**right), y(value), y(value)))
            parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{y(value) - 4:.1f}" text-anchor="end">{shown(name)}</text>')
    if bandwidth:
        ends = (max(10.0**left, 10.0**low / bandwidth), min(10.0**right, 10.0**high / bandwidth))
        parts.append(_roof(x(ends[0]), x(ends[1]), y(ends[0] * bandwidth), y(ends[1] * bandwidth)))
    longest = max(each.seconds for each in points)
    for point in points[: 2 * _ROWS]:
        radius = max(_SMALLEST, _LARGEST * math.sqrt(point.seconds / longest))
        at = x(point.intensity or 1.0), y(point.compute or 1.0)
        look = f"{point.kind} {'measured' if point.bandwidth_from == COUNTERS else 'estimated'}"
        words = f"{point.name}: {time_text(point.seconds * 1e9)}, {format_rate(point.compute or 0.0, 'FLOP')}"
        shape = (
            f'<circle class="{look}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}">'
            if point.kind == "kernel"
            else f'<rect class="{look}" x="{at[0] - radius:.1f}" y="{at[1] - radius:.1f}" '
            f'width="{2 * radius:.1f}" height="{2 * radius:.1f}">'
        )
        parts.append(f"{shape}<title>{shown(words)}</title></{'circle' if point.kind == 'kernel' else 'rect'}>")
    return (
        f'<figure class="roofline"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Operations a second over operations a byte">{"".join(parts)}</svg>'
        "<figcaption>Operations a second over operations a byte, both logarithmic. Circles are kernels, squares "
        "regions; filled where counters measured the bytes, hollow where they are the least by shapes.</figcaption>"
        "</figure>"
    )


def _roof(x0: float, x1: float, y0: float, y1: float) -> str:
    return f'<line class="roof" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y0:.1f}" y2="{y1:.1f}"/>'


Place = Callable[[float], float]


def _grid(left: int, right: int, low: int, high: int, x: Place, y: Place) -> Iterator[str]:
    for power in range(left, right + 1):
        at = x(10.0**power)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(low, high + 1):
        at = y(10.0**power)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        rate = format_rate(10.0**power, "F").removesuffix("F/s") + "F/s"
        yield f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{rate}</text>'
    yield f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">FLOP a byte</text>'
