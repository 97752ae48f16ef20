# SPDX-License-Identifier: Apache-2.0
"""Questions to recordings in SQL."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from fakes import other_traces
from fakes.operators import training_step
from fakes.recordings import training
from fakes.versions import version
from gpuscope import _core
from gpuscope.cli import main
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.recording import Recording
from gpuscope.text import columns_of

duckdb = pytest.importorskip("duckdb")
from gpuscope.exporters.sql import Database, empty_database  # noqa: E402 - which is skipped without

KERNELS = {"void gemm<float>(int)": 2e6, "relu": 1e6}
STEPS = 8


@pytest.fixture(scope="module")
def recording() -> Recording:
    return version(KERNELS, steps=STEPS)


@pytest.fixture
def saved(recording: Recording, tmp_path: Path) -> str:
    recording.save(tmp_path / "run.gscope")
    return str(tmp_path / "run.gscope")


def test_kernels_are_what_the_trace_has(recording: Recording) -> None:
    found = recording.sql(
        "select name, count(*) as count, sum(duration_ns) as ns from kernels group by name order by name"
    )
    assert found.columns == ("name", "count", "ns")
    kernels = recording.trace.kernels
    expected = [
        (name, STEPS, int(kernels.duration_ns[kernels.variant == row].sum()))
        for row, name in enumerate(recording.trace.kernel_names())
    ]
    assert found.rows == sorted(expected)


def test_every_view_can_be_read(recording: Recording) -> None:
    for each in (recording, Recording(training().store), Recording(training_step().store)):
        database = Database(each.trace)
        for view in database.views():
            rows = database.run(f'select count(*) from "{view.name}"').rows[0][0]
            table = getattr(each.trace, view.name, None)
            if table is not None and view.name != "info":
                assert rows == len(table)
            database.run(f'select * from "{view.name}" limit 3')


def test_operators_are_the_regions_of_frameworks() -> None:
    read = Recording(training_step().store)
    names = {row[0] for row in read.sql("select distinct name from operators")}
    assert names == {row.key for row in read.key_averages() if row.kind == "op"}


def test_launches_have_their_kernels(recording: Recording) -> None:
    rows = recording.sql("select name, kernel, until_kernel_ns, kernel_start_ns - start_ns, path from launches").rows
    assert len(rows) == len(recording.trace.kernels)
    assert all(until == difference for _, _, until, difference, _ in rows)
    assert {kernel for _, kernel, *_ in rows} == set(recording.trace.kernel_names())


def test_steps_are_those_of_the_breakdown(recording: Recording) -> None:
    assert recording.sql("select count(*), min(step) from steps").rows == [(len(recording.step_breakdown().steps), 0)]


def test_idle_time_and_work_fill_the_time_between_first_and_last(recording: Recording) -> None:
    (row,) = recording.sql(
        "select (select sum(duration_ns) from idle), (select sum(duration_ns) from gpu_work), "
        "(select max(start_ns + duration_ns) - min(start_ns) from gpu_work)"
    )
    idle, busy, window = row
    assert idle + busy == window
    assert idle > 0


def test_gaps_begin_where_all_work_has_ended(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "name": "k"}
    spans = ((0, 100, 7), (10, 20, 8), (150, 10, 8), (155, 2, 7))
    events = [
        event | {"ts": ts, "dur": dur, "args": {"device": 0, "context": 1, "stream": stream}}
        for ts, dur, stream in spans
    ]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    rows = gs.load(tmp_path / "trace.json").sql("select start_ns, duration_ns, ended_by from idle").rows
    assert rows == [(100_000, 50_000, "k")]


def test_numbers_are_read_where_they_lie(recording: Recording) -> None:
    import pyarrow

    table = pyarrow.table(recording.trace.kernels)
    address = table.column("start_ns").chunk(0).buffers()[1].address
    assert address == recording.trace.kernels.start_ns.ctypes.data


def test_the_schema_is_the_cores(recording: Recording) -> None:
    views = {view.name: view for view in empty_database().views()}
    for table in _core.schema():
        view = views[table.attribute]
        assert view.doc == table.doc
        docs = {column.name: column.doc for column in view.columns}
        for column in table.columns:
            if column.target is None and column.name in docs:
                assert docs[column.name].startswith(column.doc)
    undocumented = {f"{view.name}.{each.name}" for view in views.values() for each in view.columns if not each.doc}
    assert not undocumented
    assert {"kernels", "regions", "operators", "steps", "launches", "memcpys", "idle"} <= set(views)
    assert {view.name for view in Database(recording.trace).views()} == set(views)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("selec 1", "query cannot be run: .*syntax error at or near"),
        ("select * from kernel", "query cannot be run: .*kernel"),
        ("select nothing from kernels", "query cannot be run: .*nothing"),
        ("select error('x')", "query cannot be run: .*x"),
        ("", "query is ''; accepted is a statement of SQL"),
        (3, "query is 3; accepted is a statement of SQL"),
    ],
)
def test_what_is_no_query_gets_one_sentence(recording: Recording, query: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence) as raised:
        recording.sql(query)
    assert "\n" not in str(raised.value)


def test_results_can_be_printed_and_converted(recording: Recording) -> None:
    found = recording.sql("select name, 1.5 as half, null as none from kernels limit 2")
    lines = str(found).splitlines()
    assert lines[0].split() == ["name", "half", "none"]
    assert lines[-1] == "2 rows"
    assert list(found.to_pandas().columns) == ["name", "half", "none"]
    assert found.to_dict()["rows"][0][2] is None
    json.loads(found.to_json())
    assert len(recording.sql("select 1 where false")) == 0


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_table_fits_the_terminal_and_keeps_its_numbers(recording: Recording, width: int) -> None:
    query = "select repeat('name', 30) as name, repeat('\u540d', 20) as wide, 123456 as n"
    lines = recording.sql(query).table(width).splitlines()
    assert max(map(columns_of, lines)) <= width
    assert all("123456" in line for line in lines[2:-1])
    assert columns_of(recording.sql(query).table().splitlines()[2]) == 120 + 2 + 40 + 2 + 6


def test_columns_that_do_not_fit_are_counted(recording: Recording) -> None:
    query = "select 10000000000 as a, 20000000000 as b, 30000000000 as c, 40000000000 as d"
    lines = recording.sql(query).table(30).splitlines()
    assert lines[0].split() == ["a", "b"]
    assert max(map(len, lines)) <= 30
    assert lines[-2:] == ["1 row, 2 more columns: select", "  fewer, or take --csv"]
    assert "more column" not in recording.sql(query).table(80)


def test_the_command_prints_csv_json_and_parquet(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select name, count(*) as count from kernels group by name order by name"
    expected = [["relu", STEPS], ["void gemm<float>(int)", STEPS]]
    assert main(["sql", saved, query]) == 0
    assert "2 rows" in capsys.readouterr().out
    assert main(["sql", saved, query, "--csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows == [["name", "count"], *[[name, str(count)] for name, count in expected]]
    assert main(["sql", saved, query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": name, "count": count} for name, count in expected]
    assert main(["sql", saved, query + ";", "--parquet", str(tmp_path / "x.parquet")]) == 0
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pydict()["count"] == [STEPS, STEPS]
    assert main(["sql", saved, "select 1 as a where false", "--json"]) == 0
    capsys.readouterr()


def test_the_command_takes_traces_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(other_traces.jax()))
    assert main(["sql", str(tmp_path / "trace.json"), "select count(*) as n from memcpys", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": other_traces.STEPS}]


def test_the_command_lists_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "--schema"]) == 0
    text = capsys.readouterr().out
    assert "kernels: Kernels that ran." in text
    assert "how long it ran" in text
    assert main(["sql", "--schema", "--json"]) == 0
    views = {view["name"]: view for view in json.loads(capsys.readouterr().out)}
    assert views["idle"]["columns"][0]["name"] == "device"


def test_wrong_arguments_get_one_sentence(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["sql"], "a recording and a query are needed"),
        (["sql", saved], "a recording and a query are needed"),
        (["sql", saved, "selec"], "QUERY cannot be run"),
        (["sql", str(tmp_path / "none.gscope"), "select 1"], "there is no such file"),
        (["sql", saved, "select 1", "--parquet", str(tmp_path / "x.txt")], ".parquet"),
        (["sql", saved, "select 1", "--csv", "--json"], "not allowed with"),
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1


def test_without_duckdb_it_says_what_to_install(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(NotAvailable, match=r"DuckDB is not installed; `pip install 'gpuscope\[sql\]'` has it"):
        recording.sql("select 1")


def test_a_query_may_come_from_standard_input(saved: str) -> None:
    command = [sys.executable, "-m", "gpuscope", "sql", saved, "-", "--csv"]
    ran = subprocess.run(command, input="select count(*) as n from kernels", capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"n\n{2 * STEPS}\n"), ran.stderr


def test_sums_are_those_of_numpy() -> None:
    random = np.random.default_rng(1)
    read = version({f"k{n}": float(random.integers(1, 100)) * 1e4 for n in range(20)}, steps=30)
    (row,) = read.sql("select sum(duration_ns), min(start_ns), count(distinct name) from kernels").rows
    kernels = read.trace.kernels
    assert row == (int(kernels.duration_ns.sum()), int(kernels.start_ns.min()), 20)


def test_ctrl_c_ends_a_query_and_the_database_answers_the_next() -> None:
    database = empty_database()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        database.run("select count(*) from range(10000000) a, range(100000) b where a.range * b.range = 7")
    timer.join()
    assert database.run("select 1").rows == [(1,)]
