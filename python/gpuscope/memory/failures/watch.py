# SPDX-License-Identifier: Apache-2.0
"""`report_out_of_memory`: from now on, an out-of-memory error is written up before it reaches the user."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

from gpuscope.errors import InvalidArgument
from gpuscope.memory.failures import delivery
from gpuscope.memory.failures.hooks import hooks
from gpuscope.memory.failures.report import OutOfMemory
from gpuscope.memory.failures.text import short, whole

MOST = 20  # reports that are written up; of a program that runs out again and again the rest is counted

_Function = TypeVar("_Function", bound=Callable[..., Any])


class OutOfMemoryReports:
    """Reports of out-of-memory errors: from when it is made until `close`, or the end of the ``with``.

    As a decorator it reports during calls of the function only. Any thread.

    Attributes:
        reports: those written up, the first `MOST`.
        count: how many errors there were.
        failures: why a report could not be written or a callback failed.
        since_ns: when it was made, since the Unix epoch.
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
        if file is not None and not callable(getattr(file, "write", None)):
            raise InvalidArgument(f"file is a {type(file).__name__}; accepted are open text files and None")
        if on_report is not None and not callable(on_report):
            raise InvalidArgument(f"on_report is a {type(on_report).__name__}; accepted are functions of a report")
        self.reports: tuple[OutOfMemory, ...] = ()
        self.count = 0
        self.failures: tuple[str, ...] = ()
        self.since_ns = time.time_ns()
        self._path = None if path is None else os.fspath(path)
        self._file = file
        self._on_report = on_report
        self._lock = threading.Lock()
        self._users = 0
        self._held = False
        self._hold()

    def close(self) -> None:
        """Ends the reports; those made stay readable. A second call does nothing."""
        with self._lock:
            was, self._held = self._held, False
        if was:
            self._leave()

    @property
    def full(self) -> bool:
        """Whether further errors are counted only."""
        return self.count >= MOST

    def skip(self) -> None:
        """One has happened that is counted only."""
        self.count += 1

    def take(self, report: OutOfMemory, printed: set[int]) -> None:
        """One has happened, and can be read on the files of these ids already. Never raises."""
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
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        delivery.from_error(error)
        self.close()

    def __call__(self, function: _Function) -> _Function:
        """The function, with reports during its calls."""
        self.close()
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                with _Call(self):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with _Call(self):
                    return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"<OutOfMemoryReports {'on' if self._users else 'closed'}, {self.count} so far>"

    def _hold(self) -> None:
        with self._lock:
            was, self._held = self._held, True
        if not was:
            self._join()

    def _join(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                hooks.hold()
                delivery.add(self)

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                delivery.remove(self)
                hooks.release()

    def _print(self, report: OutOfMemory, written: Path | None, printed: set[int]) -> None:
        file = self._file if self._file is not None else sys.stderr
        if file is None:  # a program without a console
            return
        lines = [] if id(file) in printed else [short(report)]
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
            path = path.with_name(f"{path.stem}-{report.number}{path.suffix}")  # the first is not lost
        text = path.with_suffix(".txt") if path.suffix == ".json" else path
        text.write_text(whole(report) + "\n", encoding="utf-8")
        figures = json.dumps(report.to_dict(), indent=1, default=str)
        path.with_suffix(".json").write_text(figures + "\n", encoding="utf-8")
        return text

    def _guarded(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:  # whatever fails here must not hide the program's own error
            self.failures = (*self.failures, f"{what} failed: {type(error).__name__}: {error}")
            return None


class _Call:
    """Reports during one call."""

    def __init__(self, reports: OutOfMemoryReports) -> None:
        self._reports = reports

    def __enter__(self) -> None:
        self._reports._join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        delivery.from_error(error)
        self._reports._leave()


def report_out_of_memory(
    path: str | os.PathLike[str] | None = None,
    *,
    file: TextIO | None = None,
    on_report: Callable[[OutOfMemory], object] | None = None,
) -> OutOfMemoryReports:
    """From now on, writes up what memory looked like whenever it runs out, before the error reaches the user.

    Seen are errors of torch (also those that the program catches itself), CuPy, JAX, Numba, RMM, cuda-python and the
    driver, and MemoryError of the host: when they leave the ``with`` or the decorated function, and when nobody
    catches them, on any thread. No error is swallowed, none changed, and each is reported once. A report takes no GPU
    memory and waits for nothing.

    Args:
        path: the whole report as text, and beside it as ``.json``; ``{pid}`` and ``{n}`` stand for the process and the
            number of the report. Without ``{n}`` later reports get their number at the end of the name.
        file: where the short text goes; None is ``sys.stderr`` as it is then.
        on_report: called with each `OutOfMemory`, on the thread that ran out.

    Returns:
        What ends it by ``.close()``, as a context manager or as a decorator, and holds the reports.

    Raises:
        InvalidArgument: an argument is of the wrong kind, or the path's folder does not exist.

    Example:
        >>> with report_out_of_memory() as reports:
        ...     pass
        >>> reports.count
        0
    """
    return OutOfMemoryReports(path, file=file, on_report=on_report)
