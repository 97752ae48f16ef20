# SPDX-License-Identifier: Apache-2.0
"""The driver's own pools, which stream-ordered allocation (cuMemAllocAsync) takes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscope import _core
from gpuscope.memory.sources import cupy
from gpuscope.memory.sources.pool import Pool

LIBRARY = "cuda pool"


def handles(device: int) -> frozenset[int]:
    """The pools that `pools` counts."""
    return frozenset(int(facts["pool"]) for facts in _core.memory_pools(device))


def pools(device: int, others: Sequence[Pool] = ()) -> tuple[Pool, ...]:
    """The default pool of a device and the current one, as one, less what of it others account for.

    Args:
        device: ordinal of the GPU.
        others: pools of frameworks; those that take from the driver's pool are taken off it.
    """
    facts: list[dict[str, Any]] = _core.memory_pools(device)
    sharing = [pool for pool in others if pool.in_cuda_pool]
    shared = sum(pool.reserved for pool in sharing)
    used, reserved = (sum(int(pool[name]) for pool in facts) for name in ("used", "reserved"))
    if not used and not reserved:
        return ()
    notes = []
    if sharing:
        notes.append(f"without what {' and '.join(pool.library for pool in sharing)} took from it")
    if cupy.uses_cuda_pool():
        notes.append("CuPy takes from it (MemoryAsyncPool)")
    # Two pools need not have been at their peaks together, and what others took is not known for the peaks.
    alone = len(facts) == 1 and not sharing
    return (
        Pool(
            LIBRARY,
            device,
            allocated=max(0, used - shared),
            reserved=max(0, reserved - shared, used - shared),
            peak_allocated=int(facts[0]["peak_used"]) if alone else None,
            peak_reserved=int(facts[0]["peak_reserved"]) if alone else None,
            note="; ".join(notes),
        ),
    )
