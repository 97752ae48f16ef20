# SPDX-License-Identifier: Apache-2.0
"""Logs of GPUs as Parquet, by pyarrow, which is optional.

A Parquet file ends with its index: it cannot be read while it is written, and nothing can be appended. A run's samples
wait as JSON lines in a file next to it until the run ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.monitor.sample import COLUMNS, read_lines, time_ns_of
from gpuscope.monitor.snapshot import GpuState
from gpuscope.paths import open_file, replacing

_ROWS_A_GROUP = 1 << 16
_UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_JSON = ("why", "mig_instances")
_TEXTS = ("timestamp", "throttle_reasons", "gpu_uuid", "gpu_name", "xid_errors", "sampler_limited", *_JSON)


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


def _schema(arrow: Any) -> Any:
    def of(name: str) -> Any:
        if name in _TEXTS:
            return arrow.string()
        if name == "gpu_idx":
            return arrow.int32()
        if GpuState.__annotations__.get(name) == "bool | None":
            return arrow.bool_()
        return arrow.float64()  # integers of 53 bits and less: bytes and counts

    fields = [arrow.field(name, of(name)) for name in (*COLUMNS, "why")]
    # A moment to the ms, as in the other formats.
    return arrow.schema(fields).set(0, arrow.field("timestamp", arrow.timestamp("ms", "UTC")))


def check_file(path: Path) -> None:
    """Raises InvalidArgument if the file has other columns or is no Parquet; NotAvailable without pyarrow."""
    arrow, parquet = _import()
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        names = parquet.read_schema(path).names
    except (OSError, arrow.ArrowException) as error:
        raise InvalidArgument(f"log_path is {str(path)!r}, which is no Parquet file ({error})") from None
    other = next((name for name in names if name not in (*COLUMNS, "why")), None)
    if other is not None:
        raise InvalidArgument(
            f"log_path is {str(path)!r}, a file with other columns ({other!r}); accepted are files that do not exist, "
            "empty ones and logs of this version"
        )


def take_lines(lines: Path, path: Path) -> None:
    """Appends JSON lines to a Parquet file.

    Raises:
        GpuscopeError: the file cannot be written; the file is as it was.
    """
    arrow, parquet = _import()
    schema = _schema(arrow)
    try:
        with replacing(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            if path.exists() and path.stat().st_size:
                old = parquet.ParquetFile(path)
                for group in range(old.num_row_groups):
                    writer.write_table(_fitted(old.read_row_group(group), schema, arrow))
            for rows in _batches(lines):
                writer.write_table(_table(rows, schema, arrow), row_group_size=_ROWS_A_GROUP)
    except arrow.ArrowException as error:
        raise GpuscopeError(f"cannot write {path}: {error}; its samples are in {lines}") from error


def read_rows(path: Path) -> Iterator[dict[str, Any] | None]:
    """The known values of each row; times in ns; None for a row that cannot be read.

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
            for batch in opened.iter_batches(batch_size=_ROWS_A_GROUP):
                table = arrow.Table.from_batches([batch])
                times = table["timestamp"]
                unit_ns = _UNITS_NS.get(getattr(times.type, "unit", ""))
                if unit_ns is not None:  # as integers: Python's times end with the year 9999
                    times = times.cast(arrow.int64())
                    table = table.set_column(table.column_names.index("timestamp"), "timestamp", times)
                for row in _plain(table):
                    try:
                        told = row["timestamp"]
                        row["time_ns"] = time_ns_of(told) if unit_ns is None else told * unit_ns
                        yield {name: value for name, value in row.items() if value is not None}
                    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                        yield None
        except (arrow.ArrowException, KeyError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's; Arrow's own have no number
                raise
            why = str(error).partition("\n")[0]
            raise InvalidArgument(f"path is {str(path)!r}, which is no Parquet file that can be read ({why})") from None


def _plain(table: Any) -> list[dict[str, Any]]:
    """The rows of a batch; none if a value cannot be a Python value."""
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError):
        if len(table) < 2:
            return [{}]
        half = len(table) // 2
        rows = [*_plain(table.slice(0, half)), *_plain(table.slice(half))]
    return rows


def read_table(path: Path, lines: Path) -> Any:
    """The rows of a file and, until a run ends, the lines next to it, as a table of pyarrow.

    Raises:
        InvalidArgument: neither exists.
        NotAvailable: pyarrow is not installed.
        GpuscopeError: they cannot be read.
    """
    arrow, parquet = _import()
    schema = _schema(arrow)
    tables = [schema.empty_table()]
    try:
        if path.exists():
            tables.append(_fitted(parquet.read_table(path), schema, arrow))
        if lines.exists() or not path.exists():
            tables += [_table(rows, schema, arrow) for rows in _batches(lines)]
    except (OSError, arrow.ArrowException) as error:
        raise GpuscopeError(f"{path} cannot be read: {error}") from error
    return arrow.concat_tables(tables)


def _batches(lines: Path) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for row in read_lines(lines):
        if row is not None:
            rows.append(row)
        if len(rows) == _ROWS_A_GROUP:
            yield rows
            rows = []
    if rows:
        yield rows


def _table(rows: list[dict[str, Any]], schema: Any, arrow: Any) -> Any:
    """A table of lines, without lines that no monitor has written."""

    def column(name: str, kind: Any) -> Any:
        if name == "timestamp":
            return arrow.array([row["time_ns"] // 1_000_000 for row in rows], arrow.int64()).cast(kind)
        values = [row.get(name) for row in rows]
        if name in _JSON:
            values = [None if value is None else json.dumps(value) for value in values]
        return arrow.array(values, kind)

    try:
        return arrow.Table.from_arrays([column(each.name, each.type) for each in schema], schema=schema)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError, RecursionError):
        if len(rows) < 2:
            return schema.empty_table()
        half = len(rows) // 2
        return arrow.concat_tables([_table(part, schema, arrow) for part in (rows[:half], rows[half:])])


def _fitted(table: Any, schema: Any, arrow: Any) -> Any:
    """The table with the columns of this version, which may have more."""
    columns = [
        table[each.name].cast(each.type) if each.name in table.column_names else arrow.nulls(len(table), each.type)
        for each in schema
    ]
    return arrow.Table.from_arrays(columns, schema=schema)
