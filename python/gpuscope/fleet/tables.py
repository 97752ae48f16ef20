# SPDX-License-Identifier: Apache-2.0
"""The tables of a job of many ranks, in memory and as Parquet.

A folder has a folder per table, with a file for each 64 ranks. Times are ns since the epoch on the rank's own clock.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gpuscope.errors import CorruptTrace, InvalidArgument, NotAvailable
from gpuscope.text import one_line

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]
"""A table: a NumPy array per column, all of one length. Texts are arrays of objects."""

RANKS_PER_FILE = 64
_IDENTIFYING = ("rank", "step")
_TEXT = "O"
_FEW_ROWS, _MOST_ROWS = 1 << 20, 1 << 6  # of any file, and per byte of a larger one
_MOST_NS = 1 << 61
_MOST_COUNT = 1 << 26  # of ranks, steps, positions
_NUMBERED = ("rank", "world_size", "local_rank", "step", "steps", "size", "position")
_TIMES = ("start_ns", "end_ns", "time_ns", "realtime_ns")  # the others are durations
_UNKNOWN = ("rank", "local_rank", "step", "size", "called_ns")  # may be -1; ranks are checked with the job

SCHEMA: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "rank": {
        "rank": ("i4", "number among all ranks, from 0"),
        "world_size": ("i4", "number of ranks of the job; 0 if unknown"),
        "local_rank": ("i4", "number among the ranks of its host; -1 if unknown"),
        "host": (_TEXT, "name of its host"),
        "process": ("i8", "the system's number of its process"),
        "device": (_TEXT, "name of its GPU"),
        "role": ("i8", "hash of the kernels of a step: ranks of one role do the same work"),
        "source": (_TEXT, "file of the recording"),
        "start_ns": ("i8", "begin of the recording"),
        "end_ns": ("i8", "end of the recording"),
        "steps": ("i4", "number of steps"),
        "complete": ("?", "whether nothing is missing in the recording"),
        "verdict": (_TEXT, "verdict of its audit"),
        "overhead": ("f8", "share of the time that recording took"),
    },
    "step": {
        "rank": ("i4", "rank"),
        "step": ("i4", "number of the step, from 0"),
        "start_ns": ("i8", "begin"),
        "duration_ns": ("i8", "duration"),
        "compute_ns": ("i8", "time with kernels other than communication"),
        "communication_ns": ("i8", "time with communication"),
        "exposed_ns": ("i8", "time with communication and no other kernel"),
        "copy_ns": ("i8", "time with copies or fills, and no kernel"),
        "idle_ns": ("i8", "time without work"),
        "launches": ("i8", "number of kernels and graphs"),
    },
    "kernel_stat": {
        "rank": ("i4", "rank"),
        "kernel": ("i8", "hash of the name"),
        "name": (_TEXT, "name of the kernel"),
        "count": ("i8", "number of kernels"),
        "total_ns": ("i8", "their total duration"),
        "min_ns": ("i8", "the shortest"),
        "max_ns": ("i8", "the longest"),
    },
    "collective": {
        "rank": ("i4", "rank"),
        "communicator": ("i8", "hash of the communicator"),
        "size": ("i4", "number of its ranks; -1 if unknown"),
        "sequence": ("i8", "number of the call on its communicator"),
        "step": ("i4", "step; -1 outside"),
        "kind": (_TEXT, "operation, as all_reduce"),
        "bytes": ("i8", "size of the message; -1 if unknown"),
        "called_ns": ("i8", "the call on the host; -1 if unknown, as in a CUDA graph"),
        "start_ns": ("i8", "arrival: begin of its GPU work"),
        "end_ns": ("i8", "release: end of its GPU work"),
        "before_compute_ns": ("i8", "compute since the previous release of the rank"),
        "before_idle_ns": ("i8", "time without work since then"),
        "source": (_TEXT, "where the communicator was found: nvtx, arguments, order or gloo"),
    },
    "segment": {
        "rank": ("i4", "rank"),
        "step": ("i4", "step"),
        "position": ("i4", "number of the part of the step between two collectives"),
        "compute_ns": ("i8", "time with kernels"),
        "copy_ns": ("i8", "time with copies or fills, and no kernel"),
        "host_ns": ("i8", "time without work"),
    },
    "anchor": {
        "rank": ("i4", "rank"),
        "time_ns": ("i8", "a moment on the clock of the recording"),
        "realtime_ns": ("i8", "CLOCK_REALTIME of the same moment"),
    },
    "reason": {
        "rank": ("i4", "rank"),
        "start_ns": ("i8", "begin; within the time before the collective its place is not known"),
        "end_ns": ("i8", "begin and duration"),
        "reason": (_TEXT, "why a collective was late: waiting for data, a function of the program, throttled clock"),
    },
    "device": {
        "rank": ("i4", "rank"),
        "device": ("i4", "CUDA's number of a GPU that the rank used"),
        "power_mw": ("i8", "its mean power while busy; -1 if unknown"),
        "sm_mhz": ("i8", "its mean clock while busy; -1 if unknown"),
        "peak_memory_bytes": ("i8", "the most memory in use; -1 if unknown"),
    },
}
"""Tables, their columns, and of each its NumPy type and meaning."""

MEANINGS = {
    "rank": "Ranks with a recording.",
    "step": "Steps of each rank, and what they consist of.",
    "kernel_stat": "Kernels of each rank by name.",
    "collective": "Collectives, sends and receives of each rank.",
    "segment": "Parts of the steps between collectives.",
    "anchor": "Moments on the clock of a rank and on that of its host.",
    "reason": "What the host did while the GPU was idle before a collective.",
    "device": "Power, clock and memory of each GPU, of recordings with --device-samples or the memory.",
}
"""What the rows of a table are."""


def content_hash(tables: Mapping[str, Columns]) -> str:
    """Hash of the numbers of ranks and steps, as "sha256:..."; names of hosts and paths do not count."""
    found = hashlib.sha256()
    for table in _IDENTIFYING:
        for name, (kind, _) in SCHEMA[table].items():
            if kind != _TEXT:
                values = np.ascontiguousarray(tables[table][name], kind)
                found.update(f"{table}.{name} {len(values)}\n".encode() + values.tobytes())
    return f"sha256:{found.hexdigest()}"


def empty(table: str) -> Columns:
    """A table without rows."""
    return {column: np.zeros(0, kind) for column, (kind, _) in SCHEMA[table].items()}


def checked(table: str, columns: Mapping[str, Any]) -> Columns:
    """These columns with the types of the schema.

    Raises:
        InvalidArgument: a column is missing, has numbers that its type has not, or differs from another in length.
    """
    if missing := [column for column in SCHEMA[table] if column not in columns]:
        raise InvalidArgument(f"the table {table} lacks {', '.join(missing)}")
    found = {}
    for column, (kind, _) in SCHEMA[table].items():
        given = np.asarray(columns[column])
        found[column] = given.astype(kind, copy=False)
        if given.dtype.kind in "iu" and (found[column] != given).any():
            raise InvalidArgument(f"{column} of the table {table} is {given.min()} to {given.max()}")
    if len({len(values) for values in found.values()}) > 1:
        raise InvalidArgument(f"the columns of the table {table} differ in length")
    return found


def expected_ranks(rank: Mapping[str, Any]) -> int:
    """The number of ranks of a job, by the world size of its processes where that is known."""
    world, numbers = np.asarray(rank.get("world_size", ())), np.asarray(rank["rank"])
    return int(max(world.max(initial=0), len(numbers), numbers.max(initial=-1) + 1))


def of_ranks(seen: int, expected: int) -> str:
    """How many ranks a result is about: "61 of 64 ranks"."""
    return f"{seen:,} of {expected:,} ranks"


def join(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, Columns]:
    """All rows of the tables of several recordings, those of one without a copy. Missing tables are empty."""
    given = list(parts)
    found: dict[str, Columns] = {}
    for table, schema in SCHEMA.items():
        present = [checked(table, part[table]) for part in given if table in part]
        if len(present) == 1:
            found[table] = present[0]
        else:
            found[table] = {column: _joined(table, column, [each[column] for each in present]) for column in schema}
    return found


def _joined(table: str, column: str, parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else empty(table)[column]


def import_arrow() -> tuple[ModuleType, ModuleType]:
    """Pyarrow and its module for Parquet.

    Raises:
        NotAvailable: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise NotAvailable(
            "a job's tables are not available: pyarrow is not installed; pip install 'gpuscope[fleet]'"
        ) from None
    return pyarrow, pyarrow.parquet


def to_arrow(table: str, columns: Columns) -> Any:
    """The table for pyarrow, with texts as dictionaries."""
    arrow, _ = import_arrow()
    values = {}
    for column, (kind, _) in SCHEMA[table].items():
        array = columns[column]
        if kind == _TEXT:
            texts, codes = np.unique(array.astype(str), return_inverse=True) if len(array) else (array, array)
            values[column] = arrow.DictionaryArray.from_arrays(
                arrow.array(codes.astype(np.int32)), arrow.array(texts.tolist(), arrow.string())
            )
        else:
            values[column] = arrow.array(array)
    return arrow.table(values)


def write(folder: Path, tables: Mapping[str, Columns], part: int) -> list[Path]:
    """Writes the tables of ranks ``64 * part`` to ``64 * part + 63``; replaces an earlier version of these files."""
    written = []
    for table, columns in tables.items():
        path = folder / table / f"ranks-{part * RANKS_PER_FILE:05d}.parquet"
        replace_parquet(path, to_arrow(table, columns))
        written.append(path)
    return written


def replace_parquet(path: Path, table: Any, **options: Any) -> None:
    """Writes a table of pyarrow as a whole file, in place of an earlier one. Raises OSError if that fails."""
    _, parquet = import_arrow()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.part")  # engines skip names that begin with a dot
    parquet.write_table(table, unfinished, compression="zstd", **options)
    unfinished.replace(path)


def is_job(folder: str | os.PathLike[str]) -> bool:
    """Whether the folder has a job's tables."""
    return os.path.isdir(folder) and any(Path(folder, "rank").glob("ranks-*.parquet"))


def read(folder: Path, wanted: Sequence[str] = tuple(SCHEMA)) -> dict[str, Columns]:
    """The tables in a folder.

    Raises:
        InvalidArgument: it has none.
        CorruptTrace: a file is damaged.
        NotAvailable: pyarrow is not installed.
    """
    if not is_job(folder):
        raise InvalidArgument(f"{str(folder)!r} has no tables of a job; gpuscope merge RECORDINGS -o JOB makes them")
    arrow, _ = import_arrow()
    found = {}
    for table in wanted:
        parts: list[Columns] = []
        for path in sorted((folder / table).glob("ranks-*.parquet")):
            try:
                parts.append(_read_file(path, table))
            except (OSError, LookupError, TypeError, ValueError, OverflowError, arrow.ArrowException) as error:
                raise CorruptTrace(f"{path} is damaged: {one_line(str(error))}", str(path), 0) from None
        found[table] = {  # the parts of a column are let go as it is joined: one column is in memory twice
            column: _joined(table, column, [part.pop(column) for part in parts]) for column in SCHEMA[table]
        }
    return found


def _read_file(path: Path, table: str) -> Columns:
    """The columns of a file. Raises ValueError for values that no job has."""
    arrow, parquet = import_arrow()
    with parquet.ParquetFile(path) as file:
        if file.metadata.num_rows > max(_FEW_ROWS, path.stat().st_size * _MOST_ROWS):
            raise ValueError(f"{file.metadata.num_rows:,} rows in {path.stat().st_size:,} bytes")
        columns = file.read(list(SCHEMA[table]))
    if empty_in := [name for name in columns.column_names if columns.column(name).null_count]:
        raise ValueError(f"rows without {', '.join(empty_in)}")
    for name, (kind, _) in SCHEMA[table].items():
        given = columns.column(name).type
        given = given.value_type if arrow.types.is_dictionary(given) else given
        if kind == _TEXT and not arrow.types.is_string(given):
            raise ValueError(f"{name} is no text")
    found = checked(table, {name: _values(columns.column(name)) for name in SCHEMA[table]})
    for name, values in found.items():
        if name.endswith("_ns") or name in _NUMBERED:
            most = _MOST_COUNT if name in _NUMBERED else _MOST_NS
            least = -most if name in _TIMES else -1 if name in _UNKNOWN else 0
            if len(values) and not least <= values.min() <= values.max() < most:
                raise ValueError(f"{name} is {values.min()} to {values.max()}")
    return found


def _values(column: Any) -> Array:
    whole = column.combine_chunks()
    if hasattr(whole, "dictionary"):  # rows share the texts, and are not decoded one by one
        texts: Array = np.append(whole.dictionary.to_numpy(zero_copy_only=False), "").astype(object)
        decoded: Array = texts[whole.indices.to_numpy()]
        return decoded
    values: Array = whole.to_numpy(zero_copy_only=False)
    return values
