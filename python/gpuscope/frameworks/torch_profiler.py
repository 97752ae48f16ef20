# SPDX-License-Identifier: Apache-2.0
"""torch's own profiler: detects its start and stop, and switches it on for gpuscope.

torch has one profiler per thread. Ours runs in the NVTX state and passes ranges and allocations to the functions that
``TorchRanges`` registered. It is paused while torch.profiler runs.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Literal, TypeVar
from weakref import WeakSet

from gpuscope._core import TorchRanges, keep_primary_contexts
from gpuscope.errors import NotAvailable
from gpuscope.frameworks.observers import Note, Observer, ObserverOptions
from gpuscope.late_imports import WhenImported
from gpuscope.threads import shared_lock, start_thread

_Result = TypeVar("_Result")

_PROFILER = "torch.autograd.profiler"
_LEGACY = "torch.autograd.profiler_legacy"
_TRACES = "torch.profiler.profiler"
# Names of torch's profiler functions in the modules above. The second argument of the first two is the activities.
_PREPARE = "_prepare_profiler"
_ENABLE = "_enable_profiler"
_DISABLE = "_disable_profiler"
_ENABLE_LEGACY = "_enable_profiler_legacy"
_DISABLE_LEGACY = "_disable_profiler_legacy"
# Functions that torch calls when one of its listeners starts and stops. Those of a profiler notify torch's Python code,
# which then makes its own ranges.
_CALLS_OF_LISTENERS = (
    ("profiler", _PROFILER, "_run_on_profiler_start", "_run_on_profiler_stop"),
    ("legacy profiler", _LEGACY, _ENABLE_LEGACY, _DISABLE_LEGACY),
    ("execution trace", _TRACES, "_enable_execution_trace_observer", "_disable_execution_trace_observer"),
)
_NO_GRAPH_TASK = -1
# The name for torch.profiler's step count. Newer versions count only if a daemon listens.
_STEPS = "ProfilerStep"
_DAEMON = "KINETO_USE_DAEMON"
_PROBE_BYTES = 12_345_664  # only reports of this size count in a probe


class Subscriber:
    """Callbacks on the thread that uses torch.profiler, from `start` to `stop`. They must not raise.

    Args:
        on_prepare: called with the activities before torch.profiler prepares or starts.
        on_start: called before torch.profiler starts.
        on_stop: called after torch.profiler has stopped, or could not start.
    """

    def __init__(
        self,
        on_prepare: Callable[[Any], None] = lambda activities: None,
        on_start: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.on_prepare, self.on_start, self.on_stop = on_prepare, on_start, on_stop
        self._import = WhenImported("torch", lambda: _wrappers.subscribe(self))

    def start(self) -> None:
        """Begins, now or when torch is imported."""
        self._import.watch()

    def stop(self) -> None:
        """Ends the calls."""
        self._import.cancel()
        _wrappers.unsubscribe(self)


def count_steps(change: Literal["init_step_count", "increment_step", "erase_step_count"]) -> None:
    """Calls torch's step tracker, for its daemon. Steps count whenever those of torch.profiler would."""
    tracker = getattr(sys.modules.get(_PROFILER), "KinetoStepTracker", None)
    if tracker is None or (change == "increment_step" and _counts_for_a_daemon() and not os.environ.get(_DAEMON)):
        return
    getattr(tracker, change)(_STEPS)


@functools.cache
def _counts_for_a_daemon() -> bool:
    from torch.profiler.profiler import profile

    code = getattr(profile.step, "__code__", None)
    return code is None or _DAEMON in code.co_consts


class _Wrappers:
    """Wrap torch's functions while there are subscribers."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()
        self._wrapped: dict[tuple[str, str], tuple[Any, Any]] = {}  # by module and name: torch's function and ours

    def subscribe(self, subscriber: Subscriber) -> None:
        """Adds a subscriber. Torch must be imported."""
        if subscriber not in self._subscribers:
            self._subscribers += (subscriber,)
        if not self._wrapped:
            self._wrap()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Removes a subscriber. The last one restores torch's functions, unless others have replaced them since."""
        self._subscribers = tuple(other for other in self._subscribers if other is not subscriber)
        if not self._subscribers:
            for (module, name), (original, wrapper) in self._wrapped.items():
                if getattr(sys.modules.get(module), name, None) is wrapper:
                    setattr(sys.modules[module], name, original)
            self._wrapped = {}

    def _wrap(self) -> None:
        for module, name, wrapper in (
            (_PROFILER, _PREPARE, self._prepare),
            (_PROFILER, _ENABLE, self._enable),
            (_PROFILER, _DISABLE, self._disable),
            (_LEGACY, _ENABLE_LEGACY, self._enable),
            (_LEGACY, _DISABLE_LEGACY, self._disable),
        ):
            original = getattr(sys.modules.get(module), name, None)
            if original is not None:
                self._wrapped[module, name] = original, wrapper(original)
                setattr(sys.modules[module], name, self._wrapped[module, name][1])

    def _prepare(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(*args: Any, **named: Any) -> Any:
            for subscriber in self._subscribers:
                subscriber.on_prepare(_activities_of(*args, **named))
            return original(*args, **named)

        return prepare

    def _enable(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enable(*args: Any, **named: Any) -> Any:
            for subscriber in self._subscribers:
                subscriber.on_prepare(_activities_of(*args, **named))
                subscriber.on_start()
            try:
                return original(*args, **named)
            except BaseException:
                self._stopped()
                raise

        return enable

    def _disable(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def disable(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._stopped()

        return disable

    def _stopped(self) -> None:
        for subscriber in self._subscribers:
            subscriber.on_stop()


def _activities_of(_config: Any = None, activities: Any = (), *_rest: Any, **_named: Any) -> Any:
    return activities


_wrappers = _Wrappers()


class _Listeners:
    """torch's own listeners to regions: its profilers and execution traces."""

    def __init__(self) -> None:
        self._running: dict[str, bool] = {}
        self._on_change: Callable[[bool], None] = lambda any_runs: None
        self._notify: dict[bool, Callable[..., object]] = {}  # torch's own functions, by whether a profiler runs
        self._announcers: set[object] = set()

    def follow(self, on_change: Callable[[bool], None]) -> None:
        """Sets the function that is called with whether any listener runs, at torch's import and at each change."""
        self._on_change = on_change
        WhenImported("torch", self._wrap).watch()

    def _wrap(self) -> None:
        self._running["profiler"] = getattr(sys.modules.get(_PROFILER), "_is_profiler_enabled", False)
        for listener, module, start, stop in _CALLS_OF_LISTENERS:
            for name, runs in ((start, True), (stop, False)):
                original = getattr(sys.modules.get(module), name, None)
                if original is not None:
                    setattr(sys.modules[module], name, self._followed(original, listener, runs))
                    if listener == "profiler":
                        self._notify[runs] = original
        self._on_change(any(self._running.values()))

    def _followed(self, original: Callable[..., Any], listener: str, runs: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            done = original(*args, **named)
            with _lock:
                self._running[listener] = runs
                if self._announcers and listener == "profiler":
                    self._notify[True]()
                self._on_change(any(self._running.values()))
            return done

        return call

    def announce(self, announcer: object, begins: bool) -> None:
        """Makes torch's Python code find that a profiler runs, or no longer runs. Callable on any thread.

        When the last announcer ends, the state of torch's own profiler is restored.
        """
        with _lock:
            (self._announcers.add if begins else self._announcers.discard)(announcer)
            notify = self._notify.get(bool(self._announcers) or self._running["profiler"])
            if notify is not None:
                notify()


def wants_gpu(activities: Any) -> bool:
    """Whether torch.profiler needs CUPTI for these activities."""
    return any(getattr(activity, "name", "") == "CUDA" for activity in activities)


def keep_contexts_from_kineto() -> None:
    """Prevents a crash of Kineto at the exit of a process that recorded and used torch.profiler.

    Kineto subscribes to CUPTI's callbacks for destroyed contexts. CUDA's runtime destroys the primary context in the
    last exit handler, after Kineto's objects are gone. The process may then die with "double free or corruption", with
    or without gpuscope (seen with torch 2.11, CUDA 13). The kernel driver releases a retained context without a
    callback.
    """
    if "torch" in sys.modules:
        keep_primary_contexts()


def observe(options: ObserverOptions, note: Note) -> Observer:
    """Releases CUPTI for a torch.profiler that starts inside a window: CUPTI serves one profiler at a time.

    torch.profiler would otherwise miss GPU work without a message.
    """

    def on_prepare(activities: Any) -> None:
        if not wants_gpu(activities):
            return
        try:
            if options.release_cupti():
                note("GPU work is missing after the start of torch.profiler in the window: it needs CUPTI for itself")
        except Exception as error:  # torch.profiler starts anyway
            note(f"CUPTI could not be released for torch.profiler: {error!r}")

    return Subscriber(on_prepare)


@dataclass(frozen=True)
class Need:
    """A purpose of torch's profiler. Without any field, only its presence on the thread is needed."""

    ranges: bool = False  # of operators
    shapes: bool = False  # of operators' inputs, and arguments of torch's own ranges
    memory: bool = False  # reports of allocations


class Use:
    """Switches torch's profiler on for a need, on the creating thread, from `begin` to `end`.

    `on_pause` is called when torch.profiler starts, on its thread, and `on_resume` before ours continues. If
    torch.profiler runs already, ours begins when it stops. `end` may follow an interrupted `begin` or `end`.
    """

    def __init__(self, need: Need, on_pause: Callable[[], object], on_resume: Callable[[], object]) -> None:
        self.need = need
        self.on_pause = on_pause
        self.on_resume = on_resume
        self._thread = _threads.here

    def begin(self) -> None:
        """Switches the profiler on. Call it on the creating thread. An error leaves nothing switched on."""
        try:
            with _lock:
                self._thread.end_stale()
                self._thread.paused = self._thread.on is None and is_on()
                self._thread.uses.append(self)
                self._thread.adjust()
                _wrappers.subscribe(_subscriber)
        except BaseException:
            self.end()
            raise

    def end(self) -> bool:
        """Ends the use, on any thread.

        Returns False if torch's profiler stays on in the thread that began it, because only that thread can end it. It
        still pauses there for torch.profiler.
        """
        with _lock:
            if self in self._thread.uses:
                self._thread.uses.remove(self)
            own = self._thread is _threads.here
            if own:
                self._thread.end_stale()
                self._thread.adjust()
            _unsubscribe_if_unused()
            return own or self._thread.on is None


def why_unavailable() -> str:
    """Why torch's profiler cannot be used on this thread; "" if it can."""
    if "torch" not in sys.modules:
        return "torch has not been imported"
    here = _threads.here
    here.end_stale()
    if here.on is None and is_on():
        return "torch.profiler runs on this thread already"
    return _why_no_ranges()


def is_on() -> bool:
    """Whether a profiler of torch is on on this thread, including ours."""
    autograd = sys.modules.get("torch.autograd")
    enabled: Callable[[], bool] | None = getattr(autograd, "_profiler_enabled", None)
    return enabled is not None and enabled()


class _ProfiledThread:
    """Our use of torch's profiler on one thread."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.on: Need | None = None  # the need it is on for
        self.paused = False  # torch.profiler runs instead
        # Whether a running profiler of torch is ours although `on` is None. A backward pass restores a profiler that
        # was ended within it, and an exception may come between the two steps.
        self.stale = False

    def adjust(self) -> None:
        """Switches torch's profiler to the current needs. Call it on the thread itself."""
        needs = [] if self.paused else [astuple(use.need) for use in self.uses]
        wanted = Need(*(any(asked) for asked in zip(*needs, strict=True))) if needs else None
        if self.on == wanted:
            return
        if self.on is not None and (
            wanted is None or (wanted.ranges, wanted.shapes) != (self.on.ranges, self.on.shapes)
        ):
            self._switch_off()
        if wanted is not None:
            if self.on is None:
                self._switch_on(wanted)
            if wanted.memory and reports_memory():
                TorchRanges.watch_memory(keep_ranges=wanted.ranges)
            elif not wanted.ranges and not TorchRanges.drop_ranges():
                self._switch_off()
                raise NotAvailable("this version of torch cannot run its profiler without its ranges, which cost time")
            _name_kineto()
            self.on = wanted

    def end_stale(self) -> None:
        """Ends our profiler if a backward pass restored it at its end, or an exception left it on."""
        if self.stale and self.on is None:
            self._end()
            self.stale = False

    def pause(self) -> None:
        """Pauses ours: torch.profiler starts."""
        self.end_stale()
        if self.on is not None:
            self.paused = True
            self.adjust()
            for use in self.uses:
                use.on_pause()

    def resume(self) -> None:
        """Resumes ours: torch.profiler has stopped."""
        if self.paused:
            self.paused = False
            for use in self.uses:
                use.on_resume()
            self.adjust()

    def _switch_on(self, wanted: Need) -> None:
        self.end_stale()
        TorchRanges.install()
        TorchRanges.use(True)
        self.stale = not is_on()
        try:
            _enable(wanted.shapes)
        except Exception:
            TorchRanges.use(bool(_on))
            self.stale = False
            raise
        _on.add(self)

    def _switch_off(self) -> None:
        self.stale = True
        self.on = None
        self._end()
        task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", lambda: _NO_GRAPH_TASK)
        self.stale = task() != _NO_GRAPH_TASK

    def _end(self) -> None:
        _on.discard(self)
        if is_on():  # off if it was switched on within a backward pass that has ended
            _disable()
        TorchRanges.use(bool(_on))


class _Threads(threading.local):
    def __init__(self) -> None:
        self.here = _ProfiledThread()
        with _lock:
            _known.add(self.here)


# A failure here must not break torch.profiler.
def _started() -> None:
    with _lock, contextlib.suppress(Exception):
        _threads.here.pause()


def _stopped() -> None:
    with _lock, contextlib.suppress(Exception):
        _threads.here.resume()
        _unsubscribe_if_unused()


def _unsubscribe_if_unused() -> None:
    # While ours is on on any thread, a starting torch.profiler must end it first.
    if not any(thread.uses or thread.on or thread.paused or thread.stale for thread in _known):
        _wrappers.unsubscribe(_subscriber)


_lock = shared_lock()
_known: WeakSet[_ProfiledThread] = WeakSet()
_on: WeakSet[_ProfiledThread] = WeakSet()
_threads = _Threads()
_subscriber = Subscriber(on_start=_started, on_stop=_stopped)
listeners = _Listeners()


@functools.cache
def _why_no_ranges() -> str:
    """Why this torch's ranges are not available; "" if they are. Tried once, with one small operator."""
    import torch

    if not TorchRanges.install():
        return "this version of torch has no place for a tool's ranges"
    try:
        pushes, pops, _ = _probe(lambda: torch.empty(0))
    except Exception as error:
        return f"this version of torch does not switch its ranges on ({error})"
    if pushes < 1 or pops != pushes:
        return "this version of torch hands its ranges over in another way"
    reports_memory()  # cached now: the probe needs torch's profiler off
    return ""


@functools.cache
def reports_memory() -> bool:
    """Whether reports of allocations work. Tried once, with one tensor on the host that is never written."""
    import torch

    return _probe(lambda: torch.empty(_PROBE_BYTES, dtype=torch.uint8), memory=True)[2] == 1


def _probe(work: Callable[[], object], memory: bool = False) -> tuple[int, int, int]:
    """Counts pushes and pops of ranges, and reports of allocations, during some work."""

    def probe() -> tuple[int, int, int]:
        TorchRanges.take_counts()
        TorchRanges.probe(True)
        try:
            _enable(record_shapes=False)
            try:
                if memory:
                    TorchRanges.watch_memory(keep_ranges=True)
                work()
            finally:
                _disable()
        finally:
            TorchRanges.probe(False)
        pushes, pops, reports = TorchRanges.take_counts()
        return pushes, pops, reports

    return call_apart(probe)


def call_apart(work: Callable[[], _Result]) -> _Result:
    """Runs work on a new thread, without modes of the program, profilers and Ctrl-C; returns its result."""
    if getattr(sys.modules["torch"].__spec__, "_initializing", False):
        return work()  # this thread imports torch: another thread's import of it would wait for this one
    done: list[_Result] = []
    errors: list[BaseException] = []
    running = threading.Lock()
    running.acquire()

    def call() -> None:
        try:
            done.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            running.release()

    # No threading.Thread: its Python frames would appear in recordings. Frames of this file are excluded.
    start_thread(lambda: _thread.start_new_thread(call, ()), "what PyTorch runs")
    try:
        running.acquire()
    except BaseException:
        running.acquire()
        raise
    if errors:
        raise errors[0]
    return done[0]


def _enable(record_shapes: bool) -> None:
    """Switches torch's profiler on, in its NVTX state."""
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
    from torch.autograd import _enable_profiler

    config = ProfilerConfig(ProfilerState.NVTX, record_shapes, False, False, False, False, _ExperimentalConfig())
    _enable_profiler(config, set())


def _name_kineto() -> None:
    """Makes the profiler report the type of torch.profiler, if this torch allows it."""
    from torch._C import _autograd, _profiler

    if TorchRanges.name_kineto(True) and _autograd._profiler_type() != _profiler.ActiveProfilerType.KINETO:
        TorchRanges.name_kineto(False)


def _disable() -> None:
    """Switches torch's profiler off."""
    from torch.autograd import _disable_profiler

    _disable_profiler()
