# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for copies, or for what was made elsewhere."""

from __future__ import annotations

import torch

from . import Compute, Fault, Step, milliseconds, outlasting, scaled, wait

PAGEABLE_BYTES_PER_MS = 10e6  # about what the driver stages
PINNED_BYTES_PER_MS = 50e6


def _bytes(share: float, bytes_per_ms: float, pinned: bool) -> torch.Tensor:
    """Memory that a copy of takes that share; it was written, as pages that were not are all the same one."""
    return torch.ones(int(milliseconds(share) * bytes_per_ms), dtype=torch.uint8, pin_memory=pinned)


def _copied(data: torch.Tensor) -> Step:
    compute = Compute()

    def step() -> object:
        batch = data.to("cuda", non_blocking=True)
        return batch, compute()

    return step


def pageable_copy(share: float) -> Step:
    return _copied(_bytes(share, PAGEABLE_BYTES_PER_MS, pinned=False))


def pinned_copy(share: float) -> Step:
    return _copied(_bytes(share, PAGEABLE_BYTES_PER_MS, pinned=True))


def _labels(share: float, non_blocking: bool) -> Step:
    """The program goes on to do something on the CPU."""
    data, compute = torch.ones(1 << 20, dtype=torch.uint8, pin_memory=True), Compute()

    def step() -> object:
        compute()
        batch = data.to("cuda", non_blocking=non_blocking)
        wait(milliseconds(share))
        return batch

    return step


def blocking_copy(share: float) -> Step:
    return _labels(share, non_blocking=False)


def copy_that_is_not_waited_for(share: float) -> Step:
    return _labels(share, non_blocking=True)


def copy_before_computing(share: float) -> Step:
    return _copied(_bytes(share, PINNED_BYTES_PER_MS, pinned=True))


def prefetched_copy(share: float) -> Step:
    data = _bytes(share, PINNED_BYTES_PER_MS, pinned=True)
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

    every = copies(scaled("small copies", copies, outlasting(share)))
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
    Fault("R10", blocking_copy, copy_that_is_not_waited_for, "batch = data.to("),
    Fault("R11", small_copies, one_copy, "numbers[at].to("),
    Fault("R12", copy_before_computing, prefetched_copy, "batch = data.to("),
    Fault("R14", made_on_the_cpu, made_on_the_gpu, "mask = torch.zeros("),
)
