# SPDX-License-Identifier: Apache-2.0
"""A recording for a terminal: lines that fit its width, bars of shares, and styles if it has colours.

The most important columns come first; a wider terminal gets more. ``Averages.table`` has all of them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuscope.analysis.averages import Averages, FunctionEventAvg, key_averages, outside_every_region
from gpuscope.analysis.call_tree import Node, Tree, tree_lines
from gpuscope.analysis.completeness import audit
from gpuscope.analysis.event_list import device_key
from gpuscope.analysis.rows import NS_PER_US, OUTSIDE, Kind
from gpuscope.tables import GAP
from gpuscope.text import columns_of, one_line, shorten, shorten_apart
from gpuscope.trace import Trace, metadata_of
from gpuscope.units import US_PER_S, format_bytes, format_digits, format_seconds

Part = str | tuple[str, str]
"""Plain text, or text with a style as rich names it: "bold", "dim", "red"."""
Line = tuple[Part, ...]

NO_TERMINAL = 140
"""Columns for output into a file or a pipe."""

# Columns that names keep: at least, next to the most important numbers, and before a terminal gets more numbers.
_NAME_LEAST, _NAME_SHORT, _NAME_ENOUGH = 16, 24, 40
_MATTERS = 2  # up to this rank
_PLAIN_BRANCHES = str.maketrans("├└│─", "|`|-")
_BAR, _WIDE_BAR, _WIDE = 8, 12, 110
_EIGHTHS = " ▏▎▍▌▋▊▉"
# The share from which a row has this style, the hottest first.
_HEAT = ((0.40, "bold red"), (0.15, "yellow"), (0.01, ""), (0.0, "dim"))


@dataclass(frozen=True)
class _Column:
    """Numbers under a heading; a wider terminal gets the lowest ranks first."""

    heading: str
    cell: Callable[[Any], str]
    rank: int = 0


@dataclass(frozen=True)
class _Row:
    """A line of an event or node; a remark has neither."""

    title: str
    of: Any = None
    share: float = 0.0  # of the time in the first column
    branch: str = ""
    style: str = ""
    below: tuple[str, ...] = ()


def text_of(lines: Sequence[Line]) -> str:
    """The lines without their styles."""
    plain = ("".join(part if isinstance(part, str) else part[0] for part in line) for line in lines)
    return "\n".join(line.rstrip() for line in plain)


def terminal_width() -> int:
    """Columns of the terminal: ``COLUMNS`` if set, or `NO_TERMINAL` without a terminal."""
    return shutil.get_terminal_size((NO_TERMINAL, 24)).columns


def overview(trace: Trace, width: int | None = None) -> str:
    """The table of a recording and its verdict in one line: what printing a profiler shows."""
    lines = averages_lines(trace, key_averages(trace), terminal_width() if width is None else width)
    metadata = metadata_of(trace.info)
    return f"{text_of(lines)}\n{f'metadata: {metadata}{chr(10)}' if metadata else ''}{audit(trace).brief}"


def averages_lines(
    trace: Trace,
    averages: Averages,
    width: int,
    *,
    sort_by: str | None = None,
    row_limit: int = 25,
    unicode: bool = True,
) -> list[Line]:
    """The rows that took most, the time outside every region, and notes.

    Args:
        trace: the recording.
        averages: its rows.
        width: columns of the terminal.
        sort_by: a key of ``Averages.table``, default the GPU's time if there is any, else the CPU's. It falls back to
            the CPU's as there.
        row_limit: most rows to show.
        unicode: the terminal can show block elements and an ellipsis.

    Raises:
        InvalidArgument: another key.
    """
    known, note = averages.known_sort_key(sort_by or ("device_time_total" if averages.has_device else "cpu_time_total"))
    key = device_key(known)
    events = [event for event in averages.sorted_by(key) if event.key != OUTSIDE]
    outside = outside_every_region(trace)
    measure, total = _whole(averages, key, outside)
    rows = [_event_row(event, measure, total) for event in events[:row_limit]]
    if outside is not None:
        rows.append(replace(_event_row(outside, measure, total), style="dim"))
    facts = [f"CPU {_time(averages.self_cpu_time_total)}"]
    if averages.has_device:
        facts.append(f"GPU {_time(averages.self_device_time_total)}")
    if len(events) > row_limit:
        facts.append(f"{len(events) - row_limit:,} more rows: --row-limit {len(events)}")
    facts += [*([note] if note else []), "all columns: --wide"]
    return [*_laid_out(rows, _event_columns(averages, key), width, unicode), *_wrapped(facts, width, unicode)]


def tree_table(tree: Tree, width: int, *, max_depth: int | None = None, unicode: bool = True) -> list[Line]:
    """The call tree, largest branches first, with the same columns.

    Args:
        tree: of a recording.
        width: columns of the terminal.
        max_depth: most levels; None shows all.
        unicode: the terminal can show block elements and an ellipsis.
    """

    def time_ns(node: Node) -> int:
        return node.device_ns if tree.has_device else node.cpu_ns

    total = max(1, time_ns(tree.root))
    plain = {} if unicode else _PLAIN_BRANCHES
    rows = [
        _Row(title, node, time_ns(node) / total if node else 0.0, branch.translate(plain))
        for branch, title, node in tree_lines(tree.root, max_depth, 0.0, width)
    ]
    return _laid_out(rows, _node_columns(tree.has_device), width, unicode)


# -- contents of the columns -------------------------------------------------------------------------------------------


def _whole(averages: Averages, key: str, outside: FunctionEventAvg | None) -> tuple[str, float]:
    """The time that shares refer to: its attribute and its total."""
    on_device = averages.has_device and not key.startswith(("cpu_", "self_cpu_"))
    if on_device:
        return "self_device_time_total" if key == "self_device_time_total" else "device_time_total", (
            averages.self_device_time_total
        )
    is_counted = any(event.key == OUTSIDE for event in averages)  # part of the CPU time, if Python was sampled
    beside = outside.cpu_time_total if outside is not None and not is_counted else 0.0
    measure = "self_cpu_time_total" if key == "self_cpu_time_total" else "cpu_time_total"
    return measure, averages.self_cpu_time_total + beside


def _event_row(event: FunctionEventAvg, measure: str, total: float) -> _Row:
    share = getattr(event, measure) / total if total else 0.0
    title = one_line(event.key.replace("\n", " "))
    shapes = [one_line(str(event.input_shapes))] if event.input_shapes else []
    frames = tuple(one_line(frame) for frame in event.stack)
    return _Row(title, event, share, style="bold" if event.is_user_annotation else "", below=(*shapes, *frames))


def _event_columns(averages: Averages, key: str) -> list[_Column]:
    """The columns; those of the shares and of the sort key are always shown."""

    def time(heading: str, attribute: str, rank: int) -> tuple[str, _Column]:
        return attribute, _Column(heading, lambda event: _time(getattr(event, attribute)), rank)

    def size(heading: str, attribute: str, rank: int) -> tuple[str, _Column]:
        return attribute, _Column(heading, lambda event: _size(getattr(event, attribute)), rank)

    device, memory = averages.has_device, averages.has_memory
    columns = dict(
        [
            *([time("GPU total", "device_time_total", 0)] if device else []),
            time("CPU total", "cpu_time_total", 1),
            ("count", _Column("Calls", lambda event: f"{event.count:,}", 2)),
            *([time("GPU self", "self_device_time_total", 4)] if device else []),
            time("CPU self", "self_cpu_time_total", 5 if device else 3),
            *([size("GPU memory", "device_memory_usage", 6)] if device and memory else []),
            *([size("CPU memory", "cpu_memory_usage", 11 if device else 6)] if memory else []),
            *([size("GPU memory self", "self_device_memory_usage", 12)] if device and memory else []),
            *([size("CPU memory self", "self_cpu_memory_usage", 13)] if memory else []),
            *([("flops", _Column("FLOP", lambda event: _count(event.flops), 6))] if averages.has_flops else []),
            *([time("GPU avg", "device_time", 7)] if device else []),
            time("CPU avg", "cpu_time", 8),
            time("p50", "p50", 3 if device else 4),
            time("p95", "p95", 9),
            time("p99", "p99", 10),
            time("min", "min", 14),
            time("max", "max", 14),
            size("bytes", "bytes", 15),
        ]
    )
    measure, _ = _whole(averages, key, None)
    first = columns.pop(measure)
    if key in columns:
        columns[key] = replace(columns[key], rank=0)
    return [replace(first, rank=0), *columns.values()]


def _node_columns(has_device: bool) -> list[_Column]:
    def time(heading: str, attribute: str, rank: int) -> _Column:
        return _Column(heading, lambda node: _time(getattr(node, attribute) / NS_PER_US), rank)

    device = [time("GPU total", "device_ns", 0)] if has_device else []
    return [
        *device,
        time("CPU total", "cpu_ns", 1 if has_device else 0),
        _Column("Calls", lambda node: f"{node.count:,}", 2),
        *([time("GPU self", "self_device_ns", 4)] if has_device else []),
        time("CPU self", "self_cpu_ns", 3),
        time("p50", "p50_ns", 5),
    ]


def _time(time_us: float) -> str:
    return format_seconds(time_us / US_PER_S) if time_us else "-"


def _size(size: int) -> str:
    return format_bytes(size) if size else "-"


def _count(count: int) -> str:
    if not count:
        return "-"
    unit, prefix = next((pair for pair in ((1e12, " T"), (1e9, " G"), (1e6, " M")) if count >= pair[0]), (1.0, ""))
    return f"{format_digits(count / unit)}{prefix}"


# -- layout ------------------------------------------------------------------------------------------------------------


def _laid_out(rows: Sequence[_Row], columns: Sequence[_Column], width: int, unicode: bool) -> list[Line]:
    """The rows under their headings, with as many columns as fit."""
    ellipsis = "…" if unicode else "..."
    names = [columns_of(row.branch) + columns_of(row.title) for row in rows]
    longest = max([len("Name"), *names])
    cells = {column: [column.cell(row.of) if row.of is not None else "" for row in rows] for column in columns}
    sizes = {column: max(map(len, [column.heading, *cells[column]])) for column in columns}
    bar = _WIDE_BAR if width >= _WIDE else _BAR
    share_size = len(GAP) + bar + len(" 100.0 %")

    def room(chosen: set[_Column]) -> int:
        return width - share_size - sum(sizes[column] + len(GAP) for column in chosen)

    shown = {column for column in columns if not column.rank}
    for column in sorted((column for column in columns if column.rank), key=lambda column: column.rank):
        if not any(cell not in ("-", "") for cell in cells[column]):
            continue
        if room({*shown, column}) < min(longest, _NAME_SHORT if column.rank <= _MATTERS else _NAME_ENOUGH):
            break
        shown.add(column)
    if room(shown) < _NAME_LEAST:
        bar, share_size = 0, len(GAP) + len("100.0 %")
    name_size = max(len("Name"), min(longest, room(shown), max(_NAME_ENOUGH, width * 9 // 20)))
    first, *others = [column for column in columns if column in shown]

    def line(name: str, name_style: str, number: int | None, share: Sequence[Part]) -> Line:
        def cell(column: _Column) -> str:
            text = column.heading if number is None else cells[column][number]
            return GAP + text.rjust(sizes[column])

        padded = name + " " * (name_size - columns_of(name))
        heat = name_style if number is None else _heat(rows[number].share)
        return (
            (padded, name_style),
            (cell(first), heat),
            *share,
            ("".join(map(cell, others)), name_style if number is None or name_style == "dim" else ""),
        )

    heading = "share".rjust(share_size - len(GAP))
    lines = [line("Name", "dim", None, (GAP, (heading, "dim")))]
    short = _shortened(rows, name_size, ellipsis)
    for number, row in enumerate(rows):
        title_size = max(1, name_size - columns_of(row.branch))
        title = row.title if columns_of(row.title) <= title_size else shorten(_essential(row), title_size, ellipsis)
        name = shorten(row.branch + short.get(row.title, title), name_size, ellipsis)
        if row.of is None:
            lines.append(((name, "dim"),))
            continue
        percent = f"{100 * row.share:.1f} %" if row.share else "-"
        drawn = _bar(row.share, bar, unicode)
        share = (GAP, (drawn, _heat(row.share)), (f"{percent:>{share_size - len(GAP) - bar}}", _heat(row.share)))
        lines.append(line(name, row.style, number, share))
        lines += [((f"    {shorten(text, max(8, width - 4), ellipsis)}", "dim"),) for text in row.below]
    return lines


def _shortened(rows: Sequence[_Row], columns: int, ellipsis: str) -> dict[str, str]:
    """Titles that do not fit, shortened so that different ones stay different."""
    essences = {row.title: _essential(row) for row in rows if not row.branch and columns_of(row.title) > columns}
    counts = Counter(essences.values())
    texts = {title: essence if counts[essence] == 1 else title for title, essence in essences.items()}
    short = shorten_apart(texts.values(), columns, ellipsis)
    return {title: short[text] for title, text in texts.items()}


def _essential(row: _Row) -> str:
    """A kernel's name without its return type and parameters, which are the same for all kernels of a template."""
    title = row.title
    if getattr(row.of, "kind", "") != Kind.KERNEL.label:
        return title
    title = title.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for at in range(len(title) - 1, 0, -1) if title.endswith(")") else ():
        depth += (title[at] == ")") - (title[at] == "(")
        if not depth:
            return title[:at]
    return title


def _bar(share: float, columns: int, unicode: bool) -> str:
    """The share of a full bar, to an eighth of a character."""
    eighths = round(min(1.0, max(0.0, share)) * columns * 8)
    if not unicode:
        return ("#" * ((eighths + 4) // 8)).ljust(columns)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(columns)


def _heat(share: float) -> str:
    return next(style for least, style in _HEAT if share >= least or not least)


def _wrapped(facts: Sequence[str], width: int, unicode: bool) -> Iterator[Line]:
    """The facts in as many lines as they need."""
    separator = " · " if unicode else ", "
    text = ""
    for fact in facts:
        if text and len(text) + len(separator) + len(fact) > width:
            yield ((text, "dim"),)
            text = ""
        text += (separator if text else "") + fact
    yield ((text, "dim"),)
