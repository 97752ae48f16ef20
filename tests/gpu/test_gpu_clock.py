# SPDX-License-Identifier: Apache-2.0
"""Recordings that may go on for hours have the times of the GPU's own clock, on ours."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gpuscope
from gpuscope import ProfilerActivity, _core

SPIN_NS = 20_000
LAUNCHES = 2_000


@pytest.fixture(scope="module")
def kernels() -> _core.Kernels:
    return _core.Kernels()


def recorded(kernels: _core.Kernels, mode: str) -> tuple[gpuscope.profile, np.ndarray]:
    """A recording of kernels that are waited for one by one, and when each had been waited for, on our clock in ns.

    That is a line which does not change within a process: the wall clock was 44 us off it after five minutes.
    """
    ends = []
    with gpuscope.profile(activities=[ProfilerActivity.CUDA], mode=mode) as prof:
        for _ in range(LAUNCHES):
            kernels.spin(SPIN_NS)
            kernels.synchronize()
            ends.append(_core.now_ns())
    return prof, np.array(ends)


def latencies_us(prof: gpuscope.profile) -> np.ndarray:
    """From each launch to its kernel's beginning."""
    kernels, calls = prof.trace.kernels, prof.trace.api
    began = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist(), strict=True))
    starts = zip(kernels["correlation"].tolist(), kernels["start_ns"].tolist(), strict=True)
    return np.array([start_ns - began[correlation] for correlation, start_ns in starts]) / 1e3


def test_a_ring_is_of_the_gpus_own_clock_and_a_full_recording_of_cuptis(kernels: _core.Kernels) -> None:
    ring, _ = recorded(kernels, "ring")
    full, _ = recorded(kernels, "full")
    assert int(ring.trace.info["clock.gpu_readings"]) > 0
    assert "clock.gpu_readings" not in full.trace.info


def test_nothing_begins_before_it_was_launched_or_ends_after_it_was_waited_for(kernels: _core.Kernels) -> None:
    prof, ends = recorded(kernels, "ring")
    table = prof.trace.kernels
    assert latencies_us(prof).min() > 0
    # A reading of the GPU's clock is off by some us.
    assert (ends - (table["start_ns"] + table["duration_ns"])).min() > -20_000


def test_launches_take_as_long_as_by_cuptis_own_times(kernels: _core.Kernels) -> None:
    ring, full = (np.median(latencies_us(recorded(kernels, mode)[0])) for mode in ("ring", "full"))
    assert ring == pytest.approx(full, abs=3)


def test_kernels_last_as_long_as_they_do(kernels: _core.Kernels) -> None:
    prof, _ = recorded(kernels, "ring")
    assert np.median(prof.trace.kernels["duration_ns"]) == pytest.approx(SPIN_NS, rel=0.1)


def test_what_reads_the_clock_is_no_work_of_the_program(kernels: _core.Kernels) -> None:
    with gpuscope.profile(activities=[ProfilerActivity.CUDA], mode="ring") as prof:
        time.sleep(1.5)  # the clock is read five times meanwhile
        kernels.spin(SPIN_NS)
    assert int(prof.trace.info["clock.gpu_readings"]) > 3
    assert prof.audit().launches == prof.audit().kernels == 1
    assert prof.audit().complete
