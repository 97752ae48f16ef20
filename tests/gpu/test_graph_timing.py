# SPDX-License-Identifier: Apache-2.0
"""Captured calls, the slope of their replays, and what the device reaches. Times are of kernels of known length."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gpuscope import _core, errors, stats, streams
from gpuscope.benchmarking import cuda_graphs, roofline
from gpuscope.benchmarking.cuda_graphs import marginal
from gpuscope.benchmarking.roofline import rates

SPIN_NS = 20_000


def torch_with_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    torch.cuda.init()
    return torch


@pytest.fixture
def stream():
    """A stream of its own, as a program would have it."""
    torch = torch_with_gpu()
    made = torch.cuda.Stream()
    yield streams.resolve(made)
    made.synchronize()


def replay_seconds(captured, stream):
    sampler = _core.Sampler(stream.device, stream.handle)
    chunk = sampler.sample([captured.launch], np.zeros(5, np.uint32), gate=True, flush=False)
    return float(np.median(chunk["stream_s"][1:]))


def test_a_replay_runs_every_captured_call(kernels, stream):
    kernels.spun()
    with cuda_graphs.capture(lambda: kernels.spin(SPIN_NS, stream.handle), 50, stream=stream) as captured:
        captured.launch()
        _core.synchronize_stream(stream.handle)
    calls, _ = kernels.spun()
    assert calls == cuda_graphs.WARM_UP_CALLS + 50


def test_a_replay_takes_as_long_as_its_calls(kernels, stream):
    with cuda_graphs.capture(lambda: kernels.spin(SPIN_NS, stream.handle), 50, stream=stream) as captured:
        assert 50 * SPIN_NS * 1e-9 <= replay_seconds(captured, stream) < 1.5 * 50 * SPIN_NS * 1e-9


def test_the_slope_is_the_time_of_the_kernel_and_its_gap(kernels, stream):
    sampler = _core.Sampler(stream.device, stream.handle)
    found = marginal(lambda: kernels.spin(SPIN_NS, stream.handle), sampler, stream, budget=2.0)
    assert SPIN_NS <= found.estimate.value * 1e9 < SPIN_NS + 3000
    assert found.converged
    assert abs(found.overhead.value) < 20e-6


def test_the_driver_captures_where_no_framework_does(kernels, stream, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with cuda_graphs.capture(lambda: kernels.spin(SPIN_NS, stream.handle), 3, stream=stream) as captured:
        assert (captured.by, captured.nodes) == ("driver", 3)
        assert replay_seconds(captured, stream) >= 3 * SPIN_NS * 1e-9


def test_work_on_the_legacy_stream_is_not_captured(kernels):
    torch_with_gpu()
    with pytest.raises(errors.NotAvailable, match="cannot be captured"):
        cuda_graphs.capture(lambda: kernels.spin(SPIN_NS), 1, stream=streams.Stream(0, 0, "default"))
    kernels.synchronize()


def test_torch_is_captured_on_its_default_stream_and_gives_its_results():
    torch = torch_with_gpu()
    x = torch.ones(1 << 16, device="cuda")
    with cuda_graphs.capture(lambda: x.add_(1), 10, stream=streams.current()) as captured:
        torch.cuda.synchronize()
        before = x[0].item()
        captured.launch()
        torch.cuda.synchronize()
        assert x[0].item() == before + 10


def test_memory_taken_in_a_capture_is_not_given_to_anybody_else():
    torch = torch_with_gpu()
    x = torch.ones(1 << 20, device="cuda")
    with cuda_graphs.capture(lambda: (x * 2).sum(), 5, stream=streams.current()) as captured:
        others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(20)]
        for _ in range(3):
            captured.launch()
        torch.cuda.synchronize()
        assert all((other == 7).all().item() for other in others)


def test_torch_works_on_after_a_capture_that_failed():
    torch = torch_with_gpu()
    x = torch.rand(1 << 16, device="cuda")
    for _ in range(3):
        with pytest.raises(errors.NotAvailable, match="cannot be captured"):
            cuda_graphs.capture(lambda: torch.rand_like(x).sum().item(), 2, stream=streams.current())
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert 0 <= torch.rand(1, device="cuda").item() < 1
    assert torch.allclose(x @ x, (x * x).sum())
    with cuda_graphs.capture(lambda: torch.rand_like(x), 2, stream=streams.current()) as captured:
        captured.launch()
        torch.cuda.synchronize()


def test_memory_of_a_capture_that_failed_comes_back():
    torch = torch_with_gpu()

    def waits():
        torch.empty(64 << 20, device="cuda").fill_(1)[0].item()

    def failing():
        with pytest.raises(errors.NotAvailable):
            cuda_graphs.capture(waits, 1, stream=streams.current())
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    before = failing()
    assert failing() < before + (32 << 20)  # torch keeps a small segment for what it allocates itself


def test_cupy_is_captured_and_gives_its_results(monkeypatch):
    cupy = pytest.importorskip("cupy")
    monkeypatch.setitem(sys.modules, "torch", None)
    x = cupy.ones(1 << 16, dtype="float32")
    own = cupy.cuda.Stream(non_blocking=True)
    with own, cuda_graphs.capture(lambda: cupy.add(x, 1, out=x), 10, stream=streams.resolve(own)) as captured:
        own.synchronize()
        before = float(x[0])
        captured.launch()
        own.synchronize()
        assert float(x[0]) == before + 10


def test_cupy_works_on_after_a_capture_that_failed(monkeypatch):
    cupy = pytest.importorskip("cupy")
    monkeypatch.setitem(sys.modules, "torch", None)
    x = cupy.ones(1 << 16, dtype="float32")
    own = cupy.cuda.Stream(non_blocking=True)
    with own:
        with pytest.raises(errors.NotAvailable, match="cannot be captured"):
            cuda_graphs.capture(lambda: float((x + 1).sum()), 1, stream=streams.resolve(own))
        assert not own.is_capturing()
        assert float(x.sum()) == 1 << 16


def test_bounds_lie_below_what_the_hardware_could_do():
    for peak in map(roofline.peak, ("bandwidth", "float32")):
        assert peak.measured is not None, peak.reason
        assert peak.theoretical is not None
        assert 0.5 * peak.theoretical < peak.measured <= peak.theoretical


def test_tensor_cores_are_measured_with_torch():
    torch_with_gpu()
    if int(_core.device_limits(0)["capability"].partition(".")[0]) < 8:
        pytest.skip("this GPU has no bfloat16")
    bfloat16, tf32 = roofline.peak("bfloat16"), roofline.peak("tf32")
    assert bfloat16.measured is not None, bfloat16.reason
    assert tf32.measured is not None, tf32.reason
    assert tf32.measured < bfloat16.measured


def rates_of(function, honest_bytes):
    """The rates by the honest byte count, and by twice as many."""
    function()
    sampler = _core.Sampler(0, streams.current().handle)
    sampler.synchronize()
    for _ in range(10):  # samples that drift have no interval, and without one there is no alarm
        chunk = sampler.sample([function], np.zeros(50, np.uint32), gate=True, flush=True)
        estimate = stats.estimate(chunk["stream_s"])
        if np.isfinite(estimate.high):
            break
    return [rates(estimate, bytes=factor * honest_bytes)[0] for factor in (1, 2)]


def test_an_honest_copy_raises_no_alarm_and_a_wrong_count_does(kernels):
    size = 16 * _core.device_limits(0)["l2_bytes"]
    honest, wrong = rates_of(lambda: kernels.copy(size, streams.current().handle), 2 * size)
    assert not honest.alarm, honest
    assert wrong.alarm, wrong


def test_an_honest_read_raises_no_alarm_and_a_wrong_count_does():
    torch = torch_with_gpu()
    x = torch.rand(16 * _core.device_limits(0)["l2_bytes"] // 4, device="cuda")
    honest, wrong = rates_of(x.sum, x.nbytes)
    assert not honest.alarm, honest
    assert wrong.alarm, wrong
