# SPDX-License-Identifier: Apache-2.0
"""How much of the GPU memory of a program the ledger explains, and how far its sum is from NVML's figure.

Programs that hold memory with torch, with CuPy and with both, each in a process of its own that is watched from its
start; then what a snapshot costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import measure

MATRIX = 8192
HELD = 4  # matrices of 256 MiB
SNAPSHOTS = 200
QUICK_SNAPSHOTS = 50
PROGRAMS = {"torch": ("torch",), "cupy": ("cupy",), "both": ("torch", "cupy")}
ROWS = ("memory_ledger", "memory_ledger_explained", "memory_snapshot")

Held = list[Any]


def with_torch() -> Held:
    import torch

    held = [torch.randn(MATRIX, MATRIX, device="cuda") for _ in range(HELD)]
    held[0] @ held[1]  # what it leaves is cached
    torch.nn.functional.conv2d(torch.randn(8, 64, 128, 128, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda"))
    torch.cuda.synchronize()
    return held


def with_cupy() -> Held:
    import cupy

    held = [cupy.random.rand(MATRIX, MATRIX, dtype=cupy.float32) for _ in range(HELD)]
    held[0] @ held[1]
    cupy.cuda.Device().synchronize()
    return held


HOLDERS: dict[str, Callable[[], Held]] = {"torch": with_torch, "cupy": with_cupy}


def watch() -> str:
    """Has allocations watched; why it cannot be had."""
    try:
        from gpuscope.memory.history.history import record_memory_history
    except ImportError:
        return "this build of gpuscope records no memory history"
    record_memory_history()
    return ""


def program(name: str, rounds: int) -> dict[str, Any]:
    """Holds memory and says what the ledger and NVML make of it."""
    why = watch()
    try:
        held = [HOLDERS[framework]() for framework in PROGRAMS[name]]
    except ImportError as error:
        return {"skipped": str(error)}
    from gpuscope.memory.usage.ledger import memory_ledger
    from gpuscope.memory.usage.snapshot import memory_snapshot

    ledger = memory_ledger()
    if ledger.process_bytes is None:
        return {"skipped": ledger.process_why}
    spent = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        memory_snapshot(detail=False)
        spent.append(time.perf_counter_ns() - began)
    return {
        "process": ledger.process_bytes,
        "explained": ledger.explained_bytes,
        "notes": [*ledger.notes, *([why] if why else [])],
        "rows": {" ".join(filter(None, (f"{row.library}: {row.what}", row.region))): row.bytes for row in ledger.rows},
        "snapshot_us": round(statistics.median(spent) / 1e3, 1),
        "held": len(held),
    }


def rows(found: dict[str, Any]) -> dict[str, measure.Row]:
    """The worst of the programs."""
    told = {name: facts for name, facts in found.items() if "process" in facts}
    for problem in ("error", "skipped"):
        why = next((facts[problem] for facts in found.values() if problem in facts), None)
        if why is not None and (problem == "error" or not told):
            return {name: {problem: why} for name in ROWS}
    off = {name: abs(facts["explained"] - facts["process"]) / (1 << 20) for name, facts in told.items()}
    share = {name: facts["explained"] / facts["process"] for name, facts in told.items()}
    snapshots = {name: facts["snapshot_us"] for name, facts in told.items()}
    return {
        "memory_ledger": {"value": round(max(off.values()), 2), "detail": {"programs": found}},
        "memory_ledger_explained": {
            "value": round(max(abs(1 - part) for part in share.values()), 5),
            "detail": {"explained": {name: round(part, 5) for name, part in share.items()}},
        },
        "memory_snapshot": {"value": max(snapshots.values()), "detail": {"us, by program": snapshots}},
    }


def main() -> None:
    options = measure.arguments(__doc__, program="")
    rounds = QUICK_SNAPSHOTS if options.quick else SNAPSHOTS
    if options.program:
        measure.answer(program(options.program, rounds))
        return
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    more = ("--quick",) if options.quick else ()
    found = {name: measure.child("memory_ledger.py", "--program", name, *more) for name in PROGRAMS}
    measure.answer({"rows": rows(found)})


if __name__ == "__main__":
    main()
