# SPDX-License-Identifier: Apache-2.0
"""The call tree of regions with the GPU work and driver calls under them."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gpuscope import _core
from gpuscope.analysis.completeness import audit
from gpuscope.analysis.python_samples import SampledFrames, outside_regions_ns, sampled_paths, short_path
from gpuscope.analysis.rows import KINDS, NS_PER_US, OUTSIDE, REGION_LABELS, Kind, region_kind
from gpuscope.arguments import check_choice
from gpuscope.errors import GpuscopeWarning, InvalidArgument
from gpuscope.results import Result, import_pandas
from gpuscope.tables import fit_columns
from gpuscope.text import brief, one_line, shown
from gpuscope.trace import NONE, Trace
from gpuscope.units import format_time

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd

GRAPH = "[graph]"
UNKNOWN_GRAPH = "[graph] captured before profiling, or in no region"


@dataclass(frozen=True, repr=False)
class Node:
    """Everything that happened on one call path under one name. Times are in ns.

    A region is a child of the region in which it was entered. If it outlasts that region, its CPU time may be longer.
    GPU work that it launches later has a node on the path of the regions still open.

    Attributes:
        name: of the region, kernel (demangled), copy or call. "[graph] path": GPU work of a CUDA graph captured there.
        kind: recording (the root), region, op (operator of a framework), range (annotation of a library) or module.
            GPU work: graph, kernel, memcpy or memset. Host: call, sync, graph launch or outside (sampled time in no
            region).
        count: number of events.
        cpu_ns: inclusive CPU time. For decorated coroutines and generators, the time their bodies ran.
        elapsed_ns: time from start to end: CPU time plus the time coroutines and generators were suspended.
        self_cpu_ns: CPU time without regions and driver calls inside.
        device_ns: inclusive GPU time: work launched before a region ended.
        self_device_ns: GPU time launched in no region inside.
        p50_ns: the median duration, on the GPU for GPU work; 0 if no single event is kept.
        bytes: moved or filled.
        children: largest GPU time first, then largest CPU time.
    """

    name: str
    kind: str
    count: int
    cpu_ns: int
    elapsed_ns: int
    self_cpu_ns: int
    device_ns: int
    self_device_ns: int
    p50_ns: int
    bytes: int
    children: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        """This node and all below it, each before its children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    @shown
    def __repr__(self) -> str:
        times = f"CPU {format_time(self.cpu_ns / NS_PER_US)}, GPU {format_time(self.device_ns / NS_PER_US)}"
        return f"<Node {self.kind} {self.name!r}: {self.count:,} times, {times}, {len(self.children)} children>"


@dataclass(frozen=True, repr=False)
class SampledNode(Node):
    """A line of a Python function that samples found, in a region or in none.

    Attributes:
        function: its qualified name.
        file: where it is defined.
        line: the line that ran.
    """

    function: str
    file: str
    line: int


@dataclass(frozen=True, repr=False)
class Tree(Result):
    """The call tree of one recording. Printing shows it; iterating visits every node below the root.

    Attributes:
        root: the recording itself.
        has_device: some GPU time was recorded.
        verdict: the audit's line.
    """

    root: Node
    has_device: bool
    verdict: str

    def __iter__(self) -> Iterator[Node]:
        nodes = iter(self.root)
        next(nodes)
        return nodes

    def find(self, name: str) -> Node | None:
        """The first node of that name from the top of the printed tree, or None."""
        return next((node for node in self if node.name == name), None)

    def render(self, max_depth: int | None = None, min_percent: float = 0.0, width: int = 140) -> str:
        """The tree as aligned text.

        Args:
            max_depth: how many levels to show; None shows all.
            min_percent: leave out nodes with a smaller share of both the CPU and the GPU time.
            width: cut names so that lines have at most this many characters (at least 80).

        Raises:
            InvalidArgument: a value that is not accepted.
        """
        if max_depth is not None and (type(max_depth) is not int or max_depth < 1):
            raise InvalidArgument(f"max_depth is {brief(max_depth)}; accepted are whole numbers from 1, or None")
        if type(min_percent) not in (int, float) or not 0 <= min_percent <= 100:
            raise InvalidArgument(f"min_percent is {brief(min_percent)}; accepted are numbers from 0 to 100")
        if type(width) is not int or width < 80:
            raise InvalidArgument(f"width is {brief(width)}; accepted are whole numbers from 80")
        return _render(self.root, self.has_device, max_depth, min_percent, width) + self.verdict + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The nodes in printed order, the root first; ``parent`` is the index of the parent. Times in ns."""
        nodes: list[dict[str, Any]] = []
        stack: list[tuple[Node, int | None]] = [(self.root, None)]
        while stack:
            node, parent = stack.pop()
            stack += [(child, len(nodes)) for child in reversed(node.children)]
            values = {field.name: getattr(node, field.name) for field in fields(node) if field.name != "children"}
            nodes.append({"parent": parent, **values})
        return {"has_device": self.has_device, "verdict": self.verdict, "nodes": nodes}

    def to_pandas(self) -> pd.DataFrame:
        """One row a node, as in ``to_dict``.

        Raises:
            NotAvailable: pandas is not installed.
        """
        return import_pandas().DataFrame(self.to_dict()["nodes"])

    # Not recursive: regions may be nested deeper than Python's recursion limit.
    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Tree) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.verdict, *((node.name, node.count, node.cpu_ns) for node in self)))

    def __reduce__(self) -> tuple[Callable[..., Tree], tuple[dict[str, Any]]]:
        return _tree_of, (self.to_dict(),)

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        return f"<Tree of {self.root!r}>"


def _tree_of(values: dict[str, Any]) -> Tree:
    """The inverse of ``Tree.to_dict``."""
    children: defaultdict[int | None, list[Node]] = defaultdict(list)
    for place, node in reversed(list(enumerate(values["nodes"]))):
        own = {name: value for name, value in node.items() if name != "parent"}
        children[node["parent"]].append(Node(**own, children=tuple(reversed(children.pop(place, [])))))
    (root,) = children[None]
    return Tree(root=root, has_device=values["has_device"], verdict=values["verdict"])


def tree(trace: Trace, with_samples: bool = False) -> Tree:
    """The call tree of a recording, in every mode.

    Args:
        trace: the recording.
        with_samples: add a `SampledNode` for each line of Python, under the region that it ran in. Its time is
            subtracted from that region's self time, or from the time outside regions. No effect in aggregate mode
            with regions.
    """
    summary = trace.summary
    names = summary.names
    under = _work_by_path(trace, summary, names)
    sampled = _sampled_by_path(trace) if with_samples and places_samples(trace) else {}
    for path, nodes in sampled.items():
        under[path] += nodes
    children: defaultdict[int, list[Node]] = defaultdict(list)
    strings = [trace.string(name) for name in trace.paths.name.tolist()]
    parents, kinds = trace.paths.parent.tolist(), trace.paths.kind.tolist()
    # Children come behind their parents: going backwards, a path's children are ready before it.
    for path, stat in reversed(list(enumerate(summary.paths))):
        inside = [*reversed(children.pop(path, [])), *under.pop(path, [])]
        if stat.cpu.count or inside:
            parent = parents[path] if parents[path] < path else NONE
            children[parent].append(
                Node(
                    name=strings[path],
                    kind=region_kind(kinds[path]).name.lower(),
                    count=stat.cpu.count,
                    cpu_ns=stat.cpu.total_ns,
                    elapsed_ns=stat.cpu.total_ns + stat.suspended_ns,
                    self_cpu_ns=stat.self_cpu_ns - sum(node.cpu_ns for node in sampled.get(path, ())),
                    device_ns=stat.device_ns,
                    self_device_ns=stat.self_device_ns,
                    p50_ns=stat.cpu.p50_ns,
                    bytes=0,
                    children=_ordered(inside),
                )
            )
    outside_ns = 0 if NONE in sampled else outside_regions_ns(trace)
    at_top = [*reversed(children.pop(NONE, [])), *under.pop(NONE, []), *([_outside(outside_ns)] if outside_ns else [])]
    # Start/end ranges overlap the others: times at the top do not add up.
    cpu_ns = summary.cpu_ns + outside_ns
    top = _group("recording", "recording", at_top)
    top = replace(top, cpu_ns=cpu_ns, elapsed_ns=cpu_ns + top.elapsed_ns - top.cpu_ns)
    return Tree(root=top, has_device=summary.has_device, verdict=audit(trace).verdict)


def _work_by_path(trace: Trace, summary: _core.Summary, names: list[str]) -> defaultdict[int, list[Node]]:
    """The nodes of work directly under each path; nodes of a graph are under one node for its capture."""
    under: defaultdict[int, list[Node]] = defaultdict(list)
    captured: defaultdict[tuple[int, int], list[Node]] = defaultdict(list)
    for work in summary.work:
        if work.kind in KINDS:
            node = _leaf(work, KINDS[work.kind], names[work.name])
            (under[work.path] if work.capture == NONE else captured[work.path, work.capture]).append(node)
    texts = trace.store.path_texts() if captured else []
    for (path, capture), nodes in captured.items():
        name = f"{GRAPH} {texts[capture]}" if capture < len(texts) else UNKNOWN_GRAPH
        under[path].append(_group(name, "graph", nodes))
    return under


def _leaf(work: _core.WorkStat, kind: Kind, name: str) -> Node:
    durations = work.durations
    cpu_ns, device_ns = (0, durations.total_ns) if kind.is_device else (durations.total_ns, 0)
    return Node(
        name=name,
        kind=kind.label,
        count=durations.count,
        cpu_ns=cpu_ns,
        elapsed_ns=cpu_ns,
        self_cpu_ns=0 if kind == Kind.SYNC else cpu_ns,  # a driver call has that time as its own
        device_ns=device_ns,
        self_device_ns=device_ns,
        p50_ns=durations.p50_ns,
        bytes=work.bytes,
        children=(),
    )


def places_samples(trace: Trace) -> bool:
    """Whether the regions that samples were in are known: totals of regions do not contain them."""
    return trace.info.get("session.mode") != "aggregate" or not trace.summary.cpu_ns


def _sampled_by_path(trace: Trace) -> dict[int, list[Node]]:
    """The lines of Python that samples found directly under each path, each with those that it called."""
    table = trace.python_samples
    numbers: dict[tuple[int, str, str, int], int] = {}  # of lines, by caller, function, file and line
    number_of_row = np.full(len(trace.stacks) + 1, -1)
    for row, caller, function, file, line in SampledFrames(trace).rows:
        number_of_row[row] = numbers.setdefault((int(number_of_row[caller]), function, file, line), len(numbers))
    rows, path, time_ns = sampled_paths(trace)
    # Of a row that was cut, the first piece counts.
    seen = np.where(np.diff(rows, prepend=-1) != 0, table.count[rows], 0)
    keys = path.astype(np.int64) * len(numbers) + number_of_row[table.stack[rows]]
    keys, which = np.unique(keys, return_inverse=True)
    times, counts = (np.bincount(which, values, len(keys)).astype(int).tolist() for values in (time_ns, seen))
    own: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)  # of each line, by path
    for key, time, count in zip(keys.tolist(), times, counts, strict=True):
        own[key % len(numbers)][key // len(numbers)] = (time, count)
    called: defaultdict[int, defaultdict[int, list[Node]]] = defaultdict(lambda: defaultdict(list))  # likewise
    for (caller, function, file, line), number in reversed(numbers.items()):  # callers come before callees
        inside = called.pop(number, defaultdict(list))
        for at in own[number].keys() | inside.keys():
            self_ns, count = own[number].get(at, (0, 0))
            cpu_ns = self_ns + sum(node.cpu_ns for node in inside[at])
            name, values = f"{function} ({short_path(file)}:{line})", (count, cpu_ns, cpu_ns, self_ns, 0, 0, 0, 0)
            called[caller][at].append(
                SampledNode(name, "python", *values, _ordered(inside[at]), function=function, file=file, line=line)
            )
    return called[-1]


def _outside(time_ns: int) -> Node:
    """The time that threads were in no region and no driver call."""
    none = {"device_ns": 0, "self_device_ns": 0, "p50_ns": 0, "bytes": 0}
    times = dict.fromkeys(("cpu_ns", "elapsed_ns", "self_cpu_ns"), time_ns)
    return Node(name=OUTSIDE, kind=Kind.OUTSIDE.label, count=1, children=(), **times, **none)


def _group(name: str, kind: str, nodes: list[Node]) -> Node:
    """A node that only sums its children."""
    timed = [node for node in nodes if node.kind != Kind.SYNC.label]
    return Node(
        name=name,
        kind=kind,
        count=sum(node.count for node in nodes) if kind == "graph" else 1,
        cpu_ns=sum(node.cpu_ns for node in timed),
        elapsed_ns=sum(node.elapsed_ns for node in timed),
        self_cpu_ns=0,
        device_ns=sum(node.device_ns for node in nodes),
        self_device_ns=sum(node.device_ns for node in nodes if node.kind not in REGION_LABELS),
        p50_ns=0,
        bytes=sum(node.bytes for node in nodes),
        children=_ordered(nodes),
    )


def _ordered(nodes: list[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda node: (-node.device_ns, -node.cpu_ns)))


def _render(root: Node, has_device: bool, max_depth: int | None, min_percent: float, width: int) -> str:
    """One line for each node below the root, names left, numbers in aligned columns."""
    shown = tree_lines(root, max_depth, min_percent, width)
    rows = [(branch + title, _cells(node, has_device) if node else []) for branch, title, node in shown]
    return "\n".join(fit_columns([("Name", _headings(has_device)), *rows], width)[0]) + "\n"


def tree_lines(root: Node, max_depth: int | None, min_percent: float, width: int) -> list[tuple[str, str, Node | None]]:
    """The nodes to show: tree branches, name and node; node None where some are left out.

    Branches are cut at the width: those of a deep tree would grow with the square of its depth.
    """
    result: list[tuple[str, str, Node | None]] = []
    stack: list[tuple[str, str, Node | str]] = [("", "", root)]  # the branches before the name, and before its children
    depth_of = {id(root): 0}
    while stack:
        branch, indent, node = stack.pop()
        if isinstance(node, str):
            result.append((branch, node, None))
            continue
        if node is not root:
            result.append((branch, _title(node), node))
        depth = depth_of[id(node)]
        if max_depth is not None and depth >= max_depth:
            continue
        shown: list[Node | str] = [child for child in node.children if _share(child, root) >= min_percent]
        if hidden := len(node.children) - len(shown):
            shown.append(f"({hidden} below {min_percent:g} %)")
        for index, child in reversed(list(enumerate(shown))):
            last = index == len(shown) - 1
            tip, rest = ("", "") if node is root else ("└─ ", "   ") if last else ("├─ ", "│  ")
            stack.append(((indent + tip)[:width], (indent + rest)[:width], child))
            depth_of[id(child)] = depth + 1
    return result


def _title(node: Node) -> str:
    """The name, with a mark for modules and for the ranges of libraries."""
    mark = {"module": "module ", "range": "range "}.get(node.kind, "")
    return mark + one_line(node.name.replace("\n", " "))


def _share(node: Node, root: Node) -> float:
    """The node's share of the recording's GPU time or CPU time in percent, the larger."""
    device = 100.0 * node.device_ns / root.device_ns if root.device_ns else 0.0
    cpu = 100.0 * node.cpu_ns / root.cpu_ns if root.cpu_ns else 0.0
    return max(device, cpu)


def _headings(has_device: bool) -> list[str]:
    return ["Count", *(["GPU total", "GPU self"] if has_device else []), "CPU total", "CPU self", "p50"]


def _cells(node: Node, has_device: bool) -> list[str]:
    device = [node.device_ns, node.self_device_ns] if has_device else []
    times = [*device, node.cpu_ns, node.self_cpu_ns, node.p50_ns]
    return [f"{node.count:,}", *(format_time(time / NS_PER_US) if time else "-" for time in times)]


def _cpu_ns(node: Node) -> int:
    return node.self_cpu_ns


def _device_ns(node: Node) -> int:
    # A region's self GPU time is the sum of its kernels. Only the rest is its own here.
    return node.device_ns - sum(child.device_ns for child in node.children)


StackMetric = Literal[
    "self_cpu_time_total",
    "self_device_time_total",
    "self_cuda_time_total",
    "self_xpu_time_total",
    "self_privateuse1_time_total",
]
STACK_METRICS: dict[str, Callable[[Node], int]] = {
    name: _cpu_ns if name == "self_cpu_time_total" else _device_ns for name in get_args(StackMetric)
}


def known_stack_metric(metric: StackMetric, has_device: bool, stacklevel: int) -> StackMetric:
    """The metric of stacks: without GPU work, CPU time instead of GPU time, with a warning.

    Raises:
        InvalidArgument: the metric is unknown.
    """
    check_choice("metric", metric, get_args(StackMetric))
    if metric == "self_cpu_time_total" or has_device:
        return metric
    why = f"the recording has no GPU work: stacks have CPU time, self_cpu_time_total, instead of {metric}"
    warnings.warn(why, GpuscopeWarning, stacklevel=stacklevel)
    return "self_cpu_time_total"


def folded_stacks(trace: Trace, metric: StackMetric = "self_cpu_time_total") -> Iterator[str]:
    """One line a call path, ``outer;inner;kernel 123``: its self time in us. Paths that round to 0 are left out.

    An iterator: all lines of a deep tree are far larger than the tree. Without GPU work all metrics are CPU time, with
    a warning.

    Raises:
        InvalidArgument: the metric is unknown.
    """
    metric = known_stack_metric(metric, trace.summary.has_device, stacklevel=4)
    root = tree(trace, with_samples=STACK_METRICS[metric] is _cpu_ns).root
    return (f"{path} {time_us}" for path, time_us in _fold(root, STACK_METRICS[metric]))


def _fold(root: Node, own_ns: Callable[[Node], int]) -> Iterator[tuple[str, int]]:
    stack = [(node, _frame(node)) for node in reversed(root.children)]
    while stack:
        node, path = stack.pop()
        time_us = (own_ns(node) + 500) // 1000
        if time_us > 0:
            yield path, time_us
        stack += [(child, f"{path};{_frame(child)}") for child in reversed(node.children)]


def _frame(node: Node) -> str:
    # The format's own separators cannot be part of a name.
    return " ".join(node.name.replace(";", ":").split()) or "?"
