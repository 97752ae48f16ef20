# SPDX-License-Identifier: Apache-2.0
"""PyTorch's caching allocator. Neither imports torch nor initialises CUDA."""

from __future__ import annotations

import sys
from typing import Any

from gpuscope.memory.sources.pool import Block, Pool, Segment

DEFAULT = "default"
_SUMMARY = "{}_bytes.all.{}"


def imported() -> Any:
    """The module, once this process uses CUDA with it; None before."""
    torch = sys.modules.get("torch")
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return torch if is_initialized is not None and is_initialized() else None


def backend() -> str:
    """Torch's name for its allocator: "native", "cudaMallocAsync", "pluggable"; empty where it does not use CUDA."""
    torch = imported()
    ask = getattr(getattr(torch, "cuda", None), "get_allocator_backend", None)
    return str(ask()) if ask is not None else "native" if torch is not None else ""


def pools(device: int, *, detail: bool = True) -> tuple[Pool, ...]:
    """What torch holds on a device.

    Args:
        device: ordinal of the GPU.
        detail: whether to look at the segments too, which takes 0.5 to 2 ms: the largest free block and the private
            pools of CUDA graphs come from there.
    """
    torch = imported()
    if torch is None:
        return ()
    kind = backend()
    try:
        stats = torch.cuda.memory_stats(device)
    except Exception as error:
        return (Pool("torch", device, 0, 0, note=f"its allocator ({kind}) keeps no figures: {_first_line(error)}"),)
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
            note = f"its segments cannot be read: {_first_line(error)}"
        else:
            graphs = sum(part.bytes for part in parts if part.pool != DEFAULT)
            blocks = [b.bytes for part in parts if part.pool == DEFAULT for b in part.blocks if b.state == "inactive"]
            largest, free = max(blocks, default=0), sum(blocks)
    return (Pool("torch", device, allocated, reserved, peak_allocated, peak_reserved, largest, graphs, note, free),)


def segments(device: int) -> tuple[Segment, ...]:
    """The segments of torch's allocator on a device, in the order of addresses.

    () where torch does not use CUDA. What torch raises where its allocator cannot tell (cudaMallocAsync, pluggable
    ones) goes on.
    """
    torch = imported()
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
        allocated=int(part.get("allocated_size", 0)),
        pool=name,
        expandable=bool(part.get("is_expandable", False)),
        blocks=tuple(blocks),
    )


def pinned_bytes() -> int | None:
    """Pinned host memory that torch's host allocator holds; None where it does not say."""
    torch = imported()
    ask = getattr(getattr(torch, "cuda", None), "host_memory_stats", None)
    if ask is None:
        return None
    stats = ask()
    # Where both are there, the first is what is held and the second what is in use.
    found = stats.get("reserved_bytes.current", stats.get("allocated_bytes.current"))
    return None if found is None else int(found)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
