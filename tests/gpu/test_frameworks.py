# SPDX-License-Identifier: Apache-2.0
"""Kernels of other frameworks arrive whole and in their regions."""

from __future__ import annotations

import pytest

import gpuscope as gs


def in_region(prof: gs.profile, name: str) -> int:
    trace = prof.trace
    named = [
        row for row in range(len(trace.regions)) if trace.string(int(trace.paths.name[trace.regions.path[row]])) == name
    ]
    return int(sum((trace.kernels.region == row).sum() for row in named))


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
