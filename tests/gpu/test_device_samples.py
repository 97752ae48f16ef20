# SPDX-License-Identifier: Apache-2.0
"""What NVML tells beside a recording, against nvidia-smi and the counters themselves."""

from __future__ import annotations

import shutil
import subprocess
import time

import numpy as np
import pytest

import gpuscope as gs

MATRIX = 4096
SECONDS = 2.0


@pytest.fixture(scope="module")
def busy():
    """Keeps the GPU busy with products for so many seconds; returns when they are done."""
    torch = pytest.importorskip("torch")
    left = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(left)
    torch.mm(left, left, out=out)
    torch.cuda.synchronize()

    def run(seconds: float) -> None:
        """The host is a batch ahead, so that the GPU waits for it only where the host has no time."""
        until = time.perf_counter() + seconds
        before = torch.cuda.Event()
        while time.perf_counter() < until:
            for _ in range(20):
                torch.mm(left, left, out=out)
            after = torch.cuda.Event()
            after.record()
            before.synchronize()
            before = after
        torch.cuda.synchronize()

    return run


@pytest.fixture(scope="module")
def recorded(busy):
    """Two busy seconds between two idle ones, with snapshots of the counter at the ends of the busy ones."""
    snapshots = []
    with gs.profile(device_samples=True) as prof:
        time.sleep(1)
        with gs.record_function("busy"):
            snapshots.append(gs.gpu_snapshot())
            busy(SECONDS)
            snapshots.append(gs.gpu_snapshot())
        time.sleep(1)
        with gs.record_function("short"):
            for _ in range(400):  # together more than a second
                busy(0.001)
                time.sleep(0.005)
    return prof, snapshots


def used_uuid() -> str:
    """Of the GPU that these programs use, which NVML may count elsewhere."""
    torch = pytest.importorskip("torch")
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def counted(prof):
    """Why the energy is not known, where it is not."""
    report = prof.energy()
    if report[0].total is None:
        pytest.skip(f"energy: {report[0].why['energy']}")
    return report[0]


def test_rows_come_at_the_interval_on_the_clock_of_the_recording(recorded):
    prof, _ = recorded
    samples = prof.trace.device_samples
    started, stopped = (int(prof.trace.info[f"session.{edge}_ns"]) for edge in ("start", "stop"))
    fast = samples.start_ns[samples.power_mw >= 0]
    assert (fast >= started).all()
    assert fast.max() <= stopped + 50_000_000
    assert len(fast) >= 0.9 * (stopped - started) / 1e8
    assert np.median(np.diff(fast)) == pytest.approx(1e8, rel=0.05)
    assert set(samples.device.tolist()) == {0}


def test_figures_are_those_of_nvidia_smi(busy):
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not installed")
    with gs.profile(device_samples=0.05) as prof:
        busy(1.5)
        query = "power.draw,clocks.mem,temperature.gpu,power.limit,memory.used"
        command = ["nvidia-smi", "-i", used_uuid(), f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        asked_ns = time.time_ns()
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        busy(0.5)
    power, memory_clock, temperature, limit, used = map(float, text.split(","))
    samples = prof.trace.device_samples
    near = np.abs(samples.start_ns - asked_ns) < 1_500_000_000
    assert samples.power_mw[near & (samples.power_mw >= 0)].max() / 1e3 >= 0.9 * power
    assert samples.power_mw[near & (samples.power_mw >= 0)].min() / 1e3 <= 1.1 * power
    assert (samples.memory_mhz[near & (samples.memory_mhz >= 0)] == memory_clock).any()
    known = samples.temperature_c[near & (samples.temperature_c >= 0)]
    assert known.min() - 2 <= temperature <= known.max() + 2
    assert samples.power_limit_mw.max() == limit * 1e3
    assert samples.memory_used_bytes.max() / 2**20 == pytest.approx(used, rel=0.1)


def test_the_energy_counter_is_read_each_second_and_at_both_ends(recorded):
    prof, _ = recorded
    counted(prof)
    counters = prof.trace.device_counters
    times = counters.start_ns[counters.energy_mj >= 0]
    started, stopped = (int(prof.trace.info[f"session.{edge}_ns"]) for edge in ("start", "stop"))
    assert times[0] - started < 200_000_000
    assert abs(times[-1] - stopped) < 200_000_000
    assert np.diff(times).max() < 1_300_000_000


def test_the_energy_of_a_region_of_seconds_is_the_counters_difference(recorded):
    prof, (before, after) = recorded
    found = counted(prof)
    busy = found["busy"]
    first, last = (next(gpu for gpu in each if gpu.uuid == used_uuid()) for each in (before, after))
    difference = last.energy_total_j - first.energy_total_j
    # The region's energy is that of the time in which its work ran; the counter has that of the pauses between, too,
    # which are long where the host has no time: what the GPU drew then is what it draws idle at least, and at most the
    # most that it ever drew, as others may have used it.
    paused_s = max(0.0, (after.time_ns - before.time_ns) / 1e9 - busy.seconds)
    most_w = prof.trace.device_samples.power_mw.max() / 1e3
    low, high = (difference - paused_s * watts for watts in (most_w, found.idle_power_w or 0.0))
    # The counter's own steps: 0.1 s of up to the power of a busy GPU at each end.
    step = 0.1 * busy.power_w
    assert low - max(0.05 * low, step) <= busy.energy.joules <= high + max(0.05 * high, step)
    assert busy.energy.low < busy.energy.joules < busy.energy.high


def test_the_energy_of_the_recording_is_the_counters_difference(recorded):
    prof, _ = recorded
    found = counted(prof)
    counters = prof.trace.device_counters
    values = counters.energy_mj[counters.energy_mj >= 0]
    assert found.total.joules == pytest.approx((values[-1] - values[0]) / 1e3, rel=0.05)
    assert (found.idle_power_w or 0) < found.power_w < found["busy"].power_w


def test_short_regions_draw_no_less_than_an_idle_gpu_and_no_more_than_a_busy_one_may_for_a_moment(recorded):
    prof, _ = recorded
    found = counted(prof)
    # What is over in milliseconds is not held back by the limit of power: products of 5 ms with pauses between drew
    # 978 W of an H100, by its counter, whose limit held the same products of a second at 696 W.
    assert (found.idle_power_w or 0) <= found["short"].power_w <= 1.6 * found["busy"].power_w


def test_shares_of_throttled_time_are_shares_or_have_a_reason(recorded):
    prof, _ = recorded
    found = prof.energy()[0]
    for reason, share in found.throttled.items():
        assert (share is None) == (reason in found.why)
        assert share is None or 0 <= share <= 1


def test_ending_a_window_is_quick(busy):
    busy(0.1)
    took = []
    for samples in (False, True) * 5:
        prof = gs.profile(device_samples=3600.0 if samples else False)
        prof.start()
        time.sleep(0.2)
        began = time.perf_counter()
        prof.stop()
        took.append((samples, time.perf_counter() - began))
    usual, with_samples = (np.median([each for samples, each in took if samples == which]) for which in (False, True))
    assert with_samples - usual < 0.05


def test_sampling_says_what_it_costs(recorded):
    prof, _ = recorded
    info = prof.trace.info
    seconds = (int(info["session.stop_ns"]) - int(info["session.start_ns"])) / 1e9
    # At 10 Hz 0.5 % of a core, and all figures once more at both ends of the window.
    assert int(info["audit.device_samples_cpu_ns"]) / 1e9 < 0.005 * seconds + 0.1
    assert int(info["audit.device_samples_longest_ns"]) < 1e9
    assert int(info["audit.device_samples_dropped"]) == 0
