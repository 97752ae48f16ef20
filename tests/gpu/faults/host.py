# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for the program, which does something else."""

from __future__ import annotations

import gc
import io
import queue
import threading

import torch

from . import Compute, Fault, Step, outlasting, scaled, wait


def _beside(host: Step) -> Step:
    """The GPU has work for `COMPUTE_MS` meanwhile, and then none."""
    compute = Compute()
    return lambda: (host(), compute())


def _numbers(count: int) -> Step:
    def make() -> object:
        return sum([number * 2 for number in range(count * 100)])

    return make


def python_in_the_loop(share: float) -> Step:
    return _beside(_numbers(scaled("numbers", _numbers, outlasting(share))))


def no_python_in_the_loop(share: float) -> Step:
    return _beside(lambda: None)


def _cycles(count: int) -> Step:
    gc.freeze()  # what is there already takes as long as a fault is to be
    kept = []
    for _ in range(count * 100):
        cycle: list[object] = []
        cycle.append(cycle)
        kept.append(cycle)

    def collect(kept: object = kept) -> object:
        return gc.collect()

    return collect


def collector_each_step(share: float) -> Step:
    return _beside(_cycles(scaled("cycles", _cycles, outlasting(share))))


def _saved(count: int) -> Step:
    weights = torch.zeros(count * 10_000)

    def save() -> object:
        return torch.save(weights, io.BytesIO())

    return save


def checkpoint_each_step(share: float) -> Step:
    return _beside(_saved(scaled("saved", _saved, outlasting(share))))


def thread_beside(share: float) -> Step:
    return _beside(_Handed(outlasting(share)))


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
    Fault("R24", python_in_the_loop, no_python_in_the_loop, "number * 2 for number"),
    Fault("R23", collector_each_step, no_python_in_the_loop, "gc.collect()"),
    Fault("R26", checkpoint_each_step, no_python_in_the_loop, "torch.save("),
    Fault("R25", thread_beside, no_python_in_the_loop, "self.done.get()"),
)
