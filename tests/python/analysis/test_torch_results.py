# SPDX-License-Identifier: Apache-2.0
"""The analyses over what torch.profiler itself recorded: counts, times, memory and shapes must come out alike."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fakes.torch_events import as_trace  # noqa: E402
from fakes.torch_steps import STEPS  # noqa: E402
from gpuscope.analysis import events, key_averages  # noqa: E402

FIGURES = ("count", "cpu_memory_usage", "self_cpu_memory_usage", "scope", "is_user_annotation", "is_async")
TIMES = ("cpu_time_total", "self_cpu_time_total", "cpu_time")


@pytest.fixture(scope="module", params=list(STEPS))
def recorded(request):
    step = STEPS[request.param]()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_flops=True
    ) as profiler:
        step()
    return profiler, as_trace(profiler)


def by_key(rows):
    return {(row.key, str(row.input_shapes)): row for row in rows}


@pytest.mark.parametrize("by_shapes", [False, True])
def test_rows_are_torchs(recorded, by_shapes):
    profiler, trace = recorded
    theirs = by_key(profiler.key_averages(group_by_input_shape=by_shapes))
    ours = by_key(key_averages(trace, group_by_input_shape=by_shapes))
    if by_shapes:  # torch gives the row of memory an empty list, as it has no shapes
        theirs = {(name, "" if name == "[memory]" else shapes): row for (name, shapes), row in theirs.items()}
    assert set(ours) == set(theirs)
    for key, row in theirs.items():
        assert [getattr(ours[key], name) for name in FIGURES] == [getattr(row, name) for name in FIGURES], key


@pytest.mark.parametrize("by_shapes", [False, True])
def test_times_are_torchs(recorded, by_shapes):
    profiler, trace = recorded
    nested = {event.name for event in profiler.events() if _lies_in_its_name(event)}  # torch counts recursion twice
    ours = by_key(key_averages(trace, group_by_input_shape=by_shapes))
    for (name, shapes), row in by_key(profiler.key_averages(group_by_input_shape=by_shapes)).items():
        if name not in nested and name != "[memory]":
            mine = ours[name, shapes]
            for figure in TIMES:
                assert getattr(mine, figure) == pytest.approx(getattr(row, figure), abs=0.01 * row.count), name


def _lies_in_its_name(event):
    above = event.cpu_parent
    while above is not None and above.name != event.name:
        above = above.cpu_parent
    return above is not None


def test_rows_come_in_torchs_order(recorded):
    profiler, trace = recorded
    theirs = [row.key for row in profiler.key_averages() if row.key != "[memory]"]
    assert [row.key for row in key_averages(trace) if row.key != "[memory]"] == theirs


def test_torchs_columns_stand_in_the_table(recorded):
    profiler, trace = recorded
    for by_shapes in (False, True):
        theirs, ours = (
            rows.table(max_name_column_width=None, max_shapes_column_width=None).splitlines()
            for rows in (
                profiler.key_averages(group_by_input_shape=by_shapes),
                key_averages(trace, group_by_input_shape=by_shapes),
            )
        )
        titles = [title for title in theirs[1].split("  ") if title and not title.strip().endswith("FLOPs")]
        for title in map(str.strip, titles):
            assert title in ours[1]


def test_operators_of_torchs_formulas_have_its_count(recorded):
    profiler, trace = recorded
    ours = by_key(key_averages(trace, group_by_input_shape=True))
    counted = {key: row for key, row in by_key(profiler.key_averages(group_by_input_shape=True)).items() if row.flops}
    assert counted
    for key, row in counted.items():
        if key[0] not in ("aten::add", "aten::mul"):  # there torch counts the first input, not the broadcast result
            assert ours[key].flops == row.flops, key


def test_events_tell_what_torchs_tell(recorded):
    profiler, trace = recorded
    theirs = [event for event in profiler.events() if event.name != "[memory]"]
    ours = [event for event in events(trace) if event.kind != "memory"]
    plain = ("name", "input_shapes", "sequence_nr", "scope", "cpu_memory_usage", "self_cpu_memory_usage", "is_async")
    for mine, other in zip(sorted(ours, key=lambda event: event._row), theirs, strict=True):
        assert [getattr(mine, name) for name in plain] == [getattr(other, name) for name in plain]
        assert (mine.cpu_parent and mine.cpu_parent.name) == (other.cpu_parent and other.cpu_parent.name)
        assert [child.name for child in mine.cpu_children] == [child.name for child in other.cpu_children]


def test_backward_operators_lead_to_their_forward_ones(recorded):
    _, trace = recorded
    pairs = {event.name: event.forward.name for event in events(trace) if event.forward is not None}
    assert pairs["AddmmBackward0"] == "aten::addmm"


def test_memory_outside_everything_is_an_event_of_its_own(recorded):
    profiler, trace = recorded
    theirs = sorted(event.cpu_memory_usage for event in profiler.events() if event.name == "[memory]")
    assert sorted(event.cpu_memory_usage for event in events(trace) if event.name == "[memory]") == theirs
