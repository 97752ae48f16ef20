# SPDX-License-Identifier: Apache-2.0
"""Calls beside each other, of functions that spend their time without the GIL, in arrays and in C++."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# More threads for the rules of a diagnosis gained nothing on a machine of 16 cores: parts of each hold the GIL.
_WORKERS = 2


class Workers:
    """At most so many threads, which end once what was begun in the context is done; nobody waits for that at its end.

    What cannot be begun on one is done at once: while the interpreter ends, as in functions that atexit calls, none can
    be started. ThreadPoolExecutor raises there, and so does its import.
    """

    def __init__(self, count: int) -> None:
        self._most, self._count = count, 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(self._count):
            self._calls.put(None)

    def begin(self, function: Callable[..., R], *arguments: object) -> Callable[[], R]:
        """Begins a call; what it gives, or raises, is had by calling the answer, which waits for it."""
        made: Future[R] = Future()

        def call() -> None:
            try:
                made.set_result(function(*arguments))
            except BaseException as error:
                made.set_exception(error)

        if self._count < self._most:
            self._start()
        if self._count:
            self._calls.put(call)
        else:
            call()
        return made.result

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name="gpuscope diagnosis").start()
        except RuntimeError:
            return
        self._count += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def for_each(function: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """What a function gives for each of the values, in order, some of them beside each other."""
    with Workers(_WORKERS) as workers:
        begun = [workers.begin(function, value) for value in values]
        return [result() for result in begun]
