# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for the program, which does something else."""

from __future__ import annotations

import gc
import io
import queue
import threading

import torch

from . import COMPUTE_MS, Compute, Fault, Step, wait, whole


def _beside(host: Step) -> Step:
    """The GPU has work for `COMPUTE_MS` meanwhile, and then none."""
    compute = Compute()
    return lambda: (host(), compute())


def nothing_beside(amount: float) -> Step:
    return _beside(lambda: None)


def python_in_the_loop(thousands: float) -> Step:
    count = whole(thousands * 1e3)

    def make() -> object:
        return sum([number * 2 for number in range(count)])

    return _beside(make)


def collector_each_step(thousands: float) -> Step:
    kept: list[object] = []
    step = _beside(lambda: _collect(kept))
    gc.freeze()  # what is there already takes no time of a collection
    kept += [[] for _ in range(whole(thousands * 1e3))]
    return step


def _collect(kept: object) -> object:
    return gc.collect()


def checkpoint_each_step(thousands: float) -> Step:
    weights, file = torch.zeros(whole(thousands * 1e3)), io.BytesIO()

    def save() -> object:
        file.seek(0)  # the memory of the first time is written again
        return torch.save(weights, file)

    return _beside(save)


def thread_beside(ms: float) -> Step:
    return _beside(_Handed(ms))


class _Handed:
    """Work that is handed to another thread and waited for, as if that made it shorter."""

    def __init__(self, ms: float) -> None:
        self.ms = ms
        self.asked: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            wait(self.asked.get())
            self.done.put(None)

    def __call__(self) -> object:
        self.asked.put(self.ms)
        return self.done.get()


FAULTS = (
    Fault("R24", python_in_the_loop, nothing_beside, "number * 2 for number", begin=300),
    Fault("R23", collector_each_step, nothing_beside, "gc.collect()", begin=1000),
    Fault("R26", checkpoint_each_step, nothing_beside, "torch.save(", begin=5000),
    Fault("R25", thread_beside, nothing_beside, "self.done.get()", begin=2 * COMPUTE_MS),
)
