# SPDX-License-Identifier: Apache-2.0
"""The memory of this process at a moment: each GPU as its allocators and NVML tell it, and the host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuscope import _core
from gpuscope.memory import sources
from gpuscope.memory.ordinals import check_ordinal, why_no_gpu
from gpuscope.memory.snapshots.difference import MemoryDifference, difference
from gpuscope.memory.snapshots.snapshot_text import snapshot_text
from gpuscope.memory.sources.host import HostMemory, host_memory
from gpuscope.memory.sources.pool import Pool


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one GPU, in bytes.

    Attributes:
        device: its ordinal.
        name: as the driver calls it.
        allocated: in use by the program, by all pools.
        reserved: held by all pools.
        peak_allocated: the sum of the pools' peaks, which need not have been at one time; None where none tells.
        peak_reserved: likewise.
        process: what NVML counts for this process: pools, other libraries' memory and the CUDA context.
        used: by all processes.
        total: of the GPU.
        largest_free: the largest block of cached memory; None where it is not known.
        pools: each allocator.
        notes: what is missing, and why.
    """

    device: int
    name: str
    allocated: int
    reserved: int
    peak_allocated: int | None
    peak_reserved: int | None
    process: int | None
    used: int | None
    total: int | None
    largest_free: int | None
    pools: tuple[Pool, ...]
    notes: tuple[str, ...]

    @property
    def cached(self) -> int:
        """Held by pools and not in use."""
        return self.reserved - self.allocated

    @property
    def fragmentation(self) -> float | None:
        """Share of the pools' free memory that lies outside the largest block of its pool, from 0 to 1.

        None where the blocks are not known or nothing is free.
        """
        pools = [pool for pool in self.pools if pool.largest_free is not None]
        free = sum(pool.free or 0 for pool in pools)
        return 1 - sum(pool.largest_free or 0 for pool in pools) / free if free else None


@dataclass(frozen=True)
class MemorySnapshot:
    """The memory of this process at a moment. ``after - before`` is what changed.

    Attributes:
        time_ns: ns since the Unix epoch.
        devices: the GPUs that were asked for, or that this process has a context on.
        host: the host's memory.
        why: why there is no GPU; empty when there is one.
    """

    time_ns: int
    devices: tuple[DeviceMemory, ...]
    host: HostMemory
    why: str = ""

    def __sub__(self, before: MemorySnapshot) -> MemoryDifference:
        return difference(before, self)

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts only, for JSON."""
        facts = asdict(self)
        for device, found in zip(facts["devices"], self.devices, strict=True):
            device |= {"cached": found.cached, "fragmentation": found.fragmentation}
        return facts

    def __str__(self) -> str:
        """A block for each GPU and one for the host."""
        return snapshot_text(self)


def memory_snapshot(device: int | None = None, *, detail: bool = True) -> MemorySnapshot:
    """The memory of this process now, as its allocators, NVML and the system tell it.

    Does not wait for the GPU, makes no CUDA context and starts no process.

    Args:
        device: ordinal of a GPU; None for all that this process has a context on.
        detail: whether to look at torch's segments too, for the largest free block and the private pools of CUDA
            graphs. With it a snapshot takes up to 2 ms more.

    Raises:
        InvalidArgument: `device` is no ordinal.
        NotAvailable: there are GPUs, but not this one.
    """
    if device is not None:
        check_ordinal(device)
    why = why_no_gpu()
    wanted = () if why else sources.devices(device)
    return MemorySnapshot(
        time_ns=time.time_ns(),
        devices=tuple(_device_memory(ordinal, detail=detail) for ordinal in wanted),
        host=host_memory(),
        why=why,
    )


def _device_memory(device: int, *, detail: bool) -> DeviceMemory:
    facts = _core.process_memory(device)
    pools = sources.pools(device, detail=detail)
    largest = [pool.largest_free for pool in pools if pool.largest_free is not None]
    notes = [f"{pool.library}: {pool.note}" for pool in pools if pool.note]
    return DeviceMemory(
        device=device,
        name=facts["name"] or "",
        allocated=sum(pool.allocated for pool in pools),
        reserved=sum(pool.reserved for pool in pools),
        peak_allocated=_known_sum([pool.peak_allocated for pool in pools]),
        peak_reserved=_known_sum([pool.peak_reserved for pool in pools]),
        process=facts["process"],
        used=facts["used"],
        total=facts["total"],
        largest_free=max(largest, default=None),
        pools=pools,
        notes=tuple([facts["why"], *notes] if facts["why"] else notes),
    )


def _known_sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
