# SPDX-License-Identifier: Apache-2.0
"""Observers of frameworks during a recording window: operators, modules, stacks, annotations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")

Note = Callable[[str], object]
"""Adds a sentence to the audit."""


@dataclass(frozen=True)
class ObserverOptions:
    """The user's choices: what to record.

    Attributes:
        operators: operators of frameworks and annotations of libraries.
        record_shapes: shapes of operators' inputs.
        arguments: with `record_shapes`, also numeric inputs, and arguments of libraries' own ranges.
        profile_memory: allocations and releases of the framework's allocator.
        with_stack: Python stacks of operators, regions and launches.
        python_functions: with `with_stack`, all calls of Python functions. If False, only those that wait for files
            or GPUs.
        garbage: with `with_stack`, also garbage collections.
        with_flops: the data for counting floating-point operations.
        with_modules: the modules of operators.
        execution_trace: link regions to an execution trace of torch, recorded at the same time.
        overload_names: overload names of operators.
        one_thread: only regions and operators of this thread, and of torch's threads that work for it.
        release_cupti: stops the recording of GPU work, because another profiler needs CUPTI. Returns whether GPU work
            was recorded.
        sees_gpu: returns whether there is a GPU. Without one, and without `python_functions`, only garbage collections
            are recorded.
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
    """One source of events, made once per profiler. `start` and `stop` alternate, on the profiler's thread.

    `stop` may also follow a `start` or `stop` that an exception interrupted. At the program's end it may be called on
    another thread.
    """

    def start(self) -> Callable[[], None] | None:
        """Called before a window opens. May return a function to call when it is open."""

    def stop(self) -> None:
        """Called before the window closes."""


# Modules, each with a function ``observe(options, note) -> Observer | None``, in the order of starting.
_MODULES: tuple[str, ...] = (
    "gpuscope.frameworks.nvtx",
    "gpuscope.frameworks.torch_profiler",
    "gpuscope.frameworks.torch_operators",
    "gpuscope.frameworks.torch_modules",
    "gpuscope.frameworks.jax",
    "gpuscope.frameworks.python_functions",  # last, so that it does not record the start and stop of the others
)


class Observers:
    """All observers of one profiler. A failure in one is noted, and stops neither the others nor the program."""

    def __init__(self, options: ObserverOptions, note: Note) -> None:
        self._note = note
        made = (importlib.import_module(name).observe(options, note) for name in _MODULES)
        self._observers: list[Observer] = [observer for observer in made if observer is not None]
        self._started: list[Observer] = []
        self._when_open: Callable[[], None] | None = None  # of the last observer

    @property
    def started(self) -> bool:
        """Whether an observer is started."""
        return bool(self._started)

    def start(self) -> None:
        """Starts all observers, before a window opens."""
        self.stop()  # observers of an interrupted start
        for observer in self._observers:
            self._started.append(observer)
            self._when_open = self._tried(observer.start)

    def open(self) -> None:
        """Called when the window is open. Further calls do nothing."""
        if self._when_open is not None:
            self._tried(self._when_open)
            self._when_open = None

    def _tried(self, start: Callable[[], _Result]) -> _Result | None:
        """Returns the result; None if it fails, which stops the last observer."""
        try:
            return start()
        except Exception as error:
            self._note(f"{_name(self._started[-1])} could not be recorded: {error!r}")
            self._stop_last()
        return None

    def stop(self) -> None:
        """Stops all observers, before the window closes. An interrupted stop is repeated by the next call."""
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
