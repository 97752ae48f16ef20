# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import sys
import types

import numpy as np
import pytest

from gpuscope import _core, errors, streams
from gpuscope.benchmarking import roofline

LIMITS = {
    "memory_bandwidth": 4.8e12,
    "fp32_flops": 67e12,
    "l2_bytes": 50 << 20,
    "multiprocessors": 132,
    "sm_hz_max": 1.98e9,
    "capability": "9.0",
}


class Gpu:
    """A GPU of known speed: a launch says how long it takes, which the sampler reports as the next call's time."""

    def __init__(self):
        self.bandwidth, self.flops, self.memory = 4e12, 60e12, 140 << 30
        self.launched = []
        self.samplers = 0
        self.seconds = 0.0

    def copy(self, size, stream=0):
        self.launched.append(("copy", size))
        self.seconds = 2 * size / self.bandwidth

    def fill(self, size, stream=0):
        self.launched.append(("fill", size))
        self.seconds = size / (0.7 * self.bandwidth)

    def fma(self, rounds, stream=0):
        self.launched.append(("fma", rounds))
        self.seconds = 2e-6 + self.fma_flops(rounds) / self.flops

    def fma_flops(self, rounds):
        return rounds * 1000

    def sample(self, functions, order, *, gate, flush):
        assert gate
        assert not flush
        times = []
        for which in order:
            functions[which]()
            times.append(self.seconds)
        return {"stream_s": np.array(times), "held": True}

    def synchronize(self):
        pass

    def sampler(self, device, stream):
        self.samplers += 1
        return self


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setattr(roofline, "_measured", {})
    monkeypatch.setattr(streams, "current", lambda device=None: types.SimpleNamespace(handle=7, device=0))
    monkeypatch.setattr(_core, "Sampler", gpu.sampler, raising=False)
    monkeypatch.setattr(_core, "Kernels", lambda device: gpu)
    monkeypatch.setattr(_core, "device_limits", lambda device: LIMITS, raising=False)
    monkeypatch.setattr(_core, "environment", lambda: {"devices": [{"memory_bytes": gpu.memory}]})
    return gpu


def test_bandwidth_counts_what_a_copy_reads_and_writes(gpu):
    assert roofline.peak("bandwidth").measured == pytest.approx(4e12)


def test_bandwidth_is_the_best_of_copies_and_fills(gpu):
    gpu.copy = lambda size, stream=0: setattr(gpu, "seconds", 1.0)
    assert roofline.peak("bandwidth").measured == pytest.approx(0.7 * 4e12)


def test_copies_are_much_larger_than_the_cache(gpu):
    roofline.peak("bandwidth")
    assert min(size for _, size in gpu.launched) >= 4 * LIMITS["l2_bytes"]


def test_copies_take_at_most_a_quarter_of_the_memory(gpu):
    gpu.memory = 4 << 30
    roofline.peak("bandwidth")
    assert 2 * max(size for kind, size in gpu.launched if kind == "copy") <= gpu.memory // 4


def test_too_little_memory_is_said_to_be_why_there_is_no_bandwidth(gpu):
    gpu.memory = 1 << 30
    found = roofline.peak("bandwidth")
    assert found.measured is None
    assert "1600 MiB of free memory, and there are 1024" in found.reason


def test_float32_is_measured_over_a_launch_that_hides_its_beginning(gpu):
    assert roofline.peak("float32").measured == pytest.approx(60e12, rel=0.01)


def test_a_bound_is_measured_once(gpu):
    first = roofline.peak("bandwidth")
    samplers = gpu.samplers
    assert roofline.peak("bandwidth") is first
    assert gpu.samplers == samplers


def test_without_a_framework_the_tensor_cores_are_absent_with_the_reason(gpu):
    for absent in map(roofline.peak, ("float16", "bfloat16", "tf32")):
        assert absent.measured is None
        assert "matrix product of torch" in absent.reason


def test_what_was_absent_is_asked_for_again(gpu):
    roofline.peak("float16")
    roofline.peak("float16")
    assert gpu.samplers == 2


def test_what_the_driver_refuses_is_the_reason(gpu):
    def refused(size, stream=0):
        raise errors.CudaError("cuMemAlloc: out of memory", "cuMemAlloc", 2)

    gpu.copy = refused
    assert roofline.peak("bandwidth").reason == "cuMemAlloc: out of memory"


class Torch(types.SimpleNamespace):
    """What of torch a matrix product takes; each product takes 1 ms."""

    def __init__(self, gpu):
        self.precision, self.seen, self.seeds = "highest", [], []
        self.gpu = gpu
        self.float16, self.bfloat16, self.float32 = "float16", "bfloat16", "float32"
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: True,
            mem_get_info=lambda device: (gpu.memory, gpu.memory),
            device=lambda index: contextlib.nullcontext(),
            synchronize=lambda device: None,
        )

    def get_float32_matmul_precision(self):
        return self.precision

    def set_float32_matmul_precision(self, precision):
        self.precision = precision

    def no_grad(self):
        return contextlib.nullcontext()

    def device(self, kind, index):
        return f"{kind}:{index}"

    def Generator(self, device):  # noqa: N802
        return types.SimpleNamespace(manual_seed=lambda seed: types.SimpleNamespace(device=device))

    def randn(self, *shape, device, generator):
        return types.SimpleNamespace(to=lambda dtype: ("random", dtype))

    def empty_like(self, other):
        return other

    def mm(self, a, b, out):
        assert a[0] == b[0] == "random"
        self.seen.append((a[1], self.precision))
        self.gpu.seconds = 1e-3


@pytest.mark.parametrize(
    ("kind", "seen"),
    [("float16", ("float16", "highest")), ("bfloat16", ("bfloat16", "highest")), ("tf32", ("float32", "high"))],
)
def test_tensor_cores_are_measured_by_a_product_of_torch(gpu, monkeypatch, kind, seen):
    torch = Torch(gpu)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert roofline.peak(kind).measured == pytest.approx(2 * 8192**3 / 1e-3)
    assert set(torch.seen) == {seen}


def test_torchs_precision_is_the_users_again_afterwards(gpu, monkeypatch):
    torch = Torch(gpu)
    monkeypatch.setitem(sys.modules, "torch", torch)
    roofline.peak("tf32")
    assert torch.precision == "highest"


# NVIDIA's H100 data sheet, SXM: 989 TFLOP/s dense in bfloat16, at its boost clock of 1830 MHz.
def test_the_theoretical_limit_of_tensor_cores_is_that_of_the_data_sheet():
    limits = {**LIMITS, "sm_hz_max": 1.83e9}
    assert roofline.theoretical_limit("bfloat16", limits) == pytest.approx(989e12, rel=0.005)
    assert roofline.theoretical_limit("tf32", limits) == pytest.approx(494.7e12, rel=0.005)


def test_there_is_no_theoretical_limit_for_a_device_that_is_not_known():
    assert roofline.theoretical_limit("float16", {**LIMITS, "capability": "12.0"}) is None
    assert roofline.theoretical_limit("bfloat16", {**LIMITS, "capability": "7.5"}) is None
    assert roofline.theoretical_limit("bandwidth", {"memory_bandwidth": None}) is None
