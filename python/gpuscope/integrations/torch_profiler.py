# SPDX-License-Identifier: Apache-2.0
"""Making way for a torch.profiler that is started inside a window: CUPTI serves one at a time."""

from __future__ import annotations

from typing import Any

from gpuscope.integrations.watch import Say, Wanted, Watch
from gpuscope.memory.reports import torch_entrances


def watch(wanted: Wanted, say: Say) -> Watch:
    """The watch for torch.profiler."""
    return TorchProfiler(wanted, say)


class TorchProfiler(torch_entrances.Hearing):
    """Gives CUPTI up when torch.profiler asks for GPU work: it would find none, and say nothing of it."""

    def __init__(self, wanted: Wanted, say: Say) -> None:
        super().__init__(torch_entrances.Listener(prepares=self._prepares))
        self._wanted = wanted
        self._say = say

    def _prepares(self, activities: Any) -> None:
        if torch_entrances.want_gpu(activities):
            self._make_way()

    def _make_way(self) -> None:
        try:
            if self._wanted.let_go_of_gpu():
                self._say("GPU work is missing from where torch.profiler was started inside: it needs CUPTI for itself")
        except Exception as error:  # torch.profiler starts all the same
            self._say(f"CUPTI could not be given up for torch.profiler: {error!r}")
