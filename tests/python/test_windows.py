# SPDX-License-Identifier: Apache-2.0
"""What the collector itself leaves out on request and puts together, on any machine."""

from __future__ import annotations

import gc
import threading

import pytest

import gpuscope as gs

CPU, CUDA = gs.ProfilerActivity.CPU, gs.ProfilerActivity.CUDA


def work(name):
    with gs.record_function(name):
        sum(range(100))


def names(prof):
    return [row.key for row in prof.key_averages()]


def test_regions_are_left_out_while_they_are_toggled_off():
    with gs.profile() as prof:
        for turn in range(3):
            work(f"on {turn}")
            prof.toggle_collection_dynamic(False, [CPU])
            work("off")
            gs.mark("off")
            prof.toggle_collection_dynamic(True, [CPU])
    assert names(prof) == ["on 0", "on 1", "on 2"]
    assert len(prof.trace.marks) == 0
    audit = prof.audit()
    assert audit.complete
    assert audit.regions_off == 3
    assert 0 < audit.regions_off_ns < audit.recorded_ns
    assert any(remark.startswith("regions and operators were left out on request 3 times") for remark in audit.remarks)


def test_a_region_that_was_open_when_they_were_toggled_off_is_whole():
    with gs.profile() as prof, gs.record_function("outer"):
        prof.toggle_collection_dynamic(False, [CPU])
        with gs.record_function("hidden"):
            prof.toggle_collection_dynamic(True, [CPU])
            work("inner")
    assert names(prof) == ["outer", "inner"]
    regions = prof.trace.regions
    assert list(regions.parent) == [0xFFFFFFFF, 0]
    assert regions.duration_ns[0] > regions.duration_ns[1]


def test_each_window_begins_with_everything():
    windows = []
    with gs.profile(
        schedule=gs.schedule(wait=0, warmup=0, active=1, repeat=2), on_trace_ready=lambda p: windows.append(names(p))
    ) as prof:
        prof.toggle_collection_dynamic(False, [CPU])
        work("a")
        prof.step()
        work("b")
        prof.step()
    assert windows[0] == ["ProfilerStep*"]
    assert set(windows[1]) == {"ProfilerStep*", "b"}


def test_toggling_the_gpu_off_leaves_regions_alone():
    with gs.profile() as prof:
        prof.toggle_collection_dynamic(False, [CUDA])
        work("a")
    assert names(prof) == ["a"]
    assert prof.audit().gpu_off == 1


def test_nothing_is_remarked_when_nothing_was_toggled():
    with gs.profile() as prof:
        work("a")
    assert prof.audit().gpu_off == prof.audit().regions_off == 0
    assert not any("on request" in remark for remark in prof.audit().remarks)


@pytest.mark.parametrize("mode", ["full", "aggregate", "ring"])
def test_windows_that_accumulate_hold_what_each_of_them_held(mode):
    counts = []
    with gs.profile(
        mode=mode,
        acc_events=True,
        schedule=gs.schedule(wait=1, warmup=0, active=1, repeat=3),
        on_trace_ready=lambda p: counts.append({row.key: row.count for row in p.key_averages()}),
    ) as prof:
        for step in range(6):
            for _ in range(step):
                work("work")
            work(f"only {step}")
            prof.step()
    assert [count["work"] for count in counts] == [1, 4, 9]
    assert [name for name in counts[-1] if name.startswith("only")] == ["only 1", "only 3", "only 5"]
    row = next(row for row in prof.key_averages() if row.key == "work")
    assert row.p50 > 0
    assert row.cpu_time_total >= row.max >= row.min > 0


def test_steps_of_totals_are_one_path():
    with gs.profile(mode="aggregate", schedule=gs.schedule(wait=0, warmup=0, active=5)) as prof:
        for _ in range(4):
            work("work")
            prof.step()
    assert [(node.name, node.count) for node in prof.tree()] == [("ProfilerStep*", 5), ("work", 4)]


@pytest.mark.parametrize("mode", ["full", "ring"])
def test_a_step_that_another_thread_begins_ends_the_one_before(mode):
    windows = []
    with gs.profile(
        mode=mode,
        schedule=gs.schedule(wait=0, warmup=0, active=2),
        on_trace_ready=lambda p: windows.append([event.trace_name for event in p.events()]),
    ) as prof:
        worker = threading.Thread(target=lambda: [prof.step() for _ in range(4)])
        worker.start()
        worker.join()
    assert windows[:2] == [["ProfilerStep#0", "ProfilerStep#1"], ["ProfilerStep#2", "ProfilerStep#3"]]


def test_time_between_windows_is_not_recorded_time():
    alone = []
    with gs.profile(acc_events=True, schedule=gs.schedule(wait=1, warmup=0, active=1, repeat=2)) as prof:
        for _ in range(4):
            sum(range(200_000))
            prof.step()
            latest = prof._windows.latest
            if latest is not None and latest not in alone:
                alone.append(latest)
    assert prof.audit().recorded_ns == sum(each.audit().recorded_ns for each in alone)
    assert prof.audit().complete


def test_a_table_taken_before_the_next_window_stays_as_it_was():
    prof = gs.profile(acc_events=True)
    with prof:
        work("first")
    starts = prof.trace.regions.start_ns
    before = starts.copy()
    for _ in range(3):
        with prof:
            for _ in range(5000):
                work("more")
    assert len(prof.trace.regions) == 15001
    gc.collect()
    assert (starts == before).all()


def test_what_accumulated_can_be_saved_and_loaded(tmp_path):
    prof = gs.profile(acc_events=True)
    for name in ("first", "second"):
        with prof:
            work(name)
    prof.save(tmp_path / "all.gscope")
    assert names(gs.load(tmp_path / "all.gscope")) == ["first", "second"]
