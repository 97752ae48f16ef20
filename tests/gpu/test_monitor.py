# SPDX-License-Identifier: Apache-2.0
"""What NVML says of the GPUs, against CUDA and nvidia-smi, at a moment and over time."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

import gpuscope as gs
from gpuscope import _core

QUERY = "uuid,memory.total,power.limit,power.default_limit,clocks.max.sm,pcie.link.width.max,temperature.gpu"


@pytest.fixture(scope="module")
def asked():
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not installed")
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split(",")] for line in lines)}


def test_the_gpus_are_those_of_cuda():
    snapshot = gs.gpu_snapshot()
    assert {device["uuid"] for device in _core.environment()["devices"]} <= {gpu.uuid for gpu in snapshot}
    assert snapshot.driver_version


def test_what_stands_still_equals_nvidia_smi(asked):
    for gpu in gs.gpu_snapshot():
        total, limit, default, clock, width, temperature = map(float, asked[gpu.uuid])
        assert gpu.memory_total_bytes == total * 2**20
        assert (gpu.power_limit_w, gpu.power_limit_default_w) == (limit, default)
        assert (gpu.sm_max_hz, gpu.pcie_width_max) == (clock * 1e6, width)
        assert gpu.temperature_c == pytest.approx(temperature, abs=3)


def of_used(gpus):
    """Of snapshots or samples, those of the GPU that the kernels run on, which NVML may count as another."""
    uuid = _core.environment()["devices"][0]["uuid"]
    return [each for each in gpus if getattr(each, "gpu", each).uuid == uuid]


def test_a_busy_gpu_is_busy_and_its_energy_grows(kernels):
    (before,) = of_used(gs.gpu_snapshot())
    kernels.spin(20_000_000, count=50)  # a second
    gs.synchronize()
    (after,) = of_used(gs.gpu_snapshot())
    assert after.busy_ratio > 0
    assert after.energy_total_j > before.energy_total_j
    assert after.processes is not None


def test_what_is_absent_has_its_reason():
    for gpu in gs.gpu_snapshot():
        absent = [name for name in _core.GPU_FIGURES if getattr(gpu, name) is None]
        assert {*absent} <= {*gpu.why}
        assert all(gpu.why.values())


def test_a_snapshot_makes_no_context():
    used = _core.devices_in_use()
    gs.gpu_snapshot()
    assert _core.devices_in_use() == used


def test_a_monitor_samples_a_busy_gpu_at_its_interval(kernels):
    with gs.GPUMonitor(None, interval=0.05) as monitor:
        kernels.spin(20_000_000, count=100)  # two seconds
        gs.synchronize()
    samples = of_used(monitor.take())
    assert len(samples) >= 20
    assert max(sample.gpu.busy_ratio for sample in samples) > 0.5
    assert monitor.cost.dropped == 0


def test_samples_lie_on_the_clock_of_recordings(kernels):
    with gs.GPUMonitor(None, interval=0.01) as monitor, gs.profile() as prof:
        kernels.spin(10_000_000, count=20)
        gs.synchronize()
    started, stopped = (int(prof.trace.info[f"session.{edge}_ns"]) for edge in ("start", "stop"))
    inside = [sample for sample in monitor.take() if started < sample.time_ns < stopped]
    assert len(inside) >= 5


def test_performance_counters_tell_a_busy_gpu_from_an_idle_one(kernels):
    with gs.GPUMonitor(None, interval=0.2) as monitor:
        time.sleep(1.5)
        idle = of_used(monitor.take())
        kernels.spin(20_000_000, count=150)  # three seconds
        gs.synchronize()
        busy = of_used(monitor.take())
    if "Hopper and later" in busy[-1].gpu.why.get("sm_active_ratio", ""):
        pytest.skip("this GPU has no such counters")
    assert not [reason for name, reason in busy[-1].gpu.why.items() if name in _core.GPM_FIGURES]
    known = [sample.gpu.sm_active_ratio for sample in busy if sample.gpu.sm_active_ratio is not None]
    assert 0 < max(known) <= 1
    assert max(known) > max(sample.gpu.sm_active_ratio or 0 for sample in idle)
    assert all(0 <= sample.gpu.dram_bandwidth_ratio <= 1 for sample in busy[2:])


def test_energy_between_two_moments_is_the_mean_of_the_power(kernels):
    with gs.GPUMonitor(None, interval=0.1) as monitor:
        kernels.spin(20_000_000, count=300)  # six seconds: the counter is read each two
        gs.synchronize()
    samples = of_used(monitor.take())
    assert samples[-1].gpu.energy_total_j > samples[0].gpu.energy_total_j
    found = gs.monitor.growth(samples)
    powers = [sample.gpu.power_w for sample in samples[len(samples) // 4 :]]
    assert found.energy_j.low <= found.energy_j.value
    assert found.mean_power_w == pytest.approx(sum(powers) / len(powers), rel=0.25)


def test_the_host_stands_beside_each_gpu():
    with gs.GPUMonitor(None, interval=0.05) as monitor:
        time.sleep(0.5)
    sample = monitor.take()[-1]
    assert sample.host.machine_cpus >= 1
    assert sample.slow_time_ns <= sample.time_ns


def test_errors_of_the_driver_are_told_by_nvml_and_there_are_none():
    with gs.GPUMonitor(None, interval=0.1) as monitor:
        time.sleep(1.5)
    for sample in monitor.latest():
        assert sample.gpu.xid_errors == () or sample.gpu.why["xid_errors"]


def test_sampling_at_10_hz_takes_little_and_says_so(kernels):
    with gs.GPUMonitor(None, interval=0.1) as monitor:
        kernels.spin(20_000_000, count=200)  # four seconds
        gs.synchronize()
    cost = monitor.cost
    assert 0 < cost.mean_s <= cost.p99_s * 1.05
    assert cost.stated.cpu_ratio == cost.cpu_ratio
    print(f"cost at 10 Hz: {cost}")


def test_parts_of_a_split_gpu_have_counters():
    with gs.GPUMonitor(None, interval=0.2) as monitor:
        time.sleep(2.5)
    split = [sample.gpu for sample in monitor.latest() if sample.gpu.mig]
    if not split:
        pytest.skip("no GPU is split (MIG)")
    for gpu in split:
        assert gpu.instances
        assert all(each.memory_total_bytes for each in gpu.instances)
