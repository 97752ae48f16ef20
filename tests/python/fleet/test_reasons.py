# SPDX-License-Identifier: Apache-2.0
"""Why a rank is late: what it did instead of GPU work, from its recording to the answer of the job."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fakes.late_ranks import MS, REASONS, US, Late, data, make_job
from fakes.rank_recordings import ALL_REDUCE, GEMM, RankRecording
from gpuscope.fleet.job import Fleet
from gpuscope.fleet.reduce import reduce
from gpuscope.fleet.tables import join

ID = 7


def reasons(rank: RankRecording) -> list[tuple[int, str]]:
    """Duration in us and name of each row."""
    table = reduce(rank.trace())["reason"]
    return list(zip(((table["end_ns"] - table["start_ns"]) // US).tolist(), table["reason"].tolist(), strict=True))


def with_gap(idle: int = 2 * MS, compute: int = MS) -> RankRecording:
    """A kernel, `idle` without work, a kernel, and an all-reduce. The idle time begins at 1 ms."""
    rank = RankRecording(20 * MS)
    rank.kernel(GEMM, 0, MS)
    end = MS + idle + compute
    rank.kernel(GEMM, MS + idle, end, launched=MS + idle - US)
    rank.kernel(ALL_REDUCE, end, end + MS, region=rank.call_of_nccl("ncclAllReduce", MS + idle, ID, 8))
    return rank


@pytest.mark.parametrize("why", REASONS, ids=lambda why: why.__name__)
def test_the_late_rank_and_its_reason_are_named(why: Callable[[RankRecording, int, int], None]):
    found = make_job(Late(2, why)).diagnose()
    assert (found.findings[0].kind, found.findings[0].ranks) == ("late rank", (2,))
    assert f"because of {REASONS[why]}" in found.verdict


def test_waits_for_a_late_rank_are_no_finding_about_communication():
    assert [each.kind for each in make_job(Late(2, data)).diagnose().findings] == ["late rank"]


def test_of_equal_ranks_none_is_late():
    assert make_job().diagnose().findings == ()


def test_what_takes_equally_long_on_all_ranks_makes_none_late():
    ranks = [reduce(with_gap().trace()) for _ in range(4)]
    for number, tables in enumerate(ranks):
        for columns in tables.values():
            columns["rank"] = np.full_like(columns["rank"], number)
    assert Fleet(join(ranks)).waits().late == ()


def test_two_reasons_divide_the_gap():
    rank = with_gap()
    rank.region("load batch", MS, 2 * MS)
    rank.collection(2 * MS, 3 * MS - 200 * US)
    assert [(round(time, -1), name) for time, name in reasons(rank)] == [
        (1000, "waiting for data"),
        (800, "garbage collection"),
        (200, "other program code"),
    ]


def test_a_reason_has_one_row_before_each_collective():
    rank = with_gap()
    for start in (MS, 2 * MS):
        rank.region("load batch", start, start + 800 * US)
    assert reasons(rank)[0] == (1600, "waiting for data")
    assert len(reasons(rank)) == 2


def test_reasons_lie_between_the_release_and_the_next_arrival():
    rank = with_gap()
    rank.region("load batch", MS, 2 * MS)
    table = reduce(rank.trace())
    assert table["reason"]["end_ns"].max() <= table["collective"]["start_ns"].min()


def test_reasons_shorter_than_a_tenth_of_a_millisecond_are_left_out():
    rank = with_gap(idle=300 * US)
    rank.region("load batch", MS, MS + 90 * US)
    assert [name for _, name in reasons(rank)] == ["other program code"]


def test_idle_time_after_the_last_collective_has_no_reason():
    rank = with_gap(idle=0)
    rank.region("load batch", 3 * MS, 8 * MS)
    rank.kernel(GEMM, 9 * MS, 10 * MS)
    assert reasons(rank) == []


def test_code_after_a_wait_for_the_gpu_is_put_down_to_the_wait():
    rank = with_gap(idle=800 * US)
    rank.synchronization(0, MS + 10 * US)
    assert [name for _, name in reasons(rank)] == ["synchronization"]


def test_samples_name_the_code_after_a_wait_for_the_gpu():
    rank = with_gap(idle=800 * US)
    rank.synchronization(0, MS + 10 * US)
    rank.sample(0, 3 * MS, "/home/me/data.py", "tokenize", 31)
    assert [name for _, name in reasons(rank)] == ["tokenize (data.py)"]


def test_code_is_divided_among_its_functions():
    rank = with_gap(idle=10 * MS)
    rank.sample(MS, 4 * MS, "/home/me/data.py", "read", 12)
    rank.sample(4 * MS, 11 * MS, "/home/me/data.py", "tokenize", 31)
    found = {name: time for time, name in reasons(rank)}
    assert found == {"read (data.py)": pytest.approx(3000, abs=510), "tokenize (data.py)": pytest.approx(7000, abs=510)}


def test_code_outside_of_functions_is_named_by_its_line():
    rank = with_gap()
    rank.sample(MS, 3 * MS, "/home/me/train.py", "<module>", 88)
    assert [name for _, name in reasons(rank)] == ["train.py:88"]


def test_a_low_clock_counts_by_how_much_longer_kernels_took():
    rank = with_gap(idle=0, compute=8 * MS)
    for at in (0, 20 * MS):
        rank.clock(at, 990)
    assert reasons(rank) == [(4500, "throttled clock")]


def test_the_low_clock_of_an_idle_gpu_is_no_reason():
    rank = with_gap(idle=0, compute=8 * MS)
    for at in (0, 20 * MS):
        rank.clock(at, 345, busy=0)
    assert reasons(rank) == []


def test_more_work_at_a_low_clock_of_all_ranks_is_not_put_down_to_the_clock():
    parts = []
    for number in range(4):
        rank = RankRecording(20 * MS, process_rank=f"{number}", process_world_size="4", process_host="node")
        for at in (0, 20 * MS):
            rank.clock(at, 1700)
        arrival = 6 * MS if number == 2 else 3 * MS
        rank.kernel(GEMM, 0, arrival)
        rank.kernel(ALL_REDUCE, arrival, 7 * MS, region=rank.call_of_nccl("ncclAllReduce", 100, ID, 8))
        parts.append(reduce(rank.trace()))
    assert Fleet(join(parts)).waits().late[0].cause == "compute"


def test_a_rank_without_a_gpu_has_reasons_before_collectives_of_gloo():
    rank = RankRecording(20 * MS, session_tier="cpu")
    rank.region("load batch", MS, 3 * MS)
    rank.region("gloo:all_reduce", 3 * MS, 4 * MS)
    assert sorted(reasons(rank)) == [(1000, "other program code"), (2000, "waiting for data")]


# -- the job -----------------------------------------------------------------------------------------------------------
def test_an_unknown_size_is_the_number_of_ranks_with_the_communicator():
    parts = []
    for number in range(3):
        rank = RankRecording(process_rank=f"{number}", process_world_size="3")
        rank.kernel(ALL_REDUCE, 100, 200, region=rank.call_of_nccl("ncclAllReduce", 50, ID if number else 8, 8))
        parts.append(reduce(rank.trace()))
    assert Fleet(join(parts)).table("collective")["size"].tolist() == [1, 2, 2]


def test_gpus_of_one_process_are_on_one_host():
    rank = RankRecording()
    for device in (0, 1):
        rank.kernel(GEMM, 100, 200, device=device)
    assert reduce(rank.trace(), "jobs/export.sqlite")["rank"]["host"].tolist() == ["process export.sqlite"] * 2


def test_a_size_that_one_rank_knows_holds_for_the_others():
    parts = []
    for number in range(2):
        rank = RankRecording(process_rank=f"{number}", process_world_size="8")
        if number:
            rank.creation_of_nccl(0, ID, 8, number)
        rank.kernel(ALL_REDUCE, 100, 200, region=rank.call_of_nccl("ncclAllReduce", 50, ID, 8))
        parts.append(reduce(rank.trace()))
    assert Fleet(join(parts)).table("collective")["size"].tolist() == [8, 8]
