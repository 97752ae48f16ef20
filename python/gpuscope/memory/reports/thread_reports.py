# SPDX-License-Identifier: Apache-2.0
"""What the frameworks tell of one thread's allocations, from their import on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Protocol

from gpuscope.late_imports import WhenImported
from gpuscope.memory.reports.cupy_reports import CupyReports
from gpuscope.memory.reports.torch_reports import TorchReports

Say = Callable[[str], None]


class _Reports(Protocol):
    def end(self) -> None: ...


class ThreadReports:
    """Has the frameworks report the allocations of the thread that makes this to the core, until `end`.

    A framework that is imported later begins then, when it is this thread that imports it.
    """

    def __init__(self, say: Say) -> None:
        self.thread = threading.get_ident()
        self._say = say
        self._reports: list[_Reports] = []
        self._waiting = [WhenImported("torch", self._begin_torch), WhenImported("cupy", self._begin_cupy)]

    def end(self) -> None:
        """Ends them, on any thread."""
        for waiting in self._waiting:
            waiting.cancel()
        while self._reports:
            reports = self._reports.pop()
            try:
                reports.end()
            except Exception as error:
                self._say(f"{type(reports).__name__} could not be ended: {error!r}")

    def _begin_torch(self) -> None:
        self._begin("torch", self._torch)

    def _begin_cupy(self) -> None:
        self._begin("CuPy", CupyReports)

    def _begin(self, framework: str, begin: Callable[[], _Reports]) -> None:
        if threading.get_ident() != self.thread:
            self._say(f"{framework}'s allocations are not recorded: another thread imported it")
            return
        try:
            self._reports.append(begin())
        except Exception as error:  # the program, or an import in it, goes on
            self._say(f"{framework}'s allocations are not recorded: {error!r}")

    def _torch(self) -> TorchReports:
        reports = TorchReports(self._say)
        if reports.why:
            self._say(f"torch's allocations are not recorded: {reports.why}")
        elif (backend := _cuda_allocator()) != "native":
            self._say(f"torch's allocations on GPUs are not recorded: its allocator {backend!r} does not report them")
        return reports


def _cuda_allocator() -> str:
    """The allocator that this torch uses on GPUs."""
    try:
        return str(sys.modules["torch"].cuda.get_allocator_backend())
    except Exception:  # a build without CUDA
        return "native"
