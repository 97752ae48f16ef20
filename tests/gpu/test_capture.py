# SPDX-License-Identifier: Apache-2.0
"""What is launched is captured, all of it, each launch in its own region."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

import gpuscope as gs

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuscope.trace import Trace

NONE = 0xFFFFFFFF


def region_names(trace: Trace, regions: np.ndarray) -> list[str]:
    """The names of the given rows of the region table, outermost first, joined by '/'."""
    parents, paths = trace.paths.parent, trace.paths.name
    spelled: dict[int, str] = {}

    def spell(path: int) -> str:
        if path not in spelled:
            name = trace.string(int(paths[path]))
            parent = int(parents[path])
            spelled[path] = name if parent == NONE else f"{spell(parent)}/{name}"
        return spelled[path]

    return ["" if row == NONE else spell(int(trace.regions.path[row])) for row in regions]


def kernels_by_region(trace: Trace) -> Counter[str]:
    rows, counts = np.unique(trace.kernels.region, return_counts=True)
    tally: Counter[str] = Counter()
    for name, count in zip(region_names(trace, rows), counts, strict=True):
        tally[name] += int(count)
    return tally


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_every_launch_of_four_threads_lands_in_its_region(kernels):
    def work(number: int) -> None:
        for block in range(25):
            with gs.record_function(f"thread {number}"), gs.record_function(f"block {block % 5}"):
                kernels.spin(1, count=1000)

    with gs.profile() as prof:
        in_threads(4, work)
    audit = prof.audit()
    assert (audit.launches, audit.kernels, audit.missing) == (100_000, 100_000, 0)
    assert audit.complete, audit.reasons
    expected = {f"thread {number}/block {block}": 5000 for number in range(4) for block in range(5)}
    assert dict(kernels_by_region(prof.trace)) == expected


def test_copies_fills_and_calls_are_rows(kernels):
    with gs.profile() as prof, gs.record_function("moves"):
        kernels.copy_in(1 << 20)
        kernels.fill(1 << 16)
        kernels.copy_out(1 << 10)
        kernels.synchronize()
    trace = prof.trace
    assert sorted(trace.memcpy.bytes) == [1 << 10, 1 << 20]
    assert list(trace.memset.bytes) == [1 << 16]
    assert set(region_names(trace, trace.memcpy.region)) == {"moves"}
    calls = {trace.string(int(trace.calls.name[call])) for call in trace.api.call}
    assert {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuCtxSynchronize"} <= calls


def test_a_large_copy_at_the_end_is_waited_for():
    torch = pytest.importorskip("torch")
    source = torch.ones(1 << 29, device="cuda", dtype=torch.uint8)
    target = torch.empty(1 << 29, dtype=torch.uint8, pin_memory=True)
    target.copy_(source)
    with gs.profile() as prof:
        for _ in range(4):
            target.copy_(source, non_blocking=True)
    assert prof.trace.memcpy.bytes.tolist() == [1 << 29] * 4
    assert prof.audit().copies_without_record == 0


def test_synchronizations_are_recorded_when_asked_for(kernels):
    with gs.profile(sync=True) as prof:
        kernels.spin(100_000)
        kernels.synchronize()
    assert len(prof.trace.sync) >= 1


def test_kernel_durations_are_those_of_the_spins(kernels):
    kernels.spin(1000)
    with gs.profile() as prof:
        for wanted in (10_000, 100_000, 1_000_000):
            kernels.spin(wanted)
    durations = np.sort(prof.trace.kernels.duration_ns)
    assert all(abs(got - wanted) < 5_000 for got, wanted in zip(durations, (10_000, 100_000, 1_000_000), strict=True))


def test_kernels_start_after_their_launch_began_and_within_the_window(kernels):
    kernels.spin(1000)
    with gs.profile() as prof:
        for _ in range(100):
            kernels.spin(2_000)
    trace = prof.trace
    begun = dict(zip(trace.api.correlation.tolist(), trace.api.start_ns.tolist(), strict=True))
    slack_ns = 5_000  # of CUPTI's conversion from the GPU's clock
    for correlation, start in zip(trace.kernels.correlation.tolist(), trace.kernels.start_ns.tolist(), strict=True):
        assert start >= begun[correlation] - slack_ns


def test_kernels_launched_before_are_left_out_and_those_running_at_the_end_are_waited_for(kernels):
    kernels.spin(20_000_000)
    with gs.profile() as prof:
        kernels.spin(50_000_000)
    audit = prof.audit()
    assert (audit.launches, audit.kernels, audit.incomplete) == (1, 1, 0)
    assert prof.trace.kernels.duration_ns[0] > 45_000_000


def test_a_kernel_longer_than_the_wait_is_reported_not_guessed(kernels):
    with gs.profile() as prof:
        kernels.spin(3_500_000_000)
    audit = prof.audit()
    kernels.synchronize()
    assert not audit.complete, str(audit)
    assert audit.missing + audit.incomplete == 1, str(audit)


def test_a_thousand_cycles_lose_nothing(kernels):
    lost = 0
    for _ in range(1000):
        with gs.profile() as prof:
            kernels.spin(1, count=10)
        audit = prof.audit()
        lost += audit.launches != 10 or audit.kernels != 10
    assert lost == 0


def test_windows_of_a_schedule_hold_their_own_steps_only(kernels):
    seen: list[Counter[str]] = []
    with gs.profile(
        schedule=gs.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda prof: seen.append(kernels_by_region(prof.trace)),
    ) as prof:
        for _ in range(8):
            with gs.record_function("work"):
                kernels.spin(1, count=50)
            prof.step()
    assert [sum(tally.values()) for tally in seen] == [100, 100]
    assert set(seen[0]) == {"ProfilerStep#2/work", "ProfilerStep#3/work"}
    assert set(seen[1]) == {"ProfilerStep#6/work", "ProfilerStep#7/work"}


def test_ring_keeps_the_newest_and_counts_what_it_let_go(kernels):
    with gs.profile(mode="ring", max_bytes=1 << 20) as prof:
        for block in range(40):
            with gs.record_function(f"block {block}"):
                kernels.spin(1, count=1000)
            time.sleep(0.01)
        kernels.synchronize()
    tally = kernels_by_region(prof.trace)
    assert len(prof.trace.kernels) < 40_000
    assert tally["block 39"] == 1000
    assert prof.audit().launches == 40_000


def test_aggregate_counts_what_full_counts(kernels):
    kernels.copy_in(8000)  # so that no buffer grows in one of the two

    def run(mode: str) -> dict[str, int]:
        with gs.profile(mode=mode) as prof:
            for _ in range(20):
                with gs.record_function("a"):
                    kernels.spin(1, count=100)
                    with gs.record_function("b"):
                        kernels.saxpy(1000)
                        kernels.copy_in(1024)
        return {row.key: row.count for row in prof.key_averages()}

    assert run("aggregate") == run("full")


@pytest.mark.parametrize("mode", ["full", "aggregate"])
def test_work_counts_for_the_regions_that_are_open_when_it_is_launched(kernels, mode):
    left, goes_on = gs.record_function("left"), gs.record_function("goes on")
    with gs.profile(mode=mode) as prof, gs.record_function("around"):
        left.__enter__()
        kernels.spin(1, count=10)
        goes_on.__enter__()
        kernels.spin(1, count=20)
        left.__exit__(None, None, None)
        kernels.spin(1, count=40)
        goes_on.__exit__(None, None, None)

    def launched_in(name: str) -> int:
        return sum(node.count for node in prof.tree().find(name) if node.kind == "kernel")

    assert (launched_in("around"), launched_in("left")) == (70, 30)
    rows = {row.key: row for row in prof.key_averages()}
    whole = rows["around"].device_time_total
    assert rows["goes on"].self_device_time_total + rows["left"].self_device_time_total == pytest.approx(whole)
    assert rows["left"].self_device_time_total < rows["left"].device_time_total < whole
    assert rows["goes on"].device_time_total == pytest.approx(rows["goes on"].self_device_time_total)


def test_a_process_that_ends_without_stop_still_delivers(tmp_path):
    code = f"""
import gpuscope as gs, gpuscope._core as core
kernels = core.Kernels()
prof = gs.profile(on_trace_ready=lambda p: p.save({str(tmp_path / "left.gscope")!r}))
prof.start()
kernels.spin(1, count=123)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert gs.load(tmp_path / "left.gscope").audit().kernels == 123


def test_what_is_saved_is_what_is_loaded(kernels, tmp_path):
    with gs.profile() as prof, gs.record_function("saved"):
        kernels.spin(1, count=100)
    prof.save(tmp_path / "run.gscope")
    loaded = gs.load(tmp_path / "run.gscope")
    assert loaded.key_averages().table() == prof.key_averages().table()
    assert kernels_by_region(loaded.trace) == {"saved": 100}
