# SPDX-License-Identifier: Apache-2.0
"""The libraries that compute, and how they are chosen."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gpuscope.benchmarking import backends
from gpuscope.benchmarking.backends import OPERATIONS
from gpuscope.errors import NotAvailable

MATRIX = np.random.default_rng(1).random((6, 6), dtype=np.float32)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_numpy_and_torch_do_the_same_work(operation):
    pytest.importorskip("torch")
    results = []
    for name in ("numpy", "torch"):
        backend, _, _ = backends.choose(name)
        inputs = [backend.take(MATRIX) for _ in range(operation.inputs)]
        results.append(np.asarray(backend.give(backend.function(operation.name)(*inputs))))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4)
    assert results[0].dtype.itemsize <= 8


def test_a_copy_is_no_view():
    backend, _, _ = backends.choose("numpy")
    assert not np.shares_memory(backend.function("copy")(MATRIX), MATRIX)


def test_numpy_alone_has_no_gpu():
    assert backends.choose("numpy")[1:] == (None, "NumPy computes on the CPU only")


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_a_backend_that_is_not_installed_comes_with_its_fix(monkeypatch, name):
    without(monkeypatch, name)
    with pytest.raises(NotAvailable, match=f"{name} is not installed; pip install {name}"):
        backends.choose(name)


def test_without_libraries_for_a_gpu_each_is_named(monkeypatch):
    without(monkeypatch, "torch", "cupy")
    cpu, gpu, why = backends.choose(None)
    assert (cpu.processor, gpu) == ("cpu", None)
    assert why == "PyTorch is not installed; CuPy is not installed"


def fake_torch(*, available: bool) -> SimpleNamespace:
    cuda = SimpleNamespace(
        is_available=lambda: available,
        get_device_name=lambda: "H100",
        mem_get_info=lambda: (10, 100),
        memory_reserved=lambda: 7,
        memory_allocated=lambda: 5,
    )
    return SimpleNamespace(__version__="2.9", version=SimpleNamespace(cuda="13.0"), cuda=cuda)


def fake_cupy() -> SimpleNamespace:
    runtime = SimpleNamespace(
        getDevice=lambda: 0, getDeviceProperties=lambda number: {"name": b"H200"}, memGetInfo=lambda: (30, 100)
    )
    pool = SimpleNamespace(free_bytes=lambda: 3)
    return SimpleNamespace(
        __version__="14.0", cuda=SimpleNamespace(runtime=runtime), get_default_memory_pool=lambda: pool
    )


def test_torchs_gpu_comes_before_cupys(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(available=True))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    cpu, gpu, why = backends.choose(None)
    assert (cpu.library.split()[0], gpu.library, gpu.device, why) == ("NumPy", "PyTorch 2.9", "H100", "")
    assert gpu.free_bytes() == 12


def test_cupy_is_taken_where_torch_finds_no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(available=False))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    _, gpu, _ = backends.choose(None)
    assert (gpu.library, gpu.device, gpu.free_bytes()) == ("CuPy 14.0", "H200", 33)


def test_torch_asked_for_computes_on_both_sides(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(available=True))
    cpu, gpu, _ = backends.choose("torch")
    assert [side.library.split()[0] for side in (cpu, gpu)] == ["PyTorch", "PyTorch"]
    assert [side.processor for side in (cpu, gpu)] == ["cpu", "gpu"]


def test_the_hosts_memory_is_known():
    assert 0 < backends.choose("numpy")[0].free_bytes() < 1 << 50
