# SPDX-License-Identifier: Apache-2.0
"""What changed between two snapshots of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.snapshots.snapshot import DeviceMemory, MemorySnapshot


@dataclass(frozen=True)
class PoolDifference:
    """Changes of one allocator's pools on a GPU, in bytes."""

    library: str
    allocated: int
    reserved: int


@dataclass(frozen=True)
class DeviceDifference:
    """Changes on one GPU, in bytes; a GPU that only one snapshot has counts as empty in the other.

    Attributes:
        device: its ordinal.
        allocated: in use by the program, by all pools.
        reserved: held by all pools.
        process: NVML's figure for this process; None where a snapshot has none.
        used: by all processes, likewise.
        pools: each library whose pools changed.
    """

    device: int
    allocated: int
    reserved: int
    process: int | None
    used: int | None
    pools: tuple[PoolDifference, ...]

    @property
    def cached(self) -> int:
        """Held by pools and not in use."""
        return self.reserved - self.allocated


@dataclass(frozen=True)
class MemoryDifference:
    """What changed between two snapshots; sizes are bytes.

    Attributes:
        seconds: between them.
        devices: every GPU of either.
        resident: the host's memory that this process uses.
        pinned: page-locked memory of the host; None where a snapshot has no figure.
    """

    seconds: float
    devices: tuple[DeviceDifference, ...]
    resident: int
    pinned: int | None

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts only, for JSON."""
        facts = asdict(self)
        for device, found in zip(facts["devices"], self.devices, strict=True):
            device["cached"] = found.cached
        return facts

    def __str__(self) -> str:
        """A line for each GPU, one for each library whose pools changed on it, and one for the host."""
        lines = [f"in {self.seconds:.3g} s"]
        for device in self.devices:
            figures = [("allocated", device.allocated), ("cached", device.cached), ("process (NVML)", device.process)]
            lines.append(f"device {device.device}: {_listed(figures)}")
            for pool in device.pools:
                changed = [("allocated", pool.allocated), ("cached", pool.reserved - pool.allocated)]
                lines.append(f"  {pool.library}: {_listed(changed)}")
        lines.append(f"host: {_listed([('resident', self.resident), ('pinned', self.pinned)])}")
        return "\n".join(lines)


def difference(before: MemorySnapshot, after: MemorySnapshot) -> MemoryDifference:
    """What changed from one snapshot to another."""
    earlier, later = ({found.device: found for found in taken.devices} for taken in (before, after))
    return MemoryDifference(
        seconds=(after.time_ns - before.time_ns) / 1e9,
        devices=tuple(_device(number, earlier, later) for number in sorted(earlier.keys() | later.keys())),
        resident=after.host.resident - before.host.resident,
        pinned=_change(before.host.pinned, after.host.pinned),
    )


def _device(number: int, earlier: Mapping[int, DeviceMemory], later: Mapping[int, DeviceMemory]) -> DeviceDifference:
    before, after = earlier.get(number), later.get(number)
    was, became = _by_library(before), _by_library(after)
    changes = [
        PoolDifference(library, *(new - old for old, new in zip(was[library], became[library], strict=True)))
        for library in dict.fromkeys([*was, *became])
        if was.setdefault(library, (0, 0)) != became.setdefault(library, (0, 0))
    ]
    return DeviceDifference(
        device=number,
        allocated=(after.allocated if after else 0) - (before.allocated if before else 0),
        reserved=(after.reserved if after else 0) - (before.reserved if before else 0),
        process=_change(before.process if before else 0, after.process if after else 0),
        used=_change(before.used, after.used) if before and after else None,
        pools=tuple(changes),
    )


def _by_library(device: DeviceMemory | None) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for pool in device.pools if device else ():
        allocated, reserved = found.get(pool.library, (0, 0))
        found[pool.library] = (allocated + pool.allocated, reserved + pool.reserved)
    return found


def _change(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _listed(figures: Iterable[tuple[str, int | None]]) -> str:
    return ", ".join(f"{name} {size_text(size, signed=True)}" for name, size in figures if size is not None)
