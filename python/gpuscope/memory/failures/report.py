# SPDX-License-Identifier: Apache-2.0
"""The report of one out-of-memory error."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from gpuscope.memory.events import Frame


@dataclass(frozen=True)
class Allocation:
    """One piece that was handed out.

    Attributes:
        bytes: its size.
        where: the line of the program that asked, as "train.py:12 step"; "" when not known.
        region: the innermost ``record_function`` that was open; "" for none.
    """

    bytes: int
    where: str
    region: str = ""


@dataclass(frozen=True)
class LivePieces:
    """What lives of the pieces that one line of the program asked for.

    Attributes:
        bytes: of all together.
        count: how many.
        where: the line, as "train.py:12 step"; "" when not known.
        growing: they were handed out all through the time recorded, as those of a leak are.
    """

    bytes: int
    count: int
    where: str
    growing: bool


@dataclass(frozen=True)
class OutOfMemory:
    """What memory looked like when it ran out. Sizes are bytes; None is not known.

    Attributes:
        number: counted from 1 in this process.
        time_ns: since the Unix epoch.
        pid: of this process.
        thread: name of the thread that ran into it.
        error: class and first line of the error; of torch, which tells before it raises, a sentence of the same sense.
        library: which one asked: "torch", "cupy", "jax", "numba", "rmm", "CUDA" or "host".
        device: ordinal of the GPU, HOST for host memory.
        asked: bytes that could not be had.
        free: left on the device, or to the host before it swaps.
        total: of the device or host.
        allowed: what torch lets itself take, where that is less than `total`.
        used: of the device by all processes.
        process: of the device by this one.
        pools: what each library's allocator holds (`gpuscope.memory.sources.Pool`).
        ledger: whose memory it is (`gpuscope.memory.ledger.ledger.MemoryLedger`); None without one.
        last: the newest allocations, newest first.
        largest: the lines whose pieces live, most bytes first.
        refused: what the driver refused since the reports were switched on, newest last.
        stack: where the program was, innermost frame first.
        verdict: whether fragmentation is to blame, in words; "" when there is nothing to say.
        advice: what to do, most promising first; each rests on the figures above.
        notes: what could not be known, and why.
    """

    number: int
    time_ns: int
    pid: int
    thread: str
    error: str
    library: str
    device: int | None
    asked: int | None
    free: int | None = None
    total: int | None = None
    allowed: int | None = None
    used: int | None = None
    process: int | None = None
    pools: tuple[Any, ...] = ()
    ledger: Any = field(default=None, repr=False)
    last: tuple[Allocation, ...] = ()
    largest: tuple[LivePieces, ...] = ()
    refused: tuple[dict[str, Any], ...] = ()
    stack: tuple[Frame, ...] = field(default=(), repr=False)
    verdict: str = ""
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def others(self) -> int | None:
        """Bytes of the device that other processes hold."""
        return None if self.used is None or self.process is None else max(0, self.used - self.process)

    @property
    def pool(self) -> Any:
        """The pool of the library that asked; None without one."""
        return next((pool for pool in self.pools if pool.library == self.library), None)

    def __str__(self) -> str:
        from gpuscope.memory.failures.text import whole

        return whole(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; sizes in bytes."""
        figures = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return figures | {
            "others": self.others,
            "pools": [_plain(pool) for pool in self.pools],
            "ledger": None if self.ledger is None else self.ledger.to_dict(),
            "last": [vars(each) for each in self.last],
            "largest": [vars(each) for each in self.largest],
            "refused": [dict(each) for each in self.refused],
            "stack": [frame._asdict() for frame in self.stack],
            "advice": list(self.advice),
            "notes": list(self.notes),
        }


def _plain(pool: Any) -> Any:
    return dataclasses.asdict(pool) if dataclasses.is_dataclass(pool) and not isinstance(pool, type) else vars(pool)
