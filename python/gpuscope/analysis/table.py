# SPDX-License-Identifier: Apache-2.0
"""The text table of events."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

US_PER_MS = 1e3
US_PER_S = 1e6
COLUMN_WIDTH = 12
GAP = "  "


FLOPS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")


class Column(NamedTuple):
    """A heading and what stands below it."""

    heading: str
    cell: Callable[[Any], str]
    width: int = COLUMN_WIDTH
    side: str = ">"


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


def format_memory(size: int) -> str:
    """A number of bytes in B, KB (1024 B), MB or GB, as torch.profiler writes it."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"


def columns(
    events: Sequence[Any], cpu_total: float, device_total: float | None, has_memory: bool, unit: str | None
) -> list[Column]:
    """The columns of numbers behind the name: torch.profiler's, then ours."""

    def time(heading: str, attribute: str) -> Column:
        return Column(heading, lambda event: format_time(getattr(event, attribute), unit))

    def share(heading: str, attribute: str, total: float) -> Column:
        return Column(heading, lambda event: format_share(getattr(event, attribute), total))

    def memory(heading: str, attribute: str) -> Column:
        return Column(heading, lambda event: format_memory(getattr(event, attribute)))

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
    if has_memory:
        result += [memory("CPU Mem", "cpu_memory_usage"), memory("Self CPU Mem", "self_cpu_memory_usage")]
        if any(event.device_memory_usage or event.self_device_memory_usage for event in events):
            result += [memory("CUDA Mem", "device_memory_usage"), memory("Self CUDA Mem", "self_device_memory_usage")]
    result.append(Column("# of Calls", lambda event: str(event.count)))
    if events and hasattr(events[0], "p50"):
        result += [time("p50", "p50"), time("p95", "p95"), time("p99", "p99")]
    return result


def wide_columns(events: Sequence[Any], shapes_width: int | None, src_width: int | None) -> list[Column]:
    """The columns behind the numbers, as torch.profiler has them, each only where some event has what it tells.

    A cell of several lines, as of a call stack, goes on below its row.
    """
    result = []
    if any(event.input_shapes for event in events):
        width = _limited(max(len(str(event.input_shapes)) for event in events) + 4, shapes_width)
        result.append(Column("Input Shapes", lambda event: str(event.input_shapes)[:width], width))
    frames = [len(frame) for event in events for frame in event.stack]
    if frames:
        width_of_frame = _limited(max(frames) + 4, src_width)
        result.append(
            Column(
                "Source Location",
                lambda event: "\n".join(_tail(frame, width_of_frame) for frame in event.stack),
                width_of_frame,
                "<",
            )
        )
    counts = [event.flops for event in events if event.flops]
    if counts:
        step = min(int(math.log10(min(counts)) / 3), len(FLOPS) - 1)
        result.append(
            Column(f"Total {FLOPS[step]}", lambda event: f"{event.flops / 1000**step:.3f}" if event.flops else "--")
        )
    return result


def _limited(width: int, limit: int | None) -> int:
    return width if limit is None else min(width, limit)


def _tail(path: str, width: int) -> str:
    """The end of a path, which says most."""
    return path if len(path) <= width else "..." + path[len(path) - width + 3 :]


def render(
    events: Sequence[Any],
    *,
    row_limit: int,
    name_width: int | None,
    shapes_width: int | None,
    src_width: int | None,
    header: str | None,
    top_level_only: bool,
    time_unit: str | None,
    cpu_total: float,
    device_total: float | None,
    has_memory: bool,
    verdict: str,
) -> str:
    """See ``EventList.table``; ``device_total`` None leaves the CUDA columns out."""
    rows = [event for event in events if event.is_top_level] if top_level_only else events
    rows = rows if row_limit < 0 else rows[:row_limit]
    widest = max((len(event.key) for event in events), default=0) + 4
    width = widest if name_width is None else min(widest, name_width)
    named = Column("Name", lambda event: shorten(event.key), width)
    shown = [
        named,
        *columns(events, cpu_total, device_total, has_memory, time_unit),
        *wide_columns(events, shapes_width, src_width),
    ]
    widths = [max(column.width, len(column.heading)) for column in shown]
    rule = GAP.join("-" * width for width in widths) + GAP

    def line(cells: list[str]) -> str:
        placed = zip(cells, shown, widths, strict=True)
        return "".join(f"{cell:{column.side}{width}}{GAP}" for cell, column, width in placed)

    def lines_of(event: Any) -> Iterator[str]:
        cells = [column.cell(event).split("\n") for column in shown]
        for row in itertools.zip_longest(*cells, fillvalue=""):
            yield line(list(row))

    def shorten(name: str) -> str:
        cut = name_width is not None and len(name) >= name_width - 3
        return (name[: (name_width or 0) - 3] + "..." if cut else name).replace("\n", " ")

    lines = []
    above = [header, "Only what ran outside every region" if top_level_only else None]
    for text in above:
        if text is not None:
            lines += ["=" * (len(rule) - len(GAP)), text]
    lines += [rule, line([column.heading for column in shown]), rule]
    for event in rows:
        lines += lines_of(event)
    lines += [rule, f"Self CPU time total: {format_time(cpu_total, time_unit)}"]
    if device_total is not None:
        lines.append(f"Self CUDA time total: {format_time(device_total, time_unit)}")
    if verdict:
        lines.append(verdict)
    return "\n".join(lines) + "\n"
