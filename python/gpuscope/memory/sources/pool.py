# SPDX-License-Identifier: Apache-2.0
"""What allocators keep, as figures and as pieces of address space. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """The memory that one allocator holds on one GPU.

    Attributes:
        library: "torch", "cupy", "rmm", "jax", or "cuda pool" for the driver's own (cuMemAllocAsync).
        device: ordinal of the GPU.
        allocated: in use by the program.
        reserved: held from the driver; what is not allocated is cached.
        peak_allocated: the most that was in use; None where the allocator does not say.
        peak_reserved: the most that was held, likewise.
        largest_free: the largest block of `free`; None where it is not known.
        graph_reserved: of `reserved`, what lies in private pools, as those of CUDA graphs.
        note: what cannot be known, and why; empty otherwise.
        free: cached memory that any request may be served from; None where it is not known.
        in_cuda_pool: taken from the driver's pool: `reserved` is only what is in use, and the pool has the rest.
    """

    library: str
    device: int
    allocated: int
    reserved: int
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    largest_free: int | None = None
    graph_reserved: int = 0
    note: str = ""
    free: int | None = None
    in_cuda_pool: bool = False

    @property
    def cached(self) -> int:
        """Held and not in use."""
        return self.reserved - self.allocated


@dataclass(frozen=True)
class Block:
    """A piece of a segment.

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
        allocated: in use by the program.
        pool: "default", "graph (1, 0)" for a CUDA graph's, "private (0, 1)" for one that the program made.
        expandable: grows and shrinks, by mapping memory to addresses.
        blocks: its pieces in the order of addresses.
    """

    address: int
    bytes: int
    allocated: int
    pool: str
    expandable: bool
    blocks: tuple[Block, ...]
