# SPDX-License-Identifier: Apache-2.0
"""A snapshot of memory in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuscope.memory.sizes import size_text

if TYPE_CHECKING:
    from gpuscope.memory.snapshots.snapshot import DeviceMemory, MemorySnapshot
    from gpuscope.memory.sources.host import HostMemory
    from gpuscope.memory.sources.pool import Pool

_WIDTH = 14  # of a line's name

Line = tuple[str, str]


def snapshot_text(snapshot: MemorySnapshot) -> str:
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
    of_total = f" of {size_text(device.total)}" if device.total is not None else ""
    lines = []
    if device.process is not None:
        lines.append(("process", f"{size_text(device.process)}{of_total}, as NVML counts it"))
    if device.used is not None:
        lines.append(("all processes", f"{size_text(device.used)}{of_total}"))
    lines.append(("allocated", _sum_text(device.allocated, [(p.library, p.allocated) for p in device.pools])))
    lines.append(("cached", _sum_text(device.cached, [(p.library, p.cached) for p in device.pools])))
    if device.peak_allocated is not None:
        peak = size_text(device.peak_allocated)
        held = "" if device.peak_reserved is None else f", held {size_text(device.peak_reserved)}"
        lines.append(("peak", f"{peak} allocated{held}{_unknown_peaks(device.pools)}"))
    graphs = sum(pool.graph_reserved for pool in device.pools)
    if graphs:
        lines.append(("graph pools", f"{size_text(graphs)} of what is held"))
    if device.largest_free is not None:
        scattered = device.fragmentation
        share = "" if scattered is None else f" (fragmentation {100 * scattered:.3g} %)"
        lines.append(("largest free", f"{size_text(device.largest_free)}{share}"))
    return lines + [("note", note) for note in device.notes]


def _host_lines(host: HostMemory) -> list[Line]:
    lines = [("resident", f"{size_text(host.resident)} (peak {size_text(host.peak_resident)})")]
    if host.pinned is not None:
        why = f" ({host.pinned_why})" if host.pinned_why else ""
        return [*lines, ("pinned", f"{size_text(host.pinned)}{why}")]
    return [*lines, ("pinned", f"not known: {host.pinned_why}")]


def _sum_text(total: int, parts: Sequence[tuple[str, int]]) -> str:
    known = [f"{library} {size_text(size)}" for library, size in parts if size]
    return size_text(total) + (f"  ({', '.join(known)})" if known else "")


def _unknown_peaks(pools: Sequence[Pool]) -> str:
    unknown = [pool.library for pool in pools if pool.peak_allocated is None and pool.reserved]
    return f" (not counting {', '.join(dict.fromkeys(unknown))})" if unknown else ""


def _indented(lines: Sequence[Line]) -> list[str]:
    return [f"  {name:<{_WIDTH}}{text}" for name, text in lines]
