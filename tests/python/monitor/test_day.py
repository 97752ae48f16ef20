# SPDX-License-Identifier: Apache-2.0
"""Hours of a monitor on a clock that runs ahead: nothing grows but the file."""

from __future__ import annotations

import gc
import os
import tracemalloc

import pytest

import gpuscope as gs
from fakes.machines import COST, gpu, sample
from gpuscope import _core
from gpuscope.monitor.history import History
from gpuscope.monitor.prometheus import Collector
from gpuscope.monitor.rows import SampleRows

EVERY_S = 10
GROWTH_BYTES = 64 << 10  # of some MB: what dicts and free lists go up and down by


class Sampler:
    """The core's, at simulated times: reasons, processes and errors change all the time."""

    why = ""

    def __init__(self, interval_ns):
        self.now_s, self.waiting = 1e9, []
        Sampler.made = self

    def advance(self, rounds):
        for number in range(rounds):
            self.now_s += EVERY_S
            facts = gpu(
                xid_errors=[(31, 1 + number, round(self.now_s * 1e9))],
                processes=[(number + 2, 1 << 30)],
                throttled_s={"sw_power_cap": self.now_s / 100},
                why={"fan_ratio": f"reason {number % 7}"},
            )
            self.waiting.append(sample(facts, self.now_s))

    def take(self):
        taken = [*self.waiting]  # the monitor's thread takes while the test's one appends
        del self.waiting[: len(taken)]
        return taken

    def cost(self):
        return COST

    def stop(self):
        return True


@pytest.mark.parametrize("name", ["gpu.csv", "gpu.jsonl"])
def test_hours_of_it_keep_ten_minutes_and_no_more(tmp_path, monkeypatch, name):
    monkeypatch.setattr(_core, "GpuSampler", Sampler)
    history, rows = History(), SampleRows()
    monitor = gs.GPUMonitor(tmp_path / name, interval=EVERY_S)
    collector = Collector(monitor)

    def hour():
        for _ in range(6):
            Sampler.made.advance(60)
            monitor._collect(Sampler.made)
            taken = monitor.take()
            history.append(taken)
            for _ in rows.lines(taken):
                pass
            if pytest.importorskip("prometheus_client"):
                assert [*collector.collect()]
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))

    with monitor:
        monitor.take()
        tracemalloc.start()
        try:
            hour()
            size, files = hour()
            hour()
            later, files_later = hour()
        finally:
            tracemalloc.stop()
    assert later - size < GROWTH_BYTES
    assert files_later == files
    (kept,) = history._samples.values()
    assert len(kept) == 600 / EVERY_S + 1
    assert (monitor._waiting, [*monitor._untaken], len(monitor._latest)) == ([], [], 1)
    assert len(gs.monitor.read_log(tmp_path / name).samples) == 4 * 360


def test_errors_of_many_kinds_keep_counters_of_prometheus_bounded(monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setattr(_core, "GpuSampler", Sampler)
    with gs.GPUMonitor(None, interval=EVERY_S) as monitor:
        collector = Collector(monitor)
        for _ in range(50):
            Sampler.made.advance(3)
            [*collector.collect()]
        before = len(collector._counters)
        for _ in range(50):
            Sampler.made.advance(3)
            [*collector.collect()]
    assert len(collector._counters) == before
