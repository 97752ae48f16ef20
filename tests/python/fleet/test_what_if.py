# SPDX-License-Identifier: Apache-2.0
"""What-if analyses of jobs with a known fault, and of damaged files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.jobs import BACKWARD, FORWARD, MS, REDUCE, pipeline_job
from gpuscope.errors import CorruptTrace, GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.fleet.dependencies import Operations
from gpuscope.fleet.what_if import COMMUNICATION, EVEN, LENGTHS, RANKS, STAGES, VARIATION, WhatIf, what_if
from gpuscope.readers.straggler import read_straggler

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "straggler"


def write(rows: list[dict[str, Any]], folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = folder / "trace-made.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def analyse(rows: list[dict[str, Any]], folder: Path) -> WhatIf:
    return what_if(Operations.of_trace(read_straggler(write(rows, folder))))


def spent(kind: str, rank: int, step: int, microbatch: int) -> float:
    return 10


def one_slow_rank(kind: str, rank: int, step: int, microbatch: int) -> float:
    return 20 if rank == 2 and kind != REDUCE else 10


def slow_last_stage(kind: str, rank: int, step: int, microbatch: int) -> float:
    return 20 if rank % 2 and kind != REDUCE else 10


def test_an_even_job_has_no_slowdown(tmp_path: Path) -> None:
    found = analyse(pipeline_job(spent), tmp_path)
    assert (found.slowdown, found.cause) == (pytest.approx(1), EVEN)


def test_an_even_job_says_why_it_has_no_shares(tmp_path: Path) -> None:
    found = analyse(pipeline_job(spent), tmp_path)
    assert found.by_ranks is None
    assert "the loss is below" in found.why["by_ranks"]


def test_a_step_takes_as_long_as_the_slow_rank(tmp_path: Path) -> None:
    found = analyse(pipeline_job(one_slow_rank), tmp_path)
    assert (found.step_s, found.ideal_s) == (pytest.approx(0.170), pytest.approx(0.110))
    assert found.slowdown == pytest.approx(170 / 110)


def test_a_slow_rank_is_named_with_its_share(tmp_path: Path) -> None:
    found = analyse(pipeline_job(one_slow_rank), tmp_path)
    assert (found.cause, found.worst_ranks, found.by_ranks) == (RANKS, (2,), pytest.approx(1))
    assert "Rank 2 takes 2.00x" in found.evidence


def test_a_slow_rank_of_a_pipeline_is_not_its_stage(tmp_path: Path) -> None:
    found = analyse(pipeline_job(one_slow_rank, replicas=4, stages=2), tmp_path)
    assert (found.cause, found.worst_ranks) == (RANKS, (2,))


def test_a_slow_last_stage_is_named_with_its_share(tmp_path: Path) -> None:
    found = analyse(pipeline_job(slow_last_stage, replicas=2, stages=2), tmp_path)
    assert (found.cause, found.slowdown) == (STAGES, pytest.approx(190 / 160))
    assert found.by_stage == pytest.approx(40 / 30)
    assert "The last stage works 2.00x" in found.evidence


def test_sequences_of_different_lengths_are_the_cause_if_both_passes_follow_them(tmp_path: Path) -> None:
    lengths = np.random.default_rng(1).uniform(5, 30, (8, 6, 4))

    def vary(kind: str, rank: int, step: int, microbatch: int) -> float:
        return 1 if kind == REDUCE else lengths[rank, step, microbatch] * (2 if kind == BACKWARD else 1)

    found = analyse(pipeline_job(vary, replicas=8, steps=6), tmp_path)
    assert found.cause == LENGTHS
    assert "correlation 1.00" in found.evidence


def test_passes_that_vary_independently_are_no_sequences(tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    found = analyse(pipeline_job(lambda *_: noise.uniform(5, 30), replicas=8, steps=6), tmp_path)
    assert found.cause == VARIATION


def test_slow_transfers_are_named(tmp_path: Path) -> None:
    found = analyse(
        pipeline_job(lambda kind, rank, step, _: 400 if kind == REDUCE and step == 1 else 10, steps=4), tmp_path
    )
    assert found.cause == COMMUNICATION
    assert REDUCE in found.evidence


def test_the_slowdown_of_a_kind_is_that_of_its_operations(tmp_path: Path) -> None:
    found = analyse(
        pipeline_job(lambda kind, rank, *_: 20 if kind == FORWARD and rank == 2 else 10),
        tmp_path,
    )
    assert found.by_operation == {FORWARD: pytest.approx(130 / 100), BACKWARD: 1, REDUCE: 1}


def test_the_loss_is_split_completely(tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    found = analyse(pipeline_job(lambda *_: noise.uniform(5, 30), replicas=4, stages=2), tmp_path)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_the_text_begins_with_slowdown_and_cause(tmp_path: Path) -> None:
    lines = str(analyse(pipeline_job(one_slow_rank), tmp_path)).splitlines()
    assert lines[0] == "slowdown 1.545: a step takes 170 ms, and 110 ms with ideal durations"
    assert lines[1].startswith("cause: slow ranks. Rank 2 takes 2.00x the work time of the median of all ranks.")


def test_the_result_is_json(tmp_path: Path) -> None:
    found = json.loads(analyse(pipeline_job(one_slow_rank), tmp_path).to_json())
    assert (found["cause"], found["by_stage"], found["gpus"]) == (RANKS, None, 4)


def operations(*rows: tuple[int, float, float, int]) -> Operations:
    """Operations of one step: rank, start and end in ms, and number of the transfer or -1."""
    rank, start, end, group = (np.array(column) for column in zip(*rows, strict=True))
    return Operations(
        rank=rank,
        step=np.zeros(len(rank), np.int64),
        kind=(group >= 0).astype(np.int64),
        start_ns=(start * MS).astype(np.int64),
        end_ns=(end * MS).astype(np.int64),
        group=group,
        kinds=("work", "transfer"),
        gpus=2,
    )


def test_transfers_of_a_rank_that_overlap_run_at_once() -> None:
    found = what_if(operations((0, 0, 10, 1), (0, 5, 15, 2), (1, 0, 10, 1), (1, 5, 15, 2)))
    assert found.step_s == pytest.approx(0.010)


def test_transfers_of_a_rank_that_follow_each_other_wait() -> None:
    found = what_if(operations((0, 0, 10, 1), (0, 12, 22, 2), (1, 0, 10, 1), (1, 12, 22, 2)))
    assert found.step_s == pytest.approx(0.020)


def test_the_wait_for_the_last_rank_is_no_transfer() -> None:
    found = what_if(operations((0, 0, 50, -1), (0, 50, 60, 1), (1, 0, 10, -1), (1, 10, 60, 1)))
    assert found.ideal_s == pytest.approx(0.040)


def test_a_circle_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="wait for each other in a circle"):
        what_if(operations((0, 0, 10, 1), (0, 12, 22, 2), (1, 0, 10, 2), (1, 12, 22, 1)))


@pytest.mark.parametrize("rows", [0, 1])
def test_operations_without_time_are_refused(rows: int) -> None:
    empty = operations((0, 0, 0, -1))
    cut = {name: values[:rows] if isinstance(values, np.ndarray) else values for name, values in vars(empty).items()}
    with pytest.raises(InvalidArgument, match="accepted are operations"):
        what_if(Operations(**cut))


def tables(slow: int = 3, ranks: int = 8, steps: int = 5) -> dict[str, dict[str, np.ndarray]]:
    """A job in fleet tables: two pieces of 10 ms, 20 ms on the slow rank, each before a reduction of 5 ms."""
    segments, collectives = [], []
    for step in range(steps):
        for rank in range(ranks):
            at = step * 1000
            for position in range(2):
                work = 20 if rank == slow else 10
                segments.append((rank, step, position, work * MS, 0, 0))
                collectives.append((rank, 7, 2 * step + position, step, at + work, at + 25))
                at += 25
    segment = np.array(segments).T
    call = np.array(collectives).T
    names = ("rank", "step", "position", "compute_ns", "copy_ns", "host_ns")
    return {
        "segment": dict(zip(names, segment, strict=True)),
        "collective": {
            **dict(zip(("rank", "communicator", "sequence", "step"), call, strict=False)),
            "size": np.full(call.shape[1], ranks),
            "kind": np.array(["all_reduce"] * call.shape[1], object),
            "bytes": np.full(call.shape[1], 1 << 20),
            "start_ns": call[4] * MS,
            "end_ns": call[5] * MS,
        },
        "rank": {"rank": np.arange(ranks), "role": np.full(ranks, 5)},
    }


def analyse_tables(given: Mapping[str, dict[str, np.ndarray]]) -> WhatIf:
    return what_if(Operations.of_tables(given["segment"], given["collective"], given["rank"]))


def test_tables_show_the_slow_rank() -> None:
    found = analyse_tables(tables())
    assert (found.cause, found.worst_ranks, found.by_ranks) == (RANKS, (3,), pytest.approx(1))
    assert found.slowdown == pytest.approx(50 / (2 * 11.25 + 10))


def test_tables_without_stages_say_so() -> None:
    found = analyse_tables(tables())
    assert (found.by_stage, found.why["by_stage"]) == (None, "the operations have no pipeline stages")


def test_tables_with_stages_have_a_last_one() -> None:
    given = tables()
    given["rank"]["stage"] = np.arange(8) // 4
    assert analyse_tables(given).by_stage == pytest.approx(0, abs=1e-9)


def test_roles_are_not_compared() -> None:
    given = tables()
    given["rank"]["role"] = np.where(np.arange(8) == 3, 6, 5)
    assert analyse_tables(given).cause == EVEN


def test_collectives_outside_of_steps_are_left_out() -> None:
    given = tables()
    given["collective"]["step"] = np.where(given["collective"]["step"] == 4, -1, given["collective"]["step"])
    given["segment"]["step"] = np.where(given["segment"]["step"] == 4, -1, given["segment"]["step"])
    assert analyse_tables(given).steps == 4


def test_host_time_is_its_own_kind() -> None:
    given = tables()
    given["segment"]["host_ns"] = np.where(given["segment"]["rank"] == 3, 10 * MS, 0)
    given["segment"]["compute_ns"] = np.full_like(given["segment"]["rank"], 10 * MS)
    assert analyse_tables(given).by_operation["host"] > analyse_tables(given).by_operation["compute"]


def test_tables_without_steps_are_refused() -> None:
    given = tables()
    for name in ("segment", "collective"):
        given[name]["step"] = np.full_like(given[name]["step"], -1)
    with pytest.raises(InvalidArgument, match="a what-if needs steps"):
        analyse_tables(given)


def test_a_send_and_its_receive_are_one_transfer(tmp_path: Path) -> None:
    trace = read_straggler(write(pipeline_job(spent, replicas=1, stages=2, steps=1), tmp_path))
    kind, group = trace.columns["kind"], trace.columns["group"]
    sent = group[(kind == trace.kinds.index("forward-pp-comm")) & (trace.columns["stage"] == 0)]
    received = group[(kind == trace.kinds.index("forward-pp-comm")) & (trace.columns["stage"] == 1)]
    assert sent.tolist() == received.tolist()


def test_facts_are_read_from_the_file_beside(tmp_path: Path) -> None:
    path = write(pipeline_job(spent), tmp_path)
    (tmp_path / "meta-made.yaml").write_text("trial_name: made\nworld_size: 32  # GPUs\n\n")
    assert read_straggler(path).facts == {"trial_name": "made", "world_size": 32}


def test_the_gpus_of_the_facts_count(tmp_path: Path) -> None:
    path = write(pipeline_job(spent), tmp_path)
    (tmp_path / "meta-made.yaml").write_text("world_size: 32\n")
    assert what_if(Operations.of_trace(read_straggler(path))).gpus == 32


def test_damaged_facts_are_refused(tmp_path: Path) -> None:
    path = write(pipeline_job(spent), tmp_path)
    (tmp_path / "meta-made.yaml").write_text("world_size: 32\n- nothing\n")
    with pytest.raises(CorruptTrace, match="accepted is key: value"):
        read_straggler(path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    rows = [{name: each for name, each in row.items() if name != "stage"} for row in pipeline_job(spent)]
    with pytest.raises(InvalidArgument, match="lacks the columns stage"):
        read_straggler(write(rows, tmp_path))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("duration", float("nan")),
        ("duration", -1.0),
        ("start_ts", float("inf")),
        ("rank", 1 << 50),
        ("seq_id", -5),
        ("stage", None),
        ("optype", None),
    ],
)
def test_impossible_values_are_refused(tmp_path: Path, column: str, value: object) -> None:
    rows = pipeline_job(spent)
    rows[5][column] = value
    with pytest.raises(CorruptTrace):
        read_straggler(write(rows, tmp_path))


def test_numbers_that_no_job_has_are_refused(tmp_path: Path) -> None:
    rows = pipeline_job(spent)
    rows[5].update(rank=1 << 39, seq_id=1 << 39)
    with pytest.raises(CorruptTrace, match="that no job has"):
        read_straggler(write(rows, tmp_path))


def test_text_in_place_of_numbers_is_refused(tmp_path: Path) -> None:
    rows = [{**row, "rank": "zero"} for row in pipeline_job(spent)]
    with pytest.raises(CorruptTrace, match="cannot be read"):
        read_straggler(write(rows, tmp_path))


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = write(pipeline_job(spent), tmp_path)
    from pyarrow import parquet

    parquet.write_table(parquet.read_table(path)[:0], path)
    with pytest.raises(CorruptTrace, match="has no rows"):
        read_straggler(path)


def refusal(path: Path) -> str:
    """Why a file cannot be analysed; empty if it can."""
    try:
        what_if(Operations.of_trace(read_straggler(path)))
    except GpuscopeError as error:
        return str(error)
    return ""


def test_damaged_files_give_one_sentence(tmp_path: Path) -> None:
    path = write(pipeline_job(spent), tmp_path)
    whole, random = path.read_bytes(), np.random.default_rng(5)
    found = set()
    for number in range(200):
        data = bytearray(whole[: int(random.integers(1, len(whole)))] if number % 4 == 0 else whole)
        for at in random.integers(len(data), size=3):
            data[at] = int(random.integers(256))
        path.write_bytes(data)
        found.add(refusal(path))
    assert len(found) > 10
    assert not any("\n" in each for each in found)


def test_a_missing_file_is_an_invalid_argument(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="there is no such file"):
        read_straggler(tmp_path / "trace-none.parquet")


def test_without_pyarrow_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace-made.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotAvailable, match="pip install pyarrow"):
        read_straggler(path)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published traces of StragglerAnalysis are not here")
@pytest.mark.parametrize(("name", "cause"), [("AR", RANKS), ("ST", STAGES), ("SE", LENGTHS)])
def test_published_jobs_have_the_published_answer(name: str, cause: str) -> None:
    pytest.importorskip("pyarrow")
    found = what_if(Operations.of_trace(read_straggler(PUBLISHED / f"trace-{name}.parquet")))
    result, ranks, stage = (
        json.loads((PUBLISHED / f"{kind}-{name}.json").read_text()) for kind in ("result", "mw", "ms")
    )
    assert found.cause == cause
    assert found.slowdown == pytest.approx(result["blocking_slowdown"], rel=0.01)
    assert (found.by_ranks, found.by_stage) == (
        pytest.approx(ranks["Mw"], abs=0.01),
        pytest.approx(stage["Ms"], abs=0.01),
    )
