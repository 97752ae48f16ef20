# SPDX-License-Identifier: Apache-2.0
"""The memory history: the latest allocations and releases, each with its call stack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Literal, get_args
from weakref import WeakSet

import numpy as np

from gpuscope import _core
from gpuscope.arguments import check_choice
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.frameworks.cupy import CupyReports
from gpuscope.frameworks.numpy import NumpyReports, unreported
from gpuscope.frameworks.torch import initialized
from gpuscope.frameworks.torch_memory import TorchReports, why_opaque
from gpuscope.late_imports import WhenImported
from gpuscope.memory.allocation_watch import unwatch_allocations, watch_allocations
from gpuscope.memory.history.categories import known_at_end
from gpuscope.memory.history.events import COLUMNS, AtEnd, Frame, MemoryEvents
from gpuscope.text import brief
from gpuscope.threads import shared_lock

MAX_ENTRIES = 100_000
MOST_ENTRIES = 100_000_000  # 6.4 GB; the core's limit
Enabled = Literal["all", "state"]
Stacks = Literal["python", "all"]
Context = Literal["all", "alloc", "state"]


def record_memory_history(
    enabled: Enabled | bool | None = "all",
    *,
    max_entries: int = MAX_ENTRIES,
    stacks: Stacks | bool = True,
    context: Context | None = "all",
    numpy: bool = True,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> MemoryHistory:
    """Records allocations and releases of torch (GPU and host), NumPy, CuPy and the CUDA driver.

    A statement, or a context manager that stops at the end of its block. A framework that is imported later is recorded
    from its import. The last `max_entries` events are kept, 64 bytes each. Read them with ``events()``, or write them
    with ``dump_memory_snapshot``. At its end, the history searches Python's objects for live tensors.

    NumPy reports all threads, but only arrays of 64 bytes or more: each number in an operation makes a small array.
    A memory handler that the program set in another thread's context (NEP 49) is not seen.

    torch and CuPy report the calling thread, and autograd's threads that work for it. A call on another thread adds
    that thread to the same history until its result's ``stop()``. A second call on the same thread starts a new
    history.

    The arguments of ``torch.cuda.memory._record_memory_history`` are accepted by keyword. `max_entries` must be finite.

    Args:
        enabled: "all", "state" and True record, None and False stop.
        max_entries: number of events kept, 1 to 100,000,000.
        stacks: whether to keep the Python stack of each event. "python" and "all" mean True. C++ frames are not kept.
        context: None keeps no stacks; any other value leaves that to `stacks`.
        numpy: whether to record NumPy's arrays, which may be most of the events.
        device: for torch's interface; all devices are recorded.
        clear_history: for torch's interface; every history begins empty.
        compile_context: for torch's interface; compiled code is not marked.
        global_record_annotations: for torch's interface; an event has the region of its own thread.
        skip_actions: for torch's interface; all allocations and releases are recorded.

    Returns:
        The history; for None and False the one that has just ended.

    Raises:
        InvalidArgument: a value is not accepted.
    """
    global _last
    _check(enabled, max_entries, stacks, context, numpy)
    with _lock:
        current = _last
        if not enabled:
            if current is not None:
                current.stop()
            return MemoryHistory(current or _Recording(), None)
        if current is not None and current.active and not current.reports(threading.get_ident()):
            return MemoryHistory(current, current.add_thread(max_entries))
        begun = _Recording()
        if current is not None:
            if current.active:
                begun.note(f"the previous history has ended: this one, of {max_entries}, replaced it")
            current.stop()
            current.copy_out()
        begun.start(max_entries, bool(stacks) and context is not None, numpy)
        _last = begun
        return MemoryHistory(begun, None)


def history_events() -> MemoryEvents:
    """Events of the last history so far, oldest first.

    Raises:
        NotAvailable: no history was recorded.
    """
    if _last is None:
        raise NotAvailable(
            "the memory history is not available: none was recorded; call gpuscope.record_memory_history() first"
        )
    return _last.events()


def recording() -> bool:
    """Whether a history is being recorded."""
    return running() is not None


def running() -> MemoryHistory | None:
    """The history that is being recorded, or None."""
    return MemoryHistory(_last, None) if _last is not None and _last.active else None


def unreported_threads() -> list[str]:
    """Names of Python threads whose allocations through torch or CuPy are not recorded."""
    if _last is None or not {"torch", "cupy"} & sys.modules.keys():
        return []
    others = (thread for thread in threading.enumerate() if not _last.reports(thread.ident))
    return [thread.name for thread in others if not thread.name.startswith("gpuscope-")]  # ours have no memory there


class MemoryHistory:
    """A history that is or was recorded. Made by `record_memory_history`."""

    def __init__(self, recording: _Recording, added: ThreadReports | None) -> None:
        self._recording = recording
        self._added = added  # the added thread, if this handle is for one
        recording.handles.add(self)

    def stop(self) -> None:
        """Ends the recording, or only that of an added thread. Recorded events stay readable."""
        with _lock:
            if self._added is not None:
                self._recording.end_thread(self._added)
            else:
                self._recording.stop()

    def events(self) -> MemoryEvents:
        """Events of all threads so far, oldest first."""
        return self._recording.events()

    @property
    def active(self) -> bool:
        """Whether it is being recorded."""
        return self._recording.active

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits of the recording, each with its reason."""
        return tuple(self._recording.notes)

    def __enter__(self) -> MemoryHistory:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "recording" if self.active else "ended"
        return f"<MemoryHistory {state}{', ' if self.notes else ''}{'; '.join(self.notes)}>"


@cache  # dropping the arrays while NumPy reports would be an event
def _no_events() -> MemoryEvents:
    columns: dict[str, Any] = {name: np.empty(0, kind) for name, kind in COLUMNS.items()}
    return MemoryEvents(**columns)


class _Recording:
    """One run of the core's ring. Its callers hold `_lock`."""

    def __init__(self) -> None:
        self.active = False
        self.notes: list[str] = []
        self.handles: WeakSet[MemoryHistory] = WeakSet()
        self._threads: list[ThreadReports] = []
        self._watches_driver = False
        self._numpy = True
        self._kept: MemoryEvents | None = _no_events()  # None while the core's ring holds it
        self._at_end: AtEnd | None = None  # None while it is recorded

    def start(self, max_entries: int, stacks: bool, numpy: bool) -> None:
        self._numpy = numpy
        _core.start_memory_history(max_entries, stacks)
        self._kept = None
        self.active = True
        if stacks and not _core.knows_stacks():
            self.note("stacks are not recorded: this version of Python keeps its frames elsewhere")
        self._watch_driver(stacks)
        self._threads.append(ThreadReports(self.note, numpy))

    def stop(self) -> None:
        if not self.active:
            return
        self.active = False
        if initialized():  # without a GPU the search waits until the events are read
            with unreported():
                self._at_end = known_at_end()
        _core.stop_memory_history()
        while self._threads:
            self._threads.pop().end()
        if self._watches_driver:
            self._watches_driver = False
            unwatch_allocations()

    def add_thread(self, max_entries: int) -> ThreadReports:
        if max_entries != (capacity := _core.memory_history()["capacity"]):
            self.note(f"max_entries stays {capacity}: a thread was added to a history that was recorded already")
        self._threads.append(ThreadReports(self.note, self._numpy))
        return self._threads[-1]

    def end_thread(self, reports: ThreadReports) -> None:
        if reports in self._threads:
            self._threads.remove(reports)
            reports.end()

    def reports(self, thread: int | None) -> bool:
        return any(reports.thread == thread for reports in self._threads)

    def events(self) -> MemoryEvents:
        with _lock, unreported():
            return self._kept if self._kept is not None else _read(self._known_at_end)

    def copy_out(self) -> None:
        """Copies the events before another history uses the ring, if a handle can still read them."""
        if self._kept is None:
            self._kept = _read(self._known_at_end) if self.handles else _no_events()

    def _known_at_end(self) -> AtEnd:
        return known_at_end() if self._at_end is None else self._at_end

    def note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _watch_driver(self, stacks: bool) -> None:
        why = watch_allocations(stacks)
        self._watches_driver = not why
        if why:
            self.note(f"memory that libraries take from the CUDA driver is not recorded: {why}")


def _read(at_end: Callable[[], AtEnd]) -> MemoryEvents:
    columns = _core.read_memory_history()
    kept = {name: columns[name.removesuffix("_bytes")] for name in COLUMNS}
    regions = tuple(columns["regions"])
    return MemoryEvents(**kept, lost=columns["lost"], frames=_frames, regions=regions, at_end=at_end)


@lru_cache(maxsize=65_536)
def _frames(stack: int) -> tuple[Frame, ...]:
    return tuple(Frame(*frame) for frame in _core.stack_frames(int(stack)))


def _check(enabled: object, max_entries: object, stacks: object, context: object, numpy: object) -> None:
    check_choice("enabled", enabled, (*get_args(Enabled), True, None, False))
    check_choice("stacks", stacks, (True, False, *get_args(Stacks)))
    check_choice("context", context, (*get_args(Context), None))
    check_choice("numpy", numpy, (True, False))
    if not isinstance(max_entries, int) or isinstance(max_entries, bool) or not 1 <= max_entries <= MOST_ENTRIES:
        raise InvalidArgument(
            f"max_entries is {brief(max_entries)}; accepted are whole numbers from 1 to {MOST_ENTRIES:,}"
        )


_lock = shared_lock()
_last: _Recording | None = None  # running or ended


class ThreadReports:
    """Makes frameworks report the allocations of the calling thread to the core, until `end`.

    A framework that this thread imports later reports from then on. With `numpy`, NumPy reports all threads while an
    instance exists.
    """

    def __init__(self, note: Callable[[str], object], numpy: bool = True) -> None:
        self.thread = threading.get_ident()
        self._note = note
        self._reports: list[TorchReports | CupyReports | NumpyReports] = []
        self._waiting = [
            WhenImported("torch", partial(self._begin, "torch", self._torch)).watch(),
            WhenImported("cupy", partial(self._begin, "CuPy", CupyReports)).watch(),
        ]
        if numpy:
            self._begin("NumPy", self._numpy)

    def end(self) -> None:
        """Ends the reports; callable on any thread."""
        for waiting in self._waiting:
            waiting.cancel()
        while self._reports:
            reports = self._reports.pop()
            try:
                reports.end()
            except Exception as error:
                self._note(f"{type(reports).__name__} could not be ended: {error!r}")

    def _begin(self, framework: str, begin: Callable[[], TorchReports | CupyReports | NumpyReports]) -> None:
        if threading.get_ident() != self.thread:
            self._note(f"{framework}'s allocations are not recorded: another thread imported it")
            return
        try:
            self._reports.append(begin())
        except Exception as error:  # must not break the program or its import
            self._note(f"{framework}'s allocations are not recorded: {error!r}")

    def _torch(self) -> TorchReports:
        reports = TorchReports(self._note)
        if reports.why:
            self._note(f"torch's allocations are not recorded: {reports.why}")
        elif why := why_opaque():
            self._note(f"torch's allocations on GPUs are not recorded: {why}")
        return reports

    def _numpy(self) -> NumpyReports:
        reports = NumpyReports()
        if reports.why:
            self._note(f"NumPy's allocations are not recorded: {reports.why}")
        return reports


def position() -> int:
    """Number of events recorded so far, including those no longer kept."""
    return int(_core.memory_history()["recorded"])


def own_bytes() -> int:
    """Host memory that the history itself uses, bytes."""
    return int(_core.memory_history()["resident_bytes"])


def times_at(events: MemoryEvents, positions: list[int]) -> list[int]:
    """Time of each position on the events' clock, ns since the epoch; -1 if its events are no longer kept."""
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
