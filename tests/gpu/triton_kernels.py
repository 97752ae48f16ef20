# SPDX-License-Identifier: Apache-2.0
"""Triton reads the source of its kernels, so that they live in a file of their own."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def double_kernel(pointer, count, BLOCK: tl.constexpr):  # noqa: N803 - Triton's way to name constants
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(pointer + offsets, mask=offsets < count)
    tl.store(pointer + offsets, values * 2, mask=offsets < count)
