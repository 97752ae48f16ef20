# SPDX-License-Identifier: Apache-2.0
"""Recordings of a job's ranks as tables in a folder, and the tables that a folder can have."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuscope as gs
from fakes.gscope import file_header
from fakes.rank_recordings import START, RankRecording, write_job, write_rank
from gpuscope.errors import CorruptTrace, InvalidArgument, NotAvailable
from gpuscope.fleet import merging, tables
from gpuscope.fleet.job import queries
from gpuscope.recording import Recording

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet")


def files_of(folder: Path) -> dict[str, str]:
    """The files of a folder, each with its content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def ranks(tmp_path):
    return write_job(tmp_path / "ranks")


@pytest.fixture
def job(ranks, tmp_path):
    gs.merge(ranks, tmp_path / "job")
    return tmp_path / "job"


def rewrite(job: Path, table: str, **columns) -> None:
    """Replaces columns of a table by other values."""
    path = job / table / "ranks-00000.parquet"
    found = parquet.read_table(path)
    for name, values in columns.items():
        found = found.set_column(found.column_names.index(name), name, pyarrow.array(values))
    parquet.write_table(found, path)


# -- merging -----------------------------------------------------------------------------------------------------------
def test_a_folder_opens_with_the_ranks_that_were_merged(job):
    opened = gs.Fleet.open(job)
    assert (opened.seen, opened.expected, opened.table("rank")["rank"].tolist()) == (8, 8, [*range(8)])


def test_a_merge_without_a_folder_gives_the_same_tables(ranks, job):
    in_memory, opened = gs.merge(ranks), gs.Fleet.open(job)
    for name in tables.SCHEMA:
        for column, values in opened.table(name).items():
            np.testing.assert_array_equal(in_memory.table(name)[column], values)


def test_a_repeated_merge_writes_the_same_files(ranks, job):
    before = files_of(job)
    gs.merge(ranks, job)
    assert files_of(job) == before


def test_parts_write_what_one_merge_writes(tmp_path):
    for rank in range(70):
        write_rank(tmp_path / "ranks", rank, 70, steps=1)
    gs.merge(tmp_path / "ranks", tmp_path / "whole")
    for number in (2, 1, 3):
        merging.merge_into(tmp_path / "ranks", tmp_path / "parts", (number, 3))
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_recordings_that_name_no_rank_are_numbered_in_the_order_of_their_names(tmp_path):
    for name in ("run-10.gscope", "run-9.gscope"):
        Recording(RankRecording().trace().store).save(tmp_path / name)
    rank = gs.merge(tmp_path).table("rank")
    assert [Path(source).name for source in rank["source"]] == ["run-9.gscope", "run-10.gscope"]
    assert (rank["rank"].tolist(), rank["world_size"].tolist()) == ([0, 1], [0, 0])


def test_a_part_without_ranks_writes_nothing(ranks, tmp_path):
    merged, notes = merging.merge_into(ranks, tmp_path / "job", (2, 3))
    assert (len(merged["rank"]), notes, (tmp_path / "job").exists()) == (0, [], False)


@pytest.mark.parametrize("shard", [(0, 3), (4, 3), (1, 0)])
def test_a_part_that_is_none_is_refused(ranks, tmp_path, shard):
    with pytest.raises(InvalidArgument, match=f"shard is {shard[0]}/{shard[1]}; accepted are 1/N to N/N"):
        gs.merge(ranks, tmp_path / "job", shard)


def test_a_part_needs_a_folder(ranks):
    with pytest.raises(InvalidArgument, match="shard needs `to`"):
        gs.merge(ranks, shard=(1, 2))


def test_a_file_as_folder_is_refused(ranks):
    with pytest.raises(InvalidArgument, match="is a file; accepted is a folder"):
        gs.merge(ranks, ranks / "rank-00000.gscope")


# -- recordings that cannot be read ------------------------------------------------------------------------------------
def half_written(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def of_another_version(path: Path) -> None:
    path.write_bytes(file_header(major=99))


def of_a_rank_that_no_job_has(path: Path) -> None:
    write_rank(path.parent, 1 << 40, 8, name=path.name)


@pytest.mark.parametrize("damage", [half_written, of_another_version, of_a_rank_that_no_job_has])
def test_a_recording_that_cannot_be_read_is_left_out_and_named(ranks, tmp_path, damage):
    damage(ranks / "rank-00003.gscope")
    merged = gs.merge(ranks, tmp_path / "job")
    assert (merged.seen, merged.missing) == (7, [3])
    assert len(merged.notes) == 1
    assert merged.notes[0].startswith(f"{ranks / 'rank-00003.gscope'} is left out: ")


def test_an_empty_recording_is_a_missing_rank(ranks):
    (ranks / "rank-00003.gscope").write_bytes(b"")
    assert gs.merge(ranks).missing == [3]


def test_a_part_in_which_no_recording_can_be_read_does_not_stop_the_others(tmp_path):
    for rank in (0, 64):
        write_rank(tmp_path / "ranks", rank, 65, steps=1)
    half_written(tmp_path / "ranks" / "rank-00064.gscope")
    merged = gs.merge(tmp_path / "ranks", tmp_path / "job")
    assert (merged.table("rank")["rank"].tolist(), len(merged.notes)) == ([0], 1)


def test_recordings_of_which_none_can_be_read_are_refused(ranks, tmp_path):
    for path in ranks.iterdir():
        half_written(path)
    with pytest.raises(InvalidArgument, match="none of 8 recordings can be read: "):
        gs.merge(ranks, tmp_path / "job")


def test_a_folder_without_recordings_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="no recording is in"):
        gs.merge(tmp_path, tmp_path / "job")


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="no recording is at"):
        gs.merge(tmp_path / "absent", tmp_path / "job")


# -- jobs whose recordings do not fit ----------------------------------------------------------------------------------
def test_a_rank_with_two_recordings_is_refused(ranks):
    write_rank(ranks, 3, 8, name="rank-00003-2.gscope")
    with pytest.raises(InvalidArgument, match=r"rank 3 is there twice, in .* and .*; accepted is one recording"):
        gs.merge(ranks)


def test_recordings_of_two_jobs_are_refused(ranks):
    write_rank(ranks, 8, 16)
    with pytest.raises(InvalidArgument, match=r"of two jobs: .* has 8 ranks and .* 16; accepted are those of one job"):
        gs.merge(ranks)


def test_a_folder_with_parts_of_two_jobs_is_refused(ranks, job):
    write_rank(ranks.parent / "others", 64, 65)
    with pytest.raises(InvalidArgument, match="of two jobs"):
        gs.merge(ranks.parent / "others" / "rank-00064.gscope", job)


def test_missing_ranks_are_a_finding(ranks):
    (ranks / "rank-00005.gscope").unlink()
    assert "1 of 8 ranks has no recording: 5." in [each.sentence for each in gs.merge(ranks).diagnose().findings]


def test_an_incomplete_recording_is_noted_with_its_audit(tmp_path):
    made = RankRecording(process_rank="0", process_world_size="1", audit_dropped="5")
    made.step(0, 1000)
    Recording(made.trace().store).save(tmp_path / "rank-00000.gscope")
    notes = gs.merge(tmp_path).diagnose().notes
    assert [each for each in notes if each.startswith("rank 0: audit: INCOMPLETE")]


def test_ranks_with_other_numbers_of_steps_are_diagnosed(ranks):
    write_rank(ranks, 3, 8, steps=5, host="node-a")
    assert gs.merge(ranks).diagnose().breakdown.ranks == 8


# -- names -------------------------------------------------------------------------------------------------------------
def test_an_anonymous_job_has_no_host_and_no_path(ranks, tmp_path):
    half_written(ranks / "rank-00003.gscope")
    merging.merge_into(ranks, tmp_path / "job", anonymous=True)
    text = json.dumps([gs.Fleet.open(tmp_path / "job").diagnose().to_dict(), *merging.read_notes(tmp_path / "job")])
    rank = gs.Fleet.open(tmp_path / "job").table("rank")
    assert [each for each in ("node-a", "node-b", str(tmp_path), "ranks/") if each in text] == []
    assert rank["host"].tolist() == ["host-1"] * 3 + ["host-2"] * 4
    assert rank["source"].tolist()[-1] == "rank-00007.gscope"


def test_anonymous_hosts_have_one_number_in_all_files(tmp_path):
    for rank, host in ((0, "b"), (1, "a"), (64, "a"), (65, "c")):
        write_rank(tmp_path / "ranks", rank, 66, steps=1, host=host)
    merging.merge_into(tmp_path / "ranks", tmp_path / "job", anonymous=True)
    assert gs.Fleet.open(tmp_path / "job").table("rank")["host"].tolist() == ["host-1", "host-2", "host-2", "host-3"]


def test_an_anonymous_note_has_no_name_of_the_file():
    note = "/home/me/my job/h1_4.json is left out: '/home/me/my job/h1_4.json' ends at byte 7, see h1_4.json"
    _, notes = merging.without_names(tables.join([]), [note])
    assert notes == ["a recording is left out: 'the file' ends at byte 7, see the file"]


def test_an_anonymous_reason_keeps_the_line_without_its_folder():
    reasons = {"rank": [0], "start_ns": [0], "end_ns": [1], "reason": ["/home/me/train.py:33 (load)"]}
    found, _ = merging.without_names(tables.join([{"reason": reasons}]), [])
    assert found["reason"]["reason"].tolist() == ["train.py:33 (load)"]


def test_an_anonymous_part_is_refused(ranks, tmp_path):
    with pytest.raises(InvalidArgument, match="shard is 1/2, but anonymous hosts are numbered over all ranks"):
        merging.merge_into(ranks, tmp_path / "job", (1, 2), anonymous=True)


# -- folders that others wrote -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("table", tables.SCHEMA)
def test_a_damaged_file_is_named(job, table):
    half_written(job / table / "ranks-00000.parquet")
    with pytest.raises(CorruptTrace, match=f"{table}/ranks-00000.parquet is damaged"):
        gs.Fleet.open(job)


@pytest.mark.parametrize(
    ("table", "columns", "says"),
    [
        ("rank", {"world_size": [None] * 8}, "rows without world_size"),
        ("rank", {"world_size": [1 << 32] * 8}, "world_size of the table rank is 4294967296"),
        ("rank", {"rank": ["first"] * 8}, "invalid literal"),
        ("rank", {"host": [7] * 8}, "host is no text"),
        ("rank", {"start_ns": [-(1 << 63)] * 8}, "start_ns is -9223372036854775808"),
        ("segment", {"position": [-1] * 192}, "position is -1 to -1"),
        ("step", {"idle_ns": [-1] * 96}, "idle_ns is -1 to -1"),
        ("step", {"step": [1 << 30] * 96}, "step is 1073741824"),
        ("step", {"duration_ns": np.full(96, 1 << 63, np.uint64)}, "duration_ns of the table step is"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else None,
)
def test_values_that_no_job_has_are_refused(job, table, columns, says):
    rewrite(job, table, **columns)
    with pytest.raises(CorruptTrace, match=f"is damaged: .*({says})"):
        gs.Fleet.open(job)


@pytest.mark.parametrize("numbers", [[-1, *range(1, 8)], [*range(7), 1 << 25]], ids=["negative", "large"])
def test_ranks_that_no_job_has_are_refused(job, numbers):
    rewrite(job, "rank", rank=np.array(numbers, np.int32))
    with pytest.raises(InvalidArgument, match=r"the ranks are .*; accepted are 0 to"):
        gs.Fleet.open(job)


def test_more_rows_than_the_file_can_hold_are_refused(job):
    count = 20_000_000
    columns = {name: np.zeros(count, kind) for name, (kind, _) in tables.SCHEMA["anchor"].items()}
    path = job / "anchor" / "ranks-00000.parquet"
    parquet.write_table(pyarrow.table(columns), path, compression="zstd")
    with pytest.raises(CorruptTrace, match="is damaged: 20,000,000 rows in"):
        gs.Fleet.open(job)


def test_a_missing_column_is_named(job):
    path = job / "step" / "ranks-00000.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["idle_ns"]), path)
    with pytest.raises(CorruptTrace, match="idle_ns"):
        gs.Fleet.open(job)


@pytest.mark.parametrize("notes", ["{", "7", "[" * 100_000], ids=["cut", "number", "deep"])
def test_damaged_notes_are_named(job, notes):
    (job / "notes" / "ranks-00000.json").write_text(notes)
    with pytest.raises(CorruptTrace, match=r"notes/ranks-00000.json is damaged"):
        gs.Fleet.open(job)


def test_a_folder_without_tables_says_how_to_make_them(tmp_path):
    with pytest.raises(InvalidArgument, match="has no tables of a job; gpuscope merge RECORDINGS -o JOB makes them"):
        gs.Fleet.open(tmp_path)


# -- libraries that are not there --------------------------------------------------------------------------------------
def test_without_pyarrow_a_merge_into_a_folder_says_what_to_install(ranks, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotAvailable, match=r"pyarrow is not installed; pip install 'gpuscope\[fleet\]'"):
        gs.merge(ranks, tmp_path / "job")


def test_without_pyarrow_a_merge_in_memory_has_its_verdict(ranks, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "verdict: " in str(gs.merge(ranks))


def test_without_duckdb_a_query_says_what_to_install(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(NotAvailable, match="DuckDB is not installed; pip install duckdb"):
        gs.Fleet.open(job).sql("from ranks")


# -- queries -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(queries()))
def test_every_query_runs_on_a_job(job, name):
    pytest.importorskip("duckdb")
    assert gs.Fleet.open(job).sql(name).columns


@pytest.mark.parametrize("dialect", ["spark", "clickhouse"])
@pytest.mark.parametrize("name", sorted(queries()))
def test_every_query_translates_to_other_engines(name, dialect):
    sqlglot = pytest.importorskip("sqlglot")
    strict = sqlglot.ErrorLevel.RAISE
    assert len(sqlglot.transpile(queries()[name], "duckdb", dialect, unsupported_level=strict)) == 1


def answer(job: Path, name: str) -> dict[str, list[object]]:
    """The result of a query, by column."""
    pytest.importorskip("duckdb")
    found = gs.Fleet.open(job).sql(name)
    return dict(zip(found.columns, map(list, zip(*found.rows, strict=True)), strict=True))


@pytest.fixture
def slow_job(tmp_path):
    gs.merge(write_job(tmp_path / "ranks", slow=3), tmp_path / "job")
    return tmp_path / "job"


def test_the_last_rank_of_collectives_is_found_without_clocks(slow_job):
    found = answer(slow_job, "last_arrivals")
    assert (found["last_rank"], found["times_last"], found["mean_lead_ms"]) == ([3], [12], [pytest.approx(0.2)])
    assert found["waited_s"] == [pytest.approx(12 * 7 * 0.2e-3)]


def test_the_slow_rank_of_a_kernel_is_named(slow_job):
    found = answer(slow_job, "kernels_that_differ")
    assert (found["kernel_name"], found["slowest_rank"], found["lost_ms"]) == (["gemm"], [3], [pytest.approx(2.4)])


def test_variance_of_a_slow_rank_is_between_ranks(slow_job):
    found = answer(slow_job, "variance_of_compute")
    assert found["between_share"] == [pytest.approx(1)]


def test_bus_bandwidth_counts_the_message_of_one_rank(job):
    path = job / "collective" / "ranks-00000.parquet"
    calls = parquet.read_table(path)
    kinds = ["all_gather"] * calls.num_rows
    rewrite(job, "collective", kind=kinds, bytes=[1_000_000] * len(kinds), size=np.full(len(kinds), 8, np.int32))
    # Seven messages of 1 MB arrive in 100 us.
    assert answer(job, "collectives_by_kind")["bus_gb_s"] == [pytest.approx(70)]


def test_queries_reach_no_file(job):
    pytest.importorskip("duckdb")
    with pytest.raises(InvalidArgument):
        gs.Fleet.open(job).sql(f"from '{job}/rank/ranks-00000.parquet'")


def test_times_of_a_table_are_of_the_rank(job):
    assert gs.Fleet.open(job).table("step")["start_ns"].min() == START
