# SPDX-License-Identifier: Apache-2.0
"""The memory that an allocator holds, as every framework's figures are given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """The memory that one allocator holds on one GPU. Sizes are bytes.

    Attributes:
        library: "torch", "cupy", "rmm", "jax", or "cuda pool" for the driver's own (cuMemAllocAsync).
        device: ordinal of the GPU.
        allocated_bytes: in use by the program.
        reserved_bytes: held from the driver; what is not allocated is cached.
        peak_allocated_bytes: the most that was in use; None where the allocator does not say.
        peak_reserved_bytes: the most that was held, likewise.
        largest_free_bytes: the largest block of `free_bytes`; None where it is not known.
        graph_reserved_bytes: of `reserved_bytes`, what lies in private pools, as those of CUDA graphs.
        note: what cannot be known, and why; empty otherwise.
        free_bytes: cached memory that any request may be served from; None where it is not known.
        in_cuda_pool: taken from the driver's pool: `reserved_bytes` is only what is in use, and the pool has the rest.
    """

    library: str
    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    largest_free_bytes: int | None = None
    graph_reserved_bytes: int = 0
    note: str = ""
    free_bytes: int | None = None
    in_cuda_pool: bool = False

    @property
    def cached_bytes(self) -> int:
        """Held and not in use."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def usable_bytes(self) -> int:
        """Cached memory that any request may be served from; all that is cached where no more is known."""
        return self.cached_bytes if self.free_bytes is None else self.free_bytes
