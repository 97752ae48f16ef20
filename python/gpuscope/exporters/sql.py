# SPDX-License-Identifier: Apache-2.0
"""A recording's tables as views for SQL, which DuckDB runs on the memory of the recording."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import IO, Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind, Flag, RegionKind
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.paths import check_writable, is_utf8, replacing
from gpuscope.results import Result, import_pandas, write_parquet
from gpuscope.tables import align_columns
from gpuscope.text import brief, columns_of, one_line, shorten, wrapped
from gpuscope.threads import thread_pool
from gpuscope.trace import Trace
from gpuscope.units import first_line

_PARQUET = (".parquet",)
_MOST_SHOWN = 1000  # rows of a printed result
_LEAST_SHOWN = 8  # columns of a text
_ROWS = 1 << 14  # that are fetched at once
# Queries read only the recording. An empty temporary folder keeps DuckDB from writing into the current one.
_CONFINED = {
    "temp_directory": "",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
}

# Columns beyond the schema's own, as in `Table.to_pandas`.
_SPELLED = {
    "name": "what it is called; a kernel's is demangled",
    "grid": "blocks of the grid, x, y, z",
    "block": "threads of a block, x, y, z",
    "shared_bytes": "shared memory of a block, static and dynamic",
    "path": "the region and those around it, outer/inner",
    "region": "the region that it belongs to",
    "thread": "the system's number of the thread",
}
_WORK = " union all ".join(
    f"select '{kind}' as kind, {name} as name, start_ns, duration_ns, device, stream, region, path, flags from {table}"
    for kind, name, table in (
        ("kernel", "name", "kernels"),
        ("memcpy", "name", "memcpy"),
        ("memset", f"'{_core.MEMSET_NAME}'", "memset"),
        ("graph", f"'{_core.GRAPH_NAME} ' || graph", "graph_launches"),
    )
)
_TIMED = f"flags & {int(Flag.ZERO_TIME)} = 0"


@dataclass(frozen=True)
class _View:
    """A view in addition to the recording's own tables."""

    name: str
    query: str
    doc: str
    columns: dict[str, str]
    """Meanings of columns that its tables lack."""
    of: tuple[str, ...]
    """The tables that it is made of."""


_VIEWS = (
    _View("memcpys", "select * from memcpy", "Copies of memory.", {}, ("memcpy",)),
    _View("memsets", "select * from memset", "Fills of memory.", {}, ("memset",)),
    _View(
        "operators",
        f"select r.* from regions r positional join region_kinds k where k.kind = {int(RegionKind.OP)}",
        "Operators of frameworks, which are regions too.",
        {},
        ("regions",),
    ),
    _View(
        "launches",
        "select a.start_ns, a.duration_ns, a.correlation, a.region, a.path, a.name, a.thread, "
        f"k.name as kernel, case when k.{_TIMED} then k.start_ns end as kernel_start_ns, "
        f"case when k.{_TIMED} then k.duration_ns end as kernel_duration_ns, kernel_start_ns - a.start_ns "
        "as until_kernel_ns from api a join call_kinds c on c.call = a.call "
        "left join kernels k on k.correlation = a.correlation and a.correlation <> 0 "
        f"where c.kind in ({int(CallKind.LAUNCH)}, {int(CallKind.GRAPH_LAUNCH)})",
        "Calls that launched kernels, each with its kernel; those of graphs with each of theirs.",
        {
            "kernel": "the name of the kernel that it launched; none where no record of it came",
            "kernel_start_ns": "when that began; none where the GPU gave no timestamps",
            "kernel_duration_ns": "how long it ran",
            "until_kernel_ns": "from the call until then",
        },
        ("api", "kernels"),
    ),
    _View(
        "gpu_work",
        _WORK,
        "Kernels, copies, fills and launches of graphs that were traced as a whole, together.",
        {"kind": "kernel, memcpy, memset or graph"},
        ("kernels",),
    ),
    _View(
        "idle",
        "with seen as (select device, start_ns, name, max(start_ns + duration_ns) over (partition by device "
        "order by start_ns rows between unbounded preceding and 1 preceding) "
        f"as ended_ns from gpu_work where {_TIMED}) "
        "select device, ended_ns as start_ns, start_ns - ended_ns as duration_ns, name as ended_by "
        "from seen where start_ns > ended_ns",
        "Gaps between GPU work, in which a GPU had nothing to do. Work without timestamps ends none.",
        {
            "device": "CUDA's number of the GPU",
            "start_ns": "when all work before it had ended",
            "duration_ns": "until the next began",
            "ended_by": "the kernel, copy, fill or graph that came then",
        },
        (),
    ),
    _View(
        "steps",
        "select * from found_steps",
        "Steps of the program, as `step_breakdown` finds them.",
        {
            "step": "its number, from 0",
            "start_ns": "when it began",
            "duration_ns": "until the next began",
        },
        (),
    ),
)


@dataclass(frozen=True)
class ViewColumn:
    """A column of a view: its name, its SQL type and its meaning."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True)
class ViewInfo:
    """A view for queries: its name, its meaning and its columns."""

    name: str
    doc: str
    columns: tuple[ViewColumn, ...]


@dataclass(frozen=True, repr=False)
class SqlResult(Result):
    """The result of a query; printing it shows a table.

    Attributes:
        columns: names of the columns.
        rows: the values of each row.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The columns and the rows."""
        return {"columns": list(self.columns), "rows": [[_plain(each) for each in row] for row in self.rows]}

    def to_pandas(self) -> Any:
        """A frame; whole numbers with missing values have pandas' type Int64, as floats would round them.

        Raises:
            NotAvailable: pandas is not installed.
        """
        pd = import_pandas()
        values = [[row[column] for row in self.rows] for column in range(len(self.columns))]
        frame = pd.DataFrame({at: pd.Series(each, dtype=_nullable(each)) for at, each in enumerate(values)})
        frame.columns = list(self.columns)
        return frame

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_pandas` as a Parquet file; repeated names of columns are numbered.

        Raises:
            NotAvailable: pandas or pyarrow is not installed.
            GpuscopeError: the file cannot be written.
        """
        frame = self.to_pandas()
        frame.columns = _distinct(self.columns)
        write_parquet(frame, path)

    def __str__(self) -> str:
        return self.table()

    def table(self, width: int | None = None) -> str:
        """The first rows as text.

        Args:
            width: columns of the terminal. The longest texts are cut in the middle to fit; if that is not enough, the
                last columns are left out. None cuts nothing.
        """
        shown = [[_text(each) for each in row] for row in self.rows[:_MOST_SHOWN]]
        lines = [[*map(one_line, self.columns)], *shown]
        widths = [max(columns_of(line[column]) for line in lines) for column in range(len(self.columns))]
        numbers = [
            all(isinstance(row[column], (int, float)) or row[column] is None for row in self.rows[:_MOST_SHOWN])
            for column in range(len(self.columns))
        ]
        if width is not None:
            widths = _fitted(widths, numbers, width)
        hidden = len(self.columns) - len(widths)
        cells = [[shorten(cell, most) for cell, most in zip(line, widths, strict=False)] for line in lines]
        text = align_columns(cells, left=[column for column, number in enumerate(numbers) if not number], rule=True)
        count = len(self.rows)
        more = f", of which {_MOST_SHOWN:,} are shown" if count > _MOST_SHOWN else ""
        more += f", {hidden} more column{'s' * (hidden > 1)}: select fewer, or take --csv" if hidden else ""
        closing = f"{count:,} row{'' if count == 1 else 's'}{more}"
        return "\n".join([*text, *(wrapped(closing, width, 2) if width else [closing])])


def _fitted(widths: Sequence[int], numbers: Sequence[bool], width: int) -> list[int]:
    """The widths of columns that fit a line: the widest texts are cut, numbers are not; then the last columns go."""
    fitted = list(widths)
    over = sum(fitted) + 2 * (len(fitted) - 1) - width
    texts = [column for column, number in enumerate(numbers) if not number]
    while over > 0 and any(fitted[column] > _LEAST_SHOWN for column in texts):
        widest = max(texts, key=lambda column: fitted[column])
        next_widest = max((fitted[column] for column in texts if column != widest), default=0)
        cut = min(over, fitted[widest] - max(next_widest - 1, _LEAST_SHOWN))
        fitted[widest] -= cut
        over -= cut
    while over > 0 and len(fitted) > 1:
        over -= fitted.pop() + 2
    return fitted


class SqlViews:
    """Tables in memory, on which queries run.

    Args:
        tables: by the name of the view, what DuckDB can read: columns by name, or an object with Arrow's interface.
        queries: further views, as name and query.
        output: the only file that queries can reach.

    Raises:
        NotAvailable: DuckDB is not installed.
    """

    def __init__(
        self, tables: Mapping[str, Any], queries: Iterable[tuple[str, str]] = (), output: str | None = None
    ) -> None:
        self._duckdb = _import_duckdb()
        self._connection = self._duckdb.connect(config=_CONFINED)
        for name, table in tables.items():
            self._connection.register(name, table)
        for name, query in queries:
            self._connection.execute(f"create view {name} as {query}")
        if output is not None:
            self._connection.execute(f"set allowed_paths = ['{output}']")
        self._connection.execute("set enable_external_access = false; set lock_configuration = true")

    def run(self, query: str) -> SqlResult:
        """Runs a query.

        Raises:
            InvalidArgument: DuckDB cannot run it on these views, or it finds a value that Python cannot represent.
            GpuscopeError: it needs more memory than is available.
        """
        cursor, columns = self._execute(query)
        return SqlResult(columns, self._until_interrupted(cursor.fetchall))

    def select(self, query: str, rows: int) -> SqlResult:
        """The first rows of one query that changes nothing, for callers that are not trusted.

        Raises:
            InvalidArgument: it is not one statement that selects, or DuckDB cannot run it on these views.
            GpuscopeError: it needs more memory than is available.
        """
        if not is_utf8(query):
            raise _no_statement(query)
        with self._in_one_sentence():
            statements = self._duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != self._duckdb.StatementType.SELECT:
            raise InvalidArgument(f"query is {brief(query)}; accepted is one statement that selects")
        cursor, columns = self._execute(query)
        return SqlResult(columns, self._until_interrupted(partial(cursor.fetchmany, rows)))

    def _execute(self, query: str) -> tuple[Any, tuple[str, ...]]:
        cursor = None  # as DuckDB returns for a query without a statement
        if isinstance(query, str) and is_utf8(query):
            cursor = self._until_interrupted(partial(self._connection.execute, query))
        if cursor is None:
            raise _no_statement(query)
        return cursor, tuple(column[0] for column in cursor.description or ())

    def _until_interrupted(self, call: Callable[[], Any]) -> Any:
        """Runs a call of DuckDB on a thread, so that Ctrl-C ends it: DuckDB does not check for signals itself."""
        with self._in_one_sentence(), thread_pool(1) as pool:
            made = pool.submit(call)
            try:
                return made.result()
            except KeyboardInterrupt:
                self._connection.interrupt()
                with contextlib.suppress(Exception):
                    made.result()  # the connection may be closed next
                raise

    @contextlib.contextmanager
    def _in_one_sentence(self) -> Iterator[None]:
        try:
            yield
        except (MemoryError, self._duckdb.OutOfMemoryException) as error:
            raise GpuscopeError(f"the query needs more memory than there is: {first_line(error)}") from error
        except self._duckdb.Error as error:
            raise InvalidArgument(f"query cannot be run: {_sentence(error)}") from error
        except Exception as error:  # of Python, as DuckDB makes its objects
            raise InvalidArgument(
                f"query finds what Python cannot hold ({first_line(error)}); accepted is its text, as x::varchar"
            ) from error

    def batches(self, query: str) -> tuple[tuple[str, ...], Iterator[list[tuple[Any, ...]]]]:
        """The names of the columns, and the rows in parts, for results that are too large for memory."""
        cursor, columns = self._execute(query)

        def parts() -> Iterator[list[tuple[Any, ...]]]:
            while rows := self._until_interrupted(partial(cursor.fetchmany, _ROWS)):
                yield rows

        return columns, parts()

    def write_csv(self, query: str, file: IO[str]) -> None:
        """Writes the rows of a query, after a line of names."""
        columns, parts = self.batches(query)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for rows in parts:
            writer.writerows([each if isinstance(each, Decimal) else _plain(each) for each in row] for row in rows)

    def write_json(self, query: str, file: IO[str]) -> None:
        """Writes the rows of a query as a list of objects, one a line; repeated names of columns are numbered."""
        names, parts = self.batches(query)
        columns = _distinct(names)
        opening = "[\n"
        for rows in parts:
            for row in rows:
                values = dict(zip(columns, map(_plain, row), strict=True))
                file.write(opening + json.dumps(values))
                opening = ",\n"
        file.write("[]\n" if opening == "[\n" else "\n]\n")

    def write_parquet(self, query: str, path: str) -> None:
        """Writes the rows of a query as a Parquet file, which is the database's output."""
        # The parenthesis has its own line: before DuckDB 2 tokens have no comments, and one may end the query.
        self._execute(f"copy ({self._without_end(query)}\n) to '{path}' (format parquet, use_tmp_file false)")

    def _without_end(self, query: str) -> str:
        """The query without semicolons and comments at its end, as it stands in parentheses."""
        text = query.encode()
        for place, kind in reversed(self._duckdb.tokenize(query)):
            if kind != self._duckdb.token_type.comment and text[place : place + 1] != b";":
                break
            text = text[:place]
        return text.decode()


class Database(SqlViews):
    """The views of one recording.

    Args:
        trace: the recording; its numbers are read without a copy.
        output: the only file that queries can reach.

    Raises:
        NotAvailable: DuckDB is not installed.
    """

    def __init__(self, trace: Trace, output: str | None = None) -> None:
        info = trace.info
        kinds = np.append(trace.paths.kind, np.uint32(0)).astype(np.uint32)
        path = np.minimum(trace.regions.path, len(kinds) - 1)
        calls = np.arange(len(trace.calls), dtype=np.uint16)
        helpers = {
            "info": {"key": list(info), "value": list(info.values())},
            "region_kinds": {"kind": kinds[path]},
            "call_kinds": {"call": calls, "kind": np.array(trace.calls.kind)},
            "found_steps": _steps(trace),
        }
        tables: dict[str, Any] = {
            table.attribute: getattr(trace, table.attribute)
            for table in _core.schema()
            if table.role != _core.Role.INFO
        }
        for name, columns in helpers.items():
            tables[name] = {key: np.asarray(values) for key, values in columns.items()}
        super().__init__(tables, ((view.name, view.query) for view in _VIEWS), output)

    def views(self) -> list[ViewInfo]:
        """All views, the recording's own tables last."""
        docs = {table.attribute: table for table in _core.schema()}
        found = []
        for view in _VIEWS:
            meanings = dict(_SPELLED)
            for of in reversed(view.of):
                meanings |= _meanings(docs[of])
            found.append(ViewInfo(view.name, view.doc, self._columns(view.name, meanings | view.columns)))
        for attribute, table in docs.items():
            found.append(ViewInfo(attribute, table.doc, self._columns(attribute, _meanings(table))))
        return found

    def _columns(self, view: str, meanings: dict[str, str]) -> tuple[ViewColumn, ...]:
        described = self._connection.execute(f'describe "{view}"').fetchall()
        return tuple(ViewColumn(name, str(kind).lower(), meanings.get(name, "")) for name, kind, *_ in described)


def write_query(database: Callable[[str], SqlViews], query: str, path: str | os.PathLike[str]) -> None:
    """Writes the rows of a query as a Parquet file. `database` opens views whose queries can write the given file.

    Raises:
        InvalidArgument: the suffix is another, or the query cannot be run.
        GpuscopeError: the file cannot be written.
    """
    if not is_utf8(query):
        raise _no_statement(query)
    with replacing(check_writable(path, _PARQUET)) as file:
        target = f"/proc/self/fd/{file.fileno()}"  # a file of DuckDB's own would have other permissions
        try:
            database(target).write_parquet(query, target)
        except InvalidArgument as error:
            unwritten = re.search(rf'{target}\\?": ([^"]+)', str(error))
            if unwritten is None:
                raise
            raise OSError(0, unwritten[1]) from error


def empty_database() -> Database:
    """A database with all views and no rows."""
    return Database(Trace(_core.make_store({}, [""], [])))


def _meanings(table: _core.TableInfo) -> dict[str, str]:
    """Meanings of a table's columns, including those of the rows that it refers to."""
    tables = {other.name: other for other in _core.schema()}
    found = dict(_SPELLED)
    for column in table.columns:
        if column.target is not None and column.target in tables and column.name == column.target:
            found = {each.name: each.doc for each in tables[column.target].columns} | found
    return found | {column.name: _doc(column) for column in table.columns if column.name not in _SPELLED}


def _doc(column: _core.ColumnInfo) -> str:
    """A column's meaning, with the numbers of its enumeration."""
    if column.values is None:
        return column.doc
    values: Iterable[Any] = getattr(_core, column.values)
    return f"{column.doc} ({', '.join(f'{each.value} {each.name}' for each in values)})"


def _steps(trace: Trace) -> dict[str, Any]:
    from gpuscope.steps.steps import find_steps

    try:
        steps = find_steps(trace)
    except NotAvailable:  # only totals
        start = duration = np.zeros(0, np.int64)
    else:
        start, duration = steps.start_ns, steps.durations_ns
    return {"step": np.arange(len(start)), "start_ns": start, "duration_ns": duration}


def _import_duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise NotAvailable("SQL is not available: DuckDB is not installed; pip install duckdb") from error
    return duckdb


def _no_statement(query: object) -> InvalidArgument:
    return InvalidArgument(
        f"query is {brief(query)}; accepted is a statement of SQL in UTF-8, as 'select * from kernels'"
    )


def _sentence(error: Exception) -> str:
    """DuckDB's message as one line, without the drawing of the place."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith("LINE ") and set(line) != {"^"}]
    return " ".join(kept).rstrip(".")


def _distinct(names: Iterable[str]) -> list[str]:
    """The names, with repeated ones numbered, as DuckDB does in files."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        found[next(each for each in itertools.chain([name], numbered) if each not in found)] = None
    return [*found]


def _nullable(values: Sequence[Any]) -> str | None:
    """The type for whole numbers with missing values, which pandas would round; None: pandas finds the type."""
    known = [value for value in values if value is not None]
    if not known or len(known) == len(values) or not all(type(value) is int for value in known):
        return None
    least, most = min(known), max(known)
    if least >= -(2**63) and most < 2**63:
        return "Int64"
    return "UInt64" if least >= 0 and most < 2**64 else "object"


def _plain(value: Any) -> Any:
    """A value of a type that CSV and JSON have."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, Decimal)):
        return float(value) if np.isfinite(float(value)) else None
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return str(value)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return one_line(" ".join(str(value).split()))


def schema_text(views: Sequence[ViewInfo]) -> str:
    """The views and their columns, for people."""
    lines = []
    for view in views:
        lines.append(f"{view.name}: {view.doc}")
        columns = [(each.name, each.type, each.doc) for each in view.columns]
        lines += [f"    {line}" for line in align_columns(columns, left=3)]
        lines.append("")
    return "\n".join(lines)
