# SPDX-License-Identifier: Apache-2.0
"""Clocks of simulated nodes beside the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.node_clocks import EPOCH_NS, MS, Columns, NodeClocks
from gpuscope.errors import InvalidArgument
from gpuscope.fleet.clocks import Clock, align

YEAR_NS = 365 * 86_400 * 1_000_000_000
NO_ANCHORS: Columns = {"rank": np.zeros(0, int), "time_ns": np.zeros(0, int), "realtime_ns": np.zeros(0, int)}


def job(nodes: int = 4, **options: Any) -> NodeClocks:
    return NodeClocks(nodes, per_node=2, **options)


def solve(made: NodeClocks, collectives: Columns | None = None, anchors: Columns | None = None) -> Clock:
    rows = made.collectives() if collectives is None else collectives
    return align(rows, made.ranks(), made.anchors() if anchors is None else anchors)


def only(table: Columns, kept: Any) -> Columns:
    return {name: column[kept] for name, column in table.items()}


def within_errors(made: NodeClocks, clock: Clock, nodes: int, part: int = 0, first: int = 0) -> bool:
    """Whether times of two nodes differ by at most twice the sum of their errors, which hold the truth in 95 %."""
    ranks = np.arange(first, first + nodes) * made.per_node
    off, error = made.errors_ns(clock, ranks, part), clock.error_ns(ranks, part)
    return bool((np.abs(off[:, None] - off) <= 2 * (error[:, None] + error)[..., None]).all())


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(2, 6),
    jitter=st.sampled_from([0.0, 500.0, 8000.0, 30_000.0]),
    ppm=st.sampled_from([0.0, 5.0, 50.0]),
)
def test_the_truth_is_within_the_stated_error(seed: int, nodes: int, jitter: float, ppm: float) -> None:
    made = job(nodes, seed=seed, ppm=ppm)
    made.jitter_ns = jitter
    made.grid(300)
    assert within_errors(made, solve(made), nodes)


def test_errors_are_a_few_times_smaller_than_the_jitter() -> None:
    made = job(8)
    made.grid(600)
    assert max(each.error_ns for each in solve(made).nodes) < 2000


def test_drift_is_relative_to_the_mean() -> None:
    made = job()
    made.grid(600)
    found = np.array([each.drift_ppb for each in solve(made).nodes])
    assert found == pytest.approx(1e9 * (made.drift - made.drift.mean()), abs=50)


def test_offsets_are_relative_to_realtime() -> None:
    made = job()
    made.grid(100)
    found = np.array([each.offset_ns for each in solve(made, anchors=made.anchors(error_ns=0)).nodes])
    assert np.abs(found - made.offset_ns).max() < MS


def test_lost_ranks_leave_the_others_aligned() -> None:
    made = job()
    made.grid(300)
    rows = made.collectives()
    clock = solve(made, only(rows, ~np.isin(rows["rank"], [1, 4])))
    assert clock.partial == clock.instances == 600
    assert within_errors(made, clock, 4)


def test_a_rank_that_dies_is_aligned_until_then() -> None:
    made = job()
    made.grid(300)
    rows = made.collectives()
    died = (rows["rank"] // 2 == 3) & (rows["sequence"] > 100)
    clock = solve(made, only(rows, ~died))
    time = np.array([EPOCH_NS, EPOCH_NS + made.span_ns // 4])
    aligned = [
        clock.aligned(np.array([rank] * 2), made.clock(made.node[[rank] * 2], time - EPOCH_NS)) for rank in (0, 6)
    ]
    assert np.abs(aligned[0] - aligned[1]).max() < 20_000


def test_few_fences_with_a_node_widen_its_error() -> None:
    made = job(3)
    made.fences([0, 2], 3, 1)
    made.fences([2, 4], 600, 2)
    clock = solve(made)
    assert clock.nodes[0].error_ns > 2 * clock.nodes[2].error_ns
    assert within_errors(made, clock, 3)


def test_the_error_holds_long_after_the_last_fence() -> None:
    made = job(3)
    rows = made.fences([0, 2, 4], 600, 1)
    fences = only(rows, (rows["rank"] != 4) | (rows["sequence"] < 150))
    others = only(rows, rows["rank"] == 4) | {"kind": np.full(600, "send")}
    clock = solve(made, {name: np.concatenate([fences[name], others[name]]) for name in fences})
    assert clock.nodes[2].error_ns > 3 * clock.nodes[0].error_ns
    assert within_errors(made, clock, 3)


def test_fences_near_in_time_give_no_drift() -> None:
    made = job(3)
    rows = made.fences([0, 2, 4], 600, 1)
    clock = solve(made, only(rows, (rows["rank"] != 4) | (rows["sequence"] < 5)))
    assert clock.nodes[2].error_ns >= 10 * MS


def two_parts() -> NodeClocks:
    made = job(5)
    made.fences([0, 2, 4], 300, 1)
    made.fences([6, 8], 300, 2)
    return made


def test_parts_without_a_common_fence_are_numbered_by_size() -> None:
    assert [each.part for each in solve(two_parts()).nodes] == [0, 0, 0, 1, 1]


def test_each_part_is_aligned_in_itself() -> None:
    made = two_parts()
    clock = solve(made)
    assert within_errors(made, clock, 3)
    assert within_errors(made, clock, 2, part=1, first=3)


def test_ranks_of_another_part_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="rank 7 cannot be aligned: its node node3 shares no fence"):
        solve(two_parts()).aligned([0, 7], [EPOCH_NS, EPOCH_NS])


def test_fences_apart_in_time_do_not_join_parts() -> None:
    made = job()
    rows = made.fences([0, 2, 4, 6], 400, 1)
    early = rows["sequence"] < 200
    clock = solve(made, only(rows, early == (rows["rank"] < 4)))
    assert [each.part for each in clock.nodes] == [0, 0, 1, 1]


def test_an_unknown_rank_is_refused() -> None:
    made = job(1)
    with pytest.raises(InvalidArgument, match="rank is 9; accepted are the 2 recorded ranks"):
        solve(made, made.fences([0, 1], 10, 1)).aligned(9, EPOCH_NS)


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "send", "recv", "other"])
def test_collectives_that_ranks_may_leave_early_align_nothing(kind: str) -> None:
    made = job(2)
    made.fences([0, 2], 100, 1, kind=kind)
    assert solve(made).unaligned.keys() == {2, 3}


@pytest.mark.parametrize("gap", [(0.5, 1.5), (1.0, 1.0)], ids=["irregular", "regular"])
def test_a_late_start_is_matched(gap: tuple[float, float]) -> None:
    made = job()
    made.gap = gap
    made.grid(300)
    rows = made.collectives()
    late = rows["rank"] == 3
    rows["sequence"][late] -= 41
    clock = solve(made, only(rows, rows["sequence"] >= 0))
    assert [(each.rank, each.shift, each.used) for each in clock.late_starts] == [(3, 41, True)]
    assert within_errors(made, clock, 4)


def test_kinds_and_sizes_tell_shifts_of_fast_regular_collectives_apart() -> None:
    made = job(2, seconds=1)
    made.gap = (1.0, 1.0)
    rows = made.fences([0, 2], 400, 1)
    rows["bytes"] = 1000 + np.random.default_rng(1).integers(0, 50, 400)[rows["sequence"]]
    rows["sequence"][rows["rank"] == 2] += 5
    assert [(each.rank, each.shift, each.used) for each in solve(made, rows).late_starts] == [(2, -5, True)]


def test_a_late_start_without_evidence_is_left_out() -> None:
    made = job(2, seconds=1)
    made.gap = (1.0, 1.0)
    rows = made.fences([0, 2], 400, 1)
    rows["bytes"][rows["rank"] == 2] = 7
    clock = solve(made, rows)
    assert [(each.rank, each.used) for each in clock.late_starts] == [(2, False)]
    assert "matches no other" in clock.unaligned[2]


@pytest.mark.parametrize("known", [True, False], ids=["anchors", "wrong anchors"])
def test_clocks_a_year_apart_are_aligned(known: bool) -> None:
    made = job()
    made.offset_ns[2] += YEAR_NS
    made.grid(300)
    anchors = made.anchors()
    if not known:
        anchors["realtime_ns"][made.node[anchors["rank"]] == 2] += YEAR_NS
    clock = solve(made, anchors=anchors)
    assert clock.late_starts == ()
    assert within_errors(made, clock, 4)


def test_without_anchors_the_fences_suffice() -> None:
    made = job()
    made.grid(300)
    assert within_errors(made, solve(made, anchors=NO_ANCHORS), 4)


def test_a_clock_that_wanders_gets_knots() -> None:
    made = job(8)
    made.wander = lambda node, true: np.where(node == 5, 20_000 * np.sin(2 * np.pi * true / made.span_ns), 0)
    made.grid(600)
    clock = solve(made)
    assert [each.node for each in clock.nodes if not each.linear] == ["node5"]
    assert np.abs(made.errors_ns(clock)).max() < 5000
    assert within_errors(made, clock, 8)


def test_clocks_that_all_wander_are_aligned_with_each_other() -> None:
    made = job(8)
    made.wander = lambda node, true: 20_000 * np.sin(2 * np.pi * true / made.span_ns + node)
    made.grid(600)
    clock = solve(made)
    assert max(each.error_ns for each in clock.nodes) < 20_000
    assert within_errors(made, clock, 8)


def test_the_error_holds_a_step_of_a_clock() -> None:
    made = job(4)
    made.wander = lambda node, true: np.where((node == 1) & (true > 0.43 * made.span_ns), 3 * MS, 0)
    made.grid(600)
    assert within_errors(made, solve(made), 4)


def test_links_that_leave_in_a_steady_order_widen_the_error() -> None:
    def error(late_ns: int) -> float:
        made = job(6)
        for first in range(6):
            for second in range(first):
                rows = made.fences([2 * first, 2 * second], 100, 10 * first + second)
                rows["end_ns"][rows["rank"] == 2 * first] += late_ns * (1 if (first + second) % 2 else -1)
        clock = solve(made)
        assert within_errors(made, clock, 6)
        return max(each.error_ns for each in clock.nodes)

    assert error(30_000) > 25 * error(0)


def test_a_bad_communicator_does_not_move_the_others() -> None:
    made = job(8)
    made.grid(600)
    rows = made.fences([0, 14], 200, 77)
    rows["end_ns"][rows["rank"] == 14] += MS
    clock = solve(made)
    assert within_errors(made, clock, 8)
    assert max(each.error_ns for each in clock.nodes) < 3000


def test_one_node_needs_no_alignment() -> None:
    made = job(1)
    made.fences([0, 1], 100, 1)
    clock = solve(made)
    assert (clock.nodes[0].offset_ns, clock.nodes[0].error_ns, clock.usable) == (0, 0, True)
    assert clock.aligned([0, 1], [5, EPOCH_NS]).tolist() == [5, EPOCH_NS]


@pytest.mark.parametrize(
    ("per_node", "step_ns", "said"), [(4, 70_000, {3}), (4, 30_000, set()), (2, 70_000, {0, 1}), (2, 30_000, set())]
)
def test_a_step_between_processes_of_a_node_is_said(per_node: int, step_ns: int, said: set[int]) -> None:
    made = NodeClocks(1, per_node=per_node)
    rows = made.fences(range(per_node), 100, 1)
    rows["end_ns"][rows["rank"] == per_node - 1] += step_ns
    clock = solve(made, rows)
    assert clock.steps_ns.keys() == said
    assert clock.nodes[0].error_ns == pytest.approx(step_ns if said else 0, rel=0.1)


def test_anchors_show_a_step_without_collectives() -> None:
    made = NodeClocks(1, per_node=3)
    rows = made.fences([0, 1], 0, 1)
    anchors = made.anchors()
    anchors["time_ns"][anchors["rank"] == 2] -= 400_000
    assert solve(made, rows, anchors).steps_ns == {2: pytest.approx(-400_000, abs=1000)}


def test_ranks_of_unknown_hosts_share_no_clock() -> None:
    made = job(1)
    made.fences([0, 1], 300, 1)
    clock = align(made.collectives(), {"rank": [0, 1], "host": ["", ""]}, NO_ANCHORS)
    assert [each.node for each in clock.nodes] == ["rank 0", "rank 1"]


def test_a_clock_with_large_errors_is_not_usable() -> None:
    made = job(2)
    made.jitter_ns = 3e6
    made.grid(20)
    clock = solve(made)
    assert not clock.usable
    assert "more than a quarter of the median collective" in clock.why


def test_one_fence_tells_no_error() -> None:
    made = job(2)
    made.fences([0, 2], 1, 1)
    assert min(each.error_ns for each in solve(made).nodes) >= 10 * MS


def test_releases_before_arrivals_are_counted() -> None:
    made = job()
    made.grid(300)
    rows = made.collectives()
    wrong = (rows["rank"] == 0) & (rows["sequence"] < 7)
    rows["end_ns"][wrong] -= 5 * MS
    rows["start_ns"][wrong] -= 6 * MS
    assert solve(made).acausal == 0
    assert solve(made, rows).acausal == 7


def test_the_order_of_rows_does_not_matter() -> None:
    made = job()
    made.grid(50)
    rows, anchors = made.collectives(), made.anchors()
    mixed = only(rows, np.random.default_rng(2).permutation(len(rows["rank"])))
    assert solve(made, mixed, anchors).to_dict() == solve(made, rows, anchors).to_dict()


def test_text_and_json() -> None:
    clock = solve(two_parts())
    assert str(clock).startswith("5 nodes, 10 ranks, 600 fences between nodes\n2 parts share no fence")
    assert "-inf" not in clock.to_json()


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("collectives", "kind", None, "collectives has no column kind"),
        ("collectives", "rank", [0, 9], "collectives has rank 9"),
        ("collectives", "kind", ["barrier"], "accepted are equal lengths"),
        ("ranks", "rank", [1, 1], "ranks has rank 1 twice"),
        ("anchors", "time_ns", None, "anchors has no column time_ns"),
    ],
)
def test_wrong_tables_are_refused(table: str, column: str, value: Any, message: str) -> None:
    tables: dict[str, Columns] = {
        "collectives": {
            "rank": [0, 1],
            "communicator": [1, 1],
            "size": [2, 2],
            "sequence": [0, 0],
            "kind": ["barrier", "barrier"],
            "bytes": [0, 0],
            "start_ns": [0, 0],
            "end_ns": [1, 1],
        },
        "ranks": {"rank": [0, 1], "host": ["a", "b"]},
        "anchors": dict(NO_ANCHORS),
    }
    if value is None:
        del tables[table][column]
    else:
        tables[table][column] = value
    with pytest.raises(InvalidArgument, match=message):
        align(**tables)


def test_a_job_without_ranks_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="ranks has no rows"):
        align({}, {"rank": [], "host": []}, NO_ANCHORS)
