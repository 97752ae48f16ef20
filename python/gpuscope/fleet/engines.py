# SPDX-License-Identifier: Apache-2.0
"""Queries on a job's Parquet files by the caller's engine: Spark, or ClickHouse within the process (chDB).

Each query names the files itself, so the session gets no view and no table.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters.sql import SqlResult
from gpuscope.fleet.events import event_folders
from gpuscope.fleet.tables import SCHEMA, import_arrow
from gpuscope.text import brief, one_line

_SPARK, _CLICKHOUSE = "spark", "clickhouse"

# In memory, `Fleet` fills in unknown sizes of communicators; files have them as -1.
_COLUMNS = ", ".join(f"c.{column} as {column}" for column in SCHEMA["collective"] if column != "size")
_COLLECTIVES = (
    f"select {_COLUMNS}, case when g.least < 0 then g.members else c.size end as size from {{files}} as c join ("
    "select communicator, min(size) as least, greatest(max(size), cast(count(distinct rank) as bigint)) as members "
    "from {files} group by communicator) as g on g.communicator = c.communicator"
)


def dialect_of(engine: Any) -> str:
    """The dialect of an engine: "spark" or "clickhouse".

    Raises:
        InvalidArgument: it is no engine.
    """
    if hasattr(engine, "sql") and hasattr(engine, "read"):
        return _SPARK
    if hasattr(engine, "query") and hasattr(engine, "send_query"):
        return _CLICKHOUSE
    raise InvalidArgument(f"engine is {brief(engine)}; accepted are a SparkSession and a session or connection of chDB")


def run_on(engine: Any, query: str, folder: Path) -> SqlResult:
    """Runs a query of DuckDB's dialect on the tables in a folder.

    Args:
        engine: a SparkSession, whose workers see the folder, or a session or connection of chDB.
        query: one statement that selects.
        folder: as `merge` writes it.

    Raises:
        InvalidArgument: `engine` is none, or it cannot run the query.
        NotAvailable: sqlglot or pyarrow is not installed.
    """
    dialect = dialect_of(engine)
    text = _translate(query, dialect, folder.resolve())
    arrow, _ = import_arrow()
    try:
        if dialect == _SPARK:
            frame = engine.sql(text)
            return SqlResult(tuple(frame.columns), [tuple(row) for row in frame.collect()])
        table = arrow.ipc.open_file(engine.query(text, "Arrow").bytes()).read_all()
    except Exception as error:  # each engine has its own
        raise _refused(error) from error
    return SqlResult(tuple(table.column_names), list(zip(*(each.to_pylist() for each in table.columns), strict=True)))


def _translate(query: str, dialect: str, folder: Path) -> str:
    """The query in the engine's dialect, with files in place of the job's tables."""
    try:
        sqlglot, scopes = importlib.import_module("sqlglot"), importlib.import_module("sqlglot.optimizer.scope")
    except ImportError:
        raise NotAvailable(
            "queries by other engines are not available: sqlglot is not installed; pip install 'gpuscope[fleet]'"
        ) from None
    tables = {f"{name}s": folder / name for name in SCHEMA} | event_folders(folder)
    try:
        statements = sqlglot.parse(query, "duckdb")
        if len(statements) != 1 or not isinstance(statements[0], sqlglot.exp.Query):
            raise InvalidArgument(f"query is {brief(query)}; accepted is one statement that selects")
        for scope in scopes.traverse_scope(statements[0]):
            for alias, (node, source) in scope.selected_sources.items():
                if isinstance(source, sqlglot.exp.Table) and (path := tables.get(source.name.lower())):
                    files = _files(str(path), dialect)
                    select = _COLLECTIVES if source.name.lower() == "collectives" else "select * from {files}"
                    node.replace(sqlglot.parse_one(select.format(files=files), read=dialect).subquery(alias))
        text: str = statements[0].sql(dialect, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.SqlglotError as error:
        raise _refused(error) from error
    return text


def _files(folder: str, dialect: str) -> str:
    """The files of a folder as a table of the engine. Spark without "file:" may look in another file system."""
    if dialect == _SPARK:
        escaped = re.sub(r"([][*?{}\\])", r"\\\1", folder).replace("`", "``")
        return f"parquet.`file:{escaped}`"
    escaped = folder.replace("\\", "\\\\").replace("'", "\\'")
    return f"file('{escaped}/*.parquet', 'Parquet')"


def _refused(error: Exception) -> InvalidArgument:
    first = str(error).strip().partition("\n")[0]
    return InvalidArgument(f"query cannot be run: {one_line(first).rstrip('.')}")
