# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for copies, or for what was made elsewhere."""

from __future__ import annotations

import torch

from . import Compute, Fault, Step, milliseconds, outlasting, scaled

PAGEABLE_BYTES_PER_MS = 10e6  # about what the driver stages
PINNED_BYTES_PER_MS = 50e6


def _copied(share: float, bytes_per_ms: float, pinned: bool) -> Step:
    data = torch.empty(int(milliseconds(share) * bytes_per_ms), dtype=torch.uint8, pin_memory=pinned)
    compute = Compute()

    def step() -> object:
        batch = data.to("cuda", non_blocking=True)
        return batch, compute()

    return step


def pageable_copy(share: float) -> Step:
    return _copied(share, PAGEABLE_BYTES_PER_MS, pinned=False)


def pinned_copy(share: float) -> Step:
    return _copied(share, PAGEABLE_BYTES_PER_MS, pinned=True)


def blocking_copy(share: float) -> Step:
    data = torch.empty(int(milliseconds(share) * PINNED_BYTES_PER_MS), dtype=torch.uint8, pin_memory=True)
    compute = Compute()

    def step() -> object:
        compute()
        return data.to("cuda")

    return step


def prefetched_copy(share: float) -> Step:
    data = torch.empty(int(milliseconds(share) * PINNED_BYTES_PER_MS), dtype=torch.uint8, pin_memory=True)
    compute, stream = Compute(), torch.cuda.Stream()

    def step() -> object:
        with torch.cuda.stream(stream):
            batch = data.to("cuda", non_blocking=True)
        compute()
        torch.cuda.current_stream().wait_stream(stream)
        return batch

    return step


def small_copies(share: float) -> Step:
    numbers = torch.arange(100_000, dtype=torch.float32).pin_memory()
    compute = Compute()

    def copies(count: int) -> Step:
        return lambda: [numbers[at].to("cuda", non_blocking=True) for at in range(count)]

    every = copies(scaled(copies, outlasting(share), least=20))
    return lambda: (every(), compute())


def one_copy(share: float) -> Step:
    numbers = torch.arange(100_000, dtype=torch.float32).pin_memory()
    compute = Compute()

    return lambda: (numbers.to("cuda", non_blocking=True), compute())


def made_on_the_cpu(share: float) -> Step:
    count, compute = int(milliseconds(share) * 1e6), Compute()

    def step() -> object:
        mask = torch.zeros(count).to("cuda")
        return mask, compute()

    return step


def made_on_the_gpu(share: float) -> Step:
    count, compute = int(milliseconds(share) * 1e6), Compute()

    def step() -> object:
        mask = torch.zeros(count, device="cuda")
        return mask, compute()

    return step


FAULTS = (
    Fault("R09", pageable_copy, pinned_copy, "batch = data.to("),
    Fault("R10", blocking_copy, prefetched_copy, "return data.to("),
    Fault("R11", small_copies, one_copy, "numbers[at].to("),
    Fault("R14", made_on_the_cpu, made_on_the_gpu, "mask = torch.zeros("),
)
