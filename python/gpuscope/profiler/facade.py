# SPDX-License-Identifier: Apache-2.0
"""`profile`: torch.profiler's names, arguments and behaviour over gpuscope's collector."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gpuscope import _core
from gpuscope._core import ALL_STEPS, STEP_PREFIX, merge, record_function, resumed
from gpuscope.arguments import Graphs, Mode
from gpuscope.counters.names import SampledSet
from gpuscope.errors import (
    GpuscopeWarning,
    IncompleteCapture,
    InvalidArgument,
    NotAvailable,
    NotEnoughMemory,
    lacks_memory,
)
from gpuscope.frameworks.torch_profiler import count_steps
from gpuscope.monitor.programs import status_page
from gpuscope.profiler import lifecycle
from gpuscope.profiler.activities import ProfilerActivity, parse_group
from gpuscope.profiler.execution_trace import observer_of
from gpuscope.profiler.options import RecordingOptions, check_callable, check_flags, check_timeout
from gpuscope.profiler.schedules import ProfilerAction, Schedule, check_action
from gpuscope.profiler.trace_handler import FolderWriter, SpoolWriter
from gpuscope.profiler.windows import Annotations, Collector, ProfilerStats, Windows
from gpuscope.recording import Analyses, Recording
from gpuscope.regions import body_of
from gpuscope.threads import shared_lock

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path
    from types import TracebackType

    from gpuscope.analysis import EventList, Events, FunctionEvent, FunctionEventAvg
    from gpuscope.diagnosis import Diagnosis
    from gpuscope.profiler.kineto_names import KinetoResults
    from gpuscope.trace import Trace


class AutogradResults(Analyses):
    """The results of a profiler under the names of torch.autograd.profiler.profile."""

    def __init__(self, results: profile) -> None:
        self._results = results
        self.trace_id = results.get_trace_id()

    @property
    def trace(self) -> Trace:
        """The events as columns."""
        return self._results.trace

    @property
    def _trace_so_far(self) -> Trace:
        return self._results._trace_so_far

    def events(self) -> Events:
        """Every event by itself, in order of time."""
        return self._results._events()

    @property
    def function_events(self) -> EventList[FunctionEvent]:
        """The same."""
        return self.events()

    @property
    def self_cpu_time_total(self) -> float:
        """The self CPU times of the recording summed, in us."""
        return self.key_averages().self_cpu_time_total

    def total_average(self) -> FunctionEventAvg:
        """All rows of `key_averages` as one."""
        return self.key_averages().total_average()

    @property
    def kineto_results(self) -> KinetoResults:
        """The events under the names of Kineto's, which took no part."""
        from gpuscope.profiler.kineto_names import KinetoResults

        trace, known = self.trace, self._results._kineto_results
        if known is None or known.trace is not trace:
            known = self._results._kineto_results = KinetoResults(trace)
        return known

    def __str__(self) -> str:
        return self.events().table()


_TORCH_OPTIONS = {
    "record_shapes": "shapes",
    "profile_memory": "allocations of tensors",
    "with_flops": "operations",
    "with_modules": "modules",
}


def _default_schedule_fn(_: int) -> ProfilerAction:
    """Records every step; Lightning's profiler takes it by this name of torch's."""
    return ProfilerAction.RECORD


class profile(Analyses):  # noqa: N801 - torch.profiler's name
    """Records the code that runs inside it: a context manager, or a decorator of functions and coroutine functions.

    Results are those of the latest recorded window. Before there is one, they raise `NotAvailable`; lists of events are
    then empty with a warning, as in torch.

    Args:
        activities: groups of events; see `ProfilerActivity`. Default: all that this machine has. A dictionary maps a
            group to names of events, as GPU_MEMCPY, and records only those. A `ProfilerActivityConfig` instead of the
            names can also set counters, `sync` and `device_samples`.
        schedule: maps the number of a step to a `ProfilerAction`; see `schedule`. Default: everything is recorded.
        on_trace_ready: called with this object after each window.
        record_shapes: shapes, strides and types of operators' inputs, and the numbers among them; "operators" leaves
            the numbers out.
        profile_memory: allocations and frees of torch's allocators and the driver; see `Trace.device_memory`.
        with_stack: the 64 innermost Python frames of operators, regions and launches, and every call of a Python
            function; see `Trace.python_functions`. "operators" keeps only calls that read and write files and sockets
            or wait for the GPU.
        with_flops: floating-point operations of operators, from their shapes.
        with_modules: the torch.nn.Module that operators run in.
        experimental_config: torch's. A warning names its options that have no effect.
        execution_trace_observer: torch's `ExecutionTraceObserver`, or an object with start(), stop() and cleanup().
        acc_events: results are of all windows so far; `export_chrome_trace` writes the latest window.
        use_cuda: superseded by `activities`.
        custom_trace_id_callback: makes the id of each window, which `get_trace_id` returns.
        post_processing_timeout_s: seconds after which `events` returns the events built so far.
        mode: ``full`` keeps every event, ``ring`` those of the last `ring_seconds`, ``aggregate`` one row a call path.
        graphs: ``node`` records each kernel of a CUDA graph, ``launch`` one row for the whole graph.
        sync: also records waits for the GPU.
        overheads: also records the driver's and CUPTI's own work, as loading of modules. Not in aggregate mode.
        max_bytes: most memory for the events of a window and their names, in bytes or as ``"512MB"``.
        ring_seconds: how much time a ring keeps.
        counters: hardware counters to sample: "why" for those that explain a slow or idle GPU, or names of metrics from
            ``gpuscope counters --sampling``; see `counters`. Samples include other processes. Not in aggregate mode.
        counter_interval_us: time between samples, 10 to 1,000,000 us.
        strict: raise `IncompleteCapture` at the end if the audit finds that events are missing.
        python_samples: samples each thread's 256 innermost Python frames, and the reasons why threads waited. True for
            every millisecond, or the interval in seconds; see `samples`.
        device_samples: reads power, clocks, temperature, use and memory of the GPUs in use. True for every 0.1 s, or
            the interval in seconds; see `energy`.
        path: a folder, which is created. Each window is written there, before `on_trace_ready` is called, as
            ``rank-00341.gscope``: by the rank from torchrun, mpirun, srun or torch.distributed, 0 without one. A
            file that exists is kept, and the new one numbered, as ``rank-00341-2.gscope``.
        spool: write the rows into the folder `path` while they come, so that they survive the process: each window is
            a folder ``rank-00341.gscope/`` of segments, files that open alone. `load` and the commands take the folder
            as one recording. A ring has its rows there. Not in aggregate mode.
        spool_bytes: most bytes of a window's segments; the oldest are deleted. From 64 MB.
        spool_age: seconds after which segments are deleted. Default: `ring_seconds` of a ring, else never.

    Raises:
        InvalidArgument: an argument is wrong; also by `start` while another profiler collects.
        GpuscopeError: the folder `path` cannot be made or written to.

    Attributes:
        step_num: the current step, counted from 0.
        current_action: the schedule's action for this step.
        activities: the groups recorded.
        record_steps: whether there is a schedule: each step is then a region ``ProfilerStep#N``, in aggregate mode
            ``ProfilerStep*``.
        use_device: "cuda" when GPU work is recorded, else None.
        step_rec_fn: the region of the current step, None outside.
    """

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool | Literal["operators"] = False,
        profile_memory: bool = False,
        with_stack: bool | Literal["operators"] = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: object = None,
        execution_trace_observer: object = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
        mode: Mode = "full",
        graphs: Graphs = "node",
        sync: bool = False,
        overheads: bool = False,
        max_bytes: int | str = 1 << 30,
        ring_seconds: float = 10.0,
        counters: SampledSet | Iterable[str] | None = None,
        strict: bool = False,
        python_samples: bool | float = False,
        counter_interval_us: float = 100.0,
        device_samples: bool | float = False,
        path: str | PathLike[str] | None = None,
        spool: bool = False,
        spool_bytes: int | str = 1 << 30,
        spool_age: float | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self._options = options = RecordingOptions.of(self._arguments)
        self.activities: frozenset[ProfilerActivity] = options.activities
        self.use_device = "cuda" if options.cuda else None
        self.schedule = schedule or _default_schedule_fn
        self.on_trace_ready = on_trace_ready
        self._writer = FolderWriter(path) if path is not None and not options.spool else None
        self.custom_trace_id_callback = custom_trace_id_callback
        self.execution_trace_observer = observer_of(execution_trace_observer)
        self.experimental_config = experimental_config
        self.post_processing_timeout_s = post_processing_timeout_s
        self.record_shapes, self.profile_memory = bool(record_shapes), bool(profile_memory)
        self.with_stack, self.with_flops = bool(with_stack), bool(with_flops)
        self.with_modules, self.acc_events = bool(with_modules), bool(acc_events)
        self.step_num = 0
        self.current_action = self._action_of(0)
        self.record_steps = schedule is not None
        self.step_rec_fn: record_function | None = None
        self._collector = Collector(options, SpoolWriter(path) if path is not None and options.spool else None)
        self._annotations = Annotations(options.facts, options.notes)
        self._windows = Windows(self._collector, self._annotations, options, self.execution_trace_observer)
        self._lock = shared_lock()  # the program's end may stop it on another thread
        self._running = self._entered = self._runs_for_calls = self._forked = False
        self._calls: set[_DecoratedCall] = set()  # that have not ended
        self._to_end: ProfilerAction | None = None  # of the step that has ended, until its window has
        self._started_at_step: int | None = None
        count_steps("init_step_count")
        self._kineto_results: KinetoResults | None = None  # of the latest recording, once they are asked for
        self._made_here = frozenset(vars(self)) | {"_made_here"}

    @property
    def spool_folder(self) -> Path | None:
        """With `spool`: the folder of the latest window's segments. Else, and before the first window, None."""
        return self._collector.spool.latest if self._collector.spool is not None else None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Programs that still check `isinstance(prof, torch.profiler.profile)` before step() would else record nothing.
        of_torch = sys.modules.get("torch.profiler")
        return getattr(of_torch, "profile", type(self))

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *vars(self)})  # object's would list the names of torch's class

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        # As in torch, a profiler that has not begun can be copied and pickled, also as part of another object.
        if self._running or self._windows.trace_id is not None:
            raise TypeError("a profiler that has begun cannot be copied or pickled; its results and `save` can")
        arguments = self._arguments | dict.fromkeys(_CALLED_BACK)  # these may refer to the profiler
        state = {name: value for name, value in vars(self).items() if name in _KEPT or name not in self._made_here}
        return _made, (type(self), arguments), (state, self._annotations.added)

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, str]]) -> None:
        attributes, metadata = state
        vars(self).update(attributes)
        for key, value in metadata.items():
            self._annotations.add_json(key, value)

    # -- running -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> profile:
        self._refuse_inside()
        ran = self._running
        try:
            self.start()
            self._entered = True
            return self
        except BaseException:
            if not ran:
                self._undo_start()
            raise

    @resumed
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Exception as second:
            if error is None:
                raise
            # The user's own exception is raised instead.
            with warnings.catch_warnings():
                warnings.simplefilter("always", GpuscopeWarning)
                warnings.warn(f"while the profiler stopped: {second!r}", GpuscopeWarning, stacklevel=2)
        finally:
            if self._entered:
                self._entered = False
                count_steps("erase_step_count")
                self._windows.observe("cleanup")

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Records every call of `function`. Calls that overlap, also of several threads or tasks, share one run.

        Raises:
            InvalidArgument: `function` is no function or coroutine function.
        """
        body = body_of(function) if callable(function) else None
        if body is None or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise InvalidArgument(
                f"profile decorates {function!r}; accepted are functions and coroutine functions, and in a generator "
                "`with profile():`"
            )

        def call(*args: Any, **kwargs: Any) -> Any:
            with _DecoratedCall(self):
                return function(*args, **kwargs)

        async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
            with _DecoratedCall(self):
                return await function(*args, **kwargs)

        return functools.wraps(function)(call_coroutine if inspect.iscoroutinefunction(body) else call)

    def start(self) -> None:
        """Begins the run, and with it the first window unless the schedule has it later.

        Raises:
            InvalidArgument: this profiler runs already, or another one collects; or a signal handler calls this while
                the profiler starts, steps or stops. `step` and `stop` raise it there too.
            NotAvailable: GPU work is wanted and a CUDA graph is being captured. A `step` that begins to collect raises
                it too.
        """
        with self._lock:
            self._refuse_inside()
            if self._running:
                raise InvalidArgument("profile.start: this profiler is running already; accepted after stop()")
            self._begin_run()

    def step(self) -> None:
        """Marks the start of the loop's next step.

        As in torch, this begins a run that was not started: at the first idle step that a collected step follows.

        Raises:
            InvalidArgument: the schedule returned something other than an action; `step_num` does not change.
        """
        self._windows.leave_step()
        with self._lock:
            self._refuse_inside()
            self._end_step()
            action = self._action_of(self.step_num + 1)
            previous = self.current_action
            self._to_end, self.current_action, self.step_num = previous, action, self.step_num + 1
            count_steps("increment_step")
            if not self._running:
                if self._started_at_step is None and previous is ProfilerAction.NONE and action.collects:
                    self._begin_run()
                return
            self._change_windows()
            status_page.step(self.step_num, _words(action))
        # Their `value` would be a call of Python's own enum.py, in the recording.
        if previous is not ProfilerAction.RECORD_AND_SAVE and action._value_ < previous._value_:
            warnings.warn(
                f"the schedule goes from {previous.name} to {action.name} at step {self.step_num}, "
                "so on_trace_ready is not called for that cycle",
                GpuscopeWarning,
                stacklevel=2,
            )

    def stop(self, timeout: float | None = None) -> None:
        """Ends the run, handing over a window that is still open. A second call does nothing.

        GPU work launched before this call belongs to the recording, even if it still runs. Work that other threads
        launch later does not, and is not waited for. An interrupt, as by Ctrl-C, is raised after the run has ended.

        Args:
            timeout: seconds to wait for GPU work that still runs, by default 2; ``math.inf`` waits until it is done.
                Work that runs longer has no end in the recording, and the audit names it.

        Raises:
            InvalidArgument: `timeout` is not a time in seconds; the run continues.
            IncompleteCapture: `strict` was asked for and a window of this run is incomplete.
        """
        check_timeout("stop: timeout", timeout)
        with self._lock:
            self._refuse_inside()
            if not self._running:
                return
            self._end_run(timeout)
        if self._windows.shortfalls:
            raise IncompleteCapture(f"the recording is incomplete: {'; '.join(self._windows.shortfalls)}")
        if self._windows.latest is None:
            warnings.warn(self._why_nothing(), GpuscopeWarning, stacklevel=2)

    def _resume(self, *, as_one: bool) -> None:
        """Begins again after `stop`; `as_one`: new windows and earlier ones make one recording."""
        self._windows.accumulates |= as_one
        self.start()

    def abandon(self) -> None:
        """Forgets the run in a forked child: the collector and its recording belong to the parent."""
        if not (self._running or self._collector.collecting):
            return
        self._windows.forget()
        self._calls.clear()
        self.step_rec_fn = None
        self._running = False
        self._forked = True

    def _why_nothing(self) -> str:
        if self._forked:
            return "no recording: this process was forked while the profiler ran, and its recording is the parent's"
        if self._started_at_step is None and self._windows.trace_id is None:
            return "no recording: the profiler was never started; use it in a with statement or call start()"
        if self._collector.window_open:
            return "no recording yet: its window is still open; results exist after stop() or at the end of the cycle"
        steps = self.step_num - (self._started_at_step or 0)
        taken = f"no recording{' yet' if self._running else ''}: {steps} step{' was' if steps == 1 else 's were'} taken"
        if isinstance(self.schedule, Schedule):
            return f"{taken} and the schedule begins to record at step {self.schedule.first_recorded_step}"
        return f"{taken} and the schedule asked to record at none of them"

    # -- windows by hand -----------------------------------------------------------------------------------------------

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        """Leaves activities out of the open window from now on, or records them again; the audit says for how long.

        Each window begins with all that the profiler was asked for; outside a window this does nothing.

        Args:
            enable: whether to record.
            activities: CUDA, for launches and their GPU work; CPU, for regions, operators and marks. Work inside a
                region that is left out belongs to the recorded region around it.

        Raises:
            InvalidArgument: `enable` is neither true nor false, or an activity is unknown.
        """
        groups = parse_group(activities)
        check_flags({"enable": enable})
        self._collector.switch(groups, bool(enable))

    def prepare_trace(self) -> None:
        """Begins to collect without recording, as a warm-up step does; for scripts that do not call `start`."""
        with self._lock:
            self._refuse_inside()
            self._windows.begin(ProfilerAction.WARMUP, None)

    def start_trace(self) -> None:
        """Begins a window."""
        with self._lock:
            self._refuse_inside()
            self._windows.begin(ProfilerAction.RECORD, self.custom_trace_id_callback)

    def stop_trace(self) -> None:
        """Ends the window and the collecting."""
        with self._lock:
            self._refuse_inside()
            self._windows.end(None, last=True)

    # -- metadata ------------------------------------------------------------------------------------------------------

    def add_metadata(self, key: str, value: str) -> None:
        """Adds text to this profiler's recordings, latest and later ones."""
        self._annotations.add(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a JSON value, as text, to this profiler's recordings, latest and later ones."""
        self._annotations.add_json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Does what `add_metadata_json` does; torch.profiler has both."""
        self._annotations.add_json(key, value)

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Replaces the function that makes the id of each window."""
        check_callable("callback", callback)
        self.custom_trace_id_callback = callback

    def get_trace_id(self) -> str | None:
        """The id of the latest window begun, None before the first."""
        return self._windows.trace_id

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The events of the latest recorded window, or with `acc_events` of all, as columns.

        Raises:
            NotAvailable: there is none.
        """
        recording = self._windows.recording
        if recording is None:
            raise NotAvailable(self._why_nothing())
        return recording.trace

    @property
    def profiler(self) -> AutogradResults | None:
        """The results under the names of torch.autograd.profiler.profile; None before anything is collected."""
        has_begun = self._windows.trace_id is not None or self._collector.collecting
        return AutogradResults(self) if has_begun else None

    @property
    def _trace_so_far(self) -> Trace:
        if self._windows.recording is not None or not self._collector.collecting:
            return self.trace
        reason = self._why_nothing()
        warnings.warn(reason, GpuscopeWarning, stacklevel=3)
        nothing = merge([])
        nothing.set_info("session.unfinished", reason)
        return Recording(nothing).trace

    def events(self) -> Events:
        """Every event by itself, in order of time.

        Raises:
            NotAvailable: there is no recording, or ``experimental_config`` says ``trace_only``.
        """
        if self._options.trace_only:
            raise NotAvailable(
                "events() is not available: experimental_config says trace_only; leave that out, or use "
                "export_chrome_trace()"
            )
        return self._events()

    def _events(self) -> Events:
        from gpuscope.analysis import Events

        began = _core.monotonic_ns()
        found = Events(self._trace_so_far, self.post_processing_timeout_s)
        if found.cut:
            # Programs that set a time listen to torch's logger.
            logging.getLogger("torch.autograd.profiler").warning(
                "events() timed out after %s s and gives partial results: the first %d events of %d",
                self.post_processing_timeout_s,
                len(found),
                len(found) + found.cut,
            )
        stats = self._windows.stats
        stats.number_of_events = len(found)
        stats.function_events_build_tree_call_duration_us = (_core.monotonic_ns() - began) / 1e3
        return found

    def _stats(self) -> ProfilerStats | None:
        return self._windows.stats if self._windows.trace_id is not None else None

    def _memory_profile(self) -> NoReturn:
        raise NotAvailable(
            "_memory_profile is not available: gpuscope does not keep the tensors that torch tells categories from; "
            "export_memory_timeline and prof.trace.memory have every allocation"
        )

    def diagnose(self) -> Diagnosis:
        """As `Analyses.diagnose`; a monitor of the same user shows the verdict next to the program."""
        found = super().diagnose()
        first = found.findings[0] if found.findings else None
        status_page.say(verdict=found.verdict if first is None else f"{first.worth()}: {first.title}")
        return found

    def export_chrome_trace(self, path: str | PathLike[str], use_python_export: bool = False) -> None:
        """Writes the latest window, as `Analyses.export_chrome_trace`; with `acc_events` too, as torch does."""
        if self.acc_events and self._windows.latest is not None:
            self._windows.latest.export_chrome_trace(path, use_python_export)
        else:
            super().export_chrome_trace(path, use_python_export)

    # -- windows of the schedule ---------------------------------------------------------------------------------------

    def _refuse_inside(self) -> None:
        """Raises InvalidArgument in a signal handler that interrupted this thread while it changes the run.

        Checks the stack: an exception at the wrong moment would leave a flag set.
        """
        frame = sys._getframe(1).f_back if self._lock._is_owned() else None  # type: ignore[attr-defined]
        while frame is not None and not (frame.f_code.co_name == "_deliver" and frame.f_code.co_filename == __file__):
            code = frame.f_code
            if code.co_name in _CHANGES and code.co_filename == __file__ and frame.f_locals.get("self") is self:
                raise InvalidArgument(
                    f"profile: this thread is inside {code.co_name.strip('_')}() of this profiler, and a signal's "
                    "handler called it again; accepted after that has returned"
                )
            frame = frame.f_back

    def _action_of(self, step: int) -> ProfilerAction:
        return check_action(step, self.schedule(step))

    def _begin_run(self) -> None:
        self._forked = False
        self._started_at_step = self.step_num
        self._windows.shortfalls = []
        try:
            status_page.open(_words(self.current_action))  # first: the files that it opens are not the program's
            lifecycle.watch(self)
            self._windows.begin(self.current_action, self.custom_trace_id_callback)
            self._running = True
            self._begin_step()
        except BaseException as error:
            self._undo_start()
            if lacks_memory(error):
                raise NotEnoughMemory from error
            raise

    def _undo_start(self) -> None:
        """Cleans up after a start that an exception ended: nothing runs, and nothing was recorded."""
        status_page.say("not recording")
        with self._lock:
            self._running = False
            lifecycle.forget(self)
            self.step_rec_fn = None
            self._windows.drop()

    @resumed
    def _change_windows(self) -> None:
        """Between two steps: ends the window of the first, and begins that of the second."""
        action = self.current_action
        if self._to_end is not None:
            self._end_window(self._to_end, action)
            self._deliver()
            self._to_end = None
        if self._running:
            self._windows.begin(action, self.custom_trace_id_callback)
            self._begin_step()

    @resumed
    def _end_run(self, timeout: float | None) -> None:
        self._end_step()
        self._running = False
        lifecycle.forget(self)
        try:
            try:
                self._end_window(self.current_action, None, timeout)
            finally:
                status_page.say("recorded")  # after the window: these calls are not the program's
            self._deliver()
        finally:
            self._collector.stop()

    def _end_window(
        self, previous: ProfilerAction, action: ProfilerAction | None, timeout: float | None = None
    ) -> None:
        """Ends the window that `previous` belongs to, unless `action`, the next, continues it."""
        saves = action is None or previous is ProfilerAction.RECORD_AND_SAVE
        goes_on = action is not None and action.records and not saves
        if self._windows.is_open and not goes_on:
            for sentence in _not_recorded(self._options):
                self._annotations.note(sentence)
            then: Callable[[], object] | None = None
            if saves and self.on_trace_ready is not None:
                then = functools.partial(self.on_trace_ready, self)
            elif saves and self._writer is not None:
                then = bool  # nothing but the file
            self._windows.end(then, last=action is None or self._schedule_is_over(), timeout=timeout)

    def _deliver(self) -> None:
        """Writes each window that has ended, and calls its callback. If an exception interrupts it, it writes again."""
        while self._windows.undelivered:
            if self._writer is not None and self._windows.latest is not None:
                self._writer.write(self._windows.latest)
            self._windows.undelivered.popitem()[1]()

    def _schedule_is_over(self) -> bool:
        return isinstance(self.schedule, Schedule) and self.schedule.finished(self.step_num)

    def _begin_step(self) -> None:
        if not self.record_steps:
            self._windows.note_step()
        if self.record_steps and self._collector.collecting and self.step_rec_fn is None:
            is_aggregate = self._options.mode == "aggregate"
            self.step_rec_fn = record_function(ALL_STEPS if is_aggregate else f"{STEP_PREFIX}{self.step_num}")
            self.step_rec_fn.__enter__()

    def _end_step(self) -> None:
        region, self.step_rec_fn = self.step_rec_fn, None
        if region is not None:
            region.__exit__(None, None, None)


class _DecoratedCall:
    """One call of a decorated function. Of overlapping calls the first enters the profiler, the last leaves it."""

    def __init__(self, profiler: profile) -> None:
        self._profiler = profiler

    def __enter__(self) -> None:
        profiler = self._profiler
        with profiler._lock:
            try:
                profiler._calls.add(self)
                if not profiler._running:
                    profiler._runs_for_calls = True
                    profiler.__enter__()
            except BaseException:
                self.__exit__(None, None, None)
                raise

    @resumed
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        profiler = self._profiler
        with profiler._lock:
            profiler._calls.discard(self)
            if profiler._runs_for_calls and not profiler._calls:
                profiler.__exit__(kind, error, traceback)
                profiler._runs_for_calls = False


_KinetoProfile = profile
"""torch's name for a profiler without steps, which is the base of its `profile`."""


_CALLED_BACK = ("on_trace_ready", "custom_trace_id_callback")
_CHANGES = (
    "step",
    "prepare_trace",
    "start_trace",
    "stop_trace",
    "_begin_run",
    "_undo_start",
    "_change_windows",
    "_end_run",
)
"""Functions during which a profiler can be neither started nor stopped, except by a callback of `_deliver`."""

_KEPT = (*_CALLED_BACK, "schedule", "step_num", "current_action")
"""Attributes that a copy takes over, besides those that a subclass or program has added."""


def _made(kind: type[profile], arguments: dict[str, Any]) -> profile:
    made = kind.__new__(kind)
    profile.__init__(made, **arguments)  # a subclass may take others
    return made


def _words(action: ProfilerAction) -> str:
    return "recording" if action.records else "warming up" if action.collects else "waiting"


def _not_recorded(options: RecordingOptions) -> Iterator[str]:
    """A sentence for each option that recorded nothing: without PyTorch, or if no events are kept."""
    for option, what in _TORCH_OPTIONS.items():
        if not getattr(options, option) or (option == "record_shapes" and options.with_flops):
            continue
        if "torch" not in sys.modules:
            yield f"{option}: no {what} were recorded, as the program did not import PyTorch"
        elif options.mode == "aggregate" and option != "with_modules":  # those are call paths
            yield f"{option}: no {what} were recorded, as mode='aggregate' keeps no events"
