# SPDX-License-Identifier: Apache-2.0
"""What is learned of a program's memory while it runs and at its end; nothing that fails here reaches the program."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gpuscope.devices import HOST
from gpuscope.errors import GpuscopeError
from gpuscope.frameworks import torch_memory
from gpuscope.memory.categories import CATEGORIES, categorize, live_categories
from gpuscope.memory.events import MemoryEvents
from gpuscope.profiler import lifecycle

FEWEST_STEPS = 8  # growth over fewer may be chance


@dataclass
class MemoryFindings:
    """What there is to tell. Sizes are bytes.

    Attributes:
        program: its name.
        events: the history; None where none could be recorded.
        limits: what the history lacks, and why.
        categories: of each of the history's lifetimes.
        snapshot: of all devices at the end.
        ledgers: of each GPU in use.
        peak: what lived when most was in use.
        at_peak: bytes by category, then; empty where no category is known.
        stages: of track_memory, None without any.
        leaks: None when the program told of too few steps.
        notes: what could not be had, and why.
    """

    program: str
    events: MemoryEvents | None = None
    limits: tuple[str, ...] = ()
    categories: Any = None
    snapshot: Any = None
    ledgers: list[Any] = field(default_factory=list)
    peak: Any = None
    at_peak: dict[str, int] = field(default_factory=dict)
    stages: Any = None
    leaks: Any = None
    notes: list[str] = field(default_factory=list)


class MemoryWatch:
    """A history of memory, reports when it runs out, and the steps that the program tells of, from now to `end`."""

    def __init__(self, max_entries: int, *, stacks: bool) -> None:
        self._notes: list[str] = []
        self._steps_ns = [time.time_ns()]
        self._leaks: Any = None
        self._live: dict[int, int] = {}
        self._snapshot: Any = None
        self._ledgers: list[Any] = []
        self._history = self._attempt(
            "the history",
            lambda: _module("history").record_memory_history(max_entries=max_entries, stacks=stacks),
        )
        self._refusals = self._attempt("reports", lambda: _module("out_of_memory_reports").report_out_of_memory())
        self._finder = self._attempt("leaks", lambda: _module("leaks").find_leaks())
        if self._finder is not None and self._history is not None:
            self._attempt("leaks", self._finder.__enter__)
        lifecycle.watch(self)

    def step(self) -> None:
        """A step of the program has ended."""
        self._steps_ns.append(time.time_ns())
        if self._finder is not None:
            with contextlib.suppress(Exception):
                self._finder.step()

    def stop(self) -> None:
        """The process ends before `end`."""

    def abandon(self) -> None:
        """In a forked child: what is watched is the parent's."""

    def end(self) -> None:
        """Looks at what the program left behind while it still lives, then ends the history."""
        lifecycle.forget(self)
        # The ledger names libraries by what is watched, and the history's end ends the watch.
        self._snapshot = self._attempt("the snapshot", lambda: _module("snapshot").memory_snapshot())
        for device in getattr(self._snapshot, "devices", ()):
            ledger = self._attempt("the ledger", partial(_ledger, device.device))
            if ledger is not None:
                self._ledgers.append(ledger)
        self._live = self._attempt("categories", live_categories) or {}
        if self._finder is not None and self._history is not None and len(self._steps_ns) > FEWEST_STEPS:
            # Judging leaks runs the garbage collector, whose releases the history must still see.
            self._attempt("leaks", lambda: self._finder.__exit__(None, None, None))
            self._leaks = self._attempt("leaks", self._finder.report)
        for thing, name in ((self._history, "stop"), (self._refusals, "close")):
            if thing is not None:
                self._attempt("the end of the history", getattr(thing, name))

    def findings(self, program: str) -> MemoryFindings:
        """Everything, after `end`."""
        found = MemoryFindings(program, snapshot=self._snapshot, ledgers=self._ledgers, leaks=self._leaks)
        if self._history is not None:
            found.events = self._attempt("the history", lambda: self._history.events())
            found.limits = tuple(getattr(self._history, "notes", ()))
            self._notes += [note for note in found.limits if note not in self._notes]
        if found.events is not None and len(found.events):
            events = found.events
            steps = self._steps_ns if len(self._steps_ns) > 1 else []
            found.peak = self._attempt("the peak", lambda: _module("peak").peak_memory(events, steps_ns=steps))
            found.categories = self._attempt("categories", lambda: self._categorize(events))
            found.at_peak = self._attempt("categories", lambda: _by_category(found)) or {}
        if "gpuscope.memory.tracking" in sys.modules:
            stages = self._attempt("stages", lambda: _module("tracking").memory_stages())
            found.stages = stages if stages is not None and stages.stages else None
        found.notes = self._notes
        return found

    def _categorize(self, events: MemoryEvents) -> Any:
        pools: list[tuple[int, int]] = []
        for device in np.unique(events.device[events.device != HOST]).tolist():
            for piece in self._attempt("graph pools", partial(_segments, device)) or ():
                if piece.pool != "default":
                    pools.append((piece.address, piece.address + piece.bytes))
        return categorize(events, live=self._live, graph_pools=pools)

    def _attempt(self, what: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, or None and a note."""
        try:
            return make()
        except GpuscopeError as error:
            note = str(error)
        except Exception as error:
            note = f"{what} could not be had: {type(error).__name__}: {error}"
        if note not in self._notes:
            self._notes.append(note)
        return None


def _module(name: str) -> Any:
    return importlib.import_module(f"gpuscope.memory.{name}")


def _ledger(device: int) -> Any:
    return _module("ledger").memory_ledger(device)


def _segments(device: int) -> Any:
    return torch_memory.segments(device) if "torch" in sys.modules else ()


def _by_category(found: MemoryFindings) -> dict[str, int]:
    """Bytes of each category at the peak, largest first."""
    from gpuscope.exporters.page.memory import make_steps

    assert found.events is not None
    device = getattr(found.peak, "device", None)
    if device is None or found.categories is None:
        return {}
    steps, rows = make_steps(found.events, device)
    first, end = steps.visible()
    there = (first <= steps.peak) & (steps.peak < end)
    sizes = np.bincount(
        found.categories[rows][there], weights=steps.lifetimes.bytes[there], minlength=len(CATEGORIES)
    ).astype(np.int64)
    known = {name: size for name, size in zip(CATEGORIES, sizes.tolist(), strict=True) if size}
    if not set(known) - {"UNKNOWN"}:
        return {}
    return dict(sorted(known.items(), key=lambda item: -item[1]))
