# SPDX-License-Identifier: Apache-2.0
"""Making way for torch.profiler while allocations are watched: CUPTI serves one at a time."""

from __future__ import annotations

from typing import Any

from gpuscope import _core
from gpuscope.late_imports import WhenImported
from gpuscope.memory.reports import torch_entrances


class WayForTorch:
    """While open: gives CUPTI up when torch.profiler asks for GPU work, and takes it up again once that has ended.

    Where torch keeps CUPTI after a run of its profiler, the watch stays off, and `_core.allocation_watch` says why.
    """

    def __init__(self) -> None:
        self._gave_way = False
        self._waiting: WhenImported | None = None
        self._listener = torch_entrances.Listener(prepares=self._prepares, ended=self._ended)

    def open(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._waiting = WhenImported("torch", self._begin)

    def close(self) -> None:
        """Ends."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        torch_entrances.remove(self._listener)

    def _begin(self) -> None:
        torch_entrances.add(self._listener)

    def _prepares(self, activities: Any) -> None:
        if not self._gave_way and any(getattr(activity, "name", "") == "CUDA" for activity in activities):
            self._gave_way = True
            _core.pause_allocation_watch("torch.profiler runs and needs CUPTI for itself")

    def _ended(self) -> None:
        if self._gave_way:
            self._gave_way = False
            _core.resume_allocation_watch()
