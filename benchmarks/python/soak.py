# SPDX-License-Identifier: Apache-2.0
"""Memory of long recordings on the CPU: a program that makes up names, nests deeply, starts threads and profilers.

    python benchmarks/python/soak.py [--quick]

Each part runs in a process of its own. Its answer is the resident memory, in MiB above that before the first profiler,
a tenth of the way in (`early`), at the end (`late`), once the profiler is gone (`gone`), and whether what was kept is
right (`wrong`: why not).
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import measure

SECONDS = 900.0
QUICK_SECONDS = 20.0
CAP = 16 << 20
DEPTH = 2_000
CYCLES = 10_000
THREADS = 10_000


class Names:
    """Regions of which each has a name that never comes again."""

    def __init__(self, region: Callable[[str], Any]) -> None:
        self.region = region
        self.count = 0

    def run(self, regions: int) -> None:
        for _ in range(regions):
            with self.region(f"request {self.count:012d}"):
                self.count += 1


def until(seconds: float) -> Iterator[float]:
    """How far it is, from 0 to 1, for so long."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        yield passed / seconds


class Resident:
    """The resident memory above that at the beginning."""

    def __init__(self) -> None:
        self.before = measure.resident_bytes()
        self.early: float | None = None

    def mib(self) -> float:
        return round((measure.resident_bytes() - self.before) / 2**20, 1)

    def look(self, share: float) -> None:
        if self.early is None and share >= 0.1:
            self.early = self.mib()


def unique_names(mode: str, seconds: float) -> dict[str, Any]:
    """At a rate that the decode thread keeps up with: what has no room is counted, and that is another question."""
    import gpuscope as gs

    resident = Resident()
    names = Names(gs.record_function)
    with gs.profile(activities=[gs.ProfilerActivity.CPU], mode=mode, max_bytes=CAP, ring_seconds=5) as prof:
        for share in until(seconds):
            names.run(500)
            time.sleep(0.005)
            resident.look(share)
        late = resident.mib()
    audit, trace = prof.audit(), prof.trace
    wrong = ""
    if mode == "ring":
        rows = [trace.string(name) for name in trace.paths.name[trace.regions.path].tolist()]
        expected = [f"request {number:012d}" for number in range(names.count - len(rows), names.count)]
        wrong = "" if rows == expected and rows and audit.complete else f"{len(rows)} rows: {audit.verdict}"
    elif audit.log_dropped or audit.complete != (audit.refused == 0):
        wrong = audit.verdict
    del prof, trace
    gc.collect()
    return {"early": resident.early, "late": late, "gone": resident.mib(), "regions": names.count, "wrong": wrong}


def deep_trees(seconds: float) -> dict[str, Any]:
    import gpuscope as gs

    resident = Resident()
    windows = 0
    wrong = ""
    for share in until(seconds):
        with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
            regions = [gs.record_function(f"level {level}") for level in range(DEPTH)]
            for region in regions:
                region.__enter__()
            for region in reversed(regions):
                region.__exit__(None, None, None)
        rows = list(prof.tree())
        if len(rows) != DEPTH or not prof.audit().complete:
            wrong = f"{len(rows)} of {DEPTH} levels: {prof.audit().verdict}"
        windows += 1
        del prof, rows
        gc.collect()
        resident.look(share)
    return {"early": resident.early, "late": resident.mib(), "gone": resident.mib(), "windows": windows, "wrong": wrong}


def short_threads(threads: int) -> dict[str, Any]:
    import gpuscope as gs

    def live() -> None:
        with gs.record_function("work"):
            pass

    resident = Resident()
    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
        for number in range(threads):
            thread = threading.Thread(target=live)
            thread.start()
            thread.join()
            resident.look(number / threads)
        late = resident.mib()
    rows = len(prof.trace.regions)
    wrong = "" if rows == threads and prof.audit().complete else f"{rows} of {threads} rows: {prof.audit().verdict}"
    del prof
    gc.collect()
    return {"early": resident.early, "late": late, "gone": resident.mib(), "threads": threads, "wrong": wrong}


def cycles(count: int) -> dict[str, Any]:
    import gpuscope as gs

    resident = Resident()
    wrong = ""
    for number in range(count):
        with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
            for region in range(10):
                with gs.record_function(f"cycle {number} region {region}"):
                    pass
        if len(prof.trace.regions) != 10 or not prof.audit().complete:
            wrong = f"cycle {number}: {len(prof.trace.regions)} of 10 rows: {prof.audit().verdict}"
        resident.look(number / count)
    return {"early": resident.early, "late": resident.mib(), "gone": resident.mib(), "cycles": count, "wrong": wrong}


def main() -> None:
    options = measure.arguments(__doc__, part="")
    seconds = QUICK_SECONDS if options.quick else SECONDS
    share = 10 if options.quick else 1
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "ring": lambda: unique_names("ring", seconds),
        "aggregate": lambda: unique_names("aggregate", seconds),
        "deep": lambda: deep_trees(seconds),
        "threads": lambda: short_threads(THREADS // share),
        "cycles": lambda: cycles(CYCLES // share),
    }
    if options.part:
        measure.answer(parts[options.part]())
        return
    quick = ["--quick"] if options.quick else []
    found = {}
    for part in parts:
        found[part] = measure.child("soak.py", "--part", part, *quick, seconds=int(SECONDS * 4))
        print(part, found[part], file=sys.stderr)
    measure.answer({"soak": found})


if __name__ == "__main__":
    main()
