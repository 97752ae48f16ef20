# SPDX-License-Identifier: Apache-2.0
"""Time of the steps of a recording, or of a whole run, by node; and which nodes of two programs are the same."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, Flag
from gpuscope.analysis.program_tree import MOST_KNOWN, OWNERS
from gpuscope.analysis.rows import STEP
from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.own_code import own_places
from gpuscope.diagnosis.rules.scheduling import machine_condition
from gpuscope.spans import covered_ns, overlaps, union
from gpuscope.stats.means import variance_of_samples, variance_of_sums
from gpuscope.steps.breakdown import IDLE, WORK_TABLES, StepBreakdown, break_down
from gpuscope.steps.host_waits import DEEPEST, cpu_waits, spans_seen
from gpuscope.steps.steps import Steps, as_passed, launched_ns, steady_steps, whole_run
from gpuscope.threads import cached_property
from gpuscope.trace import NONE, Table, Trace, number_of

MOST_ROWS = 128
"""With more steps, neighbours are averaged: their means are less correlated, and tables stay small."""
FEWEST_SAMPLES = 20
"""With fewer samples of Python, functions are not compared."""
GPU, HOST, FUNCTION = "gpu", "host", "function"

UNSEEN = 0.25
"""Standard deviation of the excluded waits for a CPU, as a share: the sampler sees waits from 2 ms on."""
_NO_SPANS = (np.zeros(0, np.int64), np.zeros(0, np.int64))
_NO_FUNCTION = "(in no function)"
_MUCH_WAITED = 0.05  # of a run

_GRAPH = "CUDA graph"
_OWN_CALLS = (int(CallKind.OTHER), int(CallKind.ALLOC), int(CallKind.FREE))
_NUMBERS = re.compile(r"\d+")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Node:
    """A consumer of time.

    Attributes:
        kind: "gpu": kernels, copies, fills and graphs, by where they were launched. "host": self time of regions and
            operators, and driver calls that wait for no GPU. "idle": GPU idle time by cause. "function": own functions,
            with the libraries and without the own functions that they call.
        path: the regions around it without steps, outermost first; for a function its file.
        name: of the kernel, the copy, the region, the cause or the function.
    """

    kind: str
    path: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return "/".join((*self.path, self.name))

    @property
    def pattern(self) -> tuple[str, tuple[str, ...], str]:
        """The node without the numbers in its names, which compilers make up."""
        return self.kind, tuple(_NUMBERS.sub("#", name) for name in self.path), _NUMBERS.sub("#", self.name)


THE_STEP = Node(HOST, (), "(in no region)")
"""Time of the host in a step, outside all regions inside; known if steps are regions."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Means per step, times in ns. A row is a step, or the mean of neighbours with more than `MOST_ROWS` steps.

    A whole run has one row with its sums.

    Attributes:
        steps: the steps, each until its launched work has ended; for a run its pieces.
        left_out: number of excluded steps: warm-up, and cut ones.
        step_ns: of each row.
        busy_ns: of each row, work of the busiest GPU.
        nodes: in the order of the columns, in which they first occurred.
        time_ns: (rows, nodes).
        count: (rows, nodes): number per step; 0 for idle time and functions.
        variance: (nodes,), of the times of a run in ns^2, by its samples and calls; 0 for steps.
        context: the recording and these steps.
        own: kernels, regions and functions, which only versions of one program share.
        is_run: whether this is a run.
        places: the line of each function with most of its time.
        left_out_ns: waits for a CPU that other processes used, excluded from all times; only of a run.
    """

    steps: Steps
    left_out: int
    step_ns: Array
    busy_ns: Array
    nodes: tuple[Node, ...]
    time_ns: Array
    count: Array
    variance: Array
    context: Context
    own: frozenset[Node]
    is_run: bool
    places: dict[Node, Where] = field(default_factory=dict)
    left_out_ns: float = 0.0

    @property
    def values(self) -> tuple[Array, Array, Array]:
        """Times, counts and variances; the last axis is that of nodes."""
        return self.time_ns, self.count, self.variance

    def without(self, node: Node) -> Costs:
        """The same without one node."""
        kept = [column for column, each in enumerate(self.nodes) if each != node]
        nodes = tuple(self.nodes[column] for column in kept)
        time_ns, count, variance = self.time_ns[:, kept], self.count[:, kept], self.variance[kept]
        return replace(self, nodes=nodes, time_ns=time_ns, count=count, variance=variance)

    def with_functions(self, owns: Callable[[str], bool]) -> Costs:
        """The same with the program's functions, and one more node for the other time of the steps."""
        rows, waits = _StepRows(self.context.host_steps, self.is_run), self.waits if self.left_out_ns else _NO_SPANS
        part, places = _functions(self.context, rows, own_places(self.context, owns), waits)
        return replace(
            self,
            nodes=(*self.nodes, *part.nodes),
            time_ns=np.hstack([self.time_ns, part.time_ns]),
            count=np.hstack([self.count, part.count]),
            variance=np.append(self.variance, part.variance),
            own=self.own | {node for node in part.nodes if node.path},
            places=places,
        )

    def without_waits(self) -> Costs:
        """The same without `waits`."""
        starts, ends = self.waits
        trace, paths = self.context.trace, _Paths(self.context.trace)
        regions = trace.regions
        own = np.flatnonzero(((regions.flags & Flag.ASYNC) == 0) & (regions.thread == self.context.main_thread))
        begins = regions.start_ns[own]
        inside_ns = covered_ns(starts, ends, begins, begins + regions.duration_ns[own])
        alone_ns = np.zeros(len(regions) + 1)
        alone_ns[own] = inside_ns
        np.subtract.at(alone_ns, np.minimum(regions.parent[own], len(regions)), inside_ns)
        sums = np.maximum(np.bincount(paths.of_regions(own), alone_ns[own], len(paths.names)), 0.0)
        of_node = dict(zip(map(_region, paths.names), sums.tolist(), strict=True))
        waited_ns = np.array([of_node.get(node, 0.0) for node in self.nodes])
        return replace(
            self,
            step_ns=self.step_ns - (ends - starts).sum(),
            time_ns=np.maximum(self.time_ns - waited_ns, 0.0),
            variance=self.variance + (UNSEEN * waited_ns) ** 2,
            left_out_ns=float((ends - starts).sum()),
        )

    @cached_property
    def waits(self) -> tuple[Array, Array]:
        """The main thread's waits for a CPU that other processes used, in order; only of a run without GPU work."""
        if not self.is_run or self.busy_ns.any() or machine_condition(self.context) is None:
            return _NO_SPANS
        starts, ends = union(*cpu_waits(self.context.trace, self.context.main_thread)[1])
        steps = self.context.host_steps
        starts, ends = np.maximum(starts, steps.start_ns[0]), np.minimum(ends, steps.end_ns[-1])
        return starts[ends > starts], ends[ends > starts]


def costs_of(trace: Trace, every: Steps, *, is_run: bool = False) -> Costs:
    """Time of the steps of a recording, or of the whole run, by node.

    Args:
        trace: the recording.
        every: its steps.
        is_run: use the run instead of the steps.
    """
    steps, left_out = steady_steps(every)
    completed, _ = steady_steps(as_passed(trace, every))
    if is_run:
        steps, left_out = replace(whole_run(trace, MOST_ROWS), thread=every.thread), 0
        completed = as_passed(trace, steps)
    rows, paths = _StepRows(steps, is_run), _Paths(trace)
    parts = [*_gpu_work(trace, rows, paths), _regions(trace, rows, paths)]
    own = frozenset(node for part in parts for node in part.nodes) - {THE_STEP}
    found = break_down(trace, completed)
    idle, busy_ns = _idle(found, rows)
    part = _merged([*parts, _calls(trace, rows, paths), idle])
    step_ns, context = rows.means(completed.durations_ns), Context(trace, steps, found)
    about = (tuple(part.nodes), part.time_ns, part.count, part.variance)
    return Costs(completed, left_out, step_ns, busy_ns, *about, context, own, is_run)


def without_waits(sides: Sequence[Sequence[Costs]]) -> list[list[Costs]]:
    """Runs without waits for a CPU that other processes used, if these are much of any run and known of all."""
    infos = [costs.context.trace.info for side in sides for costs in side]
    if any("host.thread_waits" not in info for info in infos) or all(
        np.subtract(*costs.waits[::-1]).sum() < _MUCH_WAITED * costs.step_ns.mean() for side in sides for costs in side
    ):
        return [list(side) for side in sides]
    return [[costs.without_waits() for costs in side] for side in sides]


def compare_functions(sides: Sequence[Sequence[Costs]]) -> tuple[list[list[Costs]], str | None]:
    """Both sides with the program's functions; unchanged, with the reason, if a recording has none."""
    every = [costs for side in sides for costs in side]
    for name, side in zip(("before", "after"), sides, strict=True):
        for costs in side:
            if reason := _why_no_functions(costs.context.trace):
                return [list(side) for side in sides], f"functions: the recording {name} {reason}"
    for owns in (*OWNERS, OWNERS[0]):
        found = [[costs.with_functions(owns) for costs in side] for side in sides]
        rests = [costs.time_ns[:, -1].mean() for side in found for costs in side]
        if all(rest <= (1 - MOST_KNOWN) * costs.step_ns.mean() for rest, costs in zip(rests, every, strict=True)):
            break
    return found, None


def _why_no_functions(trace: Trace) -> str | None:
    taken = int(trace.python_samples["count"].sum())
    if "file.truncated_at" in trace.info or number_of(trace.info, "file.lost_blocks"):
        return "is damaged"
    if taken == 0 and "samples.interval_ns" not in trace.info:
        return "has no samples of Python (python_samples=True)"
    if taken < FEWEST_SAMPLES:
        return f"has {taken} sample{'s' * (taken != 1)} of Python; {FEWEST_SAMPLES} are the least"
    if number_of(trace.info, "audit.evicted"):
        return 'keeps only its latest part (mode="ring")'
    return None


@dataclass(frozen=True, eq=False)
class _Part:
    """Nodes with their columns, as in `Costs`."""

    nodes: list[Node]
    time_ns: Array
    count: Array
    variance: Array


class _StepRows:
    """The row of each step; all pieces of a run are in one row, which has their sums."""

    def __init__(self, steps: Steps, is_run: bool) -> None:
        self.steps = steps
        self.is_run = is_run
        self.count = 1 if is_run else min(len(steps), MOST_ROWS)
        self.of_step: Array = np.arange(len(steps)) * self.count // max(len(steps), 1)
        self._sizes = np.ones(1) if is_run else np.bincount(self.of_step, minlength=self.count)

    def means(self, values: Array) -> Array:
        """Row means of values per step."""
        means: Array = np.bincount(self.of_step, values, minlength=self.count) / self._sizes
        return means

    def table(self, moments: Array, columns: Array, width: int, values: Array) -> Array:
        """Means per step, (rows, width), of values at these moments."""
        step = self.steps.at(moments)
        inside = step >= 0
        return self._sums(step[inside], columns[inside], width, values[inside])

    def spread(self, starts: Array, ends: Array, columns: Array, width: int, values: Array) -> Array:
        """The same for values that are spread evenly from `starts` to `ends`."""
        each, step = overlaps((self.steps.start_ns, self.steps.end_ns), starts, ends)
        shared = np.minimum(ends[each], self.steps.end_ns[step]) - np.maximum(starts[each], self.steps.start_ns[step])
        return self._sums(step, columns[each], width, values[each] * (shared / np.maximum(ends - starts, 1)[each]))

    def _sums(self, step: Array, columns: Array, width: int, values: Array) -> Array:
        sums = np.bincount(self.of_step[step] * width + columns, values, minlength=self.count * width)
        means: Array = sums.reshape(self.count, width) / self._sizes[:, None]
        return means


class _Paths:
    """The names of each path without steps; paths with the same names have one number.

    Paths deeper than `DEEPEST` count for the region at that depth.
    """

    def __init__(self, trace: Trace) -> None:
        found: dict[tuple[str, ...], int] = {(): 0}
        names: list[tuple[str, ...]] = []
        number: list[int] = []
        for parent, name in zip(trace.paths.parent.tolist(), trace.paths.name.tolist(), strict=True):
            spelled = trace.string(name)
            around = names[parent] if parent < len(names) else ()
            path = around if spelled.startswith(STEP) or len(around) >= DEEPEST else (*around, spelled)
            names.append(path)
            number.append(found.setdefault(path, len(found)))
        self.names = list(found)
        self._number = np.array([*number, 0], np.int64)
        self._of_region = np.append(trace.regions.path, NONE)

    def of_regions(self, regions: Array) -> Array:
        """The number of the path of each row of ``trace.regions``; NONE has the number of the empty path."""
        path = self._of_region[np.minimum(regions, len(self._of_region) - 1)]
        numbers: Array = self._number[np.minimum(path, len(self._number) - 1)]
        return numbers


def _gpu_work(trace: Trace, rows: _StepRows, paths: _Paths) -> Iterable[_Part]:
    for attribute in WORK_TABLES:
        table: Table = getattr(trace, attribute)
        if len(table) == 0:
            continue
        names, name = _names_of(trace, attribute, table)
        keys = paths.of_regions(table.region) * len(names) + name

        def node(key: int, names: list[str] = names) -> Node:
            return Node(GPU, paths.names[key // len(names)], names[key % len(names)])

        yield _part(rows, launched_ns(trace, table), keys, table.duration_ns, node)


def _names_of(trace: Trace, attribute: str, table: Table) -> tuple[list[str], Array]:
    """Distinct names, and the name of each row."""
    if attribute == "kernels":
        of_variant = [*trace.kernel_names(short=True), ""]
        names = list(dict.fromkeys(of_variant))
        number = {name: index for index, name in enumerate(names)}
        of = np.array([number[name] for name in of_variant])
        return names, of[np.minimum(table.variant, len(of) - 1)]
    if attribute == "memcpy":
        keys = table.kind.astype(np.int64) << 16 | table.source.astype(np.int64) << 8 | table.destination
        each, of_row = np.unique(keys, return_inverse=True)
        spelled = [_core.copy_name(key >> 16, key >> 8 & 0xFF, key & 0xFF) for key in each.tolist()]
        names = list(dict.fromkeys(spelled))
        return names, np.array([names.index(name) for name in spelled])[of_row.reshape(-1)]
    only = _core.MEMSET_NAME if attribute == "memset" else _GRAPH
    return [only], np.zeros(len(table), np.int64)


def _regions(trace: Trace, rows: _StepRows, paths: _Paths) -> _Part:
    regions = trace.regions
    own = np.flatnonzero((regions.flags & Flag.ASYNC) == 0)
    keys = paths.of_regions(own)
    self_ns = trace.instances.self_cpu_ns[own]
    return _part(rows, regions.start_ns[own], keys, self_ns, lambda key: _region(paths.names[key]))


def _region(path: tuple[str, ...]) -> Node:
    return Node(HOST, path[:-1], path[-1]) if path else THE_STEP


def _calls(trace: Trace, rows: _StepRows, paths: _Paths) -> _Part:
    """Calls that take the host's own time; launches and copies may wait for a full queue, as synchronizing does."""
    calls = trace.api
    kinds = np.append(trace.calls.kind, int(CallKind.OTHER))
    own = np.flatnonzero(np.isin(kinds[np.minimum(calls.call, len(kinds) - 1)], _OWN_CALLS))
    names = [*map(trace.string, trace.calls.name.tolist()), ""]
    keys = paths.of_regions(calls.region[own]) * len(names) + np.minimum(calls.call[own], len(names) - 1)

    def node(key: int) -> Node:
        return Node(HOST, paths.names[key // len(names)], names[key % len(names)])

    return _part(rows, calls.start_ns[own], keys, calls.duration_ns[own], node)


def _part(rows: _StepRows, moments: Array, keys: Array, values: Array, node: Callable[[int], Node]) -> _Part:
    each, first, column = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # columns in the order in which they first came
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    columns, width = place[column.reshape(-1)], len(each)
    time_ns = rows.table(moments, columns, width, values)
    count = rows.table(moments, columns, width, np.ones(len(moments)))
    variance = np.zeros(width)
    if rows.is_run:
        in_time = np.argsort(moments, kind="stable")
        variance = variance_of_sums(values[in_time], columns[in_time], width)
    return _Part([node(key) for key in each[order].tolist()], time_ns, count, variance)


def _idle(found: StepBreakdown, rows: _StepRows) -> tuple[_Part, Array]:
    """Idle time by cause, and the work of the busiest GPU."""
    nodes, columns = [], []
    durations = found.steps.durations_ns
    busiest: Array = np.zeros(len(durations))
    for device in found.devices:
        idle_ns = np.zeros(len(durations))
        for part in device.parts:
            if part.kind != IDLE:
                continue
            idle_ns += part.per_step_ns
            nodes.append(Node(IDLE, (f"GPU {device.device}",) if len(found.devices) > 1 else (), part.name))
            columns.append(part.per_step_ns)
        busy_ns = durations - idle_ns
        busiest = busy_ns if busy_ns.sum() > busiest.sum() else busiest
    time_ns = np.column_stack([rows.means(each) for each in columns]) if columns else np.zeros((rows.count, 0))
    variance = np.zeros(len(nodes))
    if rows.is_run and columns:
        of_node = np.repeat(np.arange(len(nodes)), len(durations))
        variance = variance_of_sums(np.concatenate(columns), of_node, len(nodes))
    return _Part(nodes, time_ns, np.zeros_like(time_ns), variance), rows.means(busiest)


def _functions(
    context: Context, rows: _StepRows, lines: dict[int, tuple[Where, float]], waits: tuple[Array, Array]
) -> tuple[_Part, dict[Node, Where]]:
    """Functions by name and file, by samples in each step and without these waits; and their longest lines.

    The last node is the time in no function.
    """
    samples, width = context.trace.python_samples, len(context.trace.stacks)
    number: dict[Node, int] = {}
    columns, totals = np.full(width + 1, -1), np.zeros(width + 1)
    of_line: defaultdict[Node, defaultdict[Where, float]] = defaultdict(lambda: defaultdict(float))
    for stack, (where, time_ns) in lines.items():
        node = Node(FUNCTION, (os.path.basename(where.file),) if where.file else (), where.function or "")
        columns[stack] = number.setdefault(node, len(number))
        totals[stack] = time_ns
        of_line[node][where] += time_ns
    rest = len(number)
    columns[columns < 0] = rest
    taken = np.flatnonzero(samples.duration_ns > 0)
    taken = taken[np.lexsort((samples.start_ns[taken], samples.thread[taken]))]
    starts, ends = spans_seen(context.trace, taken)
    stacks = np.minimum(samples.stack[taken], width)
    seen_ns = covered_ns(*union(rows.steps.start_ns, rows.steps.end_ns), starts, ends)
    scale = (totals / np.maximum(np.bincount(stacks, seen_ns, width + 1), 1.0))[stacks]
    is_main = samples.thread[taken] == context.main_thread
    waited_ns = np.where(is_main, covered_ns(*waits, starts, ends), 0) * scale
    of, left_ns = columns[stacks], np.maximum((ends - starts) * scale - waited_ns, 0)
    table = rows.spread(starts, ends, of, rest + 1, left_ns)
    left_out_ns = int((waits[1] - waits[0]).sum())
    host_ns = rows.means(rows.steps.durations_ns) - left_out_ns
    table[:, rest] = np.maximum(host_ns - table[:, :rest].sum(axis=1), 0.0)
    variance = np.zeros(rest + 1)
    if rows.is_run:
        looks_ns = (ends - starts) / np.maximum(samples["count"][taken], 1)
        waited = np.bincount(of, waited_ns, rest + 1)
        waited[rest] = left_out_ns
        variance = variance_of_samples(of, looks_ns, rest + 1) + (UNSEEN * waited) ** 2
        variance[rest] += 2 * number_of(context.trace.info, "samples.interval_ns") ** 2  # at the first and last sample
    places = {node: max(each, key=lambda where: each[where]) for node, each in of_line.items()}
    return _Part([*number, Node(FUNCTION, (), _NO_FUNCTION)], table, np.zeros_like(table), variance), places


def _merged(parts: Sequence[_Part]) -> _Part:
    """One column per node."""
    number: dict[Node, int] = {}
    place = np.array([number.setdefault(node, len(number)) for part in parts for node in part.nodes], np.int64)
    variance = np.bincount(place, np.concatenate([part.variance for part in parts]), len(number))
    merged = []
    for table in (np.hstack([part.time_ns for part in parts]), np.hstack([part.count for part in parts])):
        merged.append(np.zeros((len(table), len(number))))
        np.add.at(merged[-1].T, place, table.T)
    return _Part(list(number), merged[0], merged[1], variance)


def pair(before: Sequence[Node], after: Sequence[Node]) -> dict[Node, Node]:
    """The node after of each node before that has one: of the same name, then by order if only numbers differ.

    A function that is the only one of its name on either side may be in another file. Nodes whose names differ only in
    numbers are not paired if there are more or fewer of them: it is unknown which is which.
    """
    there = set(after)
    paired = {node: node for node in before if node in there}
    for key in (_function_name, lambda node: node.pattern):
        groups: tuple[defaultdict[Any, list[Node]], ...] = (defaultdict(list), defaultdict(list))
        known = set(paired.values())
        for group, nodes, done in zip(groups, (before, after), (paired, known), strict=True):
            for node in nodes:
                if node not in done:
                    group[key(node)].append(node)
        for name, nodes in groups[0].items():
            others = groups[1].get(name, [])
            if name is not None and len(nodes) == len(others) and (key is not _function_name or len(nodes) == 1):
                paired |= zip(nodes, others, strict=True)
    return paired


def _function_name(node: Node) -> str | None:
    return node.name if node.kind == FUNCTION and node.path else None
