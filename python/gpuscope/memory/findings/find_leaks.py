# SPDX-License-Identifier: Apache-2.0
"""`find_leaks`: runs steps of a program and says what memory they leave behind for good."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, overload

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.memory.events import MemoryEvents
from gpuscope.memory.findings.free_memory import free_memory
from gpuscope.memory.findings.growth import FEWEST_STEPS, Growth, leaks_in, warm_up_of, whole_steps
from gpuscope.memory.findings.holders import Holder, who_holds
from gpuscope.memory.findings.leak_report import Leak, LeakReport
from gpuscope.memory.findings.recorder import Recorder, times_at


@overload
def find_leaks(fn: None = None, /, *, steps: int = 20, warmup: int | None = None) -> LeakFinder: ...


@overload
def find_leaks(
    fn: Callable[..., object], /, *args: Any, steps: int = 20, warmup: int | None = None, **kwargs: Any
) -> LeakReport: ...


def find_leaks(
    fn: Callable[..., object] | None = None,
    /,
    *args: Any,
    steps: int = 20,
    warmup: int | None = None,
    **kwargs: Any,
) -> LeakReport | LeakFinder:
    """Finds memory that grows step after step and is never given back, with the line and who holds it.

    A leak is what `leaks_in` says: pieces that live at the end, from a place that left some behind in nearly every step
    after the warm-up. Caches that fill up, lists that keep the last few and double buffers are none, once the steps are
    enough to see their end. Memory counts as its allocators hand it out, of PyTorch (on the host too), CuPy and what
    reports itself, and as any library takes it from the driver, each byte once.

    With a function, it is called `steps` times; without one, ``with find_leaks() as leaks:`` watches a loop that calls
    ``leaks.step()`` at the end of each step. A memory history that is being recorded is used and goes on.

    Args:
        fn: one step of the program; what it returns is let go.
        *args: for `fn`.
        steps: how often `fn` is called.
        warmup: first steps that are not judged; None for 3, or fewer where that leaves less than 4.
        **kwargs: for `fn`; one that takes `steps` or `warmup` itself is given in a lambda.

    Returns:
        The report; or the context manager, which gives it by ``leaks.report()``. Interrupted by Ctrl-C, a report of
        the steps so far.

    Raises:
        InvalidArgument: `fn` cannot be called, or the steps are too few to tell anything.
        NotAvailable: memory events cannot be recorded here.

    Example:
        >>> report = find_leaks(train_step, batch, steps=20)  # doctest: +SKIP
        >>> with find_leaks() as leaks:  # doctest: +SKIP
        ...     for batch in loader:
        ...         train_step(batch)
        ...         leaks.step()
        >>> print(leaks)  # doctest: +SKIP
    """
    if fn is not None and not callable(fn):
        raise InvalidArgument(f"fn is a {type(fn).__name__}; accepted are functions and other things to call")
    if not _is_whole(steps) or steps < FEWEST_STEPS:
        raise InvalidArgument(
            f"steps is {steps!r}; accepted are whole numbers from {FEWEST_STEPS}: fewer do not tell growth from warm-up"
        )
    if warmup is not None and (not _is_whole(warmup) or not 0 <= warmup <= steps - FEWEST_STEPS + 1):
        raise InvalidArgument(
            f"warmup is {warmup!r}; accepted are None and whole numbers from 0 to {steps - FEWEST_STEPS + 1}, "
            "4 less than steps"
        )
    finder = LeakFinder(warmup)
    if fn is None:
        return finder
    try:
        with finder:
            for _ in range(steps):
                fn(*args, **kwargs)
                finder.step()
    except KeyboardInterrupt:
        pass  # the report says so
    return finder.report()


class LeakFinder:
    """Watches a loop: ``with find_leaks() as leaks:``. One thread calls `step`; allocations of all threads count."""

    def __init__(self, warmup: int | None = None) -> None:
        self._warmup = warmup
        self._recorder = Recorder()
        self._positions: list[int] = []
        self._watching = False
        self._report: LeakReport | None = None

    def __enter__(self) -> LeakFinder:
        self._recorder.start()
        try:
            self._positions = [self._recorder.position()]
        except BaseException:
            self._recorder.stop()
            raise
        self._report, self._watching = None, True
        return self

    def step(self) -> None:
        """A step has ended. Does nothing outside of the ``with``."""
        if self._watching:
            self._positions.append(self._recorder.position())

    def report(self) -> LeakReport:
        """What was found, until now or, after the ``with``, until its end."""
        if self._report is not None:
            return self._report
        if not self._watching:
            return LeakReport((), 0, 0, 0, notes=("nothing has been watched yet: use `with find_leaks() as leaks:`",))
        return self._judged(interrupted=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._report = self._judged(interrupted=kind is not None)
        finally:
            self._watching = False
            self._recorder.stop()

    def _judged(self, interrupted: bool) -> LeakReport:
        try:
            return _report(self._recorder, self._positions, self._warmup, interrupted)
        except Exception as error:  # the program goes on whatever we make of it
            why = f"the events could not be judged: {type(error).__name__}: {error}"
            return LeakReport((), 0, 0, 0, interrupted=interrupted, notes=(why,))

    def __str__(self) -> str:
        return str(self.report())


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _report(recorder: Recorder, positions: list[int], warmup: int | None, interrupted: bool) -> LeakReport:
    before = recorder.position()
    gc.collect()  # what only cycles hold is freed now, and seen to be
    events = recorder.events()
    ends = times_at(events, positions)
    steps = whole_steps(events, ends)
    skipped = min(steps, warm_up_of(steps, warmup))
    seen = max(0, before - max(positions[0], events.lost))
    notes = [*recorder.notes, *_limits(len(positions) - 1, steps)]
    if steps < FEWEST_STEPS:
        return LeakReport((), steps, skipped, seen, interrupted, tuple(notes))
    growths = leaks_in(events, ends, warmup)
    holders: tuple[Holder | None, ...] = (None,) * len(growths)
    try:
        if growths:
            holders, remarks = who_holds(growths)
            notes += remarks
    except Exception as error:
        notes.append(f"who holds the memory could not be looked up: {type(error).__name__}: {error}")
    in_cycles = _only_before(_until(events, before), ends, warmup, growths)
    return LeakReport(_grouped(growths, holders, in_cycles, events), steps, skipped, seen, interrupted, tuple(notes))


def _limits(asked: int, whole: int) -> Sequence[str]:
    if not asked:
        return ("leaks.step() was not called: call it at the end of each step",)
    if whole < asked:
        lost = asked - whole
        return (f"the events of the first {lost} steps are no longer kept: record more with max_entries",)
    return ()


def _until(events: MemoryEvents, position: int) -> MemoryEvents:
    return events.select(np.arange(min(len(events), max(0, position - events.lost))))


def _only_before(
    events: MemoryEvents, ends: Sequence[int], warmup: int | None, after: Sequence[Growth]
) -> list[Growth]:
    """What grew too, but not once the collector had run."""
    known = {(growth.place, growth.device, growth.source) for growth in after}
    grew = leaks_in(events, ends, warmup)
    return [growth for growth in grew if (growth.place, growth.device, growth.source) not in known]


def _grouped(
    growths: Sequence[Growth],
    holders: Sequence[Holder | None],
    in_cycles: Sequence[Growth],
    events: MemoryEvents,
) -> tuple[Leak, ...]:
    """Growth of one holder on one device is one leak."""
    by_holder: dict[tuple[object, int], list[Growth]] = {}
    holder_of: dict[tuple[object, int], Holder | None] = {}
    for number, (growth, holder) in enumerate(zip(growths, holders, strict=True)):
        group: tuple[object, int] = (number if holder is None else holder, growth.device)
        by_holder.setdefault(group, []).append(growth)
        holder_of[group] = holder
    leaks = [_leak(grown, events, holder_of[group]) for group, grown in by_holder.items()]
    for device in sorted({growth.device for growth in in_cycles}):
        leaks.append(_leak([growth for growth in in_cycles if growth.device == device], events, None, cycles=True))
    return tuple(sorted(leaks, key=lambda leak: -leak.bytes))


def _leak(grown: Sequence[Growth], events: MemoryEvents, holder: Holder | None, cycles: bool = False) -> Leak:
    rate = sum(growth.bytes_per_step for growth in grown)
    free = free_memory(grown[0].device, events)
    left = None if free is None or rate <= 0 else int(free / rate)
    return Leak(tuple(grown), holder, cycles, left, free)
