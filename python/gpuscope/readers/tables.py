# SPDX-License-Identifier: Apache-2.0
"""Builds the tables of a recording from columns that a reader adds part by part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, Flag, MemoryKind, RegionKind, Work
from gpuscope.readers.checks import MOST_NS as MOST_NS
from gpuscope.readers.checks import NOT_GIVEN as NOT_GIVEN
from gpuscope.readers.checks import WORK, Checks, find_impossible
from gpuscope.readers.checks import Column as Column
from gpuscope.text import brief

NONE = _core.NONE

_MOST_DIGITS = 20  # of an integer; those of 64 bits have 19
_MOST_TEXT = 1 << 20
_MOST_NARROW = 1 << 16  # rows of a table with two-byte indices; the last one stands for all further rows
_RANGE = "range"  # temporary table of regions that do not nest; appended to the regions at the end
_INSTANTS = ("mark", "allocation", "failed_allocation")  # of a thread
_TYPES = {table.name: {column.name: column.dtype for column in table.columns} for table in _core.schema()}
_VARIANT = (
    "name",
    *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
    "registers",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "local_bytes",
)
_ENDS_OF_CAPTURES = re.compile(r"cu(?:da)?Stream(Begin|End)Capture")
_CAPTURED = (CallKind.LAUNCH, CallKind.MEMCPY, CallKind.MEMSET)  # calls that a graph can contain
_KINDS_OF_CALLS = (
    (re.compile(r"cu(da)?(Launch(Cooperative)?Kernel|LaunchKernelEx)"), CallKind.LAUNCH),
    (re.compile(r"cu(da)?GraphLaunch"), CallKind.GRAPH_LAUNCH),
    (re.compile(r"cu(da)?Memcpy"), CallKind.MEMCPY),
    (re.compile(r"cu(da)?Memset"), CallKind.MEMSET),
    (re.compile(r"cu(da)?\w*Synchronize"), CallKind.SYNC),
    (re.compile(r"cu(da)?(Malloc|MemAlloc|MemCreate|HostAlloc)"), CallKind.ALLOC),
    (re.compile(r"cu(da)?(Free|MemFree|MemRelease|HostFree)"), CallKind.FREE),
)


def absent(tool: str, what: Sequence[str]) -> str:
    """The line of the audit that lists data that a tool does not record."""
    return f"{not_recorded(tool)}: {', '.join(what)}"


OVERHEAD = "the overhead of the recording"
ABSENT_OF_TRACES = (
    "allocations",
    "samples",
    "lines",
    "hardware counters",
    "power and clocks",
    "the time of day",
    "lost events",
    OVERHEAD,
)
"""Data that is missing in traces of JAX and of Proton."""


def not_recorded(tool: str) -> str:
    """The text for data that a tool does not record."""
    return f"not recorded by {tool}"


class Strings:
    """Distinct texts in order of their first use. The first is empty."""

    def __init__(self, first: Iterable[str] = ("",)) -> None:
        self.ids: dict[str, int] = {text: number for number, text in enumerate(first)}

    def __call__(self, text: str) -> int:
        """The text's id. Lone surrogates are replaced."""
        return self.ids.setdefault(well_formed(text), len(self.ids))

    def of(self, texts: Iterable[str]) -> Column:
        """The ids of many texts."""
        return np.array([self(text) for text in texts], np.uint32)


class _Growing:
    """A column to which rows are added.

    It is one block that grows in place. Many small blocks, between others that are freed, would fragment the heap and
    double the size of the process.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._values = np.empty(0, dtype)
        self._count = 0

    def add(self, values: Column) -> None:
        count = self._count + len(values)
        if count > len(self._values):
            self._values.resize(max(count, len(self._values) * 9 // 8, 1024), refcheck=False)
        self._values[self._count : count] = values
        self._count = count

    @property
    def values(self) -> Column:
        return self._values[: self._count]


class TableBuilder:
    """Collects the rows of one table, as columns."""

    def __init__(self) -> None:
        self.columns: dict[str, _Growing] = {}
        self.count = 0

    def add(self, columns: Mapping[str, Column]) -> None:
        """Adds rows."""
        self.count += len(next(iter(columns.values())))
        for name, values in columns.items():
            self.columns.setdefault(name, _Growing(values.dtype)).add(values)

    def take(self) -> dict[str, Column]:
        """Moves the columns out."""
        columns, self.columns = self.columns, {}
        return {name: column.values for name, column in columns.items()}


class Tables:
    """Collects rows of each table, and makes a store of them.

    Every ``add_*`` takes columns of equal length. Names are ids of the strings that `store` gets. Rows of a file must
    pass `checks` first.
    """

    def __init__(self) -> None:
        self.checks = Checks()
        self._rows: dict[str, TableBuilder] = {}
        self.threads = _core.RowNumbers(1)
        self._tracks = _core.RowNumbers(3)
        self._variants = _core.RowNumbers(len(_VARIANT))
        self._calls = _core.RowNumbers(3)

    def __len__(self) -> int:
        return sum(rows.count for rows in self._rows.values())

    def count(self, table: str) -> int:
        """Number of rows added to a table."""
        return self._rows[table].count if table in self._rows else 0

    def add(self, table: str, columns: Mapping[str, Column]) -> None:
        """Adds rows of any table unchanged. Regions, calls and work have their own methods below."""
        if len(next(iter(columns.values()))):
            types = _TYPES.get(table, {})
            typed = {name: values.astype(types.get(name, values.dtype), copy=False) for name, values in columns.items()}
            self._rows.setdefault(table, TableBuilder()).add(typed)

    def set_column(self, table: str, name: str, values: Column) -> None:
        """Adds a column to all rows of a table."""
        typed = values.astype(_TYPES[table][name], copy=False)
        self._rows[table].columns[name] = _Growing(typed.dtype)
        self._rows[table].columns[name].add(typed)

    def column(self, table: str, name: str) -> Column:
        """A column of all rows added so far."""
        return self._rows[table].columns[name].values

    def track(self, device: Column, context: Column, stream: Column) -> Column:
        """Numbers of streams."""
        return np.minimum(self._tracks.number([device, context, stream]), _MOST_NARROW - 1)

    def thread(self, key: Column) -> Column:
        """Numbers of threads, by any unique key."""
        return np.minimum(self.threads.number([key]), _MOST_NARROW - 1)

    def add_regions(self, columns: Mapping[str, Column], key: Column | None = None) -> None:
        """Regions: ``start_ns``, ``duration_ns``, ``thread``, ``name`` and ``kind``, a RegionKind.

        Args:
            columns: as above.
            key: the number by which work refers to the region that launched it; negative for none.
        """
        rows = len(columns["name"])
        kind = columns.get("kind", np.full(rows, int(RegionKind.REGION), np.uint8))
        self.add("region", {**columns, "kind": kind, "key": np.full(rows, -1, np.int64) if key is None else key})

    def add_ranges(self, columns: Mapping[str, Column]) -> None:
        """Regions that do not nest, because they may overlap. Columns as in `add_regions`."""
        self.add(_RANGE, columns)

    def add_calls(self, columns: Mapping[str, Column], name: Column, result: Column | None = None) -> None:
        """Calls of the driver or its runtime: ``start_ns``, ``duration_ns``, ``thread`` and ``correlation``."""
        results = np.zeros(len(name), np.int64) if result is None else result
        self.add("api", {**columns, "call": self._call(name, results, np.zeros(len(name), np.int64))})

    def _call(self, name: Column, result: Column, flags: Column) -> Column:
        """Numbers of calls."""
        return np.minimum(self._calls.number([name, result, flags]), _MOST_NARROW - 1)

    def add_work(self, table: str, columns: Mapping[str, Column], key: Column | None = None) -> None:
        """Work of a GPU: ``start_ns``, ``duration_ns``, ``track``, ``correlation``, 0 for none, ``flags`` and others.

        Args:
            table: kernel, memcpy, memset or graph_launch.
            columns: as above.
            key: of the region that launched it, if no call has the correlation; negative for none.
        """
        rows = len(columns["start_ns"])
        self.add(table, {**columns, "key": np.full(rows, -1, np.int64) if key is None else key})

    def add_nodes(
        self, work: Work, columns: Mapping[str, Column], graph: Column, node: Column, key: Column | None = None
    ) -> None:
        """Kernels, copies or fills, as in `add_work`. Rows with a `node` other than 0 ran in CUDA graphs.

        The place of the capture is unknown.
        """
        flags = np.where(node != 0, int(Flag.IN_GRAPH), 0).astype(np.uint16)
        flags |= columns.get("flags", flags)
        of_graphs = np.flatnonzero(node)
        nodes = {
            "event": of_graphs + self.count(work.name.lower()),
            "graph": bounded(graph[of_graphs]),
            "node": node[of_graphs],
            "flags": np.full(len(of_graphs), int(Flag.IN_GRAPH), np.uint16),
        }
        fixed = {"path": NONE, "kind": int(work)}
        self.add("graph_node", nodes | {name: np.full(len(of_graphs), value) for name, value in fixed.items()})
        self.add_work(work.name.lower(), {**columns, "flags": flags}, key)

    def variant(self, name: Column, **sizes: Column) -> Column:
        """Numbers of kernels with their launch configurations. Missing sizes are 0, those of grid and block 1."""
        if not sizes:  # distinct names are few: columns of all sizes for all rows would be most of the memory
            distinct, rows = np.unique(name, return_inverse=True)
            if len(distinct) < len(name):
                return self.variant(distinct)[rows]
        blank = {axis: np.full(len(name), int(axis[:4] in ("grid", "bloc")), np.int64) for axis in _VARIANT[1:]}
        given = {"name": name, **blank, **sizes}
        return self._variants.number([given[column] for column in _VARIANT])

    # -- the store ---------------------------------------------------------------------------------------------------
    def store(
        self,
        strings: Strings,
        threads: Mapping[str, Sequence[int]],
        facts: Mapping[str, str],
        others: Mapping[str, Mapping[str, Column]] | None = None,
        base_ns: int = 0,
    ) -> _core.Store:
        """The store of all tables.

        Args:
            strings: the texts of the columns.
            threads: ``system_id`` and ``name`` of the threads, in the order of the attribute `threads`.
            facts: of the info. Missing facts of the audit and the times are added.
            others: whole tables that need no further processing.
            base_ns: offset that is added to all times.
        """
        tables: dict[str, dict[str, Column]] = {name: dict(columns) for name, columns in (others or {}).items()}
        first_ns, last_ns = self._span()
        nesting = self._nest(tables)
        self._attribute(tables, nesting)
        self._append_ranges(tables)
        for table in list(self._rows):
            tables[table] = self._rows.pop(table).take()
        for columns in tables.values():
            if "start_ns" in columns:
                columns["start_ns"] += base_ns
        tables["thread"] = {
            "system_id": np.array(threads["system_id"][:_MOST_NARROW], np.uint64),
            "name": np.array(threads["name"][:_MOST_NARROW], np.uint32),
        }
        tables["track"] = dict(zip(("device", "context", "stream"), self._tracks.columns(), strict=True))
        tables["variant"] = dict(zip(_VARIANT, self._variants.columns(), strict=True))
        texts = list(strings.ids)
        self._find_captured(tables, texts)
        names, results, flags = self._calls.columns()
        kinds = np.array([_kind_of_call(texts[name]) for name in names.tolist()], np.uint16)
        tables["call"] = {"name": names, "kind": kinds, "result": results, "flags": flags}
        for table in ("track", "call"):
            tables[table] = {name: column[:_MOST_NARROW] for name, column in tables[table].items()}
        tables = {name: columns for name, columns in tables.items() if len(next(iter(columns.values())))}
        info = {**self._facts(tables, (first_ns + base_ns, last_ns + base_ns)), **facts}
        self._find_impossible(tables, texts)
        info |= self.checks.facts(info)
        return _core.make_store(tables, list(strings.ids), list(info.items()), consume=True)

    def _span(self) -> tuple[int, int]:
        """The first begin and the last end. GPU work without a time gets the first begin."""
        timed, untimed = [], []
        for rows in self._rows.values():
            columns = {name: column.values for name, column in rows.columns.items()}
            if "start_ns" not in columns:
                continue
            has_time = columns.get("flags", np.zeros(rows.count, np.uint16)) & int(Flag.ZERO_TIME) == 0
            start = columns["start_ns"]
            end = start + columns["duration_ns"] if "duration_ns" in columns else start
            timed += [(int(start[has_time].min()), int(end[has_time].max()))] if has_time.any() else []
            untimed.append((start, ~has_time))
        first_ns = min((first for first, _ in timed), default=0)
        for start, which in untimed:
            start[which] = first_ns
        return first_ns, max((last for _, last in timed), default=0)

    def _nest(self, tables: dict[str, dict[str, Column]]) -> dict[str, Column]:
        """Nests regions, calls and instants into regions. Returns the columns that `_attribute` needs."""
        counts = {name: self.count(name) for name in ("region", "api", *_INSTANTS) if name in self._rows}
        if not counts:
            return {}
        taken = {name: self._rows.pop(name).take() for name in counts}
        empty = np.zeros(0, np.uint32)
        name, kind = (taken["region"][column] if "region" in taken else empty for column in ("name", "kind"))
        durations = [
            columns["duration_ns"] if "duration_ns" in columns else np.zeros(counts[table], np.int64)
            for table, columns in taken.items()
        ]
        start, thread = (np.concatenate([each[column] for each in taken.values()]) for column in ("start_ns", "thread"))
        around, path, *paths = _core.nest_spans(start, np.concatenate(durations), thread, name, kind)
        innermost = dict(zip(taken, np.split(around, np.cumsum(list(counts.values()))[:-1]), strict=True))
        found: dict[str, Column] = {}
        if "region" in taken:
            of_regions = taken.pop("region")
            found["region_key"] = of_regions.pop("key")
            del of_regions["name"], of_regions["kind"]
            tables["region"] = {**of_regions, "parent": innermost["region"], "path": path}
            tables["path"] = dict(zip(("parent", "name", "kind", "depth"), paths, strict=True))
        for table, columns in taken.items():
            tables[table] = {**columns, "region": innermost[table]}
        if "api" in tables:
            found["correlation"], found["region"] = tables["api"]["correlation"], tables["api"]["region"]
        return found

    def _append_ranges(self, tables: dict[str, dict[str, Column]]) -> None:
        """Appends the regions that do not nest to the others."""
        if _RANGE not in self._rows:
            return
        ranges = self._rows.pop(_RANGE).take()
        columns = ("parent", "name", "kind", "depth")
        paths = tables.get("path", {name: np.zeros(0, np.uint32) for name in columns})
        rows = list(zip(*(paths[name].tolist() for name in columns), strict=True))
        known = {row: number for number, row in enumerate(rows)}
        names, kinds = ranges.pop("name"), ranges.pop("kind")
        of_ranges = zip(names.tolist(), kinds.tolist(), strict=True)
        path = [known.setdefault((NONE, name, kind, 0), len(known)) for name, kind in of_ranges]
        tables["path"] = dict(zip(columns, np.array(list(known), np.uint32).T, strict=True))
        count = len(path)
        ranges |= {"path": np.array(path, np.uint32), "parent": np.full(count, NONE, np.uint32)}
        ranges["flags"] = np.full(count, int(Flag.ASYNC), np.uint16)
        regions = tables.get("region", {name: values[:0] for name, values in ranges.items()})
        regions.setdefault("flags", np.zeros(len(regions["path"]), np.uint16))
        tables["region"] = {name: np.concatenate([regions[name], ranges[name]]) for name in ranges}

    def _attribute(self, tables: dict[str, dict[str, Column]], nesting: dict[str, Column]) -> None:
        """Attributes work and waits to the regions that launched them."""
        of_calls = Lookup(nesting["correlation"], nesting["region"], least=1) if "correlation" in nesting else None
        of_regions = None
        if "region_key" in nesting:
            key = nesting["region_key"]
            of_regions = Lookup(key, np.arange(len(key), dtype=np.uint32), least=0)
        for table in (*WORK, "sync", "device_memory"):
            if table not in self._rows:
                continue
            rows = self._rows.pop(table)
            columns = rows.take()
            region = columns.pop("region") if "region" in columns else np.full(rows.count, NONE, np.uint32)
            launched = np.zeros(rows.count, bool)
            if of_calls is not None:
                region, launched = of_calls.find(columns["correlation"])
            if "key" in columns and of_regions is not None:
                by_key, _ = of_regions.find(columns["key"])
                region = np.where(launched, region, by_key)
            if table in WORK:
                flags = columns.get("flags", np.zeros(rows.count, np.uint16))
                columns["flags"] = flags | np.where(launched, 0, int(Flag.NO_LAUNCH)).astype(np.uint16)
            columns.pop("key", region)
            tables[table] = {**columns, "region": region}

    def _find_captured(self, tables: dict[str, dict[str, Column]], texts: Sequence[str]) -> None:
        """Marks calls that were captured into a CUDA graph: calls without GPU work while any thread captured.

        Any thread may launch into a graph, as autograd's does. Launches outside the graph have GPU work.
        """
        name, result, _ = self._calls.columns()
        kinds = [_of_captures(texts[each]) for each in name.tolist()]
        if "begin" not in kinds:
            return
        api = tables["api"]
        what = np.array(kinds)[api["call"]]
        rows = _within(api["start_ns"], api["thread"], what == "begin", what == "end")
        rows = rows[(what[rows] == "work") & (result[api["call"][rows]] == 0) & (api["correlation"][rows] > 0)]
        worked = [tables[table]["correlation"] for table in WORK if table in tables]
        rows = rows[~np.isin(api["correlation"][rows], np.concatenate([np.zeros(0, np.int64), *worked]))]
        call = api["call"][rows]
        captured = np.full(len(rows), int(Flag.CAPTURED), np.int64)
        api["call"][rows] = self._call(name[call], result[call], captured)

    def _find_impossible(self, tables: Mapping[str, Mapping[str, Column]], texts: Sequence[str]) -> None:
        """Notes GPU work with an impossible duration, and names the worst case."""
        work = {table: tables[table] for table in WORK[:3] if table in tables}
        if not work:
            return
        names = ("track", "start_ns", "duration_ns", "correlation")
        columns = [np.concatenate([each[name] for each in work.values()]) for name in names]
        rows, over = find_impossible(*columns)
        if not len(rows):
            return
        longest, row = max(over.tolist()), int(rows[np.argmax(over)])
        label = "a copy or fill"
        if "kernel" in work and row < len(work["kernel"]["variant"]):  # kernels come first
            variant = work["kernel"]["variant"][row]
            label = brief(_core.demangle(texts[self._variants.columns()[0][variant]]))
        self.checks.notes.append(
            f"impossible duration: {label}, {columns[2][row] / 1e6:,.3f} ms, overlaps the "
            f"next {longest:,} rows of its stream, which runs them in sequence"
            + (f"; so do {len(rows) - 1:,} others" if len(rows) > 1 else "")
        )

    @staticmethod
    def _facts(tables: Mapping[str, Mapping[str, Column]], span: tuple[int, int]) -> dict[str, str]:
        kernels = tables["kernel"]["correlation"] if "kernel" in tables else np.zeros(0, np.uint32)
        launches = np.zeros(0, np.uint32)
        if "api" in tables:
            calls = tables["call"]
            is_launch = (calls["kind"] == int(CallKind.LAUNCH)) & (calls["result"] == 0) & (calls["flags"] == 0)
            launches = tables["api"]["correlation"][is_launch[tables["api"]["call"]]]
        has_work = any(table in tables for table in WORK)
        missing = len(np.setdiff1d(launches[launches > 0], kernels)) if has_work else 0
        return {
            "session.mode": "full",
            "session.nested_by_time": "1",
            "session.tier": "cupti" if has_work else "cpu",
            "session.tier_reason": "" if has_work else "the trace has no work of a GPU",
            "session.start_ns": str(span[0]),
            "session.stop_ns": str(span[1]),
            "audit.launches": str(len(launches)),
            "audit.kernels": str(len(kernels)),
            "audit.missing": str(missing),
        }


class Lookup:
    """The value of the first row with each key. Keys below `least` are ignored."""

    def __init__(self, key: Column, value: Column, least: int) -> None:
        given = np.flatnonzero(key >= least)
        order = given[np.argsort(key[given], kind="stable")]
        self._key, self._value = key[order], value[order]
        self._least = least

    def find(self, key: Column) -> tuple[Column, Column]:
        """The values, NONE for missing keys, and a mask of the found keys."""
        if not len(self._key):
            return np.full(len(key), NONE, np.uint32), np.zeros(len(key), bool)
        at = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        found = (self._key[at] == key) & (key >= self._least)
        return np.where(found, self._value[at], np.uint32(NONE)), found


def _kind_of_call(name: str) -> int:
    return int(next((kind for pattern, kind in _KINDS_OF_CALLS if pattern.match(name)), CallKind.OTHER))


def _of_captures(name: str) -> str:
    """The role of a call in a CUDA graph capture: "begin", "end", "work" (may be in the graph) or ""."""
    if found := _ENDS_OF_CAPTURES.match(name):
        return found[1].lower()
    return "work" if _kind_of_call(name) in _CAPTURED else ""


def _within(start_ns: Column, thread: Column, begins: Column, ends: Column) -> Column:
    """Rows of all threads between a begin and the next end of the same thread; without an end, all later rows."""
    order = np.flatnonzero(begins | ends)
    order = order[np.lexsort((begins[order], start_ns[order], thread[order]))]  # at equal times the end is first
    edges, is_end = np.append(order, 0), np.append(ends[order], False)
    place = np.arange(len(order) + 1)
    next_end = np.minimum.accumulate(np.where(is_end, place, len(order))[::-1])[::-1]
    begin = np.flatnonzero(begins[order])
    end = next_end[begin]
    is_closed = (end < len(order)) & (thread[edges[end]] == thread[order[begin]])
    opened = np.sort(start_ns[order[begin]])
    closed = np.sort(np.where(is_closed, start_ns[edges[end]], np.iinfo(np.int64).max))
    return np.flatnonzero(np.searchsorted(opened, start_ns) > np.searchsorted(closed, start_ns))


def parse(text: str | bytes) -> Any:
    """Parses JSON. Integers with more digits than 64 bits need become floats.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < _MOST_DIGITS else float(digits))


def json_of(text: str) -> Any:
    """As `parse`, with lone surrogates replaced; None if it is no JSON or longer than a million characters."""
    if len(text) > _MOST_TEXT:
        return None
    try:
        value = parse(text)
        return parse(well_formed(json.dumps(value, ensure_ascii=False))) if "\\u" in text else value
    except (ValueError, RecursionError):
        return None


def well_formed(text: str) -> str:
    """The text with lone surrogates replaced by the replacement character."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def memory_kind(name: str) -> int:
    """The number of a kind of memory; that of UNKNOWN for other names."""
    return int(next((kind for kind in MemoryKind if kind.name == name.upper()), MemoryKind.UNKNOWN))


def bounded(values: Column, default: int = 0, most: int = NONE) -> Column:
    """Integers from 0 to below `most`; others become the default."""
    return np.where((values >= 0) & (values < most), values, default)


def kept(columns: Mapping[str, Column], which: Column) -> Column:
    """Indices of the rows of `which` with valid times for a recording."""
    start, duration = columns["start_ns"], columns["duration_ns"]
    return np.flatnonzero(which & (start >= 0) & (start < MOST_NS) & (duration >= 0) & (duration < MOST_NS))
