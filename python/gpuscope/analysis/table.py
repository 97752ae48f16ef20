# SPDX-License-Identifier: Apache-2.0
"""The text table of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

US_PER_MS = 1e3
US_PER_S = 1e6
COLUMN_WIDTH = 12
GAP = "  "


class Column(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    cell: Callable[[Any], str]


def format_time(time_us: float, unit: str | None = None) -> str:
    """A time of ``time_us`` microseconds, in ``unit`` or the largest of s, ms and us that leaves one digit."""
    if unit == "s" or (unit is None and time_us >= US_PER_S):
        return f"{time_us / US_PER_S:.3f}s"
    if unit == "ms" or (unit is None and time_us >= US_PER_MS):
        return f"{time_us / US_PER_MS:.3f}ms"
    return f"{time_us:.3f}us"


def format_share(time_us: float, total_us: float) -> str:
    """A share in percent; NaN of nothing."""
    return f"{time_us * 100.0 / total_us:.2f}%" if total_us else "NaN"


def columns(events: Sequence[Any], cpu_total: float, device_total: float | None, unit: str | None) -> list[Column]:
    """The columns behind the name: torch.profiler's, then ours."""

    def time(heading: str, attribute: str) -> Column:
        return Column(heading, lambda event: format_time(getattr(event, attribute), unit))

    def share(heading: str, attribute: str, total: float) -> Column:
        return Column(heading, lambda event: format_share(getattr(event, attribute), total))

    result = [
        share("Self CPU %", "self_cpu_time_total", cpu_total),
        time("Self CPU", "self_cpu_time_total"),
        share("CPU total %", "cpu_time_total", cpu_total),
        time("CPU total", "cpu_time_total"),
        time("CPU time avg", "cpu_time"),
    ]
    if device_total is not None:
        result += [
            time("Self CUDA", "self_device_time_total"),
            share("Self CUDA %", "self_device_time_total", device_total),
            time("CUDA total", "device_time_total"),
            time("CUDA time avg", "device_time"),
        ]
    result.append(Column("# of Calls", lambda event: str(event.count)))
    if events and hasattr(events[0], "p50"):
        result += [time("p50", "p50"), time("p95", "p95"), time("p99", "p99")]
    return result


def render(
    events: Sequence[Any],
    *,
    row_limit: int,
    name_width: int | None,
    header: str | None,
    top_level_only: bool,
    time_unit: str | None,
    cpu_total: float,
    device_total: float | None,
    verdict: str,
) -> str:
    """See ``EventList.table``; ``device_total`` None leaves the CUDA columns out."""
    rows = [event for event in events if event.is_top_level] if top_level_only else events
    rows = rows if row_limit < 0 else rows[:row_limit]
    widest = max((len(event.key) for event in events), default=0) + 4
    width = widest if name_width is None else min(widest, name_width)
    shown = columns(events, cpu_total, device_total, time_unit)
    widths = [max(width, len("Name")), *(max(COLUMN_WIDTH, len(column.heading)) for column in shown)]
    rule = GAP.join("-" * width for width in widths) + GAP

    def line(cells: list[str]) -> str:
        return "".join(f"{cell:>{width}}{GAP}" for cell, width in zip(cells, widths, strict=True))

    def shorten(name: str) -> str:
        cut = name_width is not None and len(name) >= name_width - 3
        return name[: (name_width or 0) - 3] + "..." if cut else name

    lines = []
    above = [header, "Only what ran outside every region" if top_level_only else None]
    for text in above:
        if text is not None:
            lines += ["=" * (len(rule) - len(GAP)), text]
    lines += [rule, line(["Name", *(column.heading for column in shown)]), rule]
    lines += [line([shorten(event.key), *(column.cell(event) for column in shown)]) for event in rows]
    lines += [rule, f"Self CPU time total: {format_time(cpu_total, time_unit)}"]
    if device_total is not None:
        lines.append(f"Self CUDA time total: {format_time(device_total, time_unit)}")
    if verdict:
        lines.append(verdict)
    return "\n".join(lines) + "\n"
