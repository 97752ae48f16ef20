# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for data."""

from __future__ import annotations

import numpy as np
import torch

from . import Compute, Fault, Step, outlasting, wait


class Samples(torch.utils.data.Dataset):
    """Of which each takes so long to make."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        wait(self.ms)
        return torch.from_numpy(np.full((3, 32, 32), index % 7, np.float32))


BATCH = 8


def _training(ms: float, workers: int) -> Step:
    loader = torch.utils.data.DataLoader(
        Samples(ms / BATCH), BATCH, num_workers=workers, persistent_workers=workers > 0
    )
    batches, compute = iter(loader), Compute()

    def step() -> object:
        batch = next(batches)
        return batch, compute()

    return step


def loader_in_the_training_thread(share: float) -> Step:
    return _training(outlasting(share), workers=0)


def loader_with_workers(share: float) -> Step:
    return _training(outlasting(share), workers=6)


def too_few_workers(share: float) -> Step:
    return _training(outlasting(share), workers=1)


FAULTS = (
    Fault("R02", loader_in_the_training_thread, loader_with_workers, "batch = next(batches)"),
    Fault("R03", too_few_workers, loader_with_workers, "batch = next(batches)"),
)
