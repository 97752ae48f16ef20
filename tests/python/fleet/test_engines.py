# SPDX-License-Identifier: Apache-2.0
"""Queries of a job by other engines: stand-ins run the translated text in DuckDB."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpuscope as gs
from fakes.rank_recordings import write_job
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.fleet.job import queries

duckdb = pytest.importorskip("duckdb")
sqlglot = pytest.importorskip("sqlglot")
pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402


class Spark:
    """A session of Spark, by its names."""

    read = None

    def __init__(self):
        self.asked = []

    def sql(self, text):
        self.asked.append(text)
        statement = sqlglot.parse_one(text, "spark")
        for table in list(statement.find_all(sqlglot.exp.Table)):
            if table.db == "parquet":
                folder = Path(table.name.removeprefix("file:").replace("\\", ""))
                rows = "files" + str(len(self.asked)) + folder.name
                duckdb.register(rows, parquet.read_table(folder))
                table.replace(sqlglot.exp.to_table(rows, alias=table.alias or None))
        found = duckdb.execute(statement.sql("duckdb"))
        return SimpleNamespace(columns=[each[0] for each in found.description], collect=found.fetchall)


class ClickHouse:
    """A connection of chDB, by its names."""

    send_query = None

    def __init__(self, answer=None, error=None):
        self.asked, self.answer, self.error = [], answer, error

    def query(self, text, form):
        self.asked.append((text, form))
        if self.error:
            raise self.error
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_file(sink, self.answer.schema) as file:
            file.write_table(self.answer)
        return SimpleNamespace(bytes=lambda: sink.getvalue().to_pybytes())


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("recordings") / "ranks", slow=3)


@pytest.fixture(scope="module")
def job(ranks):
    gs.merge(ranks, ranks.parent / "a [job]", events=True)
    return ranks.parent / "a [job]"


@pytest.mark.parametrize("name", sorted(queries()))
def test_another_engine_gives_the_answer_of_duckdb(job, name):
    expected, found = gs.Fleet.open(job).sql(name), gs.Fleet.open(job, Spark()).sql(name)
    assert found.columns == expected.columns
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other)


def test_a_merged_job_is_asked_by_its_engine(ranks, tmp_path):
    engine = Spark()
    assert gs.merge(ranks, tmp_path / "job", engine=engine).sql("select count(*) as n from ranks").rows == [(8,)]
    assert len(engine.asked) == 1


def test_clickhouse_reads_the_files_and_answers_in_arrow(job):
    engine = ClickHouse(pyarrow.table({"rank": [1, 2], "host": ["a", None]}))
    found = gs.Fleet.open(job, engine).sql("select rank, host from ranks")
    assert (found.columns, found.rows) == (("rank", "host"), [(1, "a"), (2, None)])
    assert engine.asked[0] == (
        f"SELECT rank, host FROM (SELECT * FROM file('{job}/rank/*.parquet', 'Parquet')) AS ranks",
        "Arrow",
    )


def test_events_are_tables_too(job):
    query = "select sum(duration_ns) as ns from kernels where step = 3 and rank = 3"
    assert gs.Fleet.open(job, Spark()).sql(query).rows == gs.Fleet.open(job).sql(query).rows == [(699_990,)]


def test_names_that_a_query_gives_are_not_files(job):
    query = "with steps as (select 5 as step), x as (select * from steps) select sum(step) as step from x"
    assert gs.Fleet.open(job, Spark()).sql(query).rows == [(5,)]


def test_sizes_that_no_rank_knows_are_counted(job, tmp_path):
    gs.merge(job.parent / "ranks", tmp_path / "job")
    path = tmp_path / "job" / "collective" / "ranks-00000.parquet"
    calls = parquet.read_table(path)
    sizes = pyarrow.array(np.full(len(calls), -1, np.int32))
    parquet.write_table(calls.set_column(calls.schema.get_field_index("size"), "size", sizes), path)
    query = "select distinct size from collectives"
    assert gs.Fleet.open(tmp_path / "job", Spark()).sql(query).rows == [(8,)]


# -- errors ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", [7, duckdb.connect()], ids=["number", "duckdb"])
def test_what_is_no_engine_is_refused_before_the_merge(ranks, tmp_path, engine):
    with pytest.raises(InvalidArgument, match=r"engine is .*; accepted are a SparkSession and a session or connection"):
        gs.merge(ranks, tmp_path / "job", engine=engine)
    assert not (tmp_path / "job").exists()


def test_an_engine_needs_files(ranks):
    with pytest.raises(InvalidArgument, match="engine needs `to`, the folder of the tables"):
        gs.merge(ranks, engine=Spark())


def test_without_sqlglot_a_query_says_what_to_install(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(NotAvailable, match=r"sqlglot is not installed; pip install 'gpuscope\[fleet\]'"):
        gs.Fleet.open(job, Spark()).sql("goodput")


@pytest.mark.parametrize("query", ["drop table ranks", "select 1; drop table ranks", "", "selec 1"])
def test_only_queries_reach_the_engine(job, query):
    engine = Spark()
    with pytest.raises(InvalidArgument, match="query"):
        gs.Fleet.open(job, engine).sql(query)
    assert not engine.asked


def test_what_the_engine_refuses_is_one_sentence(job):
    engine = ClickHouse(error=RuntimeError("no such column\nstack trace"))
    with pytest.raises(InvalidArgument, match=r"^query cannot be run: no such column$"):
        gs.Fleet.open(job, engine).sql("select x from ranks")
