# SPDX-License-Identifier: Apache-2.0
"""What the allocators of a process hold: frameworks that are imported, and the driver. Makes no CUDA context."""

from __future__ import annotations

from collections.abc import Callable

from gpuscope import _core
from gpuscope.devices import ordinal_of
from gpuscope.memory.sources import cupy, driver, jax, rmm, torch
from gpuscope.memory.sources.pool import Block, Pool, Segment

__all__ = ["Block", "Pool", "Segment", "devices", "pools"]

_SOURCES: dict[str, Callable[..., tuple[Pool, ...]]] = {
    "torch": torch.pools,
    "cupy": cupy.pools,
    "rmm": rmm.pools,
    "jax": jax.pools,
}


def devices(device: int | None = None) -> tuple[int, ...]:
    """The GPUs that are meant: the one, or all that this process has a context on.

    Raises:
        InvalidArgument: it is no ordinal.
        NotAvailable: there is no such GPU.
    """
    if device is None:
        return tuple(_core.devices_in_use())
    return (_core.find_device(ordinal_of(device)),)


def pools(device: int | None = None, *, detail: bool = True) -> tuple[Pool, ...]:
    """The pools of all allocators, on GPUs where this process has a context. No byte is in two of them.

    Args:
        device: ordinal of the GPU; None for all.
        detail: whether to look at torch's segments too, which takes 0.5 to 2 ms, for the largest free block and the
            private pools of CUDA graphs.

    Raises:
        InvalidArgument: `device` is no ordinal.
        NotAvailable: there is no such GPU, or none at all.
    """
    wanted = devices(device)
    in_use = _core.devices_in_use()
    found: list[Pool] = []
    for ordinal in wanted:
        if ordinal not in in_use:
            continue
        own = [pool for library, ask in _SOURCES.items() for pool in _asked(library, ask, ordinal, detail=detail)]
        found += own
        found += _asked(driver.LIBRARY, driver.pools, ordinal, others=own)
    return tuple(found)


def _asked(library: str, ask: Callable[..., tuple[Pool, ...]], device: int, **how: object) -> tuple[Pool, ...]:
    """The answer of a source; where it fails, a pool of nothing that says why."""
    try:
        return ask(device, **how)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return (Pool(library, device, 0, 0, note=f"its figures could not be read: {why}"),)
