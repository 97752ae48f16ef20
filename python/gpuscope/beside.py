# SPDX-License-Identifier: Apache-2.0
"""What threads need: locks that survive a fork, their start, and calls beside each other."""

from __future__ import annotations

import functools
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from gpuscope.errors import NotAvailable

T = TypeVar("T")
R = TypeVar("R")

if TYPE_CHECKING:
    from concurrent.futures import Future

if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - the name of its base
        """Without the lock of Python before 3.12, which a forked child may find held for ever."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value


_locks: set[ref[threading.RLock]] = set()


def shared_lock() -> threading.RLock:
    """Returns a re-entrant lock that a forked child finds free, unless the forking thread itself holds it.

    Another thread that holds it exists in the parent only, and would never release it in the child.
    """
    lock = threading.RLock()
    _locks.add(ref(lock, _locks.discard))
    return lock


def _free_locks() -> None:
    for known in tuple(_locks):
        if (lock := known()) is None:
            continue
        if lock.acquire(blocking=False):
            lock.release()
        else:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # what threading and logging use for theirs


os.register_at_fork(after_in_child=_free_locks)


def start_thread(start: Callable[[], object], what: str) -> None:
    """Calls what starts a thread.

    Raises:
        NotAvailable: the system gives this process no further thread; `what` is not available without it.
    """
    try:
        start()
    except RuntimeError as error:
        raise NotAvailable(
            f"{what} is not available: the system gives this process no further thread; raise the limit of processes "
            "(ulimit -u, the container's pids.max) or of memory (ulimit -v)"
        ) from error


class Workers:
    """At most so many threads, which end with the context, once what was begun is done; an error waits for none.

    For functions that spend their time without the GIL, in arrays and in C++.

    What cannot be begun on one is done at once: while the interpreter ends, as in functions that atexit calls, Python
    3.12 starts none. ThreadPoolExecutor raises there, and so does its import; before, a thread that still lets go of
    objects then is torn out of the code of others, which ends the process.
    """

    def __init__(self, count: int) -> None:
        from concurrent.futures import Future  # with logging, which not every program needs

        self._made_by = Future
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
        made: Future[R] = self._made_by()

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
        # Each takes some 70 MB of address space, and Python waits for ever for one that begins and finds none.
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            return
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
