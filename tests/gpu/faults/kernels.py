# SPDX-License-Identifier: Apache-2.0
"""The GPU is busy with what could take less time."""

from __future__ import annotations

import torch

from gpuscope import _core

from . import Compute, Fault, Step, whole


def few_blocks(ms: float) -> Step:
    kernels, compute = _core.Kernels(), Compute()
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: (kernels.spin(int(ms * 1e6), stream=stream), compute())


def no_small_kernel(ms: float) -> Step:
    return Compute()


def _products(count: float, dtype: torch.dtype) -> Step:
    a, compute = torch.zeros(1024, 1024, device="cuda", dtype=dtype), Compute()
    return lambda: ([torch.mm(a, a) for _ in range(whole(count))], compute())


def products_in_float32(count: float) -> Step:
    return _products(count, torch.float32)


def products_in_float64(count: float) -> Step:
    return _products(count, torch.float64)


def products_in_bfloat16(count: float) -> Step:
    return _products(count, torch.bfloat16)


def _attention(heads: float, *, fused: bool) -> Step:
    q, k, v = (torch.zeros(1, whole(heads), 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    compute = Compute()

    def in_pieces() -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

    def at_once() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    attention = at_once if fused else in_pieces
    return lambda: (attention(), compute())


def attention_by_hand(heads: float) -> Step:
    return _attention(heads, fused=False)


def fused_attention(heads: float) -> Step:
    return _attention(heads, fused=True)


def _convolved(images: float, memory_format: torch.memory_format) -> Step:
    layers = [torch.nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(8)]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).to(memory_format=memory_format)
    x = torch.zeros(whole(images), 64, 56, 56, device="cuda", dtype=torch.bfloat16).to(memory_format=memory_format)
    compute = Compute()

    def step() -> object:
        with torch.no_grad():
            return model(x), compute()

    return step


def layout_changed_for_each_convolution(images: float) -> Step:
    return _convolved(images, torch.contiguous_format)


def channels_last(images: float) -> Step:
    return _convolved(images, torch.channels_last)


FAULTS = (
    Fault("R29", few_blocks, no_small_kernel),
    Fault("R33", products_in_float32, products_in_bfloat16, begin=100),
    Fault("R35", products_in_float64, products_in_bfloat16, begin=100),
    Fault("R36", layout_changed_for_each_convolution, channels_last, begin=256),
    Fault("R39", attention_by_hand, fused_attention, begin=100),
)
