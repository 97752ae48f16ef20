# SPDX-License-Identifier: Apache-2.0
"""Real processes that hang on the CPU: ranks with black boxes, whose collectives wait for each other."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import queue
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuscope import _core, record_function

BEFORE_STACKS_S = 0.3
_COUNTER = struct.Struct("<Q")
_MOST_COLLECTIVES, _MOST_RANKS = 64, 8


class Arrivals:
    """Which rank has entered which collective, in memory that all ranks share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _MOST_COLLECTIVES * _MOST_RANKS * _COUNTER.size)

    def _at(self, key: str, rank: int) -> int:
        return (sum(key.encode()) % _MOST_COLLECTIVES * _MOST_RANKS + rank) * _COUNTER.size

    def note(self, key: str, rank: int, number: int) -> None:
        _COUNTER.pack_into(self._memory, self._at(key, rank), number + 1)

    def entered(self, key: str, rank: int) -> int:
        return int(_COUNTER.unpack_from(self._memory, self._at(key, rank))[0])


class SimulatedRank:
    """A process of a job, with a black box, a beat, and a text of its stacks once it hangs."""

    def __init__(self, folder: Path, rank: int, size: int, arrivals: Arrivals) -> None:
        self.folder, self.rank, self.size = folder / f"rank-{rank:05d}.watch", rank, size
        self._arrivals = arrivals
        self.folder.mkdir(parents=True)
        self.box = _core.BlackBox(str(self.folder / "black_box.bin"), rank)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            self.box.beat()
            time.sleep(0.1)

    def expect_hang(self) -> None:
        """Writes the stacks soon, whatever the main thread does then.

        By a signal on the other thread: after a fork, `dump_traceback_later` waits for the timer of the parent.
        """
        faulthandler.register(signal.SIGALRM, file=(self.folder / "stacks.txt").open("w"))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, BEFORE_STACKS_S)

    def collective(self, number: int, kind: str = "all_reduce", communicator: str = "dp", size: int = 4096) -> None:
        """Waits until all ranks are in it, with the same kind and size."""
        self.box.collective(communicator, number, kind, size, self.size)
        self._arrivals.note(communicator, self.rank, number)
        self._arrivals.note(f"{communicator}{number}{kind}{size}", self.rank, number)
        while any(
            self._arrivals.entered(f"{communicator}{number}{kind}{size}", rank) <= number for rank in range(self.size)
        ):
            time.sleep(0.005)
        self.box.collective(communicator, number, kind, size, self.size, ended=True)

    def step(self, number: int) -> None:
        """A step that ends."""
        self.box.step_begin(number)
        with record_function("forward"):
            self.collective(number)
        self.box.step_end(number)


Program = Callable[[SimulatedRank], None]


@contextlib.contextmanager
def hanging_job(folder: Path, program: Program, size: int = 2) -> Iterator[list[int]]:
    """Forks the ranks; each makes two steps, then runs the program. Gives their process ids. Kills them at the end."""
    folder.mkdir(mode=0o700)
    arrivals, pids = Arrivals(), []
    try:
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                try:
                    own = SimulatedRank(folder, rank, size, arrivals)
                    for number in range(2):
                        own.step(number)
                    own.expect_hang()
                    own.box.step_begin(2)
                    program(own)
                finally:
                    os._exit(0)
            pids.append(pid)
        until = time.monotonic() + 30
        while time.monotonic() < until and any(arrivals.entered("dp", rank) < 2 for rank in range(size)):
            time.sleep(0.01)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def sleeps_before(own: SimulatedRank) -> None:
    if own.rank == 1:
        with record_function("evaluate"):
            time.sleep(1000)
    own.collective(2)


def calls_another_kind(own: SimulatedRank) -> None:
    own.collective(2, "broadcast" if own.rank == 1 else "all_reduce")


def calls_another_size(own: SimulatedRank) -> None:
    own.collective(2, size=8192 if own.rank == 1 else 4096)


def calls_in_another_order(own: SimulatedRank) -> None:
    first, second = ("tp", "pp") if own.rank == 0 else ("pp", "tp")
    own.collective(0, communicator=first)
    own.collective(0, communicator=second)


def is_killed(own: SimulatedRank) -> None:
    if own.rank == 1:
        with record_function("backward"):
            os.kill(os.getpid(), signal.SIGKILL)
    own.collective(2)


def raises(own: SimulatedRank) -> None:
    if own.rank == 1:
        own.box.trigger("exception: ValueError: bad batch")
        own.box.close()
        os._exit(1)
    own.collective(2)


def is_stopped(own: SimulatedRank) -> None:
    if own.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    own.collective(2)


def keeps_the_gil(own: SimulatedRank) -> None:
    if own.rank == 1:
        with record_function("tokenize"):
            ctypes.PyDLL(None).sleep(1000)
    own.collective(2)


def computes_with_the_gil(own: SimulatedRank) -> None:
    if own.rank == 1:
        with record_function("tokenize"):
            re.match(r"(a+)+b", "a" * 40)  # takes days, and never releases the GIL
    own.collective(2)


def waits_for_a_loader(own: SimulatedRank) -> None:
    if own.rank == 1:
        scope: dict[str, Callable[[queue.Queue[int]], int]] = {}
        source = "def _try_get_data(data):\n    return data.get()\n"
        exec(compile(source, "/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "exec"), scope)
        scope["_try_get_data"](queue.Queue())
    own.collective(2)


def goes_on(own: SimulatedRank) -> None:
    for number in range(2, 100_000):
        own.step(number)
        time.sleep(0.01)
