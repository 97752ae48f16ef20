# SPDX-License-Identifier: Apache-2.0
"""`find_leaks`: runs steps of a program and reports memory that grows with each step."""

from __future__ import annotations

import contextlib
import gc
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from gpuscope import _core
from gpuscope.arguments import check_count, check_done, check_function
from gpuscope.errors import InvalidArgument
from gpuscope.frameworks import torch_memory
from gpuscope.frameworks.numpy import unreported
from gpuscope.memory.history import history
from gpuscope.memory.history.call_stacks import NO_PYTHON_STACK, is_program, line_text
from gpuscope.memory.history.events import Frame, MemoryEvents
from gpuscope.memory.history.growth import FEWEST_GROWTHS, FEWEST_STEPS, Growth, leaks_in, warm_up_of, whole_steps
from gpuscope.memory.history.history import MemoryHistory
from gpuscope.memory.history.holders import Holder, find_holders
from gpuscope.memory.host import resident_bytes
from gpuscope.results import Result
from gpuscope.text import brief, shown
from gpuscope.units import format_bytes

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

WIDTH = 100
_MOST_EVENTS = 500_000  # 32 MB
_MOST_LEAKS = 5
_MOST_FRAMES = 4
_MOST_PLACES = 3
_MOST_THREADS = 3
_INDENT = "   "


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
    """Finds memory that grows step after step and is never freed, with its line and its holder.

    A leak is a place in the code that leaves live allocations behind in nearly every step after the warm-up. Caches
    that fill up, lists of the last few and double buffers are no leaks, if there are enough steps to see their end.
    Allocations of PyTorch (GPU and host), NumPy, CuPy and of any library at the CUDA driver count, each byte once.

    With a function, it is called `steps` times. Without one, ``with find_leaks() as leaks:`` watches a loop that calls
    ``leaks.step()`` at the end of each step. A running memory history is used, with its settings, and continues.

    Args:
        fn: one step of the program; its result is dropped.
        *args: for `fn`.
        steps: number of calls of `fn`.
        warmup: number of first steps that are not judged. None: 3, or fewer if that would leave less than 4.
        **kwargs: for `fn`. Wrap an `fn` that takes `steps` or `warmup` itself in a lambda.

    Returns:
        The report, or the context manager with ``leaks.report()``.

    Raises:
        InvalidArgument: `fn` cannot be called, or the steps are too few for a verdict.
        NotAvailable: memory events cannot be recorded here.
        KeyboardInterrupt: interrupted by Ctrl-C; its `report` covers the steps so far, and its traceback shows it.

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
    if fn is not None:
        check_function("fn", fn, "a function")
    if not _is_whole(steps) or steps < FEWEST_STEPS:
        raise InvalidArgument(
            f"steps is {brief(steps)}; accepted are whole numbers from {FEWEST_STEPS}: fewer do not separate growth "
            "from warm-up"
        )
    if warmup is not None and (not _is_whole(warmup) or not 0 <= warmup <= steps - FEWEST_STEPS + 1):
        raise InvalidArgument(
            f"warmup is {brief(warmup)}; accepted are None and whole numbers from 0 to "
            f"{brief(steps - FEWEST_STEPS + 1)}, 4 less than steps"
        )
    finder = LeakFinder(warmup)
    if fn is None:
        return finder
    try:
        with finder:
            for _ in range(steps):
                check_done("fn", fn(*args, **kwargs))
                finder.step()
    except KeyboardInterrupt as interrupt:  # re-raised to the program, with the report so far
        interrupt.report = finder.report()  # type: ignore[attr-defined]
        if sys.version_info >= (3, 11):
            interrupt.add_note(str(finder))
        raise
    return finder.report()


class LeakFinder:
    """Watches a loop: ``with find_leaks() as leaks:``. The thread that enters the ``with`` also calls `step`.

    Allocations of torch and CuPy count for that thread and for autograd's threads that work for it. Allocations of
    NumPy and at the CUDA driver count for all threads.
    """

    def __init__(self, warmup: int | None = None) -> None:
        self._warmup = warmup
        self._history: MemoryHistory | None = None
        self._own = False  # no history was being recorded
        self._positions: list[int] = []
        self._resident: list[int] = []  # bytes at each position
        self._watching = False
        self._report: LeakReport | None = None

    def __enter__(self) -> LeakFinder:
        running = history.running()
        self._own = running is None
        self._history = running or history.record_memory_history(max_entries=_MOST_EVENTS)
        self._positions, self._resident = [], []
        self._report, self._watching = None, True
        self._mark()
        return self

    def step(self) -> None:
        """Marks the end of a step. Does nothing outside of the ``with``."""
        if self._watching and self._history is not None and self._history.active:
            self._mark()

    def _mark(self) -> None:
        self._positions.append(history.position())
        self._resident.append(resident_bytes() - history.own_bytes())

    def report(self) -> LeakReport:
        """The report until now; after the ``with``, until its end."""
        if self._report is not None:
            return self._report
        if not self._watching:
            return LeakReport((), 0, 0, 0, notes=("nothing has been watched yet: use `with find_leaks() as leaks:`",))
        return self._make_report(interrupted=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._report = self._make_report(interrupted=kind is not None)
        finally:
            self._watching = False
            if self._own and self._history is not None:
                self._history.stop()

    def _make_report(self, interrupted: bool) -> LeakReport:
        try:
            assert self._history is not None
            notes = self._history.notes if self._own else ()
            with unreported():
                report = _report(self._history, notes, self._positions, self._warmup, interrupted)
            return replace(report, resident_bytes_per_step=_resident_growth(self._resident, report))
        except Exception as error:  # must not break the program
            why = f"the events could not be judged: {type(error).__name__}: {error}"
            return LeakReport((), 0, 0, 0, interrupted=interrupted, notes=(why,))

    def __str__(self) -> str:
        return str(self.report())


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _report(
    watched: MemoryHistory, limits: Sequence[str], positions: list[int], warmup: int | None, interrupted: bool
) -> LeakReport:
    ended = not watched.active
    before = history.position()
    gc.collect()  # frees memory that only cycles hold, while releases are still recorded
    events = watched.events()
    if ended:  # the position may be another history's
        before = events.lost + len(events)
    ends = history.times_at(events, positions)
    steps = whole_steps(events, ends)
    skipped = min(steps, warm_up_of(steps, warmup))
    seen = max(0, before - max(positions[0], events.lost))
    notes = [*limits, *(_early(steps) if ended else (*_limits(len(positions) - 1, steps), *_unseen()))]
    if steps < FEWEST_STEPS:
        return LeakReport((), steps, skipped, seen, interrupted, tuple(notes))
    growths = leaks_in(events, ends, warmup)
    holders: tuple[Holder | None, ...] = (None,) * len(growths)
    try:
        if growths:
            holders, remarks = find_holders(growths)
            notes += remarks
    except Exception as error:
        notes.append(f"who holds the memory could not be looked up: {type(error).__name__}: {error}")
    in_cycles = _only_before(_until(events, before), ends, warmup, growths)
    return LeakReport(_grouped(growths, holders, in_cycles, events), steps, skipped, seen, interrupted, tuple(notes))


def _resident_growth(resident: Sequence[int], report: LeakReport) -> float | None:
    """Mean growth of the process's resident memory per judged step; None without judged steps."""
    judged = report.steps - report.warmup
    return (resident[-1] - resident[-1 - judged]) / judged if judged > 0 else None


def _limits(asked: int, whole: int) -> Sequence[str]:
    if not asked:
        return ("leaks.step() was not called: call it at the end of each step",)
    if whole < asked:
        lost = asked - whole
        return (f"the events of the first {lost} steps are no longer kept: record more with max_entries",)
    return ()


def _early(steps: int) -> Sequence[str]:
    return (
        f"the program began or ended a memory history itself after {steps} whole step{'' if steps == 1 else 's'}: "
        "later steps were not seen",
    )


def _unseen() -> Sequence[str]:
    if not (threads := history.unreported_threads()):
        return ()
    left_out = len(threads) - _MOST_THREADS
    names = ", ".join(threads[:_MOST_THREADS]) + (f" and {left_out} more" if left_out > 0 else "")
    return (f"allocations of other threads through torch and CuPy are not seen; there are: {names}",)


def _until(events: MemoryEvents, position: int) -> MemoryEvents:
    return events.select(np.arange(min(len(events), max(0, position - events.lost))))


def _only_before(
    events: MemoryEvents, ends: Sequence[int], warmup: int | None, after: Sequence[Growth]
) -> list[Growth]:
    """Growths that disappeared when the garbage collector ran."""
    known = {(growth.place, growth.device, growth.source) for growth in after}
    grew = leaks_in(events, ends, warmup)
    return [growth for growth in grew if (growth.place, growth.device, growth.source) not in known]


def _grouped(
    growths: Sequence[Growth],
    holders: Sequence[Holder | None],
    in_cycles: Sequence[Growth],
    events: MemoryEvents,
) -> tuple[Leak, ...]:
    """One leak per holder and device, largest first."""
    by_holder: dict[tuple[object, int], list[Growth]] = {}
    holder_of: dict[tuple[object, int], Holder | None] = {}
    for number, (growth, holder) in enumerate(zip(growths, holders, strict=True)):
        group: tuple[object, int] = (number if holder is None else holder, growth.device)
        by_holder.setdefault(group, []).append(growth)
        known = [one for one in (holder_of.get(group), holder) if one is not None]
        holder_of[group] = max(known, key=lambda one: (bool(one.saved_by), bool(one.others)), default=None)
    leaks = [_leak(grown, events, holder_of[group]) for group, grown in by_holder.items()]
    for device in sorted({growth.device for growth in in_cycles}):
        leaks.append(_leak([growth for growth in in_cycles if growth.device == device], events, None, cycles=True))
    return tuple(sorted(leaks, key=lambda leak: -leak.bytes))


def _leak(grown: Sequence[Growth], events: MemoryEvents, holder: Holder | None, cycles: bool = False) -> Leak:
    rate = sum(growth.bytes_per_step for growth in grown)
    free = free_memory(grown[0].device, events)
    left = None if free is None or rate <= 0 else int(free / rate)
    return Leak(tuple(grown), holder, cycles, left, free)


@dataclass(frozen=True)
class Leak:
    """Memory that grows step after step, of one cause.

    Attributes:
        growths: the places that grow together, largest first.
        holder: the object that keeps it alive; None if not found.
        cycles: only reference cycles keep it. Python's garbage collector frees it, but GPU memory does not trigger it.
        steps_left: number of steps until the GPU's free memory is used up at this rate; None if unknown.
        free_bytes: free on the GPU, including unused memory of allocators; None if unknown.
    """

    growths: tuple[Growth, ...]
    holder: Holder | None = None
    cycles: bool = False
    steps_left: int | None = None
    free_bytes: int | None = None

    @property
    def place(self) -> Frame | None:
        """The line that allocated most of it; None if no stack is known."""
        return self.growths[0].place

    @property
    def stack(self) -> tuple[Frame, ...]:
        """The call stack of most of it, innermost frame first."""
        return self.growths[0].stack

    @property
    def device(self) -> int:
        """Ordinal of the GPU, HOST for host memory."""
        return self.growths[0].device

    @property
    def bytes(self) -> int:
        """Growth over the judged steps."""
        return sum(growth.bytes for growth in self.growths)

    @property
    def allocations(self) -> int:
        """Additional allocations; 0 if allocations were replaced by larger ones."""
        return sum(growth.allocations for growth in self.growths)

    @property
    def bytes_per_step(self) -> float:
        """Mean growth per step."""
        return sum(growth.bytes_per_step for growth in self.growths)

    @property
    def allocations_per_step(self) -> float:
        """Mean number of additional allocations per step."""
        return sum(growth.allocations / growth.steps for growth in self.growths)

    @property
    def grew(self) -> int:
        """Number of judged steps in which the largest place grew."""
        return self.growths[0].grew

    @shown
    def __str__(self) -> str:
        return "\n".join(leak_text(self))


@dataclass(frozen=True)
class LeakReport(Result):
    """The result of `find_leaks`; true if there are leaks. ``print(report)`` shows them.

    Attributes:
        leaks: largest first.
        steps: number of steps seen from begin to end.
        warmup: number of first steps that were not judged.
        events: number of allocations and releases seen.
        interrupted: the program was interrupted before the last step.
        notes: limits of the findings.
        resident_bytes_per_step: mean growth of the process's resident host memory per judged step, without that of the
            memory history; None if no step was judged.
    """

    leaks: tuple[Leak, ...]
    steps: int
    warmup: int
    events: int
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    resident_bytes_per_step: float | None = None

    @property
    def judged(self) -> bool:
        """Whether the steps are enough for a verdict."""
        enough = self.steps >= FEWEST_STEPS and self.steps - self.warmup >= FEWEST_GROWTHS
        return enough and self.events > 0

    @property
    def bytes_per_step(self) -> float:
        """Mean growth of all leaks per step."""
        return sum(leak.bytes_per_step for leak in self.leaks)

    def __len__(self) -> int:
        return len(self.leaks)

    def __bool__(self) -> bool:
        return bool(self.leaks)

    def __iter__(self) -> Iterator[Leak]:
        return iter(self.leaks)

    def __repr__(self) -> str:
        return f"<LeakReport: {_verdict(self)}>"

    def __str__(self) -> str:
        return _text(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; sizes are bytes."""
        return {
            "leaks": [_leak_dict(leak) for leak in self.leaks],
            "steps": self.steps,
            "warmup": self.warmup,
            "events": self.events,
            "judged": self.judged,
            "interrupted": self.interrupted,
            "notes": list(self.notes),
            "resident_bytes_per_step": self.resident_bytes_per_step,
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per leak."""
        return [_leak_dict(leak) for leak in self.leaks]

    def plot(self, top: int = 15, ax: Axes | None = None) -> Axes:
        """Draws one bar per leak: bytes per step, labelled with the line that allocated them.

        Args:
            top: maximum number of leaks.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: `top` is below 1.
        """
        from gpuscope import plots

        drawn = self.leaks[: check_count("top", top, 1)]
        names = [line_text(leak.place, NO_PYTHON_STACK) for leak in drawn]
        sizes = [leak.bytes_per_step for leak in drawn]
        return plots.bars(names, sizes, quantity="B", what="growth a step", ax=ax, title=_verdict(self))


def _leak_dict(leak: Leak) -> dict[str, Any]:
    holder = leak.holder
    return {
        "place": None if leak.place is None else leak.place._asdict(),
        "device": leak.device,
        "bytes": leak.bytes,
        "bytes_per_step": leak.bytes_per_step,
        "allocations": leak.allocations,
        "allocations_per_step": leak.allocations_per_step,
        "grew": leak.grew,
        "steps_left": leak.steps_left,
        "free_bytes": leak.free_bytes,
        "cycles": leak.cycles,
        "holder": None if holder is None else {**vars(holder), "text": str(holder), "advice": holder.advice},
        "growths": [_growth_dict(growth) for growth in leak.growths],
    }


def _growth_dict(growth: Growth) -> dict[str, Any]:
    return {
        "place": None if growth.place is None else growth.place._asdict(),
        "stack": [frame._asdict() for frame in growth.stack],
        "source": growth.source,
        "device": growth.device,
        "steps": growth.steps,
        "grew": growth.grew,
        "bytes": growth.bytes,
        "bytes_per_step": growth.bytes_per_step,
        "allocations": growth.allocations,
    }


def _text(report: LeakReport) -> str:
    """The verdict, each leak, and the limits of the findings."""
    lines = wrapped(_verdict(report))
    for number, leak in enumerate(report.leaks[:_MOST_LEAKS], 1):
        first, *others = leak_text(leak)
        lines += ["", f"{number}. {first}", *(_INDENT + line for line in others)]
    left_out = len(report.leaks) - _MOST_LEAKS
    if left_out > 0:
        smaller = format_bytes(sum(leak.bytes_per_step for leak in report.leaks[_MOST_LEAKS:]))
        lines += ["", f"and {left_out} smaller, {smaller} a step together"]
    if report.interrupted:
        lines += wrapped(f"interrupted: the program was stopped after {report.steps} steps")
    if report.leaks:
        lines += ["", f"what fills up only after {report.steps} steps would look the same: more steps tell"]
    if report.resident_bytes_per_step is not None:
        grew = format_bytes(report.resident_bytes_per_step, signed=True)
        lines += ["", f"resident memory: {grew} a step; malloc of C libraries is not recorded, memray shows it"]
    for note in report.notes:
        lines += wrapped(f"note: {note}")
    return "\n".join(lines)


def _verdict(report: LeakReport) -> str:
    seen = f"in {report.steps} step{'' if report.steps == 1 else 's'}"
    if report.steps < FEWEST_STEPS:
        return f"leaks cannot be told {seen}: it takes at least {FEWEST_STEPS}"
    if report.steps - report.warmup < FEWEST_GROWTHS:
        return (
            f"leaks cannot be told {seen}, the first {report.warmup} of them warm-up: "
            f"it takes at least {FEWEST_GROWTHS} after the warm-up"
        )
    if not report.events:
        return f"leaks cannot be told {seen}: not one allocation was seen"
    judged = f"{seen}, the first {report.warmup} of them warm-up"
    if not report.leaks:
        return f"no leaks {judged}: nothing grew step after step ({report.events:,} allocations and releases)"
    count = f"{len(report)} leak{'' if len(report) == 1 else 's'}"
    return f"{count} {judged}: {format_bytes(report.bytes_per_step)} a step"


def leak_text(leak: Leak) -> list[str]:
    """Place, size, confidence, holder and stack of a leak, as lines without indent."""
    main = leak.growths[0]
    what = _pieces(leak) if leak.allocations else _remade(leak)
    lines = [f"{line_text(leak.place, NO_PYTHON_STACK)}: {format_bytes(leak.bytes_per_step)} a step"]
    lines += wrapped(f"{what}; it grew in {main.grew} of the {main.steps} steps after warm-up{_where(leak)}")
    if leak.steps_left is not None and leak.free_bytes is not None:
        lines += wrapped(f"at this rate the GPU's free {format_bytes(leak.free_bytes)} last {leak.steps_left:,} steps")
    lines += _held(leak)
    lines += [f"{'allocated at' if not row else '':<12} {text}" for row, text in enumerate(_frames(leak.stack))]
    lines += _others(leak)
    return lines


def _pieces(leak: Leak) -> str:
    return f"{format_bytes(leak.bytes)} in {leak.allocations:,} pieces, {leak.allocations_per_step:.3g} a step"


def _remade(leak: Leak) -> str:
    return f"one piece replaced by a larger one each time, grown by {format_bytes(leak.bytes)} so far"


def _where(leak: Leak) -> str:
    place = "host memory" if leak.device < 0 else f"GPU {leak.device}"
    return f" ({place}, {leak.growths[0].source})"


def _held(leak: Leak) -> list[str]:
    if leak.cycles:
        return wrapped(
            f"held by reference cycles only: freed when Python's garbage collector runs, which "
            f"{'memory of arrays' if leak.device < 0 else 'GPU memory'} does not make it do; break the cycle, or call "
            "gc.collect() now and then"
        )
    holder = leak.holder
    if holder is None:
        return wrapped("who holds it was not found among Python's objects")
    through = f"; {holder.saved_by} of an autograd graph saved it for backward" if holder.saved_by else ""
    lines = wrapped(f"held by {holder}{through}")
    if not holder.advice:
        return lines
    lines += wrapped(holder.advice)
    if holder.entries is not None and holder.kind == "list" and not holder.error:
        name = holder.name.rpartition(".")[2] or "losses"
        lines += [f"  {name}.append(loss)         # keeps the graph of every step"]
        lines += [f"  {name}.append(loss.item())  # keeps a number"]
    return lines


def _others(leak: Leak) -> list[str]:
    others = leak.growths[1:]
    if not others:
        return []
    shown = [
        f"{line_text(one.place, NO_PYTHON_STACK)} ({format_bytes(one.bytes_per_step)} a step)"
        for one in others[:_MOST_PLACES]
    ]
    more = len(others) - len(shown)
    places = "another place grows" if len(others) == 1 else f"{len(others)} other places grow"
    return wrapped(f"{places} with it: {', '.join(shown)}{f' and {more} more' if more else ''}")


def _frames(stack: tuple[Frame, ...]) -> list[str]:
    own = [frame for frame in stack if is_program(frame.file)] or list(stack)
    return [_cut(str(frame), WIDTH - len(_INDENT) - 13) for frame in own[:_MOST_FRAMES]]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]


def wrapped(text: str) -> list[str]:
    """A sentence wrapped to the width, with indented continuation lines."""
    return textwrap.wrap(text, WIDTH - len(_INDENT), subsequent_indent="  ", break_long_words=False)


def free_memory(device: int, events: MemoryEvents) -> int | None:
    """Free bytes of the driver on a GPU, plus bytes that allocators held there unused at their last events."""
    if device < 0:
        return None
    free: int | None = None
    with contextlib.suppress(Exception):  # no such GPU
        free = _core.process_memory(device)["free"]
    if free is None:
        free = torch_memory.free_bytes(device)
    if free is None:
        return None
    for source in np.unique(events.source[events.device == device]):
        row = np.flatnonzero((events.device == device) & (events.source == source))[-1]
        free += max(0, int(events.reserved_bytes[row]) - int(events.allocated_bytes[row]))
    return free
