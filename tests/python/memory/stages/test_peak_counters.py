# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from fakes.allocating_torch import pool, put_pools
from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.frameworks import torch_memory
from gpuscope.memory import allocators
from gpuscope.memory.usage import peak_counters as peaks
from gpuscope.memory.usage.peak_counters import reset_peak
from gpuscope.memory.usage.tracking import memory_stages, track_memory


@pytest.fixture(params=["reports", "counters"])
def torch(request, fake_torch, monkeypatch):
    """Both ways to know a peak."""
    return fake_torch.reports(monkeypatch) if request.param == "reports" else fake_torch


def spike(torch, size):
    torch.take(size)
    torch.give(size)


def test_a_peak_below_an_earlier_one_is_known(torch):
    spike(torch, 1000)
    with track_memory("x") as block:
        spike(torch, 70)
    assert (block.peak_bytes, block.stage.peak_is_exact) == (70, True)


def test_nothing_taken_leaves_what_was_in_use(torch):
    torch.take(30)
    spike(torch, 1000)
    with track_memory("x") as block:
        pass
    assert (block.peak_bytes, block.stage.peak_is_exact) == (30, True)


def test_outer_stages_keep_what_inner_ones_saw(torch):
    with track_memory("outer") as outer:
        spike(torch, 50)
        with track_memory("middle") as middle:
            spike(torch, 90)
            with track_memory("inner") as inner:
                spike(torch, 20)
            spike(torch, 10)
    assert (outer.peak_bytes, middle.peak_bytes, inner.peak_bytes) == (90, 90, 20)


def test_siblings_do_not_see_each_other(torch):
    with track_memory("outer") as outer:
        with track_memory("a") as a:
            spike(torch, 40)
        spike(torch, 60)
        with track_memory("b") as b:
            spike(torch, 30)
    assert (outer.peak_bytes, a.peak_bytes, b.peak_bytes) == (60, 40, 30)


def test_stages_that_overlap_without_nesting(torch):
    tracked, second = track_memory("first"), track_memory("second")
    first = tracked.__enter__()
    spike(torch, 10)
    later = second.__enter__()
    spike(torch, 50)
    tracked.__exit__(None, None, None)
    spike(torch, 30)
    second.__exit__(None, None, None)
    assert (first.peak_bytes, later.peak_bytes) == (50, 50)


def test_reset_keeps_what_open_stages_saw(torch):
    with track_memory("x") as block:
        spike(torch, 80)
        reset_peak()
        spike(torch, 20)
    assert (block.peak_bytes, block.stage.peak_is_exact) == (80, True)


def test_reset_restarts_torchs_counter(fake_torch):
    spike(fake_torch, 80)
    reset_peak()
    assert sys.modules["torch"].cuda.max_memory_allocated() == 0


def test_reset_keeps_the_peak_for_the_next_statement(fake_torch):
    track_memory("a")
    spike(fake_torch, 80)
    reset_peak()
    track_memory("b")
    assert memory_stages().stages[1].peak_bytes == 80


def test_a_block_keeps_the_peak_for_the_next_statement(fake_torch):
    track_memory("a")
    spike(fake_torch, 80)
    with track_memory("x"):
        spike(fake_torch, 5)
    track_memory("b")
    assert memory_stages().stages[2].peak_bytes == 80


@pytest.mark.parametrize("begun", [False, True])
def test_reset_on_a_machine_without_work_does_nothing(fake_torch, begun):
    fake_torch.begun = begun
    reset_peak("cpu")
    reset_peak(0)
    assert fake_torch.restarts == begun


def test_reset_of_no_device_is_refused(fake_torch):
    with pytest.raises(InvalidArgument, match="device is 'x'"):
        reset_peak("x")


class TestReports:
    def test_the_programs_counters_are_left_alone(self, reporting_torch):
        spike(reporting_torch, 1000)
        with track_memory("x"):
            spike(reporting_torch, 70)
        assert reporting_torch.restarts == 0

    def test_a_restart_by_the_program_loses_nothing(self, reporting_torch):
        with track_memory("x") as block:
            spike(reporting_torch, 70)
            sys.modules["torch"].cuda.reset_peak_memory_stats()
        assert (block.peak_bytes, block.stage.peak_is_exact) == (70, True)

    def test_a_new_peak_of_a_thread_that_reports_nothing_is_seen(self, reporting_torch):
        with track_memory("x") as block:
            reporting_torch.take(70, reported=False)
            reporting_torch.give(70)
        assert block.peak_bytes == 70

    def test_a_pause_of_the_reports_leaves_what_the_counter_says(self, reporting_torch, monkeypatch):
        spike(reporting_torch, 100)
        reports = SimpleNamespace(pauses=0)
        monkeypatch.setattr(torch_memory, "acquired_reports", lambda: reports)
        with track_memory("x") as block:
            spike(reporting_torch, 30)
            reports.pauses += 1
            reporting_torch.take(70, reported=False)
            reporting_torch.give(70)
        assert (block.peak_bytes, block.stage.peak_at_most_bytes) == (30, 100)

    def test_they_are_had_only_while_a_stage_is_open(self, reporting_torch):
        with track_memory("x"), track_memory("y"):
            assert reporting_torch.acquired == 2
        with pytest.raises(RuntimeError), track_memory("x"):
            raise RuntimeError
        track_memory("z")
        assert (reporting_torch.acquired, reporting_torch.watches) == (0, [])

    def test_a_block_that_ends_on_another_thread_ends_no_other_blocks_reports(self, reporting_torch):
        block = track_memory("x")
        block.__enter__()
        thread = threading.Thread(target=block.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        assert (reporting_torch.acquired, reporting_torch.watches) == (1, [])

    def test_they_end_even_where_reading_fails(self, reporting_torch, monkeypatch):
        with track_memory("x"):
            monkeypatch.setattr("gpuscope.memory.usage.tracking.measured", None)
        assert (reporting_torch.acquired, reporting_torch.watches) == (0, [])

    def test_the_counters_are_taken_where_they_are_refused(self, reporting_torch, monkeypatch):
        monkeypatch.setattr(torch_memory, "acquire_reports", lambda: "torch.profiler runs")
        spike(reporting_torch, 1000)
        with track_memory("x") as block:
            spike(reporting_torch, 70)
        assert (block.peak_bytes, reporting_torch.restarts) == (70, 1)

    def test_the_counters_are_taken_where_they_fail(self, reporting_torch, monkeypatch):
        def fail(device):
            raise RuntimeError("for the test")

        monkeypatch.setattr(_core, "PeakMemory", fail)
        with track_memory("x") as block:
            spike(reporting_torch, 70)
        assert (block.peak_bytes, reporting_torch.acquired) == (70, 0)


class TestCounters:
    def test_a_restart_by_the_program_inside_makes_the_peak_a_bound(self, fake_torch):
        fake_torch.take(50)
        with track_memory("x") as block:
            fake_torch.give(40)
            sys.modules["torch"].cuda.reset_peak_memory_stats()
        assert (block.peak_bytes, block.stage.peak_at_most_bytes) == (50, None)

    def test_a_counter_that_cannot_be_restarted_is_read(self, fake_torch, monkeypatch):
        def fail(device):
            raise RuntimeError("for the test")

        fake_torch.take(10)
        spike(fake_torch, 90)
        monkeypatch.setattr(sys.modules["torch"].cuda, "reset_peak_memory_stats", fail)
        with track_memory("x") as block:
            spike(fake_torch, 20)
        assert (block.peak_bytes, block.stage.peak_at_most_bytes) == (10, 100)


class TestOtherLibraries:
    def test_their_memory_is_added(self, fake_torch, monkeypatch):
        fake_torch.take(10)
        put_pools(monkeypatch, [pool("torch", 10), pool("cupy", 5, reserved=512), pool("cuda pool", 1, device=1)])
        with track_memory("x") as block:
            pass
        assert (block.allocated_bytes, block.reserved_bytes) == (15, 1024 + 512)

    def test_without_a_count_of_its_peaks_a_library_has_the_larger_of_its_ends(self, fake_torch, monkeypatch):
        pools = [pool("cupy", 5)]
        put_pools(monkeypatch, pools)
        with track_memory("x") as block:
            spike(fake_torch, 100)
            pools[0] = pool("cupy", 2)
        assert (block.peak_bytes, block.stage.peak_at_most_bytes) == (105, None)

    def test_a_library_that_is_only_imported_changes_nothing(self, fake_torch, monkeypatch):
        put_pools(monkeypatch, [pool("cupy", 0)])
        with track_memory("x") as block:
            spike(fake_torch, 100)
        assert (block.peak_bytes, block.stage.peak_is_exact) == (100, True)

    def test_a_cache_that_can_serve_requests_unseen_makes_the_peak_a_bound(self, fake_torch, monkeypatch):
        put_pools(monkeypatch, [pool("cupy", 0, reserved=512)])
        with track_memory("x") as block:
            pass
        assert (block.peak_bytes, block.stage.peak_at_most_bytes) == (0, None)

    def test_torch_is_read_where_they_cannot_be(self, fake_torch, monkeypatch):
        put_pools(monkeypatch, [])
        monkeypatch.setattr(allocators, "pools", None)
        fake_torch.take(10)
        with track_memory("x") as block:
            pass
        assert block.allocated_bytes == 10
        assert block.stage.why.startswith("memory of other libraries is not known: ")

    @pytest.mark.parametrize(("highest", "expected"), [(9, (9, 9)), (8, (5, 8))])
    def test_a_new_peak_by_their_own_count_is_known(self, fake_torch, monkeypatch, highest, expected):
        pools = [pool("jax", 5, peak=8)]
        put_pools(monkeypatch, pools)
        with track_memory("x") as block:
            pools[0] = pool("jax", 5, peak=highest)
        assert (block.peak_bytes, block.stage.peak_at_most_bytes) == expected


def test_no_watch_is_left_open(fake_torch):
    before = sum(map(len, peaks._open.values()))
    for _ in range(10):
        with track_memory("x"):
            pass
    assert sum(map(len, peaks._open.values())) == before


def test_threads_enter_and_leave_at_the_same_time(torch):
    tracked = track_memory("x")

    def work():
        for _ in range(200):
            with tracked:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory_stages().stages[0].count == 800
    assert torch.acquired == 0
