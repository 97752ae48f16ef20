# SPDX-License-Identifier: Apache-2.0
"""RAPIDS Memory Manager: the current resource of a device with all its layers. Does not import RMM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gpuscope import _core
from gpuscope.frameworks.pools import Pool

_DEEPEST = 16  # layers


def pools(device: int) -> tuple[Pool, ...]:
    """Pools of RMM's current resource, on a device that is in use.

    A pool layer reports the bytes held, a statistics or tracking adaptor the bytes in use. A resource with neither
    layer holds no memory and has no figures.
    """
    resources = getattr(sys.modules.get("rmm"), "mr", None)
    if resources is None:
        return ()
    allocated = reserved = peak = None
    shared = False
    for layer in _layers(resources.get_per_device_resource(device)):
        if allocated is None and reserved is None:  # an adaptor below a pool counts the pool itself
            allocated, peak = _in_use(layer)
        if reserved is None and hasattr(layer, "pool_size"):
            reserved = int(layer.pool_size())
        if hasattr(layer, "pool_handle"):
            shared = int(layer.pool_handle()) in {facts["pool"] for facts in _core.memory_pools(device)}
    if reserved is None:
        if allocated is None:
            return ()
        return (Pool("rmm", device, allocated, allocated, peak, None if shared else peak, in_cuda_pool=shared),)
    if allocated is not None:
        return (Pool("rmm", device, min(allocated, reserved), reserved, peak),)
    note = "its memory in use is unknown: add rmm.mr.StatisticsResourceAdaptor to count it"
    return (Pool("rmm", device, reserved, reserved, note=note),)


def _layers(resource: Any) -> Iterator[Any]:
    for _ in range(_DEEPEST):
        if resource is None:
            return
        yield resource
        resource = getattr(resource, "upstream_mr", None)


def _in_use(layer: Any) -> tuple[int | None, int | None]:
    """Current and peak bytes in use, as an adaptor counts them."""
    counts = getattr(layer, "allocation_counts", None)
    if counts is not None:
        return _count(counts, "current_bytes"), _count(counts, "peak_bytes")
    if hasattr(layer, "get_allocated_bytes"):
        return int(layer.get_allocated_bytes()), None
    return None, None


def _count(counts: Any, name: str) -> int | None:
    # A dict in older versions of RMM, an object in newer ones.
    value = counts.get(name) if isinstance(counts, dict) else getattr(counts, name, None)
    return None if value is None else int(value)
