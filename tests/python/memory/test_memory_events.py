# SPDX-License-Identifier: Apache-2.0
"""How allocations and releases pair up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fakes.memory_events import HOST, events
from gpuscope import plots
from gpuscope.memory.history.events import NEVER


def test_a_release_ends_the_piece_at_its_address():
    pieces = events(("alloc", 1, 10), ("alloc", 2, 20), ("free", 1, 10)).lifetimes()
    assert pieces.died.tolist() == [2, NEVER]
    assert pieces.alive.tolist() == [False, True]


def test_an_address_serves_again():
    pieces = events(("alloc", 1, 10), ("free", 1, 10), ("alloc", 1, 30)).lifetimes()
    assert pieces.bytes.tolist() == [10, 30]
    assert pieces.died.tolist() == [1, NEVER]


def test_an_allocation_whose_release_was_not_seen_ends_with_the_next_at_its_address():
    assert events(("alloc", 1, 10), ("alloc", 1, 30)).lifetimes().died.tolist() == [1, NEVER]


def test_releases_of_what_came_before_are_left_out():
    assert len(events(("free", 1, 10)).lifetimes()) == 0


def test_devices_and_sources_have_addresses_of_their_own():
    pieces = events(
        ("alloc", 1, 10),
        ("alloc", 1, 20, {"device": HOST}),
        ("alloc", 1, 40, {"source": "driver"}),
        ("free", 1, 20, {"device": HOST}),
    ).lifetimes()
    assert pieces.died.tolist() == [NEVER, 3, NEVER]


def test_nothing_has_no_lifetimes():
    assert len(events().lifetimes()) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 5)), max_size=40))
def test_pairs_are_those_of_a_simple_reading(rows):
    made = events(*(("alloc" if alloc else "free", address, size) for alloc, address, size in rows))
    expected, open_pieces = {}, {}
    for row, (alloc, address, _) in enumerate(rows):
        if address in open_pieces:
            expected[open_pieces.pop(address)] = row
        if alloc:
            open_pieces[address] = row
            expected[row] = NEVER
    pieces = made.lifetimes()
    assert dict(zip(pieces.born.tolist(), pieces.died.tolist(), strict=True)) == expected


def test_the_bytes_in_use_that_are_drawn_are_those_of_all_sources(monkeypatch):
    monkeypatch.setattr(plots, "levels", lambda seconds, parts, **_: parts["in use"].tolist())
    driver, cupy = {"source": "driver", "allocated_bytes": 0}, {"source": "cupy", "allocated_bytes": 7}
    rows = [
        ("alloc", 0x1000, 100, driver),  # a segment: the next allocation lies in it
        ("alloc", 0x1000, 40, {"allocated_bytes": 40}),
        ("alloc", 0x9000, 7, cupy),
        ("alloc", 0x8000, 5, driver),
        ("free", 0x1000, 40, {"allocated_bytes": 0}),
    ]
    assert events(*rows).plot() == [40, 47, 52, 12]
