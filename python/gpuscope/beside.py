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


class Workers:
    """At most so many threads, which end with the context, once what was begun is done; an error waits for none.

    What cannot be begun on one is done at once: while the interpreter ends, as in functions that atexit calls, Python
    3.12 starts none. ThreadPoolExecutor raises there, and so does its import; before, a thread that still lets go of
    objects then is torn out of the code of others, which ends the process.
    """

    def __init__(self, count: int) -> None:
        self._most = count
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for _ in self._threads:
            self._calls.put(None)
        if kind is None:
            for thread in self._threads:
                thread.join()

    def begin(self, function: Callable[..., R], *arguments: object) -> Callable[[], R]:
        """Begins a call; what it gives, or raises, is had by calling the answer, which waits for it."""
        made: Future[R] = Future()

        def call() -> None:
            try:
                made.set_result(function(*arguments))
            except BaseException as error:
                made.set_exception(error)

        if len(self._threads) < self._most:
            self._start()
        if self._threads:
            self._calls.put(call)
        else:
            call()
        return made.result

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="gpuscope worker")
        try:
            thread.start()
        except RuntimeError:
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def for_each(function: Callable[[T], R], values: Iterable[T], workers: int = 2) -> list[R]:
    """What a function gives for each of the values, in order, at most so many of them beside each other."""
    with Workers(workers) as beside:
        begun = [beside.begin(function, value) for value in values]
        return [result() for result in begun]
