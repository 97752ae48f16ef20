# SPDX-License-Identifier: Apache-2.0
"""Single events of a job's ranks, for queries."""

from __future__ import annotations

import pytest

import gpuscope as gs
from fakes.rank_recordings import GEMM, MS, RankRecording, write_job
from gpuscope.cli import main
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.fleet.job import schema
from gpuscope.recording import Recording

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
pytest.importorskip("duckdb")


@pytest.fixture
def job(tmp_path):
    assert main(["merge", str(write_job(tmp_path / "ranks", 4)), "-o", str(tmp_path / "job"), "--events"]) == 0
    return tmp_path / "job"


def rows(job, query):
    return gs.Fleet.open(job).sql(query).rows


def test_each_kernel_has_its_rank_and_step_and_the_hash_of_its_name(job):
    query = (
        "select k.rank, k.name, max(s.count), count(*), count(distinct k.step), sum(k.duration_ns) - max(s.total_ns) "
        "from kernels k join kernel_stats s on s.rank = k.rank and s.kernel = k.kernel and s.name = k.name group by all"
    )
    found = rows(job, query)
    assert len(found) == 8
    assert {each[2:] for each in found} == {(12, 12, 12, 0)}


def test_regions_and_calls_have_the_step_in_which_they_begin(job):
    assert rows(job, "select count(*) from regions where name = 'ProfilerStep#' || step") == [(48,)]
    assert rows(job, "select min(step), max(step), count(*) from api where name = 'cuLaunchKernel'") == [(0, 11, 96)]


def test_files_have_the_columns_of_the_schema(job):
    views = {view.name: [column.name for column in view.columns] for view in schema()}
    folders = sorted(path.name for path in (job / "events").iterdir())
    assert folders == ["api", "graph_launches", "kernels", "memcpys", "memsets", "regions"]
    for name in folders:
        assert parquet.read_schema(job / "events" / name / "rank-00003.parquet").names == views[name]


def test_each_gpu_of_one_recording_is_a_rank(tmp_path):
    made = RankRecording(2 * MS)
    made.region("train", 0, 2 * MS)
    for device in (0, 1, 1):
        made.kernel(GEMM, 10 + device, MS, device=device)
    path = tmp_path / "two.gscope"
    Recording(made.trace().store).save(path)
    gs.merge(path, tmp_path / "job", events=True)
    assert rows(tmp_path / "job", "select rank, count(*) from kernels group by rank order by rank") == [(0, 1), (1, 2)]
    assert rows(tmp_path / "job", "select distinct rank from regions union select rank from api") == [(-1,)]


def test_a_repeated_merge_writes_the_same_events(job, tmp_path):
    before = {path: path.read_bytes() for path in (job / "events").rglob("*.parquet")}
    gs.merge(tmp_path / "ranks", job, events=True)
    assert {path: path.read_bytes() for path in (job / "events").rglob("*") if path.is_file()} == before


def test_without_the_option_a_job_has_no_events(tmp_path):
    gs.merge(write_job(tmp_path / "ranks", 2), tmp_path / "job")
    assert not (tmp_path / "job" / "events").exists()
    with pytest.raises(InvalidArgument, match="kernels"):
        rows(tmp_path / "job", "from kernels")


# -- errors ------------------------------------------------------------------------------------------------------------
def test_events_are_not_anonymous(tmp_path, capfd):
    arguments = ["merge", str(write_job(tmp_path / "ranks", 2)), "-o", str(tmp_path / "job")]
    assert main([*arguments, "--events", "--anonymous"]) == 2
    assert "accepted are events or anonymous" in " ".join(capfd.readouterr().err.split())


def test_events_need_a_folder(tmp_path):
    with pytest.raises(InvalidArgument, match="events needs `to`"):
        gs.merge(write_job(tmp_path / "ranks", 2), events=True)


def test_events_that_cannot_be_written_are_an_error_and_no_damaged_recording(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "events").write_text("")
    with pytest.raises(GpuscopeError, match=r"cannot write the tables to .*job"):
        gs.merge(write_job(tmp_path / "ranks", 2), tmp_path / "job", events=True)
