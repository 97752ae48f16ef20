# SPDX-License-Identifier: Apache-2.0
"""PyTorch's caching allocator: what it holds, and its reports of allocations. Neither imports torch nor starts CUDA."""

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
        address: where it begins.
        bytes: its size.
        requested: what was asked for, before rounding; 0 where nothing was.
        state: "active_allocated", "active_awaiting_free" (another stream may still use it) or "inactive".
    """

    address: int
    bytes: int
    requested: int
    state: str


@dataclass(frozen=True)
class Segment:
    """What an allocator took from the driver in one go.

    Attributes:
        address: where it begins.
        bytes: its size.
        allocated_bytes: in use by the program.
        pool: "default", "graph (1, 0)" for a CUDA graph's, "private (0, 1)" for one that the program made.
        expandable: grows and shrinks, by mapping memory to addresses.
        small: serves requests of at most 1 MiB alone; segments for larger ones never do.
        blocks: in the order of addresses.
    """

    address: int
    bytes: int
    allocated_bytes: int
    pool: str
    expandable: bool
    small: bool
    blocks: tuple[Block, ...]


def backend() -> str:
    """Torch's name for its allocator: "native", "cudaMallocAsync", "pluggable"; empty where it does not use CUDA."""
    torch = initialized()
    ask = getattr(getattr(torch, "cuda", None), "get_allocator_backend", None)
    return str(ask()) if ask is not None else "native" if torch is not None else ""


def why_opaque() -> str:
    """Why torch reports neither what it hands out on GPUs nor its segments; empty where it does, or has no GPUs."""
    try:  # before torch has begun to use a GPU, too
        kind = str(sys.modules["torch"].cuda.get_allocator_backend())
    except Exception:  # not imported, or a build without CUDA
        kind = "native"
    return "" if kind == "native" else f"its allocator is {kind}, which reports neither allocations nor segments"


def pools(device: int, *, detail: bool = True) -> tuple[Pool, ...]:
    """What torch holds on a device.

    `detail` looks at the segments too, which takes 0.5 to 2 ms: for the largest free block and the private pools of
    CUDA graphs.
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
        note = "allocated from the driver's pool (cudaMallocAsync), which holds what is cached"
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
    """The segments of torch's allocator on a device, in the order of addresses.

    () where torch does not use CUDA. What torch raises where its allocator has no segments (cudaMallocAsync,
    pluggable ones) is passed on.
    """
    torch = initialized()
    if torch is None:
        return ()
    snapshot = torch.cuda.memory_snapshot
    try:
        # Without what torch may have recorded, which can take seconds.
        parts = snapshot(include_traces=False)
    except TypeError:  # older torch
        parts = snapshot()
    found = (_segment(part) for part in parts if part.get("device", 0) == device)
    return tuple(sorted(found, key=lambda segment: segment.address))


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
    """All counters of the allocator, as nested dicts; None when torch has not begun to use the GPU."""
    torch = initialized()
    if torch is None:
        return None
    # torch.cuda.memory_allocated() makes the same call, and then a flat and sorted copy of all its counters.
    ask = getattr(torch._C, "_cuda_memoryStats", None) or torch.cuda.memory_stats_as_nested_dict
    return ask(device)


def count_failures() -> int:
    """How often an allocation on a GPU failed, also where torch went on without."""
    torch = initialized()
    if torch is None:
        return 0
    try:
        devices = range(torch.cuda.device_count())
        return sum(int(torch.cuda.memory_stats(device).get("num_ooms", 0)) for device in devices)
    except RuntimeError:  # an allocator that keeps no such figures
        return 0


def free_bytes(device: int) -> int | None:
    """What the driver has free on a device, as torch reads it; None where torch does not use CUDA."""
    try:
        torch = initialized()
        return None if torch is None else int(torch.cuda.mem_get_info(device)[0])
    except Exception:  # no such device
        return None


def full_snapshot() -> dict[str, Any] | None:
    """What ``torch.cuda.memory._snapshot()`` returns; None where torch does not use CUDA.

    What torch raises where its allocator has no segments is passed on.
    """
    torch = initialized()
    if torch is None:
        return None
    snapshot = getattr(getattr(torch.cuda, "memory", None), "_snapshot", None)
    return {"segments": torch.cuda.memory_snapshot(), "device_traces": []} if snapshot is None else {**snapshot()}


def pinned_bytes() -> int | None:
    """Pinned host memory that torch's host allocator holds; None where it has no such figure."""
    torch = initialized()
    ask = getattr(getattr(torch, "cuda", None), "host_memory_stats", None)
    if ask is None:
        return None
    stats = ask()
    # Where both are there, the first is what is held and the second what is in use.
    found = stats.get("reserved_bytes.current", stats.get("allocated_bytes.current"))
    return None if found is None else int(found)


class TorchReports:
    """Has torch report the allocations of the thread that makes this, and of autograd's threads that work for it.

    Attributes:
        why: why it does not, "" when it does.
        pauses: how often torch.profiler has taken the place of it.
        paused: it does so now.
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
        """Ends it, on any thread. A thread that did not end its own pays some ns for reports that are dropped."""
        if self._use is not None:
            self._use.end()
            self._use = None

    def _pause(self) -> None:
        self.pauses, self.paused = self.pauses + 1, True
        self._note(MISSING)

    def _resume(self) -> None:
        self.paused = False


class _Counted(threading.local):
    """What the calling thread acquired."""

    def __init__(self) -> None:
        self.count = 0
        self.reports: TorchReports | None = None


_counted = _Counted()


def acquire_reports() -> str:
    """Has torch report the allocations of the calling thread to the core.

    Returns "", or why it does not. Every call that returned "" is ended by one `release_reports` on the same thread.
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
    """Those of the calling thread; None where it has acquired none."""
    return _counted.reports


def release_reports() -> None:
    """Ends one `acquire_reports` of the calling thread."""
    _counted.count = max(0, _counted.count - 1)
    if _counted.count == 0 and _counted.reports is not None:
        _counted.reports.end()
        _counted.reports = None
