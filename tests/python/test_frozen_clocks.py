# SPDX-License-Identifier: Apache-2.0
"""Fixtures that stop Python's clocks, as freezegun and time-machine do, stop nothing that is measured or waited for."""

from __future__ import annotations

import sys
import time

import pytest

import gpuscope
from gpuscope import _core
from gpuscope.memory.history import references
from gpuscope.monitor import layout, programs
from gpuscope.pytest_plugin.replay import ReplayClock

CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")


def work():
    return sum(range(2000))


def spin(seconds):
    """Works for so long, by the core's clock."""
    end = _core.monotonic_ns() + seconds * 1e9
    while _core.monotonic_ns() < end:
        pass


@pytest.fixture
def frozen(monkeypatch):
    """Stops them in the module `time` and in every module that has taken one of them from there."""
    stopped = {id(getattr(time, name)): lambda: 1.0 for name in CLOCKS}
    stopped |= {id(getattr(time, f"{name}_ns")): lambda: 1_000_000_000 for name in CLOCKS}
    stopped[id(time.sleep)] = lambda seconds: None
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", "").partition(".")[0] in ("gpuscope", "time"):
            for name, value in [*vars(module).items()]:
                if id(value) in stopped:
                    monkeypatch.setattr(module, name, stopped[id(value)])
    assert time.perf_counter() == time.perf_counter()


def test_a_benchmark_keeps_to_its_budget(frozen):
    result = gpuscope.benchmark(work, budget=0.1)
    assert 0 < result.seconds < 5
    assert result.estimate.value > 0


def test_a_comparison_keeps_to_its_budget(frozen):
    assert 0 < gpuscope.compare(work, work, budget=0.1).seconds < 5


def test_a_sweep_keeps_to_its_budget(frozen):
    assert gpuscope.sweep(lambda n: work, n=[1, 2], budget=0.1).points[0].estimate.value > 0


def test_timed_and_timer_show_what_passed(frozen):
    with gpuscope.timed("frozen clocks"), gpuscope.Timer() as timer:
        spin(0.002)
    assert timer.launch_time >= 0.002
    assert gpuscope.timings()["frozen clocks"].launch.total >= 0.002


def test_events_without_a_gpu_are_apart(frozen):
    start, end = gpuscope.Event(enable_timing=True), gpuscope.Event(enable_timing=True)
    start.record()
    spin(0.002)
    end.record()
    if start.measures == "cpu":
        assert start.elapsed_time(end) >= 2


def test_a_rate_is_of_the_time_that_passed(frozen):
    found = gpuscope.measure_throughput(lambda batch: spin(1e-4), [[1, 2]] * 20)
    assert 0 < found.samples_per_second < 2 / 1e-4


def test_latencies_are_of_the_time_that_passed(frozen):
    assert gpuscope.measure_latency(lambda x: spin(1e-4), 1, num_iterations=20).wall.samples.min() >= 1e-4


def test_a_loader_takes_the_time_that_passed(frozen):
    class Loader:
        def __iter__(self):
            for number in range(20):
                spin(1e-4)
                yield [number]

    assert gpuscope.benchmark_dataloader(Loader()).samples.min() >= 1e-4


def test_a_profile_counts_the_length_of_its_window(frozen):
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof:
        spin(0.002)
    assert prof._stats().profiling_window_duration_sec >= 0.002


def test_a_search_for_references_ends_when_its_time_is_up(frozen, monkeypatch):
    monkeypatch.setattr(references, "LONGEST_SEARCH", 1e-9)
    search = references.References(references.Names(), set(), {})
    search.chains_to([object()])
    assert search.stopped


def test_the_first_frame_waits_for_samples_no_longer_than_it_says(frozen, monkeypatch):
    monkeypatch.setattr(layout, "_FIRST_SAMPLE_S", 0.05)
    frame = layout.FirstFrame()
    monkeypatch.setattr(layout.FirstFrame, "_draw", lambda self, lines, before="": None)

    class Monitor:
        why = "nothing"

        def take(self):
            return []

    assert frame.draw(Monitor(), layout.Look()) == []


def test_a_page_knows_when_steps_were(frozen, monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_EVERY_S", 0.0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(programs.OPT_OUT, raising=False)
    page = programs.StatusPage()
    page.open("recording")
    page.step(1, "recording")
    spin(0.001)
    page.step(2, "recording")
    (first, _), (second, _) = page._points
    page.close()
    assert second - first >= 0.001


def test_the_clock_for_pytest_benchmark_goes_on(frozen):
    clock = ReplayClock()
    assert clock() < clock()
