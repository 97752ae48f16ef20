# SPDX-License-Identifier: Apache-2.0
"""The history of memory events while a question is asked of it: one that already runs is used and left running."""

from __future__ import annotations

import importlib
from typing import Any

from gpuscope import _core
from gpuscope.memory.events import MemoryEvents

_MOST_EVENTS = 1_000_000


class Recorder:
    """Has a history recorded from `start` to `stop`.

    Example:
        >>> recorder = Recorder()
        >>> recorder.start()  # doctest: +SKIP
        >>> recorder.stop()
    """

    def __init__(self) -> None:
        self._started = False

    def start(self) -> None:
        """Begins, unless a history is being recorded.

        Raises:
            NotAvailable: it cannot be had here.
        """
        history = _history()
        if not history.recording():
            history.record_memory_history(max_entries=_MOST_EVENTS, stacks=True)
            self._started = True

    def stop(self) -> None:
        """Ends what `start` began; what was recorded stays readable."""
        if self._started:
            self._started = False
            _history().record_memory_history(enabled=None)

    def position(self) -> int:
        """How many events there were so far."""
        core: Any = _core
        return int(core.memory_history()["recorded"])

    def events(self) -> MemoryEvents:
        """Those that are kept."""
        events: MemoryEvents = _history().history_events()
        return events


def _history() -> Any:
    # Late, so that asking events that were read from elsewhere needs no recording.
    return importlib.import_module("gpuscope.memory.history")


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
