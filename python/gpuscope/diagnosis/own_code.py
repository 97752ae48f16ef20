# SPDX-License-Identifier: Apache-2.0
"""The time of the host by the program's own functions and lines, from samples, with what they called."""

from __future__ import annotations

import dis
import linecache
import os
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import TypeVar

import numpy as np

from gpuscope.analysis.rows import ANNOTATIONS, STEP
from gpuscope.diagnosis.context import Context, Where, joined
from gpuscope.diagnosis.host_waits import stacks_in
from gpuscope.diagnosis.steps import Array, covered_ns
from gpuscope.memory.call_stacks import is_program, unix_path
from gpuscope.system import bytecode_version
from gpuscope.trace import NONE, Trace, number_of

T = TypeVar("T")

MUCH = 0.2
"""A function of the program with this share of the time is a finding."""
LISTED = 0.05
"""One with this share is listed."""
_MOST = 0.8  # a line whose time is almost all another own function's is not named: that function is
_IMPORT_SYSTEM = "<frozen importlib"
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
# Where a thread of Python waits for others: file and function.
_WAITS = {("threading.py", name) for name in ("wait", "join", "_wait_for_tstate_lock")}
_LEAST_ON_CPU = 0.2  # of the wait for other threads, what these must compute to be what it is for


@dataclass(eq=False)
class OwnFunction:
    """A function of the program. Times are in ns; of a step, or of the run where there are no steps.

    Attributes:
        where: its line with most of the time.
        time_ns: in it and in what it called, except own functions that have almost all of a line's time.
        cpu_ns: how much of that the thread was on a CPU.
        lines: its lines and their time, the longest first.
        calls: what it called and their time, the longest first; "" is its own Python code.
        inner: own functions with much of the time that were called from here.
    """

    where: Where
    time_ns: float
    cpu_ns: float
    lines: list[tuple[int, float]]
    calls: list[tuple[str, float]]
    stacks: frozenset[int] = frozenset()  # rows of ``trace.stacks`` of samples in it
    inner: list[OwnFunction] = field(default_factory=list)

    @property
    def name(self) -> str:
        """As it is shown: "add_tax (etl.py:18)", without a function of its own its region."""
        if self.where.file is None:
            return str(self.where.region)
        return f"{'the script' if self.where.function == '<module>' else self.where.function} ({self.where})"


@dataclass(frozen=True)
class HostTime:
    """Where the time of the thread that takes the steps went, and of the threads that it waited for.

    Attributes:
        wall_ns: of the steps.
        functions: own functions with at least `LISTED` of it, the longest first.
        imports: top-level packages that were imported and their time, the longest first.
        idle_ns: in an event loop with nothing to do.
    """

    wall_ns: int
    functions: tuple[OwnFunction, ...]
    imports: tuple[tuple[str, float], ...]
    idle_ns: float


@dataclass(frozen=True)
class _Frame:
    """What is known of a row of ``trace.stacks``: -1 is none."""

    own: int  # the innermost row of the program
    below: int  # the row that it called
    module: int  # while something is imported: the first row of that
    imports: bool
    event_loop: bool


class _Stacks:
    """The rows of ``trace.stacks`` as the program's own code sees them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        table = trace.stacks
        self.parents = np.where(table.parent < np.arange(len(table)), table.parent.astype(np.int64), -1).tolist()
        self._files, self._functions = table.file.tolist(), table.function.tolist()
        self.lines = table.line.tolist()
        self._known: dict[int, _Frame] = {-1: _Frame(-1, -1, -1, False, False)}

    def file(self, row: int) -> str:
        return self.trace.string(self._files[row])

    def function(self, row: int) -> str:
        return self.trace.string(self._functions[row])

    def key(self, row: int) -> tuple[int, int]:
        """Of the function; of a comprehension, which is a function before Python 3.12, that around it."""
        while (
            self.function(row).endswith(_COMPREHENSIONS) and self.known(self.parents[row]).own == self.parents[row] >= 0
        ):
            row = self.parents[row]
        return self._files[row], self._functions[row]

    def known(self, row: int) -> _Frame:
        """Callers come first in the table, so that no recursion is needed."""
        missing = []
        while row not in self._known:
            missing.append(row)
            row = self.parents[row]
        for each in reversed(missing):
            self._known[each] = self._look(each, self._known[self.parents[each]])
        return self._known[missing[0] if missing else row]

    def _look(self, row: int, caller: _Frame) -> _Frame:
        file, parent = self.file(row), self.parents[row]
        # What was made of a text is the program's where the program runs it, and a library's where a library does.
        if is_program(file) and (not file.startswith("<") or parent < 0 or caller.own == parent):
            return _Frame(row, -1, -1, False, False)
        below = caller.below if caller.below >= 0 else row
        if file.startswith(_IMPORT_SYSTEM):
            return _Frame(caller.own, below, caller.module, True, False)
        module = row if caller.imports and caller.module < 0 else caller.module
        return _Frame(caller.own, below, module, caller.imports, caller.event_loop or "/asyncio/" in file)

    def waits(self, row: int) -> bool:
        """Whether a thread waits for others here."""
        return (os.path.basename(self.file(row)), self.function(row).rpartition(".")[2]) in _WAITS

    def idles(self, row: int) -> bool:
        """Whether an event loop has nothing to do."""
        return self.known(row).event_loop and os.path.basename(self.file(row)) == "selectors.py"

    def package(self, row: int) -> str:
        """The top-level package of a file that is installed."""
        file = unix_path(self.file(row))
        for folder in ("/site-packages/", "/dist-packages/"):
            if folder in file:
                return file.rpartition(folder)[2].split("/")[0].removesuffix(".py")
        inside = file.rpartition("/lib-dynload/")[2].partition("/lib/python")[2].partition("/")[2]
        return (inside or os.path.basename(file)).split("/")[0].removesuffix(".py")

    def label(self, row: int) -> str:
        """What a frame of a library is called: "DataFrame.apply", "json.loads"."""
        function = self.function(row)
        if "." in function or is_program(self.file(row)):
            return function
        return f"{self.package(row)}.{function}"


@dataclass
class _Sum:
    """Of one line of the program."""

    time_ns: float = 0.0
    inner: defaultdict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))  # own functions
    calls: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))  # rows that it called, or itself
    stacks: set[int] = field(default_factory=set)


def host_time(context: Context) -> HostTime:
    """Divides the time of the thread that takes the steps among the program's own functions.

    Where that thread waits for others, the time is theirs: of those that compute meanwhile, or else are in the program.
    Without samples it is divided among the program's regions.
    """
    trace = context.trace
    if len(trace.python_samples) == 0:
        return _region_time(context)
    stacks = _Stacks(trace)
    spans = joined(context.host_steps.start_ns, context.host_steps.end_ns)
    wall_ns = int((spans[1] - spans[0]).sum())
    times = _times(context, stacks, spans)
    sums: defaultdict[tuple[int, int, int], _Sum] = defaultdict(_Sum)
    imports: defaultdict[str, float] = defaultdict(float)
    idle_ns = 0.0
    for row, time_ns in times.items():
        frame = stacks.known(row)
        if frame.imports:
            imports[stacks.package(frame.module) if frame.module >= 0 else "extensions"] += time_ns
        elif stacks.idles(row):
            idle_ns += time_ns
        else:
            _add(stacks, sums, row, time_ns)
    cpu = _times(context, stacks, spans, "cpu_ns")
    functions = _functions(stacks, sums, cpu, LISTED * wall_ns)
    return HostTime(wall_ns, tuple(functions), tuple(_by_time(imports)), idle_ns)


def _times(
    context: Context, stacks: _Stacks, spans: tuple[Array, Array], column: str = "duration_ns"
) -> dict[int, float]:
    """The time by row of ``trace.stacks``."""
    trace, main = context.trace, context.main_thread
    times = stacks_in(trace, [main], *spans, column)
    samples = trace.python_samples
    rows = np.flatnonzero((samples.thread == main) & (samples.stack < len(trace.stacks)))
    waits = {row: stacks.waits(row) for row in np.unique(samples.stack[rows]).tolist()}
    waiting = rows[[waits[row] for row in samples.stack[rows].tolist()]] if len(rows) else rows
    others = set(np.unique(samples.thread).tolist()) - {main}
    if len(waiting) == 0 or not others:
        return times
    begins, ends = joined(samples.start_ns[waiting], samples.start_ns[waiting] + samples.duration_ns[waiting])
    waited_ns = sum(time for row, time in times.items() if waits.get(row))
    work = stacks_in(trace, others, begins, ends, "cpu_ns")
    if sum(work.values()) < _LEAST_ON_CPU * waited_ns:
        inside = stacks_in(trace, others, begins, ends, "duration_ns")
        work = {row: time for row, time in inside.items() if stacks.known(row).own >= 0 and not stacks.waits(row)}
    total = sum(work.values())
    if total <= 0:
        return times
    left = {row: time for row, time in times.items() if not waits.get(row)}
    for row, time in work.items():
        left[row] = left.get(row, 0.0) + time * waited_ns / total
    return left


def _add(stacks: _Stacks, sums: defaultdict[tuple[int, int, int], _Sum], row: int, time_ns: float) -> None:
    """Adds a time to each own line on a stack; of a function that calls itself, to the innermost of its lines."""
    frame = stacks.known(row)
    called = frame.below if frame.below >= 0 else row
    own, inner = frame.own, None
    seen: set[tuple[int, int]] = set()
    while own >= 0:
        function, caller = stacks.key(own), stacks.parents[own]
        if function not in seen:
            seen.add(function)
            found = sums[(*function, stacks.lines[own])]
            found.time_ns += time_ns
            found.calls[called] += time_ns
            found.stacks.add(row)
            if inner is not None:
                found.inner[inner] += time_ns
            inner = function
        outer = stacks.known(caller)
        called = outer.below if outer.below >= 0 else own
        own = outer.own


def _functions(
    stacks: _Stacks,
    sums: dict[tuple[int, int, int], _Sum],
    cpu: dict[int, float],
    least_ns: float,
) -> list[OwnFunction]:
    """The own functions with at least so much time, the longest first; ones that others called are in these alone."""
    totals: defaultdict[tuple[int, int], float] = defaultdict(float)
    for (file, name, _), found in sums.items():
        totals[file, name] += found.time_ns
    lines: defaultdict[tuple[int, int], list[tuple[int, _Sum]]] = defaultdict(list)
    for (file, name, line), found in sums.items():
        inner, inner_ns = max(found.inner.items(), key=lambda each: each[1], default=((-1, -1), 0.0))
        if inner_ns < _MOST * found.time_ns or totals[inner] < least_ns:
            lines[file, name].append((line, found))
    chosen: dict[tuple[int, int], OwnFunction] = {}
    for key, own in lines.items():
        time_ns = sum(found.time_ns for _, found in own)
        if time_ns >= max(least_ns, 1.0):
            chosen[key] = _function(stacks, key, own, time_ns)
    cpu_sums: defaultdict[tuple[int, int, int], _Sum] = defaultdict(_Sum)
    for row, spent in cpu.items():
        if not stacks.known(row).imports:
            _add(stacks, cpu_sums, row, spent)
    for key, function in chosen.items():
        function.cpu_ns = sum(cpu_sums[(*key, line)].time_ns for line, _ in lines[key])
    outermost = dict(chosen)
    for key, function in chosen.items():
        inside = {inner: sum(found.inner[inner] for _, found in lines[key]) for inner in chosen if inner != key}
        for inner, inside_ns in inside.items():
            if 2 * inside_ns > chosen[inner].time_ns and function.time_ns >= chosen[inner].time_ns:
                function.inner.append(chosen[inner])
                outermost.pop(inner, None)
    return sorted(outermost.values(), key=lambda each: -each.time_ns)


def _function(stacks: _Stacks, key: tuple[int, int], own: list[tuple[int, _Sum]], time_ns: float) -> OwnFunction:
    file, name = (stacks.trace.string(each) for each in key)
    calls: defaultdict[str, float] = defaultdict(float)
    names = CalledNames(stacks.trace)
    for _, found in own:
        for row, spent in found.calls.items():
            calls[stacks.label(row) if stacks.key(row) != key else names.of(row)] += spent
    by_time = _by_time({line: found.time_ns for line, found in own})
    rows = frozenset().union(*(found.stacks for _, found in own))
    return OwnFunction(Where(file, by_time[0][0], name), time_ns, 0.0, by_time, _by_time(calls), rows)


def _by_time(times: dict[T, float]) -> list[tuple[T, float]]:
    """The longest first."""
    return sorted(times.items(), key=lambda each: -each[1])


class CalledNames:
    """What the program called where samples have it in a function of its own: a function that is written in C.

    Its name is in the bytecode before the instruction of the call. The bytecode is compiled from the source again, by
    the version of Python that ran it, if the source did not change since the recording began.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._is_known = trace.info.get("samples.python") == bytecode_version()
        self._codes: dict[str, list[CodeType]] = {}

    def of(self, row: int) -> str:
        """The name for a row of ``trace.stacks``, as "df.sort_values" or "time.sleep"; "" where nothing was called."""
        stacks = self._trace.stacks
        instruction, line = int(stacks.instruction[row]), int(stacks.line[row])
        if instruction == NONE or not self._is_known:
            return ""
        file, function = (self._trace.string(int(stacks[name][row])) for name in ("file", "function"))
        for code in self._codes_of(file):
            if getattr(code, "co_qualname", code.co_name) == function and line in _lines_at(code, 2 * instruction):
                return _called(code, 2 * instruction)
        return ""

    def _codes_of(self, file: str) -> list[CodeType]:
        if file not in self._codes:
            self._codes[file] = []
            lines = source_lines(self._trace, file)
            try:
                waiting = [compile("".join(lines), file, "exec", dont_inherit=True)] if lines else []
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                waiting = []
            while waiting:
                code = waiting.pop()
                self._codes[file].append(code)
                waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        return self._codes[file]


def source_lines(trace: Trace, file: str) -> list[str]:
    """The source of a file, or of a notebook's cell, if it did not change since the recording began; else empty."""
    try:
        if not file.startswith("<") and os.stat(file).st_mtime_ns > number_of(trace.info, "session.start_ns"):
            return []
    except (OSError, ValueError):
        if file not in linecache.cache:
            return []
    return linecache.getlines(file)


def _lines_at(code: CodeType, offset: int) -> list[int | None]:
    """The line of the instruction there."""
    return [line for start, end, line in code.co_lines() if start <= offset < end]


def _called(code: CodeType, offset: int) -> str:
    """The name of what the call instruction at this offset calls; "" where it is none or the name is not written.

    Before a call there are on the stack: the callable, what it is bound to (from Python 3.11 on always a place), its
    arguments. Going back from the call, the instruction that made the callable is the last one before which the stack
    was lower than that.
    """
    instructions = [each for each in dis.get_instructions(code) if each.offset <= offset]
    call = instructions.pop() if instructions else None
    if call is None or not call.opname.startswith(("CALL", "PRECALL")):
        return ""
    depth = (call.arg or 0) + 1 + (call.opname != "CALL_FUNCTION")
    if call.opname == "CALL_FUNCTION_EX":
        depth = 4 if sys.version_info >= (3, 14) else 2 + (call.arg or 0) % 2 + (sys.version_info >= (3, 11))
    elif call.opname == "CALL_KW":
        depth += 1
    if call.opname == "CALL" and instructions and instructions[-1].opname == "PRECALL":
        instructions.pop()
    heights = [depth]
    while instructions and heights[-1] > 0:
        last = instructions[len(instructions) - len(heights)] if len(heights) <= len(instructions) else None
        if last is None:
            return ""
        heights.append(heights[-1] - dis.stack_effect(last.opcode, last.arg, jump=False))
    return _name_made(instructions[len(instructions) - len(heights) + 1 :])


def _name_made(instructions: list[dis.Instruction]) -> str:
    """The name that these instructions look up first: "df.apply"; of the result of another call its last part."""
    if instructions and instructions[0].opname == "PUSH_NULL":
        instructions = instructions[1:]
    names: list[str] = []
    height = base = 0  # of the stack, and where what the names stand for is its top
    for each in instructions:
        before, height = height, height + dis.stack_effect(each.opcode, each.arg, jump=False)
        if before == 0 and each.opname.startswith("LOAD_"):
            is_name = isinstance(each.argval, str) and each.opname != "LOAD_CONST"
            names, base = [each.argval if is_name else type(each.argval).__name__], height
        elif before == base and each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(str(each.argval))
        elif height <= base and not each.opname.startswith("LOAD_"):
            names, base = [], height  # the result of another call
    return ".".join(names)


def _region_time(context: Context) -> HostTime:
    """The program's regions with much of the time, without those of which a region inside has almost all."""
    trace, thread = context.trace, context.main_thread
    regions, paths = trace.regions, trace.paths
    starts, ends = joined(context.host_steps.start_ns, context.host_steps.end_ns)
    found: dict[str, OwnFunction] = {}
    outer: dict[str, str] = {}
    names: dict[int, str] = {}  # of the regions of the program, by path; steps have none
    named = np.flatnonzero((regions.thread == thread) & (regions.path < len(paths)))
    for path in np.unique(regions.path[named]).tolist():
        parent = int(paths.parent[path])
        if int(paths.kind[path]) not in ANNOTATIONS or context.path_names[path].startswith(STEP):
            names[path] = names.get(parent, "")
            continue
        name = names[path] = str(context.where_of_path(path))
        outer[name] = names.get(parent, "")
        here = named[regions.path[named] == path]
        spans = joined(regions.start_ns[here], regions.start_ns[here] + regions.duration_ns[here])
        where = replace(context.where_of_region(int(here[0])) or Where(), file=None, region=name)
        each = found.setdefault(name, OwnFunction(where, 0.0, 0.0, [], []))
        each.time_ns += float(covered_ns(*spans, starts, ends).sum())
    wall_ns = int((ends - starts).sum())
    for name, function in list(found.items()):
        around = outer[name]
        if around in found and function.time_ns >= _MOST * found[around].time_ns:
            outer[name] = outer[around]
            del found[around]
        elif around in found:
            found[around].inner.append(function)
            del found[name]
    by_time = sorted(found.values(), key=lambda each: -each.time_ns)
    return HostTime(wall_ns, tuple(each for each in by_time if each.time_ns >= LISTED * wall_ns), (), 0.0)


def region_of(context: Context, function: OwnFunction) -> str | None:
    """The innermost region of the program that encloses most of a function's time; None without."""
    trace, thread = context.trace, context.main_thread
    samples, regions, paths = trace.python_samples, trace.regions, trace.paths
    rows = np.flatnonzero((samples.thread == thread) & np.isin(samples.stack, list(function.stacks)))
    starts, ends = joined(samples.start_ns[rows], samples.start_ns[rows] + samples.duration_ns[rows])
    named = np.flatnonzero((regions.thread == thread) & (regions.path < len(paths)))
    best: tuple[int, str] | None = None
    for path in np.unique(regions.path[named]).tolist():
        name, depth = context.path_names[path], int(paths.depth[path])
        if int(paths.kind[path]) not in ANNOTATIONS or name.startswith(STEP) or (best and best[0] > depth):
            continue
        here = named[regions.path[named] == path]
        spans = joined(regions.start_ns[here], regions.start_ns[here] + regions.duration_ns[here])
        if 2 * covered_ns(*spans, starts, ends).sum() > (ends - starts).sum():
            best = depth, name
    return best[1] if best is not None else None
