# SPDX-License-Identifier: Apache-2.0
"""What frameworks report of themselves while a window is recorded: operators, modules, stacks, annotations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")

Note = Callable[[str], object]
"""Takes one sentence that belongs into the audit."""


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        operators: operators of frameworks and annotations of libraries.
        record_shapes: the shapes of operators' inputs.
        arguments: with it, numbers among the inputs too, and what libraries give along with ranges of their own.
        profile_memory: what the framework's allocator hands out and takes back.
        with_stack: where in the Python program operators, regions and launches are.
        python_functions: with it, every call of a Python function, or else of those that wait for files and GPUs alone.
        garbage: with it, garbage collections beside the calls of functions.
        with_flops: what floating-point operations are counted from.
        with_modules: the modules that operators run in.
        execution_trace: an execution trace of torch's is recorded beside, and regions and numbers link to it.
        overload_names: which of the operators of one name each is.
        one_thread: regions and operators of this thread alone, and of those that torch has work for it.
        release_cupti: ends the recording of GPU work, for another profiler that needs CUPTI; whether there was any.
        sees_gpu: whether there is a GPU; where there is none, only garbage collections are recorded of the calls that
            `python_functions` chooses.
    """

    operators: bool = True
    record_shapes: bool = False
    arguments: bool = True
    profile_memory: bool = False
    with_stack: bool = False
    python_functions: bool = True
    garbage: bool = True
    with_flops: bool = False
    with_modules: bool = False
    execution_trace: bool = False
    overload_names: bool = False
    one_thread: bool = False
    release_cupti: Callable[[], bool] = lambda: False
    sees_gpu: Callable[[], bool] = lambda: True


class Observer(Protocol):
    """One source. Made once a profiler; start and stop take turns, each on the thread that runs the profiler.

    Stop may also follow a start or a stop that an exception ended anywhere, and be called by another thread at the
    program's end.
    """

    def start(self) -> Callable[[], None] | None:
        """A window is about to open. Returns what is to be called as soon as it is open, if anything."""

    def stop(self) -> None:
        """The window is about to close."""


# Modules, each with a function ``observe(options, note) -> Observer | None``, in the order of starting.
_MODULES: tuple[str, ...] = (
    "gpuscope.frameworks.nvtx",
    "gpuscope.frameworks.torch_profiler",
    "gpuscope.frameworks.torch_operators",
    "gpuscope.frameworks.torch_modules",
    "gpuscope.frameworks.jax",
    "gpuscope.frameworks.python_functions",  # last: what the others do to start and stop is none of the program's
)


class Observers:
    """All observers of one profiler. What fails in one is noted, and stops neither the others nor the program."""

    def __init__(self, options: Options, note: Note) -> None:
        self._note = note
        made = (importlib.import_module(name).observe(options, note) for name in _MODULES)
        self._observers: list[Observer] = [observer for observer in made if observer is not None]
        self._started: list[Observer] = []
        self._when_open: Callable[[], None] | None = None  # of the last observer

    @property
    def started(self) -> bool:
        """Whether there is anything to stop."""
        return bool(self._started)

    def start(self) -> None:
        """A window is about to open."""
        self.stop()  # what a start that was interrupted left
        for observer in self._observers:
            self._started.append(observer)
            self._when_open = self._tried(observer.start)

    def open(self) -> None:
        """The window is open; further calls do nothing."""
        if self._when_open is not None:
            self._tried(self._when_open)
            self._when_open = None

    def _tried(self, start: Callable[[], _Result]) -> _Result | None:
        """What it returns; None if it fails, which ends the last observer."""
        try:
            return start()
        except Exception as error:
            self._note(f"{_name(self._started[-1])} could not be recorded: {error!r}")
            self._stop_last()
        return None

    def stop(self) -> None:
        """The window is about to close. An observer whose end is interrupted is ended again by the next call."""
        self._when_open = None
        while self._started:
            self._stop_last()

    def _stop_last(self) -> None:
        try:
            self._started[-1].stop()
        except Exception as error:
            self._note(f"{_name(self._started[-1])} could not be ended: {error!r}")
        self._started.pop()


def _name(observer: Observer) -> str:
    return type(observer).__module__.rpartition(".")[2]
