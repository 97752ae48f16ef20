# SPDX-License-Identifier: Apache-2.0
"""`Fleet`: the recordings of all ranks of a job, and its answers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.exporters.sql import SqlResult, SqlViews, ViewColumn, ViewInfo
from gpuscope.fleet import tables
from gpuscope.fleet.breakdown import JobBreakdown, break_down
from gpuscope.fleet.clocks import Clock, align
from gpuscope.fleet.dependencies import Operations
from gpuscope.fleet.differences import JobDiff, compare
from gpuscope.fleet.engines import dialect_of, run_on
from gpuscope.fleet.events import event_views, read_events
from gpuscope.fleet.merged_trace import export_ranks
from gpuscope.fleet.merging import Paths, Shard, check_one_job, find_recordings, merge_files, merge_into, read_notes
from gpuscope.fleet.orders import find_swapped_orders
from gpuscope.fleet.page import render
from gpuscope.fleet.stragglers import Stragglers, find_stragglers
from gpuscope.fleet.tables import Array, Columns
from gpuscope.fleet.verdict import JobDiagnosis, diagnose
from gpuscope.fleet.waits import Waits, find_waits
from gpuscope.fleet.what_if import WhatIf, what_if
from gpuscope.paths import check_writable, write_text
from gpuscope.text import brief
from gpuscope.threads import cached_property

_QUERIES = Path(__file__).parent / "sql"
_SQL_TYPES = {"i4": "integer", "i8": "bigint", "f8": "double", "?": "boolean", "O": "varchar"}


class Fleet:
    """The tables of a job, made by `merge`.

    Times in answers are aligned between hosts; `clock` has the errors. The tables are on each rank's own clock.

    Args:
        columns: the tables, by name; missing ones are empty.
        notes: recordings that could not be read, a sentence each.
        folder: where the tables are as Parquet; None if they are only in memory.
        engine: runs the queries of `sql` on these files; default DuckDB, in memory.
    """

    def __init__(
        self,
        columns: Mapping[str, Columns],
        notes: Sequence[str] = (),
        *,
        folder: Path | None = None,
        engine: Any = None,
    ) -> None:
        self._tables = tables.join([columns])
        self._folder, self._engine = folder, engine
        self.notes = tuple(notes)
        if not len(self._tables["rank"]["rank"]):
            raise InvalidArgument("the job has no rank; accepted are recordings of at least one")
        _fill_sizes(self._tables["collective"])
        check_one_job(self._tables["rank"])

    @classmethod
    def open(cls, folder: str | os.PathLike[str], engine: Any = None) -> Fleet:
        """Opens the tables that ``gpuscope merge`` or ``merge(..., to=...)`` wrote.

        Args:
            folder: of the tables.
            engine: as for `merge`.

        Raises:
            InvalidArgument: the folder has none, or `engine` is no engine.
            CorruptTrace: a file is damaged.
            NotAvailable: pyarrow is not installed.
        """
        if engine is not None:
            dialect_of(engine)
        return cls(tables.read(Path(folder)), read_notes(Path(folder)), folder=Path(folder), engine=engine)

    def table(self, name: str) -> Columns:
        """A table as NumPy columns: rank, step, kernel_stat, collective, segment, anchor, reason or device.

        Raises:
            InvalidArgument: there is no such table.
        """
        if name not in self._tables:
            raise InvalidArgument(f"the table is {brief(name)}; accepted are {', '.join(self._tables)}")
        return self._tables[name]

    @property
    def ranks(self) -> Any:
        """The ranks, as a table of pyarrow."""
        return tables.to_arrow("rank", self._tables["rank"])

    @property
    def steps(self) -> Any:
        """The steps of all ranks, as a table of pyarrow."""
        return tables.to_arrow("step", self._tables["step"])

    @property
    def collectives(self) -> Any:
        """The collectives of all ranks, as a table of pyarrow."""
        return tables.to_arrow("collective", self._tables["collective"])

    @property
    def devices(self) -> Any:
        """Power, clock and memory of the GPUs, as a table of pyarrow; -1 is unknown."""
        return tables.to_arrow("device", self._tables["device"])

    @property
    def seen(self) -> int:
        """The number of ranks with a recording."""
        return len(self._tables["rank"]["rank"])

    @property
    def expected(self) -> int:
        """The number of ranks of the job: the world size of its processes."""
        return tables.expected_ranks(self._tables["rank"])

    @property
    def missing(self) -> list[int]:
        """The ranks without a recording."""
        return sorted(set(range(self.expected)) - set(self._tables["rank"]["rank"].tolist()))

    @cached_property
    def clock(self) -> Clock:
        """The clocks of the hosts, aligned by collectives."""
        return align(self._tables["collective"], self._tables["rank"], self._tables["anchor"])

    def breakdown(self) -> JobBreakdown:
        """What the steps of all ranks consist of.

        Raises:
            NotAvailable: no rank has a step.
        """
        return break_down(self._tables["step"], self.expected)

    def waits(self) -> Waits:
        """Who arrived late at collectives, what that cost, and why. Only ranks with comparable clocks are judged."""
        return self._waits

    @cached_property
    def _waits(self) -> Waits:
        ranks, collective = self._tables["rank"], self._aligned_collectives
        reasons = self._aligned("reason")
        return find_waits(collective, ranks, self._error_ns(ranks["rank"]), reasons=reasons)

    def stragglers(self) -> Stragglers:
        """Ranks, nodes and links that are slower than their equals."""
        return find_stragglers(self._tables["step"], self._tables["rank"], waits=self._waits)

    def what_if(self) -> WhatIf:
        """How long the job would take if all ranks and steps took equally long.

        Raises:
            InvalidArgument: no step has work.
        """
        aligned = self._aligned_collectives
        operations = Operations.of_tables(self._tables["segment"], aligned, self._tables["rank"])
        return what_if(operations, self.expected)

    @cached_property
    def _comparable(self) -> Array:
        """The ranks whose clocks are aligned."""
        numbers = self._tables["rank"]["rank"]
        return numbers[~np.isin(numbers, np.array(list(self.clock.unaligned), np.int64))]

    @cached_property
    def _aligned_collectives(self) -> Columns:
        """With the numbers of ranks that count from elsewhere as their peers have them, and without uncertain ones."""
        found = self._aligned("collective")
        kept = np.ones(len(found["rank"]), bool)
        if self.clock.late_starts:
            found["sequence"] = found["sequence"].copy()
        for late in self.clock.late_starts:
            rows = (found["rank"] == late.rank) & (found["communicator"] == late.communicator)
            found["sequence"][rows] += late.shift
            kept[rows] = late.used
        return found if kept.all() else {column: values[kept] for column, values in found.items()}

    def _aligned(self, name: str) -> Columns:
        found = dict(self._tables[name])
        if len(self._comparable) < self.seen:
            rows = np.flatnonzero(np.isin(found["rank"], self._comparable))
            found = {column: values[rows] for column, values in found.items()}
        for column in ("start_ns", "end_ns"):
            found[column] = self.clock.aligned(found["rank"], found[column])
        return found

    def _error_ns(self, ranks: Array) -> Array:
        errors = np.full(len(ranks), np.inf)
        known = np.isin(ranks, self._comparable)
        errors[known] = self.clock.error_ns(ranks[known])
        return np.where(np.isfinite(errors), errors, 0.0)

    def sql(self, query: str) -> SqlResult:
        """Runs a query on the tables, by DuckDB or the engine that `merge` or `open` got.

        Args:
            query: a query in DuckDB's dialect, or the name of one of ours: `queries` has them.

        Raises:
            InvalidArgument: it cannot be run.
            NotAvailable: DuckDB or pyarrow is not installed; with an engine, sqlglot.
        """
        text = queries().get(query, query)
        if self._engine is not None and self._folder is not None:
            return run_on(self._engine, text, self._folder)
        return self.database().run(text)

    def database(self, output: str | None = None) -> SqlViews:
        """The tables as views for queries; `output` is the only file that queries can reach.

        Raises:
            NotAvailable: DuckDB or pyarrow is not installed.
        """
        views = {f"{name}s": tables.to_arrow(name, columns) for name, columns in self._tables.items()}
        events = {} if self._folder is None else read_events(self._folder)
        return SqlViews(views | events, output=output)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        ranks: Sequence[int] | None = None,
        steps: tuple[int, int] | None = None,
    ) -> None:
        """Writes the job as one interactive page: findings, heat maps of ranks, their table and a timeline.

        Args:
            path: ``.html`` or ``.htm``.
            ranks: of the timeline; default the two costliest and two typical ones.
            steps: its first and its last step; default three, in which the costliest rank is as late as usual.

        Raises:
            InvalidArgument: another suffix, or ranks or steps without a recording.
            GpuscopeError: the file cannot be written.
        """
        checked = check_writable(path, (".html", ".htm"))
        write_text(checked, render(self.diagnose(), self._tables, self._aligned_collectives, ranks, steps))

    def export_perfetto(
        self, path: str | os.PathLike[str], ranks: Sequence[int], steps: tuple[int, int] | None = None
    ) -> None:
        """Writes the recordings of some ranks and steps as one timeline for https://ui.perfetto.dev.

        Args:
            path: ``.tar``.
            ranks: numbers of ranks.
            steps: the first and the last step; default the whole recordings.

        Raises:
            InvalidArgument: another suffix, a rank without a recording or without an aligned clock, or no such steps.
            NotAvailable: a recording is not at its place.
            GpuscopeError: the archive cannot be written, or a recording cannot be read.
        """
        export_ranks(path, self._tables["rank"], self._tables["step"], self.clock, ranks, steps)

    def diff(self, other: Fleet) -> JobDiff:
        """What changed from this job to another: the step and its parts, kernels and ranks.

        Raises:
            NotAvailable: a side has fewer than four steps.
        """
        return compare(self._tables, other._tables)

    def __repr__(self) -> str:
        return f"<Fleet: {tables.of_ranks(self.seen, self.expected)}>"

    def __str__(self) -> str:
        return str(self.diagnose())

    def diagnose(self) -> JobDiagnosis:
        """What the job loses time to, most GPU-seconds first."""
        swapped = find_swapped_orders(self._tables["collective"])
        return diagnose(self._tables, self.expected, self.notes, self._waits, self.stragglers(), self.clock, swapped)


def _fill_sizes(collective: Columns) -> None:
    """Counts the ranks of communicators whose size is not known on all ranks."""
    known, size = collective["communicator"], collective["size"]
    unknown = np.unique(known[size < 0])
    if len(unknown):
        code = np.minimum(np.searchsorted(unknown, known), len(unknown) - 1)
        rows = np.flatnonzero(unknown[code] == known)
        code, ranks = code[rows], int(collective["rank"].max()) + 1
        pairs = np.sort(code * ranks + collective["rank"][rows])
        sizes = np.bincount(pairs[np.append(True, pairs[1:] > pairs[:-1])] // ranks)
        np.maximum.at(sizes, code, size[rows])
        collective["size"] = size.copy()
        collective["size"][rows] = sizes[code]


def queries() -> dict[str, str]:
    """Queries on the tables of a job, by name: they run on DuckDB, and translated by sqlglot on other engines."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(_QUERIES.glob("*.sql"))}


def schema() -> list[ViewInfo]:
    """The views of a job for queries."""
    found = []
    for table, columns in tables.SCHEMA.items():
        described = tuple(ViewColumn(name, _SQL_TYPES[kind], doc) for name, (kind, doc) in columns.items())
        found.append(ViewInfo(f"{table}s", tables.MEANINGS[table], described))
    return found + event_views()


def merge(
    inputs: Paths,
    to: str | os.PathLike[str] | None = None,
    shard: Shard = (1, 1),
    *,
    events: bool = False,
    engine: Any = None,
) -> Fleet:
    """Reduces the recordings of a job's ranks to small tables.

    Args:
        inputs: recordings of gpuscope, traces of torch.profiler or exports of Nsight Systems; folders of them, or
            patterns.
        to: a folder for the tables as Parquet; default none.
        shard: which part of the ranks to reduce, as (1, 4); needs `to`. The Fleet has all ranks in the folder.
        events: write the single kernels, copies, calls and regions into `to` too, for queries.
        engine: a SparkSession, or a session or connection of chDB, that runs the queries of `Fleet.sql` on the files
            in `to`; default DuckDB. The workers of Spark must see the folder under the same path.

    Raises:
        InvalidArgument: nothing can be read, two recordings have the same rank, they are of two jobs, `engine` is no
            engine, or `to` is missing.
        NotAvailable: `to` needs pyarrow.
    """
    if to is None:
        if shard != (1, 1):
            raise InvalidArgument("shard needs `to`, the folder in which all parts come together")
        for given, name in ((engine is not None, "engine"), (events, "events")):
            if given:
                raise InvalidArgument(f"{name} needs `to`, the folder of the tables")
        return Fleet(*merge_files(find_recordings(inputs)))
    if engine is not None:
        dialect_of(engine)
    merge_into(inputs, to, shard, events=events)
    return Fleet.open(to, engine)
