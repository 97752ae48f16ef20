# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from gpuscope.errors import InvalidArgument
from gpuscope.fleet.stragglers import find_stragglers
from gpuscope.fleet.waits import find_waits

EPOCH = 1_790_000_000_000_000_000
MS = 1_000_000


def ranks(count, *, world=None, per_node=8, roles=None, **columns):
    number = np.arange(count)
    return {
        "rank": number,
        "world_size": np.full(count, world or count),
        "host": np.array([f"n{each // per_node}" for each in number.tolist()], dtype=object),
        "role": np.zeros(count, np.int64) if roles is None else np.asarray(roles),
        **columns,
    }


def factors(count, steps=100, seed=0, noise=0.02):
    random = np.random.default_rng(seed)
    spread = 1 + 0.25 * noise * random.standard_normal((count, 1))
    return spread * (1 + noise * random.standard_normal((count, steps)))


def steps(compute, **columns):
    """The step table of compute in units of 100 ms, an array (ranks, steps); nan for absent steps."""
    rank, step = np.nonzero(np.isfinite(compute))
    table = {"rank": rank, "step": step, "compute_ns": (compute[rank, step] * 100 * MS).astype(np.int64)}
    return table | {name: values[rank, step] for name, values in columns.items()}


def named(found):
    return [each.rank for each in found.stragglers]


def test_a_rank_five_percent_slower_is_found_with_its_cost():
    compute = factors(64)
    compute[37] *= 1.05
    (found,) = find_stragglers(steps(compute), ranks(64)).stragglers
    assert (found.rank, found.node, found.basis) == (37, "n4", "equals")
    assert found.slower == pytest.approx(0.05, abs=0.01)
    assert (found.first_step, found.last_step) == (0, 99)
    assert found.cost_s == pytest.approx(0.05 * 0.1 * 100 * 63, rel=0.2)


def test_a_healthy_job_has_no_finding():
    found = find_stragglers(steps(factors(256, 200)), ranks(256))
    assert (found.stragglers, found.nodes, found.transients, found.odd) == ((), (), (), ())
    assert "no slow rank or node" in str(found)


@pytest.mark.parametrize("roles", [[0] * 64, range(64)])
def test_ranks_that_are_all_equally_slow_are_no_finding(roles):
    compute = factors(64)
    compute[:, 50:75] *= 1.5
    found = find_stragglers(steps(compute), ranks(64, roles=roles))
    assert (found.stragglers, found.transients) == ((), ())


def test_less_than_two_percent_is_no_finding():
    compute = factors(64, noise=0.001)
    compute[3] *= 1.015
    assert find_stragglers(steps(compute), ranks(64)).stragglers == ()


def test_one_slow_window_is_no_straggler():
    compute = factors(64, 150)
    compute[3, 50:100] *= 1.05
    found = find_stragglers(steps(compute), ranks(64))
    assert found.stragglers == ()
    assert [each.rank for each in found.transients] == [3]


def test_the_slow_time_begins_with_the_first_slow_window():
    compute = factors(64, 300)
    compute[3, 100:] *= 1.1
    (found,) = find_stragglers(steps(compute), ranks(64)).stragglers
    assert (found.first_step, found.last_step) == (100, 299)


def test_two_windows_are_needed():
    compute = factors(64, 99)
    compute[3] *= 1.5
    found = find_stragglers(steps(compute), ranks(64))
    assert found.stragglers == ()
    assert "99 steps are fewer than two windows of 50" in str(found)
    assert named(find_stragglers(steps(compute), ranks(64), window=20)) == [3]


def test_only_ranks_of_one_role_are_compared():
    roles = np.repeat([1, 2], 32)
    compute = factors(64) * np.where(roles == 2, 1.3, 1.0)[:, None]
    compute[5] *= 1.05
    found = find_stragglers(steps(compute), ranks(64, roles=roles))
    assert named(found) == [5]
    assert found.imbalance == pytest.approx(1.3 / 1.15 - 1, abs=0.01)
    assert [(load.role, load.ranks) for load in found.roles] == [(2, 32), (1, 32)]


def test_a_slow_node_is_one_finding():
    compute = factors(128)
    compute[40:48] *= 1.06
    found = find_stragglers(steps(compute), ranks(128))
    assert [(each.node, each.rank) for each in found.nodes] == [("n5", None)]
    assert found.nodes[0].cost_s == pytest.approx(0.06 * 0.1 * 100 * 120, rel=0.2)
    assert found.stragglers == ()
    assert found.transients == ()


def test_a_rank_that_is_slower_than_its_slow_node_is_a_finding_of_its_own():
    compute = factors(128)
    compute[40:48] *= 1.06
    compute[42] *= 1.2
    found = find_stragglers(steps(compute), ranks(128))
    assert [each.node for each in found.nodes] == ["n5"]
    assert [(each.rank, round(each.slower, 1)) for each in found.stragglers] == [(42, 0.2)]


def test_one_slow_rank_does_not_make_its_node_slow():
    compute = factors(128)
    compute[42] *= 1.3
    found = find_stragglers(steps(compute), ranks(128, per_node=2))
    assert found.nodes == ()
    assert named(found) == [42]


def test_few_nodes_are_not_compared():
    found = find_stragglers(steps(factors(32)), ranks(32))
    assert "slow nodes: 4 nodes" in str(found)


@pytest.mark.parametrize("slower", [1.05, 1.5])
def test_a_transient_has_its_first_and_last_step(slower):
    compute = factors(64, 200)
    compute[9, 70:90] *= slower
    (found,) = find_stragglers(steps(compute), ranks(64)).transients
    assert (found.rank, found.basis) == (9, "own history")
    assert abs(found.first_step - 70) <= 3
    assert abs(found.last_step - 89) <= 3
    assert found.slower == pytest.approx(slower - 1, abs=0.02)


def test_two_transients_of_a_rank_are_apart():
    compute = factors(64, 200)
    compute[9, 40:60] *= 1.1
    compute[9, 120:140] *= 1.1
    assert len(find_stragglers(steps(compute), ranks(64)).transients) == 2


def test_a_single_long_step_is_no_transient():
    compute = factors(64, 200)
    compute[9, 70] *= 20
    assert find_stragglers(steps(compute), ranks(64)).transients == ()


def test_slow_drifts_as_of_all_ranks_are_no_transients():
    random = np.random.default_rng(4)
    drift = random.standard_normal((128, 400))
    for step in range(1, 400):
        drift[:, step] = 0.8 * drift[:, step - 1] + 0.6 * drift[:, step]
    assert find_stragglers(steps(1 + 0.02 * drift), ranks(128)).transients == ()


def test_ranks_with_few_equals_are_judged_by_their_own_history():
    roles = [*range(1, 5)]
    compute = factors(4, 200)
    compute[1] *= 1.4  # may be its work
    compute[2, 100:140] *= 1.1
    found = find_stragglers(steps(compute), ranks(4, roles=roles))
    assert found.stragglers == ()
    assert [each.rank for each in found.transients] == [2]
    assert "4 ranks with fewer than 6 ranks of their role: judged by their own history" in str(found)


def barriers(arrivals, compute_ms):
    """A barrier in each step, by all ranks; arrivals in ms, an array (ranks, steps)."""
    count, number = arrivals.shape
    begin = EPOCH + (np.arange(number) * 200 * MS)[None, :] + (arrivals * MS).astype(np.int64)
    zeros = np.zeros(arrivals.size, np.int64)
    return {
        "rank": np.repeat(np.arange(count), number),
        "communicator": zeros + 1,
        "size": zeros + count,
        "sequence": np.tile(np.arange(number), count),
        "step": np.tile(np.arange(number), count),
        "kind": np.full(arrivals.size, "barrier"),
        "bytes": zeros,
        "start_ns": begin.reshape(-1),
        "end_ns": np.repeat(begin.max(axis=0)[None, :], count, axis=0).reshape(-1),
        "before_compute_ns": (np.broadcast_to(compute_ms, arrivals.shape) * MS).astype(np.int64).reshape(-1),
        "before_idle_ns": zeros,
    }


def test_ranks_with_few_equals_are_judged_by_waits():
    late = np.array([[0.0], [0.0], [10.0], [0.0]])
    table = ranks(4)
    waits = find_waits(barriers(np.tile(late, 100), 100 + late), table)
    (found,) = find_stragglers(steps(np.tile(1 + late / 100, 100)), table, waits=waits).stragglers
    assert (found.rank, found.basis) == (2, "waits")
    assert found.slower == pytest.approx(0.1, abs=0.02)


def test_a_rank_with_another_program_than_the_job_is_found():
    roles = [1] * 15 + [2]
    (odd,) = find_stragglers(steps(factors(16)), ranks(16, roles=roles)).odd
    assert (odd.rank, odd.role, odd.usual, odd.communicator, odd.members) == (15, 2, 1, None, 16)


def test_a_rank_with_another_program_than_its_group_is_found():
    roles = np.repeat([1, 2], 8)
    roles[3] = 9
    first = barriers(np.zeros((8, 10)), 1)
    second = first | {"rank": first["rank"] + 8, "communicator": first["communicator"] + 1}
    table = ranks(16, roles=roles)
    waits = find_waits({name: np.concatenate([first[name], second[name]]) for name in first}, table)
    (odd,) = find_stragglers(steps(factors(16)), table, waits=waits).odd
    assert (odd.rank, odd.usual, odd.communicator) == (3, 1, 1)


def test_roles_of_a_pipeline_are_not_odd():
    found = find_stragglers(steps(factors(16)), ranks(16, roles=np.repeat([1, 2, 3, 4], 4)))
    assert found.odd == ()


def test_ranks_may_have_different_steps():
    compute = factors(64, 120)
    compute[7] *= 1.1
    compute[10, :30] = np.nan  # began late
    compute[11, 60:] = np.nan  # died
    compute[12, 119] = 0.01  # cut off in its last step
    found = find_stragglers(steps(compute), ranks(64))
    assert named(found) == [7]
    assert found.transients == ()


def test_a_missing_rank_is_counted():
    found = find_stragglers(steps(factors(63)), ranks(63, world=64))
    assert str(found).startswith("63 of 64 ranks, 100 steps")


def test_segments_add_up_to_steps():
    compute = factors(64)
    compute[37] *= 1.05
    whole = steps(compute)
    parts = {name: np.repeat(values, 3) for name, values in whole.items()}
    parts["compute_ns"] = parts["compute_ns"] // 3
    assert named(find_stragglers(parts, ranks(64))) == [37]


def test_work_outside_steps_is_not_judged():
    table = steps(factors(64))
    outside = {"rank": np.array([5]), "step": np.array([-1]), "compute_ns": np.array([10**12])}
    found = find_stragglers({name: np.concatenate([table[name], outside[name]]) for name in table}, ranks(64))
    assert (found.steps, found.stragglers) == (100, ())


def test_goodput_names_what_the_wall_time_was_spent_on():
    duration = np.full((2, 10), 100 * MS)
    duration[:, 5] = 500 * MS
    start = EPOCH + np.cumsum(duration, axis=1) - duration
    start[:, 8:] += 300 * MS  # a checkpoint
    ends = {"start_ns": np.full(2, EPOCH - 200 * MS), "end_ns": start[:, -1] + 200 * MS}
    table = steps(np.ones((2, 10)), start_ns=start, duration_ns=duration)
    goodput = find_stragglers(table, ranks(2, **ends)).goodput
    expected = {
        "steps": 1000,
        "slow steps": 400,
        "start-up": 200,
        "between steps": 300,
        "after the last step": 100,
    }
    assert goodput == pytest.approx({what: ms / 2000 for what, ms in expected.items()})


def test_goodput_is_not_known_without_the_times_of_steps():
    assert find_stragglers(steps(factors(8)), ranks(8)).goodput is None


def test_a_job_without_steps_has_no_finding():
    found = find_stragglers(steps(np.zeros((8, 0))), ranks(8))
    assert (found.steps, found.stragglers, found.roles) == (0, (), ())
    assert str(found).startswith("8 of 8 ranks, 0 steps")


def test_hosts_may_be_unknown():
    compute = factors(64)
    compute[3] *= 1.1
    table = ranks(64)
    del table["host"]
    (found,) = find_stragglers(steps(compute), table).stragglers
    assert (found.rank, found.node) == (3, "")


def test_a_result_can_be_saved():
    compute = factors(64)
    compute[3] *= 1.1
    assert json.loads(find_stragglers(steps(compute), ranks(64)).to_json())["stragglers"][0]["rank"] == 3


def test_a_window_is_at_least_five_steps():
    with pytest.raises(InvalidArgument, match="window is 4"):
        find_stragglers(steps(factors(8)), ranks(8), window=4)
