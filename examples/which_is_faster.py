# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: a function, two that take turns, sizes. Of CuPy where there is a GPU, of NumPy elsewhere.

``which_is_faster.py [BUDGET]``: seconds that a measurement may take, 1 by default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuscope as gs

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
except Exception:  # no CuPy, or no GPU for it
    xp = np


def softmax(x: Any) -> Any:
    """As it is written in books."""
    e = xp.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_in_place(x: Any) -> Any:
    """The same with fewer arrays."""
    e = x - x.max(axis=1, keepdims=True)
    xp.exp(e, out=e)
    e /= e.sum(axis=1, keepdims=True)
    return e


def of_size(n: int) -> Callable[[], Any]:
    """A call with n columns."""
    x = xp.asarray(np.random.rand(64, n))
    return lambda: softmax(x)


def main(budget: float = 1.0) -> None:
    """Measures and prints."""
    x = xp.asarray(np.random.rand(64, 2048))
    result = gs.benchmark(softmax, x, budget=budget)
    print(result.report())

    def plain() -> Any:
        return softmax(x)

    def in_place() -> Any:
        return softmax_in_place(x)

    print(gs.compare(plain, in_place, budget=budget))
    print(gs.sweep(of_size, n=[256, 1024, 4096], budget=budget))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
