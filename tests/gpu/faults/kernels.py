# SPDX-License-Identifier: Apache-2.0
"""The GPU is busy with what could take less time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpuscope import _core

from . import Compute, Fault, Step, milliseconds, scaled


def few_blocks(share: float) -> Step:
    kernels, compute = _core.Kernels(), Compute()
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: (kernels.spin(int(milliseconds(share) * 1e6), stream=stream), compute())


def no_small_kernel(share: float) -> Step:
    return Compute()


def _products(dtype: torch.dtype) -> Callable[[int], Step]:
    a = torch.zeros(1024, 1024, device="cuda", dtype=dtype)

    def some(count: int) -> Step:
        return lambda: [torch.mm(a, a) for _ in range(count)]

    return some


def _multiplied(share: float, wrong: torch.dtype, dtype: torch.dtype) -> Step:
    """As many products as take that share longer in the wrong type."""
    count = scaled(f"products {wrong}", _products(wrong), milliseconds(share), _products(torch.bfloat16))
    products, compute = _products(dtype)(count), Compute()
    return lambda: (products(), compute())


def products_in_float32(share: float) -> Step:
    return _multiplied(share, torch.float32, torch.float32)


def products_in_bfloat16(share: float) -> Step:
    return _multiplied(share, torch.float32, torch.bfloat16)


def products_in_float64(share: float) -> Step:
    return _multiplied(share, torch.float64, torch.float64)


def products_not_in_float64(share: float) -> Step:
    return _multiplied(share, torch.float64, torch.bfloat16)


def _attention(fused: bool) -> Callable[[int], Step]:
    def of(heads: int) -> Step:
        q, k, v = (torch.zeros(1, heads, 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))

        def unfused() -> torch.Tensor:
            return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v

        return (lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)) if fused else unfused

    return of


def _attending(share: float, fused: bool) -> Step:
    heads = scaled("attention", _attention(fused=False), milliseconds(share), _attention(fused=True))
    attention, compute = _attention(fused)(heads), Compute()
    return lambda: (attention(), compute())


def attention_by_hand(share: float) -> Step:
    return _attending(share, fused=False)


def fused_attention(share: float) -> Step:
    return _attending(share, fused=True)


def _convolutions(memory_format: torch.memory_format) -> Callable[[int], Step]:
    def of(images: int) -> Step:
        layers = [torch.nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(8)]
        model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).to(memory_format=memory_format)
        x = torch.zeros(images, 64, 56, 56, device="cuda", dtype=torch.bfloat16).to(memory_format=memory_format)

        def step() -> object:
            with torch.no_grad():
                return model(x)

        return step

    return of


def _convolved(share: float, memory_format: torch.memory_format) -> Step:
    slow, fast = _convolutions(torch.contiguous_format), _convolutions(torch.channels_last)
    images = scaled("convolutions", slow, milliseconds(share), fast)
    model, compute = _convolutions(memory_format)(images), Compute()
    return lambda: (model(), compute())


def layout_changed_for_each_convolution(share: float) -> Step:
    return _convolved(share, torch.contiguous_format)


def channels_last(share: float) -> Step:
    return _convolved(share, torch.channels_last)


FAULTS = (
    Fault("R29", few_blocks, no_small_kernel),
    Fault("R33", products_in_float32, products_in_bfloat16),
    Fault("R35", products_in_float64, products_not_in_float64),
    Fault("R36", layout_changed_for_each_convolution, channels_last),
    Fault("R39", attention_by_hand, fused_attention),
)
