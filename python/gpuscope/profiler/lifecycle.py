# SPDX-License-Identifier: Apache-2.0
"""The running profilers of a process: `step` reaches them, its exit delivers them, a fork leaves them to the parent."""

from __future__ import annotations

import atexit
import os
import sys
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
        """Forgets a recording that the parent process has not ended, touching nothing of it."""


_running: list[Running] = []
_known: set[ref[Running]] = set()  # also those that another thread stops as the process forks
_hooked = False
_process = 0  # the one that had the core open the driver last: a forked child leaves that alone


def watch(profiler: Running) -> None:
    """Stops `profiler` at exit, and makes forked children abandon it, until `forget`."""
    global _hooked
    if not _hooked:
        atexit.register(_stop_all)
        os.register_at_fork(after_in_child=_abandon_all)
        _hooked = True
    _running.append(profiler)
    _known.add(ref(profiler, _known.discard))


def keep_contexts_at_exit() -> None:
    """Has the exit of this process call `keep_contexts_from_kineto`, once the core has the driver open."""
    global _process
    _process = os.getpid()


def forget(profiler: Running) -> None:
    """Ends `watch`."""
    if profiler in _running:
        _running.remove(profiler)


def step() -> None:
    """Says that the next step of the loop begins, to the profiler that runs; without one it does nothing.

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
