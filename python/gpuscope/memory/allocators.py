# SPDX-License-Identifier: Apache-2.0
"""Memory held by a process's allocators: imported frameworks and the driver's pools. Creates no CUDA context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuscope import _core
from gpuscope.devices import ordinal_of
from gpuscope.frameworks import cupy, jax, rmm, torch_memory
from gpuscope.frameworks.pools import Pool
from gpuscope.units import first_line

CUDA_POOL = "cuda pool"
"""`Pool.library` of the driver's pools, which serve stream-ordered allocation (cuMemAllocAsync)."""


def devices(device: int | None = None) -> tuple[int, ...]:
    """The given GPU, checked, or all GPUs on which this process has a context."""
    if device is None:
        return tuple(_core.devices_in_use())
    return (_core.find_device(ordinal_of(device)),)


def pools(device: int | None = None, *, detail: bool = True) -> tuple[Pool, ...]:
    """The pools of all allocators, on GPUs where this process has a context. No byte is in two pools.

    `detail` also reads torch's segments, for the largest free block and the pools of CUDA graphs.
    """
    wanted = devices(device)
    in_use = _core.devices_in_use()
    frameworks: tuple[tuple[str, Callable[[int], tuple[Pool, ...]]], ...] = (
        ("torch", partial(torch_memory.pools, detail=detail)),
        ("cupy", cupy.pools),
        ("rmm", rmm.pools),
        ("jax", jax.pools),
    )
    found: list[Pool] = []
    for ordinal in wanted:
        if ordinal not in in_use:
            continue
        own: list[Pool] = []
        for library, ask in frameworks:
            own += _asked(library, ask, ordinal)
        found += own
        found += _asked(CUDA_POOL, partial(_driver_pool, others=own), ordinal)
    return tuple(found)


def _asked(library: str, ask: Callable[[int], tuple[Pool, ...]], device: int) -> tuple[Pool, ...]:
    """The pools of a library. If it fails, an empty pool whose note contains the reason."""
    try:
        return ask(device)
    except Exception as error:
        return (Pool(library, device, 0, 0, note=f"its figures could not be read: {first_line(error)}"),)


def driver_pool_handles(device: int) -> frozenset[int]:
    """Handles of the driver's pools that CUDA_POOL covers."""
    return frozenset(int(facts["pool"]) for facts in _core.memory_pools(device))


def _driver_pool(device: int, others: Sequence[Pool]) -> tuple[Pool, ...]:
    """The default and the current pool of a device as one, without the bytes that other pools account for."""
    facts: list[dict[str, Any]] = _core.memory_pools(device)
    sharing = [pool for pool in others if pool.in_cuda_pool]
    shared = sum(pool.reserved_bytes for pool in sharing)
    used, reserved = (sum(int(pool[name]) for pool in facts) for name in ("used", "reserved"))
    if not used and not reserved:
        return ()
    notes = []
    if sharing:
        notes.append(f"without the share of {' and '.join(pool.library for pool in sharing)}")
    if cupy.uses_cuda_pool():
        notes.append("CuPy takes from it (MemoryAsyncPool)")
    # Two pools may have had their peaks at different times, and the share of other libraries at a peak is unknown.
    alone = len(facts) == 1 and not sharing
    return (
        Pool(
            CUDA_POOL,
            device,
            allocated_bytes=max(0, used - shared),
            reserved_bytes=max(0, reserved - shared, used - shared),
            peak_allocated_bytes=int(facts[0]["peak_used"]) if alone else None,
            peak_reserved_bytes=int(facts[0]["peak_reserved"]) if alone else None,
            note="; ".join(notes),
        ),
    )
