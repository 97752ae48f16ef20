# SPDX-License-Identifier: Apache-2.0
"""The program waits for the GPU, which then waits for the program."""

from __future__ import annotations

import torch

from . import Compute, Fault, Step, whole

SHORT_ROWS = 16384  # of what is computed between the waits
BLOCK_BYTES = 12 << 20  # PyTorch asks the driver for each block of more than 10 MiB


def _waits(count: float) -> tuple[Compute, list[int]]:
    """What computes, and after which of its parts there are how many waits."""
    compute = Compute(rows=SHORT_ROWS)
    parts, count = max(compute.count, 1), whole(count)
    return compute, [(at + 1) * count // parts - at * count // parts for at in range(parts)]


def value_read_each_layer(count: float) -> Step:
    compute, waits = _waits(count)

    def step() -> object:
        for each in waits:
            compute.one()
            for _ in range(each):
                if compute.out[0].item() > 1e30:
                    break
        return compute.out

    return step


def synchronize_each_layer(count: float) -> Step:
    compute, waits = _waits(count)

    def step() -> object:
        for each in waits:
            compute.one()
            for _ in range(each):
                torch.cuda.synchronize()
        return compute.out

    return step


def no_wait(count: float) -> Step:
    compute, waits = _waits(count)

    def step() -> object:
        for _ in waits:
            compute.one()
        return compute.out

    return step


def _rest_of_segments() -> list[torch.Tensor]:
    """All that PyTorch could give without asking the driver, as the rest of what else is in use: it cannot go back."""
    torch.cuda.empty_cache()
    taken: list[torch.Tensor] = []
    reserved = torch.cuda.memory_reserved()
    while torch.cuda.memory_reserved() == reserved:
        taken.append(torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda"))
    taken.pop()
    torch.cuda.empty_cache()
    return taken


def _allocating(count: float, *, empties: bool) -> Step:
    compute, rest = Compute(), _rest_of_segments()

    def step() -> object:
        # Memory is taken while the GPU still works; giving it back waits for it.
        kept = [torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda") for _ in range(whole(count))]
        del kept
        if empties:
            torch.cuda.empty_cache()
        return compute(), rest

    return step


def cache_emptied_each_step(count: float) -> Step:
    return _allocating(count, empties=True)


def cache_kept(count: float) -> Step:
    return _allocating(count, empties=False)


FAULTS = (
    Fault("R15", value_read_each_layer, no_wait, ".item() > 1e30", begin=50),
    Fault("R16", synchronize_each_layer, no_wait, "torch.cuda.synchronize()", begin=50),
    Fault("R17", cache_emptied_each_step, cache_kept, "torch.cuda.empty_cache()", begin=8),
)
