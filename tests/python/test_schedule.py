# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.errors import InvalidArgument
from gpuscope.profiler import ProfilerAction, schedule

counts = st.integers(0, 6)


@settings(max_examples=600, deadline=None)
@given(wait=counts, warmup=counts, active=st.integers(1, 6), repeat=counts, skip_first=counts, skip_first_wait=counts)
def test_every_step_has_the_action_that_torch_gives_it(**parameters):
    torch_profiler = pytest.importorskip("torch.profiler")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on warmup=0
        theirs = torch_profiler.schedule(**parameters)
    ours = schedule(**parameters)
    assert [ours(step).name for step in range(60)] == [theirs(step).name for step in range(60)]


def test_actions_have_the_values_that_torch_gives_them():
    torch_profiler = pytest.importorskip("torch.profiler")
    for action in ProfilerAction:
        assert torch_profiler.ProfilerAction[action.name].value == action.value


def test_one_cycle_waits_warms_up_records_and_saves():
    plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    assert [plan(step).name for step in range(6)] == ["NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE", "NONE", "NONE"]


@given(wait=counts, warmup=counts, active=st.integers(1, 6), repeat=counts, skip_first=counts, skip_first_wait=counts)
def test_the_first_recorded_step_is_the_first_whose_action_records(**parameters):
    plan = schedule(**parameters)
    assert next(step for step in range(100) if plan(step).records) == plan.first_recorded_step


@given(wait=counts, warmup=counts, active=st.integers(1, 6), repeat=st.integers(1, 4), skip_first=counts)
def test_a_schedule_is_finished_right_after_the_last_save(**parameters):
    plan = schedule(**parameters)
    last = max(step for step in range(200) if plan(step) is ProfilerAction.RECORD_AND_SAVE)
    assert not plan.finished(last)
    assert plan.finished(last + 1)


def test_a_schedule_without_repeat_never_finishes():
    assert not schedule(wait=0, warmup=0, active=1).finished(10**9)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"wait": -1}, "wait is -1; accepted is an integer of at least 0"),
        ({"warmup": -2}, "warmup is -2; accepted is an integer of at least 0"),
        ({"active": 0}, "active is 0; accepted is an integer of at least 1"),
        ({"repeat": -1}, "repeat is -1"),
        ({"skip_first": -1}, "skip_first is -1"),
        ({"skip_first_wait": -1}, "skip_first_wait is -1"),
        ({"wait": 1.5}, "wait is 1.5"),
        ({"active": "3"}, "active is '3'"),
    ],
)
def test_a_bad_number_is_named(wrong, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        schedule(**{"wait": 1, "warmup": 1, "active": 1, **wrong})


def test_a_negative_step_is_refused():
    with pytest.raises(InvalidArgument, match="step is -1"):
        schedule(wait=1, warmup=1, active=1)(-1)
