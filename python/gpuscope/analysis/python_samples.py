# SPDX-License-Identifier: Apache-2.0
"""Python samples: a tree and a table of functions, and the time outside every region."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gpuscope._core import Flag
from gpuscope.analysis.completeness import has_every_region, kept_ns
from gpuscope.arguments import as_float, check_choice, check_count
from gpuscope.errors import InvalidArgument
from gpuscope.results import Result, import_pandas
from gpuscope.spans import expand
from gpuscope.tables import GAP, fit_columns
from gpuscope.text import brief, file_names, one_line, shown, wrapped
from gpuscope.trace import NONE, Trace, number_of
from gpuscope.units import format_seconds

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd

Array = np.ndarray[Any, Any]

_NS_PER_S = 1e9
_LEAST_WIDTH = 40  # of the tables
_LEAST_NAME = 24  # columns that names keep; others are left out for it
SortKey = Literal["self_ns", "total_ns", "cpu_ns", "count"]
# Frames between an import and the imported module: their time is the importer's.
_IMPORT_SYSTEM = "<frozen importlib"


@dataclass(frozen=True)
class SampledFunction:
    """A function of the program, wherever it was called. Times are in ns, summed over threads.

    Attributes:
        function: its qualified name.
        file: where it is defined, as in its code object; "<string>" for code without a file.
        line: the line with most time.
        count: number of samples in the function itself.
        self_ns: time in the function itself, and in C functions that it called.
        total_ns: time including the Python functions that it called; recursion counts once.
        cpu_ns: part of `total_ns` on a CPU.
    """

    function: str
    file: str
    line: int
    count: int
    self_ns: int
    total_ns: int
    cpu_ns: int


@dataclass(frozen=True, repr=False)
class SampledCall:
    """A function as called from one place of the tree. Further attributes as of `SampledFunction`, for this place only.

    Attributes:
        lines: pairs of a line and its self time in ns, the longest first.
        children: the functions that it called, the longest first.
    """

    function: str
    file: str
    line: int
    count: int
    self_ns: int
    total_ns: int
    cpu_ns: int
    lines: tuple[tuple[int, int], ...]
    children: tuple[SampledCall, ...]

    def __iter__(self) -> Iterator[SampledCall]:
        """This call and all below it, each before its children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    @shown
    def __repr__(self) -> str:
        return (
            f"<SampledCall {self.function!r}: {format_seconds(self.total_ns / _NS_PER_S)}, {len(self.children)} called>"
        )


@dataclass(frozen=True, repr=False)
class Samples(Result):
    """Functions by samples; printing shows the tree. Shares are of the recorded time: threads add up to more.

    Attributes:
        recorded_ns: length of the recording; for a full ring, since its first sample.
        interval_ns: requested time between samples; 0 if the recording does not contain it.
        count: number of samples in Python.
        roots: outermost functions of the threads, the longest first.
        functions: every function, in order of decreasing self time.
    """

    recorded_ns: int
    interval_ns: int
    count: int
    roots: tuple[SampledCall, ...]
    functions: tuple[SampledFunction, ...]

    def __bool__(self) -> bool:
        return self.count > 0

    def __len__(self) -> int:
        return len(self.functions)

    def find(self, function: str) -> SampledFunction | None:
        """The function of that name with the largest self time, or None."""
        return next((found for found in self.functions if found.function == function), None)

    def share(self, time_ns: int) -> float:
        """A time in percent of the recording."""
        return 100.0 * time_ns / self.recorded_ns if self.recorded_ns else 0.0

    def render(self, max_depth: int | None = None, min_percent: float = 1.0, width: int = 140) -> str:
        """The tree as aligned text: functions, and their lines if several took time.

        Args:
            max_depth: how many levels to show; None shows all.
            min_percent: leave out rows with a smaller share of the recorded time.
            width: most columns of a line, at least 40. Names are cut, and columns that do not fit are left out.

        Raises:
            InvalidArgument: a value that is not accepted.
        """
        if max_depth is not None:
            check_count("max_depth", max_depth, 1)
        check_count("width", width, _LEAST_WIDTH)
        if not 0 <= as_float(min_percent) <= 100:
            raise InvalidArgument(f"min_percent is {brief(min_percent)}; accepted are numbers from 0 to 100")
        rows = [("Python functions, by samples", HEADINGS), *self._rows(max_depth, min_percent, width)]
        return self._heading(width) + aligned(rows, width)

    def table(self, sort_by: SortKey = "self_ns", row_limit: int = 25, width: int = 140) -> str:
        """One row a function.

        Args:
            sort_by: the attribute of `SampledFunction` that orders the rows: self_ns, total_ns, cpu_ns or count.
            row_limit: most rows to show.
            width: as in `render`.

        Raises:
            InvalidArgument: a value that is not accepted.
        """
        check_choice("sort_by", sort_by, get_args(SortKey))
        check_count("row_limit", row_limit, 1)
        check_count("width", width, _LEAST_WIDTH)
        ordered = sorted(self.functions, key=lambda function: -getattr(function, sort_by))[:row_limit]
        files = file_names(function.file for function in ordered)
        rows = [(_title(function, files), self._cells(function)) for function in ordered]
        return self._heading(width) + aligned([("Python functions, by samples", HEADINGS), *rows], width)

    def to_dict(self) -> dict[str, Any]:
        """The functions, and the calls in printed order, each with the place of its ``parent``; times in ns."""
        calls: list[dict[str, Any]] = []
        stack: list[tuple[SampledCall, int | None]] = [(root, None) for root in reversed(self.roots)]
        while stack:
            node, parent = stack.pop()
            stack += [(child, len(calls)) for child in reversed(node.children)]
            values = {name: getattr(node, name) for name in _OF_A_CALL}
            calls.append({"parent": parent, **values, "lines": [list(line) for line in node.lines]})
        about = {"recorded_ns": self.recorded_ns, "interval_ns": self.interval_ns, "count": self.count}
        return {**about, "functions": [asdict(function) for function in self.functions], "calls": calls}

    def to_pandas(self) -> pd.DataFrame:
        """One row a function.

        Raises:
            NotAvailable: pandas is not installed.
        """
        return import_pandas().DataFrame([asdict(function) for function in self.functions], columns=list(_OF_A_CALL))

    def __str__(self) -> str:
        return self.render()

    def _heading(self, width: int) -> str:
        every = f" every {format_seconds(self.interval_ns / _NS_PER_S)}" if self.interval_ns else ""
        recorded = format_seconds(self.recorded_ns / _NS_PER_S)
        text = f"{self.count:,} samples{every}; shares are of the {recorded} that were recorded"
        return "".join(f"{line}\n" for line in wrapped(text, width, 2))

    def _cells(self, of: SampledFunction | SampledCall) -> list[str]:
        shares = [f"{self.share(time_ns):.1f} %" for time_ns in (of.total_ns, of.self_ns, of.cpu_ns)]
        return [shares[0], format_seconds(of.total_ns / _NS_PER_S), shares[1], _time(of.self_ns), shares[2]]

    def _rows(self, max_depth: int | None, min_percent: float, width: int) -> Iterator[tuple[str, list[str]]]:
        """The calls to show, each with its name after the branches of the tree."""
        stack: list[tuple[str, str, SampledCall | tuple[str, list[str]], int]] = []

        def push(nodes: Sequence[SampledCall], lines: list[tuple[str, list[str]]], indent: str, depth: int) -> None:
            shown: list[SampledCall | tuple[str, list[str]]] = list(lines)
            large = [node for node in nodes if self.share(node.total_ns) >= min_percent]
            shown += large
            if hidden := len(nodes) - len(large):
                shown.append((f"({hidden} below {min_percent:g} %)", []))
            for index, child in reversed(list(enumerate(shown))):
                last = index == len(shown) - 1
                tip, rest = ("", "") if depth == 1 else ("└─ ", "   ") if last else ("├─ ", "│  ")
                stack.append(((indent + tip)[:width], (indent + rest)[:width], child, depth))

        files = file_names(call.file for root in self.roots for call in root)
        push(self.roots, [], "", 1)
        while stack:
            branch, indent, node, depth = stack.pop()
            if isinstance(node, tuple):
                yield branch + node[0], node[1]
                continue
            yield branch + _title(node, files), self._cells(node)
            if max_depth is None or depth < max_depth:
                push(node.children, list(self._lines(node, min_percent)), indent, depth + 1)

    def _lines(self, node: SampledCall, min_percent: float) -> Iterator[tuple[str, list[str]]]:
        """The lines with self time of a function, if there are several."""
        large = [(line, time_ns) for line, time_ns in node.lines if self.share(time_ns) >= max(min_percent, 0.05)]
        if len(large) > 1:
            for line, time_ns in large:
                yield f"line {line}", ["", "", f"{self.share(time_ns):.1f} %", _time(time_ns), ""]


HEADINGS = ["Total %", "Total", "Self %", "Self", "On CPU %"]
_DROPPABLE = (4, 1, 3)  # columns left out on narrow terminals, in this order: shares replace times
_OF_A_CALL = ("function", "file", "line", "count", "self_ns", "total_ns", "cpu_ns")


def samples(trace: Trace) -> Samples:
    """The samples of a recording by function; empty without any."""
    table = trace.python_samples
    frames = SampledFrames(trace)
    calls = _Calls(frames)
    for column, values in (("self_ns", table.duration_ns), ("self_cpu_ns", table.cpu_ns), ("count", table.count)):
        calls.add_own(column, frames.sums(table.stack, values))
    return Samples(
        recorded_ns=kept_ns(trace, table.start_ns),
        interval_ns=number_of(trace.info, "samples.interval_ns"),
        count=int(table.count.sum()),
        roots=calls.tree(),
        functions=calls.functions(),
    )


class SampledFrames:
    """The rows of the table of stacks that samples refer to, and their callers.

    Attributes:
        rows: for each its number, its caller's or -1, function, file and line; callers before callees.
    """

    def __init__(self, trace: Trace) -> None:
        self._count = len(trace.stacks)
        used = np.zeros(self._count, dtype=bool)
        stacks = trace.python_samples.stack
        used[stacks[stacks < self._count]] = True
        parents, lines = trace.stacks.parent.tolist(), trace.stacks.line.tolist()
        names, files = trace.stacks.function.tolist(), trace.stacks.file.tolist()
        for row in range(self._count - 1, -1, -1):  # callers are before callees
            if used[row] and parents[row] < row:
                used[parents[row]] = True
        texts: dict[int, str] = {}

        def text(string_id: int) -> str:
            if string_id not in texts:
                texts[string_id] = trace.string(string_id)
            return texts[string_id]

        self.rows = [
            (row, parents[row] if parents[row] < row else -1, text(names[row]), text(files[row]), lines[row])
            for row in np.flatnonzero(used).tolist()
        ]

    def sums(self, stacks: Array, values: Array) -> dict[int, int]:
        """Sums of values by stack, without stacks missing in a damaged file."""
        sums = np.zeros(self._count, dtype=np.int64)
        known = stacks < self._count
        np.add.at(sums, stacks[known], values[known].astype(np.int64))
        return {row: int(sums[row]) for row in np.flatnonzero(sums).tolist()}


class _GrowingCall:
    """A `SampledCall` under construction."""

    def __init__(self, function: str, file: str) -> None:
        self.function, self.file = function, file
        self.self_ns = self.self_cpu_ns = self.count = 0
        self.total_ns = self.cpu_ns = 0
        self.own_lines: defaultdict[int, int] = defaultdict(int)  # ns in the line itself
        self.all_lines: defaultdict[int, int] = defaultdict(int)  # including calls
        self.children: list[_GrowingCall] = []

    def line(self) -> int:
        return max(self.all_lines, key=lambda line: (self.all_lines[line], -line), default=0)


class _Calls:
    """The tree of calls: frames of one function with one caller are one call, whatever their lines."""

    def __init__(self, frames: SampledFrames) -> None:
        self._parents = {row: parent for row, parent, *_ in frames.rows}
        self.all: list[_GrowingCall] = []  # callers before callees
        self._roots: list[_GrowingCall] = []
        self._of_row: dict[int, tuple[_GrowingCall | None, int]] = {-1: (None, 0)}  # with the line in it
        places: dict[tuple[int, str, str], _GrowingCall] = {}
        for row, parent, function, file, line in frames.rows:
            caller, caller_line = self._of_row[parent]
            if file.startswith(_IMPORT_SYSTEM) and caller is not None:
                self._of_row[row] = (caller, caller_line)
                continue
            place = (id(caller), function, file)
            if place not in places:
                places[place] = _GrowingCall(function, file)
                self.all.append(places[place])
                (caller.children if caller is not None else self._roots).append(places[place])
            self._of_row[row] = (places[place], line)

    def add_own(self, column: str, sums: dict[int, int]) -> None:
        for row, value in sums.items():
            call, line = self._of_row[row]
            assert call is not None
            setattr(call, column, getattr(call, column) + value)
            if column == "self_ns":
                call.own_lines[line] += value
                self._add_to_lines(row, value)

    def _add_to_lines(self, row: int, value: int) -> None:
        # Each function on the stack counts the line that it was at.
        at, inner = row, None
        while at != -1:
            call, line = self._of_row[at]
            if call is not None and call is not inner:  # rows are one call if only the import system is between them
                call.all_lines[line] += value
            at, inner = self._parents[at], call

    def tree(self) -> tuple[SampledCall, ...]:
        made: dict[int, SampledCall] = {}
        for call in reversed(self.all):
            call.total_ns = call.self_ns + sum(child.total_ns for child in call.children)
            call.cpu_ns = call.self_cpu_ns + sum(child.cpu_ns for child in call.children)
            count = call.count
            lines = sorted(call.own_lines.items(), key=lambda item: (-item[1], item[0]))
            made[id(call)] = SampledCall(
                function=call.function,
                file=call.file,
                line=call.line(),
                count=count,
                self_ns=call.self_ns,
                total_ns=call.total_ns,
                cpu_ns=call.cpu_ns,
                lines=tuple(lines),
                children=_ordered(made[id(child)] for child in call.children),
            )
        return _ordered(made[id(root)] for root in self._roots)

    def functions(self) -> tuple[SampledFunction, ...]:
        """The functions; call after `tree`, which computes the totals."""
        sums: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(_SUMS, 0))
        lines: defaultdict[tuple[str, str], defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        open_now: defaultdict[tuple[str, str], int] = defaultdict(int)
        stack: list[tuple[_GrowingCall, bool]] = [(root, True) for root in reversed(self._roots)]
        while stack:
            call, enters = stack.pop()
            key = (call.function, call.file)
            if not enters:
                open_now[key] -= 1
                continue
            function = sums[key]
            function["self_ns"] += call.self_ns
            function["count"] += call.count
            if open_now[key] == 0:
                function["total_ns"] += call.total_ns
                function["cpu_ns"] += call.cpu_ns
            for line, time_ns in call.all_lines.items():
                lines[key][line] += time_ns
            open_now[key] += 1
            stack.append((call, False))
            stack += [(child, True) for child in reversed(call.children)]
        found = []
        for (name, file), of_function in sums.items():
            in_line = lines[name, file]
            line = max(in_line, key=lambda line: (in_line[line], -line), default=0)
            found.append(SampledFunction(function=name, file=file, line=line, **of_function))
        return tuple(sorted(found, key=lambda function: (-function.self_ns, -function.total_ns)))


_SUMS = ("count", "self_ns", "total_ns", "cpu_ns")


def _ordered(calls: Iterator[SampledCall]) -> tuple[SampledCall, ...]:
    return tuple(sorted(calls, key=lambda call: (-call.total_ns, call.function)))


def _time(time_ns: int) -> str:
    return format_seconds(time_ns / _NS_PER_S) if time_ns else "-"


def _title(of: SampledFunction | SampledCall, files: dict[str, str]) -> str:
    where = f"{GAP}{files[of.file]}:{of.line}" if of.file else ""
    return one_line(f"{of.function}{where}".replace("\n", " "))


def short_path(path: str) -> str:
    """The file's name; with the folder if the name alone says nothing."""
    folder, name = os.path.split(path)
    return f"{os.path.basename(folder)}/{name}" if name in ("__init__.py", "__main__.py") and folder else name


def aligned(rows: list[tuple[str, list[str]]], width: int) -> str:
    """Names and the cells of `HEADINGS` in rows, with as many columns as fit."""
    lines, hidden = fit_columns(rows, width, least=_LEAST_NAME, droppable=_DROPPABLE)
    if hidden:
        lines.append(f"({hidden} more column{'s' * (hidden > 1)} where lines are wider)")
    return "\n".join(lines) + "\n"


def outside_regions_ns(trace: Trace) -> int:
    """Time of threads in Python, but in no region or driver call, by samples.

    0 without samples, or if the time is unknown. It is unknown if regions are missing, or if samples of several threads
    are in a recording in aggregate mode, whose totals are not divided by thread.
    """
    table = trace.python_samples
    if not len(table) or not has_every_region(trace):
        return 0
    _, path, time_ns = sampled_paths(trace)
    outside_ns = int(time_ns[path == NONE].sum())
    if trace.info.get("session.mode") == "aggregate":  # no single regions are kept
        return max(0, outside_ns - trace.summary.cpu_ns) if (table.thread == table.thread[0]).all() else 0
    return outside_ns


IN_CALL = NONE - 1
"""A path of `sampled_paths`: in a driver call."""


def sampled_paths(trace: Trace) -> tuple[Array, Array, Array]:
    """Samples, cut where regions and driver calls begin and end: row, path and time in ns of each piece.

    The path is that of the innermost region, `NONE` in no region and `IN_CALL` in a driver call. For the main thread,
    and threads that opened a region or called the driver, the time includes waiting, as for regions. Other threads may
    only wait: for them it is the time on a CPU.
    """
    table, regions, calls = trace.python_samples, trace.regions, trace.api
    nested = (regions.flags & Flag.ASYNC) == 0
    begins = np.concatenate([regions.start_ns[nested], calls.start_ns])
    ends = begins + np.concatenate([regions.duration_ns[nested], calls.duration_ns])
    paths = np.concatenate([regions.path[nested], np.full(len(calls), IN_CALL, np.uint32)])
    spans_of = dict(by_value(np.concatenate([regions.thread[nested], calls.thread])))
    main = np.flatnonzero(trace.threads.system_id == number_of(trace.info, "process.id"))
    pieces = [(np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.int64))]
    for thread, rows in by_value(table.thread):
        if thread not in spans_of:
            times = table.duration_ns if thread in main else table.cpu_ns
            pieces.append((rows, np.full(len(rows), NONE, np.uint32), times[rows]))
            continue
        spans = spans_of[thread][np.lexsort((-ends[spans_of[thread]], begins[spans_of[thread]]))]
        cuts = np.sort(np.concatenate([begins[spans], ends[spans]]), kind="stable")
        innermost = np.append(_innermost(begins[spans], ends[spans], cuts), -1)  # after each cut, and before the first
        edges = np.concatenate([cuts, [np.iinfo(np.int64).max, np.iinfo(np.int64).min]])
        starts, stops = table.start_ns[rows], table.start_ns[rows] + table.duration_ns[rows]
        first = np.searchsorted(cuts, starts, side="right") - 1
        count = np.maximum(np.searchsorted(cuts, stops, side="left") - first, 0)
        row, piece = expand(first, count)
        time_ns = np.minimum(stops[row], edges[piece + 1]) - np.maximum(starts[row], edges[piece])
        pieces.append((rows[row], np.append(paths[spans], np.uint32(NONE))[innermost[piece]], time_ns))
    row, path, time_ns = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return row, path, time_ns


def _innermost(begins: Array, ends: Array, at: Array) -> Array:
    """For each time the containing span that began last; -1 if there is none. Begins are in order."""
    short = np.arange(len(begins))
    around = short - 1  # the last span that began before and ends later
    while len(short := short[(around[short] >= 0) & (ends[around[short]] <= ends[short])]):
        around[short] = around[around[short]]
    steps = [around]  # of 1, 2, 4, ... spans outwards
    while (steps[-1] >= 0).any():
        steps.append(np.where(steps[-1] >= 0, steps[-1][steps[-1]], -1))
    found = np.searchsorted(begins, at, side="right") - 1
    for further in reversed(steps):
        outer = np.where(found >= 0, further[found], -1)
        found = np.where((outer >= 0) & (ends[outer] <= at), outer, found)
    return np.where((found >= 0) & (ends[found] <= at), around[found], found)


def by_value(values: Array) -> list[tuple[int, Array]]:
    """Each value, ascending, and the indices where it occurs."""
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    return list(zip(found.tolist(), np.split(order, first[1:]), strict=True)) if len(values) else []
