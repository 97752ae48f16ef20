# SPDX-License-Identifier: Apache-2.0
"""Samples by the program's own functions and lines, the library functions they call, and imports."""

from __future__ import annotations

import heapq
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from gpuscope.analysis.completeness import kept_ns
from gpuscope.analysis.python_samples import HEADINGS, Array, aligned
from gpuscope.memory.history.call_stacks import is_program, is_standard, unix_path
from gpuscope.tables import GAP
from gpuscope.text import file_names, one_line, wrapped
from gpuscope.trace import Trace, number_of, thread_name
from gpuscope.units import format_seconds

_IMPORT_SYSTEM = "<frozen importlib"
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
# Where a Python thread waits for others: file and function.
_WAITS = {("threading.py", name) for name in ("wait", "join", "_wait_for_tstate_lock")}
MOST_KNOWN = 0.5
"""Share of the time that must be in own code, imports or an idle event loop."""
OWNERS: tuple[Callable[[str], bool], ...] = (is_program, lambda file: not is_standard(file), lambda file: True)
"""The program's files: its own; packages too if most of the time is elsewhere; then all files."""


@dataclass(frozen=True)
class ProgramFrame:
    """A row of ``trace.stacks`` as seen from the program's code; -1 is none."""

    own: int  # the innermost row of the program
    below: int  # the row that it called
    module: int  # during an import: the first row of the imported module
    imports: bool
    event_loop: bool


class ProgramStacks:
    """The rows of ``trace.stacks`` as the program's own code sees them."""

    def __init__(self, trace: Trace, owns: Callable[[str], bool] = is_program) -> None:
        self.trace = trace
        self._owns = owns
        table = trace.stacks
        self.parents = np.where(table.parent < np.arange(len(table)), table.parent.astype(np.int64), -1).tolist()
        self._files, self._functions = table.file.tolist(), table.function.tolist()
        self.lines = table.line.tolist()
        self._known: dict[int, ProgramFrame] = {-1: ProgramFrame(-1, -1, -1, False, False)}

    def file(self, row: int) -> str:
        """The file of a row's function."""
        return self.trace.string(self._files[row])

    def function(self, row: int) -> str:
        """The qualified name of a row's function."""
        return self.trace.string(self._functions[row])

    def key(self, row: int) -> tuple[int, int]:
        """Identifies a row's function. A comprehension (a function before Python 3.12) counts as its parent."""
        while (
            self.function(row).endswith(_COMPREHENSIONS) and self.known(self.parents[row]).own == self.parents[row] >= 0
        ):
            row = self.parents[row]
        return self._files[row], self._functions[row]

    def known(self, row: int) -> ProgramFrame:
        """The row as seen from own code. Callers come first in the table, so no recursion is needed."""
        missing = []
        while row not in self._known:
            missing.append(row)
            row = self.parents[row]
        for each in reversed(missing):
            self._known[each] = self._look(each, self._known[self.parents[each]])
        return self._known[missing[0] if missing else row]

    def _look(self, row: int, caller: ProgramFrame) -> ProgramFrame:
        file, parent = self.file(row), self.parents[row]
        # A function compiled from a text belongs to the code that runs it: the program or a library.
        is_own = self._owns(file) and not file.startswith("<frozen ")
        is_made = file == "<string>" and (0 <= parent != caller.own or self.function(row).startswith("__create_fn__"))
        if is_own and not is_made:
            return ProgramFrame(row, -1, -1, False, False)
        # A wrapper (a nested function of a library) is skipped.
        is_wrapped = caller.below < 0 or "<locals>" in self.function(caller.below)
        below = row if is_wrapped else caller.below
        if file.startswith(_IMPORT_SYSTEM):
            return ProgramFrame(caller.own, below, caller.module, True, False)
        module = row if caller.imports and caller.module < 0 else caller.module
        return ProgramFrame(caller.own, below, module, caller.imports, caller.event_loop or "/asyncio/" in file)

    def waits(self, row: int) -> bool:
        """Whether a thread waits for others at this row."""
        return (os.path.basename(self.file(row)), self.function(row).rpartition(".")[2]) in _WAITS

    def idles(self, row: int) -> bool:
        """Whether an event loop is idle at this row."""
        return self.known(row).event_loop and os.path.basename(self.file(row)) == "selectors.py"

    def package(self, row: int) -> str:
        """The top-level package of a file."""
        file = unix_path(self.file(row))
        for folder in ("/site-packages/", "/dist-packages/"):
            if folder in file:
                return file.rpartition(folder)[2].split("/")[0].removesuffix(".py")
        inside = file.rpartition("/lib-dynload/")[2].partition("/lib/python")[2].partition("/")[2]
        return (inside or os.path.basename(file)).split("/")[0].removesuffix(".py")

    def imported(self, row: int) -> str:
        """The package imported at a row of an import."""
        module = self.known(row).module
        return self.package(module) if module >= 0 else "extensions"

    def label(self, row: int) -> str:
        """The display name of a library's function: "DataFrame.apply", "json.loads"."""
        function = self.function(row).rpartition("<locals>.")[2]
        if "." in function or is_program(self.file(row)) or self.file(row).startswith("<"):
            return function
        return f"{self.package(row)}.{function}"


_Kind = Literal["root", "function", "line", "library", "frames", "imports", "thread"]

_LEAST_SHARE = 0.01  # least share of the recorded time for a row
_SHALLOW = 5  # levels below which functions that mostly call one other function are folded
_MOST = 0.5  # least share of the time in that other function
_LISTED = 3  # packages
_NS_PER_S = 1e9


@dataclass(eq=False)
class _Node:
    """A row of the tree. Times are in ns.

    Attributes:
        kind: "function" is one of the program's, "line" one of its lines. "library" is a function that the program
            calls, "frames" are the calls below it. "thread" runs no code of the program.
        row: row of ``trace.stacks`` that names it.
        line: its line with most time; for a library's function the line that calls it.
        hot_ns: time at the program's hottest line in it, without waits for other threads.
        lines: time by line of a function, including calls.
        own_lines: `lines` without own functions called, waits and imports.
        self_lines: `lines` without any Python function called.
        packages: imported packages with their times.
        functions: functions in frames, with their packages.
        threads: threads that were here.
    """

    kind: _Kind
    parent: _Node | None = None
    row: int = -1
    line: int = 0
    total_ns: int = 0
    self_ns: int = 0
    cpu_ns: int = 0
    hot_ns: int = 0
    lines: Counter[int] = field(default_factory=Counter)
    own_lines: Counter[int] = field(default_factory=Counter)
    self_lines: Counter[int] = field(default_factory=Counter)
    packages: Counter[str] = field(default_factory=Counter)
    functions: dict[object, str] = field(default_factory=dict)
    threads: set[int] = field(default_factory=set)
    children: dict[object, _Node] = field(default_factory=dict)
    ordered: list[_Node] = field(default_factory=list)

    def enclosing(self, *kinds: _Kind) -> _Node:
        """This node or the innermost one around it that has one of the kinds."""
        node = self
        while node.parent is not None and node.kind not in kinds:
            node = node.parent
        return node


class ProgramTree:
    """The tree of the program's functions: their lines, library calls and imports.

    A recursive function is one row. So is a function with its comprehensions.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._recorded_ns = kept_ns(trace, trace.python_samples.start_ns)
        self._main = set(np.flatnonzero(trace.threads.system_id == number_of(trace.info, "process.id")).tolist())
        rows, threads, times, cpu_times = _sums(trace)
        self._stacks = _stacks_of(trace, rows, np.where(np.isin(threads, list(self._main)), times, 0))
        self._root = _Node("root")
        self._nodes = [self._root]  # callers before callees
        self._places: dict[int, _Node] = {-1: self._root}  # of rows of ``trace.stacks``
        sampled = set(rows.tolist())
        for row in rows.tolist():
            while (row := self._stacks.parents[row]) >= 0 and row not in sampled:
                sampled.add(row)
        for row in sorted(sampled):  # callers first
            self._places[row] = self._find(row, self._places[self._stacks.parents[row]])
        for each in zip(*(column.tolist() for column in (rows, threads, times, cpu_times)), strict=True):
            self._add(*each)
        self._reached = [self._root]
        self._finish()

    def render(self, most_rows: int, width: int, *, more: str = "--tree") -> str:
        """The rows with most time as aligned text with a heading; they include the program's hottest line.

        Args:
            most_rows: most rows, without headings and the line for omitted rows.
            width: most columns of a line.
            more: option that shows the other rows.
        """
        chosen = self._choose(most_rows)
        rows = [("Python functions, by samples", HEADINGS), *self._rows(chosen)]
        if hidden := len(self._reached) - len(chosen):
            rows.append((f"({hidden:,} more row{'s' * (hidden > 1)} with less time: {more})", []))
        interval_ns = number_of(self._trace.info, "samples.interval_ns")
        every = f" every {_time(interval_ns)}" if interval_ns else ""
        count, recorded = int(self._trace.python_samples.count.sum()), _time(self._recorded_ns)
        about = wrapped(f"{count:,} samples{every}; shares are of the {recorded} that were recorded", width, 2)
        return "".join(f"{line}\n" for line in about) + aligned(rows, width)

    def hottest_line(self) -> str:
        """The line of the program with the most time of its own, as "load (data.py:18)"; empty without one."""
        node = self._hottest_path()[-1]
        function = node.enclosing("function")
        if function is self._root:
            return ""
        own = function.own_lines
        line = max(own, key=own.__getitem__, default=function.line) if node is function else node.line
        name, where = self._stacks.function(function.row), os.path.basename(self._stacks.file(function.row))
        return f"{where}:{line}" if name == "<module>" else f"{name} ({where}:{line})"

    # -- the sums ------------------------------------------------------------------------------------------------------

    def _add(self, row: int, thread: int, time_ns: int, cpu_ns: int) -> None:
        stacks = self._stacks
        node, frame = self._places[row], stacks.known(row)
        if node.kind == "thread":
            node = self._child(self._root, ("thread", thread), "thread", row)
        node.self_ns += time_ns
        node.cpu_ns += cpu_ns
        node.threads.add(thread)
        if node.kind == "imports":
            node.packages[stacks.imported(row)] += time_ns
        elif node.kind == "function":
            node.self_lines[stacks.lines[row]] += time_ns
        own, inner = frame.own, None
        if own >= 0 and node.kind != "imports" and not stacks.waits(row) and not stacks.idles(row):
            self._places[own].own_lines[stacks.lines[own]] += time_ns
        while own >= 0:
            function = self._places[own]
            if function is not inner:
                function.lines[stacks.lines[own]] += time_ns
            own, inner = stacks.known(stacks.parents[own]).own, function

    def _find(self, row: int, caller: _Node) -> _Node:
        stacks, frame = self._stacks, self._stacks.known(row)
        if frame.own == row:
            around = caller.enclosing("function", "library")
            key = stacks.key(row)
            is_same = around.kind == "function" and stacks.key(around.row) == key
            return around if is_same else self._child(around, key, "function", row)
        function = caller.enclosing("function")
        if frame.imports:
            return self._child(function, "imports", "imports", row)
        if function is self._root:
            return _Node("thread", self._root)
        line = stacks.lines[frame.own]
        called = self._child(function, (stacks.key(frame.below), line), "library", frame.below)
        called.line = line
        if row == frame.below:
            return called
        inside = self._child(called, "frames", "frames", row)
        inside.functions[stacks.key(row)] = stacks.package(row)
        return inside

    def _child(self, parent: _Node, key: object, kind: _Kind, row: int) -> _Node:
        if key not in parent.children:
            parent.children[key] = _Node(kind, parent, row)
            self._nodes.append(parent.children[key])
        return parent.children[key]

    def _finish(self) -> None:
        """Makes the totals, the rows of lines, and the order."""
        for node in reversed(self._nodes):
            node.total_ns += node.self_ns
            if node.kind == "function":
                node.line = max(node.lines, key=lambda line: (node.lines[line], -line), default=0)
                node.hot_ns = max(node.hot_ns, *node.own_lines.values(), 0)
                long = {line: time_ns for line, time_ns in node.self_lines.items() if self._is_long(time_ns)}
                for line, time_ns in long.items() if set(long) - {node.line} else ():
                    row = _Node("line", node, line=line, total_ns=time_ns, self_ns=time_ns)
                    row.hot_ns = min(time_ns, node.own_lines[line])
                    node.children["line", line] = row
            elif node.kind == "library" and node.parent is not None:
                node.hot_ns = max(node.hot_ns, min(node.total_ns, node.parent.own_lines[node.line]))
            if node.parent is not None:
                node.parent.total_ns += node.total_ns
                node.parent.cpu_ns += node.cpu_ns
                node.parent.threads |= node.threads
                node.parent.hot_ns = max(node.parent.hot_ns, node.hot_ns)
        for node in self._nodes:
            spent = (child for child in node.children.values() if child.total_ns)
            node.ordered = sorted(spent, key=lambda child: (-child.hot_ns, -child.total_ns))
        level, depth = [self._root], 0
        while level:
            if depth >= _SHALLOW:
                for node in level:
                    node.ordered = [_folded(child) for child in node.ordered]
            level, depth = [child for node in level for child in node.ordered], depth + 1
            self._reached += level

    # -- the rows ------------------------------------------------------------------------------------------------------

    def _hottest_path(self) -> list[_Node]:
        """The nodes from the root to the hottest line."""
        path = [self._root]
        while path[-1].ordered and path[-1].ordered[0].hot_ns:
            path.append(path[-1].ordered[0])
        return path

    def _choose(self, most_rows: int) -> set[_Node]:
        """The root, the path to the hottest line, and the nodes with most time, each with its parents."""
        path = set(self._hottest_path())
        chosen: set[_Node] = set()
        numbers = itertools.count()
        waiting = [(False, 0, next(numbers), self._root)]
        while waiting and len(chosen) <= most_rows:
            node = heapq.heappop(waiting)[-1]
            chosen.add(node)
            for child in node.ordered:
                time_ns = child.cpu_ns if child.kind == "thread" else child.total_ns
                if child in path or self._is_long(time_ns):
                    heapq.heappush(waiting, (child not in path, -time_ns, next(numbers), child))
        return chosen

    def _is_long(self, time_ns: int) -> bool:
        return time_ns >= _LEAST_SHARE * self._recorded_ns

    def _rows(self, chosen: set[_Node]) -> Iterator[tuple[str, list[str]]]:
        """The chosen nodes in order, each with its name after the branches of the tree."""
        files = file_names({self._stacks.file(node.row) for node in chosen if node.kind == "function"})
        stack = [("", "", self._root)]
        while stack:
            branch, indent, node = stack.pop()
            if node is not self._root:
                yield branch + one_line(self._title(node, files).replace("\n", " ")), self._cells(node)
            there = [child for child in node.ordered if child in chosen]
            for child in reversed(there):
                tip, rest = ("└─ ", "   ") if child is there[-1] else ("├─ ", "│  ")
                stack.append((indent + tip, indent + rest, child) if node is not self._root else ("", "", child))

    def _title(self, node: _Node, files: dict[str, str]) -> str:
        stacks = self._stacks
        if node.kind == "function":
            where = f"{GAP}{files[stacks.file(node.row)]}:{node.line}" if stacks.file(node.row) else ""
            return f"{stacks.function(node.row)}{where}{self._in_threads(node)}"
        if node.kind == "library":
            return f"{stacks.label(node.row)}{GAP}line {node.line}"
        if node.kind == "frames":
            count, [(package, _)] = len(node.functions), Counter(node.functions.values()).most_common(1)
            return f"[{count} frame{'s' * (count > 1)} of {package}]"
        if node.kind == "imports":
            packages = (f"{name} {_time(time_ns)}" for name, time_ns in node.packages.most_common(_LISTED))
            return f"imports {_time(node.total_ns)}: {', '.join(packages)}"
        return f"line {node.line}" if node.kind == "line" else f"[{thread_name(self._trace, min(node.threads))}]"

    def _in_threads(self, node: _Node) -> str:
        """The threads of a function at the top, unless it ran on the main thread."""
        if node.parent is not self._root or node.threads <= self._main:
            return ""
        name = thread_name(self._trace, min(node.threads)) if len(node.threads) == 1 else f"{len(node.threads)} threads"
        return f"{GAP}in {name}"

    def _cells(self, node: _Node) -> list[str]:
        times = (node.total_ns, node.self_ns, node.cpu_ns)
        total, own, on_cpu = (f"{100 * time_ns / max(1, self._recorded_ns):.1f} %" for time_ns in times)
        if node.kind == "line":
            return ["", "", own, _time(node.self_ns), ""]
        return [total, _time(node.total_ns), own, _time(node.self_ns), on_cpu]


def _folded(node: _Node) -> _Node:
    """Joins functions that mostly call one other function into one row above the innermost."""
    chain = [node]
    while (last := chain[-1]).kind == "function" and (inner := last.ordered[:1]) and inner[0].kind == "function":
        if inner[0].total_ns < _MOST * last.total_ns:
            break
        chain += inner
    *outer, last = chain
    if len(outer) < 2:
        return node
    return replace(
        node,
        kind="frames",
        self_ns=sum(each.self_ns for each in outer),
        functions=dict.fromkeys(range(len(outer)), "the program"),
        ordered=[last, *(beside for each in outer for beside in each.ordered[1:])],
    )


def _time(time_ns: int) -> str:
    return format_seconds(time_ns / _NS_PER_S) if time_ns else "-"


def _sums(trace: Trace) -> tuple[Array, Array, Array, Array]:
    """For each stack and thread of samples: row of ``trace.stacks``, thread, time and CPU time in ns."""
    table = trace.python_samples
    known = table.stack < len(trace.stacks)
    stacks, threads = table.stack[known].astype(np.int64), table.thread[known]
    number = 1 + int(threads.max(initial=0))
    places, place_of = np.unique(stacks * number + threads, return_inverse=True)
    time_ns, cpu_ns = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
    np.add.at(time_ns, place_of, table.duration_ns[known].astype(np.int64))
    np.add.at(cpu_ns, place_of, table.cpu_ns[known].astype(np.int64))
    return places // number, places % number, time_ns, cpu_ns


def _stacks_of(trace: Trace, rows: Array, times: Array) -> ProgramStacks:
    """The stacks with the smallest choice of own code that explains at least half of the time."""
    for owns in OWNERS:
        stacks = ProgramStacks(trace, owns)
        frames = map(stacks.known, rows.tolist())
        is_known = np.array([frame.own >= 0 or frame.imports for frame in frames], bool)
        if times[is_known].sum() >= MOST_KNOWN * times.sum():
            break
    return stacks
