# SPDX-License-Identifier: Apache-2.0
"""`profile`: torch.profiler's names, arguments and manners over gpuscope's collector."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gpuscope._core import record_function
from gpuscope.errors import GpuscopeWarning, IncompleteCapture, InvalidArgument, NotAvailable
from gpuscope.integrations import Integrations, Wanted, distributed_rank
from gpuscope.profiler import lifecycle
from gpuscope.profiler.activities import ProfilerActivity, parse_activities
from gpuscope.profiler.annotations import Annotations
from gpuscope.profiler.collector import Collector
from gpuscope.profiler.schedules import ProfilerAction, Schedule, check_action
from gpuscope.recording import Recording, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from gpuscope import _core
    from gpuscope.trace import Trace


def _always_record(_: int) -> ProfilerAction:
    return ProfilerAction.RECORD


class profile(Results):  # noqa: N801 - torch.profiler's name
    """Records what runs inside it: a context manager, or a decorator of functions and coroutine functions.

    Results are those of the latest recorded window; asking for them before there is one raises `NotAvailable`.

    Args:
        activities: groups of events, by default all that this machine has; see `ProfilerActivity`.
        schedule: maps the number of a step to a `ProfilerAction`; by default everything is recorded. See `schedule`.
        on_trace_ready: called with this object whenever a window has been recorded.
        record_shapes: records the shapes of operators' inputs.
        profile_memory: records what torch's allocators hand out and take back.
        with_stack: records where in the Python program operators, regions and launches are: the 64 innermost frames.
            Measured with Python 3.11 on an AMD EPYC, a region of 59 ns then takes 84 ns with 1 frame around it, 114
            with 10, 146 with 20 and 298 with 60: 25 ns and 3.5 to 4.5 a frame. An operator of torch 2.13, here a neg_
            of 0.85 us, took 1.08 times as long with 10 and 1.32 times with 60.
        with_flops: counts floating-point operations of operators, from their shapes.
        with_modules: records the torch.nn.Module that operators run in. A call of a module took 3.4 us in place of 0.5
            there, 1.2 of them torch's for any hook.
        experimental_config: no effect yet, and a warning says so; likewise `execution_trace_observer`, `acc_events`
            and `post_processing_timeout_s`.
        use_cuda: superseded by `activities`.
        custom_trace_id_callback: makes the id of each window, which `get_trace_id` returns.
        mode: ``full`` keeps every event, ``ring`` those of the last `ring_seconds`, ``aggregate`` one row a call path.
        graphs: ``node`` records each kernel of a CUDA graph, ``launch`` one row for the whole of it.
        sync: also records when the GPU was waited for.
        max_bytes: cap on the memory that events take, in bytes or as ``"512MB"``.
        ring_seconds: how much time a ring holds.
        counters: hardware counters; not available yet.
        strict: raise `IncompleteCapture` at the end if the audit finds that events are missing.

    Raises:
        InvalidArgument: an argument is wrong; also by `start` while another profiler collects.
        NotAvailable: counters are asked for.
    """

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: object = None,
        execution_trace_observer: object = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
        mode: str = "full",
        graphs: str = "node",
        sync: bool = False,
        max_bytes: int | str = 1 << 30,
        ring_seconds: float = 10.0,
        counters: object = None,
        strict: bool = False,
    ) -> None:
        for name, value in (("schedule", schedule), ("on_trace_ready", on_trace_ready)):
            if value is not None and not callable(value):
                raise InvalidArgument(f"{name} is {value!r}; accepted is a callable or None")
        if counters is not None:
            raise NotAvailable(
                f"counters={counters!r} is not available: this version reads no hardware counters; leave it out"
            )
        self.activities, in_part = parse_activities(activities)
        if use_cuda is not None:
            warnings.warn("use_cuda is deprecated; use activities instead", FutureWarning, stacklevel=2)
            cuda = frozenset({ProfilerActivity.CUDA})
            self.activities = self.activities | cuda if use_cuda else self.activities - cuda
        self.schedule = schedule or _always_record
        self.on_trace_ready = on_trace_ready
        self.custom_trace_id_callback = custom_trace_id_callback
        self.step_num = 0
        self.current_action = self._action_of(0)
        self._names_steps = schedule is not None
        self._strict = strict
        self._collector = Collector(
            cuda=ProfilerActivity.CUDA in self.activities,
            mode=mode,
            graphs=graphs,
            sync=sync,
            max_bytes=max_bytes,
            ring_seconds=ring_seconds,
            stacks=bool(with_stack),
        )
        self._running = False
        self._forked = False
        self._started_at_step: int | None = None
        self._step_region: record_function | None = None
        self._trace_id: str | None = None
        self._recording: Recording | None = None
        self._shortfalls: list[str] = []
        self._annotations = Annotations()
        without_effect = {
            "experimental_config": experimental_config,
            "execution_trace_observer": execution_trace_observer,
            "acc_events": acc_events,
            "post_processing_timeout_s": post_processing_timeout_s,
            "activities (lists of event names)": in_part,
        }
        self._integrations = Integrations(
            Wanted(
                operators=ProfilerActivity.CPU in self.activities,
                record_shapes=bool(record_shapes or with_flops),
                profile_memory=bool(profile_memory),
                with_stack=bool(with_stack),
                with_flops=bool(with_flops),
                with_modules=bool(with_modules),
            ),
            self._note,
        )
        for sentence in self._collector.notes:
            self._note(sentence)
        ignored = [name for name, value in without_effect.items() if value]
        if ignored:
            self._say(f"without effect in this version: {', '.join(ignored)}")

    # -- running -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        try:
            self.stop()
        except Exception as second:  # the user's own exception is the one to see
            with warnings.catch_warnings():
                warnings.simplefilter("always", GpuscopeWarning)
                warnings.warn(f"while the profiler stopped: {second!r}", GpuscopeWarning, stacklevel=2)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Records every call of `function`; a call from within such a call belongs to the outer one.

        Raises:
            InvalidArgument: `function` is no function or coroutine function.
        """
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument(
                f"profile decorates {function!r}; accepted are functions and coroutine functions, and in a generator "
                "`with profile():`"
            )

        def call(*args: Any, **kwargs: Any) -> Any:
            with nullcontext() if self._running else self:
                return function(*args, **kwargs)

        async def run(*args: Any, **kwargs: Any) -> Any:
            with nullcontext() if self._running else self:
                return await function(*args, **kwargs)

        return functools.wraps(function)(run if inspect.iscoroutinefunction(function) else call)

    def start(self) -> None:
        """Begins the run, and with it the first window unless the schedule has it later.

        Raises:
            InvalidArgument: this profiler runs already, or another one collects.
        """
        if self._running:
            raise InvalidArgument("profile.start: this profiler is running already; accepted after stop()")
        self._forked = False
        self._started_at_step = self.step_num
        self._shortfalls = []
        self._begin_window(self.current_action)
        self._running = True
        lifecycle.watch(self)
        self._begin_step()

    def step(self) -> None:
        """Says that the next step of the loop begins.

        Raises:
            InvalidArgument: the schedule returned something that is no action; the profiler stays at its step.
        """
        action = self._action_of(self.step_num + 1)
        self._end_step()
        previous, self.current_action = self.current_action, action
        self.step_num += 1
        if not self._running:
            return
        try:
            self._end_window(previous, action)
        finally:
            if self._running:
                self._begin_window(action)
                self._begin_step()

    def stop(self) -> None:
        """Ends the run, handing over a window that is still open. A second call does nothing.

        Raises:
            IncompleteCapture: `strict` was asked for and a window of this run is incomplete.
        """
        if not self._running:
            return
        self._end_step()
        self._running = False
        lifecycle.forget(self)
        try:
            self._end_window(self.current_action, None)
        finally:
            self._collector.stop()
        if self._shortfalls:
            raise IncompleteCapture(f"the recording is incomplete: {'; '.join(self._shortfalls)}")
        if self._recording is None:
            warnings.warn(self._why_nothing(), GpuscopeWarning, stacklevel=2)

    def abandon(self) -> None:
        """Lets go of the run in a forked child: the collector and its recording belong to the parent."""
        self._collector.abandon()
        self._step_region = self._recording = None
        self._running = False
        self._forked = True

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        """Accepted for torch.profiler's sake, without effect yet: the audit's notes then say so."""
        parse_activities(activities)
        if self._running:
            self._say("without effect in this version: toggle_collection_dynamic")

    # -- saying more about it ----------------------------------------------------------------------------------------

    def add_metadata(self, key: str, value: str) -> None:
        """Adds text to this profiler's recordings, latest and later ones."""
        self._annotations.add(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a JSON value, as text, to this profiler's recordings, latest and later ones."""
        self._annotations.add_json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Does what `add_metadata_json` does; torch.profiler tells the two apart."""
        self._annotations.add_json(key, value)

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Replaces the function that makes the id of each window."""
        self.custom_trace_id_callback = callback

    def get_trace_id(self) -> str | None:
        """The id of the latest window begun, None before the first."""
        return self._trace_id

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The events of the latest recorded window, as columns.

        Raises:
            NotAvailable: there is none.
        """
        if self._recording is None:
            raise NotAvailable(self._why_nothing())
        return self._recording.trace

    def _why_nothing(self) -> str:
        if self._forked:
            return "no recording: this process was forked while the profiler ran, and its recording is the parent's"
        if self._started_at_step is None:
            return "no recording: the profiler was never started; use it in a with statement or call start()"
        if self._collector.window_open:
            return "no recording yet: its window is still open; results exist after stop() or at the end of the cycle"
        steps = self.step_num - self._started_at_step
        taken = f"no recording{' yet' if self._running else ''}: {steps} step{'' if steps == 1 else 's'} were taken"
        if isinstance(self.schedule, Schedule):
            return f"{taken} and the schedule begins to record at step {self.schedule.first_recorded_step}"
        return f"{taken} and the schedule asked to record at none of them"

    # -- windows -----------------------------------------------------------------------------------------------------

    def _action_of(self, step: int) -> ProfilerAction:
        return check_action(step, self.schedule(step))

    def _begin_window(self, action: ProfilerAction) -> None:
        if self._collector.begin(action):
            self._integrations.open()
            make_id = self.custom_trace_id_callback
            self._trace_id = make_id() if make_id else os.urandom(16).hex()

    def _end_window(self, previous: ProfilerAction, action: ProfilerAction | None) -> None:
        """Ends the window that `previous` belongs to, unless `action`, the next, goes on with it."""
        saves = action is None or previous is ProfilerAction.RECORD_AND_SAVE
        goes_on = action is not None and action.records and not saves
        if self._collector.window_open and not goes_on:
            self._integrations.close()
            last = action is None or self._schedule_is_over()
            self._keep(self._collector.stop() if last else self._collector.cut())
            if saves and self.on_trace_ready is not None:
                self.on_trace_ready(self)
        if action is not None and not saves and action.value < previous.value:
            warnings.warn(
                f"the schedule goes from {previous.name} to {action.name} at step {self.step_num}, "
                "so on_trace_ready is not called for that cycle",
                GpuscopeWarning,
                stacklevel=3,
            )

    def _schedule_is_over(self) -> bool:
        return isinstance(self.schedule, Schedule) and self.schedule.finished(self.step_num)

    def _keep(self, store: _core.Store | None) -> None:
        if store is None:
            return
        rank = distributed_rank(os.environ, self._note)
        self._annotations.write_to(store, **{"trace.id": self._trace_id or ""}, **(rank.facts() if rank else {}))
        self._recording = Recording(store)
        if self._strict:
            self._shortfalls += self._recording.audit().reasons

    def _begin_step(self) -> None:
        if self._names_steps and self._collector.collecting:
            self._step_region = record_function(f"ProfilerStep#{self.step_num}")
            self._step_region.__enter__()

    def _end_step(self) -> None:
        region, self._step_region = self._step_region, None
        if region is not None:
            region.__exit__(None, None, None)

    def _note(self, sentence: str) -> None:
        """Puts a sentence into the audit's notes, once."""
        self._annotations.note(sentence)

    def _say(self, sentence: str) -> None:
        if self._annotations.note(sentence):
            warnings.warn(f"profile: {sentence}", GpuscopeWarning, stacklevel=3)
