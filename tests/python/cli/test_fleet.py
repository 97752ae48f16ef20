# SPDX-License-Identifier: Apache-2.0
"""``gpuscope merge``, ``gpuscope fleet``, and ``gpuscope sql`` on a job."""

from __future__ import annotations

import json
import shutil

import pytest

import gpuscope as gs
from fakes.jobs import FORWARD, pipeline_job
from fakes.rank_recordings import write_job, write_rank
from gpuscope import cli
from gpuscope.fleet.job import Fleet, merge

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

MOST_LINES = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the recordings of a job with a slow rank, and its tables."""
    folder = tmp_path_factory.mktemp("made")
    merge(write_job(folder / "ranks", slow=3, steps=120), folder / "job")
    return folder


@pytest.fixture
def job(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "job"


@pytest.fixture
def without_libraries(tmp_path):
    """Variables for a process that has neither pyarrow nor DuckDB."""
    for name in ("pyarrow", "duckdb"):
        (tmp_path / "hidden" / name).mkdir(parents=True)
        (tmp_path / "hidden" / name / "__init__.py").write_text("raise ImportError")
    return {"PYTHONPATH": str(tmp_path / "hidden")}


# -- merge -------------------------------------------------------------------------------------------------------------
def test_merge_ends_with_one_line(gpuscope, tmp_path):
    write_job(tmp_path / "ranks")
    done = gpuscope("merge", "ranks/*.gscope", "-o", "job/")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "merged 8 ranks into job; next: gpuscope fleet job\n"


def test_merge_says_what_is_left_out(gpuscope, tmp_path):
    write_job(tmp_path / "ranks")
    (tmp_path / "ranks" / "rank-00003.gscope").write_text("no recording")
    (line,) = gpuscope("merge", "ranks", "-o", "job").stdout.splitlines()
    assert line.startswith("merged 7 of 8 ranks into job; ranks/rank-00003.gscope is left out: ")
    assert line.endswith("; next: gpuscope fleet job")


def test_merge_of_a_part_says_that_others_follow(gpuscope, tmp_path):
    write_job(tmp_path / "ranks")
    done = gpuscope("merge", "ranks", "-o", "job", "--shard", "1/2")
    assert done.stdout == "part 1 of 2: merged 8 ranks into job; next, after all parts: gpuscope fleet job\n"


@pytest.mark.parametrize("shard", ["0/3", "4/3", "text", "1", "1/", "-1/3", "1/2/3", ""])
def test_merge_refuses_what_is_no_part(gpuscope, tmp_path, shard):
    write_rank(tmp_path / "ranks", 0, 1)
    done = gpuscope("merge", "ranks", "-o", "job", f"--shard={shard}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"'{shard}' is no part; accepted are 1/N to N/N" in done.stderr


def test_merge_without_recordings_is_refused(gpuscope, tmp_path):
    (tmp_path / "ranks").mkdir()
    done = gpuscope("merge", "ranks", "-o", "job")
    assert (done.returncode, done.stderr) == (2, "gpuscope: no recording is in 'ranks'\n")


def test_merge_without_pyarrow_says_what_to_install(gpuscope, tmp_path, without_libraries):
    write_rank(tmp_path / "ranks", 0, 1)
    done = gpuscope("merge", "ranks", "-o", "job", **without_libraries)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pyarrow is not installed; pip install 'gpuscope[fleet]'" in done.stderr


# -- fleet -------------------------------------------------------------------------------------------------------------
def test_the_verdict_is_first_and_fits_a_screen(gpuscope, job):
    done = gpuscope("fleet", "job")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[1].startswith("verdict: ")
    assert len(lines) <= MOST_LINES
    assert "rank 3 (node-a) computes 50.0 % longer than its equals" in done.stdout


@pytest.mark.parametrize(
    "inputs", [["ranks"], ["ranks/*.gscope"], [f"ranks/rank-{rank:05d}.gscope" for rank in range(8)]]
)
def test_recordings_have_the_verdict_of_their_tables(gpuscope, job, inputs):
    assert gpuscope("fleet", *inputs).stdout == gpuscope("fleet", "job").stdout


def test_a_straggler_fails_only_if_asked(gpuscope, job, tmp_path):
    write_job(tmp_path / "even", steps=120)
    assert gpuscope("fleet", "job").returncode == 0
    assert gpuscope("fleet", "job", "--fail-on", "straggler").returncode == 1
    assert gpuscope("fleet", "even", "--fail-on", "straggler").returncode == 0


def test_a_job_that_cannot_be_judged_does_not_pass(gpuscope, tmp_path):
    (tmp_path / "cpu").mkdir()
    with gs.profile() as prof:
        gs.step()
    prof.save(tmp_path / "cpu" / "rank-00000.gscope")
    assert gpuscope("fleet", "cpu", "--fail-on", "straggler").returncode == 3


def test_json_on_standard_output_has_all_findings(gpuscope, job):
    done = gpuscope("fleet", "job", "--json", "-")
    found = json.loads(done.stdout)
    assert (found["seen"], found["expected"], found["hosts"]) == (8, 8, 2)
    assert [3] in [each["ranks"] for each in found["findings"] if each["kind"] == "straggler"]


def test_the_page_is_written(job, monkeypatch, capsys):
    monkeypatch.chdir(job.parent)
    written = []
    monkeypatch.setattr(Fleet, "report", lambda self, path: written.append(path), raising=False)
    assert cli.main(["fleet", str(job), "--html", "job.html"]) == 0
    assert written == [job.parent / "job.html"]
    assert capsys.readouterr().out.endswith("wrote job.html\n")


def test_an_anonymous_answer_has_no_host_and_no_path(gpuscope, job):
    (job.parent / "ranks" / "rank-00005.gscope").write_text("no recording")
    for given in ("job", "ranks"):
        done = gpuscope("fleet", given, "--anonymous", "--json", "-")
        text = done.stdout + done.stderr
        assert [name for name in ("node-", "ranks/", str(job.parent)) if name in text] == []
        assert "rank 3 (host-1)" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent"], "no recording is at 'absent'"),
        (["job", "--html", "job.txt"], ".html"),
        (["job", "--fail-on", "idle"], "invalid choice: 'idle'"),
        ([], "JOB"),
        (["job", "--json", "a.json", "--html", "absent/a.html"], "absent"),
    ],
)
def test_bad_arguments_are_one_sentence(gpuscope, job, arguments, says):
    done = gpuscope("fleet", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert says in done.stderr


def test_damaged_tables_are_one_sentence(gpuscope, job):
    (job / "step" / "ranks-00000.parquet").write_bytes(b"PAR1")
    done = gpuscope("fleet", "job")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "step/ranks-00000.parquet is damaged" in done.stderr


def test_recordings_need_no_library(gpuscope, job, without_libraries):
    assert "verdict: " in gpuscope("fleet", "ranks", **without_libraries).stdout


# -- operations of StragglerAnalysis -----------------------------------------------------------------------------------
@pytest.fixture
def operations(tmp_path):
    rows = pipeline_job(lambda kind, rank, step, number: 20.0 if kind == FORWARD and rank == 2 else 10.0)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "trace-X.parquet")
    return "trace-X.parquet"


def test_operations_have_their_what_if_analysis(gpuscope, operations):
    done = gpuscope("fleet", operations, "--json", "x.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cause: slow ranks. Rank 2 takes" in done.stdout


def test_slow_ranks_among_operations_are_stragglers(gpuscope, operations):
    assert gpuscope("fleet", operations, "--fail-on", "straggler").returncode == 1


def test_operations_have_no_page(gpuscope, operations):
    done = gpuscope("fleet", operations, "--html", "x.html")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--html needs a job's tables or recordings" in done.stderr


def test_parquet_of_another_schema_is_refused(gpuscope, job):
    done = gpuscope("fleet", "job/step/ranks-00000.parquet")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "accepted are traces of StragglerAnalysis" in done.stderr


# -- sql ---------------------------------------------------------------------------------------------------------------
@pytest.fixture
def duckdb():
    pytest.importorskip("duckdb")


@pytest.mark.usefixtures("duckdb")
def test_a_job_answers_queries(gpuscope, job):
    done = gpuscope("sql", "job", "select count(*) as n from steps", "--csv")
    assert (done.returncode, done.stdout, done.stderr) == (0, "n\n960\n", "")


@pytest.mark.usefixtures("duckdb")
def test_a_query_of_ours_is_named(gpuscope, job):
    found = json.loads(gpuscope("sql", "job", "last_arrivals", "--json").stdout)
    assert [each["last_rank"] for each in found] == [3]


@pytest.mark.usefixtures("duckdb")
def test_rows_of_a_job_are_written_as_parquet(gpuscope, job):
    assert gpuscope("sql", "job", "steps_by_rank", "--parquet", "steps.parquet").returncode == 0
    assert parquet.read_table(job.parent / "steps.parquet").num_rows == 8


@pytest.mark.usefixtures("duckdb")
def test_the_schema_of_a_job_lists_its_tables_and_queries(gpuscope, job):
    text = gpuscope("sql", "job", "--schema").stdout
    assert "exposed_ns" in text
    assert "\nlast_arrivals: " in text
    assert "kernel_start_ns" not in text


def test_a_query_without_duckdb_says_what_to_install(gpuscope, job, tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "duckdb.py").write_text("raise ImportError")
    done = gpuscope("sql", "job", "from steps", PYTHONPATH=str(tmp_path / "hidden"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install duckdb" in done.stderr
