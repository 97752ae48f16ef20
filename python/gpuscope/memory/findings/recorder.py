# SPDX-License-Identifier: Apache-2.0
"""The history of memory events while a question is asked of it: one that already runs is used and left running."""

from __future__ import annotations

from typing import Any

from gpuscope import _core
from gpuscope.memory import history
from gpuscope.memory.events import MemoryEvents

_MOST_EVENTS = 500_000  # 32 MB


class Recorder:
    """Has a history recorded from `start` to `stop`.

    Attributes:
        notes: what is not recorded, and why.
    """

    def __init__(self) -> None:
        self.notes: tuple[str, ...] = ()
        self._own: Any = None  # the history that was begun here

    def start(self) -> None:
        """Begins, unless a history is being recorded.

        Raises:
            NotAvailable: it cannot be had here.
        """
        if not history.recording():
            self._own = history.record_memory_history(max_entries=_MOST_EVENTS, stacks=True)
            self.notes = tuple(self._own.notes)

    def stop(self) -> None:
        """Ends what `start` began."""
        if self._own is not None:
            own, self._own = self._own, None
            own.stop()

    def position(self) -> int:
        """How many events there were so far."""
        return int(_core.memory_history()["recorded"])

    def events(self) -> MemoryEvents:
        """Those that are kept, of the history that is or was the last to be recorded."""
        return history.history_events()


def times_at(events: MemoryEvents, positions: list[int]) -> list[int]:
    """Ns since the epoch at which so many events had happened, by the events' own clock.

    A position lies before the event that follows it. One whose events are no longer kept lies before the first.
    """
    times = []
    for position in positions:
        row = position - events.lost
        if row < 0 or not len(events):
            times.append(-1)
        elif row < len(events):
            times.append(int(events.time_ns[row]))
        else:
            times.append(int(events.time_ns[-1]) + 1)
    return times
