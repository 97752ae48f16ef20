# SPDX-License-Identifier: Apache-2.0
"""Memory held by an allocator, in one form for all frameworks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """The memory that one allocator holds on one GPU. Sizes are bytes.

    Attributes:
        library: "torch", "cupy", "rmm", "jax", or "cuda pool" for the driver's own (cuMemAllocAsync).
        device: ordinal of the GPU.
        allocated_bytes: in use by the program.
        reserved_bytes: held from the driver, in use or cached.
        peak_allocated_bytes: peak of `allocated_bytes`; None if the allocator does not report it.
        peak_reserved_bytes: peak of `reserved_bytes`; None if the allocator does not report it.
        largest_free_bytes: the largest block of `free_bytes`; None if unknown.
        graph_reserved_bytes: the part of `reserved_bytes` in private pools, as of CUDA graphs.
        note: unknown figures, and why; "" for none.
        free_bytes: cached memory that can serve any request; None if unknown.
        in_cuda_pool: allocated from the driver's pool. `reserved_bytes` is then only the memory in use.
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
        """Bytes held but not in use."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def usable_bytes(self) -> int:
        """Cached memory that can serve any request; all cached memory if `free_bytes` is unknown."""
        return self.cached_bytes if self.free_bytes is None else self.free_bytes
