# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope
from fakes.recordings import aggregate, make_trace
from gpuscope import _core
from gpuscope._core import Flag, FunctionKind, RegionKind
from gpuscope.diagnosis import Steps, find_steps
from gpuscope.errors import NotAvailable
from gpuscope.steps.steps import as_passed, calls_of, count_before, profiler_spans, whole_run
from gpuscope.trace import NONE, Trace, moments_of

SPAN = {"session.start_ns": "0", "session.stop_ns": "250000000"}


def regions(rows, info=None):
    """Rows of name, start, duration, parent and, if it is not the first, thread."""
    names = sorted({name for name, *_ in rows})
    columns = {
        "start_ns": [start for _, start, *_ in rows],
        "duration_ns": [duration for _, _, duration, *_ in rows],
        "parent": [parent for *_, parent in rows],
        "path": [names.index(name) for name, *_ in rows],
    }
    return {"path": {"name": names}, "thread": {"system_id": [1]}, "region": columns}


def spans(steps):
    return list(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True))


def test_steps_that_the_program_marked_go_to_the_next_and_the_last_to_its_end():
    rows = [("ProfilerStep#3", 100, 40, NONE), ("other", 105, 10, 0), ("ProfilerStep#4", 150, 30, NONE)]
    steps = find_steps(make_trace(regions(rows), info=SPAN))
    assert spans(steps) == [(100, 150), (150, 180)]
    assert steps.source == "ProfilerStep#N"
    assert steps.thread == 0


def test_without_marks_the_outermost_region_that_takes_most_and_repeats_gives_the_steps():
    rows = [("once", 0, 10_000, NONE)]
    rows += [("short", 20_000 + 100 * turn, 5, NONE) for turn in range(6)]
    rows += [("train", 20_010 + 100 * turn, 80, NONE) for turn in range(6)]
    rows += [("inner", 20_012 + 100 * turn, 70, 7 + turn) for turn in range(6)]
    steps = find_steps(make_trace(regions(rows), info=SPAN))
    assert spans(steps)[0] == (20_010, 20_110)
    assert spans(steps)[-1] == (20_510, 20_590)
    assert len(steps) == 6
    assert steps.source == 'the region "train"'


def test_four_turns_are_no_steps():
    rows = [("train", 100 * turn, 80, NONE) for turn in range(4)]
    assert find_steps(make_trace(regions(rows), info=SPAN)).source == "the whole run"


def test_ranges_that_overlap_whatever_runs_beside_are_no_steps():
    tables = regions([("request", 100 * turn, 500, NONE) for turn in range(9)])
    tables["region"]["flags"] = [int(Flag.ASYNC)] * 9
    assert find_steps(make_trace(tables, info=SPAN)).source == "the whole run"


def test_operators_and_modules_that_repeat_are_no_steps():
    for kind in (RegionKind.OP, RegionKind.MODULE):
        tables = regions([("aten::mul_", 100 * turn, 80, NONE) for turn in range(9)])
        tables["path"]["kind"] = [int(kind)]
        assert find_steps(make_trace(tables, info=SPAN)).source == "the whole run"


def calls(rows):
    """Rows of name, start in ms, duration, parent and kind."""
    return {
        "thread": {"system_id": [1]},
        "python_function": {
            "start_ns": [start * 1_000_000 for _, start, *_ in rows],
            "duration_ns": [duration * 1_000_000 for _, _, duration, *_ in rows],
            "name": [name for name, *_ in rows],
            "parent": [parent for *_, parent, _ in rows],
            "kind": [int(kind) for *_, kind in rows],
        },
    }


def test_a_function_that_one_call_calls_again_and_again_takes_the_steps():
    python, built_in = FunctionKind.PYTHON, FunctionKind.BUILT_IN
    rows = [("train.py(1): <module>", 0, 240, NONE, python)]
    rows += [("train.py(9): step", 10 + 40 * turn, 35, 0, python) for turn in range(5)]
    rows += [("train.py(5): layer", 12 + 40 * turn, 30, 1 + turn, python) for turn in range(5)]
    rows += [("<built-in function sleep>", 10 + 40 * turn, 39, 0, built_in) for turn in range(5)]
    steps = find_steps(make_trace(calls(rows), info=SPAN))
    assert steps.source == "calls of train.py(9): step"
    assert spans(steps)[0] == (10_000_000, 50_000_000)
    assert spans(steps)[-1] == (170_000_000, 205_000_000)
    assert steps.thread == 0


def test_a_function_that_takes_little_of_the_time_takes_no_steps():
    rows = [("log", 40 * turn, 10, NONE, FunctionKind.PYTHON) for turn in range(6)]
    assert find_steps(make_trace(calls(rows), info=SPAN)).source == "the whole run"


def test_steps_that_are_no_regions_are_facts_of_the_recording():
    facts = {**SPAN, "session.step_edges_ns": "1000 50 60", "session.step_thread": "7"}
    steps = find_steps(make_trace({"thread": {"system_id": [5, 7]}}, info=facts))
    assert spans(steps) == [(1000, 1050), (1050, 1110)]
    assert (steps.source, steps.thread) == ("step()", 1)


def test_steps_of_several_windows_are_those_of_the_latest_and_say_so():
    def window(edges, count):
        facts = {**SPAN, "session.step_edges_ns": edges, "session.steps": count}
        return make_trace({}, info=facts).store

    steps = find_steps(Trace(_core.merge([window("1000 50 60 70", "3"), window("9000 50 60", "2")])))
    assert spans(steps) == [(9000, 9050), (9050, 9110)]
    assert steps.source == "the latest 2 of 5 calls of step()"


# From 0 to 400 and from 1000 to 1500.
TWO_WINDOWS = {"session.start_ns": "0", "session.stop_ns": "1500", "session.windows_ns": "0 400 600 500"}


def test_the_last_step_of_each_window_ends_where_its_region_does():
    numbers = {3: 100, 4: 200, 7: 1000, 8: 1100}
    rows = [(f"ProfilerStep#{number}", start, 90, NONE) for number, start in numbers.items()]
    steps = find_steps(make_trace(regions(rows), info=TWO_WINDOWS))
    assert spans(steps) == [(100, 200), (200, 290), (1000, 1100), (1100, 1190)]


def test_the_last_step_of_each_window_ends_where_its_last_kernel_does():
    starts = [10 * turn for turn in range(6)] + [1000 + 10 * turn for turn in range(6)]
    kernels = {"start_ns": starts, "duration_ns": [4] * 12, "variant": [0] * 12}
    tables = {"device": {"name": ["GPU"]}, "track": {"device": [0]}, "variant": {"name": ["k"]}, "kernel": kernels}
    steps = find_steps(make_trace(tables, info=TWO_WINDOWS))
    assert [span for span in spans(steps) if span[1] - span[0] != 10] == [(50, 54), (1050, 1054)]


ONE_KERNEL = {
    "kernel": {"start_ns": [0], "duration_ns": [1]},
    "variant": {"name": ["k"]},
    "track": {"device": [0]},
}


def test_without_gpu_work_the_run_is_one_step_where_nothing_repeats():
    steps = find_steps(make_trace({}, info=SPAN))
    assert (len(steps), steps.source) == (1, "the whole run")


def test_time_between_windows_is_in_no_step_where_nothing_repeats():
    facts = {"session.windows_ns": "0 150000000 600000000 50000000"}
    steps = find_steps(make_trace(ONE_KERNEL, info={**SPAN, **facts}))
    assert [span[0] // 1_000_000 for span in spans(steps)] == [0, 100, 750]
    assert [span[1] // 1_000_000 for span in spans(steps)] == [100, 150, 800]


def test_pieces_of_a_run_cover_its_windows_and_no_time_between():
    facts = {"session.windows_ns": "0 150000000 600000000 50000000"}
    pieces = whole_run(make_trace({}, info={**SPAN, **facts}), 8)
    assert pieces.durations_ns.sum() == 200_000_000
    assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()
    assert [span for span in spans(pieces) if span[0] < 150_000_000 < span[1]] == []
    assert len(pieces) == 8
    assert len(whole_run(make_trace({}, info={"session.start_ns": "5", "session.stop_ns": "5"}), 8)) == 0


def test_steps_that_are_no_regions_are_all_known_of_windows_that_accumulate():
    prof = gpuscope.profile(acc_events=True)
    ended_ns = []
    for _ in range(3):
        with prof:
            for _ in range(4):
                prof.step()
        ended_ns.append(_core.now_ns())
        assert prof.trace is not None  # puts those so far together
    steps = find_steps(prof.trace)
    assert (len(steps), steps.source) == (12, "step()")
    assert len(profiler_spans(prof.trace)) == 12
    windows = np.searchsorted(ended_ns, np.stack([steps.start_ns, steps.end_ns]))
    assert windows.tolist() == [[window for window in range(3) for _ in range(4)]] * 2


def test_windows_that_accumulate_say_where_each_is():
    schedule = gpuscope.schedule(wait=1, warmup=0, active=1, repeat=3)
    latest = []
    with gpuscope.profile(
        acc_events=True, schedule=schedule, on_trace_ready=lambda p: latest.append(p._windows.latest.trace.info)
    ) as prof:
        for _ in range(6):
            prof.step()
    moments = moments_of(prof.trace.info, "session.windows_ns")
    assert moments == [int(info[f"session.{end}_ns"]) for info in latest for end in ("start", "stop")]


@pytest.mark.parametrize("text", ["", "5", "5 x", "5 1 1", "9223372036854775807 1"])
def test_damaged_windows_are_one(text):
    rows = [("ProfilerStep#3", 100, 40, NONE), ("ProfilerStep#7", 150, 30, NONE)]
    steps = find_steps(make_trace(regions(rows), info={**SPAN, "session.windows_ns": text}))
    assert spans(steps) == [(100, 150), (150, 180)]


@pytest.mark.parametrize("text", ["1000", "1000 x", "9223372036854775807 1", "9" * 30 + " 1", "5 0 0"])
def test_damaged_facts_are_no_steps(text):
    steps = find_steps(make_trace({}, info={**SPAN, "session.step_edges_ns": text}))
    assert steps.source == "the whole run"


def test_steps_of_a_profiler_without_a_schedule_are_known_and_no_regions():
    with gpuscope.profile() as prof:
        for _ in range(3):
            sum(range(20_000))
            prof.step()
    steps = find_steps(prof.trace)
    assert (len(steps), steps.source) == (3, "step()")
    assert (steps.durations_ns > 0).all()
    assert steps.thread is not None
    assert not [event.name for event in prof.events() if "Step" in event.name]


def test_steps_say_how_many_came_before_those_that_are_kept(monkeypatch):
    monkeypatch.setattr("gpuscope.profiler.windows._MOST_STEPS", 4)
    with gpuscope.profile() as prof:
        for _ in range(2000):
            prof.step()
    assert find_steps(prof.trace).source == "the latest 3 of 2,000 calls of step()"


def test_steps_of_a_profiler_without_a_schedule_are_on_the_clock_of_its_recording():
    with gpuscope.profile() as prof:
        for step in range(3):
            with gpuscope.record_function(f"work {step}"):
                pass
            prof.step()
    steps, regions = find_steps(prof.trace), prof.trace.regions
    assert (steps.start_ns <= regions.start_ns).all()
    assert (regions.start_ns + regions.duration_ns <= steps.end_ns).all()


def kernels(sequence, *, launched=True):
    """A kernel each 100 ns, of 60 ns, launched 30 ns before."""
    count = len(sequence)
    names = sorted(set(sequence))
    tables = {
        "track": {"device": [0]},
        "thread": {"system_id": [5]},
        "variant": {"name": names},
        "kernel": {
            "start_ns": [1000 + 100 * at for at in range(count)],
            "duration_ns": [60] * count,
            "correlation": list(range(1, count + 1)),
            "variant": [names.index(name) for name in sequence],
        },
    }
    if launched:
        tables["call"] = {"name": ["cuLaunchKernel"], "kind": [1]}
        tables["api"] = {
            "start_ns": [970 + 100 * at for at in range(count)],
            "correlation": list(range(1, count + 1)),
        }
    return make_trace(tables, info=SPAN)


def test_without_regions_the_period_of_the_kernels_gives_the_steps_from_launch_to_launch():
    steps = find_steps(kernels(["load", *["a", "b", "b"] * 5]))
    assert spans(steps)[0] == (1070, 1370)
    assert spans(steps)[-1] == (2270, 2560)
    assert len(steps) == 5
    assert steps.source == "every 3 kernels that repeat"
    assert steps.thread == 0


def test_one_kernel_that_repeats_is_a_step():
    assert find_steps(kernels(["load", *["a"] * 9])).source == "every kernel that repeats"


def test_kernels_without_a_launch_begin_where_they_ran():
    steps = find_steps(kernels(["a", "b"] * 6, launched=False))
    assert spans(steps)[0] == (1000, 1200)
    assert steps.thread is None


def test_where_nothing_repeats_the_recording_is_cut_each_100_ms():
    steps = find_steps(kernels(["a", "b", "c"]))
    assert spans(steps) == [(0, 100_000_000), (100_000_000, 200_000_000), (200_000_000, 250_000_000)]


def test_totals_alone_have_no_steps():
    with pytest.raises(NotAvailable, match='aggregate mode keeps totals alone; record with mode="full" or "ring"'):
        find_steps(aggregate())


def test_a_recording_without_time_has_no_steps():
    with pytest.raises(NotAvailable, match="no time passed"):
        find_steps(make_trace({}, info={}))


def test_windows_of_a_very_long_recording_are_longer():
    steps = find_steps(make_trace(ONE_KERNEL, info={"session.start_ns": "0", "session.stop_ns": str((1 << 63) - 1)}))
    assert 90_000 < len(steps) <= 100_000
    assert (steps.durations_ns > 0).all()


def test_a_recording_that_ends_at_no_time_has_no_steps():
    with pytest.raises(NotAvailable, match="no time passed"):
        find_steps(make_trace({}, info={"session.start_ns": "0", "session.stop_ns": "9" * 40}))


numbers = st.lists(st.integers(0, 40), max_size=60)


@given(st.lists(st.integers(0, 40), max_size=4).map(sorted), numbers, st.booleans(), st.booleans())
def test_edges_before_moments_are_counted_the_same_in_any_order(edges, moments, in_order, equal):
    edges, moments = np.array(edges, np.int64), np.array(sorted(moments) if in_order else moments, np.int64)
    expected = [sum(edge < moment or (equal and edge == moment) for edge in edges) for moment in moments]
    assert count_before(edges, moments, equal=equal).tolist() == expected


def test_a_moment_is_in_the_step_that_has_it():
    steps = Steps(np.array([10, 20]), np.array([15, 30]), "")
    assert steps.at(np.array([9, 10, 14, 15, 20, 29, 30])).tolist() == [-1, 0, 0, -1, 1, 1, -1]


@pytest.mark.parametrize("far", [0, 1_000_000])
def test_the_first_call_of_each_number_is_found(far):
    calls = {"start_ns": [1, 2, 3, 4], "correlation": [7, 5, 5, 9 + far], "region": [NONE] * 4}
    trace = make_trace({"call": {"name": ["cuLaunchKernel"]}, "thread": {"system_id": [1]}, "api": calls})
    wanted = np.array([5, 9 + far, 6, 7, 0, 2**32 - 1], np.uint32)
    assert calls_of(trace, wanted).tolist() == [1, 3, -1, 0, -1, -1]
    assert calls_of(make_trace({}), wanted).tolist() == [-1] * 6


def launched(*work):
    """Kernels by when they are launched, begin and end."""
    tables = {
        "thread": {"system_id": [1]},
        "track": {"device": [0]},
        "variant": {"name": ["kernel"]},
        "call": {"name": ["cuLaunchKernel"], "kind": [0]},
        "api": {
            "start_ns": [at for at, *_ in work],
            "duration_ns": [1] * len(work),
            "correlation": list(range(1, 1 + len(work))),
        },
        "kernel": {
            "start_ns": [start for _, start, _ in work],
            "duration_ns": [end - start for _, start, end in work],
            "correlation": list(range(1, 1 + len(work))),
        },
    }
    return make_trace(tables, info=SPAN)


def steps_of(*edges):
    return Steps(np.array(edges[:-1]), np.array(edges[1:]), "step()", 0)


def test_a_step_lasts_until_its_work_is_done():
    trace = launched((0, 10, 1000), (110, 1000, 2000), (210, 2000, 2500))
    assert spans(as_passed(trace, steps_of(0, 100, 200, 300))) == [(0, 1000), (1000, 2000), (2000, 2500)]


def test_a_step_that_the_host_stays_in_longer_is_as_it_was():
    trace = launched((0, 10, 90), (110, 120, 190), (210, 220, 290))
    assert spans(as_passed(trace, steps_of(0, 100, 200, 300))) == [(0, 100), (100, 200), (200, 300)]


def test_work_whose_launch_was_not_recorded_is_of_the_step_that_it_begins_in():
    trace = launched((0, 10, 150))
    tables = {"track": {"device": [0]}, "variant": {"name": ["kernel"]}}
    kernel = {"start_ns": [10], "duration_ns": [140], "correlation": [9]}
    unknown = make_trace({**tables, "kernel": kernel}, info=SPAN)
    for each in (trace, unknown):
        assert spans(as_passed(each, steps_of(0, 100, 200))) == [(0, 150), (150, 200)]


def test_a_kernel_that_runs_all_the_time_moves_no_step():
    steps = steps_of(0, 100, 200, 300, 400)
    trace = launched((0, 10, 5000), *((at, at + 5, at + 50) for at in (110, 210, 310)))
    assert spans(as_passed(trace, steps)) == spans(steps)


def test_without_gpu_work_steps_are_as_they_were():
    steps = steps_of(0, 100, 200)
    assert spans(as_passed(make_trace({}, info=SPAN), steps)) == spans(steps)


def test_between_steps_there_is_the_profiler_s_own_time():
    with gpuscope.profile() as prof:
        for _ in range(4):
            prof.step()
    spans = profiler_spans(prof.trace)
    steps = find_steps(prof.trace)
    assert len(spans) == len(steps) == 4
    assert (spans[:, 2] == steps.end_ns).all()
    assert (spans[:, 1] >= steps.start_ns).all()
    assert (spans[:, 0] == steps.thread).all()


@pytest.mark.parametrize("costs", ["", "0 10", "0 10 nine", "0 10 -9", "0 10 99999999999999999999999"])
def test_what_is_no_time_of_the_profiler_for_each_step_is_none(costs):
    facts = {**SPAN, "session.step_edges_ns": "1000 50 60", "session.step_costs_ns": costs, "session.step_thread": "7"}
    assert len(profiler_spans(make_trace({"thread": {"system_id": [7]}}, info=facts))) == 0


def test_the_profiler_s_time_is_no_longer_than_a_step():
    costs = "0 10 9999999999999999999"
    facts = {**SPAN, "session.step_edges_ns": "1000 50 60", "session.step_costs_ns": costs, "session.step_thread": "7"}
    spans = profiler_spans(make_trace({"thread": {"system_id": [7]}}, info=facts))
    assert spans.tolist() == [[0, 1040, 1050], [0, 1050, 1110]]
