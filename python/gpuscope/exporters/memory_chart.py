# SPDX-License-Identifier: Apache-2.0
"""A page with the memory in use over time, drawn as SVG: it needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

WIDTH, HEIGHT = 1100, 420
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 20, 50
POINTS = 2000  # more cannot be told apart on a screen

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Memory of {device}</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }}
svg {{ width: 100%; max-width: {width}px; height: auto }}
text {{ font-size: 12px; fill: #555 }}
.grid {{ stroke: #ddd }} .used {{ fill: none; stroke: #222 }}
.key {{ display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin: 0 .35rem 0 1rem }}
.reserved {{ fill: none; stroke: #cc6677; stroke-dasharray: 5 4 }}
</style></head><body>
<h1>Memory of {device}</h1>
<p>Most in use: <b>{most}</b>{reserved_note}. {count:,} allocations and releases over {span}.</p>
<svg viewBox="0 0 {width} {height}" role="img" aria-label="memory in use over time">
{grid}
{categories}
<path class="used" d="{used}"/>
{reserved}
</svg>
<p>{keys}</p>
<p>Black: in use. {legend}The time counts from the first allocation recorded.</p>
</body></html>
"""


# As near to those of torch's own chart as they can be told apart.
COLORS = ("#2e8b57", "#daa520", "#5c7080", "#9370db", "#e05252", "#4169e1", "#5fa8ff", "#c4cbd2")


def memory_page(device: str, times_ns: Array, in_use: Array, reserved: Array, by_category: Mapping[str, Array]) -> str:
    """HTML with one inline SVG; at most ``POINTS`` points, each the most of its stretch of time.

    Args:
        device: its name.
        times_ns: of each change, ascending.
        in_use: bytes behind each change.
        reserved: bytes held by the allocator; all 0 where it does not say.
        by_category: parts of `in_use`, at most as many as there are colors.
    """
    elapsed = (times_ns - times_ns[0]) / 1e6
    span = max(float(elapsed[-1]), 1e-6)
    has_reserved = bool(reserved.any())
    top = max(1, int(in_use.max()), int(reserved.max()) if has_reserved else 0)
    kept = _most_of_each_stretch(elapsed, in_use)

    def x(time_ms: Array) -> Array:
        return np.asarray(LEFT + time_ms / span * (WIDTH - LEFT - RIGHT))

    def y(size: Array) -> Array:
        return np.asarray(HEIGHT - BOTTOM - np.maximum(size, 0) / top * (HEIGHT - TOP - BOTTOM))

    floor = HEIGHT - BOTTOM
    parts, keys, below = [], [], np.zeros(len(kept), dtype=np.int64)
    for color, (name, sizes) in zip(COLORS, by_category.items(), strict=False):
        if not sizes.any():
            continue
        above = below + np.maximum(sizes[kept], 0)
        parts.append(f'<path fill="{color}" d="{_area(x(elapsed[kept]), y(below), y(above))}"/>')
        keys.append(f'<span class="key" style="background: {color}"></span>{escape(name.replace("_", " ").lower())}')
        below = above
    used = _steps(x(elapsed[kept]), y(in_use[kept]))
    line = f'<path class="reserved" d="{_steps(x(elapsed[kept]), y(reserved[kept]))}"/>' if has_reserved else ""
    return _PAGE.format(
        device=escape(device),
        width=WIDTH,
        height=HEIGHT,
        most=_size(int(in_use.max())),
        reserved_note=f"; held by the allocator: <b>{_size(int(reserved.max()))}</b>" if has_reserved else "",
        legend="Dashed red: held by the allocator. " if has_reserved else "",
        count=len(times_ns),
        span=f"{span:,.3f} ms",
        grid=_grid(span, top),
        used=f"{used} L {WIDTH - RIGHT:.1f} {floor} L {LEFT} {floor} Z",
        categories="\n".join(parts),
        keys="".join(keys),
        reserved=line,
    )


def _most_of_each_stretch(elapsed: Array, sizes: Array) -> Array:
    if len(elapsed) <= POINTS:
        return np.arange(len(elapsed))
    stretch = np.minimum((elapsed / max(float(elapsed[-1]), 1e-9) * POINTS).astype(np.int64), POINTS - 1)
    order = np.lexsort((sizes, stretch))
    last = np.flatnonzero(np.diff(stretch[order], append=POINTS))
    return np.asarray(order[last])


def _steps(x: Array, y: Array) -> str:
    """Each size holds until the next."""
    parts = [f"M {x[0]:.1f} {y[0]:.1f}"]
    parts += [f"H {at:.1f} V {to:.1f}" for at, to in zip(x[1:].tolist(), y[1:].tolist(), strict=True)]
    return " ".join(parts)


def _area(x: Array, low: Array, high: Array) -> str:
    """What lies between two rows of steps; parts without height are left out."""
    edges = np.append(x, WIDTH - RIGHT)
    parts = []
    first = 0
    ends = np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1
    for end in [*ends.tolist(), len(low)]:
        if low[first] > high[first]:
            parts.append(
                f"M {edges[first]:.1f} {low[first]:.1f} V {high[first]:.1f} H {edges[end]:.1f} V {low[first]:.1f} Z"
            )
        first = end
    return " ".join(parts)


def _grid(span_ms: float, top: int) -> str:
    lines = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_size(int(share * top))}</text>')
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        time = f"{share * span_ms:,.0f}" if share * span_ms >= 100 else f"{share * span_ms:.3g}"
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="{anchor}">{time} ms</text>')
    return "\n".join(lines)


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"
