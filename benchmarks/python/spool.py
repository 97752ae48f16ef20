# SPDX-License-Identifier: Apache-2.0
"""What survives SIGKILL of a recording with `spool`, and the CPU time of writing it. Needs no GPU."""

from __future__ import annotations

import mmap
import os
import random
import signal
import statistics
import struct
import tempfile
import time
from pathlib import Path

import measure

import gpuscope as gs
from gpuscope._core import now_ns

REGIONS = 300_000
MS = 1e6


def record(folder: Path, shared: mmap.mmap) -> None:
    """Steps of half a millisecond, until the process is killed. `shared` has their number and the last moment."""
    with gs.profile(path=folder, spool=True), gs.record_function("all"):
        for count in range(1, 10**9):
            with gs.record_function("step"), gs.record_function("inner"):
                time.sleep(0.0005)
            shared[:16] = struct.pack("qq", count, now_ns())


def kill(folder: Path) -> float:
    """Kills a recording process at a random moment, and returns by how many ms its last row is too early."""
    shared = mmap.mmap(-1, 16)
    child = os.fork()
    if child == 0:
        record(folder, shared)
    while not struct.unpack("qq", shared[:16])[0]:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 1.0))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    steps, last_ns = struct.unpack("qq", shared[:16])
    regions = gs.load(folder / "rank-00000.gscope").trace.regions
    if not len(regions):
        return steps * 0.6  # all of them
    return (last_ns - int((regions.start_ns + regions.duration_ns).max())) / MS


def cpu_ns(path: Path | None) -> float:
    """CPU time of the process for a region, recorded in memory or on the disk."""
    with gs.profile(path=path, spool=path is not None):
        began = time.process_time_ns()
        for _ in range(REGIONS):
            with gs.record_function("region"):
                pass
        time.sleep(0.25)  # all rows are written
        return (time.process_time_ns() - began) / REGIONS


def main() -> None:
    quick = measure.arguments(__doc__).quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lost = [kill(folder / str(number)) for number in range(50 if quick else 1000)]
        pairs = [(cpu_ns(folder / f"cost-{number}"), cpu_ns(None)) for number in range(5 if quick else 15)]
    rows = {
        "spool_killed": {
            "value": round(max(lost), 1),
            "detail": {"kills": len(lost), "median_ms": round(statistics.median(lost), 1)},
        },
        "spool_cpu": {"value": round(statistics.median(disk - memory for disk, memory in pairs), 1)},
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
