# SPDX-License-Identifier: Apache-2.0
"""What allocators handed out and took back, as columns, and how long each piece lived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.ordinals import HOST as HOST

NEVER = -1  # in place of an event: not seen

# By number: who told of an event. "driver" is memory taken from the CUDA driver itself, by whatever library.
SOURCES = ("torch", "cupy", "driver", "other")


class Frame(NamedTuple):
    """One line of a call stack.

    Attributes:
        function: qualified name.
        file: path as Python knows it.
        line: counted from 1; the one being executed.
    """

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


def _no_frames(stack: int) -> tuple[Frame, ...]:
    return ()


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """Allocations and releases in the order they happened, one row each. Sizes are bytes.

    Attributes:
        time_ns: ns since the Unix epoch.
        address: of the piece.
        bytes: negative when given back.
        allocated: handed out by that allocator on that device, this counted; 0 where it does not say.
        reserved: held by that allocator on that device; 0 where it does not say.
        device: ordinal of the GPU, HOST for host memory.
        stack: number of the call stack, for `frames`; 0 for none.
        region: number of the region that the program was in, an index of `regions`; 0 for none.
        thread: the system's number of the thread.
        source: a number, see SOURCES.
        lost: older events that are no longer kept.
        frames: the call stack of a number, innermost frame first; () when there is none.
        regions: names of the regions by their numbers.
    """

    time_ns: NDArray[np.int64]
    address: NDArray[np.uint64]
    bytes: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    device: NDArray[np.int32]
    stack: NDArray[np.uint32]
    region: NDArray[np.uint32]
    thread: NDArray[np.uint64]
    source: NDArray[np.uint8]
    lost: int = 0
    frames: Callable[[int], tuple[Frame, ...]] = field(default=_no_frames, repr=False)
    regions: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.time_ns)

    def select(self, rows: NDArray[Any]) -> MemoryEvents:
        """Some of the rows, by numbers or a mask, in their order."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return MemoryEvents(**columns, lost=self.lost, frames=self.frames, regions=self.regions)

    def lifetimes(self) -> Lifetimes:
        """Each piece that was handed out here, with the event that took it back.

        Releases of what was handed out before the first event are left out. A second allocation at an address that was
        not seen released ends the first at that moment.
        """
        return _paired(self)


COLUMNS = ("time_ns", "address", "bytes", "allocated", "reserved", "device", "stack", "region", "thread", "source")


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Pieces of memory in the order in which they were handed out.

    Attributes:
        born: row of the event that handed it out.
        died: row of the event that took it back, NEVER when it still lives.
        address: of the piece.
        bytes: its size.
        device: ordinal of the GPU, HOST for host memory.
        stack: where it was handed out.
        source: a number, see SOURCES.
    """

    born: NDArray[np.int64]
    died: NDArray[np.int64]
    address: NDArray[np.uint64]
    bytes: NDArray[np.int64]
    device: NDArray[np.int32]
    stack: NDArray[np.uint32]
    source: NDArray[np.uint8]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Those not given back."""
        return np.asarray(self.died == NEVER)

    def __len__(self) -> int:
        return len(self.born)


def _paired(events: MemoryEvents) -> Lifetimes:
    # Sorted by piece of address space and time, an event's successor is its end.
    order = np.lexsort((np.arange(len(events)), events.address, events.device, events.source))
    same = np.zeros(len(order), dtype=bool)
    if len(order):
        here, following = order[:-1], order[1:]
        same[:-1] = (
            (events.address[here] == events.address[following])
            & (events.device[here] == events.device[following])
            & (events.source[here] == events.source[following])
        )
    successor = np.full(len(order), NEVER, dtype=np.int64)
    successor[order] = np.where(same, np.roll(order, -1), NEVER)
    born = np.flatnonzero(events.bytes > 0)
    return Lifetimes(
        born=born,
        died=successor[born],
        address=events.address[born],
        bytes=events.bytes[born],
        device=events.device[born],
        stack=events.stack[born],
        source=events.source[born],
    )
