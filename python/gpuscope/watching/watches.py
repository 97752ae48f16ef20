# SPDX-License-Identifier: Apache-2.0
"""`watch`: a program under observation for days, at a measured cost."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope.arguments import as_float, check_positive
from gpuscope.distributed import distributed_rank
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument, NotAvailable
from gpuscope.frameworks.torch_flight_recorder import write_flight_recorder
from gpuscope.monitor.gpu_monitor import GPUMonitor
from gpuscope.monitor.snapshot import GpuSnapshot, GpuState, is_the_hosts_number
from gpuscope.paths import as_path, claim_folder, replacing
from gpuscope.profiler import lifecycle
from gpuscope.profiler.facade import profile
from gpuscope.regions import record_function
from gpuscope.text import brief, one_line
from gpuscope.threads import shared_lock, start_thread
from gpuscope.units import first_line, format_seconds, parse_bytes
from gpuscope.watching.black_box import read_black_box
from gpuscope.watching.controller import Controller, Place, RequestController, StepController, begins_window
from gpuscope.watching.dumps import (
    MOST_DUMPS,
    Dump,
    Dumps,
    Moment,
    OnDump,
    make_own_folder,
    region_of,
    top_rows,
    versions,
)
from gpuscope.watching.summary import BUCKETS_S, FOLDER, METRICS, STATE, WatchSummary, dump_lines
from gpuscope.watching.triggers import (
    DEFAULT,
    EXIT,
    TERMINATED,
    Beat,
    Event,
    GpuError,
    Hang,
    IdleGpu,
    MemoryExhausted,
    Requested,
    ThrottledGpu,
    Trigger,
    UncaughtException,
    chosen,
    ended,
    watch_end,
)
from gpuscope.watching.window_files import WindowFiles

_WAKE_S = 1.0
_METRICS_S = 10.0  # Prometheus asks each 15 s or less often
_KEEP_AGE_S = 7 * 86400.0
_MOST_TIMES = 1 << 16  # steps between two looks
_RECENT, _LAST = 1000, 10  # steps
_FEWEST_FOR_P99 = 5
_FLUSH_S = 0.05  # for GPU work that still runs when a signal ends the program
_JOIN_S = 5.0
_POLL_S = 0.02
_MOST_NOTES = 10
_FAILURES = {UncaughtException.name, MemoryExhausted.name}  # they explain an exit status
_DIR = "gpuscope-watch"
_BOX = "black_box.bin"

_current: Watch | None = None


def watch(
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - the name on the command line and in the documents
    budget: float = 0.01,
    triggers: str | Sequence[str] | None = "default",
    on_dump: OnDump = None,
    *,
    signals: int | None = None,
    keep_bytes: int | str = "1GB",
    keep_age: float = _KEEP_AGE_S,
    pprof: str | os.PathLike[str] | None = None,
) -> Watch:
    """Watches this program until `Watch.stop` or its end: windows of full recordings at a measured cost, and dumps.

    Call `gpuscope.step` or `Watch.step` at the end of every step, or serve requests in ``with watch.request():``.
    Without either there are triggers only. Windows are 25 steps out of N. N follows the measured cost, so that the
    upper end of its 95 % interval stays under the budget. The first window is at step N. No step raises an error.

    Args:
        dir: folder of the job, made if missing; default ``gpuscope-watch``. Windows are in ``rank-00000.watch/``,
            dumps in ``dumps/``.
        budget: largest extra time of the program by recording, as a share. 0 records no windows.
        triggers: events that are dumped: "default" for all, or names with commas or as a list, as "slow_step,hang".
            None for none.
        on_dump: called with the path of each dump on the watcher's thread, or a command as ``"cmd {path}"``.
        signals: a signal that asks for a dump, as ``signal.SIGUSR2``.
        keep_bytes: most bytes of windows to keep; the oldest are deleted.
        keep_age: seconds after which windows are deleted.
        pprof: a folder, made if missing, for one window a minute as a profile of pprof. The same limits hold for them.

    Raises:
        InvalidArgument: an argument is wrong, the folder is not safe, or a watch runs in this process already.
        GpuscopeError: the folder cannot be written.
        NotAvailable: the system refuses another thread.
    """
    return Watch(dir, budget, triggers, on_dump, signals=signals, keep_bytes=keep_bytes, keep_age=keep_age, pprof=pprof)


class Watch:
    """A watch that runs; arguments as of `watch`. `step` is for one thread, `request` for any; both never raise."""

    _on = False

    def __init__(
        self,
        dir: str | os.PathLike[str] | None = None,  # noqa: A002
        budget: float = 0.01,
        triggers: str | Sequence[str] | None = "default",
        on_dump: OnDump = None,
        *,
        signals: int | None = None,
        keep_bytes: int | str = "1GB",
        keep_age: float = _KEEP_AGE_S,
        pprof: str | os.PathLike[str] | None = None,
        ends_seen: bool = False,
    ) -> None:
        """As `watch`. With `ends_seen` the caller calls `end` when a signal or os._exit ends the program."""
        global _current
        if not 0 <= as_float(budget) < 1:
            raise InvalidArgument(f"budget is {brief(budget)}; accepted are shares from 0 to below 1, as 0.01 for 1 %")
        self._budget = as_float(budget)
        self._names = chosen(triggers)
        keep = parse_bytes("keep_bytes", keep_bytes), check_positive("keep_age", keep_age, "seconds")
        if _current is not None and _current._on:
            raise InvalidArgument("watch: a watch runs in this process already; accepted after its stop()")
        self._triggers: list[Trigger] = [each() for each in DEFAULT if each.name in self._names]
        if signals is not None:
            self._triggers.append(Requested(signals))
        self._root = as_path(_DIR if dir is None else dir).absolute()  # the program may change its directory
        self._dumps = Dumps(self._root / "dumps", on_dump)
        make_own_folder(self._root)
        rank = distributed_rank()
        self._rank, self._ranks = (rank.rank, rank.world_size) if rank else (0, 1)
        self._own = claim_folder(self._root / f"rank-{self._rank:05d}{FOLDER}", FOLDER)
        profiles = None if pprof is None else make_own_folder(as_path(pprof).absolute(), "pprof")
        self._files = WindowFiles(self._own, *keep, self._lose, profiles)

        self._on = True
        self._process = os.getpid()
        self._began_ns, self._began_s = _core.realtime_ns(), time.monotonic()
        self._lock = shared_lock()
        self._controller: Controller = StepController(self._budget)
        self._unit = "steps"
        self._number = 0  # of the present step, or of requests that began
        self._last_ns = time.monotonic_ns()
        self._due = 0  # for steps before this number, only the time is noted
        self._place = Place.OUTSIDE
        self._window: profile | None = None
        self._opening: profile | None = None  # the latest window
        self._window_begin = self._window_until = self._window_before = 0
        self._switches = 0
        self._switch_wanted = False  # for requests: by the watcher's thread
        self._in_other = False  # another profiler runs
        self._times: deque[tuple[int, Place]] = deque(maxlen=_MOST_TIMES)  # ns
        self._requests = 0  # that have ended

        # Of the watcher's thread.
        self._seen = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._histogram = np.zeros(len(BUCKETS_S) + 1, np.int64)
        self._total_s = 0.0
        self._lost: dict[str, int] = {}
        self._notes: list[str] = []
        self._gpus: dict[int, GpuState] = {}
        self._beat_s = self._metrics_due_s = self._began_s
        self._watcher_cpu_s = 0.0
        self._state = "running"
        self._events: deque[Event] = deque(maxlen=1000)
        self._dumping: Event | None = None  # whose dump is being written

        self._box: _core.BlackBox | None = None
        self._note_step: Callable[[int], None] = lambda number: None  # in the black box
        self._monitor: GPUMonitor | None = None
        self._unwatch_end: Callable[[], None] = lambda: None
        self._ends = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-watch", daemon=True)
        try:
            self._begin(ends_seen)
        except BaseException:
            self._on = False
            self._undo()
            raise
        _current = self

    # -- the program's threads -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Marks the end of a step."""
        now = time.monotonic_ns()
        number = self._number + 1
        self._note_step(number)
        if number < self._due:
            self._number = number
            self._times.append((now - self._last_ns, self._place))
            self._last_ns = now
        elif self._on:
            self._step_near_switch(now)

    def _step_near_switch(self, now: int) -> None:
        with self._lock:
            if not self._on or self._unit != "steps":
                return
            self._number = number = self._number + 1
            self._times.append((now - self._last_ns, self._place))
            self._last_ns, self._due = now, 0
            period = self._controller.period
            if self._window is not None:
                if number >= self._window_until:
                    self._close()
                    self._place = Place.FIRST_OUTSIDE
                else:
                    self._window.step()
                    self._place = Place.INSIDE
            elif begins_window(number, period) and self._open():
                self._place = Place.FIRST_INSIDE
            elif self._in_other:
                self._place = Place.APART
            else:
                self._place = Place.OUTSIDE
                self._due = (number // period + 1) * period if period else sys.maxsize

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A request of a server, as a region ``request``. Windows then are 100 requests out of N, and guard the p99."""
        if not self._on:
            yield
            return
        with self._lock:
            if self._unit == "steps" and not self._number:
                self._unit, self._controller = "requests", RequestController(self._budget)
            self._number += self._unit == "requests"
            number, switches, inside = self._number, self._switches, self._window is not None
            due = number >= self._window_until if inside else begins_window(number, self._controller.period)
            if self._unit == "requests" and due:
                self._switch_wanted = True
                self._wake.set()
        began = time.monotonic_ns()
        try:
            with record_function("request"):
                yield
        finally:
            now = time.monotonic_ns()
            with self._lock:
                if self._on and self._unit == "requests":
                    apart = switches != self._switches or self._in_other
                    place = Place.APART if apart else Place.INSIDE if inside else Place.OUTSIDE
                    self._times.append((now - began, place))
                    self._requests += 1
                    self._last_ns = now

    @property
    def _ended(self) -> int:
        """Steps or requests that have ended."""
        return self._number if self._unit == "steps" else self._requests

    def summary(self) -> WatchSummary:
        """The state now; after `stop` the last one."""
        cost = self._controller.cost()
        median, p99 = self._usual()
        requests = self._controller.p99_s if isinstance(self._controller, RequestController) else (None, None)
        elapsed = max(time.monotonic() - self._began_s, 1e-9)
        return WatchSummary(
            rank=self._rank,
            world_size=self._ranks,
            host=os.uname().nodename,
            pid=self._process,
            program=_program(),
            began_ns=self._began_ns,
            written_ns=_core.realtime_ns(),
            state=self._state,
            unit=self._unit,
            steps=self._ended,
            median_s=median,
            p99_s=p99,
            last_s=tuple([*self._recent][-_LAST:]),
            histogram=tuple(self._histogram.tolist()),
            total_s=self._total_s,
            window=self._controller.size,
            period=self._controller.period,
            windows=self._files.written,
            window_bytes=self._files.bytes,
            recorded=self._files.steps,
            budget=self._budget,
            cost=cost,
            spent=self._controller.extra / self._number if cost is not None and self._unit == "steps" else None,
            request_p99_s=requests,
            watcher=self._watcher_cpu_s / elapsed,
            off=self._controller.off,
            dumps=dump_lines(self._dumps.written),
            counted=dict(self._dumps.counted),
            lost=dict(self._lost),
            notes=(*self._notes, *self._dumps.failures),
        )

    def dump(self, event: Event, timeout_s: float) -> Dump:
        """Dumps an event that a user asked for. Waits for the watcher's thread, which writes it.

        Raises:
            GpuscopeError: a limit refuses it, or it is not written after `timeout_s` seconds.
        """
        refused = self._dumps.counted.get(event.trigger, 0)
        self._events.append(event)
        self._wake.set()
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            for each in [*self._dumps.written]:
                if each.event is event and self._dumping is not event:
                    return each
            if self._dumps.counted.get(event.trigger, 0) > refused:
                why = self._dumps.failures[-1:] or [f"a watch writes at most {MOST_DUMPS} dumps of a process"]
                raise GpuscopeError(f"the dump was not written: {why[0]}")
            time.sleep(_POLL_S)
        raise GpuscopeError(f"the watch did not write the dump within {timeout_s:.0f} s")

    def stop(self) -> None:
        """Ends the watch and writes the rest; a second call does nothing."""
        self._stop("ended")

    def end(self, code: int | None, by: str = "") -> None:
        """Ends the watch as the program ends.

        Args:
            code: exit status; None if it is not known.
            by: the signal, os._exit or os.exec*; empty otherwise.
        """
        event = ended(code, by)
        failed = {each.trigger for each in (*self._events, *(dump.event for dump in self._dumps.written))}
        is_told = bool(failed & _FAILURES) and event is not None and event.trigger == EXIT
        if event is not None and event.trigger in self._names and not is_told:
            self._events.append(event)
        by_signal = by.startswith("SIG")
        state = f"ended by {by}" if by else "ended" if not code else f"ended with exit status {code}"
        self._stop(state, _FLUSH_S if by_signal else None)

    def abandon(self) -> None:
        """Forgets the watch in a forked child: its thread and files are the parent's."""
        self._on, self._window, self._due = False, None, 0
        self._files.forget()
        with contextlib.suppress(ValueError):
            lifecycle.begins.remove(self._give_way)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        code = error.code if isinstance(error, SystemExit) else None
        for trigger in self._triggers:
            if isinstance(trigger, UncaughtException):
                trigger.report(error)
        self.end(code if isinstance(code, int) or code is None else 1)

    def __repr__(self) -> str:
        return f"<Watch: {self._state}, {self._ended:,} {self._unit}, {self._files.written} windows, {self._own}>"

    # -- begin and end -------------------------------------------------------------------------------------------------

    def _begin(self, ends_seen: bool) -> None:
        for trigger in self._triggers:
            trigger.begin(self._events.append)
        if any(isinstance(each, (GpuError, ThrottledGpu, IdleGpu)) for each in self._triggers):
            self._watch_gpus()
        if not ends_seen:
            self._unwatch_end = watch_end(self._on_sigterm, lambda name: self.end(None, name), self._note)
        self._open_box()
        self._write_state()
        start_thread(self._thread.start, "a watch")
        lifecycle.watch(self)
        lifecycle.begins.append(self._give_way)

    def _open_box(self) -> None:
        """Opens the file that `gpuscope hang` reads, also after any death of this process."""
        try:
            self._box = _core.BlackBox(str(self._own / _BOX), self._rank if self._ranks > 1 else None)
        except NotAvailable as error:
            self._note(f"there is no black box: {first_line(error)}")
            return
        self._note_step = self._box.step_begin

    def _on_sigterm(self, event: Event) -> None:
        if event.trigger in self._names:
            self._events.append(event)

    def _undo(self) -> None:
        """Takes back what `_begin` has set up."""
        with contextlib.suppress(ValueError):
            lifecycle.begins.remove(self._give_way)
        lifecycle.forget(self)
        if self._box is not None:
            self._box.close()
        self._unwatch_end()
        for trigger in reversed(self._triggers):  # their hooks are chained
            trigger.end()
        if self._monitor is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GpuscopeWarning)
                self._monitor.stop()

    def _watch_gpus(self) -> None:
        if why := _core.gpu_states()["why"]:
            self._note(f"triggers of GPUs are off: {why}")
            return
        self._monitor = GPUMonitor(None, _WAKE_S)
        self._monitor.start()

    def _stop(self, state: str, timeout_s: float | None = None) -> None:
        global _current
        with self._lock:
            if not self._on:
                return
            self._on, self._due = False, 0
            self._close(timeout_s)
            self._state = state
        self._ends.set()
        self._wake.set()
        in_hurry = timeout_s is not None
        if threading.current_thread() is not self._thread:
            self._thread.join(_FLUSH_S if in_hurry else _JOIN_S)
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            self._beat(is_last=True)
        else:  # it waits for a device or a command
            self._files.write()
            self._write_state()
        if state.startswith("ended by SIG"):
            self._unwatch_end = lambda: None  # it would wait for the end of this call
        self._undo()
        _current = None if _current is self else _current

    # -- windows -------------------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Begins a window; False if it cannot."""
        self._in_other = any(each is not self for each in lifecycle.running())
        if self._in_other:
            self._note("there are no windows while another profiler runs")
            return False
        try:
            self._opening = window = profile()
            window.start()
            lifecycle.forget(window)  # this watch steps and stops it
        except Exception as error:  # another profiler, a graph that is captured, CUPTI
            self._note(f"a window could not begin: {first_line(error)}")
            return False
        self._window = window
        self._window_before, self._window_begin = self._window_begin, self._number
        self._window_until = self._number + self._controller.size
        self._switches += 1
        return True

    def _close(self, timeout_s: float | None = None) -> None:
        """Ends the window; the watcher's thread writes it."""
        window, self._window = self._window, None
        if window is None:
            return
        self._switches += 1
        try:
            window.stop(timeout_s)
        except Exception as error:
            self._lose("windows that could not end", first_line(error))
            return
        self._files.add(
            window,
            {
                "first_step": self._window_begin,
                "steps": self._number - self._window_begin,
                "represents_steps": self._window_begin - self._window_before,
                "unit": self._unit,
                "budget": self._budget,
            },
        )
        self._wake.set()

    def _give_way(self, other: object) -> None:
        """Ends the window before another profiler begins: only one can collect."""
        if other is self._opening or not self._on:
            return
        with self._lock:
            self._close()
            self._in_other, self._place, self._due = True, Place.APART, 0

    def _switch(self) -> None:
        """Begins or ends a window of requests, on the watcher's thread."""
        with self._lock:
            wanted, self._switch_wanted = self._switch_wanted, False
            if not wanted or not self._on:
                return
            if self._window is not None:
                self._close()
            else:
                self._open()

    # -- the watcher's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ends.is_set():
            self._wake.wait(_WAKE_S)
            self._wake.clear()
            if not self._ends.is_set():
                self._switch()
                if self._events or self._files.waiting or time.monotonic() - self._beat_s >= 0.9 * _WAKE_S:
                    self._beat()

    def _beat(self, is_last: bool = False) -> None:
        """One look at the program. Never raises."""
        began = time.thread_time()
        if self._box is not None:
            self._box.beat()
        for part in (self._files.write, self._look, self._dump_events, self._write_state):
            if is_last and part == self._dump_events:
                self._write_state()  # first: a signal may leave no time for a dump
            try:
                part()
            except Exception as error:  # the program must go on
                self._lose("looks at the program", first_line(error))
        self._watcher_cpu_s += time.thread_time() - began

    def _look(self) -> None:
        now = time.monotonic()
        passed, self._beat_s = now - self._beat_s, now
        times = [(ns / 1e9, place) for ns, place in (self._times.popleft() for _ in range(len(self._times)))]
        if (lost := self._ended - self._seen - len(times)) > 0 and len(times) == _MOST_TIMES:
            self._lose(f"times of {self._unit}", count=lost)
            self._seen += lost
        self._in_other = self._in_other and any(each is not self for each in lifecycle.running())
        seconds = np.array([each for each, _ in times], np.float64)
        self._recent.extend(seconds.tolist()[-_RECENT:])
        self._total_s += float(seconds.sum())
        np.add.at(self._histogram, np.searchsorted(BUCKETS_S, seconds), 1)
        period = self._controller.period
        self._controller.add(times)
        if self._controller.period != period:
            self._due = 0
        beat = self._made_beat(seconds, [place for _, place in times], passed)
        self._seen += len(times)
        for trigger in self._triggers:
            for event in trigger.check(beat):
                self._events.append(event)

    def _made_beat(self, seconds: np.ndarray[Any, Any], places: Sequence[Place], passed_s: float) -> Beat:
        cost = self._controller.cost() if Place.INSIDE in places else None
        inside = np.array([place is Place.INSIDE for place in places], bool)
        if cost is not None:
            seconds = np.where(inside, seconds / (1 + max(cost.step, 0.0)), seconds)
        outside = np.array([place is Place.OUTSIDE for place in places], bool)
        median, p99 = self._usual()
        if self._monitor is not None:
            self._gpus |= {each.gpu.index: each.gpu for each in self._monitor.take() if each.gpu is not None}
        return Beat(
            first=self._seen,
            seconds=seconds,
            compared=outside | inside if cost is not None else outside,
            passed_s=passed_s,
            median_s=median,
            p99_s=p99,
            gpus=self._gpus_of_process(),
            machine=[*self._gpus.values()],
            unit=self._unit[:-1],
            is_busy=self._unit == "steps" or self._number > self._ended,
        )

    def _usual(self) -> tuple[float | None, float | None]:
        """Median and p99 of the recent steps; None with too few."""
        recent = np.sort(np.fromiter(self._recent, np.float64))
        median = float(recent[len(recent) // 2]) if len(recent) else None
        return median, float(recent[int(0.99 * len(recent))]) if len(recent) >= _FEWEST_FOR_P99 else None

    def _gpus_of_process(self) -> list[GpuState]:
        """The GPUs that this process uses; the only GPU if its process numbers are not NVML's."""
        gpus = [*self._gpus.values()]
        own = [gpu for gpu in gpus if any(each.pid == self._process for each in gpu.processes or ())]
        if len(gpus) > 1 and not is_the_hosts_number():
            self._note("idle and throttled GPUs are not seen: this container has process numbers of its own")
        return own or (gpus if len(gpus) == 1 else [])

    def _dump_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            if self._box is not None:
                self._box.trigger(f"{event.trigger}: {event.sentence}")
            self._dumping = event
            dump = self._dumps.take(event, time.monotonic(), functools.partial(self.moment, event))
            self._dumping = None
            if dump is not None:
                self._dumps.tell(dump)

    def moment(self, event: Event) -> Moment:
        """The state of the program now, for a dump of an event."""
        facts = {
            "rank": self._rank,
            "world_size": self._ranks,
            "host": os.uname().nodename,
            "pid": self._process,
            "program": _program(),
            "unit": self._unit,
            "steps": self._ended,
            "versions": versions(),
        }
        paths = self._files.paths
        spools = [each.spool_folder for each in lifecycle.running() if isinstance(each, profile)]
        sections: list[tuple[str, Callable[[], Sequence[str]]]] = [
            (f"last {self._unit}", self._last_steps),
            (f"open regions{', after it' if event.is_past else ''}", self._open_regions),
            ("GPUs", self._gpu_lines),
        ]
        if event.trigger != TERMINATED:  # there is little time
            sections.append(("last window", functools.partial(top_rows, paths[-1] if paths else None)))
        more = _write_collectives if event.is_asked or event.trigger == Hang.name else None  # it may take a second
        recordings = [*paths, *(folder for folder in spools if folder is not None)]
        return Moment(_core.realtime_ns(), facts, sections, recordings, more)

    def _last_steps(self) -> list[str]:
        recent = [*self._recent]
        if not recent:
            return [f"no {self._unit[:-1]} was seen"]
        latest = ", ".join(map(format_seconds, recent[-_LAST:]))
        median = format_seconds(float(np.median(recent)))
        since = format_seconds((time.monotonic_ns() - self._last_ns) / 1e9)
        return [
            f"{latest} (median of the last {len(recent):,}: {median})",
            f"the last one ended {since} before this dump",
        ]

    def _open_regions(self) -> list[str]:
        """The innermost regions of each thread."""
        if self._box is None or not self._box.is_open:
            return region_of(self._process)
        lines = []
        for each in read_black_box(self._own / _BOX).threads:
            lines += [f"thread {each.id}: {' > '.join(region.name for region in each.regions)}"] if each.regions else []
        return lines or ["no region is open"]

    def _gpu_lines(self) -> list[str]:
        if self._monitor is None:
            return [next((note for note in self._notes if note.startswith("triggers of GPUs")), "not watched")]
        if not self._gpus:
            return ["no sample yet"]
        return str(GpuSnapshot(_core.realtime_ns(), None, tuple(self._gpus.values()))).splitlines()[1:]

    # -- state ---------------------------------------------------------------------------------------------------------

    def _write_state(self) -> None:
        summary = self.summary()
        metrics = METRICS if self._ranks == 1 else f"{Path(METRICS).stem}-{self._rank:05d}.prom"
        files = [(self._own / STATE, json.dumps(summary.to_dict()) + "\n")]
        if summary.state != "running" or time.monotonic() >= self._metrics_due_s:
            self._metrics_due_s = time.monotonic() + _METRICS_S
            files.append((self._root / metrics, summary.prometheus()))
        for path, text in files:
            try:
                with replacing(path) as file:
                    file.write(text.encode(errors="backslashreplace"))
            except GpuscopeError as error:
                self._lose("states that could not be written", str(error))

    def _lose(self, what: str, why: str = "", count: int = 1) -> None:
        self._lost[what] = self._lost.get(what, 0) + count
        if why:
            self._note(f"{what}: {why}")

    def _note(self, sentence: str) -> None:
        sentence = one_line(sentence)
        if sentence not in self._notes:
            self._notes = [*self._notes, sentence][-_MOST_NOTES:]


def running_watch() -> Watch | None:
    """The watch of this process, if one runs."""
    return _current if _current is not None and _current._on else None


def _write_collectives(folder: Path) -> None:
    """Writes the collectives that torch has recorded, for `gpuscope hang`."""
    write_flight_recorder(str(folder / "flight_recorder.pickle"))


def _program() -> str:
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
