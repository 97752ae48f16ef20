# SPDX-License-Identifier: Apache-2.0
"""Traces of torch.profiler: Chrome's JSON as Kineto writes it, and as our own exporter does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CopyKind, FunctionKind, RegionKind, SyncKind
from gpuscope.readers.chrome import Batch, EventMapper, Meanings, names_of_threads
from gpuscope.readers.tables import (
    MOST_NS,
    NONE,
    NOT_GIVEN,
    OVERHEAD,
    Column,
    Strings,
    absent,
    bounded,
    json_of,
    kept,
    memory_kind,
    not_recorded,
)

_REGIONS = {"cpu_op": RegionKind.OP, "user_annotation": RegionKind.REGION}
_CALLS = ("cuda_runtime", "cuda_driver")
_WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
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
_MEMORY = {"[memory]": "allocation", "[OutOfMemory]": "failed_allocation"}
_INSTANT, _MARK = "cpu_instant_event", "mark"  # the latter is in our own traces alone
_HOST = 0  # of "Device Type", c10::DeviceType's numbers; others than CUDA's are read as GPUs
_NOTE = "read from a trace of torch.profiler, which does not say what it lost; samples and lines are not in it"
_ABSENT = ("samples", "lines", "hardware counters", "power and clocks", "what was lost", OVERHEAD)


class TorchEvents(EventMapper):
    """Operators, annotations, Python functions, driver calls, GPU work and memory; other events are left out."""

    tool = "torch.profiler"
    wanted = f"none of its events is one of {', '.join((*_REGIONS, *_CALLS, *_WORK))}"

    def __init__(self, events: _core.TraceEvents) -> None:
        super().__init__(events)
        self._callers: list[dict[str, Column]] = []
        self._sizes = Meanings(events, _three)
        self._copies = Meanings(events, _copy)
        self._syncs = Meanings(events, _sync)
        self._shapes = Meanings(events, lambda text: self._list(text, json.dumps))
        self._types = Meanings(events, lambda text: self._list(text, str))
        self._function_kinds = Meanings(events, _function_kind)

    def _list(self, text: str, write: Callable[[Any], str]) -> tuple[int]:
        """The id of a list as our own recordings write it."""
        value = json_of(text)
        return (self.events.intern(write(value)) if isinstance(value, list) else NONE,)

    @staticmethod
    def knows(batch: Batch, word: Callable[[str], int]) -> bool:
        """Whether these are events of torch.profiler's."""
        categories = [word(each) for each in (*_REGIONS, *_CALLS, *_WORK, "python_function", "cuda_sync")]
        return bool(np.isin(batch["category"], [each for each in categories if each != NONE]).any())

    def map(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Adds what a part of the events says to the tables."""
        spans = (batch["phase"] == ord("X")) & (batch["name"] != NONE)
        category = batch["category"]

        def rows_of(name: str) -> Column:
            return kept(batch, spans & (category == word(name))) if word(name) != NONE else np.zeros(0, np.int64)

        for name, kind in _REGIONS.items():
            self._add_regions(batch, rows_of(name), kind)
        for name in _CALLS:
            rows = rows_of(name)
            if len(rows):
                columns = self._span(batch, rows) | {"correlation": _argument(batch, rows, "correlation")}
                self.tables.add_calls(columns, batch["name"][rows].astype(np.int64))
        for name, table in _WORK.items():
            self._add_work(batch, rows_of(name), table)
        self._add_instants(batch, word)
        rows = rows_of("cuda_sync")
        if len(rows):
            columns = self._work(batch, rows)
            columns["kind"] = self._syncs(batch["name"][rows])[0]
            self.tables.add("sync", columns)
        rows = rows_of("python_function")
        if len(rows):
            self._callers.append({each: _raw(batch, rows, each) for each in ("Python id", "Python parent id")})
            columns = self._span(batch, rows) | {"name": batch["name"][rows]}
            columns["kind"] = self._function_kinds(columns["name"])[0]
            self.tables.add("python_function", columns)

    def _span(self, batch: Batch, rows: Column) -> dict[str, Column]:
        return {
            "start_ns": batch["start_ns"][rows],
            "duration_ns": batch["duration_ns"][rows],
            "thread": self.tables.thread(batch["place"][rows].astype(np.int64)),
        }

    def _add_regions(self, batch: Batch, rows: Column, kind: RegionKind) -> None:
        if not len(rows):
            return
        sequence = bounded(_raw(batch, rows, "Sequence number"), -1, MOST_NS)
        (shapes,), (types,) = self._shapes(batch["args.Input Dims"][rows]), self._types(batch["args.Input type"][rows])
        known = np.flatnonzero((sequence >= 0) | (shapes != NONE) | (types != NONE))
        self.tables.add(
            "detail",
            {
                "region": known + self.tables.count("region"),
                "sequence": sequence[known],
                "shapes": shapes[known],
                "types": types[known],
            },
        )
        columns = self._span(batch, rows) | {"name": batch["name"][rows]}
        columns["kind"] = np.full(len(rows), int(kind), np.uint8)
        self.tables.add_regions(columns, bounded(_raw(batch, rows, "External id"), -1, MOST_NS))

    def _add_instants(self, batch: Batch, word: Callable[[str], int]) -> None:
        category = batch["category"]
        instants = (batch["phase"] == ord("i")) & (batch["name"] != NONE) & (category != NONE)
        rows = kept(batch, instants & (category == word(_MARK)))
        if len(rows):
            self.tables.add("mark", self._instant(batch, rows) | {"name": batch["name"][rows]})
        size = batch["args.Bytes"]
        instants &= (category == word(_INSTANT)) & (size > -MOST_NS) & (size < MOST_NS)
        for name, table in _MEMORY.items():
            rows = kept(batch, instants & (batch["name"] == word(name)))
            if not len(rows):
                continue
            on_host = _raw(batch, rows, "Device Type") == _HOST
            totals = {"allocated_bytes": "Total Allocated", "reserved_bytes": "Total Reserved"}
            columns = {ours: bounded(_raw(batch, rows, theirs), most=MOST_NS) for ours, theirs in totals.items()}
            columns |= {"bytes": size[rows], "ordinal": np.where(on_host, NONE, _argument(batch, rows, "Device Id"))}
            if table == "allocation":
                columns["address"] = bounded(_raw(batch, rows, "Addr"), most=MOST_NS)
                columns["flags"] = np.zeros(len(rows), np.uint16)
            self.tables.add(table, self._instant(batch, rows) | columns)

    def _instant(self, batch: Batch, rows: Column) -> dict[str, Column]:
        columns = self._span(batch, rows)
        del columns["duration_ns"]
        return columns

    def _work(self, batch: Batch, rows: Column) -> dict[str, Column]:
        device, context = (_argument(batch, rows, each) for each in ("device", "context"))
        stream = _raw(batch, rows, "stream")
        none = np.where(stream == NOT_GIVEN, 0, NONE)  # -1: that of no stream, but of all
        track = self.tables.track(device, context, np.where((stream >= 0) & (stream < NONE), stream, none))
        return {
            "start_ns": batch["start_ns"][rows],
            "duration_ns": batch["duration_ns"][rows],
            "correlation": _argument(batch, rows, "correlation"),
            "track": track,
        }

    def _add_work(self, batch: Batch, rows: Column, table: str) -> None:
        if not len(rows):
            return
        columns = self._work(batch, rows)
        if table == "kernel":
            sizes = {
                f"{what}_{axis}": size
                for what in ("grid", "block")
                for axis, size in zip("xyz", self._sizes(batch[f"args.{what}"][rows]), strict=True)
            }
            resources = {
                "registers": _argument(batch, rows, "registers per thread"),
                "static_shared_bytes": _argument(batch, rows, "shared memory"),
            }
            columns["variant"] = self.tables.variant(batch["name"][rows].astype(np.int64), **sizes, **resources)
        else:
            columns["bytes"] = bounded(_raw(batch, rows, "bytes"), most=MOST_NS)
        if table == "memcpy":
            names = ("kind", "source", "destination", "peer")
            columns |= zip(names, self._copies(batch["name"][rows]), strict=True)
        self.tables.add_work(table, columns, bounded(_raw(batch, rows, "External id"), -1, MOST_NS))

    # -- the recording -----------------------------------------------------------------------------------------------
    def finish(self, strings: Strings, facts: dict[str, str], document: Mapping[str, Any]) -> _core.Store:
        """The recording."""
        base = document.get("baseTimeNanoseconds")
        if self._callers:
            self.tables.set_column("python_function", "parent", self._parents())
        others = {"device": _devices(document, strings)}
        return self.tables.store(
            strings,
            names_of_threads(self, strings),
            {**self._facts(document), **facts},
            {name: columns for name, columns in others.items() if len(next(iter(columns.values())))},
            base if isinstance(base, int) and 0 <= base < MOST_NS else 0,
        )

    def _parents(self) -> Column:
        """The row of each function's caller."""
        number, parent = (
            np.concatenate([each[name] for each in self._callers]) for name in ("Python id", "Python parent id")
        )
        start = self.tables.column("python_function", "start_ns")
        return parents_of(number, parent, start)

    def _facts(self, document: Mapping[str, Any]) -> dict[str, str]:
        process = min(self.processes, default=None)
        pid = self.events.places()[process][0] if process is not None else 0
        memory = () if self.tables.count("allocation") else ("allocations, without profile_memory",)
        facts = {
            "session.notes": f"{_NOTE}\n{absent(self.tool, (*memory, *_ABSENT))}",
            "process.id": str(pid if isinstance(pid, int) and pid >= 0 else 0),
            "process.argv": self.processes.get(process, "") if process is not None else "",
        }
        ours = document.get("gpuscope")
        if not isinstance(ours, dict):
            facts["audit.overhead_source"] = not_recorded(self.tool)
        for key, value in ours.items() if isinstance(ours, dict) else ():
            if isinstance(key, str) and isinstance(value, str) and not key.startswith("session.st"):
                facts[key] = value
        for key, fact in (("host_name", "process.host"), ("trace_id", "trace.id")):
            if isinstance(document.get(key), str):
                facts.setdefault(fact, document[key])
        if isinstance(document.get("distributedInfo"), dict):
            facts["metadata.distributedInfo"] = json.dumps(document["distributedInfo"])
        return facts


def _devices(document: Mapping[str, Any], strings: Strings) -> dict[str, Column]:
    devices = document.get("deviceProperties")
    listed = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    columns = {
        "ordinal": "id",
        "multiprocessors": "numSms",
        "capability_major": "computeMajor",
        "capability_minor": "computeMinor",
        "memory_bytes": "totalGlobalMem",
    }
    found = {column: np.array([_integer(each.get(key)) for each in listed]) for column, key in columns.items()}
    return found | {"name": strings.of(str(each.get("name", "")) for each in listed)}


def _raw(batch: Batch, rows: Column, name: str) -> Column:
    return batch[f"args.{name}"][rows]


def _argument(batch: Batch, rows: Column, name: str) -> Column:
    return bounded(_raw(batch, rows, name))


def _integer(value: Any, default: int = 0, most: int = NONE) -> int:
    number = value if isinstance(value, int) and not isinstance(value, bool) else default
    return number if 0 <= number < most else default


def _three(text: str) -> tuple[int, ...]:
    sizes = json_of(text)
    given = sizes if isinstance(sizes, list) else []
    return tuple(_integer(each, 1) for each in [*given, 1, 1, 1][:3])


def _copy(name: str) -> tuple[int, ...]:
    found = _COPY.match(name)
    kind, source, destination = found.groups() if found else ("", "", "")
    of_kind = int(_COPY_KINDS.get(kind, CopyKind.UNKNOWN))
    return of_kind, memory_kind(source), memory_kind(destination), 255


def _sync(name: str) -> tuple[int]:
    return (int(next((kind for text, kind in _SYNCS.items() if name.startswith(text)), 0)),)


def _function_kind(name: str) -> tuple[int]:
    kind = FunctionKind.BUILT_IN if name.startswith("<built-in") else FunctionKind.PYTHON
    return (int(FunctionKind.GARBAGE if name == "Python GC" else kind),)


def parents_of(number: Column, parent: Column, start_ns: Column) -> Column:
    """The row whose number is each row's parent; none where it begins later, as in a damaged file."""
    order = np.flatnonzero(number != NOT_GIVEN)
    order = order[np.argsort(number[order], kind="stable")]
    parents = np.full(len(number), NONE, np.uint32)
    if not len(order):
        return parents
    at = np.searchsorted(number[order], parent, side="right") - 1  # of equal numbers the last
    row = order[np.maximum(at, 0)]
    own = np.arange(len(number))
    good = (at >= 0) & (number[row] == parent) & (parent != NOT_GIVEN)
    good &= (start_ns[row] < start_ns) | ((start_ns[row] == start_ns) & (row < own))
    parents[good] = row[good]
    return parents
