# SPDX-License-Identifier: Apache-2.0
"""Making way for torch.profiler while allocations are watched: CUPTI serves one at a time."""

from __future__ import annotations

from typing import Any

from gpuscope import _core
from gpuscope.memory.reports import torch_entrances


class WayForTorch(torch_entrances.Hearing):
    """While open: gives CUPTI up when torch.profiler asks for GPU work, and takes it up again once that has ended.

    Where torch keeps CUPTI after a run of its profiler, the watch stays off, and `_core.allocation_watch` says why.
    """

    def __init__(self) -> None:
        super().__init__(torch_entrances.Listener(prepares=self._prepares, ended=self._ended))
        self._gave_way = False

    def _prepares(self, activities: Any) -> None:
        if not self._gave_way and torch_entrances.want_gpu(activities):
            self._gave_way = True
            _core.pause_allocation_watch("torch.profiler runs and needs CUPTI for itself")

    def _ended(self) -> None:
        if self._gave_way:
            self._gave_way = False
            _core.resume_allocation_watch()
