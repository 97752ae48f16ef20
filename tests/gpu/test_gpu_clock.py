# SPDX-License-Identifier: Apache-2.0
"""Recordings that may go on for hours have the times of the GPU's own clock, on ours."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from child import last_facts, run, run_code

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


# Of a process of its own: what CUPTI's age is, and whether there is a context, are of the whole process.
WINDOWS = """
import json, sys, time
import gpuscope
from gpuscope import _core, ProfilerActivity

def window(mode, kernels=None, sync=False):
    ends = []
    with gpuscope.profile(activities=[ProfilerActivity.CUDA], mode=mode, sync=sync) as prof:
        kernels = kernels or _core.Kernels()
        for _ in range(500):
            kernels.spin(20_000)
            kernels.synchronize()
            ends.append(_core.now_ns())
    table, calls = prof.trace.kernels, prof.trace.api
    began = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist()))
    starts = zip(table["correlation"].tolist(), table["start_ns"].tolist())
    early = min(start - began[number] for number, start in starts)
    late = min(end - start - last for end, start, last in zip(ends, table["start_ns"], table["duration_ns"]))
    return kernels, {
        "readings": int(prof.trace.info.get("clock.gpu_readings", 0)), "rows": len(table), "early_ns": int(early),
        "late_ns": int(late), "complete": prof.audit().complete, "reasons": list(prof.audit().reasons),
        # Of each wait: its end on our clock, after the wait's end as it is recorded.
        "waits_ns": [int(end - start - took) for end, start, took in zip(
            ends, prof.trace.sync["start_ns"], prof.trace.sync["duration_ns"])] if sync else [],
    }
"""


SCHEDULE = """
import json
import gpuscope
from gpuscope import _core, ProfilerActivity

kernels, rows, early, reasons, readings = _core.Kernels(), [], [], [], 0

def look(prof):
    table, calls = prof.trace.kernels, prof.trace.api
    began = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist()))
    starts = zip(table["correlation"].tolist(), table["start_ns"].tolist())
    rows.append(len(table))
    early.append(min(start - began[number] for number, start in starts))
    reasons.extend(prof.audit().reasons)

schedule = gpuscope.schedule(wait=1, warmup=1, active=1, repeat=2)
with gpuscope.profile(activities=[ProfilerActivity.CUDA], schedule=schedule, on_trace_ready=look) as prof:
    for _ in range(6):
        for _ in range(200):
            kernels.spin(10_000)
            kernels.synchronize()
        prof.step()
readings = int(prof.trace.info.get("clock.gpu_readings", 0))
print(json.dumps({"readings": readings, "rows": rows, "early_ns": min(early), "reasons": reasons}))
"""


RESET = """
import ctypes, json, sys, time
import gpuscope
from gpuscope import _core, ProfilerActivity

driver, rows, reasons, readings = ctypes.CDLL("libcuda.so.1"), [], [], []
kept = _core.Event()  # its pool keeps the context between windows, as CUDA's runtime does

def spin():
    kernels = _core.Kernels()
    for _ in range(200):
        kernels.spin(1_000)
    kernels.synchronize()

spin()
for _ in range(3):
    with gpuscope.profile(activities=[ProfilerActivity.CUDA], mode=sys.argv[1]) as prof:
        spin()
        time.sleep(0.2)
        assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
        time.sleep(0.2)
        spin()
        time.sleep(0.2)
    rows.append(len(prof.trace.kernels))
    reasons.extend(prof.audit().reasons)
    readings.append(int(prof.trace.info.get("clock.gpu_readings", 0)))
spin()
print(json.dumps({"rows": rows, "reasons": reasons, "readings": readings}))
"""


@pytest.mark.parametrize("mode", ["ring", "full"])
def test_a_device_that_is_reset_meanwhile_harms_neither_program_nor_recording(mode: str) -> None:
    found = last_facts(run(sys.executable, "-c", RESET, mode))
    assert (found["rows"], found["reasons"]) == ([400] * 3, [])
    assert [count > 0 for count in found["readings"]] == [mode == "ring"] * 3


def test_a_full_recording_has_cuptis_own_times_until_these_cost_more() -> None:
    found = last_facts(
        run_code(
            WINDOWS + "kernels, young = window('full')\ntime.sleep(21)\n_, old = window('full', kernels)\n"
            "print(json.dumps({'young': young, 'old': old}))"
        )
    )
    assert found["young"]["readings"] == 0
    assert found["old"]["readings"] > 0
    for window in found.values():
        assert (window["rows"], window["reasons"]) == (500, [])
        assert window["early_ns"] > 0
        assert window["late_ns"] > -20_000


def test_waits_of_a_ring_keep_the_time_of_the_host() -> None:
    found = last_facts(run_code(WINDOWS + "print(json.dumps(window('ring', _core.Kernels(), sync=True)[1]))"))
    assert found["readings"] > 0
    assert len(found["waits_ns"]) == 500
    assert 0 < np.median(found["waits_ns"]) < 50_000


def test_windows_of_a_schedule_that_repeats_have_the_times_of_the_gpus_clock() -> None:
    found = last_facts(run_code(SCHEDULE))
    assert found["readings"] > 0
    assert (found["rows"], found["reasons"]) == ([200, 200], [])
    assert found["early_ns"] > 0


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
