# SPDX-License-Identifier: Apache-2.0
"""The events of a recording in order of time, and each event's neighbours: around, inside and launched by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from gpuscope import _core
from gpuscope.analysis import flops
from gpuscope.analysis.rows import DEVICE_KINDS, KINDS, MEMORY, Kind, RegionRows
from gpuscope.threads import cached_property
from gpuscope.trace import NONE, Table, Trace, number_of

Array = np.ndarray[Any, Any]
Event = TypeVar("Event")

_BLOCK = 4096  # events made between two looks at the clock

# The kinds of events directly in a Python function, and their column of `trace.function_nesting`.
_CALLERS = {Kind.PYTHON_FUNCTION: "caller", Kind.REGION: "region_caller", Kind.CALL: "call_caller"}


Make = Callable[["EventSource[Event]", int, int], Event]
"""Called with the table of an event, its row and its number."""


class OutsideMemory:
    """The allocations outside every region, as events without duration."""

    def __init__(self, trace: Trace) -> None:
        self._memory = trace.memory
        self._rows = np.flatnonzero(trace.memory.region >= len(trace.regions))
        self.duration_ns: Array = np.zeros(len(self._rows), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, column: object) -> bool:
        return column in self._memory

    def __getattr__(self, column: str) -> Array:
        if column.startswith("_"):
            raise AttributeError(column)
        values: Array = self._memory[column][self._rows]
        setattr(self, column, values)
        return values


class EventSource(Generic[Event]):
    """The events of one table."""

    def __init__(self, index: EventIndex[Event], kind: Kind, table: Table | OutsideMemory) -> None:
        self.index = index
        self.kind = kind
        self.table = table
        self.start_ns = table.start_ns
        self.duration_ns = table.duration_ns
        if kind == Kind.PYTHON_FUNCTION:
            self.regions = index.trace.function_nesting.region
        else:
            self.regions = table.parent if kind == Kind.REGION else table.region
        self.callers: Array | None = None  # the Python function directly around, where there are any
        if len(index.trace.python_functions) and kind in _CALLERS:
            self.callers = getattr(index.trace.function_nesting, _CALLERS[kind])
        self.ids: Array = np.empty(0, dtype=np.int64)  # each row's place in the list of events

    def name(self, row: int) -> str:
        """The name of a row's event."""
        if self.kind == Kind.MEMORY:
            return MEMORY
        if self.kind == Kind.KERNEL:
            names = self.index.kernel_names
            variant = int(self.table.variant[row])
            return names[variant] if variant < len(names) else ""
        if self.kind == Kind.PYTHON_FUNCTION:
            return self.index.trace.string(int(self.table.name[row]))
        return _core.event_name(self.index.trace.store, int(self.kind), row)

    def on_track(self, column: str, row: int) -> int:
        """The device, context or stream of a row; -1 on the CPU."""
        if not self.kind.is_device:
            return -1
        values = self.index.trace.tracks[column]
        track = int(self.table.track[row])
        return int(values[track]) if track < len(values) else -1

    def thread(self, row: int) -> int:
        """The system's id of a row's thread; its stream on the GPU."""
        if self.kind.is_device or "thread" not in self.table:
            return self.on_track("stream", row)
        ids = self.index.trace.threads.system_id
        thread = int(self.table.thread[row])
        return int(ids[thread]) if thread < len(ids) else thread

    def parent(self, row: int) -> int:
        """The region around a row; NONE outside."""
        region = int(self.regions[row])
        return region if region < len(self.index.trace.regions) else NONE

    def caller(self, row: int) -> int:
        """The Python function directly around a row; NONE if a region or nothing is."""
        return int(self.callers[row]) if self.callers is not None else NONE

    def callers_of(self, row: int) -> list[str]:
        """The functions around a Python function, innermost first."""
        names = []
        while (row := int(self.table.parent[row])) != NONE:
            names.append(self.name(row))
        return names

    @cached_property
    def by_caller(self) -> tuple[Array, Array]:
        """Rows by the Python function directly around them."""
        return _index(self.callers if self.callers is not None else np.empty(0, dtype=np.uint32))

    @cached_property
    def by_region(self) -> tuple[Array, Array]:
        """Rows by the region around them."""
        return _index(self.regions)

    @cached_property
    def has_flow(self) -> Array:
        """Whether an arrow from a driver call to its GPU work starts or ends at a row."""
        trace = self.index.trace
        if self.kind != Kind.CALL and not self.kind.is_device:
            return np.zeros(len(self.start_ns), dtype=bool)
        others = trace.api.correlation
        if self.kind == Kind.CALL:
            work = (trace.kernels, trace.memcpy, trace.memset, trace.graph_launches)
            others = np.concatenate([table.correlation for table in work])
        found: Array = np.isin(self.table.correlation, others) & (self.table.correlation != 0)
        return found

    @cached_property
    def by_correlation(self) -> tuple[Array, Array]:
        """Rows by the driver call that launched them."""
        return _index(self.table.correlation)


class EventIndex(Generic[Event]):
    """All events in order of time, with indexes between them. Each index is made when first needed."""

    def __init__(self, trace: Trace, make: Make[Event], seconds: float | None = None) -> None:
        """`seconds`: time limit for making events, default none."""
        began = _core.monotonic_ns() / 1e9
        self.trace = trace
        self._make = make
        tables: dict[Kind, Table | OutsideMemory] = {
            Kind.REGION: trace.regions,
            Kind.CALL: trace.api,
            Kind.KERNEL: trace.kernels,
            Kind.MEMCPY: trace.memcpy,
            Kind.MEMSET: trace.memset,
            Kind.GRAPH_LAUNCH: trace.graph_launches,
            Kind.SYNC: trace.sync,
            Kind.MEMORY: OutsideMemory(trace),
            Kind.PYTHON_FUNCTION: trace.python_functions,
        }
        self.sources = {kind: EventSource(self, kind, table) for kind, table in tables.items()}
        starts = np.concatenate([source.start_ns for source in self.sources.values()])
        begun_ns = number_of(trace.info, "session.start_ns")
        self.start_ns = begun_ns or (int(starts.min()) if len(starts) else 0)

        order = np.argsort(starts, kind="stable")  # equal starts keep the order of the tables: outer first
        ids = np.empty_like(order)
        ids[order] = np.arange(len(order))
        first = 0
        for source in self.sources.values():
            source.ids = ids[first : first + len(source.table)]
            first += len(source.table)
        self.count = len(order)  # of all events, made or not
        self.events: list[Event]  # in the order of their ids
        if seconds is None:
            events: list[Event] = []
            for source in self.sources.values():
                events.extend(make(source, row, event_id) for row, event_id in enumerate(source.ids.tolist()))
            self.events = [events[place] for place in order.tolist()]
        else:
            self.events = self._make_until(began + seconds, order)

    def __reduce__(self) -> tuple[type[EventIndex[Event]], tuple[Trace, Make[Event]]]:
        return EventIndex, (self.trace, self._make)

    def _make_until(self, end: float, order: Array) -> list[Event]:
        """The first events, as many as are made before `end`."""
        sources = list(self.sources.values())
        firsts = np.cumsum([0, *(len(source.table) for source in sources)])
        made: list[Event] = []
        while len(made) < self.count and _core.monotonic_ns() / 1e9 < end:
            places = order[len(made) : len(made) + _BLOCK]
            tables = np.searchsorted(firsts, places, side="right") - 1
            for table, row in zip(tables.tolist(), (places - firsts[tables]).tolist(), strict=True):
                made.append(self._make(sources[table], row, len(made)))
        return made

    def event(self, kind: Kind, row: int) -> Event:
        """The event of a row."""
        event_id = int(self.sources[kind].ids[row])
        if event_id < len(self.events):
            return self.events[event_id]
        return self._make(self.sources[kind], row, event_id)  # there was no time for it

    def inside(self, region: int, kinds: tuple[Kind, ...]) -> list[Event]:
        """Events directly in a region, in order of time."""
        return self._find(kinds, "by_region", region)

    def launched_by(self, correlation: int) -> list[Event]:
        """GPU work of one driver call, in order of time."""
        return self._find(DEVICE_KINDS, "by_correlation", correlation) if correlation else []

    def called_by(self, function: int) -> list[Event]:
        """Events directly in a Python function, in order of time."""
        return self._find(tuple(_CALLERS), "by_caller", function)

    def _find(self, kinds: tuple[Kind, ...], index: str, value: int) -> list[Event]:
        places: list[int] = []
        for kind in kinds:
            source = self.sources[kind]
            rows, values = getattr(source, index)
            first, last = np.searchsorted(values, [value, value + 1])
            places.extend(source.ids[rows[first:last]].tolist())
        return [self.events[place] for place in sorted(places) if place < len(self.events)]

    @cached_property
    def kernel_names(self) -> list[str]:
        """The name of each kernel variant."""
        return self.trace.kernel_names()

    @cached_property
    def regions(self) -> RegionRows:
        """The region table with its details."""
        return RegionRows(self.trace)

    @cached_property
    def has_external_ids(self) -> bool:
        """Whether driver calls and GPU work have external ids, as the program asked."""
        return self.trace.info.get(_core.EXTERNAL_IDS) != "off"

    @cached_property
    def graph_nodes(self) -> dict[tuple[Kind, int], tuple[int, int]]:
        """The graph and the node that each piece of GPU work ran as."""
        columns = ("kind", "event", "graph", "node")
        rows = zip(*(self.trace.graph_nodes[column].tolist() for column in columns), strict=True)
        return {(KINDS[kind], event): (graph, node) for kind, event, graph, node in rows if kind in KINDS}

    def launch_of(self, variant: int) -> dict[str, Any]:
        """How kernels of a variant are launched, by torch's names."""
        variants = self.trace.variants
        if variant >= len(variants):
            return {}
        return {
            "grid": [int(variants[f"grid_{axis}"][variant]) for axis in "xyz"],
            "block": [int(variants[f"block_{axis}"][variant]) for axis in "xyz"],
            "registers_per_thread": int(variants.registers[variant]),
            "shared_memory": int(variants.static_shared_bytes[variant] + variants.dynamic_shared_bytes[variant]),
        }

    @cached_property
    def flops(self) -> Array:
        """The floating-point operations of each region."""
        return flops.count_flops(self.regions)

    @cached_property
    def call_stacks(self) -> dict[int, int]:
        """The row of the stack table where each driver call was made."""
        table = self.trace.call_stacks
        return dict(zip(table.api.tolist(), table.stack.tolist(), strict=True))


def _index(values: Array) -> tuple[Array, Array]:
    """Rows in the order of their values, and the values in that order."""
    rows = np.argsort(values, kind="stable")
    return rows, values[rows].astype(np.int64)
