# SPDX-License-Identifier: Apache-2.0
"""Making way for torch.profiler while allocations are watched: CUPTI serves one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gpuscope import _core
from gpuscope.late_imports import WhenImported

# The names under which torch.autograd.profiler calls torch's own profiler; those that begin take the activities second.
_BEGINS = ("_prepare_profiler", "_enable_profiler")
_ENDS = ("_disable_profiler",)


class WayForTorch:
    """While open: gives CUPTI up when torch.profiler asks for GPU work, and takes it up again once that has ended.

    Where torch keeps CUPTI after a run of its profiler, the watch stays off, and `_core.allocation_watch` says why.
    """

    def __init__(self) -> None:
        self._open = False
        self._gave_way = False
        self._waiting: WhenImported | None = None
        self._replaced: dict[str, tuple[Any, Any]] = {}

    def open(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._open = True
        self._waiting = WhenImported("torch", self._begin)

    def close(self) -> None:
        """Ends. What others have wrapped meanwhile stays where it is and does nothing."""
        self._open = False
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        profiler = sys.modules.get("torch.autograd.profiler")
        for name, (theirs, ours) in list(self._replaced.items()):
            if getattr(profiler, name, None) is ours:
                setattr(profiler, name, theirs)
                del self._replaced[name]

    def _begin(self) -> None:
        profiler = sys.modules["torch.autograd.profiler"]
        for name in _BEGINS + _ENDS:
            theirs = getattr(profiler, name, None)
            if theirs is not None and name not in self._replaced:
                ours = self._before(theirs) if name in _BEGINS else self._after(theirs)
                self._replaced[name] = theirs, ours
                setattr(profiler, name, ours)

    def _before(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def begin(config: Any, activities: Any = (), *rest: Any, **named: Any) -> Any:
            if self._open and any(getattr(activity, "name", "") == "CUDA" for activity in activities):
                self._gave_way = True
                _core.pause_allocation_watch("torch.profiler runs and needs CUPTI for itself")
            try:
                return theirs(config, activities, *rest, **named)
            except BaseException:
                self._go_on()
                raise

        return begin

    def _after(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def end(*arguments: Any, **named: Any) -> Any:
            try:
                return theirs(*arguments, **named)
            finally:
                self._go_on()

        return end

    def _go_on(self) -> None:
        if self._gave_way:
            self._gave_way = False
            _core.resume_allocation_watch()
