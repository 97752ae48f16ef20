# SPDX-License-Identifier: Apache-2.0
"""The GPU waits for copies, or for what was made elsewhere."""

from __future__ import annotations

import torch

from . import Compute, Fault, Step, wait, whole

LABELS_BYTES = 1 << 20


def _bytes(mb: float, *, pinned: bool = True) -> torch.Tensor:
    """Memory that was written, as pages that were not are all the same one."""
    return torch.ones(whole(mb * 1e6), dtype=torch.uint8, pin_memory=pinned)


def _labels(ms: float, *, non_blocking: bool) -> Step:
    """The program goes on to do something on the CPU."""
    data, compute = torch.ones(LABELS_BYTES, dtype=torch.uint8, pin_memory=True), Compute()

    def step() -> object:
        compute()
        batch = data.to("cuda", non_blocking=non_blocking)
        wait(ms)
        return batch

    return step


def blocking_copy(ms: float) -> Step:
    return _labels(ms, non_blocking=False)


def copy_that_is_not_waited_for(ms: float) -> Step:
    return _labels(ms, non_blocking=True)


def _copied_before(data: torch.Tensor) -> Step:
    compute = Compute()

    def step() -> object:
        batch = data.to("cuda", non_blocking=True)
        return batch, compute()

    return step


def pageable_copy(mb: float) -> Step:
    return _copied_before(_bytes(mb, pinned=False))


def copy_before_computing(mb: float) -> Step:
    return _copied_before(_bytes(mb))


def prefetched_copy(mb: float) -> Step:
    data, compute, stream = _bytes(mb), Compute(), torch.cuda.Stream()

    def step() -> object:
        with torch.cuda.stream(stream):
            batch = data.to("cuda", non_blocking=True)
        compute()
        torch.cuda.current_stream().wait_stream(stream)
        return batch

    return step


def _numbers() -> torch.Tensor:
    return torch.arange(100_000, dtype=torch.float32).pin_memory()


def small_copies(count: float) -> Step:
    numbers, compute = _numbers(), Compute()
    return lambda: ([numbers[at].to("cuda", non_blocking=True) for at in range(whole(count))], compute())


def one_copy(count: float) -> Step:
    numbers, compute = _numbers(), Compute()
    return lambda: (numbers.to("cuda", non_blocking=True), compute())


def made_on_the_cpu(millions: float) -> Step:
    count, compute = whole(millions * 1e6), Compute()

    def step() -> object:
        mask = torch.zeros(count).to("cuda")
        return mask, compute()

    return step


def made_on_the_gpu(millions: float) -> Step:
    count, compute = whole(millions * 1e6), Compute()

    def step() -> object:
        mask = torch.zeros(count, device="cuda")
        return mask, compute()

    return step


FAULTS = (
    # Pinned memory alone would leave a copy that runs beside nothing.
    Fault("R09", pageable_copy, prefetched_copy, "batch = data.to(", begin=8),
    Fault("R10", blocking_copy, copy_that_is_not_waited_for, "batch = data.to("),
    Fault("R11", small_copies, one_copy, "numbers[at].to(", begin=2000),
    Fault("R12", copy_before_computing, prefetched_copy, "batch = data.to(", begin=100),
    Fault("R14", made_on_the_cpu, made_on_the_gpu, "mask = torch.zeros(", begin=2),
)
