# SPDX-License-Identifier: Apache-2.0
"""Questions to recordings in SQL."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuscope as gs
from fakes import other_traces
from fakes.operators import training_step
from fakes.recordings import training
from fakes.stores import training_store
from fakes.versions import version
from gpuscope import _core
from gpuscope.cli import main
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.recording import Recording
from gpuscope.text import columns_of

duckdb = pytest.importorskip("duckdb")
from gpuscope.exporters import sql  # noqa: E402
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


def test_steps_are_those_of_the_breakdown_and_the_excluded_ones(recording: Recording) -> None:
    found = recording.step_breakdown()
    assert recording.sql("select count(*), min(step) from steps").rows == [(len(found.steps) + found.left_out, 0)]


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


def graphs_as_a_whole(tables: dict[str, dict[str, list[Any]]]) -> None:
    start = tables["region"]["start_ns"][0]
    tables["memcpy"] = {}
    tables["graph_launch"] = {"start_ns": [start + 20_000], "duration_ns": [30_000], "graph": [4], "track": [0]}


def test_graphs_that_were_traced_as_a_whole_are_work() -> None:
    recording = Recording(training_store(graphs_as_a_whole))
    assert recording.sql("select name, duration_ns from gpu_work where kind = 'graph'").rows == [
        ("CUDA graph 4", 30_000)
    ]


def test_gaps_end_where_a_graph_begins() -> None:
    recording = Recording(training_store(graphs_as_a_whole))
    assert recording.sql("select duration_ns from idle where ended_by = 'CUDA graph 4'").rows == [(10_500,)]


def without_times(tables: dict[str, dict[str, list[Any]]]) -> None:
    kernels = tables["kernel"]
    kernels["flags"] = [int(_core.Flag.ZERO_TIME), 0]
    kernels["start_ns"][0] = kernels["duration_ns"][0] = 0


def test_kernels_without_timestamps_are_in_no_gap() -> None:
    recording = Recording(training_store(without_times))
    assert recording.sql("select duration_ns, ended_by from idle").rows == [(2000, "triton_add")]


def test_kernels_without_timestamps_have_no_times_in_launches() -> None:
    recording = Recording(training_store(without_times))
    query = "select kernel_start_ns, kernel_duration_ns, until_kernel_ns from launches order by start_ns"
    assert recording.sql(query).rows[0] == (None, None, None)


def test_launches_and_kernels_without_a_correlation_are_not_paired() -> None:
    def unknown(tables: dict[str, dict[str, list[Any]]]) -> None:
        tables["api"]["correlation"] = [0, 0, 0]
        tables["kernel"]["correlation"] = [0, 0]

    assert Recording(training_store(unknown)).sql("select kernel from launches").rows == [(None,), (None,)]


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
        (";", "query is ';'; accepted is a statement of SQL"),
        ("-- c", "query is '-- c'; accepted is a statement of SQL"),
        (3, "query is 3; accepted is a statement of SQL"),
        ("select '\udcff'", "accepted is a statement of SQL in UTF-8"),
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


LARGE = 1_788_000_000_000_000_123  # which a float has not


@pytest.mark.parametrize("large", [LARGE, 2**64 - 1, 2**100 + 1])
def test_large_numbers_among_missing_ones_stay_whole_in_pandas(recording: Recording, large: int) -> None:
    found = recording.sql(f"select {large} as a union all select null").to_pandas()
    assert int(found["a"][0]) == large  # NumPy compares floats with what they round it to


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (f"select {LARGE} as a union all select null", {"a": [LARGE, None]}),
        ("select 1 as a, 2 as a", {"a": [1], "a_1": [2]}),
        (f"select {2**100} as a", {"a": [str(2**100)]}),
    ],
    ids=["a missing number", "two columns of a name", "a number of more than 64 bits"],
)
def test_results_are_whole_in_parquet(
    recording: Recording, tmp_path: Path, query: str, expected: dict[str, list[Any]]
) -> None:
    import pyarrow.parquet

    recording.sql(query).to_parquet(tmp_path / "x.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pydict() == expected


def test_decimals_are_numbers_in_json(recording: Recording) -> None:
    assert recording.sql("select 0.5 as half, 7 * 0.001 as us").to_dict()["rows"] == [[0.5, 0.007]]


BEYOND_PYTHON = ("select to_days(2000000000)", "select [to_days(2000000000)]", "select {'a': to_days(2000000000)}")


@pytest.mark.parametrize("query", BEYOND_PYTHON)
@pytest.mark.parametrize("form", [(), ("--csv",), ("--json",)])
def test_values_that_python_cannot_hold_get_one_sentence(
    saved: str, capsys: pytest.CaptureFixture[str], query: str, form: tuple[str, ...]
) -> None:
    assert main(["sql", saved, query, *form]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gpuscope: QUERY finds what Python cannot hold (OverflowError: days=2000000000")
    assert error.count("\n") == 1


def test_values_that_python_cannot_hold_are_written_as_parquet(saved: str, tmp_path: Path) -> None:
    assert main(["sql", saved, BEYOND_PYTHON[0], "--parquet", str(tmp_path / "x.parquet")]) == 0


def test_every_type_of_duckdb_is_shown_and_converted_or_gets_one_sentence(recording: Recording, tmp_path: Path) -> None:
    database = Database(recording.trace)
    for view, *_ in database.run("select column_name from (describe from test_all_types())").rows:
        query = f'select "{view}" as v from test_all_types()'
        with contextlib.suppress(GpuscopeError):  # as of pytz, which may be missing
            found = database.run(query)
            assert len(str(found).splitlines()) == 2 + len(found) + 1
            assert len(found.to_pandas()) == len(json.loads(found.to_json())["rows"])
            found.to_parquet(tmp_path / "x.parquet")
        with contextlib.suppress(GpuscopeError):
            database.write_csv(query, io.StringIO())
            database.write_json(query, io.StringIO())


def test_a_query_that_needs_too_much_memory_gets_one_sentence(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sql._CONFINED, "memory_limit", "50MB")
    with pytest.raises(GpuscopeError, match="the query needs more memory than there is: OutOfMemory") as raised:
        recording.sql("select list(range) from range(50000000)")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "query",
    [
        "from '{}'",
        "from read_csv('{}')",
        "from read_text('{}')",
        "from glob('{}')",
        "from sniff_csv('{}')",
        "attach '{}'",
        "copy (select 1) to '{}'",
        "create table t (a int); copy t from '{}'",
        "export database '{}'",
        "import database '{}'",
        "install httpfs",
        "load '{}'",
        "create persistent secret (type http)",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "set temp_directory = '{}'",
        "set python_enable_replacements = true",
        "pragma profiling_output = '{}'",
        "select * from numbers",
    ],
)
def test_queries_read_the_recording_only(recording: Recording, tmp_path: Path, query: str) -> None:
    numbers = {"a": np.arange(3)}  # a variable that DuckDB would find
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(InvalidArgument, match=r"query cannot be run: .*(disabled|locked|does not exist)"):
        recording.sql(query.format(tmp_path / "x.csv"))
    assert (os.listdir(tmp_path), len(numbers["a"])) == (["x.csv"], 3)
    assert (tmp_path / "x.csv").read_text() == "a\n1\n"


def test_queries_spill_nothing_into_the_current_folder(recording: Recording) -> None:
    assert recording.sql("select current_setting('temp_directory')").rows == [("",)]


def test_a_query_that_is_written_as_parquet_reaches_that_file_only(saved: str, tmp_path: Path) -> None:
    target, other = tmp_path / "x.parquet", tmp_path / "other.csv"
    target.write_text("before")
    for query in (f"select 1) to '{other}'; copy (select 1", f"from '{saved}'", "selec"):
        assert main(["sql", saved, query, "--parquet", str(target)]) == 2
    assert sorted(os.listdir(tmp_path)) == ["run.gscope", "x.parquet"]
    assert target.read_text() == "before"


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_table_fits_the_terminal_and_keeps_its_numbers(recording: Recording, width: int) -> None:
    query = "select repeat('name', 30) as name, repeat('\u540d', 20) as wide, 123456 as n"
    lines = recording.sql(query).table(width).splitlines()
    assert max(map(columns_of, lines)) <= width
    assert all("123456" in line for line in lines[2:-1])
    assert columns_of(recording.sql(query).table().splitlines()[2]) == 120 + 2 + 40 + 2 + 6


@pytest.mark.parametrize(
    "query", ["select repeat(chr(27), 20) as a, 7 as n", f"select '' as \"{chr(27) * 20}\", 7 as n"]
)
def test_control_characters_are_shown_in_a_table_that_fits(recording: Recording, query: str) -> None:
    lines = recording.sql(query).table(40).splitlines()
    assert "\\x1b" in "".join(lines)
    assert all(line.isprintable() and columns_of(line) <= 40 for line in lines)
    assert "7" in lines[2].split()


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


def test_columns_of_the_same_name_are_all_in_json(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", saved, "select 1 as a, 2 as a, 3 as a_1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "a_1": 2, "a_1_1": 3}]


def test_a_parquet_file_that_is_replaced_keeps_its_permissions(saved: str, tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    target.touch(0o600)
    assert main(["sql", saved, "select 1 as a", "--parquet", str(target)]) == 0
    assert target.stat().st_mode & 0o777 == 0o600
    assert target.stat().st_size


@pytest.mark.parametrize("end", [" --x", "; -- x", ";;", "; /* x; */ ; --"])
def test_comments_and_semicolons_may_end_what_is_written_as_parquet(saved: str, tmp_path: Path, end: str) -> None:
    assert main(["sql", saved, f"select ';é' as a{end}", "--parquet", str(tmp_path / "x.parquet")]) == 0


def test_a_pipe_gets_the_parquet_file(saved: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuscope", "sql", saved, "select 1 as a", "--parquet", "-"]
    ran = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout[:4], ran.stdout[-4:]) == (0, b"PAR1", b"PAR1"), ran.stderr
    assert os.listdir(tmp_path) == ["run.gscope"]


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = command.replace("$GPUSCOPE", f"{shlex.quote(sys.executable)} -m gpuscope")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ | variables)


def test_a_parquet_file_for_which_there_is_no_room_cannot_be_written(saved: str, tmp_path: Path) -> None:
    query = "select random() from range(100000)"
    ran = shell(
        f"ulimit -f 2; $GPUSCOPE sql {shlex.quote(saved)} '{query}' --parquet {shlex.quote(f'{tmp_path}/x.parquet')}"
    )
    assert (ran.returncode, ran.stderr) == (1, f"gpuscope: cannot write {tmp_path}/x.parquet: File too large\n")
    assert os.listdir(tmp_path) == ["run.gscope"]


@pytest.mark.parametrize("form", ["", "--csv", "--json"])
def test_closed_standard_output_is_no_error(saved: str, form: str) -> None:
    ran = shell(f"$GPUSCOPE sql {shlex.quote(saved)} 'select 1' {form} >&-")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_characters_that_standard_output_has_not_are_escaped(saved: str) -> None:
    ran = shell(f"$GPUSCOPE sql {shlex.quote(saved)} 'select chr(21517) as name' --csv", PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "name\n\\u540d\n", "")


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
        (["sql"], "QUERY is missing"),
        (["sql", saved], "QUERY is missing"),
        (["sql", saved, "selec"], "QUERY cannot be run"),
        (["sql", str(tmp_path / "none.gscope"), "select 1"], "there is no such file"),
        (["sql", saved, "select 1", "--parquet", str(tmp_path / "x.txt")], ".parquet"),
        (["sql", saved, "select 1", "--csv", "--json"], "not allowed with"),
        (["sql", saved, "select '\udcff'", "--parquet", str(tmp_path / "x.parquet")], "a statement of SQL in UTF-8"),
        (["sql", saved, "select 1", "--parquet", "a\0b.parquet"], "path must be the name of a file in UTF-8"),
        (["sql", saved, "select 1", "--parquet", "\udcff.parquet"], "path must be the name of a file in UTF-8"),
        (["sql", "", "select 1"], "path must be the name of a file in UTF-8"),
    ):
        assert main(arguments) == 2, arguments
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1


def test_without_duckdb_it_says_what_to_install(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(NotAvailable, match=r"DuckDB is not installed; pip install duckdb"):
        recording.sql("select 1")


def test_a_query_may_come_from_standard_input(saved: str) -> None:
    command = [sys.executable, "-m", "gpuscope", "sql", saved, "-", "--csv"]
    ran = subprocess.run(command, input="select count(*) as n from kernels", capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"n\n{2 * STEPS}\n"), ran.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("$GPUSCOPE sql {} - <&-", "standard input is closed"),
        ("printf '\\xff' | $GPUSCOPE sql {} -", "what standard input has is no text in utf-8"),
    ],
)
def test_standard_input_without_a_query_gets_one_sentence(saved: str, command: str, sentence: str) -> None:
    ran = shell(command.format(shlex.quote(saved)), PYTHONIOENCODING="utf-8:strict")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert sentence in ran.stderr


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
