# SPDX-License-Identifier: Apache-2.0
"""What CUPTI's own thread takes for a launch as a process gets older, under gpuscope and with bare kernel records.

Threads launch as fast as they can, in two windows with a rest between. CUPTI 13.0's thread takes longer for each launch
the older its process is; where it takes a whole core, records come late, and a recording grows by what waits for them.
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
LOOK_S = 5.0
# Of each way: seconds of launching, of rest, of launching once more. All begin their second window equally old.
WAYS = {
    "gpuscope": (60.0, 0.0, 15.0),
    "gpuscope, no first window": (0.0, 60.0, 15.0),
    "gpuscope, a rest between": (15.0, 45.0, 15.0),
    "bare": (60.0, 0.0, 15.0),
}


def thread_cpu_s() -> dict[int, float]:
    """CPU seconds of each thread of this process, by its id."""
    spent = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it ended meanwhile
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            spent[int(task.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


@contextlib.contextmanager
def recording(bare: bool) -> Iterator[None]:
    if bare:
        from floor import Floor

        floor = Floor()
        floor.start()
        yield
        floor.stop()
    else:
        import load

        with load.profiler(mode="ring", ring_seconds=1.0):
            yield


def window(gpu: Any, bare: bool, seconds: float) -> list[int]:
    """ns that the busiest thread of all that do not launch takes for a launch, every LOOK_S."""
    counts = [0] * THREADS
    launching = {threading.get_native_id()}
    until = time.monotonic() + seconds
    found: list[int] = []

    def launch(number: int) -> None:
        launching.add(threading.get_native_id())
        while time.monotonic() < until:
            gpu.launch(number, CHUNK)
            counts[number] += CHUNK

    with recording(bare):
        threads = [threading.Thread(target=launch, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        before, launched = thread_cpu_s(), 0
        while time.monotonic() + LOOK_S < until:
            time.sleep(LOOK_S)
            now, made = thread_cpu_s(), sum(counts)
            spent = [cpu - before.get(thread, 0.0) for thread, cpu in now.items() if thread not in launching]
            found.append(round(max(spent, default=0.0) / max(made - launched, 1) * 1e9))
            before, launched = now, made
        for thread in threads:
            thread.join()
        gpu.kernels.synchronize()
    return found


def run(way: str) -> dict[str, list[int]]:
    """In a process of its own, on its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // len(WAYS))
    number = list(WAYS).index(way)
    os.sched_setaffinity(0, cores[number * each : (number + 1) * each] or cores)
    import load

    first, rest, second = WAYS[way]
    gpu = load.Gpu()
    gpu.launch(0, 1000)
    gpu.kernels.synchronize()
    found = {"first window": window(gpu, way == "bare", first) if first else []}
    time.sleep(rest)
    return found | {"second window": window(gpu, way == "bare", second)}


def main() -> None:
    options = measure.arguments(__doc__, way="")
    if options.way:
        measure.answer(run(options.way))
        return
    if why := measure.why_not_available(gpu=True):
        measure.answer({"rows": {"cupti_thread": {"skipped": why}}})
        return
    with ThreadPoolExecutor() as pool:
        found = dict(
            zip(WAYS, pool.map(lambda way: measure.child(Path(__file__).name, "--way", way), WAYS), strict=True)
        )
    detail = {f"{way}, ns a launch every {LOOK_S:.0f} s": each for way, each in found.items()}
    first = found["gpuscope"].get("first window", [])
    row = (
        {"value": round(first[-1] / first[0], 3)} if first else {"error": found["gpuscope"].get("error", "no launches")}
    )
    measure.answer({"rows": {"cupti_thread": row | {"detail": detail}}})


if __name__ == "__main__":
    main()
