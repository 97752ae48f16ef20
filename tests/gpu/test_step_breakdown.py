# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes, of programs that spend it in a known way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import gpuscope as gs
from gpuscope.diagnosis import IdleCause

if TYPE_CHECKING:
    from gpuscope._core import Kernels
    from gpuscope.diagnosis import DeviceBreakdown, StepBreakdown

STEPS = 12
MS = 1_000_000


def taken(device: DeviceBreakdown, name: str) -> float:
    """ms a step."""
    return sum(part.exclusive_ns / len(part.per_step_ns) for part in device.parts if part.name == name) / MS


def check(result: StepBreakdown) -> DeviceBreakdown:
    """The first GPU, whose parts add up to each step."""
    device = result.devices[0]
    assert (sum(part.per_step_ns for part in device.parts) == result.steps.durations_ns).all()
    return device


def test_a_wait_for_data_is_told_from_what_ran(kernels: Kernels) -> None:
    with gs.profile() as prof:
        for _ in range(STEPS):
            with gs.record_function("train"):
                with gs.record_function("load data"):
                    time.sleep(0.004)
                kernels.spin(MS, count=3)
                kernels.synchronize()
    result = prof.step_breakdown()
    device = check(result)
    assert len(result.steps) + result.left_out == STEPS
    assert taken(device, "other kernels") == pytest.approx(3, rel=0.05)
    assert taken(device, IdleCause.DATA_WAIT.label) == pytest.approx(4, rel=0.15)


def test_the_call_that_left_the_gpu_without_work_is_named(kernels: Kernels) -> None:
    with gs.profile(with_stack=True) as prof:
        for _ in range(STEPS):
            with gs.record_function("train"):
                kernels.spin(MS)
                kernels.synchronize()
                time.sleep(0.003)
    result = prof.step_breakdown()
    device, count = check(result), len(result.steps)
    drain = device.drains[0]
    assert "Synchronize" in drain.call
    assert "test_step_breakdown.py:" in drain.where
    assert drain.count == pytest.approx(count, abs=1)
    assert drain.idle_ns / count / MS == pytest.approx(3, rel=0.15)


def test_work_that_was_queued_in_time_leaves_no_idle_time_to_the_host(kernels: Kernels) -> None:
    with gs.profile() as prof:
        for _ in range(STEPS):
            with gs.record_function("train"):
                kernels.spin(MS // 5, count=50)
        kernels.synchronize()
    device = check(prof.step_breakdown())
    steps = [part for part in device.parts if part.name in (IdleCause.HOST_CODE.label, IdleCause.LAUNCH_CALL.label)]
    assert sum(part.exclusive_ns for part in steps) < 0.02 * 10 * MS * STEPS


def test_tiny_kernels_leave_the_gpu_to_wait_for_the_host(kernels: Kernels) -> None:
    with gs.profile() as prof:
        for _ in range(STEPS):
            with gs.record_function("train"):
                for _ in range(200):
                    kernels.spin(1)
                    time.sleep(0)
                kernels.synchronize()
    device = check(prof.step_breakdown())
    host = (IdleCause.HOST_CODE, IdleCause.LAUNCH_CALL, IdleCause.LAUNCH_LATENCY)
    of_the_host = sum(part.exclusive_ns for part in device.parts if part.name in {cause.label for cause in host})
    assert of_the_host > 0.5 * device.idle_ns


def test_products_are_told_by_the_cores_that_they_run_on() -> None:
    torch = pytest.importorskip("torch")
    wide = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    plain = torch.randn(2048, 2048, device="cuda")
    torch.set_float32_matmul_precision("highest")
    for _ in range(3):
        wide @ wide, plain @ plain
    with gs.profile() as prof:
        for _ in range(STEPS):
            with gs.record_function("train"):
                wide @ wide
                plain @ plain
                torch.relu(plain)
                torch.cuda.synchronize()
    device = check(prof.step_breakdown())
    busy = {part.name for part in device.parts if part.kind == "kernel"}
    assert busy == {"matmul, conv on tensor cores", "other matmul, conv", "elementwise, copying kernels"}
