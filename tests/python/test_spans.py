# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.spans import covered_ns, expand, free_lanes, in_turn, intersection, overlaps, union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=12)


def arrays(spans):
    starts, lengths = np.array(spans, np.int64).reshape(-1, 2).T
    return starts, starts + lengths


def moments_of(starts, ends):
    return {at for start, end in zip(starts.tolist(), ends.tolist(), strict=True) for at in range(start, end)}


@given(SPANS)
def test_a_union_has_the_moments_of_its_spans(spans):
    assert moments_of(*union(*arrays(spans))) == moments_of(*arrays(spans))


@given(SPANS)
def test_spans_in_turn_have_each_moment_once(spans):
    begins, until = in_turn(*arrays(spans))
    assert (until - begins).sum() == len(moments_of(*arrays(spans)))


@given(SPANS, SPANS)
def test_an_intersection_has_the_moments_of_both(spans, others):
    both = intersection(union(*arrays(spans)), union(*arrays(others)))
    assert moments_of(*both) == moments_of(*arrays(spans)) & moments_of(*arrays(others))


@given(SPANS, SPANS)
def test_spans_cover_the_moments_that_they_share(spans, others):
    shared = covered_ns(*union(*arrays(spans)), *arrays(others))
    every = moments_of(*arrays(spans))
    assert shared.tolist() == [len(every & set(range(start, start + length))) for start, length in others]


@given(SPANS, SPANS)
def test_pairs_that_overlap_are_found_by_row(spans, others):
    apart, (begins, until) = union(*arrays(spans)), arrays([each for each in others if each[1]])
    rows, found = overlaps(apart, begins, until)
    expected = [
        (row, at)
        for row in range(len(begins))
        for at in range(len(apart[0]))
        if begins[row] < apart[1][at] and apart[0][at] < until[row]
    ]
    assert list(zip(rows.tolist(), found.tolist(), strict=True)) == expected


def test_each_entry_has_its_places():
    rows, found = expand(np.array([5, 0, 2]), np.array([2, 0, 3]))
    assert rows.tolist() == [0, 0, 2, 2, 2]
    assert found.tolist() == [5, 6, 2, 3, 4]


def test_a_span_is_in_the_first_lane_that_is_free():
    starts, ends = np.array([0, 1, 2, 6, 7]), np.array([5, 3, 4, 8, 9])
    assert free_lanes(starts, ends).tolist() == [0, 1, 2, 0, 1]


def test_a_lane_is_free_when_its_span_ends():
    assert free_lanes(np.array([0, 1, 3]), np.array([5, 3, 4])).tolist() == [0, 1, 1]


@given(SPANS)
def test_spans_of_one_lane_do_not_overlap(spans):
    starts, ends = arrays(sorted(spans))
    lane = free_lanes(starts, ends)
    for number in range(int(lane.max(initial=-1)) + 1):
        assert (starts[lane == number][1:] >= ends[lane == number][:-1]).all()


def test_spans_without_a_free_lane_are_in_the_last_one():
    assert free_lanes(np.zeros(4, np.int64), np.full(4, 9), most=2).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(("shortest", "lanes"), [(0, [0, 0, 0, 1]), (1, [0, 1, 0, 1])])
def test_an_empty_span_takes_its_lane_for_the_shortest_time(shortest, lanes):
    starts, ends = np.array([0, 0, 1, 1]), np.array([0, 0, 3, 3])
    assert free_lanes(starts, ends, shortest=shortest).tolist() == lanes
