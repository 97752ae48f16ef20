# SPDX-License-Identifier: Apache-2.0
"""torch's own profiler: noticing when it starts and stops, and switching it on for gpuscope's purposes.

torch takes one profiler a thread. Ours is on in the state in which it hands ranges and reports of allocations to the
place that ``TorchRanges`` registered; it is paused where torch.profiler is started, and resumed when that stops.
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
from typing import Any, TypeVar
from weakref import WeakSet

from gpuscope._core import TorchRanges, keep_primary_contexts
from gpuscope.beside import shared_lock, start_thread
from gpuscope.errors import NotAvailable
from gpuscope.frameworks.observers import Note, Observer, Options
from gpuscope.late_imports import WhenImported

_Result = TypeVar("_Result")

_PROFILER = "torch.autograd.profiler"
_LEGACY = "torch.autograd.profiler_legacy"
_TRACES = "torch.profiler.profiler"
# The names under which they call torch's own profiler; the first two of _PROFILER take the activities second.
_PREPARE = "_prepare_profiler"
_ENABLE = "_enable_profiler"
_DISABLE = "_disable_profiler"
_ENABLE_LEGACY = "_enable_profiler_legacy"
_DISABLE_LEGACY = "_disable_profiler_legacy"
# What torch's own code calls as one of its listeners starts and stops. A profiler notifies torch's Python code, which
# then names ranges of its own.
_CALLS_OF_LISTENERS = (
    ("profiler", _PROFILER, "_run_on_profiler_start", "_run_on_profiler_stop"),
    ("legacy profiler", _LEGACY, _ENABLE_LEGACY, _DISABLE_LEGACY),
    ("execution trace", _TRACES, "_enable_execution_trace_observer", "_disable_execution_trace_observer"),
)
_NO_GRAPH_TASK = -1
# Under which torch.profiler counts its steps. Newer versions count only where a daemon listens for them.
_STEPS = "ProfilerStep"
_DAEMON = "KINETO_USE_DAEMON"
_PROBE_BYTES = 12_345_664  # the size that a probe counts


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class Subscriber:
    """What is called on the thread that uses torch.profiler. None of it may raise.

    Attributes:
        on_prepare: torch.profiler is about to prepare, or to start, for these activities.
        on_start: it is about to start.
        on_stop: it has stopped, or could not start.
    """

    on_prepare: Callable[[Any], None] = lambda activities: None
    on_start: Callable[[], None] = _nothing
    on_stop: Callable[[], None] = _nothing


class StepCount:
    """A profiler's steps in torch's own count, by which its daemon finds them. Only as torch.profiler itself counts."""

    def __init__(self) -> None:
        if (tracker := _step_tracker()) is not None:
            tracker.init_step_count(_STEPS)

    def add(self) -> None:
        """A step has ended."""
        if (tracker := _step_tracker()) is not None and (not _counts_for_a_daemon() or os.environ.get(_DAEMON)):
            tracker.increment_step(_STEPS)

    def end(self) -> None:
        """The block of the profiler has ended."""
        if (tracker := _step_tracker()) is not None:
            tracker.erase_step_count(_STEPS)


def _step_tracker() -> Any:
    return getattr(sys.modules.get(_PROFILER), "KinetoStepTracker", None)


@functools.cache
def _counts_for_a_daemon() -> bool:
    from torch.profiler.profiler import profile

    code = getattr(profile.step, "__code__", None)
    return code is None or _DAEMON in code.co_consts


class _Wrappers:
    """Wrap torch's functions while anybody subscribes."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()
        self._wrapped: dict[tuple[str, str], tuple[Any, Any]] = {}  # by module and name: torch's function and ours

    def subscribe(self, subscriber: Subscriber) -> None:
        """Torch has been imported."""
        if subscriber not in self._subscribers:
            self._subscribers += (subscriber,)
        if not self._wrapped:
            self._wrap()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """The last one puts torch's functions back, unless another has replaced them since."""
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


class Subscription:
    """Has a subscriber called while this is open, from torch's import on."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._import = WhenImported("torch", lambda: _wrappers.subscribe(self._subscriber))

    def open(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._import.watch()

    def close(self) -> None:
        """Ends."""
        self._import.cancel()
        _wrappers.unsubscribe(self._subscriber)


class _Listeners:
    """What listens to torch's regions by its own means: its profilers and execution traces."""

    def __init__(self) -> None:
        self._running: dict[str, bool] = {}
        self._on_change: Callable[[bool], None] = lambda any_runs: None
        self._notify: dict[bool, Callable[..., object]] = {}  # torch's own functions, by whether a profiler runs
        self._announcers: set[object] = set()

    def follow(self, on_change: Callable[[bool], None]) -> None:
        """Has a function called with whether any runs, at torch's import and as they start and stop."""
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
        """Has torch's Python code find that a profiler runs, or no longer; any thread.

        What a profiler of torch's own leaves there meanwhile is found at the end.
        """
        with _lock:
            (self._announcers.add if begins else self._announcers.discard)(announcer)
            notify = self._notify.get(bool(self._announcers) or self._running["profiler"])
            if notify is not None:
                notify()


def wants_gpu(activities: Any) -> bool:
    """Whether torch.profiler needs CUPTI for what it is asked to record."""
    return any(getattr(activity, "name", "") == "CUDA" for activity in activities)


def keep_contexts_from_kineto() -> None:
    """Has a process that used torch.profiler end as its program does: for the exit of a process that recorded.

    Kineto subscribes to CUPTI and asks to be told of contexts that are destroyed. CUDA's runtime destroys the primary
    context in the last of the exit handlers, when Kineto's own objects are gone: half of the processes of one benchmark
    died of "double free or corruption", with gpuscope or without it (torch 2.11, CUDA 13). A context that somebody
    still holds is left to the kernel's driver, which takes it back without a callback.
    """
    if "torch" in sys.modules:
        keep_primary_contexts()


def observe(options: Options, note: Note) -> Observer:
    """Releases CUPTI for a torch.profiler that is started inside a window: CUPTI serves one at a time."""
    return _TorchProfilerObserver(options, note)


class _TorchProfilerObserver:
    """Releases CUPTI when torch.profiler asks for GPU work: it would find none, and say nothing of it."""

    def __init__(self, options: Options, note: Note) -> None:
        self._options = options
        self._note = note
        self._subscription = Subscription(Subscriber(on_prepare=self._on_prepare))

    def start(self) -> None:
        self._subscription.open()

    def stop(self) -> None:
        self._subscription.close()

    def _on_prepare(self, activities: Any) -> None:
        if not wants_gpu(activities):
            return
        try:
            if self._options.release_cupti():
                self._note(
                    "GPU work is missing from where torch.profiler was started inside: it needs CUPTI for itself"
                )
        except Exception as error:  # torch.profiler starts all the same
            self._note(f"CUPTI could not be given up for torch.profiler: {error!r}")


@dataclass(frozen=True)
class Need:
    """What somebody needs torch's profiler for; by itself, that torch's code finds one on the thread."""

    ranges: bool = False  # operators
    shapes: bool = False  # of the operators' inputs; torch's code then hands over its own
    memory: bool = False  # reports of allocations


class Use:
    """Has torch's profiler switched on for a need, on the thread that makes this, from `begin` to `end`.

    `on_pause` is called when torch.profiler is started, on its thread, `on_resume` before ours is switched on again.
    Where torch.profiler runs already, ours begins when that stops. `end` may follow whatever has interrupted `begin` or
    `end`.
    """

    def __init__(self, need: Need, on_pause: Callable[[], object], on_resume: Callable[[], object]) -> None:
        self.need = need
        self.on_pause = on_pause
        self.on_resume = on_resume
        self._thread = _threads.here

    def begin(self) -> None:
        """Begins it, on the thread that made this; what it raises leaves nothing on."""
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
        """Ends it, on any thread.

        False when torch's profiler remains on in the thread that began it, as nobody else can end it. It is still
        paused there for torch.profiler.
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
    """Why torch's profiler cannot be used on this thread; "" when it can."""
    if "torch" not in sys.modules:
        return "torch has not been imported"
    here = _threads.here
    here.end_stale()
    if here.on is None and is_on():
        return "torch.profiler runs on this thread already"
    return _why_no_ranges()


def is_on() -> bool:
    """Whether a profiler of torch's is on, on this thread, be it ours."""
    autograd = sys.modules.get("torch.autograd")
    enabled: Callable[[], bool] | None = getattr(autograd, "_profiler_enabled", None)
    return enabled is not None and enabled()


class _Thread:
    """One thread's profiler of torch, as far as it is ours."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.on: Need | None = None  # what it is on for
        self.paused = False  # one of torch's own runs in its place
        # While `on` is None, that of torch that is on is ours: a backward pass restores what was ended within it, and
        # an exception may have come between the two.
        self.stale = False

    def adjust(self) -> None:
        """Switches torch's profiler to what is needed now. On the thread itself."""
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
                raise NotAvailable("this version of torch cannot have its profiler on without its ranges, which cost")
            _name_kineto()
            self.on = wanted

    def end_stale(self) -> None:
        """Ends what a backward pass restored at its end, as it was on at its beginning, or an exception left."""
        if self.stale and self.on is None:
            self._end()
            self.stale = False

    def pause(self) -> None:
        """A profiler of torch's own starts."""
        self.end_stale()
        if self.on is not None:
            self.paused = True
            self.adjust()
            for use in self.uses:
                use.on_pause()

    def resume(self) -> None:
        """It has stopped."""
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
        if is_on():  # not when it was switched on within a backward pass that has ended
            _disable()
        TorchRanges.use(bool(_on))


class _Threads(threading.local):
    def __init__(self) -> None:
        self.here = _Thread()
        with _lock:
            _known.add(self.here)


# Whatever fails here must not fail torch.profiler.
def _started() -> None:
    with _lock, contextlib.suppress(Exception):
        _threads.here.pause()


def _stopped() -> None:
    with _lock, contextlib.suppress(Exception):
        _threads.here.resume()
        _unsubscribe_if_unused()


def _unsubscribe_if_unused() -> None:
    # A profiler of torch's that starts has to end ours first, wherever that is still on.
    if not any(thread.uses or thread.on or thread.paused or thread.stale for thread in _known):
        _wrappers.unsubscribe(_subscriber)


_lock = shared_lock()
_known: WeakSet[_Thread] = WeakSet()
_on: WeakSet[_Thread] = WeakSet()
_threads = _Threads()
_subscriber = Subscriber(on_start=_started, on_stop=_stopped)
listeners = _Listeners()


@functools.cache
def _why_no_ranges() -> str:
    """Why this torch's ranges cannot be had; "" when they can. Tried once, with one small operator."""
    import torch

    if not TorchRanges.install():
        return "this version of torch has no place for a tool's ranges"
    try:
        pushes, pops, _ = _probe(lambda: torch.empty(0))
    except Exception as error:
        return f"this version of torch does not switch its ranges on ({error})"
    if pushes < 1 or pops != pushes:
        return "this version of torch hands its ranges over in another way"
    reports_memory()  # tried now, as it can be tried only while torch's profiler is off
    return ""


@functools.cache
def reports_memory() -> bool:
    """Whether reports of allocations come as expected: tried once, with one tensor on the host, never touched."""
    import torch

    return _probe(lambda: torch.empty(_PROBE_BYTES, dtype=torch.uint8), memory=True)[2] == 1


def _probe(work: Callable[[], object], memory: bool = False) -> tuple[int, int, int]:
    """Pushes and pops of ranges, and reports of allocations, that some work leads to."""

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
    """What it returns on a thread of its own: no mode of the program, no profiler and no Ctrl-C is there."""
    if getattr(sys.modules["torch"].__spec__, "_initializing", False):
        return work()  # this thread imports torch: another that imports parts of it would wait for this one
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

    # No threading.Thread: its frames are Python's, and would be in recordings; those of this file are left out.
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
    """Switches it on."""
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
    from torch.autograd import _enable_profiler

    config = ProfilerConfig(ProfilerState.NVTX, record_shapes, False, False, False, False, _ExperimentalConfig())
    _enable_profiler(config, set())


def _name_kineto() -> None:
    """Has it say that it is torch.profiler's, as far as this torch lets it."""
    from torch._C import _autograd, _profiler

    if TorchRanges.name_kineto(True) and _autograd._profiler_type() != _profiler.ActiveProfilerType.KINETO:
        TorchRanges.name_kineto(False)


def _disable() -> None:
    """Switches it off."""
    from torch.autograd import _disable_profiler

    _disable_profiler()
