# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from . import COMPUTE_MS, LATE_MS, Compute, Fault, Pace, Step, wait, wait_until

BATCH, SAMPLES = 8, 1 << 20
SHORT_MS, EPOCH = 2.0, 250  # of a step, and steps of an epoch, where it is epochs that begin slowly


class Samples(torch.utils.data.Dataset):
    """Of which each takes so long to make; by its pace, with what a worker does between them."""

    def __init__(self, ms: float, count: int = SAMPLES, *, has_pace: bool = True) -> None:
        self.ms, self.pace, self.count = ms, Pace(ms, LATE_MS) if ms and has_pace else None, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.pace is not None:
            wait_until(self.pace.next())
        elif self.ms:
            wait(self.ms)
        return torch.from_numpy(np.full((3, 32, 32), index % 7, np.float32))


def _training(ms: float, workers: int) -> Step:
    # Batches that lie ready would hide for many steps that workers are a little too slow.
    ready = 1 if workers else None
    samples = Samples(ms / BATCH, has_pace=workers > 0)  # the training thread has as much to do where it is recorded
    loader = torch.utils.data.DataLoader(
        samples, BATCH, num_workers=workers, persistent_workers=workers > 0, prefetch_factor=ready
    )
    batches, compute = iter(loader), Compute()

    def step() -> object:
        batch = next(batches)
        return batch, compute()

    return step


def loader_in_the_training_thread(ms: float) -> Step:
    return _training(ms, workers=0)


def loader_with_workers(ms: float) -> Step:
    return _training(ms, workers=4)


def too_few_workers(ms: float) -> Step:
    return _training(ms, workers=1)


def _begin(ms: float, worker: int) -> None:
    wait(ms)


def _epochs(ms: float, *, persistent: bool) -> Step:
    """Workers take so long to begin."""
    loader = torch.utils.data.DataLoader(
        Samples(0, EPOCH * BATCH),
        BATCH,
        num_workers=2,
        persistent_workers=persistent,
        worker_init_fn=partial(_begin, ms),
    )

    def every() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    batches, compute = every(), Compute(SHORT_MS)

    def step() -> object:
        batch = next(batches)
        return batch, compute()

    return step


def new_workers_each_epoch(ms: float) -> Step:
    return _epochs(ms, persistent=False)


def workers_that_stay(ms: float) -> Step:
    return _epochs(ms, persistent=True)


FAULTS = (
    Fault(
        "R02",
        loader_in_the_training_thread,
        loader_with_workers,
        "batch = next(batches)",
        begin=1.2 * COMPUTE_MS,
    ),
    Fault("R03", too_few_workers, loader_with_workers, "batch = next(batches)", begin=1.2 * COMPUTE_MS),
    Fault(
        "R05",
        new_workers_each_epoch,
        workers_that_stay,
        "yield from loader",
        begin=50,
        steps=2 * EPOCH + 20,
        calls=EPOCH,
    ),
)
