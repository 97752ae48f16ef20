# SPDX-License-Identifier: Apache-2.0
"""A recording's tables as NumPy arrays, Arrow streams and pandas frames, on the memory that the core recorded to."""

from __future__ import annotations

import hashlib
import inspect
import io
import itertools
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core
from gpuscope.distributed import STARTED_BY
from gpuscope.errors import InvalidArgument
from gpuscope.results import import_pandas, write_parquet
from gpuscope.text import one_line, shorten
from gpuscope.threads import cached_property

if TYPE_CHECKING:  # pandas is optional
    import pandas as pd

NONE = _core.NONE
"""The value of a column that refers to no row."""

AUTOGRAD_ENGINE = _core.AUTOGRAD_PREFIX
"""The prefix of torch's range around each backward operator, before the operator's name."""

_METADATA = "metadata."
# Metadata that the profiler itself adds.
_OPTIONS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
_NOT_ADDED = (*_OPTIONS, "distributedInfo", STARTED_BY)

MemoryKind = _core.MemoryKind
PoolOperation = _core.PoolOperation


def number_of(info: Mapping[str, str], key: str) -> int:
    """A fact as a number: 0 if it is missing or not a number of 64 bits, as files may contain any text."""
    text = info.get(key, "")
    value = int(text) if _is_number(text) else 0
    return value if value < 2**63 else 0


def numbers_of(info: Mapping[str, str], key: str) -> list[int]:
    """A fact as numbers; empty if it is missing or has other words, as files may contain any text."""
    words = info.get(key, "").split()
    return [int(word) for word in words] if all(map(_is_number, words)) else []


def moments_of(info: Mapping[str, str], key: str) -> list[int]:
    """A fact as moments, in order: it contains the first and then the differences; empty without it."""
    return list(itertools.accumulate(numbers_of(info, key)))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 20


def command_line(info: Mapping[str, str]) -> str:
    """The command of the program, with its arguments; empty if unknown."""
    return info.get("process.argv", "").strip()


def metadata_of(info: Mapping[str, str]) -> str:
    """The entries of `add_metadata` and `add_metadata_json` as "key: value" in one line; empty without any."""
    entries = {key.removeprefix(_METADATA): value for key, value in info.items() if key.startswith(_METADATA)}
    with_quotes = (f"{key}: {shorten(value, 100)}" for key, value in entries.items() if key not in _NOT_ADDED)
    return one_line(", ".join(re.sub(r'(?<=: )"(.*)"$', r"\1", each) for each in with_quotes))


_LAUNCHER = re.compile(r"^.*\bgpuscope (run|diagnose|memory|counters) ")


def program_name(info: Mapping[str, str]) -> str:
    """The script that ran, as its command line names it; without a script, the command line."""
    line = command_line(info)
    script = next((word for word in line.split() if word.endswith(".py")), None)
    return script or shorten(_LAUNCHER.sub("", " ".join(line.split())), 60)


def thread_name(trace: Trace, row: int) -> str:
    """The name of a row of ``threads``: its name in Python or the system, else its number."""
    system_id = int(trace.threads.system_id[row])
    if system_id == number_of(trace.info, "process.id"):
        return "main thread"
    name = trace.string(int(trace.threads.name[row])) or trace.info.get(f"thread_name.{system_id}")
    return name or f"thread {system_id}"


class Table:
    """One table: its columns are read-only arrays that share the recording's memory and keep it alive.

    Times are integer ns since the Unix epoch. Some columns contain row numbers of other tables, as ``region`` and
    ``path``, or string ids for ``Trace.string``; ``NONE`` means no row. ``gpuscope._core.schema`` lists them. In
    ``to_pandas`` and Arrow, names are spelled out.
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

    def __reduce__(self) -> tuple[Callable[[Trace, str], Table], tuple[Trace, str]]:
        return _table_of, (Trace(self._store), self._table)

    def __getattr__(self, column: str) -> np.ndarray[Any, Any]:
        if column.startswith("_"):  # no column; a table in the making has no columns yet
            raise AttributeError(column)
        array = self._arrays().get(column)
        if array is None:
            raise AttributeError(f"table {self._table!r} has no column {column!r}; it has {', '.join(self.columns)}")
        return array

    def __contains__(self, column: object) -> bool:
        return column in self._arrays()

    __iter__ = None  # rows or columns would be ambiguous

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.columns]

    def __repr__(self) -> str:
        return f"<Table {self._table}: {len(self):,} rows of {', '.join(self.columns)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """The table for pyarrow, Polars, DuckDB and pandas: number columns without a copy, texts as a dictionary.

        The columns are those of `to_pandas`; a missing text is "".

        Args:
            requested_schema: not honoured, as the interface permits; cast afterwards.
        """
        return self._store.arrow_stream(self._table)

    def to_pandas(self) -> pd.DataFrame:
        """The table as a frame of its own memory, with names instead of row numbers.

        A kernel's row also has ``name`` (demangled), ``grid`` and ``block`` ("x, y, z"), ``registers`` and
        ``shared_bytes`` (static and dynamic), and ``device``, ``context`` and ``stream``. ``region`` is where it was
        launched; ``path`` contains the regions around too, "train/forward". A path above 4 KiB is shortened,
        "train/.../forward". In all tables string ids are texts, and ``thread`` is the system's thread id. A cell
        without a text is missing.

        Raises:
            NotAvailable: pandas is not installed.
            InvalidArgument: a column has more than 2 GiB of text.
        """
        pd = import_pandas()
        frame: dict[str, Any] = {}
        for name, values, codes in self._store.frame(self._table):
            if codes is None:
                frame[name] = values
            elif isinstance(values, list):
                frame[name] = pd.Categorical.from_codes(codes, categories=pd.Index(values))
            else:
                frame[name] = values[codes]
        return pd.DataFrame(frame, copy=False)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes the table as a Parquet file, with the columns of `to_pandas`, through Arrow and without pandas.

        Raises:
            NotAvailable: pyarrow is not installed.
            GpuscopeError: the file cannot be written.
        """
        write_parquet(self, path)


_TABLES = [table for table in _core.schema() if table.role != _core.Role.INFO]


def describe(table: _core.TableInfo) -> str:
    """The meaning of a table and its columns, a line each."""
    lines = [f"{table.attribute}: {table.doc}"]
    for column in table.columns:
        facts = [column.dtype]
        if column.values is not None:
            facts.append(column.values)
        if column.target is not None:
            facts.append("a string id" if column.target == "string" else f"a row of {column.target}")
        if column.optional:
            facts.append("or NONE")
        lines.append(f"    {column.name} ({', '.join(facts)}): {column.doc}")
    return "\n".join(lines)


class Trace:
    """One recording: a ``Table`` for each kind of row, the strings and the facts about the run.

    In aggregate mode only ``region_totals``, ``work_totals``, ``histograms`` and ``python_samples`` (sums), and
    ``device_samples`` and ``device_counters`` contain measurements. In the other modes the first three are empty.
    """

    store: _core.Store
    """The core's object that owns the memory."""

    def __init__(self, store: _core.Store) -> None:
        self.store = store
        for table in _TABLES:
            setattr(self, table.attribute, Table(store, table.name))

    if TYPE_CHECKING:  # the tables

        def __getattr__(self, name: str) -> Table: ...

    def __reduce__(self) -> tuple[Callable[[bytes], Trace], tuple[bytes]]:
        content = io.BytesIO()
        _core.write_gscope(self.store, content.write)
        return _unpickled, (content.getvalue(),)

    @property
    def info(self) -> dict[str, str]:
        """Facts about the run, by key."""
        return self.store.info()

    @cached_property
    def content_hash(self) -> str:
        """Hash of all rows, strings and facts, as "sha256:...": the same before saving and after loading."""
        found = hashlib.sha256()
        for table in _TABLES:
            columns = self.store.columns(table.name)
            rows = [(name, values) for name, values in columns.items() if len(values)]
            for name, values in rows:  # tables without rows do not count, as later versions have more of them
                found.update(f"{table.name}.{name} {values.dtype.str} {len(values)}\n".encode())
                found.update(np.ascontiguousarray(values).data)
        texts = [*self.store.strings(), *itertools.chain(*sorted(self.info.items()))]
        found.update("\0".join(texts).encode("utf-8", "surrogatepass"))
        return f"sha256:{found.hexdigest()}"

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
    def call_kinds(self) -> NDArray[np.uint8]:
        """The `CallKind` of each row of ``api``, worked out once."""
        kinds = np.append(self.calls.kind, int(_core.CallKind.OTHER)).astype(np.uint8)
        found: NDArray[np.uint8] = kinds[np.minimum(self.api.call, len(kinds) - 1)]
        return found

    @cached_property
    def summary(self) -> _core.Summary:
        """Statistics per call path and per name, worked out once; tables and trees are made from them."""
        return _core.summarize(self.store)

    @cached_property
    def function_nesting(self) -> _core.FunctionNesting:
        """How the rows of ``python_functions`` nest in each other, in regions and around them, worked out once."""
        return _core.nest_functions(self.store)

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


def _table_of(trace: Trace, table: str) -> Table:
    return Table(trace.store, table)


def _unpickled(content: bytes) -> Trace:
    with open(os.memfd_create("gpuscope"), "wb") as file:  # the core reads only files
        file.write(content)
        file.flush()
        return Trace(_core.read_gscope(f"/proc/self/fd/{file.fileno()}"))


if Trace.__doc__ is not None:  # python -OO leaves it out
    Trace.__doc__ = f"{inspect.cleandoc(Trace.__doc__)}\n\nTables:\n\n" + "\n\n".join(map(describe, _TABLES)) + "\n"
