# SPDX-License-Identifier: Apache-2.0
"""Releasing CUPTI for a torch.profiler that is started inside a window: CUPTI serves one at a time."""

from __future__ import annotations

from typing import Any

from gpuscope.frameworks.observers import Note, Observer, Options
from gpuscope.memory.reports import torch_entrances


def observe(options: Options, note: Note) -> Observer:
    """The observer of torch.profiler."""
    return TorchProfiler(options, note)


class TorchProfiler:
    """Releases CUPTI when torch.profiler asks for GPU work: it would find none, and say nothing of it."""

    def __init__(self, options: Options, note: Note) -> None:
        self._options = options
        self._note = note
        self._entrances = torch_entrances.Hearing(torch_entrances.Listener(prepares=self._prepares))

    def start(self) -> None:
        """A window begins."""
        self._entrances.open()

    def stop(self) -> None:
        """It ends."""
        self._entrances.close()

    def _prepares(self, activities: Any) -> None:
        if not torch_entrances.want_gpu(activities):
            return
        try:
            if self._options.release_cupti():
                self._note(
                    "GPU work is missing from where torch.profiler was started inside: it needs CUPTI for itself"
                )
        except Exception as error:  # torch.profiler starts all the same
            self._note(f"CUPTI could not be given up for torch.profiler: {error!r}")
