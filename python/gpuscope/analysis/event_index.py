# SPDX-License-Identifier: Apache-2.0
"""The rows of a recording as one list in order of time, and the indexes that find one event from another."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from gpuscope import _core
from gpuscope.analysis.kinds import DEVICE_KINDS, MEMORY, Kind
from gpuscope.analysis.region_rows import RegionRows
from gpuscope.trace import NONE, Table, Trace

Array = np.ndarray[Any, Any]
E = TypeVar("E")


class OutsideMemory:
    """The rows of the table of allocations that lie in no region: events without duration."""

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
        return self._memory[column][self._rows]


class Source(Generic[E]):
    """The events of one table."""

    def __init__(self, recording: Recording[E], kind: Kind, table: Table | OutsideMemory) -> None:
        self.recording = recording
        self.kind = kind
        self.table = table
        self.start_ns = table.start_ns
        self.duration_ns = table.duration_ns
        self.regions = table.parent if kind == Kind.REGION else table.region
        self.ids: Array = np.empty(0, dtype=np.int64)  # each row's place in the list of events

    def name(self, row: int) -> str:
        """The name of a row's event."""
        if self.kind == Kind.MEMORY:
            return MEMORY
        if self.kind == Kind.KERNEL:
            names = self.recording.kernel_names
            variant = int(self.table.variant[row])
            return names[variant] if variant < len(names) else ""
        return _core.event_name(self.recording.trace.store, int(self.kind), row)

    def on_track(self, column: str, row: int) -> int:
        """The device, context or stream of a row; -1 on the CPU."""
        if not self.kind.is_device:
            return -1
        values = self.recording.trace.tracks[column]
        track = int(self.table.track[row])
        return int(values[track]) if track < len(values) else -1

    def thread(self, row: int) -> int:
        """The system's id of a row's thread; its stream on the GPU."""
        if self.kind.is_device or "thread" not in self.table:
            return self.on_track("stream", row)
        ids = self.recording.trace.threads.system_id
        thread = int(self.table.thread[row])
        return int(ids[thread]) if thread < len(ids) else thread

    def parent(self, row: int) -> int:
        """The region that a row lies in; NONE outside."""
        region = int(self.regions[row])
        return region if region < len(self.recording.trace.regions) else NONE

    @cached_property
    def by_region(self) -> tuple[Array, Array]:
        """Rows by the region they lie in."""
        return _index(self.regions)

    @cached_property
    def by_correlation(self) -> tuple[Array, Array]:
        """Rows by the driver call that launched them."""
        return _index(self.table.correlation)


class Recording(Generic[E]):
    """All events in order of time, and what finds one from another; each index is made when first needed.

    ``make(source, row, number)`` makes an event of a row; the number is its place in ``events``.
    """

    def __init__(self, trace: Trace, make: Callable[[Source[E], int, int], E]) -> None:
        self.trace = trace
        tables: dict[Kind, Table | OutsideMemory] = {
            Kind.REGION: trace.regions,
            Kind.CALL: trace.api,
            Kind.KERNEL: trace.kernels,
            Kind.MEMCPY: trace.memcpy,
            Kind.MEMSET: trace.memset,
            Kind.GRAPH_LAUNCH: trace.graph_launches,
            Kind.SYNC: trace.sync,
            Kind.MEMORY: OutsideMemory(trace),
        }
        self.sources = {kind: Source(self, kind, table) for kind, table in tables.items()}
        starts = np.concatenate([source.start_ns for source in self.sources.values()])
        begun = trace.info.get("session.start_ns", "")
        self.start_ns = int(begun) if begun.isdecimal() else int(starts.min()) if len(starts) else 0

        order = np.argsort(starts, kind="stable")  # what begins together stays in the order of the tables: outer first
        ids = np.empty_like(order)
        ids[order] = np.arange(len(order))
        events: list[E] = []
        for source in self.sources.values():
            first = len(events)
            source.ids = ids[first : first + len(source.table)]
            events.extend(make(source, row, event_id) for row, event_id in enumerate(source.ids.tolist()))
        self.events: list[E] = [events[place] for place in order.tolist()]

    def event(self, kind: Kind, row: int) -> E:
        """The event of a row."""
        return self.events[int(self.sources[kind].ids[row])]

    def inside(self, region: int, kinds: tuple[Kind, ...]) -> list[E]:
        """Events directly in a region, in order of time."""
        return self._find(kinds, "by_region", region)

    def launched_by(self, correlation: int) -> list[E]:
        """GPU work of one driver call, in order of time."""
        return self._find(DEVICE_KINDS, "by_correlation", correlation) if correlation else []

    def _find(self, kinds: tuple[Kind, ...], index: str, value: int) -> list[E]:
        places: list[int] = []
        for kind in kinds:
            source = self.sources[kind]
            rows, values = getattr(source, index)
            first, last = np.searchsorted(values, [value, value + 1])
            places.extend(source.ids[rows[first:last]].tolist())
        return [self.events[place] for place in sorted(places)]

    @cached_property
    def kernel_names(self) -> list[str]:
        """The name of each kernel variant."""
        return self.trace.kernel_names()

    @cached_property
    def regions(self) -> RegionRows:
        """What is known of each region."""
        return RegionRows(self.trace)

    @cached_property
    def call_stacks(self) -> dict[int, int]:
        """The row of the stack table where each driver call was made."""
        table = self.trace.call_stacks
        return dict(zip(table.api.tolist(), table.stack.tolist(), strict=True))


def _index(values: Array) -> tuple[Array, Array]:
    """Rows in the order of their values, and the values in that order."""
    rows = np.argsort(values, kind="stable")
    return rows, values[rows].astype(np.int64)
