# SPDX-License-Identifier: Apache-2.0
"""PyTorch's caching allocator: its pools, and its reports of allocations. Neither imports torch nor starts CUDA."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuscope.frameworks import torch_profiler
from gpuscope.frameworks.pools import Pool
from gpuscope.frameworks.torch import initialized
from gpuscope.units import first_line

DEFAULT = "default"
MISSING = "torch's allocations are missing where torch.profiler ran"
_SUMMARY = "{}_bytes.all.{}"


@dataclass(frozen=True)
class Block:
    """A block of a segment.

    Attributes:
        address: first byte.
        bytes: size.
        requested: size before rounding; 0 if inactive.
        state: "active_allocated", "active_awaiting_free" (another stream may still use it) or "inactive".
    """

    address: int
    bytes: int
    requested: int
    state: str


@dataclass(frozen=True)
class Segment:
    """One allocation of an allocator from the driver.

    Attributes:
        address: first byte.
        bytes: size.
        allocated_bytes: in use by the program.
        pool: "default", "graph (1, 0)" for a CUDA graph's, "private (0, 1)" for the program's own.
        expandable: grows and shrinks by mapping memory.
        small: serves only requests of at most 1 MiB, which no other segment serves.
        blocks: in order of addresses.
    """

    address: int
    bytes: int
    allocated_bytes: int
    pool: str
    expandable: bool
    small: bool
    blocks: tuple[Block, ...]


def backend() -> str:
    """Torch's name of its allocator: "native", "cudaMallocAsync", "pluggable"; "" if torch does not use CUDA."""
    torch = initialized()
    ask = getattr(getattr(torch, "cuda", None), "get_allocator_backend", None)
    return str(ask()) if ask is not None else "native" if torch is not None else ""


def why_opaque() -> str:
    """Why torch reports neither GPU allocations nor segments; "" if it does or has no GPUs."""
    try:  # works before torch uses a GPU
        kind = str(sys.modules["torch"].cuda.get_allocator_backend())
    except Exception:  # not imported, or a build without CUDA
        kind = "native"
    return "" if kind == "native" else f"its allocator is {kind}, which reports neither allocations nor segments"


def pools(device: int, *, detail: bool = True) -> tuple[Pool, ...]:
    """Torch's pool on a device.

    `detail` also reads the segments, for the largest free block and the private pools of CUDA graphs.
    """
    torch = initialized()
    if torch is None:
        return ()
    kind = backend()
    try:
        stats = torch.cuda.memory_stats(device)
    except Exception as error:
        return (
            Pool(
                "torch",
                device,
                0,
                0,
                note=f"its allocator ({kind}) keeps no figures: {first_line(str(error) or type(error).__name__)}",
            ),
        )
    allocated, reserved, peak_allocated, peak_reserved = (
        int(stats.get(_SUMMARY.format(what, when), 0))
        for when in ("current", "peak")
        for what in ("allocated", "reserved")
    )
    if kind == "cudaMallocAsync":
        note = "allocated from the driver's pool (cudaMallocAsync), which holds the cached memory"
        return (Pool("torch", device, allocated, allocated, peak_allocated, None, note=note, in_cuda_pool=True),)
    largest = free = None
    graphs, note = 0, ""
    if detail:
        try:
            parts = segments(device)
        except Exception as error:
            note = f"its segments cannot be read: {first_line(str(error) or type(error).__name__)}"
        else:
            graphs = sum(part.bytes for part in parts if part.pool != DEFAULT)
            blocks = [b.bytes for part in parts if part.pool == DEFAULT for b in part.blocks if b.state == "inactive"]
            largest, free = max(blocks, default=0), sum(blocks)
    return (Pool("torch", device, allocated, reserved, peak_allocated, peak_reserved, largest, graphs, note, free),)


def segments(device: int) -> tuple[Segment, ...]:
    """The segments of torch's allocator on a device, in order of addresses; () if torch does not use CUDA.

    If the allocator has no segments (cudaMallocAsync, pluggable ones), torch's error is passed on.
    """
    found = (_segment(part) for part in _parts() if part.get("device", 0) == device)
    return tuple(sorted(found, key=lambda segment: segment.address))


def private_pools() -> tuple[tuple[int, int], ...]:
    """Begin and end address of each segment of private pools, as of CUDA graphs, on all devices.

    Errors as in `segments`.
    """
    found = (segment for segment in map(_segment, _parts()) if segment.pool != DEFAULT)
    return tuple((segment.address, segment.address + segment.bytes) for segment in found)


def _parts() -> Any:
    torch = initialized()
    if torch is None:
        return ()
    snapshot = torch.cuda.memory_snapshot
    try:
        # Without torch's own recorded history, which can take seconds.
        return snapshot(include_traces=False)
    except TypeError:  # older torch
        return snapshot()


def _segment(part: dict[str, Any]) -> Segment:
    at = int(part["address"])
    blocks = []
    for block in part.get("blocks", ()):
        size = int(block["size"])
        state = str(block["state"])
        requested = int(block.get("requested_size", size)) if state != "inactive" else 0
        blocks.append(Block(int(block.get("address", at)), size, requested, state))
        at = blocks[-1].address + size
    pool = tuple(part.get("segment_pool_id", (0, 0)))
    name = DEFAULT if pool == (0, 0) else f"{'graph' if pool[0] else 'private'} {pool}"
    return Segment(
        address=int(part["address"]),
        bytes=int(part["total_size"]),
        allocated_bytes=int(part.get("allocated_size", 0)),
        pool=name,
        expandable=bool(part.get("is_expandable", False)),
        small=part.get("segment_type") == "small",
        blocks=tuple(blocks),
    )


def counters(device: int) -> Any:
    """All counters of the allocator, as nested dicts; None if torch has not used the GPU yet."""
    torch = initialized()
    if torch is None:
        return None
    # torch.cuda.memory_allocated() makes the same call, and a flat, sorted copy of all counters.
    ask = getattr(torch._C, "_cuda_memoryStats", None) or torch.cuda.memory_stats_as_nested_dict
    return ask(device)


def count_failures() -> int:
    """Number of failed allocations on GPUs, including those from which torch recovered."""
    torch = initialized()
    if torch is None:
        return 0
    try:
        devices = range(torch.cuda.device_count())
        return sum(int(torch.cuda.memory_stats(device).get("num_ooms", 0)) for device in devices)
    except RuntimeError:  # an allocator without this figure
        return 0


def free_bytes(device: int) -> int | None:
    """The driver's free bytes on a device, as torch reads them; None if torch does not use CUDA."""
    try:
        torch = initialized()
        return None if torch is None else int(torch.cuda.mem_get_info(device)[0])
    except Exception:  # no such device
        return None


def full_snapshot() -> dict[str, Any] | None:
    """The result of ``torch.cuda.memory._snapshot()``; None if torch does not use CUDA.

    Errors as in `segments`.
    """
    torch = initialized()
    if torch is None:
        return None
    snapshot = getattr(getattr(torch.cuda, "memory", None), "_snapshot", None)
    return {"segments": torch.cuda.memory_snapshot(), "device_traces": []} if snapshot is None else {**snapshot()}


def pinned_bytes() -> int | None:
    """Bytes of pinned host memory that torch's host allocator holds; None if it does not report them."""
    torch = initialized()
    ask = getattr(getattr(torch, "cuda", None), "host_memory_stats", None)
    if ask is None:
        return None
    stats = ask()
    # If both exist, the first is the memory held and the second the memory in use.
    found = stats.get("reserved_bytes.current", stats.get("allocated_bytes.current"))
    return None if found is None else int(found)


class TorchReports:
    """Makes torch report allocations of the calling thread, and of autograd's threads that work for it.

    Attributes:
        why: why there are no reports; "" if there are.
        pauses: number of times that torch.profiler interrupted the reports.
        paused: whether torch.profiler interrupts them now.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self.pauses = 0
        self.paused = False
        self._note = note
        self._use: torch_profiler.Use | None = None
        self.why = torch_profiler.why_unavailable()
        if not self.why and not torch_profiler.reports_memory():
            self.why = "this version of torch reports them in another way"
        if not self.why:
            need = torch_profiler.Need(memory=True)
            self._use = torch_profiler.Use(need, on_pause=self._pause, on_resume=self._resume)
            self._use.begin()

    def end(self) -> None:
        """Ends the reports. If called on another thread, torch continues to report, and the reports are dropped."""
        if self._use is not None:
            self._use.end()
            self._use = None

    def _pause(self) -> None:
        self.pauses, self.paused = self.pauses + 1, True
        self._note(MISSING)

    def _resume(self) -> None:
        self.paused = False


class _Counted(threading.local):
    """The reports that the calling thread acquired."""

    def __init__(self) -> None:
        self.count = 0
        self.reports: TorchReports | None = None


_counted = _Counted()


def acquire_reports() -> str:
    """Makes torch report the allocations of the calling thread to the core.

    Returns "", or why not. Each call that returned "" needs one `release_reports` on the same thread.
    """
    if _counted.reports is None:
        reports = TorchReports(note=lambda _: None)
        if reports.why:
            return reports.why
        _counted.reports = reports
    elif _counted.reports.paused:
        return "torch.profiler runs on this thread"
    _counted.count += 1
    return ""


def acquired_reports() -> TorchReports | None:
    """The reports of the calling thread; None if it has acquired none."""
    return _counted.reports


def release_reports() -> None:
    """Ends one `acquire_reports` of the calling thread."""
    _counted.count = max(0, _counted.count - 1)
    if _counted.count == 0 and _counted.reports is not None:
        _counted.reports.end()
        _counted.reports = None
