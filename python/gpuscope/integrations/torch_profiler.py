# SPDX-License-Identifier: Apache-2.0
"""Making way for a torch.profiler that is started inside a window: CUPTI serves one at a time."""

from __future__ import annotations

from typing import Any

from gpuscope.integrations.watch import Say, Wanted, Watch
from gpuscope.late_imports import WhenImported
from gpuscope.memory.reports import torch_entrances


def watch(wanted: Wanted, say: Say) -> Watch:
    """The watch for torch.profiler."""
    return TorchProfiler(wanted, say)


class TorchProfiler:
    """Gives CUPTI up when torch.profiler asks for GPU work: it would find none, and say nothing of it."""

    def __init__(self, wanted: Wanted, say: Say) -> None:
        self._wanted = wanted
        self._say = say
        self._waiting: WhenImported | None = None
        self._listener = torch_entrances.Listener(prepares=self._prepares)

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
        if any(getattr(activity, "name", "") == "CUDA" for activity in activities):
            self._make_way()

    def _make_way(self) -> None:
        try:
            if self._wanted.let_go_of_gpu():
                self._say("GPU work is missing from where torch.profiler was started inside: it needs CUPTI for itself")
        except Exception as error:  # torch.profiler starts all the same
            self._say(f"CUPTI could not be given up for torch.profiler: {error!r}")
