# SPDX-License-Identifier: Apache-2.0
"""CuPy's memory pools. Does not import CuPy."""

from __future__ import annotations

import sys
from typing import Any

from gpuscope.memory.sources.pool import Pool


def imported() -> Any:
    """The module where the process has imported it; None otherwise."""
    cupy = sys.modules.get("cupy")
    return cupy if hasattr(cupy, "get_default_memory_pool") else None


def pools(device: int, *, detail: bool = True) -> tuple[Pool, ...]:
    """What CuPy's default pool and, where it is another one, its allocator's pool hold on a device that is in use.

    A MemoryAsyncPool keeps nothing itself: what it takes lies in the driver's pool.

    Args:
        device: ordinal of the GPU.
        detail: no matter here.
    """
    cupy = imported()
    if cupy is None:
        return ()
    found = []
    default = cupy.get_default_memory_pool()
    current = _allocators_pool(cupy)
    with cupy.cuda.Device(device):  # pools answer for the current device
        for pool in (default,) if current in (None, default) else (default, current):
            if _is_async(pool):
                continue
            allocated, reserved = int(pool.used_bytes()), int(pool.total_bytes())
            if pool is default and pool is not current and current is not None and not reserved:
                continue
            found.append(Pool("cupy", device, allocated, reserved, free=int(pool.free_bytes())))
    return tuple(found)


def uses_cuda_pool() -> bool:
    """Whether CuPy allocates from the driver's pool."""
    cupy = imported()
    return cupy is not None and _is_async(_allocators_pool(cupy))


def _allocators_pool(cupy: Any) -> Any:
    """The pool whose method is CuPy's allocator on this thread; None where that is no pool's."""
    allocator = getattr(cupy.cuda, "get_allocator", lambda: None)()
    pool = getattr(allocator, "__self__", None)
    return pool if hasattr(pool, "total_bytes") else None


def _is_async(pool: Any) -> bool:
    return type(pool).__name__ == "MemoryAsyncPool"
