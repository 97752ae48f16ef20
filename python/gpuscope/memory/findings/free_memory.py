# SPDX-License-Identifier: Apache-2.0
"""How much memory a GPU has left for a program."""

from __future__ import annotations

import sys

import numpy as np

from gpuscope import _core
from gpuscope.memory.events import MemoryEvents


def free_memory(device: int, events: MemoryEvents) -> int | None:
    """Bytes that the driver can still hand out, and what the program's allocators hold without using it.

    Args:
        device: ordinal of the GPU; below 0 is no GPU.
        events: the last ones say what is held; the allocators' own figures.

    Returns:
        None where it cannot be told.
    """
    if device < 0:
        return None
    free = _from_nvml(device)
    if free is None:
        free = _from_torch(device)
    return None if free is None else free + _cached(device, events)


def _from_nvml(device: int) -> int | None:
    try:
        free = _core.process_memory(device)["free"]
    except Exception:
        return None  # no such GPU
    return None if free is None else int(free)


def _from_torch(device: int) -> int | None:
    torch = sys.modules.get("torch")
    try:
        return int(torch.cuda.mem_get_info(device)[0]) if torch and torch.cuda.is_initialized() else None
    except Exception:
        return None


def _cached(device: int, events: MemoryEvents) -> int:
    cached = 0
    for source in np.unique(events.source[events.device == device]):
        row = np.flatnonzero((events.device == device) & (events.source == source))[-1]
        cached += max(0, int(events.reserved[row]) - int(events.allocated[row]))
    return cached
