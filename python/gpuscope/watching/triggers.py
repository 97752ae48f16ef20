# SPDX-License-Identifier: Apache-2.0
"""Events of a watched program that are worth a dump: slow steps, hangs, errors, ends, and problems of its GPUs.

A `Trigger` looks at the program once a second on the watcher's thread (`check`), or is called by the program and fires
at once (`begin`).
"""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.limits.out_of_memory import OutOfMemory
from gpuscope.memory.limits.out_of_memory_errors import is_out_of_memory
from gpuscope.memory.limits.out_of_memory_reports import ExceptHook, OutOfMemoryReports
from gpuscope.monitor.snapshot import GpuState
from gpuscope.monitor.xid import describe
from gpuscope.text import brief, one_line
from gpuscope.units import first_line, format_seconds, format_share, format_times

HISTORY = 200  # steps that a step is compared with
_FEWEST = 30  # before that, no step is called slow
_Z, _FACTOR, _LOST_S = 6.0, math.log(1.3), 0.05
_ALIKE, _RARE = math.log(1.15), 0.02
_EVERY = 40  # steps between two readings of the level
_NEW_LEVEL = 10  # successive steps that make a new level
_LEAST_SPREAD = 0.002  # of log time: times rounded by a clock have a spread of 0
_MAD = 1.4826  # from the median absolute deviation to the standard deviation

_HANG_S, _HANG_STEPS = 30.0, 10.0
_OF_WATCHDOG = 0.8
_WATCHDOGS = ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",)
_LONGEST_GAP_S = 2.0  # a stopped or suspended process does not hang

_GIVEN_UP = "gpuscope: a second signal ended this before the watch was written\n"
_THROTTLED_SAMPLES = 2
_THROTTLE_SLOWER = 1.05
_IDLE_RATIO, _IDLE_S = 0.1, 60.0


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        trigger: name of the trigger.
        cause: events of the same trigger and cause are one event that is repeated.
        sentence: what happened.
        step: number of the step; None without one.
        figures: behind it, for ``why.json``.
        details: lines for people, as a traceback.
        is_asked: a user wants this dump, whatever was dumped before.
        size: how bad it is beside others of its trigger; 0 if they are alike.
        is_past: whether it is over when it is found, so that stacks and regions are of a later moment.
    """

    trigger: str
    cause: str
    sentence: str
    step: int | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    is_asked: bool = False
    size: float = 0.0
    is_past: bool = False


@dataclass(frozen=True)
class Beat:
    """The program since the last look at it.

    Attributes:
        first: number of the first of the new steps.
        seconds: the new steps' times.
        compared: which of them may be compared: no switch of recording and no other profiler's work is in them.
        passed_s: since the last look.
        median_s: of the last steps; None before the first.
        p99_s: likewise.
        gpus: the latest samples of this process's GPUs.
        machine: of all GPUs of the machine.
        unit: "step" or "request".
        is_busy: whether a step or request has begun and not ended.
    """

    first: int
    seconds: NDArray[np.float64]
    compared: NDArray[np.bool_]
    passed_s: float
    median_s: float | None = None
    p99_s: float | None = None
    gpus: Sequence[GpuState] = ()
    machine: Sequence[GpuState] = ()
    unit: str = "step"
    is_busy: bool = True


Fire = Callable[[Event], None]


class Trigger:
    """The base. A trigger overrides what it needs."""

    name = ""

    def begin(self, fire: Fire) -> None:
        """Starts; `fire` may be called from any thread until `end`."""

    def check(self, beat: Beat) -> Iterator[Event]:
        """The events since the last call. Called once a second, by one thread."""
        yield from ()

    def end(self) -> None:
        """Stops."""


class SlowStep(Trigger):
    """A step that is far from the last 200 steps: in robust deviations of log time, as a factor, and in time lost.

    A step is not slow if more than 2 % of those steps took about as long. Ten successive slow or fast steps are a new
    level, which is learnt. Slow steps at equal distances, as those with a checkpoint, have one cause.
    """

    name = "slow_step"

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=HISTORY)
        self._apart: list[float] = []  # the latest successive steps on one side of the level
        self._slow: deque[int] = deque(maxlen=3)
        self._level = (0.0, 0.0)  # median and spread of `_logs`
        self._unread = 0  # steps since then

    def check(self, beat: Beat) -> Iterator[Event]:
        """As `Trigger.check`."""
        logs = np.log(np.maximum(beat.seconds, 1e-9))
        places = np.flatnonzero(beat.compared)
        for begin in range(0, len(places), _EVERY):
            part = places[begin : begin + _EVERY]
            self._unread += len(part)
            if self._unread >= _EVERY and len(self._logs) >= _FEWEST:
                self._read_level()
            if len(self._logs) >= _FEWEST and (np.abs(logs[part] - self._level[0]) <= _FACTOR).all():
                self._apart.clear()
                self._logs.extend(logs[part].tolist())
                continue
            for at in part.tolist():
                yield from self._take(float(logs[at]), beat.first + at, beat.unit)

    def _take(self, value: float, step: int, unit: str) -> Iterator[Event]:
        if len(self._logs) >= _FEWEST:
            yield from self._judge(value, step, unit)
        self._logs.append(value)
        if len(self._apart) == _NEW_LEVEL:
            self._logs.clear()
            self._logs.extend(self._apart)
            self._apart.clear()
        if len(self._logs) == _FEWEST:
            self._read_level()

    def _read_level(self) -> None:
        logs = np.sort(np.fromiter(self._logs, np.float64))
        middle = float(logs[(len(logs) - 1) // 2])
        away = np.sort(np.abs(logs - middle))  # np.median takes ten times as long
        self._level = middle, max(_MAD * float(away[(len(logs) - 1) // 2]), _LEAST_SPREAD)
        self._unread = 0

    def _judge(self, value: float, step: int, unit: str) -> Iterator[Event]:
        middle, spread = self._level
        away = value - middle
        if abs(away) <= _FACTOR:
            self._apart.clear()
            return
        if self._apart and (self._apart[-1] > middle) != (away > 0):
            self._apart.clear()
        is_first = not self._apart or value - self._apart[-1] > _FACTOR  # not one of a new level
        self._apart.append(value)
        if away > _Z * spread and is_first and math.exp(value) - math.exp(middle) > _LOST_S:
            alike = sum(each > value - _ALIKE for each in self._logs)
            if alike <= _RARE * len(self._logs):
                yield self._event(step, math.exp(value), away / spread, unit)

    def _event(self, step: int, seconds: float, z: float, unit: str) -> Event:
        usual = math.exp(self._level[0])
        self._slow.append(step)
        distances = np.diff(self._slow)
        is_regular = len(distances) == 2 and abs(int(distances[0]) - int(distances[1])) <= 0.01 * int(distances[1])
        cause = f"every {int(distances[1]):,} {unit}s" if is_regular else f"{unit} {step}"
        return Event(
            self.name,
            cause,
            f"{unit} {step:,} took {format_seconds(seconds)}, {format_times(seconds / usual)} the usual "
            f"{format_seconds(usual)}" + (f"; so does a {unit} {cause}" if is_regular else ""),
            step,
            {"seconds": seconds, "usual_s": usual, "z": z, "lost_s": seconds - usual},
            size=seconds - usual,
            is_past=True,
        )


class Hang(Trigger):
    """No step for 30 s and for ten times the p99 of steps, or for 80 % of the time-out of NCCL's watchdog."""

    name = "hang"

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self._watchdog_s = min(map(_seconds_of, (variables.get(name, "") for name in _WATCHDOGS)))
        self._steps = 0
        self._waited_s = 0.0
        self._fired = False

    def limit_s(self, p99_s: float) -> float:
        """Seconds without a step that are a hang."""
        return min(max(_HANG_S, _HANG_STEPS * p99_s), _OF_WATCHDOG * self._watchdog_s)

    def check(self, beat: Beat) -> Iterator[Event]:
        """As `Trigger.check`."""
        if len(beat.seconds):
            self._steps = beat.first + len(beat.seconds)
            self._waited_s, self._fired = 0.0, False
            return
        self._waited_s = self._waited_s + min(beat.passed_s, _LONGEST_GAP_S) if beat.is_busy else 0.0
        if self._fired or beat.p99_s is None or self._waited_s <= (limit := self.limit_s(beat.p99_s)):
            return
        self._fired = True
        figures = {"waited_s": self._waited_s, "limit_s": limit, "p99_s": beat.p99_s}
        usual = f"{format_seconds(beat.median_s)} each (p99 {format_seconds(beat.p99_s)})"
        sentence = f"no {beat.unit} for {format_seconds(self._waited_s)}; {self._steps:,} {beat.unit}s took {usual}"
        yield Event(self.name, f"after {beat.unit} {self._steps}", sentence, self._steps, figures)


class ThrottledGpu(Trigger):
    """A GPU whose clocks are held back in two successive samples, while steps take 5 % longer than before."""

    name = "throttled_gpu"

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], int] = {}
        self._usual_s: float | None = None

    def check(self, beat: Beat) -> Iterator[Event]:
        """As `Trigger.check`."""
        now = {(gpu.index, reason) for gpu in beat.gpus for reason in gpu.throttle_faults}
        self._seen = {each: self._seen.get(each, 0) + 1 for each in now}
        if not now:
            self._usual_s = beat.median_s
        if self._usual_s is None or not len(beat.seconds):
            return
        slower = float(np.median(beat.seconds)) / self._usual_s
        for (index, reason), samples in self._seen.items():
            if samples >= _THROTTLED_SAMPLES and slower > _THROTTLE_SLOWER:
                sentence = f"GPU {index} is throttled ({reason}), and steps take {format_times(slower)} as long"
                figures = {"gpu": index, "reason": reason, "slower": slower}
                yield Event(self.name, f"GPU {index} {reason}", sentence, beat.first, figures)


class GpuError(Trigger):
    """An error that the driver reports (Xid) of any GPU of the machine."""

    name = "gpu_error"

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}

    def check(self, beat: Beat) -> Iterator[Event]:
        """As `Trigger.check`."""
        for gpu in beat.machine:
            for error in gpu.xid_errors or ():
                key = gpu.index, error.xid
                if error.count > self._counts.get(key, 0):
                    figures = {"gpu": gpu.index, "xid": error.xid, "count": error.count}
                    sentence = f"GPU {gpu.index}: {describe(error.xid)}"
                    yield Event(self.name, f"GPU {gpu.index} Xid {error.xid}", sentence, beat.first, figures)
                self._counts[key] = error.count


class IdleGpu(Trigger):
    """A GPU that worked before and is busy for less than 10 % of the time for a minute."""

    name = "idle_gpu"

    def __init__(self) -> None:
        self._idle_s: dict[int, float] = {}  # of GPUs that worked before

    def check(self, beat: Beat) -> Iterator[Event]:
        """As `Trigger.check`."""
        for gpu in beat.gpus:
            if gpu.busy_ratio is None:
                continue
            if gpu.busy_ratio >= _IDLE_RATIO:
                self._idle_s[gpu.index] = 0.0
            elif (idle := self._idle_s.get(gpu.index)) is not None:
                idle += min(beat.passed_s, _LONGEST_GAP_S)
                self._idle_s[gpu.index] = idle if idle < _IDLE_S else -math.inf  # once, until it works again
                if idle >= _IDLE_S:
                    sentence = (
                        f"GPU {gpu.index} was busy for less than {format_share(_IDLE_RATIO)} of the last "
                        f"{format_seconds(_IDLE_S)}"
                    )
                    figures = {"gpu": gpu.index, "busy_ratio": gpu.busy_ratio}
                    yield Event(self.name, f"GPU {gpu.index}", sentence, beat.first, figures)


class MemoryExhausted(Trigger):
    """An out-of-memory error of the GPU or the host."""

    name = "out_of_memory"

    def __init__(self) -> None:
        self._reports: OutOfMemoryReports | None = None

    def begin(self, fire: Fire) -> None:
        """As `Trigger.begin`."""

        def report(found: OutOfMemory) -> None:
            figures = {"requested_bytes": found.requested_bytes, "library": found.library, "device": found.device}
            lines = tuple(str(found).splitlines())
            cause = f"{found.library} {found.device} {found.stack[:1]}"
            fire(Event(self.name, cause, lines[0].removeprefix("gpuscope: "), None, figures, lines[1:]))

        self._reports = OutOfMemoryReports(file=io.StringIO(), on_report=report)

    def end(self) -> None:
        """As `Trigger.end`."""
        if self._reports is not None:
            self._reports.close()


class UncaughtException(Trigger):
    """An uncaught exception of any thread, except Ctrl-C and out-of-memory errors, which another trigger reports."""

    name = "exception"

    def __init__(self) -> None:
        self._hooks: tuple[ExceptHook, ...] = ()
        self._fire: Fire | None = None
        self._last: int | None = None  # the id of the error that was reported

    def begin(self, fire: Fire) -> None:
        """As `Trigger.begin`."""
        self._fire = fire
        self._hooks = (ExceptHook(sys, self.report), ExceptHook(threading, self.report))

    def report(self, error: BaseException | None) -> None:
        """Reports an error once; never raises."""
        try:
            if not isinstance(error, Exception) or id(error) == self._last or is_out_of_memory(error):
                return
            self._last = id(error)
            frames = traceback.extract_tb(error.__traceback__)
            place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
            sentence = f"an exception was not caught: {first_line(error)}" + (f" at {place}" if place else "")
            if self._fire is not None:
                figures = {"exception": type(error).__name__}
                self._fire(Event(self.name, f"{type(error).__name__} {place}", sentence, None, figures, tuple(lines)))
        except Exception:  # a failure here must not replace the program's own error
            return

    def end(self) -> None:
        """As `Trigger.end`."""
        self._fire = None
        for hook in self._hooks:
            hook.remove()


class Requested(Trigger):
    """A signal that a user sends for a dump, as ``kill -USR2``. It is handled when the main thread runs Python."""

    name = "signal"

    def __init__(self, number: int) -> None:
        known = {int(each) for each in signal.Signals}
        if isinstance(number, bool) or not isinstance(number, int) or number not in known:
            raise InvalidArgument(f"signals is {brief(number)}; accepted is a signal, as signal.SIGUSR2")
        self._number = signal.Signals(number)
        if self._number in (signal.SIGKILL, signal.SIGSTOP):
            raise InvalidArgument(f"signals is {self._number.name}, which no program can handle")
        if is_handled(number):
            raise InvalidArgument(f"signals is {self._number.name}, which the program handles; accepted is another one")
        if threading.current_thread() is not threading.main_thread():
            raise InvalidArgument("signals can only be handled if watch is called on the main thread")
        self._previous: Any = None

    def begin(self, fire: Fire) -> None:
        """As `Trigger.begin`."""

        def handle(number: int, frame: object) -> None:
            fire(Event(self.name, "asked", f"a dump was asked for by {self._number.name}", is_asked=True))

        self._previous = signal.signal(self._number, handle)
        self._handler = handle

    def end(self) -> None:
        """As `Trigger.end`."""
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(self._number) is self._handler:
            signal.signal(self._number, self._previous)


def is_handled(number: int) -> bool:
    """Whether this process handles a signal, in Python or in C."""
    if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
        return True
    try:
        with open("/proc/self/status") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


DEFAULT: tuple[type[Trigger], ...] = (
    SlowStep,
    Hang,
    MemoryExhausted,
    UncaughtException,
    GpuError,
    ThrottledGpu,
    IdleGpu,
)
EXIT = "exit"
"""The trigger of a program that ends with an exit status other than 0."""

TERMINATED = "terminated"
"""The trigger of a program that a signal ends."""

NAMES = (*(each.name for each in DEFAULT), EXIT, TERMINATED)
"""The triggers that `watch` accepts by name."""


def chosen(given: object) -> tuple[str, ...]:
    """The names of the triggers that a user has given, as ``"default"``, ``"slow_step,hang"`` or a list.

    Raises:
        InvalidArgument: a name is not known.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        given = NAMES if given == "default" else [name.strip() for name in given.split(",") if name.strip()]
    names = tuple(given) if isinstance(given, Sequence) else (given,)
    for name in names:
        if name not in NAMES:
            raise InvalidArgument(f"triggers contains {brief(name)}; accepted are 'default' and {', '.join(NAMES)}")
    return names


def ended(code: int | None, by: str) -> Event | None:
    """The event of a program that ended with a status other than 0, or by a signal."""
    if by.startswith("SIG"):
        return Event(TERMINATED, by, f"the program was ended by {one_line(by)}", None, {"signal": by})
    if code:
        return Event(EXIT, str(code), f"the program ended with exit status {code}", None, {"status": code})
    return None


def watch_end(fire: Fire, end: Callable[[str], object], note: Callable[[str], object]) -> Callable[[], None]:
    """Watches for SIGTERM; returns the function that no longer does.

    Args:
        fire: called with the event before a handler of the program.
        end: without such a handler, called with the signal's name just before the process ends by it. This holds for
            all signals that end the process.
        note: called with the reason if this is not possible.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if previous is signal.SIG_DFL and not is_handled(signal.SIGTERM):
        # Not signal.signal: Python's handler would wait for a main thread that is in a call of C.
        try:
            _core.watch_signals(lambda number: end(signal.Signals(number).name), _GIVEN_UP)
        except NotAvailable as error:
            note(str(error))
            return lambda: None
        return _core.unwatch_signals
    if not callable(previous) or threading.current_thread() is not threading.main_thread():
        return lambda: None

    def handle(number: int, frame: FrameType | None) -> Any:
        if (event := ended(None, signal.Signals(number).name)) is not None:
            fire(event)
        return previous(number, frame)

    def restore() -> None:
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, previous)

    signal.signal(signal.SIGTERM, handle)
    return restore


def _seconds_of(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return value if value > 0 else math.inf
