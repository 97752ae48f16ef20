# SPDX-License-Identifier: Apache-2.0
"""The memory of a process at a moment, and what changed between two."""

from __future__ import annotations

import dataclasses
import json

import pytest

from fakes.frameworks import MIB, segment
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.host import HostMemory
from gpuscope.memory.usage.snapshot import memory_snapshot


@pytest.fixture
def busy(machine):
    """torch and CuPy both hold memory."""
    machine.use_torch(segment(1 << 30, 300 * MIB, -100 * MIB), segment(1 << 33, -100 * MIB))
    machine.use_cupy(50 * MIB, 80 * MIB)
    machine.process[0] = 1000 * MIB
    return machine


def with_host(snapshot, **figures):
    host = {"resident_bytes": 700 * MIB, "peak_resident_bytes": 900 * MIB, "pinned_bytes": 16 * MIB}
    return dataclasses.replace(snapshot, host=HostMemory(**(host | figures)))


def test_a_device_has_the_sums_of_its_pools(busy):
    (device,) = memory_snapshot().devices
    assert (device.allocated_bytes, device.reserved_bytes, device.cached_bytes) == (350 * MIB, 580 * MIB, 230 * MIB)
    assert (device.peak_allocated_bytes, device.peak_reserved_bytes) == (600 * MIB, 1000 * MIB)
    assert (device.process_bytes, device.used_bytes, device.total_bytes) == (1000 * MIB, 50_000 * MIB, 80_000 * MIB)
    assert [pool.library for pool in device.pools] == ["torch", "cupy"]


def test_fragmentation_is_the_free_memory_outside_the_largest_block(busy):
    (device,) = memory_snapshot().devices
    assert device.largest_free_bytes == 100 * MIB
    assert device.fragmentation == pytest.approx(0.5)


def test_fragmentation_is_not_known_without_blocks(busy):
    (device,) = memory_snapshot(detail=False).devices
    assert (device.largest_free_bytes, device.fragmentation) == (None, None)


def test_nothing_free_is_not_fragmented(machine):
    machine.use_torch(segment(1 << 30, 300))
    (device,) = memory_snapshot().devices
    assert (device.largest_free_bytes, device.fragmentation) == (0, None)


def test_every_gpu_in_use_is_there(machine):
    machine.gpus, machine.contexts = 3, [0, 2]
    assert [device.device for device in memory_snapshot().devices] == [0, 2]


def test_one_gpu_can_be_asked_for_whether_in_use_or_not(machine):
    machine.gpus = 2
    (device,) = memory_snapshot(1).devices
    assert (device.device, device.process_bytes, device.pools) == (1, 0, ())


def test_without_a_gpu_there_is_the_host(machine):
    machine.gpus = 0
    snapshot = memory_snapshot()
    assert snapshot.devices == ()
    assert snapshot.host.resident_bytes > 0
    assert snapshot.why == "device 0: this process sees 0 devices"
    assert str(snapshot).startswith("host memory only: device 0: this process sees 0 devices\nhost\n")


KEYS = ["allocated_mb", "reserved_mb", "max_allocated_mb"]


def test_figures_are_read_as_in_profiling_guides(busy):
    snapshot = memory_snapshot()
    assert [snapshot[key] for key in KEYS] == [350, 580, 600]


def test_figures_are_those_of_the_current_gpu(busy, monkeypatch):
    busy.gpus, busy.contexts = 2, [0, 1]
    monkeypatch.setattr("gpuscope.memory.usage.snapshot.current", lambda: 1)
    busy.process[1] = 0
    snapshot = memory_snapshot()
    assert len(snapshot.devices) == 2
    assert snapshot["allocated_mb"] == snapshot.devices[1].allocated_bytes / MIB


@pytest.mark.parametrize("key", KEYS)
def test_without_a_gpu_figures_of_a_gpu_say_why_there_are_none(machine, key):
    machine.gpus = 0
    sentence = f"^{key} is not available: it is a GPU's memory, and device 0: this process sees 0 devices$"
    with pytest.raises(NotAvailable, match=sentence):
        memory_snapshot()[key]


def test_a_process_that_uses_no_gpu_has_allocated_nothing(machine):
    machine.contexts = []
    assert [memory_snapshot()[key] for key in KEYS] == [0, 0, 0]


def test_a_peak_that_no_allocator_counts_is_not_available(machine):
    machine.use_cupy(50 * MIB, 80 * MIB)
    with pytest.raises(
        NotAvailable, match=r"^max_allocated_mb is not available: no allocator of GPU 0 counts its peak$"
    ):
        memory_snapshot()["max_allocated_mb"]


def test_attributes_are_read_by_name_too(busy):
    snapshot = memory_snapshot()
    assert snapshot["devices"] is snapshot.devices


@pytest.mark.parametrize("key", ["allocated_gb", 0, None])
def test_another_key_is_refused(busy, key):
    with pytest.raises(
        InvalidArgument, match=r"^key is .*; accepted are allocated_mb, reserved_mb, max_allocated_mb and"
    ):
        memory_snapshot()[key]


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_device_that_is_no_ordinal_is_refused(machine, gpus):
    machine.gpus = gpus
    with pytest.raises(InvalidArgument, match=r"^device is 'cpu' .*; accepted are"):
        memory_snapshot("cpu")


def test_a_device_that_is_not_there_is_not_available(machine):
    with pytest.raises(NotAvailable, match="this process sees 1"):
        memory_snapshot(1)


def test_what_is_missing_is_noted(machine):
    machine.use_torch(backend="pluggable")
    machine.process_why = "process: NVML does not list this process"
    (device,) = memory_snapshot().devices
    assert device.process_bytes is None
    assert device.notes[0] == "process: NVML does not list this process"
    assert device.notes[1].startswith("torch: its allocator (pluggable) keeps no figures")


def test_its_text_has_a_block_for_each_gpu_and_one_for_the_host(busy):
    assert str(with_host(memory_snapshot())) == (
        "device 0: fake GPU\n"
        "  process       0.98 GiB of 78.1 GiB, as NVML counts it\n"
        "  all processes 48.8 GiB of 78.1 GiB\n"
        "  allocated     350 MiB  (torch 300 MiB, cupy 50.0 MiB)\n"
        "  cached        230 MiB  (torch 200 MiB, cupy 30.0 MiB)\n"
        "  peak          600 MiB allocated, held 0.98 GiB (not counting cupy)\n"
        "  largest free  100 MiB (fragmentation 50 %)\n"
        "host\n"
        "  resident      700 MiB (peak 900 MiB)\n"
        "  pinned        16.0 MiB"
    )


def test_its_text_says_when_no_gpu_is_in_use(machine):
    machine.contexts = []
    assert str(memory_snapshot()).startswith("this process uses no GPU yet\nhost\n")


def test_its_text_has_graph_pools_and_notes(machine):
    machine.use_torch(segment(0x1000, 300, pool=(1, 0)))
    machine.process_why = "process: not listed"
    text = str(with_host(memory_snapshot(), pinned_bytes=None, pinned_why="nobody tells"))
    assert "\n  graph pools   300 B of what is held\n" in text
    assert "\n  note          process: not listed\n" in text
    assert text.endswith("\n  pinned        not known: nobody tells")


def test_it_is_json_ready(busy):
    facts = json.loads(json.dumps(memory_snapshot().to_dict()))
    assert facts["devices"][0]["cached_bytes"] == 230 * MIB
    assert facts["devices"][0]["fragmentation"] == pytest.approx(0.5)
    assert facts["devices"][0]["pools"][1]["library"] == "cupy"


def test_a_difference_has_what_changed(busy):
    before = with_host(memory_snapshot())
    busy.use_cupy(150 * MIB, 160 * MIB)
    busy.process[0] = 1080 * MIB
    after = dataclasses.replace(
        with_host(memory_snapshot(), resident_bytes=710 * MIB, pinned_bytes=None),
        time_ns=before.time_ns + 2_000_000_000,
    )
    change = after - before
    (device,) = change.devices
    assert (device.allocated_bytes, device.reserved_bytes, device.cached_bytes) == (100 * MIB, 80 * MIB, -20 * MIB)
    assert (device.process_bytes, device.used_bytes) == (80 * MIB, 0)
    assert [(pool.library, pool.allocated_bytes) for pool in device.pools] == [("cupy", 100 * MIB)]
    assert (change.seconds, change.resident_bytes, change.pinned_bytes) == (2.0, 10 * MIB, None)
    assert str(change) == (
        "in 2 s\n"
        "device 0: allocated +100 MiB, cached -20.0 MiB, process (NVML) +80.0 MiB\n"
        "  cupy: allocated +100 MiB, cached -20.0 MiB\n"
        "host: resident +10.0 MiB"
    )


def test_a_gpu_that_came_into_use_counts_from_nothing(machine):
    machine.contexts = []
    before = memory_snapshot()
    machine.contexts = [0]
    machine.process[0] = 518
    machine.use_cupy(100, 300)
    (device,) = (memory_snapshot() - before).devices
    assert (device.allocated_bytes, device.reserved_bytes, device.process_bytes, device.used_bytes) == (
        100,
        300,
        518,
        None,
    )


def test_a_difference_is_json_ready(busy):
    snapshot = memory_snapshot()
    assert json.loads(json.dumps((snapshot - snapshot).to_dict()))["devices"][0]["cached_bytes"] == 0
