# SPDX-License-Identifier: Apache-2.0
"""The session and the windows of one profiler: opens, closes and keeps them."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import warnings
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuscope import _core
from gpuscope.conditions import recorded
from gpuscope.counters.names import check_names
from gpuscope.distributed import Rank, distributed_rank
from gpuscope.errors import GpuscopeWarning, InvalidArgument, NotAvailable
from gpuscope.frameworks.observers import Observers
from gpuscope.frameworks.torch import process_group
from gpuscope.frameworks.torch_flight_recorder import FACT, dump_flight_recorder
from gpuscope.frameworks.torch_operators import switched_off, wants_syncs
from gpuscope.profiler.activities import ProfilerActivity
from gpuscope.profiler.lifecycle import keep_contexts_at_exit
from gpuscope.profiler.schedules import ProfilerAction
from gpuscope.recording import Recording
from gpuscope.streams import refuse_capture
from gpuscope.system import bytecode_version
from gpuscope.text import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuscope.profiler.execution_trace import Observer
    from gpuscope.profiler.options import RecordingOptions
    from gpuscope.profiler.trace_handler import SpoolWriter

_NOTES = "session.notes"
_METADATA = "metadata."
_NS_PER_US = 1e3
_MOST_THREADS = 256  # a program may start threads for ever
_THREAD_BEGINS = "_set_native_id"  # what threading calls first on a new thread, once it has a name
_MOST_STEPS = 1 << 16  # of a window; the latest are kept

# Sessions of the parent in a forked child: ending one would touch threads and buffers of the parent.
_of_parents: list[_core.Session] = []


@dataclass
class ProfilerStats:
    """How long a profiler's own work took for the latest window, by the names of torch.profiler's ``_stats()``.

    Attributes:
        profiling_window_duration_sec: how long the window was open.
        number_of_events: events that ``events()`` returned; 0 before it was called.
        profiler_prepare_call_duration_us: opening the window in the core.
        profiler_enable_call_duration_us: beginning to watch frameworks.
        profiler_disable_call_duration_us: ending that.
        parse_kineto_call_duration_us: closing the window in the core.
        function_events_build_tree_call_duration_us: making the list of events; 0 before it was asked for.
    """

    profiling_window_duration_sec: float = 0.0
    number_of_events: int = 0
    profiler_prepare_call_duration_us: float = 0.0
    profiler_enable_call_duration_us: float = 0.0
    profiler_disable_call_duration_us: float = 0.0
    parse_kineto_call_duration_us: float = 0.0
    function_events_build_tree_call_duration_us: float = 0.0


class Annotations:
    """Facts and notes for the latest recording of one profiler and for those to come."""

    def __init__(self, facts: Mapping[str, str] | None = None, notes: Iterable[str] = ()) -> None:
        self._facts: dict[str, str] = dict(facts or {})
        self._notes: list[str] = []
        for sentence in notes:
            self.note(sentence)
        self._latest: _core.Store | None = None

    @property
    def added(self) -> dict[str, str]:
        """The metadata added so far, as JSON by key."""
        return {key.removeprefix(_METADATA): text for key, text in self._facts.items() if key.startswith(_METADATA)}

    def add(self, key: str, value: str) -> None:
        """Adds text under ``metadata.<key>``, as the JSON value that trace formats want."""
        if not isinstance(value, str):
            raise InvalidArgument(
                f"add_metadata: value is {brief(value)}; accepted is text (numbers as str(value), or add_metadata_json)"
            )
        self._set(key, json.dumps(value))

    def add_json(self, key: str, value: str) -> None:
        """Adds JSON under ``metadata.<key>``."""
        try:
            json.loads(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"add_metadata_json: value is {brief(value)}; accepted is text in JSON") from error
        self._set(key, value)

    def state(self, facts: Mapping[str, str]) -> None:
        """Adds facts that are no metadata, before the first window."""
        self._facts |= facts

    def note(self, sentence: str) -> bool:
        """Adds a sentence to the notes of the audit; returns whether it is new."""
        sentence = sentence.encode("utf-8", "backslashreplace").decode()
        if sentence in self._notes:
            return False
        self._notes.append(sentence)
        return True

    def write_to(self, store: _core.Store, **facts: str) -> None:
        """Writes all facts and notes so far, and `facts`, into a recording; metadata added later follows."""
        notes = [*store.info().get(_NOTES, "").split("\n"), *self._notes]
        store.set_info(_NOTES, "\n".join(dict.fromkeys(filter(None, notes))))
        for key, value in (facts | self._facts).items():  # the program's metadata has priority
            store.set_info(key, value)
        self._latest = store

    def added_to(self, facts: Mapping[str, str]) -> dict[str, str]:
        """These facts, and all facts and notes so far."""
        return {_NOTES: "\n".join(self._notes), **facts, **self._facts}

    def _set(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not key:
            raise InvalidArgument(f"metadata: key is {brief(key)}; accepted is text that is not empty")
        for argument, text in (("key", key), ("value", value)):
            _check_text(f"metadata: {argument}", text)
        self._facts[f"{_METADATA}{key}"] = value
        if self._latest is not None:
            self._latest.set_info(f"{_METADATA}{key}", value)


class Collector:
    """Starts a session when something is to be collected, and opens and closes its windows.

    An exception may interrupt each method anywhere; called again, the method continues where it was.

    Attributes:
        spool: where rows are written as they come; None if they stay in memory.
        window_open: whether events are kept at the moment.
        ended: stores of closed windows; the caller that takes a store removes it.
    """

    def __init__(self, options: RecordingOptions, spool: SpoolWriter | None = None) -> None:
        self._options = options
        self.spool = spool
        self._python_interval_ns = options.python_interval_ns  # 0 once sampling has failed
        self._session: _core.Session | None = None
        self.window_open = False
        self.ended: list[_core.Store] = []
        self._machine_cpus = _MachineCpus()
        self._thread_names: dict[int, str] = {}
        self._end_noting: Callable[[], None] = lambda: None

    @property
    def facts(self) -> dict[str, str]:
        """Facts about how the recording was made, for each recording."""
        options = self._options
        facts = {"counters.interval_ns": str(options.counter_interval_ns)} if options.counters else {}
        if options.device_interval_ns:
            facts["device_samples.interval_ns"] = str(options.device_interval_ns)
        if self._python_interval_ns:
            sources = _core.PythonSampler.host_sources()
            facts |= {"samples.interval_ns": str(self._python_interval_ns), "samples.python": bytecode_version()}
            facts |= self._machine_cpus.facts()
            facts |= {f"thread_name.{number}": name for number, name in self._thread_names.items()}
            facts |= {f"host.{source}": why or "recorded" for source, why in sources.items()}
        return facts

    @property
    def collecting(self) -> bool:
        """Whether there is a session, recording or not."""
        return self._session is not None

    def begin(self, action: ProfilerAction) -> None:
        """Starts the session if `action` collects."""
        if not action.collects:
            return
        if self._session is None:
            options = self._options
            if options.counters_in_full:
                check_names(options.counters, "counters", sampling=True)
            if options.cuda:
                refuse_capture("the start of a recording")
            of_core = {name: getattr(options, name) for name in _core.SESSION_OPTIONS}
            of_core["sync"] = options.sync or (options.cuda and wants_syncs())
            if options.spool:
                of_core["mode"] = "full"  # the folder is the ring
            self._session = _core.Session(**of_core)
            keep_contexts_at_exit()

    def open(self, facts: Mapping[str, str]) -> None:
        """Opens a window in the session. `facts` are written first, if its rows are written as they come."""
        if self._session is None:
            return
        folder = self.spool.begin(facts) if self.spool is not None else ""
        if self._python_interval_ns and (why := self._start_sampling()):
            self._python_interval_ns = 0
            warnings.warn(f"profile: python_samples: {why}", GpuscopeWarning, stacklevel=2)
        self._session.open(folder)
        self.window_open = True

    def switch(self, activities: frozenset[ProfilerActivity], on: bool) -> None:
        """Records these activities or leaves them out from now on, in the open window."""
        if self._session is not None:
            if ProfilerActivity.CUDA in activities:
                self._session.switch_gpu(on)
            if ProfilerActivity.CPU in activities:
                self._session.switch_regions(on)

    def cut(self) -> None:
        """Closes the window; the session continues."""
        if self._session is not None and self.window_open and not self.ended:
            self.stop_sampling()
            try:
                self._session.cut(into=self.ended)
            except Exception:  # it is closed, with nothing to hand over
                self.window_open = False
                raise
        self.window_open = False

    def stop(self, timeout: float | None = None) -> None:
        """Ends the session, and the window if one is open; `timeout` as `profile.stop` takes it."""
        if self._session is not None:
            self.stop_sampling()
            try:
                self._session.stop(timeout, into=self.ended)
            except Exception:  # it has ended, with nothing to hand over
                self._session, self.window_open = None, False
                raise
            self._session, self.window_open = None, False

    def _start_sampling(self) -> str:
        """Starts the samples of Python; returns the reason if that fails, else an empty text."""
        self._machine_cpus.begin()
        self._end_noting()
        self._end_noting = _note_threads(self._thread_names)
        try:
            is_sampling = _core.PythonSampler.start(self._python_interval_ns)
        except NotAvailable as error:
            return str(error)
        return "" if is_sampling else "this system gives no way to read the memory of a running thread"

    def stop_sampling(self) -> None:
        """Ends the samples of Python; the core keeps the samples taken."""
        if self._python_interval_ns:
            _core.PythonSampler.stop()
            self._end_noting()

    def sees_gpu(self) -> bool:
        """Whether the session found a GPU to record."""
        return self._session is not None and self._session.tier != "cpu"

    def release_cupti(self) -> bool:
        """Ends the recording of GPU work in this session, for another profiler; False when there was none."""
        return self._session is not None and self._session.release_cupti()

    def abandon(self) -> None:
        """Drops the session without ending it, in a forked child."""
        self.window_open = False
        self.ended = []
        self._end_noting()
        if self._session is not None:
            _of_parents.append(self._session)
            self._session = None


class _MachineCpus:
    """How many CPUs all processes of the machine, including this one, kept busy in a window."""

    def __init__(self) -> None:
        self._began = (0, 0.0)  # ns, and seconds of CPU time

    def begin(self) -> None:
        self._began = (_core.monotonic_ns(), _core.host_state()["machine_cpu_s"] or 0.0)

    def facts(self) -> dict[str, str]:
        """The figures as facts; empty if the program may use only some CPUs, as other processes' share is unknown."""
        state, seconds = _core.host_state(), (_core.monotonic_ns() - self._began[0]) / 1e9
        count, spent = state["machine_cpus"], state["machine_cpu_s"]
        if not count or not spent or not self._began[1] or seconds <= 0 or len(os.sched_getaffinity(0)) < count:
            return {}
        return {"machine.cpus": str(count), "machine.cpus_busy": f"{(spent - self._began[1]) / seconds:.3f}"}


def _note_threads(names: dict[int, str]) -> Callable[[], None]:
    """Notes names of threads that begin from now on, by the system's ids, until the result is called.

    The core asks for names at the end of a window, when a thread may have ended.
    """
    original = getattr(threading.Thread, _THREAD_BEGINS, None)
    if original is None:  # another version of Python
        return lambda: None

    def note(thread: threading.Thread) -> None:
        original(thread)
        if len(names) < _MOST_THREADS:
            names[threading.get_native_id()] = thread.name.encode("utf-8", "replace").decode()

    def end() -> None:
        if getattr(threading.Thread, _THREAD_BEGINS) is note:
            setattr(threading.Thread, _THREAD_BEGINS, original)

    setattr(threading.Thread, _THREAD_BEGINS, note)
    return end


class Windows:
    """Opens and closes windows and keeps their recordings. Like `Collector`, it can be interrupted.

    Attributes:
        undelivered: the callback given to `end`, by the window; the caller of a callback removes it.
        trace_id: of the latest window begun; None before the first.
        shortfalls: missing events that the audits of this run's windows report; filled only if `strict`.
        latest: the latest window by itself; None before the first has ended.
        stats: of the latest window begun.
        accumulates: windows make one recording.
    """

    def __init__(
        self,
        collector: Collector,
        annotations: Annotations,
        options: RecordingOptions,
        observer: Observer | None,
    ) -> None:
        self._collector = collector
        self._annotations = annotations
        self._observer = observer
        asked = replace(
            options,
            execution_trace=observer is not None,
            release_cupti=collector.release_cupti,
            sees_gpu=collector.sees_gpu,
        )
        self._observers = Observers(asked, annotations.note)
        self.accumulates = options.acc_events
        self._strict = options.strict
        self._kept: list[_core.Store] = []
        self._ended: _core.Store | None = None  # of the collector, the latest that was kept
        self._recording: Recording | None = None
        self.trace_id: str | None = None
        self.shortfalls: list[str] = []
        self.latest: Recording | None = None
        self.stats = ProfilerStats()
        self._opened = 0  # ns
        self._observed = False  # the window that is open
        self.undelivered: dict[_core.Store, Callable[[], object]] = {}
        self._step_edges: deque[int] = deque(maxlen=_MOST_STEPS)  # ns
        self._step_costs: deque[int] = deque(maxlen=_MOST_STEPS)  # ns of the profiler's own work before each edge
        self._step_count = 0  # edges of the window, including those no longer kept
        self._step_left = 0
        self._step_thread = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a window to end."""
        return self._collector.window_open or self._observed or self._observers.started or bool(self._collector.ended)

    @property
    def recording(self) -> Recording | None:
        """The latest window, or all windows as one where they accumulate; None before the first has ended."""
        if len(self._kept) > 1:
            # Always a new store: a caller may hold views of the last one's memory.
            facts = _facts_of_windows(self._kept)
            self._kept = [_core.merge(self._kept)]
            self._annotations.write_to(self._kept[0], **facts)
            self._recording = Recording(self._kept[0])
        return self._recording

    def begin(self, action: ProfilerAction, make_id: Callable[[], str] | None) -> None:
        """Prepares a step with `action`: starts collecting, and opens a window if the step is recorded.

        The window opens last: its set-up is not part of the recording.
        """
        began = _core.monotonic_ns()
        self._collector.begin(action)
        if not action.records:
            return
        if not self._observed:
            prepared = _core.monotonic_ns()
            self.stats = ProfilerStats(profiler_prepare_call_duration_us=(prepared - began) / _NS_PER_US)
            self._observers.start()
            self.stats.profiler_enable_call_duration_us = (_core.monotonic_ns() - prepared) / _NS_PER_US
            self._step_edges.clear()
            self._step_costs.clear()
            self._step_count = 0
            self._observed = True
            self.observe("start")
            made = make_id() if make_id else os.urandom(16).hex()
            self.trace_id = _check_text("what custom_trace_id_callback returned", made)
        if not self._collector.window_open:
            spools = self._collector.spool is not None
            self._collector.open(self._annotations.added_to(self._first_facts()) if spools else {})
            self._opened = _core.monotonic_ns()
        self._observers.open()

    def leave_step(self) -> None:
        """Marks the end of the program's step; the time until `note_step` is the profiler's own."""
        self._step_left = _core.now_ns()

    def note_step(self) -> None:
        """Marks where a step without a region ends and the next begins; the first of a window only begins."""
        if self._observed:
            self._step_thread = threading.get_native_id()
            now = _core.now_ns()
            self._step_costs.append(now - self._step_left if self._step_edges else 0)
            self._step_edges.append(now)
            self._step_count += 1

    def end(self, then: Callable[[], object] | None, *, last: bool, timeout: float | None = None) -> None:
        """Closes the open window and keeps it with its callback `then`; `last` ends collecting, within `timeout`."""
        ends = _core.monotonic_ns()
        self._collector.stop_sampling()  # first: the code that ends the rest is not the program's
        if self._observed:
            self.observe("stop")
        self._observers.stop()
        ended = _core.monotonic_ns()
        if last:
            self._collector.stop(timeout)
        else:
            self._collector.cut()
        self.stats.profiling_window_duration_sec = (ends - self._opened) / 1e9
        self.stats.profiler_disable_call_duration_us = (ended - ends) / _NS_PER_US
        self.stats.parse_kineto_call_duration_us = (_core.monotonic_ns() - ended) / _NS_PER_US
        self._observed = False
        while self._collector.ended:
            store = self._collector.ended[0]
            self._keep(store)
            if then is not None:
                self.undelivered[store] = then
            del self._collector.ended[0]

    def drop(self) -> None:
        """Ends the collecting, and discards an open window."""
        self._observers.stop()
        self._collector.stop()
        self._collector.ended.clear()
        self._observed = False

    def _keep(self, store: _core.Store) -> None:
        if store is self._ended:
            return
        facts = self._first_facts() | self._collector.facts
        if name := _process_name():
            facts["process.name"] = name
        facts |= {**self._facts_of_rank(), **self._facts_of_steps()}
        if not store.rows("collective"):
            calls = dump_flight_recorder(int(store.info().get("session.start_ns", 0)))
            facts |= {FACT: calls} if calls else {}
        ended = store
        if self._collector.spool is not None:
            store = self._collector.spool.end(store, self._annotations.added_to(facts))
        self._annotations.write_to(store, **facts)
        latest = Recording(store)
        if self._strict:
            self.shortfalls += latest.audit().reasons
        self.latest = self._recording = latest
        self._kept = [*self._kept, store] if self.accumulates else [store]
        self._ended = ended

    def _first_facts(self) -> dict[str, str]:
        """Facts that are known before a window."""
        facts = {"trace.id": self.trace_id or "", **recorded(), **switched_off()}
        if command := _program():
            facts["process.argv"] = command
        rank = distributed_rank()
        return facts | (rank.facts() if rank else {})

    def _facts_of_steps(self) -> dict[str, str]:
        edges = list(self._step_edges)
        if len(edges) < 2:
            return {}
        return {
            "session.step_edges_ns": _differences(edges),
            "session.step_costs_ns": " ".join(map(str, self._step_costs)),
            "session.step_thread": str(self._step_thread),
            "session.steps": str(self._step_count - 1),  # all, also those without an edge
        }

    def _facts_of_rank(self) -> dict[str, str]:
        """The rank of this process: from torch, else from the launcher."""
        rank = distributed_rank(os.environ, self._annotations.note)
        group = process_group()
        if group is None:
            return rank.facts() if rank else {}
        number, size = group["rank"], group["world_size"]
        if rank is None or (rank.rank, rank.world_size) != (number, size):
            rank = Rank(number, size, None, "torch.distributed")
        elif rank.local_rank is not None:
            group["local_rank"] = rank.local_rank
        return {**rank.facts(), "metadata.distributedInfo": json.dumps(group, default=str)}

    def forget(self) -> None:
        """Forgets everything in a forked child: it belongs to the parent."""
        self._collector.abandon()
        self._kept = []
        self._ended = None
        self._observed = False
        self._recording = self.latest = None

    def observe(self, event: str) -> None:
        """Calls the observer, if there is one."""
        if self._observer is None:
            return
        try:
            getattr(self._observer, event)()
        except Exception as error:  # the recording is kept if an observer fails
            sentence = f"execution_trace_observer.{event}() failed: {error!r}"
            if self._annotations.note(sentence):
                warnings.warn(f"profile: {sentence}", GpuscopeWarning, stacklevel=4)


def _program() -> str:
    """The program and its arguments, without the interpreter or the command that runs it; empty if unknown."""
    name, *arguments = map(str, getattr(sys, "argv", ()) or ("",))
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name != "__main__":
        name = f"-m {spec.name.removesuffix('.__main__')}"
    if name == "-c":  # sys.argv lacks the code; sys.orig_argv has it
        before = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
        name = f"-c {before[-1]}" if before[-2:-1] == ["-c"] else ""
    command = " ".join([name, *arguments]) if name not in ("", "-") else ""
    return _in_utf8(command)


def _in_utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _process_name() -> str:
    """The name that multiprocessing gave this process, as "ForkPoolWorker-1"; empty for other processes."""
    processes = sys.modules.get("multiprocessing.process")
    name = getattr(processes, "current_process", lambda: None)()
    return "" if name is None or name.name == "MainProcess" else _in_utf8(str(name.name))


def _differences(moments: Sequence[int]) -> str:
    """The first moment, then the differences."""
    return " ".join(map(str, [*moments[:1], *(after - before for before, after in itertools.pairwise(moments))]))


def _facts_of_windows(stores: Sequence[_core.Store]) -> dict[str, str]:
    """Facts of several windows in one recording: where each window is, and where its steps are."""
    from gpuscope.trace import moments_of, number_of, numbers_of

    windows: list[int] = []
    edges: deque[int] = deque(maxlen=_MOST_STEPS)
    costs: deque[int] = deque(maxlen=_MOST_STEPS)
    for info in (store.info() for store in stores):
        ends = [number_of(info, f"session.{end}_ns") for end in ("start", "stop")]
        windows += moments_of(info, "session.windows_ns") or ends
        edges += moments_of(info, "session.step_edges_ns")
        costs += numbers_of(info, "session.step_costs_ns")
    facts = {"session.windows_ns": _differences(windows)}
    if edges:
        facts["session.step_edges_ns"] = _differences(list(edges))
        facts["session.step_costs_ns"] = " ".join(map(str, costs))
    return facts


def _check_text(argument: str, value: object) -> str:
    """The text; raises InvalidArgument for a value that a recording cannot contain."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{argument} is {brief(value)}; accepted is text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{argument} is {brief(value)}; accepted is text that UTF-8 can encode") from error
    return value
