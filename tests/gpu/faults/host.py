# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for the program, which does something else."""

from __future__ import annotations

import gc
import io
import math
import queue
import threading
import time

import torch

from . import COMPUTE_MS, LATE_MS, Compute, Fault, Pace, Step, wait_until

# Each collection, and each file, takes a part of a millisecond.
OBJECTS, WEIGHTS = 10_000, 100_000


def _beside(host: Step) -> Step:
    """The GPU has work for `COMPUTE_MS` meanwhile, and then none."""
    compute = Compute()
    return lambda: (host(), compute())


def _after(ms: float) -> float:
    """When so long has passed: a program has as much to do where it is recorded, and more besides."""
    return time.perf_counter() + ms / 1e3


def nothing_beside(amount: float) -> Step:
    return _beside(lambda: None)


def python_in_the_loop(ms: float) -> Step:
    def make() -> None:
        until = _after(ms)
        while time.perf_counter() < until:
            sum([number * 2 for number in range(2000)])

    return _beside(make)


def collector_each_step(ms: float) -> Step:
    kept: list[object] = []
    step = _beside(lambda: _collect(ms, kept))
    gc.freeze()  # what is there already takes no time of a collection
    kept += [[] for _ in range(OBJECTS)]
    return step


def _collect(ms: float, kept: object) -> None:
    until = _after(ms)
    while time.perf_counter() < until:
        gc.collect()


def checkpoint_each_step(ms: float) -> Step:
    weights, file = torch.zeros(WEIGHTS), io.BytesIO()

    def save() -> None:
        until = _after(ms)
        while time.perf_counter() < until:
            file.seek(0)  # the memory of the first time is written again
            torch.save(weights, file)

    return _beside(save)


def thread_beside(ms: float) -> Step:
    return _beside(_Handed(ms))


class _Handed:
    """Work that is handed to another thread and waited for, as if that made it shorter."""

    def __init__(self, ms: float) -> None:
        self.pace = Pace(ms, LATE_MS)
        self.asked: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self.asked, self.done), daemon=True).start()

    def __del__(self) -> None:
        self.asked.put(math.inf)  # threads of other programs are none of those that are recorded

    def __call__(self) -> object:
        self.asked.put(self.pace.next())
        return self.done.get()


def _work(asked: queue.SimpleQueue[float], done: queue.SimpleQueue[None]) -> None:
    while (until := asked.get()) < math.inf:
        wait_until(until)
        done.put(None)


FAULTS = (
    Fault("R24", python_in_the_loop, nothing_beside, "number * 2 for number", begin=1.2 * COMPUTE_MS),
    Fault("R23", collector_each_step, nothing_beside, "gc.collect()", begin=1.2 * COMPUTE_MS),
    Fault("R26", checkpoint_each_step, nothing_beside, "torch.save(", begin=1.2 * COMPUTE_MS),
    Fault("R25", thread_beside, nothing_beside, "self.done.get()", begin=1.2 * COMPUTE_MS),
)
