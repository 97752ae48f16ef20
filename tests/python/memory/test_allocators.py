# SPDX-License-Identifier: Apache-2.0
"""What allocators say they hold."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace

import pytest

from fakes.frameworks import MIB, segment
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.frameworks import torch_memory
from gpuscope.memory import host
from gpuscope.memory import host as resident
from gpuscope.memory.allocators import pools
from gpuscope.memory.host import host_memory


def only(found):
    (one,) = found
    return one


def by_library(found):
    return {pool.library: pool for pool in found}


def test_nothing_is_imported_for_it(machine):
    assert pools() == ()
    assert not {"torch", "cupy", "rmm", "jax"} & sys.modules.keys()


def test_a_framework_counts_as_soon_as_it_is_imported(machine):
    before = pools()
    machine.use_cupy(1, 2)
    assert (before, only(pools()).library) == ((), "cupy")


def test_torch_tells_what_is_allocated_held_and_free(machine):
    machine.use_torch(segment(0x1000, 300, -200), segment(0x9000, -700))
    pool = only(pools())
    assert (pool.allocated_bytes, pool.reserved_bytes, pool.cached_bytes) == (300, 1200, 900)
    assert (pool.peak_allocated_bytes, pool.peak_reserved_bytes) == (600, 2400)
    assert (pool.free_bytes, pool.largest_free_bytes) == (900, 700)


def test_private_pools_of_torch_are_told_and_not_free_for_others(machine):
    machine.use_torch(segment(0x1000, 300, -100), segment(0x9000, 50, -700, pool=(1, 0)))
    pool = only(pools())
    assert (pool.graph_reserved_bytes, pool.free_bytes, pool.largest_free_bytes) == (750, 100, 100)


def test_without_detail_torchs_segments_are_left_alone(machine):
    machine.use_torch(segment(0x1000, 300)).cuda.memory_snapshot = None
    pool = only(pools(detail=False))
    assert (pool.allocated_bytes, pool.largest_free_bytes, pool.note) == (300, None, "")


def test_segments_have_their_pool_and_blocks(machine):
    machine.use_torch(
        segment(0x9000, 50, pool=(0, 3)), segment(0x1000, 30, -20, pool=(2, 0), expandable=True), segment(0x20000, 1)
    )
    first, second, third = torch_memory.segments(0)
    assert (first.address, first.bytes, first.allocated_bytes, first.expandable) == (0x1000, 50, 30, True)
    assert [segment.pool for segment in (first, second, third)] == ["graph (2, 0)", "private (0, 3)", "default"]
    assert [(b.address, b.bytes, b.requested, b.state) for b in first.blocks] == [
        (0x1000, 30, 29, "active_allocated"),
        (0x101E, 20, 0, "inactive"),
    ]


@pytest.mark.parametrize("kind", ["small", "large"])
def test_segments_for_small_requests_are_told_whatever_their_size(machine, kind):
    machine.use_torch(segment(0x1000, 5, -(200 << 20), expandable=True, kind=kind))
    assert only(torch_memory.segments(0)).small == (kind == "small")


def test_segments_are_those_of_the_device(machine):
    machine.use_torch(segment(0x1000, 5), segment(0x9000, 7, device=1))
    assert [segment.bytes for segment in torch_memory.segments(1)] == [7]


def test_segments_of_older_torch_can_be_read(machine):
    machine.use_torch(segment(0x1000, 5), old=True)
    assert only(torch_memory.segments(0)).bytes == 5


def test_torch_that_has_not_started_cuda_is_not_asked(machine):
    machine.use_torch(segment(0x1000, 5), initialized=False)
    assert pools() == ()
    assert torch_memory.segments(0) == ()


def test_torch_with_another_allocator_says_that_it_keeps_no_figures(machine):
    machine.use_torch(backend="pluggable")
    pool = only(pools())
    assert (pool.allocated_bytes, pool.reserved_bytes) == (0, 0)
    assert pool.note == "its allocator (pluggable) keeps no figures: pluggable does not yet support this."


def test_torchs_segments_may_fail_alone(machine):
    def failing(**_):
        raise RuntimeError("not now")

    machine.use_torch(segment(0x1000, 5)).cuda.memory_snapshot = failing
    pool = only(pools())
    assert (pool.allocated_bytes, pool.largest_free_bytes, pool.note) == (
        5,
        None,
        "its segments cannot be read: not now",
    )


def test_what_torch_took_from_the_drivers_pool_is_counted_once(machine):
    machine.use_torch(segment(0x1000, 300), backend="cudaMallocAsync")
    machine.add_cuda_pool(used=450, reserved=1000)
    found = by_library(pools())
    assert (found["torch"].allocated_bytes, found["torch"].reserved_bytes) == (300, 300)
    assert (found["cuda pool"].allocated_bytes, found["cuda pool"].reserved_bytes) == (150, 700)
    assert found["cuda pool"].peak_allocated_bytes is None


def test_the_drivers_pool_has_peaks_of_its_own(machine):
    machine.add_cuda_pool(used=450, reserved=1000)
    pool = only(pools())
    assert (pool.allocated_bytes, pool.reserved_bytes, pool.peak_allocated_bytes, pool.peak_reserved_bytes) == (
        450,
        1000,
        451,
        1001,
    )


def test_the_drivers_default_and_current_pools_are_added(machine):
    machine.add_cuda_pool(used=450, reserved=1000)
    machine.add_cuda_pool(used=50, reserved=100, handle=0x88)
    pool = only(pools())
    assert (pool.allocated_bytes, pool.reserved_bytes, pool.peak_reserved_bytes) == (500, 1100, None)


def test_cupys_pool_is_asked_on_the_device_that_is_meant(machine):
    machine.contexts, machine.gpus = [0, 1], 2
    machine.use_cupy(300, 500, device=1)
    first, second = pools()
    assert (first.device, first.reserved_bytes) == (0, 0)
    assert (second.device, second.allocated_bytes, second.reserved_bytes, second.free_bytes) == (1, 300, 500, 200)


def test_cupys_allocator_counts_when_it_is_another_pool(machine):
    machine.use_cupy(300, 500, allocator="own")
    assert only(pools()).reserved_bytes == 500


def test_cupys_default_pool_counts_when_its_allocator_is_no_pool(machine):
    machine.use_cupy(300, 500, allocator="default").cuda.get_allocator = lambda: print
    assert only(pools()).reserved_bytes == 500


def test_cupys_async_pool_is_the_drivers_and_counted_once(machine):
    machine.use_cupy(300, 500, kind="MemoryAsyncPool")
    machine.add_cuda_pool(used=300, reserved=500)
    found = by_library(pools())
    assert found["cuda pool"].reserved_bytes == 500
    assert found["cuda pool"].note == "CuPy takes from it (MemoryAsyncPool)"
    assert sum(pool.reserved_bytes for pool in found.values()) == 500


def test_rmms_statistics_and_pool_are_found_in_their_layers(machine):
    machine.use_rmm(
        {"allocation_counts": {"current_bytes": 300, "peak_bytes": 400}}, {"pool_size": lambda: 1000}, {"plain": True}
    )
    pool = only(pools())
    assert (pool.library, pool.allocated_bytes, pool.reserved_bytes, pool.peak_allocated_bytes) == (
        "rmm",
        300,
        1000,
        400,
    )


def test_rmms_pool_without_statistics_says_so(machine):
    machine.use_rmm({"pool_size": lambda: 1000})
    pool = only(pools())
    assert pool.reserved_bytes == 1000
    assert "StatisticsResourceAdaptor" in pool.note


def test_rmms_statistics_below_its_pool_are_not_of_what_is_in_use(machine):
    machine.use_rmm({"pool_size": lambda: 1000}, {"allocation_counts": {"current_bytes": 1000, "peak_bytes": 1000}})
    assert "StatisticsResourceAdaptor" in only(pools()).note


def test_rmms_statistics_may_be_an_object(machine):
    machine.use_rmm({"allocation_counts": SimpleNamespace(current_bytes=300)})
    pool = only(pools())
    assert (pool.allocated_bytes, pool.reserved_bytes, pool.peak_allocated_bytes) == (300, 300, None)


def test_rmms_tracking_counts_what_is_in_use(machine):
    machine.use_rmm({"get_allocated_bytes": lambda: 70}, {"plain": True})
    assert only(pools()).reserved_bytes == 70


def test_rmm_on_the_drivers_pool_is_counted_once(machine):
    machine.use_rmm({"get_allocated_bytes": lambda: 70}, {"pool_handle": lambda: 0x77})
    machine.add_cuda_pool(used=100, reserved=500, handle=0x77)
    found = by_library(pools())
    assert (found["rmm"].allocated_bytes, found["cuda pool"].allocated_bytes) == (70, 30)
    assert sum(pool.reserved_bytes for pool in found.values()) == 500


def test_rmm_without_a_pool_or_statistics_is_left_to_the_watch(machine):
    machine.use_rmm({"plain": True})
    assert pools() == ()


def test_jax_tells_what_it_holds(machine):
    machine.use_jax(
        {"bytes_in_use": 300, "peak_bytes_in_use": 400, "pool_bytes": 1000, "largest_free_block_bytes": 5000}
    )
    pool = only(pools())
    assert (pool.allocated_bytes, pool.reserved_bytes, pool.peak_allocated_bytes, pool.largest_free_bytes) == (
        300,
        1000,
        400,
        700,
    )


def test_jax_is_not_started(machine):
    machine.use_jax({"bytes_in_use": 300}, started=False)
    assert pools() == ()


def test_jax_without_figures_says_so(machine):
    machine.use_jax(None)
    assert only(pools()).note == "its allocator keeps no figures"


def test_jax_on_the_drivers_pool_is_counted_once(machine, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async")
    machine.use_jax({"bytes_in_use": 300})
    machine.add_cuda_pool(used=300, reserved=500)
    assert sum(pool.reserved_bytes for pool in pools()) == 500


def test_a_source_that_fails_does_not_hide_the_others(machine):
    machine.use_cupy(1, 2).get_default_memory_pool = lambda: 1 / 0
    machine.use_jax({"bytes_in_use": 300})
    found = by_library(pools())
    assert found["jax"].allocated_bytes == 300
    assert found["cupy"].note == "its figures could not be read: ZeroDivisionError: division by zero"


def test_devices_without_a_context_have_no_pools(machine):
    machine.contexts, machine.gpus = [1], 2
    machine.use_torch(segment(0x1000, 5), segment(0x9000, 7, device=1))
    assert [pool.device for pool in pools()] == [1]
    assert pools(0) == ()


@pytest.mark.parametrize("device", [-1, "cuda:x", True, 1.0])
def test_a_device_that_is_no_ordinal_is_refused(machine, device):
    with pytest.raises(InvalidArgument, match=r"^device is .*; accepted are an ordinal from 0"):
        pools(device)


def test_a_device_that_is_not_there_is_not_available(machine):
    with pytest.raises(NotAvailable, match="this process sees 1"):
        pools(3)


def test_host_memory_is_what_the_system_counts(machine):
    host = host_memory()
    assert 0 < host.resident_bytes <= host.peak_resident_bytes


def test_pinned_memory_is_what_the_watch_saw(machine):
    machine.take(3 * MIB, "libtorch_cuda.so", "pinned")
    machine.take(2 * MIB, "libnccl.so.2", "pinned")
    assert (host_memory().pinned_bytes, host_memory().pinned_why) == (5 * MIB, "")


def test_pinned_memory_before_the_watch_is_said_to_be_missing(machine):
    machine.from_start = False
    machine.use_torch(pinned=9 * MIB)
    assert host_memory().pinned_bytes == 9 * MIB
    assert host_memory().pinned_why == "without memory pinned before the watch began"


def test_pinned_memory_is_torchs_where_nothing_is_watched(machine):
    machine.watching = False
    machine.use_torch(pinned=9 * MIB)
    assert host_memory().pinned_bytes == 9 * MIB
    assert host_memory().pinned_why.startswith("torch's only")


def test_pinned_memory_is_not_known_where_nobody_tells(machine):
    machine.watching = False
    assert host_memory().pinned_bytes is None
    assert "watched" in host_memory().pinned_why


def test_nothing_is_pinned_where_no_gpu_is_used(machine):
    machine.watching, machine.contexts = False, []
    assert (host_memory().pinned_bytes, host_memory().pinned_why) == (0, "")


@pytest.mark.parametrize("status", ["Name:\tpython\nVmRSS:\t    2048 kB\n", ""])
def test_host_memory_is_told_where_the_system_says_little(machine, monkeypatch, tmp_path, status):
    if status:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/status").write_text(status)
    for name in ("resident", "peak_resident"):
        monkeypatch.setattr(host, name, partial(getattr(resident, name), tmp_path))
    told = host_memory()
    assert told.peak_resident_bytes >= told.resident_bytes > 0
    assert not status or told.resident_bytes == 2 * MIB
