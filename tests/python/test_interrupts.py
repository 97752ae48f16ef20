# SPDX-License-Identifier: Apache-2.0
"""An exception at any line of a profiler's start, step and stop: what was recorded is delivered, another can run."""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpuscope
from gpuscope import _core, mark, profile, record_function, schedule
from gpuscope.errors import GpuscopeError
from gpuscope.frameworks import torch_profiler
from gpuscope.late_imports import WhenImported
from gpuscope.monitor import programs
from gpuscope.profiler import lifecycle
from gpuscope.profiler.facade import _DecoratedCall
from gpuscope.recording import Analyses, Recording, load

PACKAGE = str(Path(gpuscope.__file__).parent)
with suppress(ImportError):  # beside PyTorch where it is installed
    importlib.import_module("torch")
FINDERS = {finder for finder in sys.meta_path if isinstance(finder, WhenImported)}  # that stay
RICH = {"with_stack": True, "profile_memory": True, "with_modules": True, "record_shapes": True}


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, which the test runner takes for itself."""


class Injection:
    """Raises at one line of the package, of those that run, or at the beginning of a function.

    Attributes:
        where: that was; "" where fewer ran.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._seen: set[tuple[str, int, str]] = set()
        self.where = ""

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE) or (event == "call" and is_in_finalizer(frame)):
            return None
        place = (frame.f_code.co_filename, frame.f_lineno, event)
        if event in {"call", "line"} and place not in self._seen:
            self._seen.add(place)
            if len(self._seen) == self._at:
                self.where = ":".join(map(str, place))
                raise Interrupt
        return self._trace

    @contextmanager
    def on(self) -> Iterator[None]:
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)


def is_in_finalizer(frame: FrameType | None) -> bool:
    """Of an object that an earlier test left behind, as Lightning's profilers: garbage is collected at any line."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def count_of_work(recording: Analyses) -> int:
    return sum(row.count for row in recording.key_averages() if row.key == "work")


def work() -> None:
    with record_function("work"):
        pass


class Delivery:
    """For on_trace_ready; runs no line of the package."""

    def __init__(self) -> None:
        self.windows: list[Recording] = []

    def __call__(self, ready: profile) -> None:
        self.windows.append(ready._windows.latest)

    def counts(self) -> list[int]:
        return [count_of_work(window) for window in self.windows]


def check_nothing_runs(where: str = "") -> None:
    assert not _core.Session.active(), where
    assert not lifecycle._running, where
    assert sys.getprofile() is None, where
    assert all(getattr(function, "__name__", "") != "on_garbage" for function in gc.callbacks), where
    assert {finder for finder in sys.meta_path if isinstance(finder, WhenImported)} <= FINDERS, where
    assert takes_in_a_thread(programs.status_page._lock), where
    if "torch" in sys.modules:
        check_nothing_runs_in_torch(sys.modules["torch"], where)


def takes_in_a_thread(lock: Any) -> bool:
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(timeout=5))
        lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def check_nothing_runs_in_torch(torch: Any, where: str) -> None:
    assert not torch.autograd._profiler_enabled(), where
    assert not torch.autograd.profiler._is_profiler_enabled, where
    assert torch.autograd._disable_profiler is torch._C._autograd._disable_profiler, where
    assert not torch.nn.modules.module._global_forward_pre_hooks, where
    assert not torch.nn.modules.module._global_forward_hooks, where
    assert not torch_profiler._wrappers._subscribers, where
    assert takes_in_a_thread(torch_profiler._lock), where


def check_another_can_run() -> None:
    with profile() as another:
        work()
    assert count_of_work(another) == 1


def interrupt_at_each_line(run: Callable[[Injection], None]) -> None:
    """Runs until no line is left to interrupt."""
    handled = sys.exc_info()[1]

    # An exception stays handled in CPython if its handler is interrupted at a `return`, until a generator ends.
    def attempt(injection: Injection) -> Iterator[None]:
        yield run(injection)

    for at in itertools.count(1):
        injection = Injection(at)
        next(attempt(injection))
        assert sys.exc_info()[1] is handled, injection.where
        check_nothing_runs(injection.where)
        if not injection.where:
            return


def interrupt_the_beginning(make: Callable[[], Any]) -> None:
    """Of what `make` gives, a context manager, at each line."""

    def run(injection: Injection) -> None:
        made = make()
        try:
            with injection.on():
                made.__enter__()
        except Interrupt:
            return
        made.__exit__(None, None, None)

    interrupt_at_each_line(run)


def test_a_start_can_be_interrupted_at_any_line():
    interrupt_the_beginning(lambda: profile(**RICH))


def test_the_first_start_of_a_process_can_be_interrupted_at_any_line():
    """Which imports what all need, and learns of torch."""
    code = "import test_interrupts as tests; tests.test_a_start_can_be_interrupted_at_any_line(); print('ran')"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300)
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_the_end_of_a_block_delivers_at_whatever_line_it_is_interrupted():
    def run(injection: Injection) -> None:
        delivery = Delivery()
        profiler = profile(on_trace_ready=delivery, **RICH)
        profiler.__enter__()
        work()
        with suppress(Interrupt), injection.on():
            profiler.__exit__(None, None, None)
        assert delivery.counts() == [1], injection.where

    interrupt_at_each_line(run)


# Python 3.10 reports the line of a `with` again before it leaves it: a file is then closed by its destructor.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
    if sys.version_info < (3, 11)
    else "error"
)
def test_a_window_is_written_into_a_folder_at_whatever_line_the_end_is_interrupted(tmp_path):
    folders = (tmp_path / str(number) for number in itertools.count())

    def run(injection: Injection) -> None:
        folder = next(folders)
        profiler = profile(path=folder)
        profiler.start()
        work()
        with suppress(Interrupt), injection.on():
            profiler.stop()
        profiler.stop()
        files = [path for path in folder.glob("*.gscope") if path.stat().st_size]  # an empty one was only begun
        assert [count_of_work(load(path)) for path in files] == [1], injection.where

    interrupt_at_each_line(run)


def test_a_stop_that_is_interrupted_stops_or_can_be_called_again():
    def run(injection: Injection) -> None:
        delivery = Delivery()
        profiler = profile(on_trace_ready=delivery)
        profiler.start()
        work()
        with suppress(Interrupt), injection.on():
            profiler.stop()
        assert takes_in_a_thread(profiler._lock), injection.where
        profiler.stop()
        assert delivery.counts() == [1], injection.where

    interrupt_at_each_line(run)


def test_steps_can_be_interrupted_at_any_line():
    def run(injection: Injection) -> None:
        delivery = Delivery()
        with profile(schedule=schedule(wait=0, warmup=0, active=2), on_trace_ready=delivery) as profiler:
            for _ in range(4):
                work()
                with suppress(Interrupt), injection.on():
                    profiler.step()
                assert takes_in_a_thread(profiler._lock), injection.where
        assert sum(delivery.counts()) == 4, injection.where

    interrupt_at_each_line(run)


def test_the_beginning_of_a_decorated_call_can_be_interrupted_at_any_line():
    interrupt_the_beginning(lambda: _DecoratedCall(profile()))


def test_the_end_of_a_decorated_call_delivers_at_whatever_line_it_is_interrupted():
    def run(injection: Injection) -> None:
        delivery = Delivery()
        call = _DecoratedCall(profile(on_trace_ready=delivery))
        call.__enter__()
        work()
        with suppress(Interrupt), injection.on():
            call.__exit__(None, None, None)
        assert delivery.counts() == [1], injection.where

    interrupt_at_each_line(run)


@pytest.mark.parametrize("method", ["stop", "cut"])
def test_ctrl_c_while_the_core_ends_a_window_loses_nothing(monkeypatch, method):
    """Python raises it after the call into the core, in place of taking what that returns."""
    original = getattr(_core.Session, method)
    interrupts = [Interrupt()]

    def interrupted(session: Any, *args: Any, **named: Any) -> Any:
        result = original(session, *args, **named)
        if interrupts:
            raise interrupts.pop()
        return result

    monkeypatch.setattr(_core.Session, method, interrupted)
    delivery = Delivery()
    each_step = schedule(wait=0, warmup=0, active=1)
    with suppress(Interrupt), profile(schedule=each_step, on_trace_ready=delivery) as profiler:
        work()
        if method == "cut":
            profiler.step()
    assert not interrupts
    assert delivery.counts()[0] == 1
    check_another_can_run()


def test_a_callback_that_raises_leaves_the_recording_and_the_way_free():
    with pytest.raises(ZeroDivisionError), profile(on_trace_ready=lambda ready: 1 / 0) as profiler:
        work()
    assert count_of_work(profiler) == 1
    check_another_can_run()


def test_a_start_whose_id_cannot_be_made_leaves_the_way_free():
    with pytest.raises(ZeroDivisionError):
        profile(custom_trace_id_callback=lambda: 1 / 0).start()
    check_another_can_run()


def test_a_session_that_is_dropped_ends():
    session = _core.Session(cuda=False)
    mark("in it")
    del session
    check_another_can_run()


class Handler(Injection):
    """Calls a handler at that line, as Python does for a signal."""

    def __init__(self, at: int, call: Callable[[], object]) -> None:
        super().__init__(at)
        self._call = call

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            return super()._trace(frame, event, argument)
        except Interrupt:
            with suppress(GpuscopeError):
                self._call()
            return self._trace


HANDLERS: dict[str, Callable[[profile], object]] = {
    "stop and start": lambda prof: (prof.stop(), prof.start()),
    "start": lambda prof: prof.start(),
    "step": lambda prof: prof.step(),
    "with": lambda prof: prof.__enter__(),
    "windows by hand": lambda prof: (prof.stop_trace(), prof.start_trace()),
    "results": lambda prof: prof.key_averages(),
    "another": lambda prof: profile(activities=["CPU"]).__enter__().__exit__(None, None, None),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_signal_handler_may_use_profilers_at_any_line_of_start_step_and_stop(handler):
    for at in itertools.count(1, 7):
        prof = profile(activities=["CPU"])
        injection = Handler(at, functools.partial(handler, prof))
        with injection.on(), suppress(GpuscopeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prof.start()
            work()
            prof.step()
            prof.stop()
        prof.stop()
        prof.stop_trace()
        check_another_can_run()
        if not injection.where:
            break
