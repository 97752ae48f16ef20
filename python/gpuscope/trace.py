# SPDX-License-Identifier: Apache-2.0
"""A recording's tables as NumPy arrays, Arrow streams and pandas frames, on the memory that the core recorded to."""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd

NONE = 0xFFFFFFFF
"""What a column that refers to a row of another table holds where there is none."""

OPEN, ASYNC = 1 << 5, 1 << 8
"""Flags of regions: still open when recording ended; a start/end range, which overlaps what runs beside it."""

AUTOGRAD_ENGINE = "autograd::engine::evaluate_function: "
"""What torch calls the range around each backward operator, before the operator's name."""


class MemoryKind(IntEnum):
    """What memory is: ``kind`` of ``Trace.device_memory``, ``source`` and ``destination`` of ``Trace.memcpy``."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    ARRAY = 4
    MANAGED = 5
    DEVICE_STATIC = 6
    MANAGED_STATIC = 7


class PoolOperation(IntEnum):
    """What was done to a CUDA memory pool: ``operation`` of ``Trace.memory_pools``."""

    UNKNOWN = 0
    CREATED = 1
    DESTROYED = 2
    TRIMMED = 3


class Table:
    """One table: its columns are read-only arrays that share the recording's memory and keep it alive.

    Times are integer ns since the Unix epoch. Columns named like a dictionary (``variant``, ``track``, ``path``,
    ``thread``, ``call``) or ``region`` hold row numbers of that table, ``NONE`` where there is none; ``name`` holds
    string ids, which ``Trace.string`` spells. ``to_pandas`` and Arrow readers see names spelled out.
    """

    __slots__ = ("_columns", "_store", "_table")

    def __init__(self, store: _core.Store, table: str) -> None:
        self._store = store
        self._table = table
        self._columns: dict[str, np.ndarray[Any, Any]] | None = None

    def _arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        if self._columns is None:
            self._columns = self._store.columns(self._table)
        return self._columns

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._arrays())

    def __len__(self) -> int:
        return self._store.rows(self._table)

    def __getitem__(self, column: str) -> np.ndarray[Any, Any]:
        array = self._arrays().get(column) if isinstance(column, str) else None
        if array is None:
            raise InvalidArgument(
                f"column is {column!r}; the columns of table {self._table!r} are {', '.join(self.columns)}"
            )
        return array

    def __getattr__(self, column: str) -> np.ndarray[Any, Any]:
        array = None if column.startswith("_") else self._arrays().get(column)
        if array is None:
            raise AttributeError(f"table {self._table!r} has no column {column!r}; it has {', '.join(self.columns)}")
        return array

    def __contains__(self, column: object) -> bool:
        return column in self._arrays()

    __iter__ = None  # rows or columns? neither is plainly right

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.columns]

    def __repr__(self) -> str:
        return f"<Table {self._table}: {len(self):,} rows of {', '.join(self.columns)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """The table for pyarrow, Polars, DuckDB and pandas: number columns without a copy, strings as a dictionary.

        Kernels, driver calls and regions get a column ``name``; kernels' names are demangled there.

        Args:
            requested_schema: not honoured, as the interface permits; cast afterwards.
        """
        return self._store.arrow_stream(self._table)

    def to_pandas(self) -> pd.DataFrame:
        """The table as a frame of its own memory, with names in place of row numbers.

        A kernel's row has ``name`` (demangled), ``grid`` and ``block`` ("x, y, z"), ``registers``,
        ``shared_bytes`` (static and dynamic), ``device``, ``context``, ``stream``, ``region`` (where it was launched)
        and ``path`` (that region with those around it, "train/forward") beside the columns it has anyway. Other tables
        likewise: names for whatever refers to a dictionary, ``thread`` as the system's thread id. Where there is no
        region the cell is missing.

        Raises:
            NotAvailable: pandas is not installed.
        """
        from gpuscope import dataframe

        return dataframe.make(self._store, self._table)


class Trace:
    """One recording: a ``Table`` for each kind of row, the strings and the facts about the run.

    In aggregate mode only ``region_totals``, ``work_totals`` and ``histograms`` hold measurements; in the other modes
    those are empty.

    Attributes:
        store: the core's object that owns the memory.
        memory: what frameworks' allocators handed out (``bytes`` above 0) and took back, with ``profile_memory``.
        device_memory: what libraries took from the driver (``bytes`` above 0) and gave back, with ``profile_memory``
            and CUPTI; memory that they hold and hand out in pieces is one row. ``region`` is where the call was made,
            ``correlation`` names its row of ``api``. ``kind`` is a `MemoryKind`, ``library`` the path of the file whose
            code asked (a string id; NONE before CUDA 12.6 and off x86-64; the program's for what is linked into it),
            ``pool`` the CUDA pool that it came from, 0 for none, with ``pool_reserved_bytes`` and ``pool_used_bytes``
            as they then were. Its track's stream is NONE for calls that take effect at once, as cudaMalloc.
        memory_pools: CUDA pools created, trimmed and destroyed, as ``operation``, a `PoolOperation`, says;
            ``device`` is a row of ``devices``, and ``release_threshold_bytes`` what the pool keeps when it is
            synchronized.
    """

    def __init__(self, store: _core.Store) -> None:
        self.store = store
        self.kernels = Table(store, "kernel")
        self.api = Table(store, "api")
        self.memcpy = Table(store, "memcpy")
        self.memset = Table(store, "memset")
        self.sync = Table(store, "sync")
        self.regions = Table(store, "region")
        self.region_gpu = Table(store, "region_gpu")
        self.marks = Table(store, "mark")
        self.details = Table(store, "detail")
        self.payloads = Table(store, "payload")
        self.memory = Table(store, "allocation")
        self.device_memory = Table(store, "device_memory")
        self.memory_pools = Table(store, "memory_pool")
        self.call_stacks = Table(store, "call_stack")
        self.graph_nodes = Table(store, "graph_node")
        self.graph_launches = Table(store, "graph_launch")
        self.region_totals = Table(store, "region_total")
        self.work_totals = Table(store, "work_total")
        self.histograms = Table(store, "histogram")
        self.paths = Table(store, "path")
        self.stacks = Table(store, "stack")
        self.variants = Table(store, "variant")
        self.tracks = Table(store, "track")
        self.threads = Table(store, "thread")
        self.calls = Table(store, "call")
        self.devices = Table(store, "device")

    @property
    def info(self) -> dict[str, str]:
        """Facts about the run, by key."""
        return self.store.info()

    def string(self, string_id: int) -> str:
        """The string that an id of a ``name`` column stands for.

        Raises:
            InvalidArgument: no such id.
        """
        if not 0 <= string_id <= NONE:
            raise InvalidArgument(f"string_id is {string_id}; string ids are 0 to {NONE}")
        return self.store.string(string_id)

    def kernel_names(self, short: bool = False) -> list[str]:
        """The demangled name of each row of ``variants``: kernel ``k`` is ``kernel_names()[kernels.variant[k]]``.

        Args:
            short: leave out return type, template arguments and parameters.
        """
        return _core.kernel_names(self.store, short)

    @cached_property
    def summary(self) -> _core.Summary:
        """Statistics per call path and per name, worked out once; tables and trees are made from them."""
        return _core.summarize(self.store)

    @property
    def instances(self) -> _core.Instances:
        """Times and memory of each row of ``regions``, worked out once."""
        return self.summary.instances

    def __repr__(self) -> str:
        mode = self.info.get("session.mode", "full")
        return (
            f"<Trace ({mode}): {len(self.regions):,} regions, {len(self.kernels):,} kernels, "
            f"{len(self.memcpy):,} copies, {len(self.api):,} driver calls>"
        )
