# SPDX-License-Identifier: Apache-2.0
"""What the steps of a recording are spent on, node by node, and which nodes of two programs are the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, Flag
from gpuscope.analysis.rows import STEP
from gpuscope.diagnosis.breakdown import IDLE, WORK_TABLES, break_down
from gpuscope.diagnosis.steps import Steps, as_passed, find_steps, launched_ns, steady_steps
from gpuscope.trace import NONE, Table, Trace

MOST_ROWS = 128
"""Of more steps, neighbours are put together: so many means resemble each other less, and tables stay small."""
GPU, HOST = "gpu", "host"

_GRAPH = "CUDA graph"
_OWN_CALLS = (int(CallKind.OTHER), int(CallKind.ALLOC), int(CallKind.FREE))
_NUMBERS = re.compile(r"\d+")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Node:
    """What takes time.

    Attributes:
        kind: "gpu" for kernels, copies, fills and graphs by where they were launched; "host" for what regions and
            operators take by themselves, without those inside, and for driver calls that wait for no GPU; "idle" for
            what a GPU waits for.
        path: the regions around it, outermost first; steps are none.
        name: of the kernel, the copy, the region or the cause.
    """

    kind: str
    path: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return "/".join((*self.path, self.name))

    @property
    def pattern(self) -> tuple[str, tuple[str, ...], str]:
        """The same for names that differ in numbers alone, as those that compilers make up."""
        return self.kind, tuple(_NUMBERS.sub("#", name) for name in self.path), _NUMBERS.sub("#", self.name)


THE_STEP = Node(HOST, (), "(in no region)")
"""What the host does in a step and in no region inside; known where steps are regions."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Means a step; where there are more steps than `MOST_ROWS`, a row is the mean of neighbouring ones. Times in ns.

    Attributes:
        steps: those that were looked at, each until what it launched had ended.
        left_out: how many were not, as they start up or are cut.
        step_ns: of each row.
        busy_ns: of each row, how long the busiest GPU worked.
        nodes: in the order of the columns, which is that in which they first came.
        time_ns: (rows, nodes).
        count: (rows, nodes): how often; 0 for idle time.
    """

    steps: Steps
    left_out: int
    step_ns: Array
    busy_ns: Array
    nodes: tuple[Node, ...]
    time_ns: Array
    count: Array

    def without(self, node: Node) -> Costs:
        """The same but for one node."""
        kept = [column for column, each in enumerate(self.nodes) if each != node]
        nodes = tuple(self.nodes[column] for column in kept)
        return replace(self, nodes=nodes, time_ns=self.time_ns[:, kept], count=self.count[:, kept])


def costs_of(trace: Trace) -> Costs:
    """What the steps of a recording are spent on.

    Raises:
        NotAvailable: its steps are not known.
    """
    every = find_steps(trace)
    steps, left_out = steady_steps(every)
    completed, _ = steady_steps(as_passed(trace, every))
    rows = _Rows(steps)
    paths = _Paths(trace)
    parts = [*_gpu_work(trace, rows, paths), _regions(trace, rows, paths), _calls(trace, rows, paths)]
    idle, busy_ns = _idle(trace, rows, completed)
    parts.append(idle)
    nodes = [node for part in parts for node in part.nodes]
    time_ns = np.hstack([part.time_ns for part in parts])
    count = np.hstack([part.count for part in parts])
    nodes, time_ns, count = _merged(nodes, time_ns, count)
    step_ns = rows.mean_of_steps(completed.durations_ns)
    return Costs(completed, left_out, step_ns, busy_ns, tuple(nodes), time_ns, count)


@dataclass(frozen=True, eq=False)
class _Part:
    nodes: list[Node]
    time_ns: Array
    count: Array


class _Rows:
    """Which row each step belongs to."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.count = min(len(steps), MOST_ROWS)
        self.of_step: Array = np.arange(len(steps)) * self.count // max(len(steps), 1)
        self._sizes = np.bincount(self.of_step, minlength=self.count)

    def mean_of_steps(self, values: Array) -> Array:
        """Means of what is known a step."""
        means: Array = np.bincount(self.of_step, values, minlength=self.count) / self._sizes
        return means

    def table(self, moments: Array, columns: Array, width: int, values: Array) -> tuple[Array, Array]:
        """Means a step of values and counts, (rows, width), of what happened at these moments."""
        step = self.steps.at(moments)
        inside = step >= 0
        at = self.of_step[step[inside]] * width + columns[inside]
        shape = (self.count, width)
        sums = np.bincount(at, values[inside], minlength=self.count * width).reshape(shape)
        counts = np.bincount(at, minlength=self.count * width).reshape(shape)
        return sums / self._sizes[:, None], counts / self._sizes[:, None]


class _Paths:
    """The names of each path without those of steps; paths that are the same without them have one number."""

    def __init__(self, trace: Trace) -> None:
        found: dict[tuple[str, ...], int] = {(): 0}
        names: list[tuple[str, ...]] = []
        number: list[int] = []
        for parent, name in zip(trace.paths.parent.tolist(), trace.paths.name.tolist(), strict=True):
            spelled = trace.string(name)
            around = names[parent] if parent < len(names) else ()
            path = around if spelled.startswith(STEP) else (*around, spelled)
            names.append(path)
            number.append(found.setdefault(path, len(found)))
        self.names = list(found)
        self._number = np.array([*number, 0], np.int64)
        self._of_region = np.append(trace.regions.path, NONE)

    def of_regions(self, regions: Array) -> Array:
        """The number of the path of each row of ``trace.regions``; that of no region for NONE."""
        path = self._of_region[np.minimum(regions, len(self._of_region) - 1)]
        numbers: Array = self._number[np.minimum(path, len(self._number) - 1)]
        return numbers


def _gpu_work(trace: Trace, rows: _Rows, paths: _Paths) -> Iterable[_Part]:
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
    """Distinct names, and which of them each row has."""
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


def _regions(trace: Trace, rows: _Rows, paths: _Paths) -> _Part:
    regions = trace.regions
    own = np.flatnonzero((regions.flags & Flag.ASYNC) == 0)
    keys = paths.of_regions(own)
    self_ns = trace.instances.self_cpu_ns[own]

    def node(key: int) -> Node:
        path = paths.names[key]
        return Node(HOST, path[:-1], path[-1]) if path else THE_STEP

    return _part(rows, regions.start_ns[own], keys, self_ns, node)


def _calls(trace: Trace, rows: _Rows, paths: _Paths) -> _Part:
    """Those that take the host's own time: launches and copies may wait for a full queue, as synchronizing does."""
    calls = trace.api
    kinds = np.append(trace.calls.kind, int(CallKind.OTHER))
    own = np.flatnonzero(np.isin(kinds[np.minimum(calls.call, len(kinds) - 1)], _OWN_CALLS))
    names = [*map(trace.string, trace.calls.name.tolist()), ""]
    keys = paths.of_regions(calls.region[own]) * len(names) + np.minimum(calls.call[own], len(names) - 1)

    def node(key: int) -> Node:
        return Node(HOST, paths.names[key // len(names)], names[key % len(names)])

    return _part(rows, calls.start_ns[own], keys, calls.duration_ns[own], node)


def _part(rows: _Rows, moments: Array, keys: Array, values: Array, node: Any) -> _Part:
    each, first, column = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # columns in the order in which they first came
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    time_ns, count = rows.table(moments, place[column.reshape(-1)], len(each), values)
    return _Part([node(key) for key in each[order].tolist()], time_ns, count)


def _idle(trace: Trace, rows: _Rows, completed: Steps) -> tuple[_Part, Array]:
    """Idle time by cause, and how long the busiest GPU worked."""
    found = break_down(trace, completed)
    nodes, columns = [], []
    durations = completed.durations_ns
    busiest: Array = np.zeros(len(durations))
    for device in found.devices:
        idle_ns = np.zeros(len(durations))
        for part in device.parts:
            if part.kind != IDLE:
                continue
            idle_ns += part.per_step_ns
            nodes.append(Node(IDLE, (f"GPU {device.device}",) if len(found.devices) > 1 else (), part.name))
            columns.append(rows.mean_of_steps(part.per_step_ns))
        busy_ns = durations - idle_ns
        busiest = busy_ns if busy_ns.sum() > busiest.sum() else busiest
    time_ns = np.column_stack(columns) if columns else np.zeros((rows.count, 0))
    return _Part(nodes, time_ns, np.zeros_like(time_ns)), rows.mean_of_steps(busiest)


def _merged(nodes: Sequence[Node], time_ns: Array, count: Array) -> tuple[list[Node], Array, Array]:
    """A column for each node once."""
    number: dict[Node, int] = {}
    place = np.array([number.setdefault(node, len(number)) for node in nodes], np.int64)
    if len(number) == len(nodes):
        return list(nodes), time_ns, count
    merged_ns, merged_count = (np.zeros((len(time_ns), len(number))) for _ in range(2))
    np.add.at(merged_ns.T, place, time_ns.T)
    np.add.at(merged_count.T, place, count.T)
    return list(number), merged_ns, merged_count


def pair(before: Sequence[Node], after: Sequence[Node]) -> dict[Node, Node]:
    """The node after of each node before that has one: of the same name, then by order where only numbers differ.

    Where a program has another number of those, which is which cannot be told, and none is paired.
    """
    there, here = set(after), set(before)
    paired = {node: node for node in before if node in there}
    by_pattern: list[dict[Any, list[Node]]] = [{}, {}]
    for groups, nodes, known in zip(by_pattern, (before, after), (there, here), strict=True):
        for node in nodes:
            if node not in known:
                groups.setdefault(node.pattern, []).append(node)
    for pattern, nodes in by_pattern[0].items():
        others = by_pattern[1].get(pattern, [])
        if len(nodes) == len(others):
            paired |= zip(nodes, others, strict=True)
    return paired
