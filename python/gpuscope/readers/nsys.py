# SPDX-License-Identifier: Apache-2.0
"""Exports of Nsight Systems by ``nsys export``: SQLite, or a folder of Parquet files.

Both contain the same tables, each only if it has events. Columns differ between versions, names of tables may end in a
version (``NVTX_EVENTS_V2``), and since 2025.6 rows are unordered. Everything is therefore read by name and joined by
number. Tested with versions from before 2022.1 up to 2026.2.

A SQLite file may be malicious. Only tables are read, without indices, and the file's size limits rows, text and time.
"""

from __future__ import annotations

import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CopyKind, OverheadKind, SyncKind, Work
from gpuscope.errors import CorruptTrace, GpuscopeError, NotAvailable
from gpuscope.paths import open_file
from gpuscope.readers.checks import NO_NAME
from gpuscope.readers.tables import (
    MOST_NS,
    NONE,
    NOT_GIVEN,
    OVERHEAD,
    Column,
    Strings,
    Tables,
    absent,
    bounded,
    memory_kind,
    not_recorded,
)
from gpuscope.text import brief

_PARQUET = ".parquet"
_ROWS = 1 << 16  # fetched at once
_WANTED = "it has none of the tables CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME and NVTX_EVENTS"
_TRACED = "`nsys profile --trace cuda,nvtx` records both"
_NOT_GIVEN = -1
# Columns in which 0 is a valid text, time or GPU.
_WITH_ZERO = frozenset(
    {"nameId", "textId", "mangledName", "demangledName", "shortName", "start", "end", "deviceId", "cuDevice"}
)
_NO_NUMBER = -(1 << 63)  # a text or a blob instead of a number
_VERSIONED = re.compile(r"(\w+?)(?:_[Vv]([0-9]{1,9}))?", re.ASCII)
_PLAIN = re.compile(r"CREATE (TABLE|INDEX|UNIQUE INDEX) ", re.IGNORECASE)  # SQLite normalizes these words
_LEAST_ROW = 6  # bytes: 4 for a cell of SQLite, 2 for its pointer in the page
_MOST_TEXT = 2  # times the file: UTF-16 grows by half as UTF-8
_LEAST_S, _BYTES_PER_S = 20, 500_000  # limit of the reading time; 15 MB/s were measured
_MOST_PARQUET_ROWS = 100  # per byte of a file
_OPERATORS = "operators and shapes"  # except as ranges of torch
_ABSENT = (
    "allocations of frameworks",
    "Python functions",
    "lines",
    "lost events",
    OVERHEAD,
)
_OPTIONAL = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernels",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "driver calls",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copies",
    "CUPTI_ACTIVITY_KIND_MEMSET": "fills",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "waits",
    "NVTX_EVENTS": "NVTX ranges",
    "TARGET_INFO_SESSION_START_TIME": "the time of day",
}
_NOT_READ = {
    "OSRT_API": "calls of the operating system",
    "SCHED_EVENTS": "when threads ran",
    "SAMPLING_CALLCHAINS": "samples of threads",
    "CUDA_CALLCHAINS": "call stacks",
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": "page faults",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "page faults on GPUs",
    "GPU_METRICS": "hardware counters",
    "CUBLAS_EVENTS": "calls of cuBLAS",
    "CUDNN_EVENTS": "calls of cuDNN",
    "OPENACC_LAUNCH_EVENTS": "OpenACC",
    "OPENMP_EVENT_KIND_TASK": "OpenMP",
    "MPI_COLLECTIVES_EVENTS": "collectives of MPI",
    "MPI_P2P_EVENTS": "messages of MPI",
}
# The tables of GPUs, by our columns. Versions before 2022.1 have the second, and the first may then contain only names.
_GPUS = {
    "TARGET_INFO_GPU": {
        "ordinal": "cuDevice",
        "multiprocessors": "smCount",
        "capability_major": "computeMajor",
        "capability_minor": "computeMinor",
        "memory_bytes": "totalMemory",
    },
    "TARGET_INFO_CUDA_GPU": {
        "ordinal": "deviceId",
        "multiprocessors": "numMultiprocessors",
        "capability_major": "computeCapabilityMajor",
        "capability_minor": "computeCapabilityMinor",
        "memory_bytes": "globalMemorySize",
    },
}
# Our table for each of their tables, for the checks of times.
_CHECKED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "memset",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "graph_launch",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "api",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "sync",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "overhead",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "device_memory",
    "NVTX_EVENTS": "region",
}
_MIGRATIONS = (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.DEVICE_TO_DEVICE)  # of managed memory
_NODE = ("graphNodeId", "graphId")  # of work in a CUDA graph
_KINDS = len(CopyKind) + len(_MIGRATIONS)
# The content of ENUM_CUDA_MEM_KIND, which exports before 2022.4 lack.
_MEMORY_KINDS = ("PAGEABLE", "PINNED", "DEVICE", "ARRAY", "MANAGED", "DEVICE_STATIC", "MANAGED_STATIC")
_GIVEN_BACK = 1  # value of CUDA_GPU_MEMORY_USAGE_EVENTS.memoryOperationType
_BACKTRACE = 67  # value of eventClass: a second row of a call, with the number of its call stack
# Values of NVTX_EVENTS.eventType.
_MARK, _PUSH_POP, _START_END = 34, 59, 60
_THREAD_BITS = 24  # of a globalTid: thread, then process, then the machine in the highest bits
_THREAD_MASK = (1 << _THREAD_BITS) - 1
_CONTEXT_BITS = 16


def _absent(column: str) -> int:
    """The value for a missing number."""
    return _NOT_GIVEN if column in _WITH_ZERO else 0


class Source(ABC):
    """Tables by name without version: of several versions, the newest with rows.

    Attributes:
        older: tables with rows that are not read, because a newer version has rows too.
    """

    def __init__(self, names: Iterable[str]) -> None:
        versions: dict[str, list[tuple[int, str]]] = {}
        for name in names:
            if found := _VERSIONED.fullmatch(name):
                versions.setdefault(found[1], []).append((int(found[2] or 0), name))
        self._names: dict[str, str] = {}
        self.older: list[str] = []
        for table, known in versions.items():
            filled = [name for _, name in sorted(known) if len(known) > 1 and self._has_rows(name)]
            self._names[table] = filled[-1] if filled else max(known)[1]
            self.older += filled[:-1]

    def has_rows(self, table: str) -> bool:
        """Whether a table exists and has a row."""
        return table in self._names and self._has_rows(self._names[table])

    def columns(self, table: str) -> set[str]:
        """The names of a table's columns; empty if there is no such table."""
        return self._columns(self._names[table]) if table in self._names else set()

    @abstractmethod
    def _has_rows(self, name: str) -> bool: ...

    @abstractmethod
    def _columns(self, name: str) -> set[str]: ...

    @abstractmethod
    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """All rows. The columns must exist."""

    @abstractmethod
    def numbers(self, table: str, columns: Sequence[str]) -> list[Column]:
        """Columns of integers. A missing value is `_absent`, a value that is no number _NO_NUMBER."""


class SqliteSource(Source):
    """An export as SQLite.

    Raises:
        CorruptTrace: it contains other than tables and indices, or more data than a file of its size can contain.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, size: int) -> None:
        self._connection, self._path, self._size = connection, path, size
        self._text_left = 0
        self._until_ns = _core.now_ns() + (_LEAST_S + size // _BYTES_PER_S) * 1_000_000_000
        connection.text_factory = self._text
        connection.set_progress_handler(lambda: _core.now_ns() > self._until_ns, 100_000)
        for setting in ("trusted_schema = off", "query_only = on", "cell_size_check = on"):
            connection.execute(f"pragma {setting}")
        made = [row for rows in self._fetch("sqlite_master", ("name", "sql")) for row in rows]
        for name, sql in made:
            if sql is not None and not _PLAIN.match(str(sql)):
                raise self._refusal(f"{brief(name)} is no table: an export has no views, triggers or virtual tables")
        super().__init__(str(name) for name, sql in made if str(sql)[:12].upper() == "CREATE TABLE")

    def _refusal(self, why: str) -> CorruptTrace:
        return CorruptTrace(f"{self._path!r} cannot be read: {why}", self._path, 0)

    def _text(self, data: bytes) -> str:
        self._text_left -= len(data)
        if self._text_left < 0:
            raise self._refusal(f"a table has more text than its {self._size:,} bytes can hold")
        return data.decode(errors="replace")

    def _fetch(self, name: str, expressions: Iterable[str]) -> Iterator[list[tuple[Any, ...]]]:
        self._text_left = self._size * _MOST_TEXT
        left = self._size // _LEAST_ROW
        # A malicious index may differ from its table. Without indices, each reading also has the same order of rows.
        cursor = self._connection.execute(f'select {", ".join(expressions)} from "{name}" not indexed')
        while rows := cursor.fetchmany(_ROWS):
            left -= len(rows)
            if left < 0:
                raise self._refusal(f"{name} has more rows than its {self._size:,} bytes can hold")
            yield rows

    def _columns(self, name: str) -> set[str]:
        self._text_left = self._size * _MOST_TEXT
        columns = self._connection.execute(f'pragma table_xinfo("{name}")').fetchall()
        if any(row[6] for row in columns):
            raise self._refusal(f"{name} has computed columns: those of an export are stored")
        return {row[1] for row in columns}

    def _has_rows(self, name: str) -> bool:
        return self._connection.execute(f'select 1 from "{name}" not indexed limit 1').fetchone() is not None

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """All rows; blobs are None."""
        values = (f"""case typeof("{each}") when 'blob' then null else "{each}" end""" for each in columns)
        return [row for rows in self._fetch(self._names[table], values) for row in rows]

    def numbers(self, table: str, columns: Sequence[str]) -> list[Column]:
        """Columns of integers."""
        values = (
            f"""case typeof("{each}") when 'integer' then "{each}" when 'null' then {_absent(each)} """
            f"""when 'real' then cast("{each}" as integer) else {_NO_NUMBER} end"""
            for each in columns
        )
        parts = [np.array(rows, np.int64) for rows in self._fetch(self._names[table], values)]
        found = np.concatenate(parts) if parts else np.zeros((0, len(columns)), np.int64)
        return [np.ascontiguousarray(found[:, column]) for column in range(len(columns))]


class ParquetSource(Source):
    """An export as a folder with one Parquet file per table."""

    def __init__(self, folder: Path) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise NotAvailable(
                "Parquet files are not available: pyarrow is not installed; pip install pyarrow"
            ) from error
        self._parquet = pyarrow.parquet
        self._folder = folder
        super().__init__(path.stem for path in folder.glob(f"*{_PARQUET}") if path.is_file())

    def _columns(self, name: str) -> set[str]:
        return set(self._parquet.read_schema(self._path(name)).names)

    def _has_rows(self, name: str) -> bool:
        return bool(self._parquet.read_metadata(self._path(name)).num_rows)

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """All rows."""
        read = self._read(table, columns)
        return list(zip(*(read.column(column).to_pylist() for column in columns), strict=True))

    def numbers(self, table: str, columns: Sequence[str]) -> list[Column]:
        """Columns of integers."""
        read = self._read(table, columns)
        # Threads and streams are unsigned in Parquet. From 1 << 63 they wrap to negative, as in SQLite.
        signed = (read.column(column).cast("int64", safe=False).fill_null(_absent(column)) for column in columns)
        return [values.to_numpy() for values in signed]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_PARQUET}"

    def _read(self, table: str, columns: Sequence[str]) -> Any:
        path = self._path(self._names[table])
        rows, size = self._parquet.read_metadata(path).num_rows, path.stat().st_size
        if rows > size * _MOST_PARQUET_ROWS:
            raise CorruptTrace(
                f"{str(path)!r} has {rows:,} rows in {size:,} bytes: no export has so many", str(path), 0
            )
        return self._parquet.read_table(path, columns=list(columns))


def is_export(folder: Path) -> bool:
    """Whether a folder has Parquet files of Nsight Systems."""
    versions = (_VERSIONED.fullmatch(path.stem) for path in folder.glob(f"*{_PARQUET}") if path.is_file())
    return any(found[1] in (*_OPTIONAL, "StringIds") for found in versions if found)


def read_nsys(path: str | os.PathLike[str]) -> _core.Store:
    """Reads an export of Nsight Systems: a SQLite file, or a folder of Parquet files.

    NVTX ranges become regions. Kernels, copies, fills, waits and calls of the driver and the runtime are read
    unchanged. The audit lists missing data.

    Raises:
        CorruptTrace: it is damaged, or no such export.
        NotAvailable: it is Parquet, and pyarrow is not installed.
        GpuscopeError: the file cannot be read.
    """
    name = os.fspath(path)
    if Path(name).is_dir():
        try:
            return _Reader(name, ParquetSource(Path(name))).store()
        except (OSError, ValueError, TypeError, OverflowError) as error:
            if isinstance(error, GpuscopeError):
                raise
            raise CorruptTrace(f"{name!r} cannot be read: {brief(str(error))}", name, 0) from error
    with open_file(name):
        pass
    # A finished file needs no lock, and none of the files that SQLite makes next to it.
    unfinished = sum(beside.stat().st_size for end in ("-wal", "-journal") if (beside := Path(name + end)).is_file())
    location = f"{Path(name).resolve().as_uri()}?mode=ro{'' if unfinished else '&immutable=1'}"
    try:
        with closing(sqlite3.connect(location, timeout=1, uri=True)) as connection:
            return _Reader(name, SqliteSource(connection, name, os.path.getsize(name) + unfinished)).store()
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, GpuscopeError):
            raise
        why = "it takes longer than a file of its size can" if str(error) == "interrupted" else brief(str(error))
        why += "; a program has not finished writing it" if unfinished else ""
        raise CorruptTrace(f"{name!r} cannot be read: {why}", name, 0) from error


class _Reader:
    def __init__(self, path: str, source: Source) -> None:
        self._path = path
        self._source = source
        self._missing = [what for table, what in _OPTIONAL.items() if not source.columns(table)]
        self._notes: list[str] = []
        self._gpu = 0  # the GPU for work that names none
        self._tables = Tables()
        self._strings = Strings()
        self._processes = _core.RowNumbers(1)
        self._correlations = _core.RowNumbers(2)
        self._texts = self._read_texts()
        self._numbers = self._read_numbers()

    def _read_texts(self) -> dict[int, str]:
        """The texts by nsys's numbers."""
        if {"id", "value"} <= self._source.columns("StringIds"):
            return {number: _text_or_none(text) for number, text in self._source.rows("StringIds", ("id", "value"))}
        return {}

    def _read_numbers(self) -> dict[tuple[int, int], int]:
        """Numbers of GPUs by process and CUDA's ordinal there; empty if they do not identify the GPUs.

        With CUDA_VISIBLE_DEVICES each process counts from 0.
        """
        if not {"pid", "cudaId", "gpuId"} <= self._source.columns("TARGET_INFO_CUDA_DEVICE"):
            return {}
        if not {"id", "cuDevice"} <= self._source.columns("TARGET_INFO_GPU"):
            return {}
        gpus = self._source.rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
        among_all = {row[0]: row[1] for row in self._source.rows("TARGET_INFO_GPU", ("id", "cuDevice"))}
        found = {(pid, number): among_all.get(gpu) for pid, number, gpu in gpus}
        usable = {each: number for each, number in found.items() if isinstance(number, int) and 0 <= number < NONE}
        is_clear = len(usable) == len(found) and len(set(usable.values())) == len({gpu for _, _, gpu in gpus})
        return usable if is_clear else {}

    def _device(self, columns: dict[str, Column]) -> Column:
        """Numbers of GPUs on the machine. Work that names no GPU is attributed to a named one, first of the kernels."""
        given = (columns["deviceId"] >= 0) & (columns["deviceId"] < NONE)
        self._gpu = int(columns["deviceId"][given].min()) if given.any() else self._gpu
        if without := int(np.count_nonzero(~given)):
            self._notes.append(f"GPU work that names no GPU, and counts for GPU {self._gpu}: {without:,} rows")
        number = np.where(given, columns["deviceId"], self._gpu)
        if not self._numbers:
            return number
        process = columns["globalPid"] >> _THREAD_BITS & _THREAD_MASK
        distinct, inverse = np.unique(np.stack([process, number]), axis=1, return_inverse=True)
        known = [self._numbers.get((pid, each), each) for pid, each in distinct.T.tolist()]
        return np.array(known, np.int64)[inverse.reshape(-1)]

    def _text(self, numbers: Column, strings: Strings | None = None) -> Column:
        """The ids of texts by nsys's numbers, in the recording's strings or others."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        chosen = self._strings if strings is None else strings
        return chosen.of(self._texts.get(each, "") for each in distinct.tolist()).astype(np.int64)[inverse]

    def _take(self, table: str, needed: Sequence[str], others: Sequence[str]) -> dict[str, Column] | None:
        """Columns of integers, and `row`, sorted by start; None if the export lacks the table.

        Missing columns of `others` have the value `_absent`. The columns `start`, `length` and `flags` are checked.
        """
        there = self._source.columns(table)
        if not there:
            return None
        if lacking := [column for column in needed if column not in there]:
            self._missing.append(f"{_OPTIONAL.get(table, table)} ({table} has no {', '.join(lacking)})")
            return None
        known = [column for column in (*needed, *others) if column in there]
        self._missing += [f"{table}.{column}" for column in others if column not in there and column in _TOLD]
        columns = dict(zip(known, self._source.numbers(table, known), strict=True))
        rows = len(columns[needed[0]])
        columns |= {column: np.full(rows, _absent(column), np.int64) for column in others if column not in there}
        columns["row"] = np.arange(rows)
        for column in (each for each in known if each not in ("start", "end")):
            wrong = columns[column] == _NO_NUMBER
            if wrong.any():
                self._notes.append(
                    f"texts and blobs in numbers of {table}.{column}, read as none: {np.count_nonzero(wrong):,}"
                )
                columns[column][wrong] = _absent(column)
        length = np.zeros(rows, np.int64)
        if "end" in needed:
            length = np.where(columns["end"] < 0, NOT_GIVEN, columns["end"] - columns["start"])
        found = self._tables.checks.spans(_CHECKED[table], columns["start"], length)
        columns = {column: values[found.rows] for column, values in columns.items()}
        columns |= {"start": found.start_ns, "length": found.duration_ns, "flags": found.flags}
        order = np.argsort(columns["start"], kind="stable")
        return {column: values[order] for column, values in columns.items()}

    def _correlation(self, process: Column, correlation: Column) -> Column:
        """Correlation ids that are unique among processes, unlike nsys's; 0 stays "none"."""
        found = self._correlations.number([process >> _THREAD_BITS, correlation]).astype(np.int64) + 1
        return np.where(correlation > 0, found, 0)

    def _context(self, columns: dict[str, Column]) -> Column:
        """Numbers of contexts, unique among processes: nsys counts them per process."""
        process = self._processes.number([columns["globalPid"] >> _THREAD_BITS]).astype(np.int64)
        numbers: Column = bounded(columns["contextId"]) + (process << _CONTEXT_BITS)
        return numbers

    def _work(self, columns: dict[str, Column]) -> dict[str, Column]:
        place = (self._device(columns), self._context(columns), bounded(columns["streamId"]))
        return {
            "start_ns": columns["start"],
            "duration_ns": columns["length"],
            "correlation": self._correlation(columns["globalPid"], columns["correlationId"]),
            "track": self._tables.track(*place),
            "flags": columns["flags"],
        }

    def store(self) -> _core.Store:
        """The recording of the export."""
        self._add_calls()
        self._add_kernels()
        self._add_memory_operations()
        self._add_device_memory()
        self._add_graphs()
        self._add_waits()
        self._add_overheads()
        self._add_ranges()
        if not len(self._tables):
            if self._source.has_rows("StringIds"):
                raise CorruptTrace(f"{self._path!r} has nothing of CUDA and no NVTX ranges: {_TRACED}", self._path, 0)
            raise CorruptTrace(f"{self._path!r} is no export of Nsight Systems: {_WANTED}", self._path, 0)
        others = {"device": devices} if (devices := self._devices()) else {}
        if not devices:
            self._missing.append("GPUs")
        return self._tables.store(self._strings, self._threads(), self._facts(), others, self._base_ns())

    def _add_calls(self) -> None:
        columns = self._take(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            ("start", "end", "nameId"),
            ("globalTid", "correlationId", "returnValue", "eventClass"),
        )
        if columns is None or not len(columns["start"]):
            return
        columns = _without_backtraces(columns)
        name = self._text(columns["nameId"])
        texts = list(self._strings.ids)
        # `cudaLaunchKernel_v7000` ends with the version of the runtime's interface.
        plain = {each: self._strings(_without_version(texts[each])) for each in np.unique(name).tolist()}
        rows = {
            "start_ns": columns["start"],
            "duration_ns": columns["length"],
            "thread": self._tables.thread(columns["globalTid"]),
            "correlation": self._correlation(columns["globalTid"], columns["correlationId"]),
        }
        result = np.where(np.abs(columns["returnValue"]) < 1 << 31, columns["returnValue"], -1)
        self._tables.add_calls(rows, np.array([plain[each] for each in name.tolist()], np.int64), result)

    def _add_kernels(self) -> None:
        sizes = [f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"]
        resources = {
            "registersPerThread": "registers",
            "staticSharedMemory": "static_shared_bytes",
            "dynamicSharedMemory": "dynamic_shared_bytes",
            "localMemoryPerThread": "local_bytes",
        }
        names = ("mangledName", "demangledName", "shortName")
        columns = self._take(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            ("start", "end"),
            (
                "deviceId",
                "contextId",
                "streamId",
                "correlationId",
                "globalPid",
                *names,
                *sizes,
                *resources,
                *_NODE,
            ),
        )
        if columns is None or not len(columns["start"]):
            return
        name = np.zeros(len(columns["start"]), np.int64)
        for each in names:
            text = self._text(columns[each])
            name = np.where(name == 0, text, name)
        name = self._tables.checks.names("kernel", name, name == 0, self._strings(NO_NAME))
        launched = {f"{size[:-1]}_{size[-1].lower()}": bounded(columns[size], 1) for size in sizes}
        variant = self._tables.variant(
            name, **launched, **{ours: bounded(columns[theirs]) for theirs, ours in resources.items()}
        )
        self._add_work(Work.KERNEL, columns, {"variant": variant})

    def _add_work(self, kind: Work, columns: dict[str, Column], rows: dict[str, Column]) -> None:
        self._tables.add_nodes(kind, {**self._work(columns), **rows}, columns["graphId"], columns["graphNodeId"])

    def _add_memory_operations(self) -> None:
        place = ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes")
        copies = self._take(
            "CUPTI_ACTIVITY_KIND_MEMCPY", ("start", "end"), (*place, "copyKind", "srcKind", "dstKind", *_NODE)
        )
        if copies is not None and len(copies["start"]):
            rows = {"kind": np.array([*range(len(CopyKind)), *_MIGRATIONS, 0])[bounded(copies["copyKind"], -1, _KINDS)]}
            rows["source"], rows["destination"] = (self._memory(copies[each]) for each in ("srcKind", "dstKind"))
            rows["bytes"] = bounded(copies["bytes"], most=MOST_NS)
            rows["peer"] = np.full(len(copies["start"]), 255, np.uint8)
            self._add_work(Work.MEMCPY, copies, rows)
        fills = self._take("CUPTI_ACTIVITY_KIND_MEMSET", ("start", "end"), (*place, "value", *_NODE))
        if fills is not None and len(fills["start"]):
            rows = {"bytes": bounded(fills["bytes"], most=MOST_NS), "value": bounded(fills["value"])}
            self._add_work(Work.MEMSET, fills, rows)

    def _memory(self, kinds: Column) -> Column:
        """Our kinds of memory for nsys's numbers."""
        names = self._names("ENUM_CUDA_MEM_KIND", "CUDA_MEMOPR_MEMORY_KIND_") or dict(enumerate(_MEMORY_KINDS))
        named = {number: memory_kind(name) for number, name in names.items()}
        return np.array([named.get(each, 0) for each in kinds.tolist()], np.uint8)

    def _names(self, table: str, prefix: str) -> dict[int, str]:
        """The export's names of an enumeration's numbers; empty if it has none."""
        if not {"id", "name"} <= self._source.columns(table):
            return {}
        rows = self._source.rows(table, ("id", "name"))
        return {number: name.removeprefix(prefix) for number, name in rows if isinstance(name, str)}

    def _add_device_memory(self) -> None:
        columns = self._take(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            ("start", "bytes", "memoryOperationType"),
            ("globalPid", "deviceId", "contextId", "correlationId", "address", "memKind"),
        )
        if columns is None:
            return
        size = bounded(columns["bytes"], most=MOST_NS)
        rows = {
            "start_ns": columns["start"],
            "bytes": np.where(columns["memoryOperationType"] == _GIVEN_BACK, -size, size),
            "address": bounded(columns["address"], most=MOST_NS),
            "correlation": self._correlation(columns["globalPid"], columns["correlationId"]),
            "track": self._tables.track(self._device(columns), self._context(columns), np.full(len(size), NONE)),
            "kind": self._memory(columns["memKind"]),
        }
        blank = {"pool": 0, "pool_reserved_bytes": 0, "pool_used_bytes": 0, "flags": 0, "library": NONE}
        self._tables.add("device_memory", rows | {name: np.full(len(size), value) for name, value in blank.items()})

    def _add_overheads(self) -> None:
        columns = self._take("CUPTI_ACTIVITY_KIND_OVERHEAD", ("start", "end", "overheadType"), ("globalTid",))
        if columns is None:
            return
        kinds = OverheadKind.__members__
        names = self._names("ENUM_CUPTI_OVERHEAD_TYPE", "OVERHEAD_")
        known = {number: int(kinds[name]) for number, name in names.items() if name in kinds}
        rows = {
            "start_ns": columns["start"],
            "duration_ns": columns["length"],
            "kind": np.array([known.get(each, 0) for each in columns["overheadType"].tolist()], np.uint32),
            "system_id": columns["globalTid"] & _THREAD_MASK,
        }
        self._tables.add("overhead", rows)

    def _add_graphs(self) -> None:
        place = ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId")
        graphs = self._take("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ("start", "end"), place)
        if graphs is not None and len(graphs["start"]):
            self._tables.add("graph_launch", {**self._work(graphs), "graph": bounded(graphs["graphId"])})

    def _add_waits(self) -> None:
        place = ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "syncType")
        waits = self._take("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", ("start", "end"), place)
        if waits is not None and len(waits["start"]):
            kind = bounded(waits["syncType"], 0, len(SyncKind))
            of_waits = self._work(waits)
            del of_waits["flags"]
            self._tables.add("sync", {**of_waits, "kind": kind})

    def _add_ranges(self) -> None:
        columns = self._take("NVTX_EVENTS", ("start", "eventType"), ("end", "globalTid", "textId", "endGlobalTid"))
        if columns is None:
            return
        texts = Strings()
        text = self._text(columns["textId"], texts)
        if "text" in self._source.columns("NVTX_EVENTS"):  # contains names that are not in StringIds
            own = texts.of(_text_or_none(row[0]) for row in self._source.rows("NVTX_EVENTS", ("text",)))
            text = np.where(own[columns["row"]] != 0, own[columns["row"]], text)
        names, shapes, *of_texts = _core.split_ranges(list(texts.ids))
        of_texts += [self._strings.of(names), [self._strings(each) if each else NONE for each in shapes]]
        kind, sequence, op, producer, name, shape = (np.asarray(values)[text] for values in of_texts)
        length = columns["end"] - columns["start"]
        ended = (columns["end"] > 0) & (length >= 0) & (length < MOST_NS)
        thread_end = columns["endGlobalTid"]
        spans = (columns["eventType"] == _PUSH_POP) | (columns["eventType"] == _START_END)
        other_thread = (columns["eventType"] == _START_END) & (thread_end != 0) & (thread_end != columns["globalTid"])
        found = {"start_ns": columns["start"], "thread": columns["globalTid"], "name": name}

        def of_rows(rows: Column) -> dict[str, Column]:
            chosen = {column: values[rows] for column, values in found.items()}
            return chosen | {"thread": self._tables.thread(chosen["thread"])}

        self._tables.add("mark", of_rows(np.flatnonzero(columns["eventType"] == _MARK)))
        rows = np.flatnonzero(spans & ended & ~other_thread)
        known = rows[(sequence[rows] >= 0) | (shape[rows] != NONE) | (op[rows] > 0)]
        self._tables.add(
            "detail",
            {
                "region": np.searchsorted(rows, known) + self._tables.count("region"),
                "sequence": sequence[known],
                "shapes": shape[known],
                "op": op[known],
                "producer": producer[known],
            },
        )
        if len(rows):
            found |= {"duration_ns": length, "kind": kind}
            self._tables.add_regions(of_rows(rows))
        if left_out := int(np.count_nonzero(spans | (columns["eventType"] <= 0))) - len(rows):
            self._missing.append(f"the end, the type or one thread of {left_out:,} NVTX ranges, which are left out")

    def _threads(self) -> dict[str, list[int]]:
        named: dict[int, int] = {}
        if {"nameId", "globalTid"} <= self._source.columns("ThreadNames"):
            for number, thread in self._source.rows("ThreadNames", ("nameId", "globalTid")):
                if isinstance(thread, int):  # signed, as in `numbers`
                    named[thread - (thread >> 63 << 64)] = self._strings(self._texts.get(number, ""))
        threads = [int(each) for each in self._tables.threads.columns()[0]]
        return {
            "system_id": [each & _THREAD_MASK for each in threads],
            "name": [named.get(each, 0) for each in threads],
        }

    def _devices(self) -> dict[str, Column]:
        table = next((each for each in _GPUS if {"name", _GPUS[each]["ordinal"]} <= self._source.columns(each)), None)
        if table is None:
            return {}
        columns = self._source.columns(table)
        numbers = {ours: theirs for ours, theirs in _GPUS[table].items() if theirs in columns}
        read = dict(zip(numbers, self._source.numbers(table, list(numbers.values())), strict=True))
        names = [row[0] for row in self._source.rows(table, ("name",))]
        # Adapters of other vendors are listed too, with the number 0 and without CUDA's figures.
        multiprocessors = read.get("multiprocessors", np.ones(len(names), np.int64))
        rows = np.flatnonzero((multiprocessors > 0) & (read["ordinal"] >= 0) & (read["ordinal"] < NONE))
        if not len(rows):
            return {}
        found = {ours: bounded(values[rows], most=MOST_NS) for ours, values in read.items()}
        return found | {"name": self._strings.of(_text_or_none(names[row]) for row in rows)}

    def _base_ns(self) -> int:
        if "utcEpochNs" not in self._source.columns("TARGET_INFO_SESSION_START_TIME"):
            return 0
        starts = self._source.numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))[0]
        return int(starts[0]) if len(starts) and 0 <= starts[0] < MOST_NS else 0

    def _facts(self) -> dict[str, str]:
        operators = () if self._tables.count("detail") else (_OPERATORS,)
        notes = absent("Nsight Systems", (*self._missing, *operators, *_ABSENT))
        if not_read := [what for table, what in _NOT_READ.items() if self._source.has_rows(table)]:
            notes += f"\nin the export and not read: {', '.join(not_read)}"
        if older := self._source.older:
            notes += f"\nin the export and not read, as a later version has rows too: {', '.join(older)}"
        facts = {
            "session.notes": "\n".join([notes, *self._notes]),
            "audit.overhead_source": not_recorded("Nsight Systems"),
        }
        if {"pid", "name"} <= self._source.columns("PROCESSES"):
            pids = {int(each) >> _THREAD_BITS & _THREAD_MASK for each in self._tables.threads.columns()[0]}
            for pid, name in self._source.rows("PROCESSES", ("pid", "name")):
                if pid in pids and isinstance(name, str):
                    facts |= {"process.id": str(pid), "process.argv": name}
                    break
        return facts


_TOLD = (
    "correlationId",
    "globalTid",
    "deviceId",
    "streamId",
    "bytes",
    "textId",
)  # columns whose absence is noted in the audit


def _without_backtraces(columns: dict[str, Column]) -> dict[str, Column]:
    """Calls without the second row that nsys writes if it collects call stacks."""
    again = columns["eventClass"] == _BACKTRACE
    again &= np.isin(columns["correlationId"], columns["correlationId"][~again])
    return {name: values[~again] for name, values in columns.items()}


def _text_or_none(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _without_version(name: str) -> str:
    stem, _, version = name.rpartition("_v")
    return stem if stem and version.isdecimal() else name
