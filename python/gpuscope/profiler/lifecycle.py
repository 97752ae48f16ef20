# SPDX-License-Identifier: Apache-2.0
"""The running profilers of a process. Exit stops them; a forked child abandons them."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Protocol
from weakref import ref

from gpuscope.frameworks.torch_compile import leave_out_of_graphs
from gpuscope.frameworks.torch_profiler import keep_contexts_from_kineto
from gpuscope.monitor.programs import status_page


class Running(Protocol):
    """A profiler between start and stop."""

    def step(self) -> None:
        """Begins the next step."""

    def stop(self) -> None:
        """Ends the recording and hands it over."""

    def abandon(self) -> None:
        """Forgets the parent's open recording without touching it."""


begins: list[Callable[[Running], object]] = []
"""Called with each profiler before it begins, for a watch, whose windows give way to it."""

_running: list[Running] = []
_known: set[ref[Running]] = set()  # includes profilers that another thread stops during a fork
_hooked = False
_process = 0  # id of the process whose core opened the driver last


def watch(profiler: Running) -> None:
    """Stops `profiler` at exit, and makes forked children abandon it, until `forget`."""
    global _hooked
    if not _hooked:
        atexit.register(_stop_all)
        os.register_at_fork(after_in_child=_abandon_all)
        _hooked = True
    for call in tuple(begins):
        call(profiler)
    _running.append(profiler)
    _known.add(ref(profiler, _known.discard))


def keep_contexts_at_exit() -> None:
    """Calls `keep_contexts_from_kineto` when this process exits. For use once the core has opened the driver."""
    global _process
    _process = os.getpid()


def forget(profiler: Running) -> None:
    """Ends `watch`."""
    if profiler in _running:
        _running.remove(profiler)


def running() -> tuple[Running, ...]:
    """The profilers that run."""
    return tuple(_running)


def step() -> None:
    """Marks the start of the next step in each running profiler and watch; without one it does nothing.

    For programs profiled from outside, as by ``gpuscope run --schedule``: call it once at the end of every step.
    """
    for profiler in tuple(_running):
        profiler.step()


leave_out_of_graphs("step", step)


def _stop_all() -> None:
    for profiler in _running[:]:
        try:
            profiler.stop()
        except BaseException:  # the next one is delivered all the same
            sys.excepthook(*sys.exc_info())
    status_page.close()
    if os.getpid() == _process:
        keep_contexts_from_kineto()


def _abandon_all() -> None:
    for known in tuple(_known):
        if (profiler := known()) is not None:
            profiler.abandon()
    _running.clear()
