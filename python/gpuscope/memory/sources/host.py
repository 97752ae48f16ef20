# SPDX-License-Identifier: Apache-2.0
"""The memory of the host that this process uses."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope import _core
from gpuscope.errors import GpuscopeError
from gpuscope.memory.reports.watched import watched_pinned
from gpuscope.memory.resident import highest_resident_bytes, peak_resident, resident
from gpuscope.memory.sources import cupy, torch

_NOBODY = "no library here tells it, and allocations are not watched: gpuscope.record_memory_history() has them watched"


@dataclass(frozen=True)
class HostMemory:
    """Bytes of the host's memory.

    Attributes:
        resident: in physical memory now.
        peak_resident: the most that ever was.
        pinned: page-locked for the GPU, as far as known; None where nobody tells.
        pinned_why: what is not counted in `pinned`, or why it is None.
    """

    resident: int
    peak_resident: int
    pinned: int | None
    pinned_why: str = ""


def host_memory() -> HostMemory:
    """What this process uses now. Takes some 0.1 ms; starts nothing."""
    now, peak = _resident()
    pinned, why = _pinned()
    return HostMemory(now, peak, pinned, why)


def _resident() -> tuple[int, int]:
    peak = peak_resident()
    if peak is None:  # not every container's /proc has it
        peak = highest_resident_bytes()
    now = resident()
    now = peak if now is None else now
    return now, max(now, peak)


def _pinned() -> tuple[int | None, str]:
    try:
        held = torch.pinned_bytes()
    except Exception:
        held = None
    seen = watched_pinned()
    if seen is not None:
        pinned, from_start = seen
        # Torch may have pinned before the watch began.
        return max(pinned, held or 0), "" if from_start else "without what was pinned before the watch began"
    if held is not None:
        others = ", CuPy's pinned pool among it" if cupy.imported() is not None else ""
        return held, f"torch's alone: what other libraries pinned is not known{others}"
    return (None, _NOBODY) if _uses_gpu() else (0, "")


def _uses_gpu() -> bool:
    try:
        return bool(_core.devices_in_use())
    except GpuscopeError:
        return False
