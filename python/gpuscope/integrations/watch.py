# SPDX-License-Identifier: Apache-2.0
"""Switching on and off, window by window, what frameworks can be asked to tell."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Say = Callable[[str], object]


@dataclass(frozen=True)
class Wanted:
    """What the user asked for.

    Attributes:
        operators: operators of frameworks and annotations of libraries.
        record_shapes: the shapes of operators' inputs.
        profile_memory: what the framework's allocator hands out and takes back.
        with_stack: where in the Python program operators, regions and launches are.
        with_flops: what floating-point operations are counted from.
        with_modules: the modules that operators run in.
        let_go_of_gpu: ends the recording of GPU work, for another profiler that needs CUPTI; whether there was any.
    """

    operators: bool = True
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    let_go_of_gpu: Callable[[], bool] = lambda: False


class Watch(Protocol):
    """One source. Made once a profiler; open and close take turns, each on the thread that runs the profiler."""

    def open(self) -> None:
        """A window begins."""

    def close(self) -> None:
        """It ends."""


# Modules of this package, each with a function ``watch(wanted, say) -> Watch | None``, in the order of opening.
_SOURCES: tuple[str, ...] = ("nvtx", "torch_profiler", "torch_operators", "torch_modules", "jax")


class Integrations:
    """All sources of one profiler. What fails in one is said, and neither stops the others nor the program."""

    def __init__(self, wanted: Wanted, say: Say) -> None:
        self._say = say
        self._watches: list[Watch] = []
        self._open: list[Watch] = []
        for source in _SOURCES:
            watch = importlib.import_module(f"gpuscope.integrations.{source}").watch(wanted, say)
            if watch is not None:
                self._watches.append(watch)

    def open(self) -> None:
        """A window begins."""
        for watch in self._watches:
            try:
                watch.open()
            except Exception as error:
                self._say(f"{_name(watch)} could not be recorded: {error!r}")
            else:
                self._open.append(watch)

    def close(self) -> None:
        """It ends."""
        while self._open:
            watch = self._open.pop()
            try:
                watch.close()
            except Exception as error:
                self._say(f"{_name(watch)} could not be ended: {error!r}")


def _name(watch: Watch) -> str:
    return type(watch).__module__.rpartition(".")[2]
