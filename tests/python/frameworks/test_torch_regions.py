# SPDX-License-Identifier: Apache-2.0
"""The program's regions in torch's own profilers and execution traces, beside a recording of ours and without one."""

from __future__ import annotations

import json
import threading

import pytest

import gpuscope as gs
from gpuscope.frameworks.torch_regions import regions_for_torch

torch = pytest.importorskip("torch")
autograd = pytest.importorskip("torch.autograd.profiler")

CPU = [torch.profiler.ProfilerActivity.CPU]


def program(region):
    with region("outer", "x=3"):
        torch.ones(2)
        with region("inner"):
            torch.zeros(1)


def seen_by(profiler):
    """Names of events, with those around them."""
    return sorted((event.name, event.cpu_parent and event.cpu_parent.name) for event in profiler.function_events)


def test_the_autograd_profiler_has_them_as_it_has_torchs():
    seen = []
    for region in (autograd.record_function, gs.record_function):
        with autograd.profile(record_shapes=True) as prof:
            program(region)
        seen.append((seen_by(prof), [e.input_shapes for e in prof.function_events if e.name in ("outer", "inner")]))
    assert seen[0] == seen[1]
    assert ("inner", "outer") in seen[1][0]


def test_memory_that_a_region_takes_is_its_own_there():
    with autograd.profile(profile_memory=True) as prof, gs.record_function("takes"):
        kept = torch.ones(1000)
    assert next(row for row in prof.key_averages() if row.key == "takes").cpu_memory_usage == kept.nbytes


def test_an_execution_trace_has_them_while_it_runs(tmp_path):
    observer = gs.ExecutionTraceObserver().register_callback(str(tmp_path / "trace.json"))
    for index in range(4):
        if index == 1:
            observer.start()
        if index == 3:
            observer.stop()
        with gs.record_function(f"loop {index}"):
            torch.ones(2)
    observer.unregister_callback()
    nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
    assert [node["name"] for node in nodes if node["name"].startswith("loop")] == ["loop 1", "loop 2"]


def test_a_torch_profiler_around_a_window_has_them_and_the_window_has_each_once():
    with torch.profiler.profile(activities=CPU, acc_events=True) as theirs, gs.profile() as ours:
        program(gs.record_function)
    of_torch, mine = ([event.name for event in prof.events()] for prof in (theirs, ours))
    for name in ("outer", "inner"):
        assert (of_torch.count(name), mine.count(name)) == (1, 1)


def test_a_torch_profiler_inside_a_window_has_them_and_the_window_has_each_once():
    with gs.profile() as ours:
        program(gs.record_function)
        with torch.profiler.profile(activities=CPU, acc_events=True) as theirs:
            program(gs.record_function)
        program(gs.record_function)
    of_torch, mine = ([event.name for event in prof.events()] for prof in (theirs, ours))
    assert (of_torch.count("outer"), mine.count("outer")) == (1, 3)


def test_an_execution_trace_that_is_started_inside_a_window_has_them(tmp_path):
    observer = gs.ExecutionTraceObserver().register_callback(str(tmp_path / "trace.json"))
    with gs.profile() as prof:
        observer.start()
        program(gs.record_function)
        observer.stop()
    observer.unregister_callback()
    nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
    assert [node["name"] for node in nodes].count("outer") == 1
    assert [event.name for event in prof.events()].count("outer") == 1


@pytest.mark.parametrize("options", [{}, {"record_shapes": True, "profile_memory": True}])
def test_a_recording_by_itself_asks_nothing_of_torch(options):
    with gs.profile(**options), gs.record_function("outer"):
        assert not regions_for_torch._open


def test_without_anybody_who_listens_torch_has_none():
    with gs.record_function("outer"):
        assert not regions_for_torch._open


def test_a_region_that_was_open_before_anybody_listened_ends_alone():
    outer = gs.record_function("outer").__enter__()
    with autograd.profile() as prof, gs.record_function("inner"):
        outer.__exit__(None, None, None)
    assert [name for name, _ in seen_by(prof)] == ["inner"]
    assert not regions_for_torch._open


def test_a_region_that_ends_after_the_profiler_leaves_nothing_open():
    with autograd.profile():
        region = gs.record_function("late").__enter__()
    region.__exit__(None, None, None)
    assert not regions_for_torch._open


def test_threads_that_share_a_region_have_one_each():
    shared = gs.record_function("shared")

    def run():
        with shared:
            torch.ones(2)

    with torch.profiler.profile(activities=CPU, acc_events=True) as prof:
        for _ in range(2):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        run()
    assert [event.name for event in prof.events()].count("shared") >= 1
    assert not regions_for_torch._open


def test_an_exception_passes_and_ends_the_region():
    with autograd.profile() as prof:
        with pytest.raises(ZeroDivisionError), gs.record_function("fails"):
            raise ZeroDivisionError
        torch.zeros(1)
    assert ("aten::zeros", None) in seen_by(prof)


def test_a_decorated_function_is_a_region_there():
    @gs.record_function("decorated")
    def work():
        torch.ones(2)

    with autograd.profile() as prof:
        work()
    assert ("aten::ones", "decorated") in seen_by(prof)


def test_modules_and_marks_are_none():
    with autograd.profile() as prof:
        gs.mark("here")
        with gs._core.region_of_kind("module", 3):
            torch.ones(2)
    assert {"here", "module"}.isdisjoint(name for name, _ in seen_by(prof))
