# SPDX-License-Identifier: Apache-2.0
"""Hearing of it when torch.profiler begins and ends, on whatever thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuscope.late_imports import WhenImported

# The names under which torch.autograd.profiler calls torch's own profiler; the first two take the activities second.
_PREPARE = "_prepare_profiler"
_ENABLE = "_enable_profiler"
_DISABLE = "_disable_profiler"


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class Listener:
    """What is called, on the thread that uses torch.profiler. None of it may raise.

    Attributes:
        prepares: torch.profiler is about to get ready, or to begin, for these activities.
        begins: it is about to begin.
        ended: it has ended, or could not begin.
    """

    prepares: Callable[[Any], None] = lambda activities: None
    begins: Callable[[], None] = _nothing
    ended: Callable[[], None] = _nothing


class _Entrances:
    """Stands before torch's functions while anybody listens."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._replaced: dict[str, tuple[Any, Any]] = {}

    def add(self, listener: Listener) -> None:
        if listener not in self._listeners:
            self._listeners += (listener,)
        if not self._replaced:
            self._replace()

    def remove(self, listener: Listener) -> None:
        self._listeners = tuple(other for other in self._listeners if other is not listener)
        if not self._listeners:
            profiler = sys.modules.get("torch.autograd.profiler")
            for name, (theirs, ours) in self._replaced.items():
                if getattr(profiler, name, None) is ours:
                    setattr(profiler, name, theirs)
            self._replaced = {}

    def _replace(self) -> None:
        profiler = sys.modules["torch.autograd.profiler"]
        for name, around in ((_PREPARE, self._prepare), (_ENABLE, self._enable), (_DISABLE, self._disable)):
            theirs = getattr(profiler, name, None)
            if theirs is not None:
                self._replaced[name] = theirs, around(theirs)
                setattr(profiler, name, self._replaced[name][1])

    def _prepare(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(config: Any, activities: Any = (), *rest: Any, **named: Any) -> Any:
            for listener in self._listeners:
                listener.prepares(activities)
            return theirs(config, activities, *rest, **named)

        return prepare

    def _enable(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def enable(config: Any, activities: Any = (), *rest: Any, **named: Any) -> Any:
            for listener in self._listeners:
                listener.prepares(activities)
                listener.begins()
            try:
                return theirs(config, activities, *rest, **named)
            except BaseException:
                self._ended()
                raise

        return enable

    def _disable(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def disable(*args: Any, **kwargs: Any) -> Any:
            try:
                return theirs(*args, **kwargs)
            finally:
                self._ended()

        return disable

    def _ended(self) -> None:
        for listener in self._listeners:
            listener.ended()


_entrances = _Entrances()
add = _entrances.add
remove = _entrances.remove


class Hearing:
    """Has a listener called while this is open, from torch's import on."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._waiting: WhenImported | None = None

    def open(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._waiting = WhenImported("torch", lambda: add(self._listener))

    def close(self) -> None:
        """Ends."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        remove(self._listener)


def want_gpu(activities: Any) -> bool:
    """Whether torch.profiler needs CUPTI for what it is asked to record."""
    return any(getattr(activity, "name", "") == "CUDA" for activity in activities)
