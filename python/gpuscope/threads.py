# SPDX-License-Identifier: Apache-2.0
"""Locks that survive a fork, the start of threads, and a thread pool."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import ref

from gpuscope.errors import NotAvailable

if TYPE_CHECKING:
    from concurrent.futures import Executor

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


@contextlib.contextmanager
def thread_pool(count: int) -> Iterator[Executor]:
    """At most `count` threads, for calls that change nothing and work without the GIL, in arrays and in C++.

    Leaving the context waits for all calls; an error cancels those that have not begun and waits for none. If no thread
    can be started, a call runs at once on the caller's thread.
    """
    pool = _executor(count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _executor(count: int) -> Executor:
    from concurrent.futures import Executor, Future  # with logging, which not every program needs

    threads: Executor | None = None
    # A thread needs some 70 MB of address space; without them Python waits for ever for its start.
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        with contextlib.suppress(RuntimeError):  # the import fails while the interpreter ends
            from concurrent.futures import ThreadPoolExecutor

            threads = ThreadPoolExecutor(count, "gpuscope worker")

    class Pool(Executor):
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            with contextlib.suppress(RuntimeError):  # the system has no further thread, or the interpreter ends
                if threads is not None:
                    return threads.submit(function, *arguments, **named)
            made: Future[Any] = Future()
            try:
                made.set_result(function(*arguments, **named))
            except BaseException as error:
                made.set_exception(error)
            return made

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            if threads is not None:
                threads.shutdown(wait, cancel_futures=cancel_futures)

    return Pool()
