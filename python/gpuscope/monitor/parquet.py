# SPDX-License-Identifier: Apache-2.0
"""Logs of GPUs as Parquet, by pyarrow, which is optional.

A Parquet file ends with its index: it cannot be read while it is written, and nothing can be appended. A run's samples
wait as JSON lines in a file next to it until the run ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.monitor.lines import read_json
from gpuscope.monitor.schema import COLUMNS, NOT_A_CELL, SCHEMA, WHY, Row, refuse_columns, time_of
from gpuscope.paths import open_file, replacing

_ROWS_A_GROUP = 1 << 16
_UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


def _import() -> tuple[Any, Any]:
    try:
        # pyarrow imports pandas for its first array, and pandas imports this, which fails while Python ends.
        import concurrent.futures.thread  # noqa: F401

        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise NotAvailable(
            "logs that end with .parquet are not available: pyarrow is not installed; pip install pyarrow, "
            "or name the log .csv or .jsonl"
        ) from None
    return pyarrow, pyarrow.parquet


def check_file(path: Path) -> None:
    """Raises InvalidArgument if the file has other columns or is no Parquet; NotAvailable without pyarrow."""
    arrow, parquet = _import()
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        names = parquet.read_schema(path).names
    except (OSError, arrow.ArrowException) as error:
        raise InvalidArgument(f"log_path is {str(path)!r}, which is no Parquet file ({error})") from None
    if not {*names} <= {*COLUMNS, WHY}:
        refuse_columns(path, names)


def take_lines(lines: Path, path: Path) -> None:
    """Appends JSON lines to a Parquet file, without lines that no monitor has written.

    Raises:
        GpuscopeError: the file cannot be written; the file is as it was.
    """
    arrow, parquet = _import()
    fields = [arrow.field(column.name, getattr(arrow, column.kind.arrow)()) for column in SCHEMA]
    # A moment to the ms, as in the other formats.
    fields[0] = arrow.field("timestamp", arrow.timestamp("ms", "UTC"))
    schema = arrow.schema([*fields, arrow.field(WHY, arrow.string())])

    def table(rows: list[Row]) -> Any:
        return arrow.Table.from_pylist([flat(row) | {"timestamp": time_of(row) // 1_000_000} for row in rows], schema)

    try:
        with replacing(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            if path.exists() and path.stat().st_size:
                old = parquet.ParquetFile(path)
                for group in range(old.num_row_groups):
                    writer.write_table(_fitted(old.read_row_group(group), schema, arrow))
            rows = filter(None, read_json(lines))
            while batch := [*islice(rows, _ROWS_A_GROUP)]:
                tables = _usable(batch, table, schema.empty_table())
                writer.write_table(arrow.concat_tables(tables), row_group_size=_ROWS_A_GROUP)
    except arrow.ArrowException as error:
        raise GpuscopeError(f"cannot write {path}: {error}; its samples are in {lines}") from error


def _fitted(table: Any, schema: Any, arrow: Any) -> Any:
    """The table with the columns of this version, which may have more."""
    columns = [
        table[each.name].cast(each.type) if each.name in table.column_names else arrow.nulls(len(table), each.type)
        for each in schema
    ]
    return arrow.Table.from_arrays(columns, schema=schema)


def flat(row: Row) -> Row:
    """The row with lists and objects as JSON, as in Parquet."""
    return row | {name: json.dumps(row[name]) for name in ("mig_instances", WHY) if row.get(name) is not None}


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a Parquet file; an empty one for each row that cannot be read.

    Raises:
        InvalidArgument: it is no Parquet file, or has no time or GPU column.
        NotAvailable: pyarrow is not installed.
    """
    arrow, parquet = _import()
    with open_file(path) as file:
        try:
            opened = parquet.ParquetFile(file)
            if missing := {"timestamp", "gpu_idx"} - {*opened.schema_arrow.names}:
                raise InvalidArgument(f"path is {str(path)!r}, which has no column {sorted(missing)[0]!r}")
            unit_ns = _UNITS_NS.get(getattr(opened.schema_arrow.field("timestamp").type, "unit", ""))
            for batch in opened.iter_batches(batch_size=_ROWS_A_GROUP):
                table = arrow.Table.from_batches([batch])
                if unit_ns is not None:  # as integers: Python's times end with the year 9999
                    times = table["timestamp"].cast(arrow.int64())
                    table = table.set_column(table.column_names.index("timestamp"), "timestamp", times)
                for row in chain(*_usable(table, lambda part: part.to_pylist(), [{}])):
                    if unit_ns is not None and row.get("timestamp") is not None:
                        row["time_ns"] = row["timestamp"] * unit_ns
                    yield row
        except (arrow.ArrowException, KeyError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's; Arrow's own have no number
                raise
            why = str(error).partition("\n")[0]
            raise InvalidArgument(f"path is {str(path)!r}, which is no Parquet file that can be read ({why})") from None


def _usable(rows: Any, convert: Callable[[Any], Any], substitute: Any) -> list[Any]:
    """What `convert` makes of a batch, in as few parts as possible, with the substitute for each refused row."""
    try:
        return [convert(rows)]
    except (*NOT_A_CELL, NotImplementedError):
        half = len(rows) // 2
        if half == 0:
            return [substitute]
        return [*_usable(rows[:half], convert, substitute), *_usable(rows[half:], convert, substitute)]
