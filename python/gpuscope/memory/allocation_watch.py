# SPDX-License-Identifier: Apache-2.0
"""Memory that libraries allocate from the CUDA driver directly, recorded by the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuscope import _core
from gpuscope.frameworks import torch_profiler
from gpuscope.threads import shared_lock

_lock = shared_lock()
_users = 0

PINNED = "pinned"


def watch_allocations(stacks: bool = True) -> str:
    """Records live allocations at the CUDA driver and their stacks until `unwatch_allocations`.

    A torch.profiler that records GPU work gets CUPTI exclusively: the record then has a gap.

    Returns:
        "", or why the record is not available: no driver, no CUPTI, or another tool uses CUPTI.
    """
    global _users
    with _lock:
        why = _core.watch_allocations(stacks)
        if not why:
            _users += 1
            if _users == 1:
                _pause.subscriber.start()
        return why


def unwatch_allocations() -> None:
    """Ends one `watch_allocations` that returned "". The last call stops the record."""
    global _users
    with _lock:
        if _users == 0:
            return
        _users -= 1
        if _users == 0:
            _pause.close()
        _core.unwatch_allocations()


class _TorchProfilerPause:
    """Releases CUPTI when torch.profiler asks for GPU work, and takes it again when the profiler stops.

    If torch keeps CUPTI after its profiler has run, the watch stays off. `_core.allocation_watch` reports why.
    """

    def __init__(self) -> None:
        self._paused = False
        self.subscriber = torch_profiler.Subscriber(on_prepare=self._on_prepare, on_stop=self._on_stop)

    def _on_prepare(self, activities: Any) -> None:
        if not self._paused and torch_profiler.wants_gpu(activities):
            self._paused = True
            _core.pause_allocation_watch("torch.profiler runs and needs CUPTI for itself")

    def _on_stop(self) -> None:
        if self._paused:
            self._paused = False
            _core.resume_allocation_watch()
            with _lock:
                if _users == 0:
                    self.close()

    def close(self) -> None:
        """Ends the subscription. While a torch.profiler has CUPTI, `_on_stop` does that later."""
        if not self._paused:
            self.subscriber.stop()


@dataclass(frozen=True)
class DriverAllocation:
    """One live allocation at the driver.

    Attributes:
        address: first byte; 0 without an address (arrays, unmapped memory).
        bytes: size.
        kind: "device", "pool" (stream-ordered), "managed", "pinned", "virtual" or "array".
        device: ordinal of the GPU; events.HOST for pinned memory.
        pool: handle of the memory pool, 0 for none or the current one.
        library: base name of the library that allocated it; "" if unknown.
        stack: number of the Python stack.
        region: the program's region at the time; "" for none.
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
        allocations: the live allocations.
        from_start: nothing can have been allocated before the watch began.
        unknown_releases: releases of allocations from before the watch began.
        code_bytes: size of kernel code loaded since. None with lazy loading (CUDA_MODULE_LOADING=LAZY, the default):
            the size is then small and unknown.
        services: driver functions that kernels call ("assert", "printf", "malloc"). The driver keeps memory for each.
        cupti_path: the CUPTI library in use.
    """

    allocations: tuple[DriverAllocation, ...]
    from_start: bool
    unknown_releases: int
    code_bytes: int | None
    services: tuple[str, ...] = ()
    cupti_path: str = ""


def watched() -> Watched | None:
    """The live allocations; None if they are not watched."""
    state = _core.allocation_watch()
    if not state.get("watching"):
        return None
    columns = _core.live_allocations()
    kinds, libraries, regions = _core.ALLOCATION_KINDS, columns["libraries"], columns["regions"]
    names = ("address", "bytes", "kind", "device", "pool", "library", "stack", "region")
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    allocations = tuple(
        DriverAllocation(
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
        allocations=allocations,
        from_start=bool(state.get("from_start")),
        unknown_releases=int(state.get("unknown_releases", 0)),
        code_bytes=state.get("code_bytes"),
        services=tuple(state.get("services", ())),
        cupti_path=str(state.get("cupti_path", "")),
    )


def watched_pinned() -> tuple[int, bool] | None:
    """Bytes of pinned host memory, and whether the figure is complete; None if allocations are not watched."""
    state = _core.allocation_watch()
    if not state.get("watching"):
        return None
    columns = _core.live_allocations()
    pinned = columns["bytes"][columns["kind"] == _core.ALLOCATION_KINDS.index(PINNED)]
    return int(pinned.sum()), bool(state.get("from_start"))


_pause = _TorchProfilerPause()
