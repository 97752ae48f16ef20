# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from gpuscope.errors import InvalidArgument
from gpuscope.fleet.instances import KINDS, match_collectives
from gpuscope.fleet.links import find_slow_links
from gpuscope.fleet.waits import find_waits

EPOCH = 1_790_000_000_000_000_000
MS = 1_000_000
COLUMNS = {
    "rank": 0,
    "communicator": 7,
    "size": 4,
    "sequence": 0,
    "step": 0,
    "kind": "all_reduce",
    "bytes": 1 << 20,
    "start_ns": 0,
    "end_ns": 0,
    "before_compute_ns": 0,
    "before_idle_ns": 0,
}


def ranks(count, world=None, hosts=None, **columns):
    table = {
        "rank": np.arange(count),
        "world_size": np.full(count, count if world is None else world),
        "host": np.array(hosts or [f"n{each}" for each in range(count)], dtype=object),
    }
    return table | {name: np.asarray(values) for name, values in columns.items()}


def collectives(*rows):
    """Rows of dictionaries; times in ms since EPOCH."""
    table = {name: np.array([{**COLUMNS, **row}[name] for row in rows]) for name in COLUMNS}
    for name in ("start_ns", "end_ns"):
        table[name] = (table[name] * MS).astype(np.int64) + EPOCH
    for name in ("before_compute_ns", "before_idle_ns"):
        table[name] = (table[name] * MS).astype(np.int64)
    return table


def call(arrivals, end, sequence=0, **columns):
    """One call of all ranks; a column may be a list with a value for each rank."""
    return [
        {
            "rank": rank,
            "start_ns": arrival,
            "end_ns": end[rank] if isinstance(end, list) else end,
            "sequence": sequence,
            "size": len(arrivals),
            **{name: value[rank] if isinstance(value, list) else value for name, value in columns.items()},
        }
        for rank, arrival in enumerate(arrivals)
        if arrival is not None
    ]


def waits_of(*calls, clock_error_ns=0.0, count=4, reasons=None, **options):
    rows = [row for each in calls for row in each]
    return find_waits(collectives(*rows), ranks(count, **options), clock_error_ns, reasons=reasons)


def test_a_wait_lasts_until_the_last_arrival_and_the_rest_is_transfer():
    found = waits_of(call([1, 2, 3, 5], 6))
    assert found.wait_ns.tolist() == [4 * MS, 3 * MS, 2 * MS, 0]
    assert found.transfer_ns.tolist() == [MS] * 4
    assert found.wait_share == pytest.approx(9 / 13)


def test_wait_and_transfer_add_up_to_the_duration_of_every_rank():
    random = np.random.default_rng(0)
    rows = [
        call(random.uniform(0, 5, 4).tolist(), random.uniform(4, 9, 4).tolist(), sequence, kind=kind)
        for sequence, kind in enumerate(KINDS * 3)
    ]
    table = collectives(*[{**row, "end_ns": max(row["end_ns"], row["start_ns"])} for each in rows for row in each])
    found = find_waits(table, ranks(4))
    duration = np.bincount(table["rank"], table["end_ns"] - table["start_ns"])
    assert (found.wait_ns + found.transfer_ns).tolist() == duration.tolist()
    assert min(found.wait_ns.min(), found.transfer_ns.min()) >= 0


def test_a_rank_that_is_released_before_the_last_arrival_waits_until_its_release():
    found = waits_of(call([0, 0, 0, 5], [1, 6, 6, 6], kind="broadcast"))
    assert found.wait_ns.tolist() == [MS, 5 * MS, 5 * MS, 0]
    assert found.transfer_ns.tolist() == [0, MS, MS, MS]


def test_the_transfer_of_an_instance_ends_with_the_median_release():
    found = waits_of(call([0, 0, 0, 2], [3, 4, 6, 9]))
    assert found.instances.transfer_ns.tolist() == [3 * MS]


def test_the_last_rank_costs_its_lead_over_the_second_latest_times_the_others():
    (late,) = waits_of(call([0, 1, 8, 5], 9, before_compute_ns=[1, 1, 4, 1])).late
    assert (late.rank, late.node, late.count, late.fences) == (2, "n2", 1, 1)
    assert late.cost_s == pytest.approx(3e-3 * 3)


def test_of_ranks_that_arrive_together_none_is_late():
    assert waits_of(call([0, 0, 3, 3], 4)).late == ()


def test_a_broadcast_blames_nobody():
    assert waits_of(call([0, 0, 0, 3], 4, kind="broadcast")).late == ()


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ({"before_compute_ns": [2, 2, 2, 7], "before_idle_ns": [1, 1, 1, 1]}, "compute"),
        ({"before_compute_ns": [2, 2, 2, 2], "before_idle_ns": [1, 1, 1, 6]}, "host idle"),
        ({"before_compute_ns": [2, 2, 2, 5], "before_idle_ns": [1, 1, 1, 3]}, "unexplained"),  # 60 % and 40 %
        ({"before_compute_ns": [2, 2, 2, 2], "before_idle_ns": [1, 1, 1, 1]}, "an earlier collective"),
    ],
)
def test_a_cause_covers_most_of_the_lead(before, cause):
    assert waits_of(call([3, 3, 3, 8], 9, **before)).late[0].cause == cause


def test_time_between_collectives_without_compute_or_idle_time_is_of_copies():
    before = {"before_compute_ns": 2, "before_idle_ns": 1}
    found = waits_of(call([0] * 4, 1), call([4, 4, 4, 9], 10, 1, **before))
    assert found.late[0].cause == "copy"


def test_waits_that_a_rank_inherits_from_another_group_began_with_its_late_rank():
    others = [{**row, "rank": 3 + row["rank"], "communicator": 9} for row in call([0, 6], 7, before_compute_ns=[0, 6])]
    before = {"before_compute_ns": 2, "before_idle_ns": 0}
    found = waits_of(call([0] * 3, 1, 0, communicator=8), others, call([3, 3, 3, 9], 10, 1, **before), count=5)
    costs = {late.rank: (late.cost_s, late.caused_s, late.cause) for late in found.late}
    assert costs[3] == (pytest.approx(18e-3), 0, "an earlier collective")
    assert costs[4] == (pytest.approx(6e-3), pytest.approx(6e-3 + 18e-3), "compute")


def test_a_rank_that_inherits_its_whole_lead_is_named_whatever_rounding_leaves_of_it():
    lead = 2297  # ms: 7 * lead * lead / lead is above 7 * lead
    first = call([0, lead], lead + 1, before_compute_ns=[0, lead])
    others = [{**row, "rank": 7 + row["rank"], "communicator": 9} for row in first]
    late = call([3] * 7 + [lead + 3], lead + 4, 1, before_compute_ns=2)
    found = waits_of(call([0] * 7, 1, 0, communicator=8), others, late, count=9).late
    assert [(each.rank, each.caused_s) for each in found] == [(8, pytest.approx(8 * 2.297)), (7, 0)]


def test_a_delay_is_followed_through_collectives_that_all_members_reach_late():
    def pair(ranks, arrivals, end, sequence, communicator, compute):
        rows = call(arrivals, end, sequence, communicator=communicator, before_compute_ns=compute)
        return [{**row, "rank": rank} for row, rank in zip(rows, ranks, strict=True)]

    found = waits_of(
        pair((0, 1), [1, 31], 31, 0, 5, [1, 31]),
        pair((0, 1), [32, 32], 32, 1, 5, [1, 1]),
        pair((0, 2), [33, 5], 34, 0, 6, [1, 5]),
        pair((1, 3), [33, 5], 34, 0, 7, [1, 5]),
    )
    assert {late.rank: late.caused_s for late in found.late} == {1: pytest.approx(0.030 + 2 * 0.028), 0: 0}


def reasons_of(*rows):
    rank, start, end, reason = zip(*rows, strict=True)
    return {
        "rank": np.array(rank),
        "start_ns": EPOCH + np.array(start) * MS,
        "end_ns": EPOCH + np.array(end) * MS,
        "reason": np.array(reason, dtype=object),
    }


IDLE = {"before_compute_ns": [2, 2, 2, 2], "before_idle_ns": [1, 1, 1, 6]}


def test_a_reason_of_the_caller_comes_before_idle_time():
    reasons = reasons_of((3, 1, 6, "garbage"))
    assert waits_of(call([3, 3, 3, 8], 9, **IDLE), reasons=reasons).late[0].cause == "garbage"


def test_a_reason_that_the_others_have_too_is_no_cause():
    reasons = reasons_of(*((rank, 0, 1, "data") for rank in range(3)), (3, 0, 1, "data"))
    assert waits_of(call([3, 3, 3, 8], 9, **IDLE), reasons=reasons).late[0].cause == "host idle"


def test_a_reason_outside_the_time_before_the_collective_is_no_cause():
    reasons = reasons_of((3, 8, 20, "garbage"), (2, 0, 8, "garbage"))
    assert waits_of(call([3, 3, 3, 8], 9, **IDLE), reasons=reasons).late[0].cause == "host idle"


def test_a_lead_below_the_clock_error_is_no_finding():
    found = waits_of(call([0, 0, 0, 1], 2), clock_error_ns=0.6 * MS)
    assert found.late == ()
    assert found.below == 1
    assert "below clock error" in str(found)


def test_ranks_of_one_node_have_no_clock_error():
    found = waits_of(call([0, 0, 0, 1], 2, before_compute_ns=[1, 1, 1, 2]), clock_error_ns=9 * MS, hosts=["a"] * 4)
    assert [each.rank for each in found.late] == [3]


def test_clock_errors_are_in_the_order_of_the_rank_table():
    table = ranks(2, hosts=["a", "b"])
    table = {name: values[::-1] for name, values in table.items()}
    found = match_collectives(collectives(*call([0, 1], 2)), table, np.array([3.0, 500.0]))
    assert found.error_ns.tolist() == [503.0]


def test_releases_before_the_last_arrival_show_that_clocks_disagree():
    assert waits_of(call([0, 0, 0, 5], [4, 6, 6, 6])).early == 1


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 1.5), ("all_gather", 3.0), ("all_to_all", 0.75), ("broadcast", 1.0)]
)
def test_bus_bandwidth_has_the_factor_of_the_kind(kind, factor):
    (row,) = waits_of(call([0, 0, 0, 0], 1, kind=kind, bytes=10 * MS)).bandwidths
    assert row.median == pytest.approx(10 * factor)  # GB/s
    assert (row.ranks, row.nodes, row.size_bytes) == (4, 4, 1 << 23)


def test_bandwidths_are_compared_within_kind_size_and_shape():
    near = call([0, 0], 1, 0, communicator=1)
    far = [{**row, "rank": row["rank"] + 2} for row in call([0, 0], 2, 0, communicator=2)]
    found = waits_of(near, far, hosts=["a", "a", "b", "c"])
    assert sorted((row.nodes, round(row.median, 2)) for row in found.bandwidths) == [(1, 1.05), (2, 0.52)]


def test_a_transfer_below_the_clock_error_has_no_bandwidth():
    (row,) = waits_of(call([0, 0, 0, 0], 1), clock_error_ns=MS).bandwidths
    assert row.median is None


def test_a_barrier_has_no_bandwidth():
    assert waits_of(call([0, 0, 0, 0], 1, kind="barrier", bytes=0)).bandwidths == ()


def test_a_rank_that_calls_something_else_is_named_with_the_first_such_call():
    found = waits_of(
        call([0] * 4, 1, 0),
        call([2] * 4, 3, 1, kind=["all_reduce", "all_gather", "all_reduce", "all_reduce"], step=5),
        call([4] * 4, 5, 2, bytes=[8, 16, 8, 8], step=6),
    )
    (row,) = found.orders
    assert (row.rank, row.sequence, row.step, row.count, row.has_majority) == (1, 1, 5, 2, True)
    assert row.call.startswith("all_gather")
    assert row.usual.startswith("all_reduce")


def test_two_ranks_that_disagree_have_no_majority():
    (row,) = waits_of(call([0, 0], 1, bytes=[8, 16]), count=2).orders
    assert not row.has_majority


def test_senders_and_receivers_have_the_same_order():
    assert waits_of(call([0, 0], 1, kind=["send", "recv"]), count=2).orders == ()


def test_an_all_to_all_may_have_its_own_size_on_each_rank():
    assert waits_of(call([0] * 4, 1, kind="all_to_all", bytes=[1, 2, 3, 4])).orders == ()


def test_a_rank_that_stops_while_the_others_wait_is_first_of_the_wavefront():
    found = waits_of(
        call([0] * 4, 1, 0),
        call([2, 2, None, 2], -1, 1),  # never ended
    )
    (row,) = found.endings
    assert (row.rank, row.sequence, row.behind, row.recorded_only) == (2, 0, 1, False)
    assert row.time_ns == EPOCH + 2 * MS
    assert found.skipped == {"unfinished on some rank": 1}


def test_a_rank_without_the_last_fences_that_others_ended_lacks_only_records():
    (row,) = waits_of(call([0] * 4, 1, 0), call([2, 2, None, 2], 3, 1), call([4, 4, None, 4], 5, 2)).endings
    assert (row.behind, row.recorded_only) == (2, True)


def test_all_results_say_how_many_ranks_there_are():
    found = waits_of(call([0, 1, 2], 3, size=4), count=3, world=4)
    assert str(found).startswith("3 of 4 ranks")
    assert (found.incomplete, found.to_dict()["seen"], found.to_dict()["expected"]) == (1, 3, 4)


def test_an_id_that_a_new_communicator_has_again_is_left_out():
    found = waits_of(call([0] * 4, 1, 0), call([5] * 4, 6, 0), call([8] * 4, 9, 1))
    assert found.count == 1
    assert found.skipped == {"ambiguous: a rank has the same sequence number twice": 1}


def test_rows_may_be_in_any_order():
    rows = [row for sequence in range(5) for row in call([0, 1, 2, 4], 6, sequence)]
    table = collectives(*rows)
    mixed = np.random.default_rng(1).permutation(len(rows))
    found = find_waits({name: values[mixed] for name, values in table.items()}, ranks(4))
    assert found.wait_ns.tolist() == find_waits(table, ranks(4)).wait_ns.tolist() == [20 * MS, 15 * MS, 10 * MS, 0]


def test_kinds_may_be_indexes():
    table = collectives(*call([0] * 4, 1))
    table["kind"] = np.full(4, KINDS.index("barrier"), np.int8)
    assert find_waits(table, ranks(4)).instances.kind.tolist() == [KINDS.index("barrier")]


def test_a_job_without_collectives_has_no_waits():
    empty = {name: values[:0] for name, values in collectives(*call([0] * 4, 1)).items()}
    found = find_waits(empty, ranks(4))
    assert found.wait_share is None
    assert str(found) == "4 of 4 ranks, 0 collectives"


def test_a_result_can_be_saved():
    found = waits_of(call([0, 0, 0, 5], 6, before_compute_ns=[1, 1, 1, 6]))
    assert json.loads(found.to_json())["late"][0]["rank"] == 3
    assert found._frame_rows()[3]["cause"] == "compute"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rank": np.array([0, 0]), "world_size": np.array([2, 2])}, "ranks has rank 0 more than once"),
        ({"rank": np.array([0]), "world_size": np.array([2])}, "collectives has rank 1; accepted"),
        ({"rank": np.array([0, 1])}, "ranks has no column world_size"),
    ],
)
def test_wrong_tables_are_refused(table, message):
    with pytest.raises(InvalidArgument, match=message):
        find_waits(collectives(*call([0, 0], 1)), table)


def links_of(slow, groups, calls=10, noise=0.01):
    """Slow links of groups of ranks, each on its own node; `slow` are pairs whose transfers take twice as long."""
    random = np.random.default_rng(2)
    rows = []
    for communicator, group in enumerate(groups):
        factor = 2.0 if any(set(pair) <= set(group) for pair in slow) else 1.0
        for sequence in range(calls):
            end = factor * random.lognormal(0, noise)
            rows += [
                {"rank": rank, "communicator": communicator, "size": len(group), "sequence": sequence, "end_ns": end}
                for rank in group
            ]
    number = 1 + max(rank for group in groups for rank in group)
    return find_slow_links(find_waits(collectives(*rows), ranks(number)).instances)


def test_a_slow_link_is_found_among_pairs():
    (link,), why = links_of([(2, 3)], [(each, each + 1) for each in range(0, 20, 2)])
    assert link.links == (("n2", "n3"),)
    assert link.slower == pytest.approx(1, abs=0.05)
    assert "-H n2:1,n3:1" in link.test
    assert why == ""


def test_healthy_groups_exonerate_the_other_links_of_a_slow_group():
    random = np.random.default_rng(3)
    groups = [tuple(random.permutation(12)[:4].tolist()) for _ in range(60)]
    links, _ = links_of([(4, 9)], groups)
    assert links[0].links == (("n4", "n9"),)


def test_links_that_no_group_separates_are_one_suspect():
    groups = [tuple(range(first, first + 3)) for first in range(0, 24, 3)]
    (link,), _ = links_of([(3, 4)], groups)
    assert link.links == (("n3", "n4"), ("n3", "n5"), ("n4", "n5"))


def test_equally_slow_links_are_no_finding():
    groups = [(each, each + 1) for each in range(0, 20, 2)]
    assert links_of(groups, groups)[0] == ()


def test_noise_is_no_slow_link():
    assert links_of([], [(each, each + 1) for each in range(0, 80, 2)], noise=0.3)[0] == ()


def test_few_groups_are_not_compared():
    links, why = links_of([(0, 1)], [(0, 1), (2, 3)])
    assert links == ()
    assert why.startswith("links: fewer than 6 groups")
