# SPDX-License-Identifier: Apache-2.0
"""A memory history that the test's own program fills: ``history.keep(tensor)`` notes it, and when it is let go."""

from __future__ import annotations

import dataclasses
import sys
import weakref

from fakes import memory_events
from gpuscope import _core
from gpuscope.memory.history import history


class FakeHistory:
    """Stands in for gpuscope.memory.history.history."""

    def __init__(self, lost=0):
        self.notes = ()
        self.rows = []
        self.active = False
        self.begun = self.ended = 0
        self.lost = lost
        self._stacks = {}

    def put_in(self, monkeypatch):
        for name in ("running", "record_memory_history", "history_events"):
            monkeypatch.setattr(history, name, getattr(self, name))
        state = {"recording": True, "resident_bytes": 0}
        monkeypatch.setattr(_core, "memory_history", lambda: {**state, "recorded": len(self.rows)}, raising=False)
        return self

    def running(self):
        return self if self.active else None

    def record_memory_history(self, **options):
        self.active, self.begun = True, self.begun + 1
        return self

    def stop(self):
        self.active, self.ended = False, self.ended + 1

    def events(self):
        return self.history_events()

    def history_events(self):
        # The oldest are not kept.
        found = memory_events.events(*self.rows, frames={number: stack for stack, number in self._stacks.items()})
        kept = found.select(range(self.lost, len(found)))
        return dataclasses.replace(kept, lost=self.lost)

    def keep(self, tensor, size=1 << 20, source="torch"):
        """A tensor of torch's as a piece of a GPU's memory, allocated by the caller."""
        frame, stack = sys._getframe(1), []
        while frame is not None:
            stack.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        number = self._stacks.setdefault(tuple(stack), len(self._stacks) + 1)
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        row = {"stack": number, "source": source}
        self.rows.append(("alloc", address, size, row))
        weakref.finalize(tensor, self.rows.append, ("free", address, size, row)).atexit = False
        return tensor
