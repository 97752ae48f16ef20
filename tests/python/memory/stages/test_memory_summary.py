# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import pytest

from fakes.allocating_torch import pool
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.usage import summary
from gpuscope.memory.usage.summary import memory_summary

MIB = 1 << 20


class Snapshots:
    """`gpuscope.memory.usage.snapshot` that answers with what the test puts here."""

    def __init__(self):
        self.asked = []
        self.devices = [gpu()]
        self.why = ""
        self.host = SimpleNamespace(
            resident_bytes=100 * MIB, peak_resident_bytes=200 * MIB, pinned_bytes=16 * MIB, pinned_why=""
        )

    def __call__(self, device=None):
        self.asked.append(device)
        found = tuple(one for one in self.devices if device in (None, one.device))
        return SimpleNamespace(devices=found, host=self.host, why=self.why)


def gpu(*pools, device=0, **given):
    pools = pools or (pool("torch", 40 * MIB, 60 * MIB, peak=50 * MIB, peak_reserved_bytes=60 * MIB),)
    figures = {
        "name": "NVIDIA H200", "peak_allocated_bytes": 50 * MIB, "peak_reserved_bytes": 60 * MIB,
        "process_bytes": 700 * MIB, "used_bytes": 900 * MIB, "total_bytes": 139 << 30, "largest_free_bytes": None,
        "fragmentation": None, "notes": (),
    } | given  # fmt: skip
    allocated, reserved = (sum(getattr(one, name) for one in pools) for name in ("allocated_bytes", "reserved_bytes"))
    figures |= {"allocated_bytes": allocated, "reserved_bytes": reserved, "cached_bytes": reserved - allocated}
    return SimpleNamespace(device=device, pools=pools, **figures)


@pytest.fixture
def snapshots(fake_torch, monkeypatch):
    found = Snapshots()
    monkeypatch.setattr(summary, "memory_snapshot", found)
    return found


def row(text, name, below=None):
    lines = text.splitlines()
    if below is not None:
        lines = lines[lines.index(below) :]
    line = next(line for line in lines if line.startswith(f"  {name} "))
    return [cell.strip() for cell in line[2 + len(name) :].split("  ") if cell]


def test_torchs_counters_are_rows(snapshots, fake_torch):
    fake_torch.take(50 * MIB)
    fake_torch.give(10 * MIB)
    text = memory_summary()
    assert row(text, "Allocated") == ["40.0 MiB", "50.0 MiB", "50.0 MiB", "10.0 MiB"]
    assert row(text, "Reserved") == ["50.0 MiB", "50.0 MiB", "50.0 MiB", "0 B"]
    assert row(text, "Cached") == ["20.0 MiB", "-", "-", "-"]


def test_each_library_has_its_rows_and_all_have_their_sum(snapshots):
    snapshots.devices = [gpu(pool("cupy", 10 * MIB), pool("jax", 5 * MIB, 80 * MIB, peak=7 * MIB))]
    text = memory_summary()
    assert row(text, "Reserved", "All libraries")[:1] == ["90.0 MiB"]
    assert row(text, "Allocated", "cupy") == ["10.0 MiB", "-", "-", "-"]
    assert row(text, "Allocated", "jax") == ["5.00 MiB", "7.00 MiB", "-", "-"]


def test_graph_pools_have_a_row_where_there_are_some(snapshots):
    assert "Graph pools" not in memory_summary()
    snapshots.devices = [gpu(pool("torch", 5, 64 * MIB, graph_reserved_bytes=32 * MIB))]
    assert row(memory_summary(), "Graph pools")[0] == "32.0 MiB"


def test_memory_outside_the_allocators_is_told(snapshots):
    text = memory_summary()
    assert "This process: 700 MiB by NVML, 640 MiB of it outside these allocators" in text
    assert "GPU: 900 MiB of 139 GiB in use by all processes" in text


def test_what_nvml_does_not_say_is_left_out(snapshots):
    snapshots.devices = [gpu(process_bytes=None, used_bytes=None, notes=("NVML was not found",))]
    text = memory_summary()
    assert "This process" not in text
    assert "NVML was not found" in text


def test_retries_of_torch_have_advice(snapshots, fake_torch):
    assert "torch: 0 allocations retried after its cache was given back, 0 out of memory" in memory_summary()
    assert "smaller batch" not in memory_summary()
    fake_torch.retries, fake_torch.ooms = 3, 1
    text = memory_summary()
    assert "torch: 3 allocations retried after its cache was given back, 1 out of memory" in text
    assert "smaller batch" in text


@pytest.mark.parametrize(("share", "free", "advised"), [(0.9, 500, True), (0.2, 500, False), (0.9, 10, False)])
def test_fragmentation_has_advice_when_it_matters(snapshots, share, free, advised):
    torch = pool("torch", 10 * MIB, (10 + free) * MIB)
    snapshots.devices = [gpu(torch, largest_free_bytes=4 * MIB, fragmentation=share)]
    text = memory_summary()
    assert f"Largest free block: 4.00 MiB of {free}" in text
    assert ("expandable_segments" in text) == advised


def test_the_host_has_a_line(snapshots):
    assert memory_summary().splitlines()[-1] == "Host: 100 MiB resident, 200 MiB at the peak, 16.0 MiB pinned"
    snapshots.host.pinned_bytes, snapshots.host.pinned_why = None, "for the test"
    assert memory_summary().endswith("pinned memory is not known: for the test")


def test_abbreviated_has_allocated_and_reserved_only(snapshots):
    lines = memory_summary(abbreviated=True).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == ["Allocated", "Reserved"]
    assert not any(line.startswith("torch:") for line in lines)


def test_all_gpus_of_the_process_are_told_of(snapshots):
    snapshots.devices = [gpu(), gpu(device=1)]
    headings = [line for line in memory_summary().splitlines() if line.startswith("GPU ")]
    assert headings == ["GPU 0: NVIDIA H200", "GPU 1: NVIDIA H200"]


def test_one_gpu_is_asked_for_in_every_form(snapshots):
    for device in (0, "cuda:0", "cuda"):
        memory_summary(device)
    assert snapshots.asked == [0, 0, 0]


def test_the_host_alone(snapshots):
    assert len(memory_summary("cpu").splitlines()) == 1


def test_before_the_gpu_is_used(snapshots):
    snapshots.devices = []
    assert memory_summary().splitlines()[0] == "This process uses no GPU yet."


@pytest.mark.parametrize("device", [None, 0, "cuda"])
def test_without_a_gpu_it_says_why(host_only, snapshots, device, monkeypatch):
    snapshots.devices, snapshots.why = [], "for the test"
    assert memory_summary(device).splitlines()[0] == "No GPU: for the test"


def test_an_allocator_without_counters_is_survived(snapshots, fake_torch):
    fake_torch.broken = "pluggable"
    snapshots.devices = [gpu(pool("torch", 0), notes=("torch: its allocator keeps no figures",))]
    text = memory_summary()
    assert row(text, "Allocated")[0] == "0 B"
    assert "its allocator keeps no figures" in text


@pytest.mark.parametrize(("device", "error"), [("x", InvalidArgument), (9, NotAvailable)])
def test_no_device_is_refused(snapshots, device, error):
    with pytest.raises(error):
        memory_summary(device)
