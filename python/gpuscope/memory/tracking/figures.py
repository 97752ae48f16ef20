# SPDX-License-Identifier: Apache-2.0
"""The figures of a stage as attributes of what measures it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope.memory.tracking.stages import MemoryStage


class Figures(ABC):
    """Has the figures of `MemoryStage` that programs ask for; the others are in `stage`. Sizes are bytes."""

    @property
    @abstractmethod
    def stage(self) -> MemoryStage:
        """All figures."""

    @property
    def allocated(self) -> int:
        """In use by the program at the stage's end."""
        return self.stage.allocated

    @property
    def reserved(self) -> int | None:
        """Held by the allocators at the stage's end; None on the host."""
        return self.stage.reserved

    @property
    def peak(self) -> int:
        """The highest use within the stage."""
        return self.stage.peak

    @property
    def delta(self) -> int | None:
        """In use at the stage's end, less in use at its beginning; None for the first statement."""
        return self.stage.delta

    def __str__(self) -> str:
        return str(self.stage)
