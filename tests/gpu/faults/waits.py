# SPDX-License-Identifier: Apache-2.0
"""The program waits for the GPU, which then waits for the program."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import COMPUTE_MS, Compute, Fault, Step, milliseconds, scaled

WAIT_MS = 0.025  # until the GPU has work again after the host waited for it
FLOPS_PER_MS = 600e9  # of products in bfloat16, about


class Layers:
    """Products one after the other, so large that a wait after each takes that share of the time."""

    def __init__(self, share: float) -> None:
        kernel_ms = WAIT_MS * (1 - share) / share
        size = round((kernel_ms * FLOPS_PER_MS / 2) ** (1 / 3) / 128) * 128
        self.a = torch.zeros(size, size, device="cuda", dtype=torch.bfloat16)
        self.count = max(4, round(COMPUTE_MS / kernel_ms))

    def item(self) -> object:
        x = self.a
        for _ in range(self.count):
            x = x @ self.a
            if x[0, 0].item() > 1e30:
                break
        return x

    def synchronize(self) -> object:
        x = self.a
        for _ in range(self.count):
            x = x @ self.a
            torch.cuda.synchronize()
        return x

    def neither(self) -> object:
        x = self.a
        for _ in range(self.count):
            x = x @ self.a
        return x


def value_read_each_layer(share: float) -> Step:
    return Layers(share).item


def synchronize_each_layer(share: float) -> Step:
    return Layers(share).synchronize


def no_wait(share: float) -> Step:
    return Layers(share).neither


def _blocks(empties: bool) -> Callable[[int], Step]:
    def of(count: int) -> Step:
        def step() -> object:
            kept = [torch.empty(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(count)]
            del kept
            if empties:
                torch.cuda.empty_cache()
            return None

        return step

    return of


def _allocating(share: float, empties: bool) -> Step:
    # Memory is taken while the GPU still works; giving it back, about half of the time, waits for it.
    count = scaled("blocks", _blocks(empties=True), 2 * milliseconds(share))
    blocks, compute = _blocks(empties)(count), Compute()
    return lambda: (blocks(), compute())


def cache_emptied_each_step(share: float) -> Step:
    return _allocating(share, empties=True)


def cache_kept(share: float) -> Step:
    return _allocating(share, empties=False)


FAULTS = (
    Fault("R15", value_read_each_layer, no_wait, ".item() > 1e30"),
    Fault("R16", synchronize_each_layer, no_wait, "torch.cuda.synchronize()"),
    Fault("R17", cache_emptied_each_step, cache_kept, "torch.cuda.empty_cache()"),
)
