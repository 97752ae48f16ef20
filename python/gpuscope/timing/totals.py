# SPDX-License-Identifier: Apache-2.0
"""Sums of many measurements in bounded memory."""

from __future__ import annotations

import random
import statistics
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from gpuscope.timing.measurement import Times

_KEPT = 4096  # samples for the median
_PENDING = 1024  # blocks that the GPU is not done with


class Pending(Protocol):
    """What will have times: a block, or the steps of a call."""

    @property
    def ready(self) -> bool:
        """Whether `result` would not wait."""
        ...

    @property
    def launch(self) -> float:
        """Seconds on the host."""
        ...

    def result(self) -> Times:
        """The times; waits."""
        ...


@dataclass(frozen=True)
class Spread:
    """Times of many blocks, in seconds.

    Attributes:
        count: blocks whose time is known.
        total, mean, minimum, maximum: of all of them.
        median: exact for up to 4096 blocks; beyond that, of a uniform random sample of 4096 of them.
    """

    count: int
    total: float
    mean: float
    minimum: float
    maximum: float
    median: float


@dataclass(frozen=True)
class Timing:
    """What the blocks of one name took.

    Attributes:
        name: the name.
        count: blocks that have ended.
        gpu: their time on the GPU; None when it is known of none.
        wall: from a block's begin on the host to the end of its work on the GPU; on a machine without a GPU the time on
            the host. None when it is known of none.
        launch: their time on the host; None before the first block has ended.
        why: why some of the blocks have no GPU or wall time; empty when all have both.
    """

    name: str
    count: int
    gpu: Spread | None
    wall: Spread | None
    launch: Spread | None
    why: str


class _Sum:
    """Adds up seconds, and keeps a sample of them (Vitter's algorithm R) for the median."""

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._minimum = float("inf")
        self._maximum = float("-inf")
        self._sample: list[float] = []
        self._random = random.Random(0)

    def add(self, seconds: float) -> None:
        self._count += 1
        self._total += seconds
        self._minimum = min(self._minimum, seconds)
        self._maximum = max(self._maximum, seconds)
        if len(self._sample) < _KEPT:
            self._sample.append(seconds)
        elif (place := self._random.randrange(self._count)) < _KEPT:
            self._sample[place] = seconds

    def spread(self) -> Spread | None:
        if self._count == 0:
            return None
        mean = min(max(self._total / self._count, self._minimum), self._maximum)  # rounding can leave the range
        median = statistics.median(self._sample)
        return Spread(self._count, self._total, mean, self._minimum, self._maximum, median)


class Totals:
    """The sums of one name. Any thread: one lock, never held while waiting for the GPU."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pending: deque[Pending] = deque()
        self._count = 0
        self._gpu, self._wall, self._launch = _Sum(), _Sum(), _Sum()
        self._why = ""

    def add(self, block: Pending) -> None:
        """Adds a block that has ended; takes up the times of those that the GPU is done with."""
        with self._lock:
            self._count += 1
            self._launch.add(block.launch)
            if len(self._pending) < _PENDING:
                self._pending.append(block)
            else:
                self._why = f"{_PENDING} blocks were waiting for the GPU already; more are counted, and not timed on it"
        self._collect(wait=False)

    def timing(self) -> Timing:
        """The sums; waits for the GPU to be done with every block that had ended before."""
        self._collect(wait=True)
        with self._lock:
            spreads = (self._gpu.spread(), self._wall.spread(), self._launch.spread())
            return Timing(self._name, self._count, *spreads, self._why)

    def _collect(self, *, wait: bool) -> None:
        for _ in range(len(self._pending)):  # blocks that end meanwhile are for the next time
            with self._lock:
                if not self._pending or not (wait or self._pending[0].ready):
                    return
                block = self._pending.popleft()
            times = block.result()
            with self._lock:
                self._fold(times)

    def _fold(self, times: Times) -> None:
        if times.gpu is not None:
            self._gpu.add(times.gpu)
        if times.wall is not None:
            self._wall.add(times.wall)
        self._why = times.why or self._why
