# SPDX-License-Identifier: Apache-2.0
"""`memory_summary`: as torch.cuda.memory_summary, for all libraries and the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpuscope.devices import HOST, ordinal_or_host
from gpuscope.frameworks import torch_memory
from gpuscope.frameworks.pools import Pool
from gpuscope.memory.host import HostMemory
from gpuscope.memory.usage.snapshot import DeviceMemory, memory_snapshot
from gpuscope.tables import align_columns
from gpuscope.text import shown
from gpuscope.units import format_bytes

_HEADING = ("Memory", "Current", "Peak", "Handed out", "Taken back")
# Fewer bytes in free blocks are not reported: torch reserves about as much at a time.
_FREE = 64 << 20
_SCATTERED = 0.5


@shown
def memory_summary(device: object = None, abbreviated: bool = False) -> str:
    """The memory of this process as one table per GPU, and some lines about the host.

    A table has the current, peak, total allocated and total freed bytes of each library's allocator. Figures that a
    library does not count are "-". Below are NVML's figures and advice. Does not wait for the GPU and creates no CUDA
    context.

    Args:
        device: None for all GPUs that this process uses, an ordinal, ``"cuda:1"`` or a ``torch.device``; ``"cpu"`` for
            the host only.
        abbreviated: only allocated and reserved bytes, without advice.

    Raises:
        InvalidArgument: `device` is no device.
        NotAvailable: this process has GPUs, but not this one.
    """
    ordinal = None if device is None else ordinal_or_host(device)
    snapshot = memory_snapshot(None if ordinal == HOST else ordinal)
    devices = () if ordinal == HOST else snapshot.devices
    parts = [device_text(found, _counters(found.device), abbreviated=abbreviated) for found in devices]
    if not parts and (ordinal != HOST or snapshot.why):
        parts.append(f"No GPU: {snapshot.why}" if snapshot.why else "This process uses no GPU yet.")
    return "\n\n".join([*parts, host_text(snapshot.host)])


def _counters(device: int) -> dict[str, Any]:
    try:
        return torch_memory.counters(device) or {}
    except Exception:  # an allocator without counters, which the snapshot notes
        return {}


class _Row(NamedTuple):
    name: str
    current: int | None
    peak: int | None = None
    handed_out: int | None = None
    taken_back: int | None = None


def device_text(device: DeviceMemory, counters: Mapping[str, Any], *, abbreviated: bool) -> str:
    """The text of one GPU. `counters` are those of torch's allocator there, nested as in torch."""
    rows: list[tuple[str, ...]] = [_HEADING]
    if len(device.pools) != 1:
        rows += [("All libraries", "", "", "", "")]
        rows += map(_cells, _all_libraries(device, abbreviated=abbreviated))
    if len(device.pools) == 1 or not abbreviated:
        for pool in device.pools:
            rows += [(pool.library, "", "", "", "")]
            rows += map(_cells, _of_pool(pool, counters if pool.library == "torch" else {}, abbreviated=abbreviated))
    lines = align_columns(rows, left=1)
    rule = "-" * max(map(len, lines))
    closing = _of_driver(device)
    if not abbreviated:
        closing += [*_of_torch(counters), *_of_free_memory(device), *device.notes]
    return "\n".join([f"GPU {device.device}: {device.name}", rule, lines[0], rule, *lines[1:], rule, *closing])


def host_text(host: HostMemory) -> str:
    """The text of the host."""
    resident = (
        f"Host: {format_bytes(host.resident_bytes)} resident, {format_bytes(host.peak_resident_bytes)} at the peak"
    )
    if host.pinned_bytes is None:
        return f"{resident}; pinned memory is not known: {host.pinned_why}"
    return f"{resident}, {format_bytes(host.pinned_bytes)} pinned" + (
        f" ({host.pinned_why})" if host.pinned_why else ""
    )


def _all_libraries(device: DeviceMemory, *, abbreviated: bool) -> Iterator[_Row]:
    yield _Row("Allocated", device.allocated_bytes, device.peak_allocated_bytes)
    yield _Row("Reserved", device.reserved_bytes, device.peak_reserved_bytes)
    if not abbreviated:
        yield _Row("Cached", device.cached_bytes)


def _of_pool(pool: Pool, counters: Mapping[str, Any], *, abbreviated: bool) -> Iterator[_Row]:
    allocated, active, reserved, split = (
        _counted(name, counters.get(key))
        for name, key in (
            ("Allocated", "allocated_bytes"),
            ("Active", "active_bytes"),  # allocated, or freed but still in use by another stream
            ("Reserved", "reserved_bytes"),
            ("Split, not in use", "inactive_split_bytes"),
        )
    )
    yield allocated or _Row("Allocated", pool.allocated_bytes, pool.peak_allocated_bytes)
    if active and not abbreviated:
        yield active
    yield reserved or _Row("Reserved", pool.reserved_bytes, pool.peak_reserved_bytes)
    if abbreviated:
        return
    yield _Row("Cached", pool.reserved_bytes - pool.allocated_bytes)
    if split:
        yield split
    if pool.graph_reserved_bytes:
        yield _Row("Graph pools", pool.graph_reserved_bytes)


def _counted(name: str, counter: Any) -> _Row | None:
    if not counter:
        return None
    of_all = counter["all"]
    return _Row(name, of_all["current"], of_all["peak"], of_all["allocated"], of_all["freed"])


def _of_driver(device: DeviceMemory) -> list[str]:
    lines = []
    if device.process_bytes is not None:
        outside = device.process_bytes - device.reserved_bytes
        more = f", {format_bytes(outside)} of it outside these allocators (context, kernels, libraries)"
        lines.append(f"This process: {format_bytes(device.process_bytes)} by NVML{more if outside > 0 else ''}")
    if device.used_bytes is not None and device.total_bytes is not None:
        lines.append(
            f"GPU: {format_bytes(device.used_bytes)} of {format_bytes(device.total_bytes)} in use by all processes"
        )
    return lines


def _of_torch(counters: Mapping[str, Any]) -> list[str]:
    retries, failures = counters.get("num_alloc_retries"), counters.get("num_ooms")
    if retries is None or failures is None:
        return []
    lines = [f"torch: {retries} allocations retried after its cache was given back, {failures} out of memory"]
    if retries:
        lines.append("The GPU was full, and each retry waits for its work; a smaller batch avoids them.")
    return lines


def _of_free_memory(device: DeviceMemory) -> list[str]:
    if device.largest_free_bytes is None or device.fragmentation is None:
        return []
    lines = [
        f"Largest free block: {format_bytes(device.largest_free_bytes)} of {format_bytes(device.cached_bytes)} cached, "
        f"fragmentation {100 * device.fragmentation:.0f} %"
    ]
    if device.cached_bytes >= _FREE and device.fragmentation >= _SCATTERED:
        lines.append(
            "Most cached memory is in smaller pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True often helps, "
            "and torch.cuda.empty_cache() releases whole segments."
        )
    return lines


def _cells(row: _Row) -> tuple[str, ...]:
    return ("  " + row.name, *("-" if size is None else format_bytes(size) for size in row[1:]))
