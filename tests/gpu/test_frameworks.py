# SPDX-License-Identifier: Apache-2.0
"""Kernels of other frameworks arrive whole and in their regions."""

from __future__ import annotations

import pytest
from child import last_facts, run_code
from reading import Reading

import gpuscope as gs


def in_region(prof: gs.profile, name: str) -> int:
    return Reading(prof.trace).kernels_under(name)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(1 << 16, dtype=cupy.float32)
    (x * 2 + 1).sum()
    with gs.profile() as prof, gs.record_function("cupy"):
        for _ in range(10):
            x = x * 2
        cupy.cuda.Device().synchronize()
    assert in_region(prof, "cupy") == 10
    assert prof.audit().complete


def test_numba():
    cuda = pytest.importorskip("numba.cuda")

    @cuda.jit
    def double(values):
        at = cuda.grid(1)
        if at < values.size:
            values[at] *= 2

    values = cuda.device_array(1 << 17, dtype="float32")
    try:
        double[512, 256](values)
    except AttributeError as error:  # numba-cuda trails NumPy's removals
        pytest.skip(f"this numba does not work here: {error}")
    with gs.profile() as prof, gs.record_function("numba"):
        for _ in range(10):
            double[512, 256](values)
        cuda.synchronize()
    assert in_region(prof, "numba") == 10
    assert prof.audit().complete


def test_triton():
    triton = pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    language = pytest.importorskip("triton.language")
    from triton_kernels import double_kernel

    del triton, language
    x = torch.ones(1 << 12, device="cuda")
    double_kernel[(4,)](x, 1 << 12, BLOCK=1024)
    with gs.profile() as prof, gs.record_function("triton"):
        for _ in range(10):
            double_kernel[(4,)](x, 1 << 12, BLOCK=1024)
    assert in_region(prof, "triton") == 10
    assert any(row.key == "double_kernel" for row in prof.key_averages())


def test_jax():
    jax = pytest.importorskip("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this JAX has no GPU")
    step = jax.jit(lambda x: (x @ x).sum())
    x = jax.numpy.ones((256, 256))
    step(x).block_until_ready()
    with gs.profile() as prof, gs.record_function("jax"):
        for _ in range(10):
            step(x).block_until_ready()
    assert in_region(prof, "jax") >= 10
    assert prof.audit().complete


# NVTX is asked for once, at its first call in a process: each of these has one of its own.
RANGES = """
import json
from reading import RANGE, Reading
import gpuscope as gs
def facts(prof):
    reading = Reading(prof.trace)
    ranges, kernels = reading.named(RANGE)["step"], len(prof.trace.kernels)
    return {"ranges": ranges, "under": reading.kernels_under("step"), "kernels": kernels}
"""


def test_time_ranges_of_cupy_are_ranges_with_the_kernels_inside():
    pytest.importorskip("cupy")
    out = run_code(
        RANGES
        + """
import cupy
from cupyx.profiler import time_range
x = cupy.arange(1 << 16, dtype=cupy.float32)
x * 2
with gs.profile() as prof:
    for _ in range(5):
        with time_range("step"):
            x = x * 2
    cupy.cuda.Device().synchronize()
print(json.dumps(facts(prof)))
"""
    )
    assert last_facts(out) == {"ranges": 5, "under": 5, "kernels": 5}


def test_nvtx_ranges_of_torch_are_ranges_with_the_kernels_inside():
    pytest.importorskip("torch")
    out = run_code(
        RANGES
        + """
import torch
x = torch.ones(1 << 12, device="cuda")
x.mul_(2)
with gs.profile() as prof:
    for _ in range(5):
        torch.cuda.nvtx.range_push("step")
        x.mul_(2)
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
print(json.dumps(facts(prof)))
"""
    )
    assert last_facts(out) == {"ranges": 5, "under": 5, "kernels": 5}


def test_a_triton_kernel_launched_in_an_operators_region_is_under_both():
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    from triton_kernels import double_kernel

    x = torch.ones(1 << 12, device="cuda")
    double_kernel[(4,)](x, 1 << 12, BLOCK=1024)
    with gs.profile() as prof, gs.record_function("outer"), torch.autograd.profiler.record_function("custom op"):
        double_kernel[(4,)](x, 1 << 12, BLOCK=1024)
        torch.cuda.synchronize()
    reading = Reading(prof.trace)
    assert [reading.region(row) for row in prof.trace.kernels.region.tolist()] == [["outer", "custom op"]]
    assert reading.kernel_names() == ["double_kernel"]
