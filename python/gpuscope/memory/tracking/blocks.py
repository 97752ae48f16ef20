# SPDX-License-Identifier: Apache-2.0
"""One passing of a stage: from entering a block to leaving it, or the runs of a coroutine between its suspensions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpuscope.memory.tracking.figures import Figures
from gpuscope.memory.tracking.peaks import watch
from gpuscope.memory.tracking.reading import read
from gpuscope.memory.tracking.stages import MemoryStage, joined, measured

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryBlock(Figures):
    """A stage that is being passed; what ``with track_memory(name) as stage`` gives.

    Its figures are those until now while it is open, and those of the whole stage once it has ended.
    """

    def __init__(self, name: str, device: int) -> None:
        self.name = name
        self._watch = watch(device)  # first: it may restart the counter that is read next
        self._before = read(device)
        self._ended: MemoryStage | None = None

    @property
    def stage(self) -> MemoryStage:
        """All figures."""
        return self._ended or self._until_now()

    def end(self) -> MemoryStage:
        """Ends the stage. Whatever it measures, the watch ends."""
        try:
            self._ended = self._until_now()
        finally:
            self._watch.end()
        return self._ended

    def _until_now(self) -> MemoryStage:
        after = read(self._before.device)
        return measured(self.name, self._before, after, self._watch.until(self._before, after))

    def __repr__(self) -> str:
        return f"<{'open' if self._ended is None else 'ended'} stage {self.name!r}: {self.stage}>"


class Steps:
    """A region that is entered for every step of one call; its stage is their sum. One thread at a time."""

    def __init__(self, begin: Callable[[], MemoryBlock]) -> None:
        self._begin = begin
        self._now: MemoryBlock | None = None
        self._until_now: MemoryStage | None = None

    @property
    def stage(self) -> MemoryStage | None:
        """The sum; None before the first step has ended."""
        return self._until_now

    def __enter__(self) -> None:
        self._now = self._begin()

    def __exit__(self, *exception: object) -> None:
        assert self._now is not None
        with contextlib.suppress(Exception):  # nothing of ours may come in the way of what the step raised
            self._until_now = joined(self._until_now, self._now.end())
        self._now = None
