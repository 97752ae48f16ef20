# SPDX-License-Identifier: Apache-2.0
"""JAX's allocators. Neither imports JAX nor makes it start a backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from gpuscope.memory.sources.pool import Pool

_GPU = ("gpu", "cuda")


def pools(device: int, *, detail: bool = True) -> tuple[Pool, ...]:
    """What JAX holds on a device, once it has started there.

    Args:
        device: ordinal of the GPU.
        detail: no matter here.
    """
    return tuple(_pool(found, device) for found in _devices() if getattr(found, "local_hardware_id", None) == device)


def _devices() -> Iterator[Any]:
    # JAX's public ways to its devices start a backend.
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    for client in list((backends or {}).values()):
        for device in client.local_devices():
            if getattr(device, "platform", "") in _GPU:
                yield device


def _pool(found: Any, device: int) -> Pool:
    try:
        stats = found.memory_stats()
    except Exception as error:
        stats, why = None, f": {(str(error).splitlines() or [''])[0]}"
    else:
        why = ""
    if not stats:
        return Pool("jax", device, 0, 0, note=f"its allocator keeps no figures{why}")
    allocated = int(stats.get("bytes_in_use", 0))
    peak = _number(stats, "peak_bytes_in_use")
    if os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "cuda_async":
        note = "allocated from the driver's pool (cuda_async), which holds what is cached"
        return Pool("jax", device, allocated, allocated, peak, None, note=note, in_cuda_pool=True)
    reserved = max(allocated, _number(stats, "pool_bytes") or _number(stats, "bytes_reserved") or 0)
    # What may yet be added to the pool is no part of the largest free block.
    largest = _number(stats, "largest_free_block_bytes") if "pool_bytes" in stats else None
    free = reserved - allocated
    return Pool(
        "jax",
        device,
        allocated,
        reserved,
        peak,
        _number(stats, "peak_pool_bytes"),
        largest_free=None if largest is None else min(largest, free),
        free=free,
    )


def _number(stats: dict[str, Any], name: str) -> int | None:
    return int(stats[name]) if name in stats else None
