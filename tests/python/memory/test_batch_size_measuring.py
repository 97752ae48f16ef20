# SPDX-License-Identifier: Apache-2.0
"""How much memory a try took and how much there is, of each library."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fakes.memory_machine import Machine, torch_on
from gpuscope.memory.limits import batch_size
from gpuscope.memory.limits.batch_size import GpuMeter


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch):
    for name in ("torch", "cupy", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(batch_size.gc, "collect", lambda: 0)


@pytest.fixture
def cupy(monkeypatch):
    freed, here = [], [0]  # what was called, and the current device
    held, free = (300, 50), (1000, 70)

    class Device:
        def __init__(self, device=None):
            self.id = here[0] if device is None else device

        def __enter__(self):
            self.before, here[0] = here[0], self.id

        def __exit__(self, *error):
            here[0] = self.before

        def synchronize(self):
            freed.append(f"waited for {self.id}")

    pool = SimpleNamespace(total_bytes=lambda: held[here[0]], free_all_blocks=lambda: freed.append(f"device {here[0]}"))
    pinned = SimpleNamespace(free_all_blocks=lambda: freed.append("pinned"))
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, memGetInfo=lambda: (free[here[0]], 5000))
    module = SimpleNamespace(
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pinned,
        cuda=SimpleNamespace(runtime=runtime, Device=Device),
        freed=freed,
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def jax(monkeypatch):
    stats = {"peak_bytes_in_use": 700, "bytes_limit": 9000}
    module = SimpleNamespace(local_devices=lambda: [SimpleNamespace(memory_stats=lambda: stats)], stats=stats)
    bridge = SimpleNamespace(_backends={"cuda": object()})
    monkeypatch.setitem(sys.modules, "jax", module)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    return SimpleNamespace(stats=stats, bridge=bridge)


def test_without_libraries_nothing_is_known():
    meter = GpuMeter()
    meter.start()
    assert (meter.peak(), meter.room()) == (None, None)


def test_torch_has_room_for_what_is_free_and_what_it_holds(monkeypatch):
    machine = Machine(1000, fixed=100)
    monkeypatch.setitem(sys.modules, "torch", torch_on(machine))
    assert GpuMeter().room() == 1000


def test_torchs_own_limit_is_its_room(monkeypatch):
    torch = torch_on(Machine(1000), get_per_process_memory_fraction=lambda device: 0.25)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert GpuMeter().room() == 250


def test_torch_that_has_not_begun_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))
    batch_size.release()
    assert GpuMeter().room() is None


def test_cupy_is_told_of_by_its_pool(cupy):
    assert (GpuMeter().peak(), GpuMeter().room()) == (300, 1300)


def test_torch_and_cupy_are_added(cupy, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch_on(Machine(1000, fixed=100)))
    assert (GpuMeter().peak(), GpuMeter().room()) == (400, 1300)


def test_cupys_blocks_are_given_back(cupy):
    batch_size.release()
    assert cupy.freed == ["device 0", "pinned"]


def test_cupys_work_is_waited_for(cupy):
    batch_size.finish(None)
    assert cupy.freed == ["waited for 0"]


def test_cupy_is_asked_about_the_device_that_is_measured(cupy):
    assert (GpuMeter(1).peak(), GpuMeter(1).room()) == (50, 120)
    batch_size.finish(None, 1)
    batch_size.release(1)
    assert cupy.freed == ["waited for 1", "device 1", "pinned"]


def test_cupy_that_cannot_work_is_left_alone(cupy):
    cupy.cuda.runtime.getDeviceCount = lambda: 1 / 0
    batch_size.release()
    assert cupy.freed == []


def test_jax_is_told_of_by_records_only(jax):
    meter = GpuMeter()
    meter.start()
    assert meter.peak() is None
    jax.stats["peak_bytes_in_use"] = 800
    assert (meter.peak(), meter.room()) == (800, 9000)


def test_jax_without_a_device_is_not_asked_for_one(jax):
    jax.bridge._backends.clear()
    assert GpuMeter().room() is None


def test_jax_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(block_until_ready=waited.append))
    batch_size.finish("result")
    assert waited == ["result"]
