# SPDX-License-Identifier: Apache-2.0
"""Memory that PyTorch holds and cannot use: how much, in what pieces, and which setting would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuscope import streams
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.findings.fragmentation_advice import Advice, advice_on
from gpuscope.memory.findings.leak_text import wrapped
from gpuscope.memory.ordinals import why_no_gpu
from gpuscope.memory.sizes import size_text
from gpuscope.memory.sources.torch import segments

# PyTorch's CUDACachingAllocator: requests of at most 1 MiB are served from segments of 2 MiB, larger ones never are.
_SMALL_SEGMENT = 2 << 20
_DEFAULT_POOL = "default"
_FREE, _IN_USE = "inactive", "active_allocated"  # anything else awaits its release


class BlockLike(Protocol):
    """A piece of a segment, as `sources.torch.segments` gives it."""

    @property
    def bytes(self) -> int:
        """Its size."""

    @property
    def state(self) -> str:
        """Either "active_allocated", "inactive", or awaiting its release."""


class SegmentLike(Protocol):
    """Memory that PyTorch holds from the driver, as `sources.torch.segments` gives it."""

    @property
    def bytes(self) -> int:
        """Its size."""

    @property
    def allocated(self) -> int:
        """Bytes in use."""

    @property
    def pool(self) -> str:
        """The "default" one, or a private one, which CUDA graphs have."""

    @property
    def expandable(self) -> bool:
        """Whether it can grow and shrink."""

    @property
    def blocks(self) -> Sequence[Any]:
        """Its pieces, see BlockLike."""


@dataclass(frozen=True)
class Fragmentation:
    """How much of what PyTorch holds on a GPU is of no use, and what would help. Sizes are bytes.

    Attributes:
        device: ordinal of the GPU.
        reserved: held from the driver.
        allocated: in use by tensors.
        segments: how many segments there are.
        free: not in use, in the default pool; what awaits the end of other streams' work is not free yet.
        pieces: in how many pieces.
        largest_free: the largest of them.
        stuck: the part of `free` that lies in segments that are in use too, and cannot be given back.
        stuck_pieces: in how many pieces.
        stuck_segments: in how many segments.
        releasable: the part of `free` that ``torch.cuda.empty_cache()`` would give back to the driver.
        awaiting: freed, but other streams' work that uses it is not done.
        graph_free: not in use, but kept in private pools, which CUDA graphs have.
        fails_above: a request of more bytes than this takes new memory from the driver, or fails where there is none,
            though `free` holds as much in sum; None where nothing larger than it is free in sum.
        advice: settings that would help, the most useful first; one that says none is needed otherwise.
    """

    device: int
    reserved: int
    allocated: int
    segments: int
    free: int
    pieces: int
    largest_free: int
    stuck: int
    stuck_pieces: int
    stuck_segments: int
    releasable: int
    awaiting: int
    graph_free: int
    fails_above: int | None
    advice: tuple[Advice, ...]

    @property
    def ratio(self) -> float:
        """The share of the free bytes that the largest free piece does not hold: 0 is one piece, near 1 is crumbs."""
        return 1 - self.largest_free / self.free if self.free else 0.0

    def __str__(self) -> str:
        unused = self.reserved - self.allocated
        share = f" ({100 * unused / self.reserved:.0f} %)" if self.reserved else ""
        lines = wrapped(
            f"fragmentation of GPU {self.device}: {size_text(self.allocated)} of {size_text(self.reserved)} reserved "
            f"are in use, {size_text(unused)}{share} are not"
        )
        lines += wrapped(
            f"free: {size_text(self.free)} in {_counted(self.pieces, 'piece')}, the largest "
            f"{size_text(self.largest_free)}; {size_text(self.stuck)} of it in "
            f"{_counted(self.stuck_segments, 'segment')} with blocks in use"
        )
        private = "are kept in private pools, as of CUDA graphs"
        others = ((self.awaiting, "wait for other streams"), (self.graph_free, private))
        lines += [f"also: {size_text(size)} {what}" for size, what in others if size]
        if self.fails_above is not None:
            lines += wrapped(
                f"a tensor of more than {size_text(self.fails_above)} finds no place in it, though "
                f"{size_text(self.free)} are free in sum"
            )
        for one in self.advice:
            lines += wrapped(f"advice: {one}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return {**vars(self), "ratio": self.ratio, "advice": [vars(one) for one in self.advice]}


def fragmentation(device: int | None = None) -> Fragmentation:
    """How fragmented PyTorch's memory on a GPU is, and what would help.

    Args:
        device: ordinal of the GPU; None for the current one.

    Raises:
        InvalidArgument: `device` is no ordinal.
        NotAvailable: PyTorch does not use a GPU here, or its allocator cannot tell.
    """
    if device is not None and (isinstance(device, bool) or not isinstance(device, int) or device < 0):
        raise InvalidArgument(f"device is {device!r}; accepted are ordinals from 0, and None for the current GPU")
    at = streams.current().device if device is None else device
    try:
        found = segments(at)
    except NotAvailable:
        raise
    except Exception as error:  # cudaMallocAsync and pluggable allocators have no segments
        raise NotAvailable(f"fragmentation is not available: PyTorch's allocator does not tell it ({error})") from error
    if not found:
        why = why_no_gpu() or f"PyTorch holds no memory on GPU {at}"
        raise NotAvailable(f"fragmentation is not available: {why}")
    return fragmentation_of(found, at)


def fragmentation_of(segments: Sequence[SegmentLike], device: int = 0) -> Fragmentation:
    """How fragmented these segments are.

    Args:
        segments: of one device.
        device: its ordinal.
    """
    ordinary = [segment for segment in segments if segment.pool == _DEFAULT_POOL]
    kept = [segment for segment in segments if segment.pool != _DEFAULT_POOL]
    used = [segment for segment in ordinary if any(block.state != _FREE for block in segment.blocks)]
    free = _free(ordinary)
    # Only these can serve a tensor of more than 1 MiB.
    large = _free([segment for segment in ordinary if segment.expandable or segment.bytes > _SMALL_SEGMENT])
    stuck = _free(used)
    blocks = [block for segment in segments for block in segment.blocks]
    largest = max(large, default=0)
    facts: dict[str, Any] = {
        "reserved": sum(segment.bytes for segment in segments),
        "allocated": sum(segment.allocated for segment in segments),
        "segments": len(segments),
        "free": sum(free),
        "pieces": len(free),
        "largest_free": max(free, default=0),
        "stuck": sum(stuck),
        "stuck_pieces": len(stuck),
        "stuck_segments": sum(any(block.state == _FREE for block in segment.blocks) for segment in used),
        "releasable": sum(free) - sum(stuck),
        "awaiting": sum(block.bytes for block in blocks if block.state not in (_FREE, _IN_USE)),
        "graph_free": sum(_free(kept)),
        "fails_above": largest if sum(large) > largest else None,
    }
    in_use = [block.bytes for segment in ordinary for block in segment.blocks if block.state == _IN_USE]
    expandable = bool(ordinary) and all(segment.expandable for segment in ordinary)
    advice = advice_on(facts, largest_stuck=max(stuck, default=0), in_use=in_use, expandable=expandable)
    return Fragmentation(device=device, **facts, advice=advice)


def _free(segments: Sequence[SegmentLike]) -> list[int]:
    return [block.bytes for segment in segments for block in segment.blocks if block.state == _FREE]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
