# SPDX-License-Identifier: Apache-2.0
"""The text of `memory_summary`: one GPU's table with what follows from it, and the host's lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpuscope.memory.sizes import size_text

_HEADING = ("Memory", "Current", "Peak", "Handed out", "Taken back")

# From which on the pieces that free memory is in are worth a sentence: less than this torch reserves at a time.
_FREE = 64 << 20
_SCATTERED = 0.5


class _Row(NamedTuple):
    name: str
    current: int | None
    peak: int | None = None
    handed_out: int | None = None
    taken_back: int | None = None


def device_text(device: Any, counters: Mapping[str, Any], *, abbreviated: bool) -> str:
    """One GPU.

    Args:
        device: its `DeviceMemory`.
        counters: of torch's allocator there, nested as torch has them; empty where there are none.
        abbreviated: only what is allocated and reserved.
    """
    rows: list[tuple[str, ...]] = [_HEADING]
    if len(device.pools) != 1:
        rows += [("All libraries", "", "", "", "")]
        rows += map(_cells, _all_libraries(device, abbreviated=abbreviated))
    if len(device.pools) == 1 or not abbreviated:
        for pool in device.pools:
            rows += [(pool.library, "", "", "", "")]
            rows += map(_cells, _of_pool(pool, counters if pool.library == "torch" else {}, abbreviated=abbreviated))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    rule = "-" * max(map(len, lines))
    closing = _of_driver(device)
    if not abbreviated:
        closing += [*_of_torch(counters), *_of_free_memory(device), *device.notes]
    return "\n".join([f"GPU {device.device}: {device.name}", rule, lines[0], rule, *lines[1:], rule, *closing])


def host_text(host: Any) -> str:
    """The host, from its `HostMemory`."""
    resident = f"Host: {size_text(host.resident)} resident, {size_text(host.peak_resident)} at the peak"
    if host.pinned is None:
        return f"{resident}; pinned memory is not known: {host.pinned_why}"
    return f"{resident}, {size_text(host.pinned)} pinned" + (f" ({host.pinned_why})" if host.pinned_why else "")


def _all_libraries(device: Any, *, abbreviated: bool) -> Iterator[_Row]:
    yield _Row("Allocated", device.allocated, device.peak_allocated)
    yield _Row("Reserved", device.reserved, device.peak_reserved)
    if not abbreviated:
        yield _Row("Cached", device.cached)


def _of_pool(pool: Any, counters: Mapping[str, Any], *, abbreviated: bool) -> Iterator[_Row]:
    allocated, active, reserved, split = (
        _counted(name, counters.get(key))
        for name, key in (
            ("Allocated", "allocated_bytes"),
            ("Active", "active_bytes"),  # allocated, and what another stream may still use
            ("Reserved", "reserved_bytes"),
            ("Split, not in use", "inactive_split_bytes"),
        )
    )
    yield allocated or _Row("Allocated", pool.allocated, pool.peak_allocated)
    if active and not abbreviated:
        yield active
    yield reserved or _Row("Reserved", pool.reserved, pool.peak_reserved)
    if abbreviated:
        return
    yield _Row("Cached", pool.reserved - pool.allocated)
    if split:
        yield split
    if pool.graph_reserved:
        yield _Row("Graph pools", pool.graph_reserved)


def _counted(name: str, counter: Any) -> _Row | None:
    if not counter:
        return None
    of_all = counter["all"]
    return _Row(name, of_all["current"], of_all["peak"], of_all["allocated"], of_all["freed"])


def _of_driver(device: Any) -> list[str]:
    lines = []
    if device.process is not None:
        outside = device.process - device.reserved
        more = f", {size_text(outside)} of it outside these allocators (context, kernels, libraries)"
        lines.append(f"This process: {size_text(device.process)} by NVML{more if outside > 0 else ''}")
    if device.used is not None and device.total is not None:
        lines.append(f"GPU: {size_text(device.used)} of {size_text(device.total)} in use by all processes")
    return lines


def _of_torch(counters: Mapping[str, Any]) -> list[str]:
    retries, failures = counters.get("num_alloc_retries"), counters.get("num_ooms")
    if retries is None or failures is None:
        return []
    lines = [f"torch: {retries} allocations retried after its cache was given back, {failures} out of memory"]
    if retries:
        lines.append("The GPU was full, and each retry waits for its work; a smaller batch avoids them.")
    return lines


def _of_free_memory(device: Any) -> list[str]:
    if device.largest_free is None or device.fragmentation is None:
        return []
    lines = [
        f"Largest free block: {size_text(device.largest_free)} of {size_text(device.cached)} cached, "
        f"fragmentation {100 * device.fragmentation:.0f} %"
    ]
    if device.cached >= _FREE and device.fragmentation >= _SCATTERED:
        lines.append(
            "Most of what is cached lies in smaller pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True often "
            "helps, and torch.cuda.empty_cache() gives whole segments back."
        )
    return lines


def _cells(row: _Row) -> tuple[str, ...]:
    return ("  " + row.name, *("-" if size is None else size_text(size) for size in row[1:]))
