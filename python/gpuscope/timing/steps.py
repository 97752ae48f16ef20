# SPDX-License-Identifier: Apache-2.0
"""The runs of one coroutine between its suspensions, timed as one block."""

from __future__ import annotations

import dataclasses
from collections import deque

from gpuscope.timing.measurement import Measurement, Times

_UNREAD = 1024


class Steps:
    """A region that is entered for every step of one call; its times are their sums. One thread at a time."""

    def __init__(self, stream: object) -> None:
        self._stream = stream
        self._now: Measurement | None = None
        self._unread: deque[Measurement] = deque()
        self._read = Times(0.0, 0.0, 0.0, 0.0, "")
        self._launch = 0.0

    def __enter__(self) -> None:
        self._now = Measurement(self._stream)

    def __exit__(self, *exception: object) -> None:
        assert self._now is not None
        self._now.stop()
        self._launch += self._now.launch
        self._unread.append(self._now)
        self._now = None
        while self._unread and self._unread[0].ready:
            self._take()
        if len(self._unread) > _UNREAD:
            self._unread.popleft()
            why = f"more than {_UNREAD} of a coroutine's steps waited for the GPU at once"
            self._read = dataclasses.replace(self._read, gpu=None, wall=None, wall_error=None, why=why)

    @property
    def launch(self) -> float:
        """Seconds that the steps took on the host."""
        return self._launch

    @property
    def ready(self) -> bool:
        """Whether `result` would not wait."""
        return all(step.ready for step in self._unread)

    def result(self) -> Times:
        """The sums; waits for the end of the steps' work on the GPU."""
        while self._unread:
            self._take()
        return self._read

    def _take(self) -> None:
        times, sums = self._unread.popleft().result(), self._read
        self._read = Times(
            launch=sums.launch + times.launch,
            gpu=_plus(sums.gpu, times.gpu),
            wall=_plus(sums.wall, times.wall),
            wall_error=_plus(sums.wall_error, times.wall_error),
            why=times.why or sums.why,
        )


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
