# SPDX-License-Identifier: Apache-2.0
"""benchmark() on a GPU: known kernels, frameworks, and functions that make measuring hard. Bounds are loose."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gpuscope as gs
from gpuscope import streams
from gpuscope.benchmarking import BenchmarkResult, benchmark
from gpuscope.benchmarking.engine import Engine
from gpuscope.errors import InvalidArgument, NotAvailable

SPIN_NS = 20_000
SPIN = SPIN_NS * 1e-9


@pytest.fixture(scope="module")
def torch():
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    module.cuda.init()
    return module


def warned(result, words):
    return any(words in warning for warning in result.warnings)


def test_a_kernel_of_known_length_is_measured(kernels):
    result = benchmark(lambda: kernels.spin(SPIN_NS))
    assert result.quantity == "kernel", result.absent
    assert SPIN <= result.median < 1.3 * SPIN
    assert set(result.quantities) >= {"kernel", "span", "stream", "launch", "wall"}
    assert result.n >= 30
    assert [kernel.count for kernel in result.kernels] == [1.0]


def test_every_kernel_of_a_call_counts(kernels):
    result = benchmark(lambda: kernels.spin(SPIN_NS, count=5))
    assert 5 * SPIN <= result.median < 1.3 * 5 * SPIN
    assert [kernel.count for kernel in result.kernels] == [5.0]


def test_the_hosts_delays_are_in_the_launch_and_not_in_the_kernel_or_stream_time(kernels):
    def function():
        kernels.spin(SPIN_NS)
        time.sleep(1e-3)
        kernels.spin(SPIN_NS)

    result = benchmark(function)
    assert result.median < 3 * SPIN
    assert result.quantities["launch"].estimate.value > 1e-3
    assert result.quantities["wall"].estimate.value > 1e-3
    assert result.quantities["stream"].estimate.value < 5e-4


def test_quantities_are_ordered_as_they_contain_each_other(kernels):
    result = benchmark(lambda: kernels.spin(SPIN_NS, count=2))
    value = {name: measured.estimate.value for name, measured in result.quantities.items()}
    assert value["kernel"] <= 1.001 * value["span"] <= 1.2 * value["stream"]
    assert value["stream"] < value["wall"]


def test_the_budget_is_kept(kernels):
    began = time.perf_counter()
    result = benchmark(lambda: kernels.spin(1_000_000), precision=1e-6, budget=0.5)
    assert result.stopped == "budget"
    assert time.perf_counter() - began < 5


def test_functions_take_turns(kernels):
    with Engine([lambda: kernels.spin(SPIN_NS), lambda: kernels.spin(3 * SPIN_NS)]) as engine:
        samples = engine.sample("kernel", np.tile(np.array([0, 1, 1, 0], np.uint32), 10))
    short, long = (samples.seconds["kernel"][samples.which == which] for which in (0, 1))
    assert samples.valid.all()
    assert short.max() < long.min()


def test_a_long_window_has_all_of_its_records(kernels):
    with Engine([lambda: kernels.spin(1000)]) as engine:
        samples = engine.sample("kernel", np.zeros(2000, np.uint32))
    assert samples.valid.all()
    assert len(set(samples.signature)) == 1


def test_copies_and_fills_are_work(kernels):
    result = benchmark(lambda: kernels.fill(1 << 24), budget=0.5)
    assert result.kernels[0].name == "Memset (Device)"
    assert result.median > 0


def test_a_function_that_raises_leaves_the_gpu_usable(kernels):
    calls = []

    def function():
        calls.append(1)
        kernels.spin(SPIN_NS)
        if len(calls) > 40:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        benchmark(function)
    assert benchmark(lambda: kernels.spin(SPIN_NS), budget=0.5).n >= 30
    with gs.profile() as prof:
        kernels.spin(SPIN_NS)
    assert prof.audit().complete


def test_a_function_that_waits_is_measured_without_gate(kernels):
    def function():
        kernels.spin(SPIN_NS)
        kernels.synchronize()

    result = benchmark(function, budget=0.5)
    assert warned(result, "waits for the GPU inside")
    assert "stream" in result.absent
    assert SPIN <= result.median < 1.3 * SPIN


def test_a_function_without_gpu_work_is_measured_on_the_cpu():
    result = benchmark(lambda: sum(range(1000)), budget=0.5)
    assert result.quantity == "wall"
    assert warned(result, "no work on the GPU")


def test_short_calls_without_gpu_work_are_timed_in_rows():
    result = benchmark(lambda: None, budget=0.5)
    assert result.calls_per_sample > 1
    assert result.median < 2e-6


def test_another_profile_leaves_stream_time(kernels):
    with gs.profile():
        result = benchmark(lambda: kernels.spin(SPIN_NS), budget=0.5)
    assert result.quantity == "stream"
    assert "another profile" in result.absent["kernel"]


def test_json_holds_all_samples(kernels):
    result = benchmark(lambda: kernels.spin(SPIN_NS), budget=0.5)
    read = BenchmarkResult.from_json(result.to_json())
    np.testing.assert_array_equal(read.samples, result.samples)
    assert str(read) == str(result)


def test_bandwidth_is_said_against_the_peak(kernels):
    size = 1 << 28
    result = benchmark(lambda: kernels.fill(size), bytes=size, budget=1.0)
    (rate,) = result.rates
    assert rate.peak is not None, rate.reason
    assert 20 < rate.percent_of_peak < 105


# -- torch -----------------------------------------------------------------------------------------------------------


def test_torch_operators(torch):
    a = torch.randn(1024, 1024, device="cuda")
    result = benchmark(torch.mm, a, a, flops=2 * 1024**3)
    assert result.quantity == "kernel", result.absent
    assert result.kernels
    assert result.rates[0].value > 1e11
    assert result.value.shape == (1024, 1024)


def test_torch_on_a_stream_of_its_own(torch):
    stream = torch.cuda.Stream()
    a = torch.randn(1 << 20, device="cuda")

    def function():
        with torch.cuda.stream(stream):
            a.mul_(1.0001)

    result = benchmark(function, stream=stream, budget=1.0)
    assert "stream" in result.quantities, result.absent
    assert "marginal" in result.quantities, result.absent
    assert not warned(result, "other streams")


def test_torch_beside_the_timed_stream(torch):
    stream = torch.cuda.Stream()
    a = torch.randn(1 << 20, device="cuda")

    def function():
        with torch.cuda.stream(stream):
            a.mul_(1.0001)

    result = benchmark(function, budget=0.5)
    assert warned(result, "other streams")
    assert "stream" in result.absent
    assert result.quantity == "kernel"


def test_torch_reading_a_value_back_waits(torch):
    a = torch.randn(1 << 16, device="cuda")
    result = benchmark(lambda: a.sum().item(), budget=0.5)
    assert warned(result, "waits for the GPU inside")
    assert isinstance(result.value, float)


def test_torch_backward(torch):
    weight = torch.randn(256, 256, device="cuda", requires_grad=True)
    x = torch.randn(256, 256, device="cuda")

    def step():
        weight.grad = None
        (x @ weight).square().sum().backward()

    result = benchmark(step, budget=1.0)
    assert sum(kernel.count for kernel in result.kernels) >= 4
    assert not warned(result, "lack records")


def test_torch_work_that_changes(torch):
    a = torch.randn(1 << 16, device="cuda")
    calls = []

    def function():
        calls.append(1)
        return a.exp() if len(calls) % 2 else a + 1

    assert warned(benchmark(function, budget=0.5), "work changes")


def test_torch_as_a_graph(torch):
    a = torch.randn(1 << 16, device="cuda")
    stream = torch.cuda.Stream()
    eager = benchmark(lambda: [a.mul_(1.0001) for _ in range(10)], budget=1.0)
    replayed = benchmark(lambda: [a.mul_(1.0001) for _ in range(10)], graph=True, stream=stream, budget=1.0)
    assert sum(kernel.count for kernel in replayed.kernels) == pytest.approx(10)
    launch = {name: result.quantities["launch"].estimate.value for name, result in (("e", eager), ("g", replayed))}
    assert launch["g"] < launch["e"]


def test_torch_that_cannot_be_captured(torch):
    a = torch.randn(1 << 16, device="cuda")
    with pytest.raises(NotAvailable, match="cannot be captured"):
        benchmark(lambda: a.sum().item(), graph=True, stream=torch.cuda.Stream())
    assert float(a.sum()) == float(a.sum())


def test_a_stream_of_another_device_is_refused(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    with pytest.raises(InvalidArgument, match="device"):
        benchmark(lambda: None, stream=torch.cuda.Stream("cuda:1"), device=0)


# -- others ----------------------------------------------------------------------------------------------------------


def test_cupy_on_a_stream_of_its_own():
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.arange(1 << 20, dtype=cupy.float32)

    def function():
        with stream:
            cupy.multiply(x, 2, out=x)

    result = benchmark(function, stream=stream, budget=1.0)
    assert streams.resolve(stream).source == "cupy"
    assert result.quantity == "kernel", result.absent
    assert "stream" in result.quantities, result.absent


def test_jax_is_waited_for():
    jax = pytest.importorskip("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this JAX has no GPU")
    step = jax.jit(lambda x: x @ x)
    x = jax.numpy.ones((1024, 1024))
    result = benchmark(step, x, budget=1.0)
    assert result.quantity == "kernel", result.absent
    assert result.kernels
    assert not warned(result, "lack records")
    assert result.quantities["wall"].estimate.value > result.median
