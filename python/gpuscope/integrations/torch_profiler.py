# SPDX-License-Identifier: Apache-2.0
"""Making way for a torch.profiler that is started inside a window: CUPTI serves one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gpuscope.integrations.watch import Say, Wanted, Watch
from gpuscope.late_imports import WhenImported

# The names under which torch.autograd.profiler calls torch's own profiler; both take the activities second.
_BEGINS = ("_prepare_profiler", "_enable_profiler")


def watch(wanted: Wanted, say: Say) -> Watch:
    """The watch for torch.profiler."""
    return TorchProfiler(wanted, say)


class TorchProfiler:
    """Gives CUPTI up when torch.profiler asks for GPU work: it would find none, and say nothing of it."""

    def __init__(self, wanted: Wanted, say: Say) -> None:
        self._wanted = wanted
        self._say = say
        self._waiting: WhenImported | None = None
        self._replaced: dict[str, tuple[Any, Any]] = {}

    def open(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._waiting = WhenImported("torch", self._begin)

    def close(self) -> None:
        """Ends."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        profiler = sys.modules.get("torch.autograd.profiler")
        for name, (theirs, ours) in self._replaced.items():
            if getattr(profiler, name, None) is ours:
                setattr(profiler, name, theirs)
        self._replaced = {}

    def _begin(self) -> None:
        profiler = sys.modules["torch.autograd.profiler"]
        for name in _BEGINS:
            theirs = getattr(profiler, name, None)
            if theirs is not None:
                self._replaced[name] = theirs, self._around(theirs)
                setattr(profiler, name, self._replaced[name][1])

    def _around(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def begin(config: Any, activities: Any = (), *rest: Any, **named: Any) -> Any:
            if any(getattr(activity, "name", "") == "CUDA" for activity in activities):
                self._make_way()
            return theirs(config, activities, *rest, **named)

        return begin

    def _make_way(self) -> None:
        try:
            if self._wanted.let_go_of_gpu():
                self._say("GPU work is missing from where torch.profiler was started inside: it needs CUPTI for itself")
        except Exception as error:  # torch.profiler starts all the same
            self._say(f"CUPTI could not be given up for torch.profiler: {error!r}")
