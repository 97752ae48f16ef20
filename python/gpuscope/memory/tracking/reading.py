# SPDX-License-Identifier: Apache-2.0
"""What allocators hold on a device at this moment, read from their own counters: nothing waits for the GPU."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from gpuscope.memory import sources
from gpuscope.memory.events import HOST
from gpuscope.memory.ordinals import why_no_gpu
from gpuscope.memory.resident import highest_resident_bytes, resident_bytes

# Libraries with a pool of their own; torch is read directly, which is much sooner.
_OTHERS = ("cupy", "rmm", "jax")


class Usage(NamedTuple):
    """One library's memory on a device, in bytes.

    Attributes:
        library: "torch", "cupy", ...; "host" for the process's resident memory.
        allocated: in use by the program.
        reserved: held by the library's allocator; None where there is none.
        peak: the highest `allocated` that the library has counted; None where it does not count it.
    """

    library: str
    allocated: int
    reserved: int | None
    peak: int | None


class Reading(NamedTuple):
    """The memory of a device.

    Attributes:
        device: ordinal of the GPU; HOST where the host's resident memory stands in for it.
        usages: one of each library that has memory there.
        resident: resident memory of the process on the host, in bytes.
        why: what could not be read, and why; empty when all was.
    """

    device: int
    usages: tuple[Usage, ...]
    resident: int
    why: str = ""

    @property
    def allocated(self) -> int:
        """Bytes in use by the program."""
        return sum(usage.allocated for usage in self.usages)

    @property
    def reserved(self) -> int | None:
        """Bytes held by the allocators; None on the host."""
        if self.device == HOST:
            return None
        return sum(usage.reserved or 0 for usage in self.usages)


def read(device: int) -> Reading:
    """The memory of a device now: a few microseconds, ten or so where torch has a GPU. Raises nothing.

    Args:
        device: ordinal of a GPU, or HOST.
    """
    resident = resident_bytes()
    if device == HOST:
        highest = max(resident, highest_resident_bytes())
        return Reading(HOST, (Usage("host", resident, None, highest),), resident, why_no_gpu())
    usages: tuple[Usage, ...] = ()
    whys = []
    for library, ask in (("torch", _read_torch), ("other libraries", _read_others)):
        try:
            usages += ask(device)
        except Exception as error:  # an allocator that does not count, as torch's pluggable ones
            reason = (str(error) or type(error).__name__).splitlines()[0]
            whys.append(f"memory of {library} is not known: {reason}")
    return Reading(device, usages, resident, "; ".join(whys))


def read_torch(device: int) -> Usage | None:
    """What torch's caching allocator says; None when torch has not begun to use the GPU."""
    stats = torch_counters(device)
    if stats is None:
        return None
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return Usage("torch", allocated["current"], reserved["current"], allocated["peak"])


def torch_counters(device: int) -> Any:
    """The counters of torch's caching allocator, as nested dicts; None when torch has not begun to use the GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    # torch.cuda.memory_allocated() makes the same call, and then a flat and sorted copy of all its counters.
    counters = getattr(torch._C, "_cuda_memoryStats", None) or torch.cuda.memory_stats_as_nested_dict
    return counters(device)


def _read_torch(device: int) -> tuple[Usage, ...]:
    usage = read_torch(device)
    return () if usage is None else (usage,)


def _read_others(device: int) -> tuple[Usage, ...]:
    if not any(name in sys.modules for name in _OTHERS):
        return ()
    return tuple(
        Usage(pool.library, pool.allocated, pool.reserved, pool.peak_allocated)
        for pool in sources.pools(device, detail=False)
        if pool.library != "torch" and pool.reserved
    )
