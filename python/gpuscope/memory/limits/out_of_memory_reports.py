# SPDX-License-Identifier: Apache-2.0
"""`report_out_of_memory`: reports each out-of-memory error before it reaches the user."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar, cast

from gpuscope import _core
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.late_imports import WhenImported
from gpuscope.memory.history.call_stacks import stack_of_caller, stack_of_error
from gpuscope.memory.history.events import Frame
from gpuscope.memory.limits.out_of_memory import OutOfMemory, gather
from gpuscope.memory.limits.out_of_memory_errors import Request, causes_of, find_out_of_memory, request_of
from gpuscope.paths import is_stream, write_text
from gpuscope.regions import decorate_calls
from gpuscope.threads import shared_lock
from gpuscope.units import first_line, format_bytes

MOST = 20  # full reports; further errors are only counted
_Function = TypeVar("_Function", bound=Callable[..., Any])

_MARK = "_gpuscope_reported"
_PATIENCE_S = 10.0  # wait for another thread's report; then this one is dropped, so that the program is not blocked
_SAME_SIZE = 0.01  # torch's errors give sizes with two decimals


def report_out_of_memory(
    path: str | os.PathLike[str] | None = None,
    *,
    file: TextIO | None = None,
    on_report: Callable[[OutOfMemory], object] | None = None,
) -> OutOfMemoryReports:
    """Reports the state of memory at each out-of-memory error, before the error reaches the user.

    Covers errors of torch, CuPy, JAX, Numba, RMM, cuda-python and the driver, and the host's MemoryError. An error is
    seen when it leaves the ``with`` or the decorated function, or is uncaught on any thread. Errors of torch are seen
    even if the program catches them. No error is swallowed or changed, and each is reported once. A report uses no GPU
    memory and does not wait for the GPU.

    Args:
        path: file of the full report as text, with a ``.json`` file next to it. ``{pid}`` and ``{n}`` stand for the
            process and the number of the report. Without ``{n}``, names of later reports end with their number.
        file: destination of the short text; None is the current ``sys.stderr``.
        on_report: called with each `OutOfMemory`, on the thread of the error.

    Returns:
        An object with the reports. ``.close()`` ends them; it is also a context manager and a decorator.

    Raises:
        InvalidArgument: an argument is of the wrong kind, or the path's folder does not exist.

    Example:
        >>> with report_out_of_memory() as reports:
        ...     pass
        >>> reports.count
        0
    """
    return OutOfMemoryReports(path, file=file, on_report=on_report)


class OutOfMemoryReports:
    """Reports out-of-memory errors of any thread from its creation until `close` or the end of the ``with``.

    As a decorator, it reports only during calls of the function.

    Attributes:
        reports: the first `MOST` reports.
        count: number of errors.
        failures: why a report could not be written or a callback failed.
        since_ns: time of creation, since the Unix epoch.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        file: TextIO | None = None,
        on_report: Callable[[OutOfMemory], object] | None = None,
    ) -> None:
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise InvalidArgument(f"path is a {type(path).__name__}; accepted are the path of a file and None")
        if path is not None and not Path(path).parent.is_dir():
            raise InvalidArgument(f"path is {os.fspath(path)!r}; its folder does not exist")
        if path is not None and Path(path).is_dir():
            raise InvalidArgument(f"path is {os.fspath(path)!r}, a directory; accepted is the path of a file")
        if file is not None and not callable(getattr(file, "write", None)):
            raise InvalidArgument(f"file is a {type(file).__name__}; accepted are open text files and None")
        if on_report is not None and not callable(on_report):
            raise InvalidArgument(f"on_report is a {type(on_report).__name__}; accepted are functions of a report")
        self.reports: tuple[OutOfMemory, ...] = ()
        self.count = 0
        self.failures: tuple[str, ...] = ()
        self.since_ns = _core.now_ns()
        self._path = None if path is None else os.fspath(path)
        self._file = file
        self._on_report = on_report
        self._open = False
        self._begin()

    def close(self) -> None:
        """Ends the reports; those made stay readable. A second call does nothing."""
        with _reporter.lock:
            was_open, self._open = self._open, False
            if was_open:
                _reporter.remove(self)

    @property
    def full(self) -> bool:
        """Whether further errors are only counted."""
        return self.count >= MOST

    def skip(self) -> None:
        """Counts an error without a report."""
        self.count += 1

    def take(self, report: OutOfMemory, printed: set[int]) -> None:
        """Takes a report. Files whose ids are in `printed` already show it. Never raises."""
        if self.full:
            self.skip()
            return
        self.count += 1
        self.reports = (*self.reports, report)
        written = self._guarded(f"writing {self._path}", self._write, report) if self._path is not None else None
        self._guarded("printing", self._print, report, written, printed)
        if self._on_report is not None:
            self._guarded("on_report", self._on_report, report)

    def __enter__(self) -> OutOfMemoryReports:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _reporter.report_error(error)
        self.close()

    def __call__(self, function: _Function) -> _Function:
        """Decorates a function: reports during its calls; for a generator, while its body runs."""
        self.close()
        return cast("_Function", decorate_calls(_ReportedCall(self), function, self._coroutine))

    def __repr__(self) -> str:
        return f"<OutOfMemoryReports {'on' if self in _reporter.listeners else 'closed'}, {self.count} so far>"

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _ReportedCall(self):
                return await function(*args, **kwargs)

        return wrapper

    def _begin(self) -> None:
        with _reporter.lock:
            was_open, self._open = self._open, True
            if not was_open:
                _reporter.add(self)

    def _print(self, report: OutOfMemory, written: Path | None, printed: set[int]) -> None:
        file = self._file if self._file is not None else sys.stderr
        if file is None:  # a program without a console
            return
        lines = [] if id(file) in printed else [report.summary()]
        printed.add(id(file))
        if self._path is not None:
            lines.append(f"  whole report: {written}" if written is not None else f"  {self.failures[-1]}")
        if self.full:
            lines.append("  further ones are counted only")
        if lines:
            print("\n".join(lines), file=file, flush=True)

    def _write(self, report: OutOfMemory) -> Path:
        assert self._path is not None
        name = self._path.replace("{pid}", str(report.pid)).replace("{n}", str(report.number))
        path = Path(name)
        if "{n}" not in self._path and self.reports[0] is not report:
            path = path.with_name(f"{path.stem}-{report.number}{path.suffix}")  # keeps the first report
        if is_stream(path):
            write_text(path, str(report) + "\n")
            return path
        text = path.with_suffix(".txt") if path.suffix.lower() == ".json" else path
        figures = path if path.suffix.lower() == ".json" else path.with_suffix(".json")
        write_text(text, str(report) + "\n")
        write_text(figures, json.dumps(report.to_dict(), indent=1, default=str) + "\n")
        return text

    def _guarded(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:  # a failure here must not hide the program's own error
            own = isinstance(error, GpuscopeError)  # its message names the failed action
            why = str(error) if own else f"{what} failed: {type(error).__name__}: {error}"
            self.failures = (*self.failures, why)
            return None


class _ReportedCall:
    """Reports during a call or a step of a generator."""

    def __init__(self, reports: OutOfMemoryReports) -> None:
        self._reports = reports

    def __enter__(self) -> None:
        _reporter.add(self._reports)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _reporter.report_error(error)
        _reporter.remove(self._reports)


@contextmanager
def muted() -> Iterator[None]:
    """Suppresses reports of all threads, for code that runs out of memory on purpose."""
    with _reporter.lock:
        _reporter.muted += 1
    try:
        yield
    finally:
        with _reporter.lock:
            _reporter.muted -= 1


class ExceptHook:
    """Calls `report` with each uncaught exception, and always the previous excepthook afterwards.

    Args:
        module: sys or threading.
        report: must not raise.
    """

    def __init__(self, module: Any, report: Callable[[BaseException | None], object]) -> None:
        self._module = module
        self._report = report
        self._previous: Callable[..., Any] = module.excepthook
        module.excepthook = self

    def remove(self) -> None:
        """Restores the previous hook, unless another hook was installed since. That hook keeps calling this one."""
        if self._module.excepthook is self:
            self._module.excepthook = self._previous

    def __call__(self, *args: Any) -> None:
        """sys.excepthook gets class, error and traceback; threading.excepthook gets one object with all three."""
        self._report(args[1] if len(args) > 1 else args[0].exc_value)
        self._previous(*args)


class _Reporter:
    """Passes each out-of-memory error, from any thread, once to all open reports.

    Errors are seen by the excepthooks, by torch's observer, and at the end of a ``with`` or a decorated function.

    Attributes:
        lock: protects all other attributes.
        listeners: open reports, each as often as it was added.
        muted: if above 0, nothing is reported.
    """

    def __init__(self) -> None:
        self.lock = shared_lock()
        self.listeners: list[OutOfMemoryReports] = []
        self.muted = 0
        self._observed: deque[int] = deque(maxlen=16)  # sizes reported by torch whose errors were not seen yet
        self._thread = threading.local()
        self._hooks: list[ExceptHook] = []
        self._torch_import: WhenImported | None = None
        self._attached = False  # permanent once True: torch cannot detach an observer

    def add(self, listener: OutOfMemoryReports) -> None:
        """Adds an open listener. The first one installs the hooks."""
        with self.lock:
            self.listeners.append(listener)
            if len(self.listeners) == 1:
                self._hooks = [ExceptHook(sys, self.report_error), ExceptHook(threading, self.report_error)]
                self._torch_import = WhenImported("torch", self._when_torch_is_imported).watch()

    def remove(self, listener: OutOfMemoryReports) -> None:
        """Undoes one `add`."""
        with self.lock:
            self.listeners.remove(listener)
            if self.listeners:
                return
            self._observed.clear()
            for hook in self._hooks:
                hook.remove()
            if self._torch_import is not None:
                self._torch_import.cancel()

    def report_error(self, error: BaseException | None) -> None:
        """Reports a propagating error if it is out of memory. Never raises."""
        if not self.listeners or self.muted:
            return
        try:
            found = find_out_of_memory(error)
            if found is None:
                return
            reported = any(getattr(each, _MARK, False) for each in causes_of(found))
            setattr(found, _MARK, True)
            if reported:
                return
            request = request_of(found)
            if not self._was_observed(found, request):
                self._report(request, first_line(found), stack_of_error(found))
        except Exception:  # a failure here must not replace the program's own error
            return

    def report_observed(self, device: int, asked: int, allowed: int, free: int) -> None:
        """Called by torch just before it raises an out-of-memory error of a GPU. Never raises."""
        if not self.listeners or self.muted:
            return
        try:
            self._observed.append(asked)
            error = f"torch could not allocate {format_bytes(asked)} on GPU {device}"
            self._report(Request("torch", asked, device), error, stack_of_caller(), free=free, allowed=allowed)
        except Exception:  # an exception here would replace torch's own
            return

    def _report(
        self,
        request: Request,
        error: str,
        stack: tuple[Frame, ...],
        free: int | None = None,
        allowed: int | None = None,
    ) -> None:
        if getattr(self._thread, "reporting", False) or not self.lock.acquire(timeout=_PATIENCE_S):
            return
        self._thread.reporting = True
        try:
            listeners = tuple(dict.fromkeys(self.listeners))
            if all(each.full for each in listeners):
                for listener in listeners:
                    listener.skip()
                return
            since_ns = min(each.since_ns for each in listeners)
            report = gather(request, error, stack, free=free, allowed=allowed, since_ns=since_ns)
            printed: set[int] = set()
            for listener in listeners:
                listener.take(report, printed)
        finally:
            self._thread.reporting = False
            self.lock.release()

    def _was_observed(self, error: BaseException, request: Request) -> bool:
        """Whether torch's observer was called for this error, possibly on another thread, as in a backward pass."""
        if request.library != "torch" or type(error).__name__ != "OutOfMemoryError":
            return False
        for asked in reversed(self._observed):
            if request.bytes is None or abs(request.bytes - asked) <= _SAME_SIZE * asked:
                self._observed.remove(asked)
                return True
        return False

    def _when_torch_is_imported(self) -> None:
        # Attaching initializes CUDA, which breaks a later fork. So it waits until torch initializes CUDA.
        try:
            if not self._attached:
                sys.modules["torch"].cuda._lazy_call(self._attach)
                self._attached = True
        except Exception:  # must not break the user's import
            return

    def _attach(self) -> None:
        try:
            sys.modules["torch"]._C._cuda_attach_out_of_memory_observer(self.report_observed)
        except Exception:  # no observers in this allocator or build; errors are seen when they propagate
            return


_reporter = _Reporter()
