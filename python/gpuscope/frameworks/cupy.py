# SPDX-License-Identifier: Apache-2.0
"""CuPy, once the program has imported it: memory pools, graph capture and a matrix product."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuscope import _core
from gpuscope.frameworks.graph_capture import (
    DEFAULT_STREAMS,
    WARM_UP_CALLS,
    Captured,
    EmptyGraph,
    call_repeatedly,
    record,
)
from gpuscope.frameworks.pools import Pool

if TYPE_CHECKING:
    from gpuscope.streams import Stream

_SOURCE = 1  # of CuPy, in the numbers of the core's memory history (cpp/gpuscope/memory/report.h)


def imported() -> Any:
    """The module if the process has imported it; None otherwise."""
    cupy = sys.modules.get("cupy")
    return cupy if hasattr(cupy, "get_default_memory_pool") else None


def pools(device: int) -> tuple[Pool, ...]:
    """CuPy's default pool and, if different, its allocator's pool, on a device that is in use.

    A MemoryAsyncPool caches nothing itself: its memory is in the driver's pool.
    """
    cupy = imported()
    if cupy is None:
        return ()
    found = []
    default = cupy.get_default_memory_pool()
    current = _allocators_pool(cupy)
    with cupy.cuda.Device(device):  # pools report the current device
        for pool in (default,) if current in (None, default) else (default, current):
            if _is_async(pool):
                continue
            allocated, reserved = int(pool.used_bytes()), int(pool.total_bytes())
            if pool is default and pool is not current and current is not None and not reserved:
                continue
            found.append(Pool("cupy", device, allocated, reserved, free_bytes=int(pool.free_bytes())))
    return tuple(found)


def in_use() -> Any:
    """The module if the process has imported it and has a GPU for it; None otherwise."""
    cupy = imported()
    try:
        return cupy if cupy is not None and cupy.cuda.runtime.getDeviceCount() else None
    except Exception:  # CuPy without a usable GPU; its errors have no common base class
        return None


def uses_cuda_pool() -> bool:
    """Whether CuPy allocates from the driver's pool."""
    cupy = imported()
    return cupy is not None and _is_async(_allocators_pool(cupy))


def _allocators_pool(cupy: Any) -> Any:
    """The pool whose method is CuPy's allocator on this thread; None if it is no method of a pool."""
    allocator = getattr(cupy.cuda, "get_allocator", lambda: None)()
    pool = getattr(allocator, "__self__", None)
    return pool if hasattr(pool, "total_bytes") else None


def _is_async(pool: Any) -> bool:
    return type(pool).__name__ == "MemoryAsyncPool"


class CupyReports:
    """A hook in CuPy's pool for the calling thread. CuPy must be imported."""

    def __init__(self) -> None:
        self._hook = _hook_class()()
        self._thread = threading.get_ident()
        self._hook.__enter__()

    def end(self) -> None:
        """Ends the reports. On another thread, the hook stays installed but silent."""
        self._hook.silent = True
        if threading.get_ident() == self._thread:
            self._hook.__exit__(None, None, None)


def _hook_class() -> Any:
    base: Any = sys.modules["cupy"].cuda.MemoryHook

    class Hook(base):  # type: ignore[misc]
        """Reports to the core."""

        silent = False

        def __init__(self) -> None:
            # CuPy stores a thread's hooks by name.
            self.name = f"gpuscope memory history {id(self):x}"

        def malloc_postprocess(self, **what: Any) -> None:
            if what["mem_ptr"]:  # 0 if the allocation failed
                self._report(what, what["mem_size"])

        def free_postprocess(self, **what: Any) -> None:
            self._report(what, -what["mem_size"])

        def _report(self, what: dict[str, Any], size: int) -> None:
            if not self.silent:
                _core.record_memory(_SOURCE, what["device_id"], what["mem_ptr"], size)

    return Hook


def capture_graph(function: Callable[[], object], calls: int, stream: Stream) -> Captured:
    """Captures calls, with a memory pool of the graph's own; see `cuda_graphs.capture`."""
    import cupy

    with cupy.cuda.Device(stream.device):
        if stream.handle in DEFAULT_STREAMS:
            side, replayed_on = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null
        else:
            side = replayed_on = _stream_of(stream)
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc), side:
            replayed_on.synchronize()
            call_repeatedly(function, WARM_UP_CALLS)
            side.synchronize()
            result, graph = record(side.begin_capture, function, calls, side.end_capture)
    if "_node_" not in graph.debug_dot_str():  # one line per node
        raise EmptyGraph
    return Captured(calls, lambda: graph.launch(replayed_on), None, "cupy", [graph, pool, result, function])


def _stream_of(stream: Stream) -> Any:
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.handle, stream.device)  # up to CuPy 13


def matrix_product(size: int, device: int) -> Callable[[], object]:
    """A product of random float16 matrices, random for the reason in `torch.matrix_product`."""
    import cupy

    with cupy.cuda.Device(device):
        random = cupy.random.RandomState(0)
        a, b = (random.standard_normal((size, size), dtype="float32").astype("float16") for _ in range(2))
        out = cupy.empty_like(a)
    return lambda: cupy.matmul(a, b, out=out)
