# SPDX-License-Identifier: Apache-2.0
"""No byte is counted twice, whatever lies over what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuscope.memory.addresses import uncovered

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=12)


def bytes_of(ranges):
    return {byte for begin, size in ranges for byte in range(begin, begin + size)}


@given(RANGES, RANGES)
def test_pieces_and_cover_sum_to_the_bytes_that_they_unite(ranges, cover):
    left = uncovered(ranges, cover)
    assert sum(left) + len(bytes_of(cover)) == len(bytes_of(ranges) | bytes_of(cover))


@given(RANGES, RANGES)
def test_no_piece_has_more_than_its_own_bytes(ranges, cover):
    own = [len(bytes_of([one]) - bytes_of(cover)) for one in ranges]
    assert all(0 <= left <= most for left, most in zip(uncovered(ranges, cover), own, strict=True))


def test_a_piece_that_lies_partly_in_the_cover_keeps_the_rest():
    assert uncovered([(0, 100), (200, 10)], [(90, 20), (40, 10)]) == [80, 10]
