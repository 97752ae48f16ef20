# SPDX-License-Identifier: Apache-2.0
"""The GPU is busy with what could take less time."""

from __future__ import annotations

import torch

from gpuscope import _core

from . import COMPUTE_MS, Compute, Fault, Step, milliseconds, scaled


def few_blocks(share: float) -> Step:
    kernels, compute = _core.Kernels(), Compute()
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: (kernels.spin(int(milliseconds(share) * 1e6), stream=stream), compute())


def no_small_kernel(share: float) -> Step:
    return Compute()


def _products(share: float, dtype: torch.dtype) -> Step:
    def many(count: int) -> Step:
        a = torch.randn(1024, 1024, device="cuda") / 32
        return lambda: [torch.mm(a, a) for _ in range(count)]

    count, compute = scaled(many, milliseconds(share)), Compute()
    a = torch.randn(1024, 1024, device="cuda", dtype=dtype) / 32
    return lambda: ([torch.mm(a, a) for _ in range(count)], compute())


def products_in_float32(share: float) -> Step:
    return _products(share, torch.float32)


def products_in_bfloat16(share: float) -> Step:
    return _products(share, torch.bfloat16)


def products_in_float64(share: float) -> Step:
    return _products(share, torch.float64)


def _attention(share: float, fused: bool) -> Step:
    heads = max(1, round(8 * milliseconds(share)))
    q, k, v = (torch.randn(1, heads, 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    compute = Compute()

    def unfused() -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    def attention() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v) if fused else unfused()

    return lambda: (attention(), compute())


def attention_by_hand(share: float) -> Step:
    return _attention(share, fused=False)


def fused_attention(share: float) -> Step:
    return _attention(share, fused=True)


def _convolution(share: float, memory_format: torch.memory_format) -> Step:
    layers = [torch.nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(max(1, round(4 * milliseconds(share))))]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).to(memory_format=memory_format)
    x = torch.randn(16, 64, 112, 112, device="cuda", dtype=torch.bfloat16).to(memory_format=memory_format)
    compute = Compute(COMPUTE_MS)

    def step() -> object:
        with torch.no_grad():
            return model(x), compute()

    return step


def layout_changed_for_each_convolution(share: float) -> Step:
    return _convolution(share, torch.contiguous_format)


def channels_last(share: float) -> Step:
    return _convolution(share, torch.channels_last)


FAULTS = (
    Fault("R29", few_blocks, no_small_kernel),
    Fault("R33", products_in_float32, products_in_bfloat16),
    Fault("R35", products_in_float64, products_in_bfloat16),
    Fault("R36", layout_changed_for_each_convolution, channels_last),
    Fault("R39", attention_by_hand, fused_attention),
)
