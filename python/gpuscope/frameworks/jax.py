# SPDX-License-Identifier: Apache-2.0
"""JAX: its annotations as ranges, and its allocators' figures. Neither imports JAX nor makes it start a backend.

Annotations (TraceAnnotation, StepTraceAnnotation and annotate_function) go to XLA's own profiler, not to NVTX, on every
platform. What XLA sends to NVTX itself on GPUs (modules and thunks, in the domain "TSL", as soon as a tool is attached)
arrives without this.
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
    from gpuscope.frameworks.observers import Note, Options

_REGION = "_gpuscope_region"
_METHODS = ("__init__", "__enter__", "__exit__")
_GPU = ("gpu", "cuda")


def observe(options: Options, note: Note) -> _AnnotationObserver | None:
    """Records JAX's annotations when annotations of libraries are asked for."""
    return _AnnotationObserver() if options.operators else None


class _AnnotationObserver:
    """While open, annotations that are made and entered are ranges as well."""

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
            # Without the number of a step, as XLA's own traces name it: steps are turns of one region.
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
    """What JAX holds on a device, once it has started there."""
    return tuple(_pool(found, device) for found in _devices() if getattr(found, "local_hardware_id", None) == device)


def _devices() -> Iterator[Any]:
    # JAX's public functions that list its devices start a backend.
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    for client in list((backends or {}).values()):
        for device in client.local_devices():
            if getattr(device, "platform", "") in _GPU:
                yield device


def memory_stat(device: int | None, figure: str) -> int | None:
    """One figure of JAX's allocator on a device; None where JAX has not started a backend, or does not count it."""
    jax = sys.modules.get("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    if jax is None or bridge is None or not getattr(bridge, "_backends", None):
        return None
    try:
        return _number(jax.local_devices()[device or 0].memory_stats() or {}, figure)
    except Exception:  # no such device, or one that has no figures; JAX's errors have no common root
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
        note = "allocated from the driver's pool (cuda_async), which holds what is cached"
        return Pool("jax", device, allocated, allocated, peak, None, note=note, in_cuda_pool=True)
    reserved = max(allocated, _number(stats, "pool_bytes") or _number(stats, "bytes_reserved") or 0)
    # What may yet be added to the pool is no part of the largest free block.
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
