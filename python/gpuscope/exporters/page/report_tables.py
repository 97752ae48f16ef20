# SPDX-License-Identifier: Apache-2.0
"""Tables of a report: the rows of ``key_averages`` with histograms of durations and their launchers, and the tree."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpuscope.analysis import Averages, Samples, Tree
from gpuscope.analysis.python_samples import SampledCall, SampledFunction
from gpuscope.analysis.rows import KINDS, Kind
from gpuscope.diagnosis.own_code import source_lines
from gpuscope.exporters.page.report_names import (
    IMPORTS,
    YOUR_CODE,
    Names,
    brief_name,
    category_of_function,
    is_import,
    path_texts,
)
from gpuscope.memory.history.call_stacks import library_of
from gpuscope.memory.history.events import Frame
from gpuscope.page.planes import Array
from gpuscope.text import one_line
from gpuscope.trace import NONE, Trace

PYTHON = "python"
"""The table of Python functions, by samples."""

FAMILIES = {
    "kernels": ("kernel", "memcpy", "memset", "graph launch"),
    "operators": ("op", "module"),
    "regions": ("region", "range", "outside"),
    "calls": ("call", "sync"),
}
"""The tables of a report, and the kinds of rows that each has."""

BINS = 24
"""Bars of a histogram: two a power of two, up from a duration."""

_HEIGHTS = "0123456789abcdefghijklmnopqrstuvwxyz"
_MOST_PAIRS = 8  # launching regions of a kernel
_PAIRED = 2_000
_MOST_NODES = 4_000
_MOST_FUNCTIONS = 2_000
_MOST_SOURCES = 50  # of functions that are not the program's own
_BESIDE, _LONGEST_LINE = 2, 160  # lines of source on each side of the hot one, and letters of each
_NS_PER_US = 1e3
_TIMES = {
    "cpu": "cpu_time_total",
    "self_cpu": "self_cpu_time_total",
    "gpu": "device_time_total",
    "self_gpu": "self_device_time_total",
    "p50": "p50",
    "p95": "p95",
    "p99": "p99",
    "min": "min",
    "max": "max",
}


def rows_of(trace: Trace, averages: Averages, names: Names) -> dict[str, Any]:
    """Columns with an entry for each row of ``key_averages``; times in ns."""
    found: dict[str, Any] = {
        "kind": [names.id(row.kind) for row in averages],
        "name": [names.id(brief_name(row.key) if row.kind == Kind.KERNEL.label else row.key) for row in averages],
        "full": [names.id(row.key) for row in averages],
        "count": [row.count for row in averages],
        "bytes": [row.bytes for row in averages],
        "flops": [row.flops for row in averages],
    }
    for name, attribute in _TIMES.items():
        found[name] = [round(getattr(row, attribute) * _NS_PER_US) for row in averages]
    totals = {"cpu": averages.self_cpu_time_total, "gpu": averages.self_device_time_total}
    found["totals"] = {name: round(time * _NS_PER_US) for name, time in totals.items()}
    found["memory"] = [row.self_device_memory_usage for row in averages]
    found["family"] = {
        family: [number for number, row in enumerate(averages) if row.kind in kinds]
        for family, kinds in FAMILIES.items()
    }
    if {averages[row].kind for row in found["family"]["regions"]} == {Kind.OUTSIDE.label}:
        found["family"]["regions"] = []  # it is the whole run
    found["shape"], found["shape_from"] = _histograms(trace, averages, names)
    found["pairs"] = _pairs(trace, names)
    return found


def _histograms(trace: Trace, averages: Averages, names: Names) -> tuple[list[str], list[int]]:
    """Histograms of each row's durations, as digits of base 36 relative to the maximum, and the first bar's power."""
    count = len(averages)
    bins = 2 * 48
    sums = np.zeros((count + 1, bins), np.int64)
    for table, things in (
        (trace.kernels, names.of_variants(trace.kernels.variant)),
        (trace.memcpy, names.of_copies(trace.memcpy)),
        (trace.memset, names.of_fills(trace.memset)),
        (trace.graph_launches, names.of_graphs(trace.graph_launches)),
        (trace.regions, names.of_paths(trace.regions.path)),
        (trace.api, names.of_calls(trace.api.call)),
    ):
        if len(table) == 0 or count == 0:
            continue
        row = np.array([*names.rows, -1])[things]
        halves = _half_powers(table.duration_ns)
        keys = np.where(row < 0, count, row) * bins + halves
        sums += np.bincount(keys, minlength=sums.size).reshape(sums.shape)
    shapes, firsts = [], []
    for row in sums[:count]:
        filled = np.flatnonzero(row)
        first = int(filled[0]) if len(filled) else 0
        first = max(min(first, bins - BINS), 0)
        shown = row[first : first + BINS].copy()
        shown[-1] += row[first + BINS :].sum()
        most = int(shown.max(initial=0))
        heights = np.ceil(shown * 35 / most).astype(int) if most else shown
        shapes.append("".join(_HEIGHTS[height] for height in heights.tolist()).rstrip("0"))
        firsts.append(first)
    return shapes, firsts


def _half_powers(durations: Array) -> Array:
    """The bar of each duration: two a power of two of ns."""
    found: Array = np.clip((2 * np.log2(np.maximum(durations, 1))).astype(np.int64), 0, 95)
    return found


def _pairs(trace: Trace, names: Names) -> dict[str, list[list[int]]]:
    """For kernels and copies, the call paths that launched most of their time: path, count, ns."""
    summary = trace.summary
    texts = path_texts(trace)
    found: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    spelled = summary.names
    for work in summary.work:
        kind = KINDS.get(work.kind)
        if kind is None or not kind.is_device:
            continue
        row = names.row_of(kind.label, spelled[work.name])
        path = work.path if work.path != NONE and work.path < len(texts) else NONE
        found[row].append((work.durations.total_ns, work.durations.count, path))
    pairs: dict[str, list[list[int]]] = {}
    for row, launched in sorted(found.items(), key=lambda each: -sum(time for time, _, _ in each[1]))[:_PAIRED]:
        together: dict[str, list[int]] = {}
        for time, count, path in launched:
            where = together.setdefault(texts[path] if path != NONE and texts[path] else "outside every region", [0, 0])
            where[0] += count
            where[1] += time
        longest = sorted(together.items(), key=lambda each: -each[1][1])[:_MOST_PAIRS]
        pairs[str(row)] = [[names.id(text), count, time] for text, (count, time) in longest]
    return pairs


def nodes_of(tree: Tree, names: Names) -> dict[str, Any]:
    """The nodes of a call tree, as `columns_of_nodes` returns them."""
    return columns_of_nodes(tree.to_dict()["nodes"], names)


def name_of(function: str, file: str, line: int) -> str:
    """A Python function as tables and trees show it: "parse (etl.py:12)"."""
    return f"{function} ({os.path.basename(file)}:{line})" if file else function


def sampled_code(found: Samples) -> tuple[list[SampledFunction], list[dict[str, Any]]]:
    """Functions by samples and the nodes of their tree, in which all code of an import is one entry.

    Returns:
        The functions, by self time; IMPORTS, without a file, is one of them. The nodes, callers first, as those of
        ``Tree.to_dict``. Both are empty without samples.
    """
    if not found:
        return [], []
    nodes: list[dict[str, Any]] = []
    sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 4)

    def add(parent: int | None, name: str, kind: str, category: str = "") -> int:
        times = dict.fromkeys(("count", "cpu_ns", "self_cpu_ns", "device_ns", "self_device_ns"), 0)
        nodes.append({"parent": parent, "name": name, "kind": kind, "category": category, **times})
        return len(nodes) - 1

    def count(
        key: tuple[str, str], call: SampledCall, self_ns: int, at: Iterable[int], is_inside: bool = False
    ) -> None:
        values = (call.count, self_ns, 0 if is_inside else call.total_ns, 0 if is_inside else call.cpu_ns)
        sums[key] = [total + value for total, value in zip(sums[key], values, strict=True)]
        for node in at:
            nodes[node]["count"] += call.count
            nodes[node]["cpu_ns"] += call.total_ns

    whole = sum(root.total_ns for root in found.roots)
    add(None, "the run" if whole <= found.recorded_ns else "the run, all threads", "samples")
    nodes[0] |= {"count": found.count, "cpu_ns": max(whole, found.recorded_ns)}
    known: dict[tuple[int, str], int] = {}  # nodes of imports, by caller and package
    stack = [(root, 0, "", frozenset[tuple[str, str]]()) for root in reversed(found.roots)]
    while stack:
        call, parent, caller, above = stack.pop()
        if parent and is_import(call.function, call.file, caller):
            at = []
            for name in (IMPORTS, library_of([Frame(call.function, call.file, call.line)])):
                if (parent, name) not in known:
                    known[parent, name] = add(parent, name, IMPORTS, IMPORTS)
                at.append(parent := known[parent, name])
            nodes[parent]["self_cpu_ns"] += call.total_ns
            count((IMPORTS, ""), call, call.total_ns, at)
            continue
        key = (call.function, call.file)
        parent = add(parent, name_of(*key, call.line), "python function", category_of_function(*key))
        nodes[parent]["self_cpu_ns"] = call.self_ns
        count(key, call, call.self_ns, [parent], key in above)
        stack += [(child, parent, call.file, above | {key}) for child in reversed(call.children)]
    lines = {(each.function, each.file): each.line for each in found.functions}
    functions = [
        SampledFunction(*key, lines.get(key, 0), number, self_ns, total_ns, cpu_ns)
        for key, (number, self_ns, total_ns, cpu_ns) in sums.items()
    ]
    return sorted(functions, key=lambda each: (-each.self_ns, -each.total_ns))[:_MOST_FUNCTIONS], nodes


def add_functions(
    rows: dict[str, Any], functions: list[SampledFunction], recorded_ns: int, trace: Trace, names: Names
) -> None:
    """Adds a table of Python functions to the rows; times in ns, shares are of the time that was recorded."""
    first, count = len(rows["kind"]), len(functions)
    if not count:
        return
    values: dict[str, list[Any]] = {
        "kind": [names.id("python function" if each.file else IMPORTS) for each in functions],
        "name": [names.id(name_of(each.function, each.file, each.line)) for each in functions],
        "full": [names.id(f"{each.function} {each.file}:{each.line}" if each.file else IMPORTS) for each in functions],
        "count": [each.count for each in functions],
        "cpu": [each.total_ns for each in functions],
        "self_cpu": [each.self_ns for each in functions],
        "on_cpu": [each.cpu_ns for each in functions],
    }
    rows["on_cpu"] = [0] * first
    for name, column in rows.items():
        if isinstance(column, list):
            column += values.get(name, [0] * count)
    rows["totals"][PYTHON] = recorded_ns
    rows["family"][PYTHON] = list(range(first, first + count))
    own = [category_of_function(each.function, each.file) == YOUR_CODE for each in functions]
    rows["own"] = (first + np.flatnonzero(own)).tolist()
    sources = {
        row: _source_around(trace, each.file, each.line)
        for row, each in enumerate(functions, first)
        if row < first + _MOST_SOURCES or row in rows["own"]
    }
    rows["source"] = {row: around for row, around in sources.items() if around}
    names.number_functions(((each.function, each.file) for each in functions), first)


def _source_around(trace: Trace, file: str, line: int) -> dict[str, Any] | None:
    """A hot line with the lines around it; None if the source is missing, or not that of the recording."""
    lines = source_lines(trace, file) if file else []
    before = max(line - 1 - _BESIDE, 0)
    around = [one_line(text.rstrip().expandtabs(4))[:_LONGEST_LINE] for text in lines[before : line + _BESIDE]]
    return {"first": before + 1, "hot": line, "lines": around} if 0 < line <= len(lines) else None


def columns_of_nodes(nodes: list[dict[str, Any]], names: Names) -> dict[str, Any]:
    """Nodes as columns, parents first. Of many nodes, those with most time are kept, the others are "smaller ones".

    Parents are differences from the one before.
    """
    shown = _largest(nodes)
    place: dict[int, int] = {}
    columns: dict[str, list[int]] = {
        name: [] for name in ("parent", "name", "kind", "category", "count", "cpu", "self_cpu", "gpu", "self_gpu")
    }

    def add(parent: int, name: str, kind: str, category: int, numbers: list[int]) -> int:
        values = (parent, names.id(name), names.id(kind), category, *numbers)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        return len(columns["parent"]) - 1

    left_out: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        numbers = [node["count"], node["cpu_ns"], node["self_cpu_ns"], node["device_ns"], node["self_device_ns"]]
        parent = node["parent"]
        if number in shown:
            name = brief_name(node["name"]) if node["kind"] == Kind.KERNEL.label else node["name"]
            of = node.get("category")
            category = names.category("Python", of) if of else names.category_of(node["kind"], node["name"])
            place[number] = add(-1 if parent is None else place[parent], name, node["kind"], category, numbers)
        elif parent in shown:
            # Its descendants are left out too, so that their time is its own.
            own = [1, node["count"], node["cpu_ns"], node["cpu_ns"], node["device_ns"], node["device_ns"]]
            sums = left_out.setdefault(parent, [0] * 6)
            for at, value in enumerate(own):
                sums[at] += value
    for parent, (count, *sums) in left_out.items():
        add(place[parent], f"{count:,} smaller ones", "smaller", -1, sums)
    return {**columns, "parent": np.diff(columns["parent"], prepend=0)}


def _largest(nodes: list[dict[str, Any]]) -> set[int]:
    if len(nodes) <= _MOST_NODES:
        return set(range(len(nodes)))
    root = nodes[0]
    weights = np.array([
        max(node["cpu_ns"] / max(root["cpu_ns"], 1), node["device_ns"] / max(root["device_ns"], 1)) for node in nodes
    ])  # fmt: skip
    found: set[int] = {0}
    for number in np.argsort(-weights, kind="stable").tolist():
        above: list[int] = []
        at: int | None = number
        while at is not None and at not in found:
            above.append(at)
            at = nodes[at]["parent"]
        if len(found) + len(above) > _MOST_NODES:
            break
        found.update(above)
    return found
