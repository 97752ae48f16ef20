# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from fakes.rank_tables import job_tables
from gpuscope.fleet.job import Fleet
from gpuscope.fleet.orders import find_swapped_orders

TENSOR, DATA = 11, 5


def calls(ranks=8, steps=10, swapped=(), between=lambda step: True):
    """Two calls a step, of two communicators: all_gather, then all_reduce; some ranks the other way round."""
    rows = []
    for rank in range(ranks):
        for step in range(steps):
            order = [(TENSOR, "all_gather"), (DATA, "all_reduce")]
            if rank in swapped and between(step):
                order.reverse()
            rows += [(rank, step, group, kind, 1000 * step + place) for place, (group, kind) in enumerate(order)]
    names = ("rank", "step", "communicator", "kind", "called_ns")
    return {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def test_the_same_order_is_no_finding():
    assert find_swapped_orders(calls()) == ()


def test_a_rank_with_another_order_is_named_with_its_first_step():
    (found,) = find_swapped_orders(calls(swapped=(3,), between=lambda step: step >= 4))
    assert (found.rank, found.first, found.second, found.step, found.steps) == (3, DATA, TENSOR, 4, 6)
    assert found.kinds == ("all_reduce", "all_gather")
    assert (found.ranks, found.has_majority) == (8, True)


def test_two_ranks_that_differ_are_both_named_without_a_majority():
    found = find_swapped_orders(calls(ranks=2, swapped=(1,)))
    assert [each.rank for each in found] == [0, 1]
    assert not any(each.has_majority for each in found)


def test_an_order_that_differs_now_and_then_is_chance():
    assert find_swapped_orders(calls(swapped=(3,), between=lambda step: step % 3 == 0)) == ()


def test_calls_at_unknown_times_have_no_order():
    table = calls(swapped=(3,))
    table["called_ns"] = np.full_like(table["called_ns"], -1)
    assert find_swapped_orders(table) == ()


def test_ranks_without_both_communicators_are_not_compared():
    table = calls(swapped=(3,))
    kept = (table["rank"] == 3) | (table["communicator"] == DATA)
    assert find_swapped_orders({name: values[kept] for name, values in table.items()}) == ()


def test_the_verdict_of_a_job_names_the_rank():
    tables = job_tables(ranks=8, steps=20)
    again = {name: values.copy() for name, values in tables["collective"].items()}
    again["communicator"][:] = 9
    again["called_ns"] += np.where(again["rank"] == 3, -1, 1)
    joined = {name: np.concatenate([values, again[name]]) for name, values in tables["collective"].items()}
    found = Fleet({**tables, "collective": joined}).diagnose()
    assert [each.ranks for each in found.findings if each.kind == "order"] == [(3,)]
