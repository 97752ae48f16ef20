# SPDX-License-Identifier: Apache-2.0
"""Every byte that NVML counts is explained once, or is in the row "unexplained"."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.frameworks import MIB, Machine, segment
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.usage.ledger import memory_ledger
from gpuscope.memory.usage.snapshot import memory_snapshot

BASE = 1 << 40  # away from where pieces lie that are given no address


def sizes(ledger):
    """MiB by library and purpose."""
    return {(row.library, row.what): row.bytes / MIB for row in ledger.rows}


def where(ledger, library):
    return next(row.where for row in ledger.rows if row.library == library)


def test_torchs_memory_is_told_by_what_it_is_for(machine):
    machine.use_torch(segment(0, 300 * MIB, -100 * MIB), segment(1 << 33, 50 * MIB, -10 * MIB, pool=(1, 0)))
    assert sizes(memory_ledger()) == {
        ("torch", "allocated"): 300,
        ("torch", "cached"): 100,
        ("torch", "graph pools"): 60,
    }


def test_what_lies_in_torchs_segments_is_torchs_alone(machine):
    machine.use_torch(segment(BASE, 300 * MIB))
    machine.take(200 * MIB, "libc10_cuda.so", address=BASE, at=("step", "train.py", 12))
    machine.take(100 * MIB, "libnccl.so.2", address=BASE + 200 * MIB)
    ledger = memory_ledger()
    assert sizes(ledger) == {("torch", "allocated"): 300}
    assert where(ledger, "torch") == "train.py:12 step"


def test_mapped_memory_of_expandable_segments_is_torchs_alone(machine):
    machine.use_torch(segment(BASE, 60 * MIB, expandable=True))
    for number in range(3):
        machine.take(20 * MIB, "libc10_cuda.so", "virtual", address=BASE + 20 * MIB * number)
    assert sizes(memory_ledger()) == {("torch", "allocated"): 60}


def test_torchs_memory_outside_its_pool_stands_on_its_own(machine):
    machine.use_torch(segment(BASE, 300 * MIB))
    machine.take(70 * MIB, "libtorch_cuda.so", address=BASE + 400 * MIB)
    assert sizes(memory_ledger())["libtorch_cuda.so", "device memory, 1 piece"] == 70


def test_other_libraries_stand_with_the_line_of_their_largest_piece(machine):
    machine.take(8 * MIB, "libcublas.so.13", at=("early", "train.py", 3))
    machine.take(64 * MIB, "libcublas.so.13", at=("step", "/home/me/train.py", 12))
    machine.take(1 * MIB, "", "array", address=0)
    machine.take(1 * MIB, "", "array", address=0)
    ledger = memory_ledger()
    assert sizes(ledger) == {
        ("libcublas.so.13", "device memory, 2 pieces"): 72,
        ("a library that is not known", "arrays, 2 pieces"): 2,
    }
    assert where(ledger, "libcublas.so.13") == "train.py:12 step"


def test_cupys_chunks_are_its_pools_up_to_what_that_holds(machine):
    machine.use_cupy(50 * MIB, 80 * MIB)
    machine.take(60 * MIB, "cupy/runtime.so", at=("load", "data.py", 5))
    machine.take(30 * MIB, "cupy/runtime.so")
    ledger = memory_ledger()
    assert sizes(ledger) == {
        ("cupy", "allocated"): 50,
        ("cupy", "cached"): 30,
        ("cupy/runtime.so", "device memory, 1 piece"): 10,
    }
    assert where(ledger, "cupy") == "data.py:5 load"


@pytest.mark.parametrize("library", ["xla_cuda_plugin.so", "libjax_common.so"])
def test_jaxs_chunks_are_its_pools(machine, library):
    machine.use_jax({"bytes_in_use": 30 * MIB, "pool_bytes": 100 * MIB})
    machine.take(100 * MIB, library)
    assert sizes(memory_ledger()) == {("jax", "allocated"): 30, ("jax", "cached"): 70}


def test_rmms_pool_takes_the_place_of_torchs_and_cupys(machine):
    machine.use_torch(backend="pluggable")
    machine.use_cupy(0, 0)
    machine.use_rmm({"allocation_counts": {"current_bytes": 30 * MIB}}, {"pool_size": lambda: 100 * MIB})
    machine.take(100 * MIB, "librmm.so")
    ledger = memory_ledger()
    assert sizes(ledger) == {("rmm", "allocated"): 30, ("rmm", "cached"): 70}
    assert any(note.startswith("torch: its allocator (pluggable) keeps no figures") for note in ledger.notes)


def test_memory_of_an_allocator_without_figures_stands_under_its_library(machine):
    machine.use_torch(backend="pluggable")
    machine.take(90 * MIB, "libc10_cuda.so")
    assert sizes(memory_ledger()) == {("libc10_cuda.so", "device memory, 1 piece"): 90}


def test_torchs_chunks_are_its_pools_when_its_segments_cannot_be_read(machine):
    machine.use_torch(segment(BASE, 300 * MIB)).cuda.memory_snapshot = None
    machine.take(300 * MIB, "libc10_cuda.so", address=BASE)
    assert sizes(memory_ledger()) == {("torch", "allocated"): 300}


def test_the_drivers_pool_is_told_by_who_uses_it(machine):
    machine.add_cuda_pool(used=90 * MIB, reserved=128 * MIB, handle=0x77)
    machine.use_cupy(60 * MIB, 128 * MIB, kind="MemoryAsyncPool", allocator="own")
    machine.take(60 * MIB, "cupy/runtime.so", "pool")
    machine.take(10 * MIB, "libcudf.so", "pool", pool=0x77)
    assert sizes(memory_ledger()) == {
        ("cupy/runtime.so", "stream-ordered memory, 1 piece"): 60,
        ("libcudf.so", "stream-ordered memory, 1 piece"): 10,
        ("cuda pool", "allocated"): 20,
        ("cuda pool", "cached"): 38,
    }


def test_torch_on_the_drivers_pool_is_counted_once(machine):
    machine.use_torch(segment(BASE, 40 * MIB), backend="cudaMallocAsync")
    machine.add_cuda_pool(used=50 * MIB, reserved=64 * MIB)
    machine.take(40 * MIB, "libc10_cuda.so", "pool", at=("step", "train.py", 12))
    machine.take(10 * MIB, "libcudf.so", "pool")
    ledger = memory_ledger()
    assert sizes(ledger) == {
        ("torch", "allocated"): 40,
        ("libcudf.so", "stream-ordered memory, 1 piece"): 10,
        ("cuda pool", "cached"): 14,
    }
    assert where(ledger, "torch") == "train.py:12 step"


def test_what_was_seen_allocated_is_not_cached(machine):
    machine.add_cuda_pool(used=8 * MIB, reserved=32 * MIB)
    machine.take(10 * MIB, "libcudf.so", "pool")
    assert sizes(memory_ledger())["cuda pool", "cached"] == 22


def test_a_pool_that_holds_less_than_was_seen_is_noted(machine):
    machine.add_cuda_pool(used=8 * MIB, reserved=8 * MIB)
    machine.take(10 * MIB, "libcudf.so", "pool")
    ledger = memory_ledger()
    assert ledger.explained_bytes == 10 * MIB
    assert "the driver's pool holds 2.00 MiB less than was seen allocated from it" in ledger.notes


def test_pools_of_a_library_of_its_own_stand_under_it(machine):
    machine.take(10 * MIB, "libmine.so", "pool", pool=0x99)
    ledger = memory_ledger()
    assert sizes(ledger) == {("libmine.so", "stream-ordered memory, 1 piece"): 10}
    assert "memory cached in pools that libraries created for themselves is unknown" in ledger.notes


def test_the_driver_has_rows_for_its_context_and_code(machine):
    machine.context_bytes, machine.code_bytes = 518 * MIB, 90 * MIB
    assert sizes(memory_ledger()) == {("driver", "CUDA context"): 518, ("driver", "kernel code"): 90}


def test_the_driver_has_a_row_for_what_kernels_call(machine):
    machine.context_bytes, machine.services, machine.services_bytes = 518 * MIB, ["assert", "printf"], 92 * MIB
    found = sizes(memory_ledger())
    assert found == {("driver", "CUDA context"): 518, ("driver", "for assert, printf in kernels"): 92}


def test_what_gpuscope_adds_to_the_context_is_its_own(machine):
    machine.context_bytes, machine.cupti_bytes = 518 * MIB, 12 * MIB
    found = sizes(memory_ledger())
    assert found == {("driver", "CUDA context"): 518, ("gpuscope", "CUPTI, while allocations are watched"): 12}


def test_a_context_from_before_the_watch_is_without_cupti(machine):
    machine.context_bytes, machine.cupti_bytes, machine.from_start = 518 * MIB, 12 * MIB, False
    assert sizes(memory_ledger()) == {("driver", "CUDA context"): 518}


def test_code_that_is_loaded_by_and_by_has_no_row(machine):
    machine.context_bytes, machine.code_bytes = 518 * MIB, None
    assert sizes(memory_ledger()) == {("driver", "CUDA context"): 518}


def test_what_kernels_call_on_several_gpus_is_not_split_by_guessing(machine):
    machine.gpus, machine.contexts, machine.services, machine.services_bytes = 2, [0, 1], ["assert"], 92 * MIB
    ledger = memory_ledger(1)
    assert sizes(ledger) == {}
    assert "the driver's memory for assert in kernels is unexplained on several GPUs" in ledger.notes


def test_code_of_several_gpus_is_not_split_by_guessing(machine):
    machine.gpus, machine.contexts, machine.code_bytes = 2, [0, 1], 90 * MIB
    ledger = memory_ledger(1)
    assert sizes(ledger) == {}
    assert any("90.0 MiB of kernel code are on 2 GPUs" in note for note in ledger.notes)


def test_a_context_is_not_measured_against_the_callers_will(machine):
    machine.context_bytes = 518 * MIB
    ledger = memory_ledger(measure_context=False)
    assert machine.contexts_measured == 0
    assert "the CUDA context was not measured: it is unexplained here" in ledger.notes


def test_what_nvml_counts_beyond_is_unexplained_and_last(machine):
    machine.process[0] = 1000 * MIB
    machine.use_cupy(100 * MIB, 100 * MIB)
    machine.take(200 * MIB, "libcudnn.so.9")
    ledger = memory_ledger()
    assert [(row.library, row.bytes / MIB) for row in ledger.rows] == [
        ("libcudnn.so.9", 200),
        ("cupy", 100),
        ("unexplained", 700),
    ]
    assert (ledger.total_bytes, ledger.explained_bytes, ledger.unexplained_bytes) == (1000 * MIB, 300 * MIB, 700 * MIB)


def test_more_than_nvml_counts_is_said(machine):
    machine.process[0] = 90 * MIB
    machine.use_cupy(100 * MIB, 100 * MIB)
    ledger = memory_ledger()
    assert ledger.unexplained_bytes == 0
    assert any(note.startswith("10.0 MiB more is explained than NVML counts") for note in ledger.notes)


def test_without_nvmls_figure_nothing_is_called_unexplained(machine):
    machine.process_why = "process: NVML does not list this process"
    machine.use_cupy(100 * MIB, 100 * MIB)
    ledger = memory_ledger()
    assert (ledger.process_bytes, ledger.process_why) == (None, "process: NVML does not list this process")
    assert (ledger.total_bytes, ledger.unexplained_bytes) == (100 * MIB, None)


def test_pinned_and_managed_memory_are_not_the_gpus(machine):
    machine.take(30 * MIB, "libtorch_cuda.so", "pinned")
    machine.take(40 * MIB, "libmine.so", "managed")
    ledger = memory_ledger()
    assert ledger.rows == ()
    assert [(row.library, row.what) for row in ledger.host_rows] == [
        ("libmine.so", "managed memory, wherever its pages are, 1 piece"),
        ("libtorch_cuda.so", "pinned memory of the host, 1 piece"),
    ]
    assert any(note.startswith("pages of managed memory that are on the GPU") for note in ledger.notes)


def test_a_device_has_only_its_own(machine):
    machine.gpus, machine.contexts = 2, [0, 1]
    machine.use_torch(segment(BASE, 5 * MIB), segment(BASE + 10 * MIB, 7 * MIB, device=1))
    machine.take(3 * MIB, "libnccl.so.2", address=BASE, device=1)
    machine.take(2 * MIB, "libmine.so", device=-2)  # of no certain device
    assert sizes(memory_ledger(1)) == {("torch", "allocated"): 7, ("libnccl.so.2", "device memory, 1 piece"): 3}


def test_what_is_of_no_certain_device_is_the_only_ones(machine):
    machine.take(2 * MIB, "libmine.so", device=-2)
    assert sizes(memory_ledger()) == {("libmine.so", "device memory, 1 piece"): 2}


def test_a_device_without_a_context_holds_nothing(machine):
    machine.gpus, machine.code_bytes = 2, 90 * MIB
    ledger = memory_ledger(1)
    assert (ledger.rows, ledger.notes, ledger.total_bytes) == ((), (), 0)
    assert str(ledger).startswith("device 1: this process holds no memory there\n")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"from_start": False}, "the watch began when the GPU was in use"),
        ({"unknown_releases": 4}, "4 releases were of memory taken before the watch began"),
        ({"watching": False}, "memory that libraries allocate from the driver directly is unexplained"),
    ],
)
def test_what_the_watch_cannot_know_is_said(machine, changes, note):
    for name, value in changes.items():
        setattr(machine, name, value)
    assert any(said.startswith(note) for said in memory_ledger().notes)


def test_without_a_watch_what_frameworks_hold_is_explained(machine):
    machine.watching = False
    machine.use_cupy(100 * MIB, 100 * MIB)
    assert sizes(memory_ledger()) == {("cupy", "allocated"): 100}


def test_without_a_gpu_there_is_the_host(machine):
    machine.gpus = 0
    ledger = memory_ledger()
    assert (ledger.rows, ledger.process_bytes, ledger.total_bytes) == ((), None, 0)
    assert ledger.host.resident_bytes > 0
    assert str(ledger).startswith("host memory only: device 0: this process sees 0 devices\n")


@pytest.mark.parametrize("device", ["cpu", -1, "cuda:x"])
def test_a_device_that_is_no_ordinal_is_refused(machine, device):
    with pytest.raises(InvalidArgument, match=r"^device is .*; accepted are an ordinal from 0"):
        memory_ledger(device)


def test_a_device_may_be_named(machine):
    assert memory_ledger("cuda:0").device == memory_snapshot("cuda:0").devices[0].device == 0


def test_a_device_that_is_not_there_is_not_available(machine):
    with pytest.raises(NotAvailable, match="this process sees 1"):
        memory_ledger(1)


def test_its_text_is_a_table(machine):
    machine.context_bytes, machine.process[0] = 518 * MIB, 700 * MIB
    machine.use_torch(segment(BASE, 100 * MIB, -20 * MIB))
    machine.take(120 * MIB, "libc10_cuda.so", address=BASE, at=("step", "train.py", 12))
    machine.take(30 * MIB, "libtorch_cuda.so", "pinned")
    table, _, host = str(memory_ledger()).partition("\n\n")
    assert table == (
        "device 0\n"
        "Library      What              Size   Share  Where\n"
        "-----------  ------------  --------  ------  ----------------\n"
        "driver       CUDA context   518 MiB  74.0 %\n"
        "torch        allocated      100 MiB  14.3 %  train.py:12 step\n"
        "torch        cached        20.0 MiB   2.9 %\n"
        "unexplained                62.0 MiB   8.9 %\n"
        "explained 91.1 % of 700 MiB (NVML's figure for this process)"
    )
    assert host.splitlines()[1:] == [
        "Library           What                                    Size",
        "----------------  ----------------------------------  --------",
        "libtorch_cuda.so  pinned memory of the host, 1 piece  30.0 MiB",
    ]


def test_its_text_says_why_the_whole_is_not_known(machine):
    machine.process_why = "process: not listed"
    machine.use_cupy(100 * MIB, 100 * MIB)
    assert "\nexplained 100 MiB; the whole is not known: process: not listed\n" in str(memory_ledger())


def test_it_is_json_ready(machine):
    machine.process[0] = 100 * MIB
    facts = json.loads(json.dumps(memory_ledger().to_dict()))
    (row,) = facts["rows"]
    assert row == {"library": "unexplained", "what": "", "bytes": 100 * MIB, "where": "", "region": ""}
    assert (facts["total_bytes"], facts["explained_bytes"], facts["unexplained_bytes"]) == (100 * MIB, 0, 100 * MIB)


PLACES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 25)), max_size=8)


@given(PLACES, PLACES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_segments_and_pieces_sum_to_the_bytes_that_they_unite(monkeypatch, held, pieces):
    with monkeypatch.context() as patch:
        machine = Machine(patch)
        apart = [(1000 * number + begin, size) for number, (begin, size) in enumerate(held)]
        machine.use_torch(*(segment(begin, size) for begin, size in apart))
        for number, (begin, size) in enumerate(pieces):
            machine.take(size, "libmine.so", address=1000 * (number % 3) + begin)
        taken = [(one["address"], one["bytes"]) for one in machine.pieces]
        assert memory_ledger().explained_bytes == len(
            {at for begin, n in apart + taken for at in range(begin, begin + n)}
        )
