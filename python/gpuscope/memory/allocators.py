# SPDX-License-Identifier: Apache-2.0
"""What the allocators of a process hold: imported frameworks and the driver's pools. Makes no CUDA context."""

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
"""The library of a pool that is the driver's own, which stream-ordered allocation (cuMemAllocAsync) takes from."""


def devices(device: int | None = None) -> tuple[int, ...]:
    """The one GPU, checked, or all that this process has a context on."""
    if device is None:
        return tuple(_core.devices_in_use())
    return (_core.find_device(ordinal_of(device)),)


def pools(device: int | None = None, *, detail: bool = True) -> tuple[Pool, ...]:
    """The pools of all allocators, on GPUs where this process has a context. No byte is in two of them.

    `detail` looks at torch's segments too, which takes 0.5 to 2 ms: the largest free block and CUDA graphs' pools.
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
    """The answer of a source; where it fails, a pool of nothing that says why."""
    try:
        return ask(device)
    except Exception as error:
        return (Pool(library, device, 0, 0, note=f"its figures could not be read: {first_line(error)}"),)


def driver_pool_handles(device: int) -> frozenset[int]:
    """The driver's pools that CUDA_POOL stands for."""
    return frozenset(int(facts["pool"]) for facts in _core.memory_pools(device))


def _driver_pool(device: int, others: Sequence[Pool]) -> tuple[Pool, ...]:
    """The default pool of a device and the current one, as one, less what of it the other pools account for."""
    facts: list[dict[str, Any]] = _core.memory_pools(device)
    sharing = [pool for pool in others if pool.in_cuda_pool]
    shared = sum(pool.reserved_bytes for pool in sharing)
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
            CUDA_POOL,
            device,
            allocated_bytes=max(0, used - shared),
            reserved_bytes=max(0, reserved - shared, used - shared),
            peak_allocated_bytes=int(facts[0]["peak_used"]) if alone else None,
            peak_reserved_bytes=int(facts[0]["peak_reserved"]) if alone else None,
            note="; ".join(notes),
        ),
    )
