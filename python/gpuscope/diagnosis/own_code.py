# SPDX-License-Identifier: Apache-2.0
"""Attributes the time of the host to the program's own functions and lines, from samples."""

from __future__ import annotations

import dis
import linecache
import os
import stat
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import TypeVar

import numpy as np

from gpuscope.analysis.program_tree import MOST_KNOWN, OWNERS, ProgramStacks
from gpuscope.analysis.rows import ANNOTATIONS, STEP
from gpuscope.diagnosis.context import Context, Where
from gpuscope.spans import covered_ns, expand, intersection, overlaps, union
from gpuscope.steps.host_waits import spans_seen, stacks_in
from gpuscope.steps.steps import Array
from gpuscope.system import bytecode_version
from gpuscope.trace import NONE, Trace, number_of

T = TypeVar("T")

FEWEST_SAMPLES = 20
"""With fewer, the start and the end of a program, which are not its own code, may be most of them."""
MUCH = 0.2
"""A function of the program with this share of the time is a finding."""
LISTED = 0.05
"""One with this share is listed."""
# A line that spends almost all of its time in own functions is not named; these are. It is named if it passes them to a
# library, as `DataFrame.apply`, unless the library itself takes next to nothing.
_MOST, _ALL = 0.8, 0.9
_PIECE_NS = 10_000_000
_LEAST_ON_CPU = 0.2  # share of the time that threads must compute if another one waits for them


@dataclass(eq=False)
class OwnFunction:
    """A function of the program. Times are in ns; of a step, or of the run where there are no steps.

    Attributes:
        where: its line with most of the time.
        time_ns: inclusive time, without lines whose time is almost all spent in other own functions.
        cpu_ns: the part of `time_ns` on a CPU.
        lines: its lines and their time, the longest first.
        calls: the names of the functions called and their time, the longest first; "" is its own Python code.
        stacks: rows of ``trace.stacks`` of samples in it.
        inner: own functions with much of the time that were called from here.
        listed_ns: exclusive time among the listed functions; these add up.
    """

    where: Where
    time_ns: float
    cpu_ns: float
    lines: list[tuple[int, float]]
    calls: list[tuple[str, float]]
    stacks: frozenset[int] = frozenset()
    inner: list[OwnFunction] = field(default_factory=list)
    listed_ns: float = 0.0

    @property
    def name(self) -> str:
        """For display: "add_tax (etl.py:18)"; for a region its name."""
        if self.where.file is None:
            return str(self.where.region)
        return f"{self.where.module if self.where.function == '<module>' else self.where.function} ({self.where})"


@dataclass(frozen=True)
class HostTime:
    """Where the time of the thread that takes the steps went, and of the threads it waited for.

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


@dataclass
class _Sum:
    """Sums of one line of the program."""

    time_ns: float = 0.0
    cpu_ns: float = 0.0
    direct: defaultdict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))  # called directly
    inner: defaultdict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))  # own functions
    calls: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))  # rows that it called, or itself
    stacks: set[int] = field(default_factory=set)


def host_time(context: Context) -> HostTime:
    """Attributes the time of the thread that takes the steps to the program's own functions.

    While that thread waits for other threads, its time is attributed to these: to the ones that compute, otherwise to
    the ones inside the program's code. Without samples, regions are used instead of functions. If most of the time is
    outside the program's code (an installed tool), packages count as own code, then the standard library.
    """
    trace = context.trace
    if len(trace.python_samples) == 0:
        return _region_time(context)
    spans = union(context.host_steps.start_ns, context.host_steps.end_ns)
    wall_ns = int((spans[1] - spans[0]).sum())
    for owns in OWNERS if trace.python_samples["count"].sum() >= FEWEST_SAMPLES else OWNERS[:1]:
        stacks = ProgramStacks(trace, owns)
        own, imports, idle = _split(stacks, _times(context, stacks, spans))
        idle_ns = sum(idle.values())
        if sum(time for time, _ in own.values()) + sum(imports.values()) + idle_ns >= MOST_KNOWN * wall_ns:
            break
    packages: defaultdict[str, float] = defaultdict(float)
    for row, time_ns in imports.items():
        packages[stacks.imported(row)] += time_ns
    functions = _functions(stacks, own, LISTED * wall_ns)
    return HostTime(wall_ns, tuple(functions), tuple(_by_time(packages)), idle_ns)


def own_places(context: Context, owns: Callable[[str], bool]) -> dict[int, tuple[Where, float]]:
    """The own line of each row of ``trace.stacks`` and its exclusive time in ns, attributed as by `host_time`.

    The time of a line includes libraries that it calls. Imports and an idle event loop have a name and no file.

    Args:
        context: of the steps to look at.
        owns: which files are the program's, one of `OWNERS`.
    """
    stacks = ProgramStacks(context.trace, owns)
    spans = union(context.host_steps.start_ns, context.host_steps.end_ns)
    own, imports, idle = _split(stacks, _times(context, stacks, spans))
    found: dict[int, tuple[Where, float]] = {}
    for row, (time_ns, _) in own.items():
        at = stacks.known(row).own
        file, function = map(context.trace.string, stacks.key(at))
        found[row] = Where(file, stacks.lines[at], function), time_ns
    found |= {row: (Where(function=f"import {stacks.imported(row)}"), time_ns) for row, time_ns in imports.items()}
    return found | {row: (Where(function="idle event loop"), time_ns) for row, time_ns in idle.items()}


def _split(
    stacks: ProgramStacks, times: dict[int, tuple[float, float]]
) -> tuple[dict[int, tuple[float, float]], dict[int, float], dict[int, float]]:
    """Time and CPU time in own code, time of imports, and time in an event loop with nothing to do, by row."""
    own: dict[int, tuple[float, float]] = {}
    imports: dict[int, float] = {}
    idle: dict[int, float] = {}
    for row, (time_ns, cpu_ns) in times.items():
        frame = stacks.known(row)
        if frame.imports:
            imports[row] = time_ns
        elif stacks.idles(row):
            idle[row] = time_ns
        elif frame.own >= 0:
            own[row] = time_ns, cpu_ns
    return own, imports, idle


def _times(context: Context, stacks: ProgramStacks, spans: tuple[Array, Array]) -> dict[int, tuple[float, float]]:
    """Time and CPU time by row of ``trace.stacks``."""
    samples, main = context.trace.python_samples, context.main_thread
    known = (samples.stack < len(context.trace.stacks)) & (samples.duration_ns > 0)
    rows = np.flatnonzero(known & (samples.thread == main))
    waits = {row: stacks.waits(row) or stacks.idles(row) for row in np.unique(samples.stack[rows]).tolist()}
    waiting = np.array([waits[row] for row in samples.stack[rows].tolist()], bool)
    on_cpu = stacks_in(context.trace, [main], *spans, "cpu_ns")
    lasted = stacks_in(context.trace, [main], *spans, "duration_ns")
    times = {row: (time, on_cpu.get(row, 0.0)) for row, time in lasted.items()}
    others = np.flatnonzero(known & (samples.thread != main))
    if not waiting.any() or len(others) == 0:
        return times
    begins, ends = union(samples.start_ns[rows[waiting]], (samples.start_ns + samples.duration_ns)[rows[waiting]])
    shared_ns, work = _work_meanwhile(stacks, others, *intersection(spans, (begins, ends)))
    waited_ns = sum(time for row, (time, _) in times.items() if waits.get(row))
    left, most = max(1.0 - shared_ns / max(waited_ns, 1.0), 0.0), min(waited_ns / max(shared_ns, 1.0), 1.0)
    found = {row: (time * left, cpu * left) if waits.get(row) else (time, cpu) for row, (time, cpu) in times.items()}
    for row, (time, cpu_ns) in work.items():
        before = found.get(row, (0.0, 0.0))
        found[row] = before[0] + time * most, before[1] + cpu_ns * most
    return found


def _own_stacks(context: Context) -> ProgramStacks:
    return ProgramStacks(context.trace)


def functions_in(context: Context, threads: set[int], spans: tuple[Array, Array], least_ns: float) -> list[OwnFunction]:
    """The own functions with at least `least_ns` on these threads in disjoint, sorted spans; the longest first."""
    stacks = context.once(_own_stacks)
    on_cpu = stacks_in(context.trace, threads, *spans, "cpu_ns")
    times = {
        row: (time, on_cpu.get(row, 0.0))
        for row, time in stacks_in(context.trace, threads, *spans, "duration_ns").items()
        if stacks.known(row).own >= 0
    }
    return _functions(stacks, times, least_ns)


def spans_of(context: Context, function: OwnFunction, threads: set[int], spans: tuple[Array, Array]) -> Array:
    """When samples saw a function on these threads in these spans: rows of thread, start and end in ns."""
    samples = context.trace.python_samples
    found = [np.zeros((0, 3), np.int64)]
    rows = np.flatnonzero(np.isin(samples.thread, list(threads)) & (samples.duration_ns > 0))
    starts, ends = spans_seen(context.trace, rows)
    is_there = np.isin(samples.stack[rows], list(function.stacks))
    for thread in sorted(threads):
        here = is_there & (samples.thread[rows] == thread)
        begins, until = intersection(spans, union(starts[here], ends[here]))
        found.append(np.stack([np.full(len(begins), thread), begins, until], axis=1))
    return np.concatenate(found)


def waits_for_threads(context: Context, spans: tuple[Array, Array]) -> bool:
    """Whether the thread that takes the steps is in a join, wait or idle event loop for most of the spans."""
    stacks = context.once(_own_stacks)
    times = stacks_in(context.trace, [context.main_thread], *spans, "duration_ns")
    waited = sum(time for row, time in times.items() if stacks.waits(row) or stacks.idles(row))
    return 2 * waited > sum(times.values())


def _work_meanwhile(
    stacks: ProgramStacks, others: Array, begins: Array, ends: Array
) -> tuple[float, dict[int, tuple[float, float]]]:
    """Attributes these spans to other threads: the attributed ns, and ns and CPU ns by row of ``trace.stacks``.

    Each piece of `_PIECE_NS` is divided among the threads that compute, by CPU time; if none does, among the threads in
    own code.
    """
    samples = stacks.trace.python_samples
    starts, lasted = samples.start_ns[others], samples.duration_ns[others].astype(np.int64)
    stack, busy = samples.stack[others].astype(np.int64), np.minimum(samples.cpu_ns[others] / lasted, 1.0)
    is_own = {row: stacks.known(row).own >= 0 and not stacks.waits(row) for row in np.unique(stack).tolist()}
    own = np.array([is_own[row] for row in stack.tolist()], bool)
    # Cut the spans into pieces, then pair each sample with each piece it overlaps.
    counts = np.maximum(-(-(ends - begins) // _PIECE_NS), 1)
    span, number = expand(np.zeros_like(counts), counts)
    piece_starts = begins[span] + number * _PIECE_NS
    piece_ends = np.minimum(piece_starts + _PIECE_NS, ends[span])
    row, piece = overlaps((piece_starts, piece_ends), starts, starts + lasted)
    shared = np.minimum((starts + lasted)[row], piece_ends[piece]) - np.maximum(starts[row], piece_starts[piece])
    computed = np.bincount(piece, shared * busy[row], len(span))
    is_busy = computed >= _LEAST_ON_CPU * (piece_ends - piece_starts)
    weights = np.where(is_busy[piece], shared * busy[row], shared * own[row])
    totals = np.bincount(piece, weights, len(span))
    parts = weights * ((piece_ends - piece_starts) / np.maximum(totals, 1.0))[piece]
    times = np.bincount(stack[row], parts)
    # A piece with computing threads counts as CPU time, even if they take turns (GIL).
    cpu = np.bincount(stack[row], parts * np.where(is_busy[piece], 1.0, busy[row]))
    filled = float((piece_ends - piece_starts)[totals > 0].sum())
    return filled, {each: (float(times[each]), float(cpu[each])) for each in np.flatnonzero(times).tolist()}


def _add(
    stacks: ProgramStacks, sums: defaultdict[tuple[int, int, int], _Sum], row: int, time_ns: float, cpu_ns: float
) -> None:
    """Adds a time to each own line on a stack. A recursive function gets it once, at its innermost line."""
    frame = stacks.known(row)
    called = frame.below if frame.below >= 0 else row
    own, inner, is_direct = frame.own, None, False
    seen: set[tuple[int, int]] = set()
    while own >= 0:
        function, caller = stacks.key(own), stacks.parents[own]
        if function not in seen:
            seen.add(function)
            found = sums[(*function, stacks.lines[own])]
            found.time_ns += time_ns
            found.cpu_ns += cpu_ns
            found.calls[called] += time_ns
            found.stacks.add(row)
            if inner is not None:
                found.inner[inner] += time_ns
                if is_direct:
                    found.direct[inner] += time_ns
            inner = function
        outer = stacks.known(caller)
        is_direct = outer.below < 0
        called = outer.below if outer.below >= 0 else own
        own = outer.own


def _functions(stacks: ProgramStacks, times: dict[int, tuple[float, float]], least_ns: float) -> list[OwnFunction]:
    """The own functions with at least `least_ns`, the longest first.

    Functions that are mostly called by another one are among its `inner`.
    """
    sums: defaultdict[tuple[int, int, int], _Sum] = defaultdict(_Sum)
    for row, (time_ns, cpu_ns) in times.items():
        _add(stacks, sums, row, time_ns, cpu_ns)
    totals: defaultdict[tuple[int, int], float] = defaultdict(float)
    for (file, name, _), found in sums.items():
        totals[file, name] += found.time_ns
    lines: defaultdict[tuple[int, int], list[tuple[int, _Sum]]] = defaultdict(list)
    for (file, name, line), found in sums.items():
        given, direct = (
            sum(time for each, time in called.items() if totals[each] >= least_ns)
            for called in (found.inner, found.direct)
        )
        if direct < _MOST * found.time_ns and given < _ALL * found.time_ns:
            lines[file, name].append((line, found))
    chosen: dict[tuple[int, int], OwnFunction] = {}
    for key, own in lines.items():
        if sum(found.time_ns for _, found in own) >= max(least_ns, 1.0):
            chosen[key] = _function(stacks, key, own)
    outermost = dict(chosen)
    for key, function in chosen.items():
        inside = {inner: sum(found.inner[inner] for _, found in lines[key]) for inner in chosen if inner != key}
        for inner, inside_ns in inside.items():
            if 2 * inside_ns > chosen[inner].time_ns and function.time_ns >= chosen[inner].time_ns:
                function.inner.append(chosen[inner])
                outermost.pop(inner, None)
    for row, (time_ns, _) in times.items():
        own_row = stacks.known(row).own
        while own_row >= 0 and stacks.key(own_row) not in outermost:
            own_row = stacks.known(stacks.parents[own_row]).own
        if own_row >= 0:
            outermost[stacks.key(own_row)].listed_ns += time_ns
    return sorted(outermost.values(), key=lambda each: -each.time_ns)


def _function(stacks: ProgramStacks, key: tuple[int, int], own: list[tuple[int, _Sum]]) -> OwnFunction:
    file, name = (stacks.trace.string(each) for each in key)
    calls: defaultdict[str, float] = defaultdict(float)
    names = CalledNames(stacks.trace)
    for _, found in own:
        for row, spent in found.calls.items():
            calls[stacks.label(row) if stacks.key(row) != key else names.of(row)] += spent
    by_time = _by_time({line: found.time_ns for line, found in own})
    rows = frozenset().union(*(found.stacks for _, found in own))
    time_ns, cpu_ns = sum(found.time_ns for _, found in own), sum(found.cpu_ns for _, found in own)
    return OwnFunction(Where(file, by_time[0][0], name), time_ns, cpu_ns, by_time, _by_time(calls), rows)


def _by_time(times: dict[T, float]) -> list[tuple[T, float]]:
    """Names and times, the longest first."""
    return sorted(times.items(), key=lambda each: -each[1])


class CalledNames:
    """Names the C function that an own function was calling at a sample.

    The name is in the bytecode before the call instruction. The bytecode is compiled again from the source, if this is
    the same version of Python and the source did not change since the recording began.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._is_known = trace.info.get("samples.python") == bytecode_version()
        self._codes: dict[str, list[CodeType]] = {}

    def of(self, row: int) -> str:
        """The name for a row of ``trace.stacks``, as "df.sort_values" or "time.sleep"; "" if nothing was called."""
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
        if not file.startswith("<"):
            found = os.stat(file)
            # A file of a recording may be any path; a device or pipe might never end.
            is_file = stat.S_ISREG(found.st_mode)
            if not is_file or found.st_mtime_ns > number_of(trace.info, "session.start_ns"):
                return []
    except (OSError, ValueError):
        if file not in linecache.cache:
            return []
    return linecache.getlines(file)


def _lines_at(code: CodeType, offset: int) -> list[int | None]:
    """The line of the instruction at this offset."""
    return [line for start, end, line in code.co_lines() if start <= offset < end]


def _called(code: CodeType, offset: int) -> str:
    """The name that the call instruction at this offset calls; "" if it is no call or calls no name.

    The stack before a call holds the callable, `self` (since Python 3.11 always a slot) and the arguments. Going back
    from the call, the last instruction before which the stack was lower is the one that pushed the callable.
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
    """The name that these instructions look up first: "df.apply". Of another call's result the last attribute."""
    if instructions and instructions[0].opname == "PUSH_NULL":
        instructions = instructions[1:]
    names: list[str] = []
    height = base = 0  # of the stack; `base`: with the value of `names` on top
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
    """The program's regions with much of the time. A region is left out if one inside it has almost all of its time."""
    trace, thread = context.trace, context.main_thread
    regions, paths = trace.regions, trace.paths
    starts, ends = union(context.host_steps.start_ns, context.host_steps.end_ns)
    found: dict[str, OwnFunction] = {}
    outer: dict[str, str] = {}
    names: dict[int, str] = {}  # of the regions of the program, by path; steps have none
    named = np.flatnonzero((regions.thread == thread) & (regions.path < len(paths)))
    each_path, first = np.unique(regions.path[named], return_index=True)
    entered = context.stacks_of_regions(named[first]).tolist()
    for path, stack in zip(each_path.tolist(), entered, strict=True):
        parent = int(paths.parent[path])
        if int(paths.kind[path]) not in ANNOTATIONS or context.path_names[path].startswith(STEP):
            names[path] = names.get(parent, "")
            continue
        name = names[path] = str(context.where_of_path(path))
        outer[name] = names.get(parent, "")
        here = named[regions.path[named] == path]
        spans = union(regions.start_ns[here], regions.start_ns[here] + regions.duration_ns[here])
        where = replace(context.where_of_stack(stack) or Where(), file=None, region=name)
        each = found.setdefault(name, OwnFunction(where, 0.0, 0.0, [], []))
        each.time_ns += float(covered_ns(*spans, starts, ends).sum())
        each.listed_ns = each.time_ns
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
    """The innermost region that encloses most of a function's time; None if there is none."""
    trace, thread = context.trace, context.main_thread
    samples, regions, paths = trace.python_samples, trace.regions, trace.paths
    rows = np.flatnonzero((samples.thread == thread) & np.isin(samples.stack, list(function.stacks)))
    starts, ends = union(samples.start_ns[rows], samples.start_ns[rows] + samples.duration_ns[rows])
    named = np.flatnonzero((regions.thread == thread) & (regions.path < len(paths)))
    best: tuple[int, str] | None = None
    for path in np.unique(regions.path[named]).tolist():
        name, depth = context.path_names[path], int(paths.depth[path])
        if int(paths.kind[path]) not in ANNOTATIONS or name.startswith(STEP) or (best and best[0] > depth):
            continue
        here = named[regions.path[named] == path]
        spans = union(regions.start_ns[here], regions.start_ns[here] + regions.duration_ns[here])
        if 2 * covered_ns(*spans, starts, ends).sum() > (ends - starts).sum():
            best = depth, name
    return best[1] if best is not None else None
