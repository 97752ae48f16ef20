# SPDX-License-Identifier: Apache-2.0
"""Traces of JAX's profiler: the ``trace.json.gz`` that XProf writes next to its own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CopyKind, FunctionKind, RegionKind
from gpuscope.readers.chrome import Batch, EventMapper, Meanings, names_of_threads
from gpuscope.readers.tables import (
    ABSENT_OF_TRACES,
    MOST_NS,
    NONE,
    Column,
    Strings,
    absent,
    bounded,
    memory_kind,
    not_recorded,
)

_PROCESS = re.compile(r"/(?:host|device):")
_GPU = re.compile(r"(?a)/device:GPU:(\d{1,9})(?!\d)")
_STREAM = re.compile(r"(?a)Stream #(\d{1,9})(?!\d)")
_DRIVER_CALL = re.compile(r"cu[A-Z]|cuda[A-Z]")
_PYTHON = re.compile(r"\$(.*):(\d+) (.*)", re.DOTALL)
_DETAIL = re.compile(r"(\w+):(\S+)")
_MOST_DETAILS = 1000  # characters that are parsed
_COPY_KINDS = {
    "H2D": CopyKind.HOST_TO_DEVICE,
    "D2H": CopyKind.DEVICE_TO_HOST,
    "D2D": CopyKind.DEVICE_TO_DEVICE,
    "H2H": CopyKind.HOST_TO_HOST,
    "P2P": CopyKind.PEER_TO_PEER,
}
_MEMORY = {"host": "pageable", "managed": "managed", "pinned": "pinned", "device": "device", "pageable": "pageable"}
_ABSENT = ("shapes", "waits of streams", *ABSENT_OF_TRACES)


class JaxEvents(EventMapper):
    """Maps annotations and XLA's own events (as regions), Python functions, driver calls and GPU work.

    XLA's lines of derived events (modules, operators, steps) repeat its streams, and are not read.
    """

    tool = "JAX"
    wanted = "it has no events of a host or a GPU"

    def __init__(self, events: _core.TraceEvents) -> None:
        super().__init__(events)
        self._is_call = Meanings(events, lambda name: (int(_DRIVER_CALL.match(name) is not None),))
        self._functions = Meanings(events, self._function)
        self._kernels = Meanings(events, _kernel)
        self._sizes = Meanings(events, _size)
        self._memories = Meanings(events, _memories)
        self._copies = Meanings(events, lambda name: (int(_COPY_KINDS.get(name[-3:], CopyKind.UNKNOWN)),))

    @staticmethod
    def knows(batch: Batch, events: _core.TraceEvents) -> bool:
        """Whether these are events of JAX's."""
        named = batch["args.name"][(batch["phase"] == ord("M")) & (batch["name"] == events.find("process_name"))]
        return any(_PROCESS.match(events.string(int(name))) for name in named[named != NONE])

    def map(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Adds a part of the events to the tables."""
        spans = batch["phase"] == ord("X")
        of_place = self._streams_of(batch["place"])
        self._add_host(batch, spans & (of_place[:, 0] == 0))
        self._add_work(batch, spans & (of_place[:, 0] == 1), of_place)

    def _streams_of(self, place: Column) -> Column:
        """For each row: kind (1 a stream, 2 not read, 0 others), device, and stream."""
        distinct, rows = np.unique(place, return_inverse=True)
        return np.array([self._stream(each) for each in distinct.tolist()], np.int64).reshape(-1, 3)[rows]

    def _stream(self, place: int) -> tuple[int, int, int]:
        process = self.process_names.get(self.events.place(place)[0], "")
        device, stream = _GPU.match(process), _STREAM.match(self.names.get(place, ""))
        kind = 1 if device and stream else 2 if process.startswith("/device:") else 0
        return kind, int(device[1]) if device else 0, int(stream[1]) if stream else 0

    def _function(self, name: str) -> tuple[int, int]:
        """Whether it is a Python function, and its name in torch's form."""
        found = _PYTHON.match(name)
        if found:
            file, line, function = found.groups()
            return 1, self.events.intern(f"{file}({line}): {function}")
        return int(name.startswith("$")), self.events.intern(name.removeprefix("$"))

    def _span(self, batch: Batch, rows: Column) -> dict[str, Column]:
        return {
            "start_ns": batch["start_ns"][rows],
            "duration_ns": batch["duration_ns"][rows],
            "thread": self.tables.thread(batch["place"][rows].astype(np.int64)),
        }

    def _add_host(self, batch: Batch, which: Column) -> None:
        name = batch["name"]
        correlation = bounded(batch["args.correlation_id"])
        is_call = (self._is_call(name)[0] == 1) & (correlation > 0)
        is_function, written = self._functions(name)
        calls = self.rows("api", batch, which & is_call)
        functions = self.rows("python_function", batch, which & ~is_call & (is_function == 1))
        regions = self.rows("region", batch, which & ~is_call & (is_function == 0))
        if len(calls):
            columns = {**self._span(batch, calls), "correlation": correlation[calls]}
            self.tables.add_calls(columns, batch["name"][calls].astype(np.int64))
        if len(functions):
            columns = self._span(batch, functions)
            columns["name"] = written[functions]
            kind = np.full(len(functions), int(FunctionKind.PYTHON), np.uint8)
            self.tables.add("python_function", {**columns, "kind": kind})
        if len(regions):
            kind = np.full(len(regions), int(RegionKind.REGION), np.uint8)
            self.tables.add_regions({**self._span(batch, regions), "name": batch["name"][regions], "kind": kind})

    def _add_work(self, batch: Batch, which: Column, streams: Column) -> None:
        copies, fills = batch["args.memcpy_details"], batch["args.memset_details"]
        for table, of_table in (
            ("kernel", (copies == NONE) & (fills == NONE)),
            ("memcpy", copies != NONE),
            ("memset", (fills != NONE) & (copies == NONE)),
        ):
            rows = self.rows(table, batch, which & of_table)
            if not len(rows):
                continue
            columns = {name: batch[name][rows] for name in ("start_ns", "duration_ns", "flags")}
            columns["correlation"] = bounded(batch["args.correlation_id"][rows])
            context = bounded(batch["args.context_id"][rows])
            columns["track"] = self.tables.track(streams[rows, 1], context, streams[rows, 2])
            name = batch["name"][rows]
            if table == "kernel":
                sizes = dict(zip(_SIZES, self._kernels(batch["args.kernel_details"][rows]), strict=True))
                columns["variant"] = self.tables.variant(name.astype(np.int64), **sizes)
            else:
                details = (copies if table == "memcpy" else fills)[rows]
                columns["bytes"] = bounded(self._sizes(details)[0], most=MOST_NS)
            if table == "memcpy":
                columns["kind"] = self._copies(name)[0]
                columns["source"], columns["destination"] = self._memories(details)
                columns["peer"] = np.full(len(details), 255, np.uint8)
            self.tables.add_work(table, columns)

    def finish(self, strings: Strings, facts: dict[str, str], document: Mapping[str, Any]) -> _core.Store:
        """The recording."""
        if self.tables.count("python_function"):
            start, duration, thread, name = (
                self.tables.column("python_function", each) for each in ("start_ns", "duration_ns", "thread", "name")
            )
            around = _core.nest_spans(start, duration, thread, name, np.zeros_like(name))[0]
            self.tables.set_column("python_function", "parent", around)
        hosts = [name for name in self.processes.values() if name.startswith("/host:")]
        ordinals = sorted({int(found[1]) for name in self.processes.values() if (found := _GPU.match(name))})
        own = {
            "session.notes": absent(self.tool, _ABSENT),
            "process.argv": hosts[0] if hosts else "",
            "audit.overhead_source": not_recorded(self.tool),
        }
        devices = {"ordinal": np.array(ordinals, np.int64)} if ordinals else {}
        others = {"device": devices} if devices else {}
        return self.tables.store(strings, names_of_threads(self, strings), {**own, **facts}, others)


_SIZES = (
    *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
    "registers",
    "static_shared_bytes",
    "dynamic_shared_bytes",
)


def _details(text: str) -> dict[str, str]:
    return dict(_DETAIL.findall(text[:_MOST_DETAILS]))


def _number(text: str, default: int = 0, most: int = NONE) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else default
    return value if value < most else default


def _kernel(details: str) -> tuple[int, ...]:
    """The numbers of `_SIZES` in ``regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:128,1,1 occ_pct:50``."""
    given = _details(details)
    axes = [[*given.get(what, "").split(","), "", "", ""][:3] for what in ("grid", "block")]
    resources = (given.get(what, "") for what in ("regs", "static_shared", "dynamic_shared"))
    return (*(_number(size, 1) for each in axes for size in each), *map(_number, resources))


def _size(details: str) -> tuple[int]:
    return (_number(_details(details).get("size", ""), most=MOST_NS),)


def _memories(details: str) -> tuple[int, int]:
    """Source and destination memory in ``kind_src:host kind_dst:device size:4 dest:0 async:1``."""
    given = _details(details)
    source, destination = (memory_kind(_MEMORY.get(given.get(each, ""), "")) for each in ("kind_src", "kind_dst"))
    return source, destination
