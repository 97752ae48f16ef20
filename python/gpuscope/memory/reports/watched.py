# SPDX-License-Identifier: Apache-2.0
"""What is known of memory that libraries took from the CUDA driver themselves, while that is watched."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope import _core

PINNED = "pinned"


@dataclass(frozen=True)
class Piece:
    """One live allocation at the driver.

    Attributes:
        address: where it begins; 0 where it has no address (arrays, memory that is not mapped).
        bytes: its size.
        kind: "device", "pool" (stream-ordered), "managed", "pinned", "virtual" or "array".
        device: ordinal of the GPU; events.HOST for pinned memory.
        pool: handle of the memory pool, 0 for none or the current one.
        library: base name of the library that asked for it; "" where that is not known.
        stack: number of the Python stack.
        region: the program's region that it was taken in; "" for none.
    """

    address: int
    bytes: int
    kind: str
    device: int
    pool: int
    library: str
    stack: int
    region: str = ""


@dataclass(frozen=True)
class Watched:
    """All live allocations since the watch began.

    Attributes:
        pieces: each of them.
        from_start: nothing can have been allocated before the watch began.
        unknown_releases: releases of what had been allocated before.
        code_bytes: kernels' code that was loaded since; None where functions are loaded one by one, when they are used
            first (CUDA_MODULE_LOADING=LAZY, the default): that is little, and nobody tells how much.
        services: what kernels call of the driver, which keeps memory for each: "assert", "printf", "malloc".
        cupti_path: the library that the watch uses.
    """

    pieces: tuple[Piece, ...]
    from_start: bool
    unknown_releases: int
    code_bytes: int | None
    services: tuple[str, ...] = ()
    cupti_path: str = ""


def watched() -> Watched | None:
    """The live allocations; None where they are not watched."""
    state = _core.allocation_watch()
    if not state.get("watching"):
        return None
    columns = _core.live_allocations()
    kinds, libraries, regions = _core.ALLOCATION_KINDS, columns["libraries"], columns["regions"]
    names = ("address", "bytes", "kind", "device", "pool", "library", "stack", "region")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    pieces = tuple(
        Piece(
            address,
            size,
            kinds[kind],
            device,
            pool,
            libraries[library] if 0 <= library < len(libraries) else "",
            stack,
            regions[region],
        )
        for address, size, kind, device, pool, library, stack, region in rows
    )
    return Watched(
        pieces=pieces,
        from_start=bool(state.get("from_start")),
        unknown_releases=int(state.get("unknown_releases", 0)),
        code_bytes=state.get("code_bytes"),
        services=tuple(state.get("services", ())),
        cupti_path=str(state.get("cupti_path", "")),
    )


def watched_pinned() -> tuple[int, bool] | None:
    """Bytes of the host's memory that are pinned, and whether none can be missing; None where it is not watched.

    Quick, however many allocations there are.
    """
    state = _core.allocation_watch()
    if not state.get("watching"):
        return None
    columns = _core.live_allocations()
    pinned = columns["bytes"][columns["kind"] == _core.ALLOCATION_KINDS.index(PINNED)]
    return int(pinned.sum()), bool(state.get("from_start"))
