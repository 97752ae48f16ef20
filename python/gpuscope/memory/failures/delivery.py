# SPDX-License-Identifier: Apache-2.0
"""Takes each out-of-memory error once, from wherever it is seen first, to all who are listening."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gpuscope.memory.events import Frame
from gpuscope.memory.failures.evidence import gather
from gpuscope.memory.failures.report import OutOfMemory
from gpuscope.memory.failures.stacks import of_caller, of_error
from gpuscope.memory.out_of_memory_errors import Request, find_out_of_memory, first_line, request_of
from gpuscope.memory.sizes import size_text

_MARK = "_gpuscope_reported"
_PATIENCE_S = 10.0  # for another thread's report; then this one is left out rather than the program held up
_SAME_SIZE = 0.01  # torch's errors give sizes with two digits after the point


class Listener(Protocol):
    """Who wants reports."""

    since_ns: int

    @property
    def full(self) -> bool:
        """Whether it wants no more reports."""

    def skip(self) -> None:
        """Called in place of `take` when all are full. Must not raise."""

    def take(self, report: OutOfMemory, printed: set[int]) -> None:
        """Called with each report, on the thread that ran out of memory. Must not raise.

        `printed` holds the ids of the files on which the report can be read already.
        """


_lock = threading.RLock()
_listeners: list[Listener] = []
_muted = 0
_observed: deque[int] = deque(maxlen=16)  # sizes that torch told of, and whose errors have not been seen
_here = threading.local()


def add(listener: Listener) -> None:
    """From now on it is told."""
    with _lock:
        _listeners.append(listener)


def remove(listener: Listener) -> None:
    """It is told no longer."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners:
            _observed.clear()


@contextmanager
def muted() -> Iterator[None]:
    """No reports meanwhile, of any thread: for what runs out of memory on purpose."""
    global _muted
    with _lock:
        _muted += 1
    try:
        yield
    finally:
        with _lock:
            _muted -= 1


def from_error(error: BaseException | None) -> None:
    """An error is passing. Never raises."""
    if not _listeners or _muted:
        return
    try:
        found = find_out_of_memory(error)
        if found is None or getattr(found, _MARK, False):
            return
        setattr(found, _MARK, True)
        request = request_of(found)
        if not _told_of(found, request):
            _report(request, first_line(found), of_error(found))
    except Exception:  # the program's own error is what it must see
        return


def from_torch(device: int, asked: int, allowed: int, free: int) -> None:
    """Called as torch is about to raise for memory of a GPU. Never raises."""
    if not _listeners or _muted:
        return
    try:
        _observed.append(asked)
        error = f"torch could not allocate {size_text(asked)} on GPU {device}"
        _report(Request("torch", asked, device), error, of_caller(), free=free, allowed=allowed)
    except Exception:  # an exception here would take the place of torch's own
        return


def _report(
    request: Request, error: str, stack: tuple[Frame, ...], free: int | None = None, allowed: int | None = None
) -> None:
    if getattr(_here, "reporting", False) or not _lock.acquire(timeout=_PATIENCE_S):
        return
    _here.reporting = True
    try:
        if all(each.full for each in _listeners):
            for listener in tuple(_listeners):
                listener.skip()
            return
        since_ns = min((each.since_ns for each in _listeners), default=0)
        report = gather(request, error, stack, free=free, allowed=allowed, since_ns=since_ns)
        printed: set[int] = set()
        for listener in tuple(_listeners):
            listener.take(report, printed)
    finally:
        _here.reporting = False
        _lock.release()


def _told_of(error: BaseException, request: Request) -> bool:
    """Whether torch told of this error before it raised it, maybe on another thread, as in a backward."""
    if request.library != "torch" or type(error).__name__ != "OutOfMemoryError":
        return False
    for asked in reversed(_observed):
        if request.bytes is None or abs(request.bytes - asked) <= _SAME_SIZE * asked:
            _observed.remove(asked)
            return True
    return False
