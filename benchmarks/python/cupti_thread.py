# SPDX-License-Identifier: Apache-2.0
"""What CUPTI's own thread takes for a launch as a recording gets older, under gpuscope and with bare kernel records.

Threads launch as fast as they can, in one window, or in windows that end and begin while they go on. CUPTI 13.0's
thread takes longer for each launch the longer ago its first window began, and much longer after each flush that was
forced while kernels ran; where it takes a whole core, records come late, and a recording grows by what waits for them.
Ways run side by side, each in a process with cores of its own. ``--way`` is for those processes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure

THREADS = 3  # that launch; with CUPTI's, a way keeps four cores busy
CHUNK = 200  # launches of one call, without the GIL
LOOK_S, LOOKS = 5.0, 12
# What records: gpuscope in a mode of its own, or bare kernel records; and whether a window lasts for one look alone.
WAYS = {
    "gpuscope": ("ring", False),
    "gpuscope, windows of one look": ("ring", True),
    "gpuscope, windows of one look with all rows": ("full", True),
    "bare": ("bare", False),
    "bare, windows of one look": ("bare", True),
}


@contextlib.contextmanager
def recording(what: str) -> Iterator[None]:
    if what == "bare":
        from floor import Floor

        floor = Floor()
        floor.start()
        yield
        floor.stop()
    else:
        import load

        with load.profiler(mode=what, ring_seconds=1.0):
            yield


def looks(gpu: Any, what: str, short: bool) -> list[list[float]]:
    """Of each look: ns that the busiest thread of all that do not launch takes for a launch, and resident MB."""
    counts = [0] * THREADS
    launching = {threading.get_native_id()}
    done = threading.Event()
    found: list[list[float]] = []

    def launch(number: int) -> None:
        launching.add(threading.get_native_id())
        while not done.is_set():
            gpu.launch(number, CHUNK)
            counts[number] += CHUNK

    def look() -> None:
        before, launched = measure.thread_cpu_s(), sum(counts)
        time.sleep(LOOK_S)
        now, made = measure.thread_cpu_s(), sum(counts) - launched
        spent = [cpu - before.get(thread, 0.0) for thread, cpu in now.items() if thread not in launching]
        found.append([round(max(spent, default=0.0) / max(made, 1) * 1e9), round(measure.resident_bytes() / 1e6)])

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for _ in range(LOOKS if short else 1):
        with recording(what):
            for _ in range(1 if short else LOOKS):
                look()
    done.set()
    for thread in threads:
        thread.join()
    gpu.kernels.synchronize()
    return found


def run(way: str) -> list[list[float]]:
    """In a process of its own, on its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // len(WAYS))
    number = list(WAYS).index(way)
    os.sched_setaffinity(0, cores[number * each : (number + 1) * each] or cores)
    import load

    gpu = load.Gpu()
    gpu.launch(0, 1000)
    gpu.kernels.synchronize()
    return looks(gpu, *WAYS[way])


def main() -> None:
    options = measure.arguments(__doc__, way="")
    if options.way:
        measure.answer({"looks": run(options.way)})
        return
    if why := measure.why_not_available(gpu=True):
        measure.answer({"rows": {"cupti_thread": {"skipped": why}}})
        return
    with ThreadPoolExecutor() as pool:
        found = dict(
            zip(WAYS, pool.map(lambda way: measure.child(Path(__file__).name, "--way", way), WAYS), strict=True)
        )
    detail = {f"{way}: ns a launch and resident MB, every {LOOK_S:.0f} s": each for way, each in found.items()}
    seen = found["gpuscope"].get("looks", [])
    row = (
        {"value": round(seen[-1][0] / seen[0][0], 3)} if seen else {"error": found["gpuscope"].get("error", "no look")}
    )
    measure.answer({"rows": {"cupti_thread": row | {"detail": detail}}})


if __name__ == "__main__":
    main()
