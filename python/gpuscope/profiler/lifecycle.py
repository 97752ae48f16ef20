# SPDX-License-Identifier: Apache-2.0
"""Running profilers at the ends of a process: its exit delivers them, a fork leaves them with the parent."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Protocol


class Running(Protocol):
    """A profiler between start and stop."""

    def step(self) -> None:
        """Begins the next step."""

    def stop(self) -> None:
        """Ends the recording and hands it over."""

    def abandon(self) -> None:
        """Lets go of a recording that belongs to the parent process, touching nothing of it."""


_running: list[Running] = []
_hooked = False


def watch(profiler: Running) -> None:
    """Sees to `profiler` at exit and in forked children until `forget`."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(_stop_all)
        os.register_at_fork(after_in_child=_abandon_all)
    _running.append(profiler)


def forget(profiler: Running) -> None:
    """Ends `watch`."""
    if profiler in _running:
        _running.remove(profiler)


def running() -> tuple[Running, ...]:
    """The profilers of this process between start and stop."""
    return tuple(_running)


def _stop_all() -> None:
    for profiler in _running[:]:
        try:
            profiler.stop()
        except Exception:  # the next one is delivered all the same
            sys.excepthook(*sys.exc_info())


def _abandon_all() -> None:
    for profiler in _running:
        profiler.abandon()
    _running.clear()
