# SPDX-License-Identifier: Apache-2.0
"""What libraries take from the driver is recorded: every piece, its region, its library, its pool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from child import run_code
from reading import NONE, Reading

import gpuscope as gs
from gpuscope.trace import MemoryKind, PoolOperation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from gpuscope.trace import Trace

MIB = 1 << 20
BIG = 256 * MIB


@pytest.fixture
def torch() -> Iterator[ModuleType]:
    torch = pytest.importorskip("torch")
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    yield torch
    torch.cuda.empty_cache()


@pytest.fixture
def cupy() -> ModuleType:
    cupy = pytest.importorskip("cupy")
    cupy.ones(1)
    return cupy


def rows(trace: Trace, kind: MemoryKind, size: int | None = None) -> list[int]:
    """The rows of one kind, and of one signed size."""
    memory = trace.device_memory
    found = memory.kind == kind
    if size is not None:
        found &= memory.bytes == size
    return [int(row) for row in np.flatnonzero(found)]


def test_new_segment_of_torch_is_one_row_in_its_region(torch):
    with gs.profile(profile_memory=True) as prof, gs.record_function("load"):
        tensor = torch.empty(BIG, dtype=torch.uint8, device="cuda")
    (row,) = rows(prof.trace, MemoryKind.DEVICE, BIG)
    memory = prof.trace.device_memory
    assert Reading(prof.trace).region(int(memory.region[row]))[0] == "load"
    assert int(memory.address[row]) == tensor.data_ptr()
    assert (int(memory.pool[row]), int(memory.flags[row])) == (0, 0)


def test_cached_memory_of_torch_is_no_row(torch):
    tensor = torch.empty(BIG, dtype=torch.uint8, device="cuda")
    del tensor
    with gs.profile(profile_memory=True) as prof:
        torch.empty(BIG, dtype=torch.uint8, device="cuda")
    assert rows(prof.trace, MemoryKind.DEVICE, BIG) == []


def test_piece_lies_within_the_call_that_took_it(torch):
    with gs.profile(profile_memory=True) as prof:
        torch.empty(BIG, dtype=torch.uint8, device="cuda")
    trace = prof.trace
    (row,) = rows(trace, MemoryKind.DEVICE, BIG)
    (call,) = np.flatnonzero(trace.api.correlation == trace.device_memory.correlation[row])
    began = int(trace.api.start_ns[call])
    slack = 20_000  # ns between two clocks read one after the other
    assert began - slack <= int(trace.device_memory.start_ns[row]) <= began + int(trace.api.duration_ns[call]) + slack


def test_library_that_took_it_is_named(torch):
    with gs.profile(profile_memory=True) as prof:
        torch.empty(BIG, dtype=torch.uint8, device="cuda")
    (row,) = rows(prof.trace, MemoryKind.DEVICE, BIG)
    library = int(prof.trace.device_memory.library[row])
    assert library != NONE
    assert prof.trace.string(library).endswith(".so") or ".so." in prof.trace.string(library)


def test_given_back_is_negative_with_the_size_that_was_taken(torch):
    tensor = torch.empty(BIG, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    with gs.profile(profile_memory=True) as prof, gs.record_function("release"):
        del tensor
        torch.cuda.empty_cache()
    (row,) = rows(prof.trace, MemoryKind.DEVICE, -BIG)
    memory = prof.trace.device_memory
    assert int(memory.address[row]) == address
    assert Reading(prof.trace).region(int(memory.region[row])) == ["release"]


def test_live_pieces_are_what_torch_reserved(torch):
    before = torch.cuda.memory_reserved()
    with gs.profile(profile_memory=True) as prof:
        kept = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (32, 64, 100)]
        del kept[1]
        torch.cuda.empty_cache()
    grown = torch.cuda.memory_reserved() - before
    memory = prof.trace.device_memory
    assert int(memory.bytes[memory.kind == MemoryKind.DEVICE].sum()) == grown


def test_pinned_memory_is_told_apart(torch):
    size = 48 * MIB
    with gs.profile(profile_memory=True) as prof:
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    (row,) = [row for row in rows(prof.trace, MemoryKind.PINNED) if prof.trace.device_memory.bytes[row] >= size]
    assert int(prof.trace.device_memory.address[row]) == pinned.data_ptr()


def test_managed_memory_is_told_apart(cupy):
    with gs.profile(profile_memory=True) as prof:
        managed = cupy.cuda.malloc_managed(32 * MIB)
        address = managed.ptr
        del managed
    memory = prof.trace.device_memory
    found = rows(prof.trace, MemoryKind.MANAGED)
    assert memory.bytes[found].tolist() == [32 * MIB, -32 * MIB]
    assert set(memory.address[found].tolist()) == {address}


def test_memory_of_a_pool_names_pool_stream_and_what_it_holds(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    with gs.profile(profile_memory=True) as prof, stream, gs.record_function("pooled"):
        piece = cupy.cuda.malloc_async(4 * MIB)
        del piece
        stream.synchronize()
    memory, tracks = prof.trace.device_memory, prof.trace.tracks
    pooled = np.flatnonzero(memory.pool != 0)
    assert memory.bytes[pooled].tolist() == [4 * MIB, -4 * MIB]
    taken = int(pooled[0])
    assert Reading(prof.trace).region(int(memory.region[taken])) == ["pooled"]
    assert int(memory.pool_reserved_bytes[taken]) >= int(memory.pool_used_bytes[taken]) >= 4 * MIB
    assert int(tracks.stream[memory.track[taken]]) != NONE


POOLS = """
import ctypes, json, cupy, gpuscope as gs
cupy.ones(1)
driver = ctypes.CDLL("libcuda.so.1")
class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("rest", ctypes.c_char * 72)]
pool = ctypes.c_void_p()
with gs.profile(profile_memory=True) as prof, gs.record_function("pools"):
    made = driver.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(Properties(1, 0, Location(1, 0), b"")))
    trimmed = driver.cuMemPoolTrimTo(pool, ctypes.c_size_t(0))
    gone = driver.cuMemPoolDestroy(pool)
assert (made, trimmed, gone) == (0, 0, 0), (made, trimmed, gone)
pools = prof.trace.memory_pools
paths = [int(prof.trace.regions.path[row]) for row in pools.region if row < len(prof.trace.regions)]
print(json.dumps({
    "operations": pools.operation.tolist(), "pools": len(set(pools.pool.tolist())), "devices": pools.device.tolist(),
    "regions": [prof.trace.string(int(prof.trace.paths.name[path])) for path in paths],
}))
"""


def test_pools_made_trimmed_and_destroyed_are_rows():
    pytest.importorskip("cupy")
    found = json.loads(run_code(POOLS).splitlines()[-1])
    assert found["operations"] == [PoolOperation.CREATED, PoolOperation.TRIMMED, PoolOperation.DESTROYED]
    assert (found["pools"], found["devices"]) == (1, [0, 0, 0])
    assert found["regions"] == ["pools"] * 3


def test_window_with_memory_alone_is_whole(torch):
    for _ in range(20):
        with gs.profile(profile_memory=True) as prof:
            tensor = torch.empty(BIG, dtype=torch.uint8, device="cuda")
        assert len(rows(prof.trace, MemoryKind.DEVICE, BIG)) == 1
        with gs.profile(profile_memory=True) as prof:
            del tensor
            torch.cuda.empty_cache()
        assert len(rows(prof.trace, MemoryKind.DEVICE, -BIG)) == 1


def test_audit_counts_launches_alike_with_and_without(torch, kernels):
    counts = []
    for memory in (False, True):
        torch.cuda.empty_cache()
        with gs.profile(profile_memory=memory) as prof:
            tensor = torch.empty(BIG, dtype=torch.uint8, device="cuda")
            kernels.spin(1, count=500)
            del tensor
        audit = prof.audit()
        assert audit.complete, audit.reasons
        counts.append((audit.launches, audit.kernels, audit.missing))
    assert counts == [(500, 500, 0)] * 2


def test_no_memory_is_recorded_unless_asked(torch):
    with gs.profile() as prof:
        torch.empty(BIG, dtype=torch.uint8, device="cuda")
    assert len(prof.trace.device_memory) == 0
    assert prof.trace.info["session.notes"] == ""


SHARED = """
import json, torch
with torch.profiler.profile():
    torch.ones(1, device="cuda")
import gpuscope as gs
with gs.profile(profile_memory=True) as prof, gs.record_function("load"):
    tensor = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
memory = prof.trace.device_memory
big = [row for row in range(len(memory)) if memory.bytes[row] == 256 << 20]
regions = [int(memory.region[row]) for row in big]
names = [prof.trace.string(int(prof.trace.paths.name[prof.trace.regions.path[row]])) for row in regions
         if row < len(prof.trace.regions)]
print(json.dumps({"tier": prof.trace.info["session.tier"], "rows": len(big), "names": names}))
"""


def test_shared_cupti_has_memory_and_regions_too():
    pytest.importorskip("torch")
    found = json.loads(run_code(SHARED).splitlines()[-1])
    assert found["tier"] == "cupti-shared"
    assert found["rows"] == 1
    assert len(found["names"]) == 1


def test_exported_counters_end_at_what_lives(torch, tmp_path):
    with gs.profile(profile_memory=True) as prof:
        tensor = torch.empty(BIG, dtype=torch.uint8, device="cuda")
    prof.export_chrome_trace(tmp_path / "a.json")
    prof.export_perfetto(tmp_path / "a.pftrace")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    counts = [
        event["args"]["bytes"] for event in events if event["ph"] == "C" and event["name"] == "GPU 0 memory, driver"
    ]
    assert (counts[0], counts[-1]) == (0, BIG)
    assert tensor.numel() == BIG
