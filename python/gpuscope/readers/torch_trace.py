# SPDX-License-Identifier: Apache-2.0
"""Traces of torch.profiler: Chrome's JSON as Kineto writes it, and as our own exporter does."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, CopyKind, Flag, FunctionKind, MemoryKind, RegionKind, SyncKind
from gpuscope.errors import CorruptTrace
from gpuscope.paths import open_file
from gpuscope.text import brief

_GZIP = b"\x1f\x8b"
_NONE = _core.NONE
_MOST_NS = 1 << 62
_MOST = {"threads": 1 << 16, "tracks": 1 << 16, "calls": 1 << 16}
_REGIONS = {"cpu_op": RegionKind.OP, "user_annotation": RegionKind.REGION}
_CALLS = ("cuda_runtime", "cuda_driver")
_WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_KINDS_OF_CALLS = (
    (re.compile(r"cu(da)?(Launch(Cooperative)?Kernel|LaunchKernelEx)"), CallKind.LAUNCH),
    (re.compile(r"cu(da)?GraphLaunch"), CallKind.GRAPH_LAUNCH),
    (re.compile(r"cu(da)?Memcpy"), CallKind.MEMCPY),
    (re.compile(r"cu(da)?Memset"), CallKind.MEMSET),
    (re.compile(r"cu(da)?\w*Synchronize"), CallKind.SYNC),
    (re.compile(r"cu(da)?(Malloc|MemAlloc|MemCreate|HostAlloc)"), CallKind.ALLOC),
    (re.compile(r"cu(da)?(Free|MemFree|MemRelease|HostFree)"), CallKind.FREE),
)
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_COPY_KINDS = {
    "HtoD": CopyKind.HOST_TO_DEVICE,
    "DtoH": CopyKind.DEVICE_TO_HOST,
    "DtoD": CopyKind.DEVICE_TO_DEVICE,
    "HtoH": CopyKind.HOST_TO_HOST,
    "PtoP": CopyKind.PEER_TO_PEER,
}
_SYNCS = {
    "Event Sync": SyncKind.EVENT,
    "Stream Wait Event": SyncKind.STREAM_WAIT_EVENT,
    "Stream Sync": SyncKind.STREAM,
    "Context Sync": SyncKind.CONTEXT,
}
_NOTE = (
    "read from a trace of torch.profiler, which does not say what it lost; allocations, samples and lines are not in it"
)

Event = dict[str, Any]
Row = dict[str, Any]


def read_torch_trace(path: str | os.PathLike[str]) -> _core.Store:
    """A recording of a trace that torch.profiler or we have written, compressed or not.

    Operators, annotations, calls of Python functions, driver calls, kernels, copies, fills and waits are read, with
    shapes, sequence numbers and launch dimensions; times keep their nanoseconds. Events of other kinds, and those
    without what they need, are left out.

    Raises:
        CorruptTrace: it is no JSON, or no such trace.
        GpuscopeError: it cannot be read at all.
    """
    name = os.fspath(path)
    document = _document(name)
    given = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(given, list):
        raise CorruptTrace(f"{name!r} is no trace: it has no list of traceEvents", name, 0)
    reader = _Reader(document if isinstance(document, dict) else {})
    for event in given:
        if isinstance(event, dict):
            reader.add(event)
    if not reader.found:
        kinds = ", ".join((*_REGIONS, *_CALLS, *_WORK))
        raise CorruptTrace(f"{name!r} is no trace of torch.profiler: none of its events is one of {kinds}", name, 0)
    return reader.store()


def _document(path: str) -> Any:
    with open_file(path) as file:
        data = file.read()
    try:
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        return json.loads(data)
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptTrace(f"{path!r} cannot be decompressed: {error}", path, 0) from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or nested without end
        at = getattr(error, "pos", 0)
        raise CorruptTrace(f"{path!r} is no JSON, or cut off: {brief(str(error))}", path, at) from error


class _Distinct:
    """Numbers of distinct things, in the order in which they came."""

    def __init__(self, *first: Any, most: int = _NONE) -> None:
        self.number: dict[Any, int] = {each: index for index, each in enumerate(first)}
        self._most = most

    def __call__(self, thing: Any) -> int:
        """Its number; that of the last one that there is room for where there is none."""
        known = self.number.get(thing)
        if known is None:
            known = min(len(self.number), self._most - 1)
            if len(self.number) < self._most:
                self.number[thing] = known
        return known

    def __iter__(self) -> Any:
        return iter(self.number)


def _integer(value: Any, default: int = 0, most: int = _NONE) -> int:
    number = value if isinstance(value, int) and not isinstance(value, bool) else default
    return number if 0 <= number < most else default


class _Reader:
    """Rows of each table, and what they refer to."""

    def __init__(self, document: dict[str, Any]) -> None:
        base = document.get("baseTimeNanoseconds")
        self._base_ns = base if isinstance(base, int) and 0 <= base < _MOST_NS else 0
        self._document = document
        self._strings = _Distinct("")
        self._threads = _Distinct(most=_MOST["threads"])
        self._tracks = _Distinct(most=_MOST["tracks"])
        self._calls = _Distinct(most=_MOST["calls"])
        self._variants = _Distinct()
        self._paths = _Distinct()
        self._thread_names: dict[tuple[int | str | None, int | str | None], str] = {}
        self._process = ""
        self._regions: list[Row] = []
        self._apis: list[Row] = []
        self._functions: list[Row] = []
        self._rows: dict[str, list[Row]] = {name: [] for name in (*_WORK.values(), "sync", "mark")}
        self._pid = 0

    @property
    def found(self) -> bool:
        """Whether there was anything of a profiler."""
        return bool(self._regions or self._apis or self._functions or any(self._rows.values()))

    # -- events ------------------------------------------------------------------------------------------------------
    def add(self, event: Event) -> None:
        """Reads one."""
        phase, name = event.get("ph"), event.get("name")
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if phase == "M":
            self._add_name(event, arguments)
            return
        category = event.get("cat")
        if phase != "X" or not isinstance(name, str):
            return
        span = self._span(event)
        if span is None:
            return
        if category in _REGIONS:
            self._regions.append({**span, "name": name, "kind": int(_REGIONS[category]), "args": arguments})
        elif category in _CALLS:
            correlation = _integer(arguments.get("correlation"))
            self._apis.append({**span, "call": self._calls(name), "correlation": correlation})
        elif category in _WORK:
            self._rows[_WORK[category]].append(self._work(category, name, span, arguments))
        elif category == "python_function":
            self._functions.append({**span, "name": name, "args": arguments})
        elif category == "cuda_sync":
            self._rows["sync"].append(
                {
                    **self._times(span),
                    "kind": int(next((kind for text, kind in _SYNCS.items() if name.startswith(text)), 0)),
                    "correlation": _integer(arguments.get("correlation")),
                    "track": self._track(arguments),
                }
            )

    def _add_name(self, event: Event, arguments: dict[str, Any]) -> None:
        name = arguments.get("name")
        if isinstance(name, str) and event.get("name") == "thread_name":
            self._thread_names[_place(event)] = name
        elif isinstance(name, str) and event.get("name") == "process_name" and not self._process:
            self._process, self._pid = name, _integer(event.get("pid"))

    def _span(self, event: Event) -> Row | None:
        """Begin and length in ns, and the thread or stream that it is on."""
        start, length = event.get("ts"), event.get("dur", 0)
        if not isinstance(start, (int, float)) or not isinstance(length, (int, float)):
            return None
        try:
            start_ns, duration_ns = self._base_ns + round(start * 1000), round(length * 1000)
        except (OverflowError, ValueError):  # infinite, nan
            return None
        if not 0 <= start_ns < _MOST_NS or not 0 <= duration_ns < _MOST_NS:
            return None
        return {"start_ns": start_ns, "duration_ns": duration_ns, "place": _place(event)}

    @staticmethod
    def _times(span: Row) -> Row:
        return {"start_ns": span["start_ns"], "duration_ns": span["duration_ns"]}

    def _track(self, arguments: dict[str, Any]) -> int:
        return self._tracks(tuple(_integer(arguments.get(name)) for name in ("device", "context", "stream")))

    def _work(self, category: str, name: str, span: Row, arguments: dict[str, Any]) -> Row:
        row = {
            **self._times(span),
            "correlation": _integer(arguments.get("correlation")),
            "track": self._track(arguments),
            "external": _integer(arguments.get("External id"), -1, _MOST_NS),
        }
        if category == "kernel":
            sizes = [*_three(arguments.get("grid")), *_three(arguments.get("block"))]
            registers, shared = (_integer(arguments.get(key)) for key in ("registers per thread", "shared memory"))
            return row | {"variant": self._variants((self._strings(name), *sizes, registers, shared))}
        row["bytes"] = _integer(arguments.get("bytes"), most=_MOST_NS)
        if category == "gpu_memcpy":
            found = _COPY.match(name)
            kind, source, destination = found.groups() if found else ("", "", "")
            row["kind"] = int(_COPY_KINDS.get(kind, CopyKind.UNKNOWN))
            row["source"], row["destination"] = _memory_kind(source), _memory_kind(destination)
            row["peer"] = 255
        return row

    # -- tables ------------------------------------------------------------------------------------------------------
    def store(self) -> _core.Store:
        """All of it."""
        external = self._nest()
        launched = {row["correlation"]: row["region"] for row in self._apis if row["correlation"]}
        for table in _WORK.values():
            for row in self._rows[table]:
                at = row.pop("external")
                region = launched.get(row["correlation"])
                row["region"] = external.get(at, _NONE) if region is None else region
                row["flags"] = int(Flag.NO_LAUNCH) if region is None else 0
        for row in self._rows["sync"]:
            row["region"] = launched.get(row["correlation"], _NONE)
        tables = {name: _columns(rows) for name, rows in self._rows.items() if rows}
        tables |= {
            name: _columns(rows, ("start_ns", "duration_ns", "thread", *columns))
            for name, rows, columns in (
                ("region", self._regions, ("parent", "path")),
                ("api", self._apis, ("correlation", "region", "call")),
                ("python_function", self._python_functions(), ("name", "parent", "kind")),
            )
            if rows
        }
        details = [row for row in map(self._detail, range(len(self._regions)), self._regions) if row is not None]
        if details:
            tables["detail"] = _columns(details)
        tables |= self._dictionaries()
        return _core.make_store(tables, list(self._strings), list(self._facts().items()))

    def _nest(self) -> dict[int, int]:
        """Gives regions their parents and calls their regions; the region of each external id."""
        rows = [*self._regions, *self._apis]
        for row in rows:
            row["thread"] = self._threads(row.pop("place"))
        regions = len(self._regions)
        begin, length, thread = (
            np.array([row[name] for row in rows], np.int64) for name in ("start_ns", "duration_ns", "thread")
        )
        external: dict[int, int] = {}
        order = np.lexsort((np.arange(len(rows)), -length, begin, thread))
        inside: list[int] = []
        ends = (begin + length).tolist()
        begins, threads = begin.tolist(), thread.tolist()
        for at in order.tolist():
            row = rows[at]
            while inside and (threads[inside[-1]] != threads[at] or ends[inside[-1]] < ends[at]):
                inside.pop()
            while inside and ends[inside[-1]] <= begins[at] and length[inside[-1]]:
                inside.pop()
            around = inside[-1] if inside else _NONE
            if at >= regions:
                row["region"] = around
                continue
            path = (self._regions[around]["path"] if inside else _NONE, self._strings(row["name"]), row["kind"])
            row["parent"], row["path"] = around, self._paths(path)
            number = _integer(row["args"].get("External id"), -1, _MOST_NS)
            if number >= 0:
                external.setdefault(number, at)
            inside.append(at)
        return external

    def _python_functions(self) -> list[Row]:
        rows: list[Row] = []
        numbers: dict[int, int] = {}
        for row in self._functions:
            number = row["args"].get("Python id")
            if isinstance(number, int):
                numbers[number] = len(rows)
            kind = FunctionKind.BUILT_IN if row["name"].startswith("<built-in") else FunctionKind.PYTHON
            kind = FunctionKind.GARBAGE if row["name"] == "Python GC" else kind
            rows.append(
                {
                    **self._times(row),
                    "name": self._strings(row["name"]),
                    "thread": self._threads(row["place"]),
                    "kind": int(kind),
                }
            )
        for at, (row, given) in enumerate(zip(rows, self._functions, strict=True)):
            parent = given["args"].get("Python parent id")
            found = numbers.get(parent, _NONE) if isinstance(parent, int) else _NONE
            row["parent"] = found if found != at else _NONE
        return _without_cycles(rows)

    def _detail(self, region: int, row: Row) -> Row | None:
        arguments = row["args"]
        shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
        sequence = _integer(arguments.get("Sequence number"), -1, _MOST_NS)
        if shapes is None and types is None and sequence < 0:
            return None
        return {
            "region": region,
            "sequence": sequence,
            "shapes": self._strings(json.dumps(shapes)) if isinstance(shapes, list) else _NONE,
            "types": self._strings(str(types)) if isinstance(types, list) else _NONE,
        }

    def _dictionaries(self) -> dict[str, dict[str, Any]]:
        tables: dict[str, dict[str, Any]] = {}
        threads = [(place, self._thread_names.get(place, "")) for place in self._threads]
        names = [self._strings(re.sub(r"^thread \d+ \((.*)\)$", r"\1", name)) for _, name in threads]
        ids = [_integer(place[1], most=1 << 63) for place, _ in threads]
        tables["thread"] = {"system_id": ids, "name": names}
        tables["track"] = _of_tuples(self._tracks, ("device", "context", "stream"))
        sizes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
        tables["variant"] = _of_tuples(self._variants, ("name", *sizes, "registers", "static_shared_bytes"))
        depth: list[int] = []
        for parent, _, _ in self._paths:
            depth.append(depth[parent] + 1 if parent != _NONE else 0)
        tables["path"] = {**_of_tuples(self._paths, ("parent", "name", "kind")), "depth": depth}
        kinds = self._kinds_of_calls()
        tables["call"] = {"name": [self._strings(name) for name in self._calls], "kind": kinds}
        devices = self._document.get("deviceProperties")
        listed = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
        tables["device"] = {
            "ordinal": [_integer(each.get("id")) for each in listed],
            "name": [self._strings(str(each.get("name", ""))) for each in listed],
            "multiprocessors": [_integer(each.get("numSms")) for each in listed],
            "capability_major": [_integer(each.get("computeMajor")) for each in listed],
            "capability_minor": [_integer(each.get("computeMinor")) for each in listed],
            "memory_bytes": [_integer(each.get("totalGlobalMem"), most=_MOST_NS) for each in listed],
        }
        filled = {name: columns for name, columns in tables.items() if next(iter(columns.values()))}
        return {name: {key: _array(each) for key, each in columns.items()} for name, columns in filled.items()}

    def _kinds_of_calls(self) -> list[int]:
        """The `CallKind` of each row of the table of calls."""
        return [
            int(next((kind for pattern, kind in _KINDS_OF_CALLS if pattern.match(name)), CallKind.OTHER))
            for name in self._calls
        ]

    def _facts(self) -> dict[str, str]:
        rows = [*self._regions, *self._apis, *self._functions, *(row for each in self._rows.values() for row in each)]
        kernels = self._rows["kernel"]
        kinds = self._kinds_of_calls()
        launches = [row["correlation"] for row in self._apis if kinds[row["call"]] == CallKind.LAUNCH]
        missing = set(launches) - {row["correlation"] for row in kernels}
        facts = {
            "session.mode": "full",
            "session.tier": "cupti" if any(self._rows[table] for table in _WORK.values()) else "cpu",
            "session.tier_reason": "" if kernels else "the trace has no work of a GPU",
            "session.start_ns": str(min(row["start_ns"] for row in rows)),
            "session.stop_ns": str(max(row["start_ns"] + row["duration_ns"] for row in rows)),
            "session.notes": _NOTE,
            "process.id": str(self._pid),
            "process.argv": self._process,
            "audit.launches": str(len(launches)),
            "audit.kernels": str(len(kernels)),
            "audit.missing": str(len(missing) if kernels else 0),
        }
        ours = self._document.get("gpuscope")
        for key, value in ours.items() if isinstance(ours, dict) else ():
            if isinstance(key, str) and isinstance(value, str) and not key.startswith("session.st"):
                facts[key] = value
        for key, fact in (("host_name", "process.host"), ("trace_id", "trace.id")):
            if isinstance(self._document.get(key), str):
                facts.setdefault(fact, self._document[key])
        if isinstance(self._document.get("distributedInfo"), dict):
            facts["metadata.distributedInfo"] = json.dumps(self._document["distributedInfo"])
        return facts


def _place(event: Event) -> tuple[int | str | None, int | str | None]:
    """Process and thread, or device and stream."""
    process, thread = (event.get(name) for name in ("pid", "tid"))
    return (
        process if isinstance(process, (int, str)) else None,
        thread if isinstance(thread, (int, str)) else None,
    )


def _three(sizes: Any) -> list[int]:
    given = sizes if isinstance(sizes, list) else []
    return [_integer(each, 1) for each in [*given, 1, 1, 1][:3]]


def _memory_kind(name: str) -> int:
    return int(next((kind for kind in MemoryKind if kind.name == name.upper()), MemoryKind.UNKNOWN))


def _columns(rows: list[Row], names: Iterable[str] | None = None) -> dict[str, Any]:
    return {name: _array([row[name] for row in rows]) for name in (names or rows[0])}


def _array(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _of_tuples(distinct: Iterable[tuple[int, ...]], names: tuple[str, ...]) -> dict[str, list[int]]:
    columns = list(zip(*distinct, strict=True)) or [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _without_cycles(rows: list[Row]) -> list[Row]:
    """A caller begins before what it calls, or comes before it: others, of a damaged file, are left out."""
    for at, row in enumerate(rows):
        parent = row["parent"]
        if parent != _NONE and (rows[parent]["start_ns"], parent) >= (row["start_ns"], at):
            row["parent"] = _NONE
    return rows
