# SPDX-License-Identifier: Apache-2.0
"""The memory of this process at one moment: per GPU by allocators and NVML, and on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuscope import _core
from gpuscope.devices import current, ordinal_of, why_no_gpu
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.frameworks.pools import Pool
from gpuscope.memory import allocators
from gpuscope.memory.host import HostMemory, host_memory
from gpuscope.results import Result
from gpuscope.text import brief
from gpuscope.units import format_bytes

_WIDTH = 14  # of a line's name
_MIB = 1 << 20
# What profiling guides call torch's counters of the current GPU, in MiB.
_OF_GUIDES = {
    "allocated_mb": "allocated_bytes",
    "reserved_mb": "reserved_bytes",
    "max_allocated_mb": "peak_allocated_bytes",
}
Line = tuple[str, str]


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one GPU, in bytes.

    Attributes:
        device: its ordinal.
        name: from the driver.
        allocated_bytes: in use by the program, of all pools.
        reserved_bytes: held by all pools.
        peak_allocated_bytes: sum of the pools' peaks, which may be at different times; None if no pool counts it.
        peak_reserved_bytes: likewise.
        process_bytes: NVML's figure for this process: pools, other libraries' memory and the CUDA context.
        used_bytes: by all processes.
        total_bytes: of the GPU.
        largest_free_bytes: the largest block of cached memory; None if unknown.
        pools: one per allocator.
        notes: missing figures, and why.
    """

    device: int
    name: str
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    process_bytes: int | None
    used_bytes: int | None
    total_bytes: int | None
    largest_free_bytes: int | None
    pools: tuple[Pool, ...]
    notes: tuple[str, ...]

    @property
    def cached_bytes(self) -> int:
        """Held by pools and not in use."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def fragmentation(self) -> float | None:
        """Share of the pools' free memory outside the largest block of each pool, from 0 to 1.

        None if the blocks are unknown or nothing is free.
        """
        pools = [pool for pool in self.pools if pool.largest_free_bytes is not None]
        free = sum(pool.free_bytes or 0 for pool in pools)
        return 1 - sum(pool.largest_free_bytes or 0 for pool in pools) / free if free else None


@dataclass(frozen=True)
class MemorySnapshot(Result):
    """The memory of this process at one moment. ``after - before`` is the change.

    ``snapshot["allocated_mb"]``, ``["reserved_mb"]`` and ``["max_allocated_mb"]`` are MiB over all allocators, of the
    only GPU or, with several, the current one. They are 0 while the process uses no GPU, and raise NotAvailable without
    one. Attributes are also read by name.

    Attributes:
        time_ns: ns since the Unix epoch.
        devices: the requested GPU, or all on which this process has a context.
        host: the host's memory.
        why: why there is no GPU; empty if there is one.
    """

    time_ns: int
    devices: tuple[DeviceMemory, ...]
    host: HostMemory
    why: str = ""

    def __getitem__(self, key: str) -> Any:
        if isinstance(key, str) and key in _OF_GUIDES:
            return self._mib(key)
        if not isinstance(key, str) or key not in self.__dataclass_fields__:
            raise InvalidArgument(
                f"key is {brief(key)}; accepted are {', '.join(_OF_GUIDES)} and the attributes of MemorySnapshot"
            )
        return getattr(self, key)

    def _mib(self, key: str) -> float:
        if self.why:
            raise NotAvailable(f"{key} is not available: it is a GPU's memory, and {self.why}")
        found = self.devices if len(self.devices) < 2 else [one for one in self.devices if one.device == current()]
        if not found:
            return 0.0
        size: int | None = getattr(found[0], _OF_GUIDES[key])
        if size is None:
            raise NotAvailable(f"{key} is not available: no allocator of GPU {found[0].device} counts its peak")
        return size / _MIB

    def __sub__(self, before: MemorySnapshot) -> MemoryDifference:
        return difference(before, self)

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts only, for JSON."""
        facts = asdict(self)
        for device, found in zip(facts["devices"], self.devices, strict=True):
            device |= {"cached_bytes": found.cached_bytes, "fragmentation": found.fragmentation}
        return facts

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per GPU."""
        return list(self.to_dict()["devices"])

    def __repr__(self) -> str:
        gpus = "".join(f"GPU {gpu.device} {format_bytes(gpu.reserved_bytes)} held, " for gpu in self.devices)
        return f"<MemorySnapshot: {gpus}host {format_bytes(self.host.resident_bytes)} resident>"

    def __str__(self) -> str:
        """A block for each GPU and one for the host."""
        return _text(self)


def memory_snapshot(device: object = None, *, detail: bool = True) -> MemorySnapshot:
    """Reads the memory of this process now, from its allocators, NVML and the system.

    Does not wait for the GPU, makes no CUDA context and starts no process.

    Args:
        device: a GPU, as ``0``, ``"cuda:0"`` or a device of a framework; None for all on which this process has a
            context.
        detail: also reads torch's segments, for the largest free block and the private pools of CUDA graphs.

    Raises:
        InvalidArgument: `device` is no GPU.
        NotAvailable: there are GPUs, but not this one.
    """
    ordinal = None if device is None else ordinal_of(device)
    why = why_no_gpu()
    wanted = () if why else allocators.devices(ordinal)
    return MemorySnapshot(
        time_ns=_core.now_ns(),
        devices=tuple(_device_memory(ordinal, detail=detail) for ordinal in wanted),
        host=host_memory(),
        why=why,
    )


def _device_memory(device: int, *, detail: bool) -> DeviceMemory:
    facts = _core.process_memory(device)
    pools = allocators.pools(device, detail=detail)
    largest = [pool.largest_free_bytes for pool in pools if pool.largest_free_bytes is not None]
    notes = [f"{pool.library}: {pool.note}" for pool in pools if pool.note]
    return DeviceMemory(
        device=device,
        name=facts["name"] or "",
        allocated_bytes=sum(pool.allocated_bytes for pool in pools),
        reserved_bytes=sum(pool.reserved_bytes for pool in pools),
        peak_allocated_bytes=_known_sum([pool.peak_allocated_bytes for pool in pools]),
        peak_reserved_bytes=_known_sum([pool.peak_reserved_bytes for pool in pools]),
        process_bytes=facts["process"],
        used_bytes=facts["used"],
        total_bytes=facts["total"],
        largest_free_bytes=max(largest, default=None),
        pools=pools,
        notes=tuple([facts["why"], *notes] if facts["why"] else notes),
    )


def _known_sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class PoolDifference:
    """Changes of one allocator's pools on a GPU, in bytes."""

    library: str
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class DeviceDifference:
    """Changes on one GPU, in bytes. A GPU missing in one snapshot counts as empty there.

    Attributes:
        device: its ordinal.
        allocated_bytes: in use by the program, of all pools.
        reserved_bytes: held by all pools.
        process_bytes: NVML's figure for this process; None if a snapshot lacks it.
        used_bytes: by all processes, likewise.
        pools: one per library whose pools changed.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    process_bytes: int | None
    used_bytes: int | None
    pools: tuple[PoolDifference, ...]

    @property
    def cached_bytes(self) -> int:
        """Held by pools and not in use."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True)
class MemoryDifference(Result):
    """The change between two snapshots; sizes are bytes.

    Attributes:
        seconds: between them.
        devices: every GPU of either.
        resident_bytes: host memory of this process.
        pinned_bytes: page-locked host memory; None if a snapshot lacks it.
    """

    seconds: float
    devices: tuple[DeviceDifference, ...]
    resident_bytes: int
    pinned_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """Numbers and texts only, for JSON."""
        facts = asdict(self)
        for device, found in zip(facts["devices"], self.devices, strict=True):
            device["cached_bytes"] = found.cached_bytes
        return facts

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per GPU."""
        return list(self.to_dict()["devices"])

    def __repr__(self) -> str:
        return f"<MemoryDifference {'; '.join(map(str.strip, str(self).splitlines()))}>"

    def __str__(self) -> str:
        """A line for each GPU, one for each library whose pools changed on it, and one for the host."""
        lines = [f"in {self.seconds:.3g} s"]
        for device in self.devices:
            figures = [
                ("allocated", device.allocated_bytes),
                ("cached", device.cached_bytes),
                ("process (NVML)", device.process_bytes),
            ]
            lines.append(f"device {device.device}: {_listed(figures)}")
            for pool in device.pools:
                changed = [("allocated", pool.allocated_bytes), ("cached", pool.reserved_bytes - pool.allocated_bytes)]
                lines.append(f"  {pool.library}: {_listed(changed)}")
        lines.append(f"host: {_listed([('resident', self.resident_bytes), ('pinned', self.pinned_bytes)])}")
        return "\n".join(lines)


def difference(before: MemorySnapshot, after: MemorySnapshot) -> MemoryDifference:
    """The change from one snapshot to another."""
    earlier, later = ({found.device: found for found in taken.devices} for taken in (before, after))
    return MemoryDifference(
        seconds=(after.time_ns - before.time_ns) / 1e9,
        devices=tuple(_device(number, earlier, later) for number in sorted(earlier.keys() | later.keys())),
        resident_bytes=after.host.resident_bytes - before.host.resident_bytes,
        pinned_bytes=_change(before.host.pinned_bytes, after.host.pinned_bytes),
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
        allocated_bytes=(after.allocated_bytes if after else 0) - (before.allocated_bytes if before else 0),
        reserved_bytes=(after.reserved_bytes if after else 0) - (before.reserved_bytes if before else 0),
        process_bytes=_change(before.process_bytes if before else 0, after.process_bytes if after else 0),
        used_bytes=_change(before.used_bytes, after.used_bytes) if before and after else None,
        pools=tuple(changes),
    )


def _by_library(device: DeviceMemory | None) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for pool in device.pools if device else ():
        allocated, reserved = found.get(pool.library, (0, 0))
        found[pool.library] = (allocated + pool.allocated_bytes, reserved + pool.reserved_bytes)
    return found


def _change(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _listed(figures: Iterable[tuple[str, int | None]]) -> str:
    return ", ".join(f"{name} {format_bytes(size, signed=True)}" for name, size in figures if size is not None)


def _text(snapshot: MemorySnapshot) -> str:
    """A block for each GPU and one for the host."""
    lines = [f"host memory only: {snapshot.why}"] if snapshot.why else []
    if not snapshot.why and not snapshot.devices:
        lines.append("this process uses no GPU yet")
    for device in snapshot.devices:
        lines.append(f"device {device.device}: {device.name}")
        lines += _indented(_device_lines(device))
    lines.append("host")
    lines += _indented(_host_lines(snapshot.host))
    return "\n".join(lines)


def _device_lines(device: DeviceMemory) -> list[Line]:
    of_total = f" of {format_bytes(device.total_bytes)}" if device.total_bytes is not None else ""
    lines = []
    if device.process_bytes is not None:
        lines.append(("process", f"{format_bytes(device.process_bytes)}{of_total}, as NVML counts it"))
    if device.used_bytes is not None:
        lines.append(("all processes", f"{format_bytes(device.used_bytes)}{of_total}"))
    lines.append(
        ("allocated", _sum_text(device.allocated_bytes, [(p.library, p.allocated_bytes) for p in device.pools]))
    )
    lines.append(("cached", _sum_text(device.cached_bytes, [(p.library, p.cached_bytes) for p in device.pools])))
    if device.peak_allocated_bytes is not None:
        peak = format_bytes(device.peak_allocated_bytes)
        held = "" if device.peak_reserved_bytes is None else f", held {format_bytes(device.peak_reserved_bytes)}"
        lines.append(("peak", f"{peak} allocated{held}{_unknown_peaks(device.pools)}"))
    graphs = sum(pool.graph_reserved_bytes for pool in device.pools)
    if graphs:
        lines.append(("graph pools", f"{format_bytes(graphs)} of what is held"))
    if device.largest_free_bytes is not None:
        scattered = device.fragmentation
        share = "" if scattered is None else f" (fragmentation {100 * scattered:.3g} %)"
        lines.append(("largest free", f"{format_bytes(device.largest_free_bytes)}{share}"))
    return lines + [("note", note) for note in device.notes]


def _host_lines(host: HostMemory) -> list[Line]:
    lines = [("resident", f"{format_bytes(host.resident_bytes)} (peak {format_bytes(host.peak_resident_bytes)})")]
    if host.pinned_bytes is not None:
        why = f" ({host.pinned_why})" if host.pinned_why else ""
        return [*lines, ("pinned", f"{format_bytes(host.pinned_bytes)}{why}")]
    return [*lines, ("pinned", f"not known: {host.pinned_why}")]


def _sum_text(total: int, parts: Sequence[tuple[str, int]]) -> str:
    known = [f"{library} {format_bytes(size)}" for library, size in parts if size]
    return format_bytes(total) + (f"  ({', '.join(known)})" if known else "")


def _unknown_peaks(pools: Sequence[Pool]) -> str:
    unknown = [pool.library for pool in pools if pool.peak_allocated_bytes is None and pool.reserved_bytes]
    return f" (not counting {', '.join(dict.fromkeys(unknown))})" if unknown else ""


def _indented(lines: Sequence[Line]) -> list[str]:
    return [f"  {name:<{_WIDTH}}{text}" for name, text in lines]
