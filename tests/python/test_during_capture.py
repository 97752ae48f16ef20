# SPDX-License-Identifier: Apache-2.0
"""While the program captures a CUDA graph, what would spoil the capture refuses before it does anything."""

from __future__ import annotations

import pytest

import gpuscope as gs
from gpuscope import _core
from gpuscope.errors import CudaError, NotAvailable


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(_core, "is_capturing", lambda stream, device: True)
    return monkeypatch


MEASUREMENTS = {
    "benchmark": lambda work: gs.benchmark(work, budget=0.1),
    "benchmark of a graph": lambda work: gs.benchmark(work, budget=0.1, graph=True),
    "compare": lambda work: gs.compare(work, work, budget=0.1),
    "sweep": lambda work: gs.sweep(work, n=[1, 2], budget=0.1),
    "measure_latency": lambda work: gs.measure_latency(work, 1),
    "measure_throughput": lambda work: gs.measure_throughput(work, [1, 2]),
    "find_max_batch_size": lambda work: gs.find_max_batch_size(work, limit=2, device="cpu"),
}


@pytest.mark.usefixtures("capture")
@pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_measurements_refuse_before_they_call_anything(measure):
    called = []
    with pytest.raises(NotAvailable, match="is not available while a CUDA graph is being captured"):
        measure(lambda *args, **names: called.append(args))
    assert not called


@pytest.mark.usefixtures("capture")
def test_no_recording_starts():
    prof = gs.profile()
    with pytest.raises(NotAvailable, match="the start of a recording is not available while a CUDA graph"):
        prof.start()
    assert not prof._running


@pytest.mark.usefixtures("capture")
def test_a_recording_of_the_cpu_alone_starts():
    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof, gs.record_function("work"):
        pass
    assert "work" in {row.key for row in prof.key_averages()}


def test_a_step_that_would_start_one_refuses_and_a_later_one_does(capture):
    with gs.profile(schedule=gs.schedule(wait=1, warmup=0, active=2)) as prof:
        with pytest.raises(NotAvailable, match="the start of a recording is not available"):
            prof.step()
        capture.undo()
        prof.step()
        with gs.record_function("work"):
            pass
    assert "work" in {row.key for row in prof.key_averages()}


def test_a_recording_ends_and_keeps_what_it_has(monkeypatch):
    prof = gs.profile()
    prof.start()
    with gs.record_function("work"):
        pass
    monkeypatch.setattr(_core, "is_capturing", lambda stream, device: True)
    prof.stop()
    assert "work" in {row.key for row in prof.key_averages()}


@pytest.mark.usefixtures("capture")
def test_memory_and_the_state_of_gpus_are_read():
    with gs.track_memory("stage", quiet=True) as stage:
        pass
    assert stage.allocated_bytes >= 0
    assert gs.memory_snapshot() is not None
    assert gs.gpu_snapshot() is not None


@pytest.mark.usefixtures("capture")
def test_blocks_are_timed_on_the_host():
    with gs.Timer() as timer, gs.timed("captured"):
        pass
    assert timer.launch_time is not None


def test_a_gpu_that_cannot_be_asked_hinders_nothing(monkeypatch):
    def broken(stream, device):
        raise CudaError("primary_context_retain failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)", "retain", 700)

    monkeypatch.setattr(_core, "is_capturing", broken)
    with gs.profile() as prof, gs.record_function("work"):
        pass
    assert "work" in {row.key for row in prof.key_averages()}
