# SPDX-License-Identifier: Apache-2.0
"""Traces of torch.profiler in Chrome's JSON, as Kineto and our own exporter write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import STEP_PREFIX, CopyKind, FunctionKind, PayloadType, RegionKind, SyncKind, Work
from gpuscope.readers.chrome import (
    COLLECTIVE_INTEGERS,
    COLLECTIVE_TEXTS,
    Batch,
    EventMapper,
    Meanings,
    arrows_of,
    names_of_threads,
)
from gpuscope.readers.tables import (
    MOST_NS,
    NONE,
    NOT_GIVEN,
    OVERHEAD,
    Column,
    Lookup,
    Strings,
    TableBuilder,
    absent,
    bounded,
    json_of,
    kept,
    memory_kind,
    not_recorded,
)

# Meaning of the categories: Kineto's names of all versions, in lower case, because the spelling changed.
_REGIONS = {"cpu_op": RegionKind.OP, "operator": RegionKind.OP, "user_annotation": RegionKind.REGION}
_CALLS = (
    *("cuda_runtime", "cuda_driver", "runtime", "driver", "glow_runtime", "mtia_runtime"),
    *("privateuse1_runtime", "privateuse1_driver", "xpu_runtime", "xpu_driver"),
)
_WORK = {
    "kernel": Work.KERNEL,
    "gpu_memcpy": Work.MEMCPY,
    "memcpy": Work.MEMCPY,
    "gpu_memset": Work.MEMSET,
    "memset": Work.MEMSET,
}
_FUNCTIONS, _WAITS = ("python_function",), ("cuda_sync", "xpu_sync")
_GRAPH = "graph"  # a CUDA graph traced as a whole: only in our own traces, as are marks and ranges
_TO_BACKWARD = ("fwdbwd", "fwd_bwd", "forward_backward")
_INSTANT, _MARK = "cpu_instant_event", "mark"  # the latter only in our own traces
_SAID_AGAIN = ("trace", "net", "user", "gpu_user_annotation")  # spans that repeat other events
_KNOWN = (*_REGIONS, *_CALLS, *_WORK, *_FUNCTIONS, *_WAITS)
_CATEGORIES = {name: code for code, name in enumerate((*_KNOWN, _GRAPH, *_TO_BACKWARD, _INSTANT, _MARK, *_SAID_AGAIN))}
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
_HOST = 0  # value of "Device Type" (c10::DeviceType); all other types are read as GPUs
_NOTE = "read from a trace of torch.profiler, which does not report lost events; it contains no samples or lines"
_NOTE_OF_OURS = (
    "read from a trace in Chrome's format: call stacks, modules, samples, hardware counters, power and clocks, and the "
    "driver's memory are not read from it; .gscope files keep them"
)
_ABSENT = ("samples", "lines", "hardware counters", "power and clocks", "lost events", OVERHEAD)


class TorchEvents(EventMapper):
    """Maps operators, annotations, Python functions, driver calls, GPU work and memory; skips other events."""

    tool = "torch.profiler"
    wanted = "none of its events is one of cpu_op, user_annotation, cuda_runtime, cuda_driver, kernel and gpu_memcpy"

    def __init__(self, events: _core.TraceEvents) -> None:
        super().__init__(events)
        self._callers: list[dict[str, Column]] = []
        # Begins and ends of arrows from forward to backward operators.
        self._arrows = {"s": TableBuilder(), "f": TableBuilder()}
        self._range_ends = {"b": TableBuilder(), "e": TableBuilder()}
        self._sort_index: dict[int, int] = {}  # thread id of each lane, by place
        self._categories = Meanings(events, lambda text: (_CATEGORIES.get(text.lower(), -1),))
        self._is_step = Meanings(events, lambda name: (int(name.startswith(STEP_PREFIX)),))
        self._sizes = Meanings(events, _three)
        self._copies = Meanings(events, _copy)
        self._syncs = Meanings(events, _sync)
        self._shapes = Meanings(events, lambda text: self._list(text, json.dumps))
        self._types = Meanings(events, lambda text: self._list(text, str))
        self._function_kinds = Meanings(events, _function_kind)

    def _list(self, text: str, write: Callable[[Any], str]) -> tuple[int]:
        """The id of a list's text in the form of our own recordings."""
        value = json_of(text)
        return (self.events.intern(write(value)) if isinstance(value, list) else NONE,)

    @staticmethod
    def knows(batch: Batch, events: _core.TraceEvents) -> bool:
        """Whether these are events of torch.profiler."""
        categories = np.unique(batch["category"])
        return any(events.string(each).lower() in _KNOWN for each in categories[categories != NONE].tolist())

    def map(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Adds a part of the events to the tables."""
        phase, (category,) = batch["phase"], self._categories(batch["category"])
        spans = phase == ord("X")
        self.skip(batch, spans & (category < 0))
        batch = {**batch, "category": category}

        def rows_of(table: str, *names: str) -> Column:
            return self.rows(table, batch, spans & np.isin(category, [_CATEGORIES[name] for name in names]))

        for name, kind in _REGIONS.items():
            rows = rows_of("region", name)
            if name == "operator":  # includes steps until mid 2021
                is_step = self._is_step(batch["name"][rows])[0] == 1
                self._add_regions(batch, rows[is_step], RegionKind.REGION)
                rows = rows[~is_step]
            self._add_regions(batch, rows, kind)
        rows = rows_of("api", *_CALLS)
        if len(rows):
            columns = self._span(batch, rows) | {"correlation": _argument(batch, rows, "correlation")}
            self.tables.add_calls(columns, batch["name"][rows].astype(np.int64))
        for name, work in _WORK.items():
            self._add_work(batch, rows_of(work.name.lower(), name), work)
        rows = rows_of("graph_launch", _GRAPH)
        if len(rows):
            columns = self._work(batch, rows) | {"graph": _argument(batch, rows, "graph id")}
            self.tables.add_work("graph_launch", columns, bounded(_raw(batch, rows, "External id"), -1, MOST_NS))
        self._add_instants(batch, word)
        self._keep_ranges(batch, word)
        is_arrow = np.isin(category, [_CATEGORIES[name] for name in _TO_BACKWARD]) & (batch["id"] != NOT_GIVEN)
        for letter, arrows in self._arrows.items():
            rows = kept(batch, (phase == ord(letter)) & is_arrow)
            if len(rows):
                arrows.add({name: batch[name][rows] for name in ("start_ns", "place", "id")})
        rows = rows_of("sync", *_WAITS)
        if len(rows):
            columns = self._work(batch, rows)
            del columns["flags"]
            columns["kind"] = self._syncs(batch["name"][rows])[0]
            self.tables.add("sync", columns)
        rows = rows_of("python_function", *_FUNCTIONS)
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
        self._add_collectives(batch, rows)
        columns = self._span(batch, rows) | {"name": batch["name"][rows]}
        columns["kind"] = np.full(len(rows), int(kind), np.uint8)
        self.tables.add_regions(columns, bounded(_raw(batch, rows, "External id"), -1, MOST_NS))

    def _add_collectives(self, batch: Batch, rows: Column) -> None:
        """Adds what operators say of their collectives as payloads of the regions, which are added after this."""
        first = self.tables.count("region")
        known = np.flatnonzero(batch["args.Collective name"][rows] != NONE)
        types = dict.fromkeys(COLLECTIVE_TEXTS, PayloadType.TEXT)
        types |= dict.fromkeys(COLLECTIVE_INTEGERS, PayloadType.SIGNED)
        for name, kind in types.items() if len(known) else ():
            values = _raw(batch, rows[known], name).astype(np.int64)
            given = values != NONE if kind == PayloadType.TEXT else values >= 0
            count = int(np.count_nonzero(given))
            columns = {"region": known[given] + first, "value": values[given]}
            fixed = {"name": self.events.intern(name), "type": int(kind)}
            self.tables.add("payload", columns | {key: np.full(count, value) for key, value in fixed.items()})

    def _keep_ranges(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Keeps begins and ends of ranges that do not nest, from our own traces. Events of calls have no number."""
        lanes = np.flatnonzero((batch["phase"] == ord("M")) & (batch["name"] == word("thread_sort_index")))
        self._sort_index |= zip(batch["place"][lanes].tolist(), _raw(batch, lanes, "sort_index").tolist(), strict=True)
        of_regions = np.isin(batch["category"], [_CATEGORIES[name] for name in _REGIONS])
        for phase, edges in self._range_ends.items():
            which = (batch["phase"] == ord(phase)) & of_regions & (batch["name"] != NONE) & (batch["id"] != NOT_GIVEN)
            rows = kept(batch, which)
            if len(rows):
                numbers = {"number": _raw(batch, rows, "Ev Idx")}
                edges.add(
                    numbers | {name: batch[name][rows] for name in ("start_ns", "place", "id", "name", "category")}
                )

    def _add_ranges(self) -> None:
        """Adds the ranges with begin and end. A range's thread is that of the lane next to its own."""
        begins, ends = (edges.take() for edges in self._range_ends.values())
        if not (begins and ends):
            return
        keys, of_ends = (zip(edges["place"].tolist(), edges["id"].tolist(), strict=True) for edges in (begins, ends))
        ended = dict(zip(of_ends, ends["start_ns"].tolist(), strict=True))
        end_ns = np.array([ended.get(key, -1) for key in keys], np.int64)
        is_range = begins["number"] != NOT_GIVEN
        rows = np.flatnonzero(is_range & (end_ns >= begins["start_ns"]))
        self.tables.checks.left_out("region", int(np.count_nonzero(is_range)) - len(rows))
        if not len(rows):
            return
        places = self.events.places()
        numbers = {place: number for number, place in enumerate(places)}
        beside = {
            at: numbers.get((places[at][0], self._sort_index.get(at, 0)), at) for at in set(begins["place"].tolist())
        }
        kinds = {_CATEGORIES[name]: int(kind) for name, kind in _REGIONS.items()}
        ranges = {
            "start_ns": begins["start_ns"][rows],
            "duration_ns": (end_ns - begins["start_ns"])[rows],
            "thread": self.tables.thread(np.array([beside[at] for at in begins["place"][rows].tolist()], np.int64)),
            "name": begins["name"][rows],
            "kind": np.array([kinds[category] for category in begins["category"][rows].tolist()], np.uint8),
        }
        self.tables.add_ranges(ranges)

    def _join_backward(self) -> None:
        """Links backward operators to forward ones: the same sequence number at the other end of the arrow."""
        begins, ends = (arrows.take() for arrows in self._arrows.values())
        if not (begins and ends and self.tables.count("detail")):
            return
        region, sequence = (self.tables.column("detail", name) for name in ("region", "sequence"))
        rows = np.flatnonzero(sequence >= 0)
        start, thread = (self.tables.column("region", name)[region[rows]] for name in ("start_ns", "thread"))
        keys = []
        for arrows in (begins, ends):
            arrows["place"] = self.tables.thread(arrows["place"].astype(np.int64))
            keys.append(arrows_of({"start_ns": start, "place": thread}, arrows))
        numbers = _core.RowNumbers(2)
        begun, ended = (np.where(key >= 0, numbers.number([key, sequence[rows]]).astype(np.int64), -1) for key in keys)
        found, _ = Lookup(begun, region[rows], least=0).find(ended)
        forward = np.full(len(sequence), NONE, np.uint32)
        forward[rows] = np.where(
            found == region[rows], NONE, found
        )  # ignores links to itself, which a file may contain
        self.tables.set_column("detail", "forward", forward)

    def _add_instants(self, batch: Batch, word: Callable[[str], int]) -> None:
        instants = batch["phase"] == ord("i")
        rows = self.rows("mark", batch, instants & (batch["category"] == _CATEGORIES[_MARK]))
        if len(rows):
            self.tables.add("mark", self._instant(batch, rows) | {"name": batch["name"][rows]})
        size = batch["args.Bytes"]
        instants &= batch["category"] == _CATEGORIES[_INSTANT]
        has_size = (size > -MOST_NS) & (size < MOST_NS)
        for name, table in _MEMORY.items():
            of_table = instants & (batch["name"] == word(name)) & (batch["name"] != NONE)
            self.tables.checks.left_out(table, int(np.count_nonzero(of_table & ~has_size)))
            rows = self.rows(table, batch, of_table & has_size)
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
        none = np.where(stream == NOT_GIVEN, 0, NONE)  # -1 means all streams
        track = self.tables.track(device, context, np.where((stream >= 0) & (stream < NONE), stream, none))
        return {
            "start_ns": batch["start_ns"][rows],
            "duration_ns": batch["duration_ns"][rows],
            "flags": batch["flags"][rows],
            "correlation": _argument(batch, rows, "correlation"),
            "track": track,
        }

    def _add_work(self, batch: Batch, rows: Column, work: Work) -> None:
        if not len(rows):
            return
        columns = self._work(batch, rows)
        if work == Work.KERNEL:
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
        if work == Work.MEMCPY:
            names = ("kind", "source", "destination", "peer")
            columns |= zip(names, self._copies(batch["name"][rows]), strict=True)
        graph, node = _argument(batch, rows, "graph id"), bounded(_raw(batch, rows, "graph node id"), most=MOST_NS)
        self.tables.add_nodes(work, columns, graph, node, bounded(_raw(batch, rows, "External id"), -1, MOST_NS))

    # -- the recording -----------------------------------------------------------------------------------------------
    def finish(self, strings: Strings, facts: dict[str, str], document: Mapping[str, Any]) -> _core.Store:
        """The recording."""
        base = document.get("baseTimeNanoseconds")
        self._add_ranges()
        self._join_backward()
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
        pid = self.events.place(process)[0] if process is not None else 0
        memory = () if self.tables.count("allocation") else ("allocations, without profile_memory",)
        facts = {
            "session.notes": f"{_NOTE}\n{absent(self.tool, (*memory, *_ABSENT))}",
            "process.id": str(pid if isinstance(pid, int) and pid >= 0 else 0),
            "process.argv": self.processes.get(process, "") if process is not None else "",
        }
        ours = document.get("gpuscope")
        if not isinstance(ours, dict):
            facts["audit.overhead_source"] = not_recorded(self.tool)
        else:
            facts["session.notes"] = ""
            facts |= {key: value for key, value in ours.items() if isinstance(value, str)}
            notes = [each for each in facts["session.notes"].splitlines() if each != _NOTE_OF_OURS]
            facts["session.notes"] = "\n".join([*notes, _NOTE_OF_OURS])
        for key, fact in (("host_name", "process.host"), ("trace_id", "trace.id")):
            if isinstance(document.get(key), str):
                facts.setdefault(fact, document[key])
        if isinstance(group := document.get("distributedInfo"), dict):
            facts["metadata.distributedInfo"] = json.dumps(group)
            rank, size = (_integer(group.get(key), NONE) for key in ("rank", "world_size"))
            if rank < size < NONE:
                facts = {"process.rank": str(rank), "process.world_size": str(size), **facts}
        return facts


def _devices(document: Mapping[str, Any], strings: Strings) -> dict[str, Column]:
    devices = document.get("deviceProperties")
    listed = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    listed = [each for each in listed if _integer(each.get("id"), NONE) != NONE]
    columns = {
        "ordinal": "id",
        "multiprocessors": "numSms",
        "capability_major": "computeMajor",
        "capability_minor": "computeMinor",
        "memory_bytes": "totalGlobalMem",
    }
    most = {"memory_bytes": MOST_NS}
    found = {
        column: np.array([_integer(each.get(key), most=most.get(column, NONE)) for each in listed], np.int64)
        for column, key in columns.items()
    }
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
    """The row of each row's parent; none if the parent begins later, as in a damaged file."""
    order = np.flatnonzero(number != NOT_GIVEN)
    order = order[np.argsort(number[order], kind="stable")]
    parents = np.full(len(number), NONE, np.uint32)
    if not len(order):
        return parents
    at = np.searchsorted(number[order], parent, side="right") - 1  # the last of equal numbers
    row = order[np.maximum(at, 0)]
    own = np.arange(len(number))
    good = (at >= 0) & (number[row] == parent) & (parent != NOT_GIVEN)
    good &= (start_ns[row] < start_ns) | ((start_ns[row] == start_ns) & (row < own))
    parents[good] = row[good]
    return parents
