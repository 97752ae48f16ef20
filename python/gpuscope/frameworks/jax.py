# SPDX-License-Identifier: Apache-2.0
"""JAX: its annotations as ranges, and its allocators' figures. Neither imports JAX nor starts a backend.

On every platform, annotations (TraceAnnotation, StepTraceAnnotation, annotate_function) go to XLA's profiler, not to
NVTX. XLA's own NVTX ranges on GPUs (modules and thunks, domain "TSL") are recorded without this file.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuscope._core import RegionKind, region_of_kind
from gpuscope.frameworks.pools import Pool
from gpuscope.late_imports import WhenImported
from gpuscope.units import first_line

if TYPE_CHECKING:
    from gpuscope.frameworks.observers import Note, ObserverOptions

_REGION = "_gpuscope_region"
_METHODS = ("__init__", "__enter__", "__exit__")
_GPU = ("gpu", "cuda")


def observe(options: ObserverOptions, note: Note) -> _AnnotationObserver | None:
    """An observer of JAX's annotations, if annotations of libraries are requested."""
    return _AnnotationObserver() if options.operators else None


class _AnnotationObserver:
    """While open, annotations that are created and entered become ranges."""

    def __init__(self) -> None:
        self._import = WhenImported("jax.profiler", self._hook)
        self._hooked: Any = None
        self._own: dict[str, Any] = {}

    def start(self) -> None:
        self._import.watch()

    def stop(self) -> None:
        self._import.cancel()
        for name in _METHODS if self._hooked is not None else ():
            if name in self._own:
                setattr(self._hooked, name, self._own[name])
            elif name in vars(self._hooked):
                delattr(self._hooked, name)
        self._hooked = None

    def _hook(self) -> None:
        annotation = getattr(sys.modules.get("jax.profiler"), "TraceAnnotation", None)
        if annotation is None:
            return
        self._own = {name: vars(annotation)[name] for name in _METHODS if name in vars(annotation)}
        originals = {name: getattr(annotation, name) for name in _METHODS}

        @functools.wraps(originals["__init__"])
        def init(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
            originals["__init__"](self, name, *args, **kwargs)
            # Without the step's number, as in XLA's own traces: all steps are one region.
            vars(self)[_REGION] = region_of_kind(name, RegionKind.RANGE) if isinstance(name, str) else None

        @functools.wraps(originals["__enter__"])
        def enter(self: Any, *args: Any) -> Any:
            entered = originals["__enter__"](self, *args)
            region = vars(self).get(_REGION)
            if region is not None:
                region.__enter__()
            return entered

        @functools.wraps(originals["__exit__"])
        def leave(self: Any, *args: Any) -> Any:
            region = vars(self).get(_REGION)
            if region is not None:
                region.__exit__(*args)
            return originals["__exit__"](self, *args)

        self._hooked = annotation
        for name, hook in zip(_METHODS, (init, enter, leave), strict=True):
            setattr(annotation, name, hook)


def pools(device: int) -> tuple[Pool, ...]:
    """JAX's pools on a device, if it has started a backend there."""
    return tuple(_pool(found, device) for found in _devices() if getattr(found, "local_hardware_id", None) == device)


def _devices() -> Iterator[Any]:
    # JAX's public functions for listing devices start a backend.
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    for client in list((backends or {}).values()):
        for device in client.local_devices():
            if getattr(device, "platform", "") in _GPU:
                yield device


def memory_stat(device: int | None, figure: str) -> int | None:
    """One figure of JAX's allocator on a device; None without a backend or if it is not counted."""
    jax = sys.modules.get("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    if jax is None or bridge is None or not getattr(bridge, "_backends", None):
        return None
    try:
        return _number(jax.local_devices()[device or 0].memory_stats() or {}, figure)
    except Exception:  # no such device, or one without figures; JAX's errors have no common base class
        return None


def _pool(found: Any, device: int) -> Pool:
    try:
        stats = found.memory_stats()
    except Exception as error:
        stats, why = None, f": {first_line(str(error))}"
    else:
        why = ""
    if not stats:
        return Pool("jax", device, 0, 0, note=f"its allocator keeps no figures{why}")
    allocated = int(stats.get("bytes_in_use", 0))
    peak = _number(stats, "peak_bytes_in_use")
    if os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "cuda_async":
        note = "allocated from the driver's pool (cuda_async), which holds the cached memory"
        return Pool("jax", device, allocated, allocated, peak, None, note=note, in_cuda_pool=True)
    reserved = max(allocated, _number(stats, "pool_bytes") or _number(stats, "bytes_reserved") or 0)
    # The largest free block may include memory that is not in the pool yet, hence the min() below.
    largest = _number(stats, "largest_free_block_bytes") if "pool_bytes" in stats else None
    free = reserved - allocated
    return Pool(
        "jax",
        device,
        allocated,
        reserved,
        peak,
        _number(stats, "peak_pool_bytes"),
        largest_free_bytes=None if largest is None else min(largest, free),
        free_bytes=free,
    )


def _number(stats: dict[str, Any], name: str) -> int | None:
    return int(stats[name]) if name in stats else None
