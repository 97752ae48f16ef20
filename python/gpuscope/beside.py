# SPDX-License-Identifier: Apache-2.0
"""Locks that survive a fork, starting threads, and calls on a thread pool."""

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
        """Without the lock of Python before 3.12, which may stay locked for ever in a forked child."""

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
    """Calls `start`, which starts a thread.

    Raises:
        NotAvailable: the system gives this process no further thread, so that `what` is not available.
    """
    try:
        start()
    except RuntimeError as error:
        raise NotAvailable(
            f"{what} is not available: the system gives this process no further thread; raise the limit of processes "
            "(ulimit -u, the container's pids.max) or of memory (ulimit -v)"
        ) from error


class Workers:
    """A pool of at most `count` threads. Leaving the context waits for all calls, unless an error leaves it.

    For functions that spend their time without the GIL, in arrays and in C++. If no thread can be started, calls run
    at once on the caller's thread: while the interpreter ends, as in functions of atexit, Python 3.12 starts none.
    ThreadPoolExecutor and its import raise there.
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
        """Begins a call and returns a function that waits for it, and returns its result or raises its error."""
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
        # A thread needs some 70 MB of address space; without them Python waits for ever for its start.
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
    """Results of a function for each of the values, in order, by at most `workers` threads."""
    with Workers(workers) as beside:
        begun = [beside.begin(function, value) for value in values]
        return [result() for result in begun]
