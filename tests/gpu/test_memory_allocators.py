# SPDX-License-Identifier: Apache-2.0
"""torch with an allocator of the program's own (CUDAPluggableAllocator). Each program has a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from child import last_facts, run_code

MIB = 1 << 20

# Straight from the driver, so that neither headers nor the runtime are needed to build it.
SOURCE = """
#include <dlfcn.h>
#include <sys/types.h>
using Take = int (*)(unsigned long long*, size_t);
using Release = int (*)(unsigned long long);
static void* driver() {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return library;
}
extern "C" void* own_take(ssize_t size, int, void*) {
  unsigned long long address = 0;
  const int result = reinterpret_cast<Take>(dlsym(driver(), "cuMemAlloc_v2"))(&address, size);
  return result == 0 ? reinterpret_cast<void*>(address) : nullptr;
}
extern "C" void own_release(void* address, ssize_t, int, void*) {
  reinterpret_cast<Release>(dlsym(driver(), "cuMemFree_v2"))(reinterpret_cast<unsigned long long>(address));
}
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> str:
    """The first lines of a program that uses it."""
    folder: Path = tmp_path_factory.mktemp("allocator")
    (folder / "own.cpp").write_text(SOURCE, encoding="utf-8")
    library = folder / "libown_allocator.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, folder / "own.cpp", "-ldl"], check=True)
    return (
        "import json, sys, torch, gpuscope\n"
        "MIB = 1 << 20\n"
        f"own = torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, 'own_take', 'own_release')\n"
        "torch.cuda.memory.change_current_allocator(own)\n"
        "history = gpuscope.record_memory_history()\n"
        "with gpuscope.record_function('load'):\n"
        "    x = torch.empty(200 * MIB, dtype=torch.uint8, device='cuda')\n"
    )


def test_the_ledger_names_the_library_the_line_and_the_region(start):
    found = last_facts(
        run_code(start + "ledger = gpuscope.memory_ledger()\nprint(ledger)\nprint(json.dumps(ledger.to_dict()))")
    )
    rows = [row for row in found["rows"] if row["library"] == "libown_allocator.so"]
    assert [(row["bytes"], row["region"]) for row in rows] == [(200 * MIB, "load")]
    if found["process_bytes"] is not None:
        assert abs(found["process_bytes"] - found["explained_bytes"]) <= 64 * MIB, found["rows"]


def test_snapshots_and_stages_work_and_say_that_torch_keeps_no_figures(start):
    found = last_facts(
        run_code(
            start + "with gpuscope.track_memory('more') as stage:\n"
            "    y = torch.empty(100 * MIB, dtype=torch.uint8, device='cuda')\n"
            "print(gpuscope.memory_summary())\n"
            "(device,) = gpuscope.memory_snapshot().devices\n"
            "print(json.dumps({'notes': [pool.note for pool in device.pools], 'stage': str(stage)}))"
        )
    )
    assert any("keeps no figures" in note for note in found["notes"]), found
    assert found["stage"]


def test_the_history_has_what_the_allocator_took_from_the_driver(start, tmp_path):
    path = tmp_path / "memory.pickle"
    found = last_facts(
        run_code(
            start + "del x\n"
            "events = history.events()\n"
            f"gpuscope.dump_memory_snapshot({str(path)!r})\n"
            f"loaded = gpuscope.load_memory_snapshot({str(path)!r})\n"
            "big = [size for size in events.bytes.tolist() if abs(size) == 200 * MIB]\n"
            "read = [size for size in loaded.events.bytes.tolist() if abs(size) == 200 * MIB]\n"
            "print(json.dumps({'big': big, 'read': read, 'notes': list(history.notes)}))"
        )
    )
    assert found["big"] == found["read"] == [200 * MIB, -200 * MIB]
    assert any("reports neither allocations" in note for note in found["notes"]), found


def test_a_leak_is_found_at_the_driver(start):
    found = last_facts(
        run_code(
            start + "kept = []\n"
            "def step():\n"
            "    kept.append(torch.empty(4 * MIB, dtype=torch.uint8, device='cuda'))\n"
            "report = gpuscope.find_leaks(step, steps=8)\n"
            "print(report)\n"
            "print(json.dumps({'leaks': [str(leak) for leak in report.leaks]}))"
        )
    )
    assert len(found["leaks"]) == 1, found


ASYNC = {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
IN_THE_DRIVERS_POOL = """
import json, torch, gpuscope
MIB = 1 << 20
torch.ones(1, device="cuda")
torch.cuda.synchronize()
gpuscope.record_memory_history()
with gpuscope.profile(profile_memory=True) as prof, gpuscope.record_function("load"):
    x = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
memory = prof.trace.device_memory
try:
    why = str(gpuscope.fragmentation())
except gpuscope.errors.NotAvailable as error:
    why = str(error)
print(json.dumps({
    "taken": [int(size) for size, pool in zip(memory.bytes, memory.pool) if size > 100 * MIB and pool],
    "audit": str(prof.audit()),
    "fragmentation": why,
    "peak": list(gpuscope.peak_memory().notes),
    "peak_bytes": gpuscope.peak_memory().bytes,
    "history": list(gpuscope.record_memory_history().notes),
    "summary": str(gpuscope.memory_summary()),
    "ledger": str(gpuscope.memory_ledger(measure_context=False)),
}))
"""


def test_memory_of_the_drivers_pool_is_counted_and_its_allocator_named():
    found = last_facts(run_code(IN_THE_DRIVERS_POOL, **ASYNC))
    assert found["taken"] == [200 * MIB]
    assert found["peak_bytes"] >= 200 * MIB
    for place in ("audit", "fragmentation", "summary", "ledger"):
        assert "cudaMallocAsync" in found[place], place
    for place in ("peak", "history"):
        assert any("cudaMallocAsync" in note for note in found[place]), place
    assert "\n" not in found["fragmentation"]
