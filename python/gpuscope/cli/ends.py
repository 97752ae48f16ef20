# SPDX-License-Identifier: Apache-2.0
"""Finishes work before a program ends: by itself, by a signal, os._exit or os.exec*."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NoReturn, Protocol

from gpuscope import _core
from gpuscope.cli import console
from gpuscope.errors import NotAvailable

_OS = ("os", "posix")  # pickle looks for functions of os in posix
_GIVEN_UP = "gpuscope: a second signal, or Python that did not run, ended this before all was written\n"
_SPARE_FILES = 8
INTERRUPTED = 128 + signal.SIGINT  # as shells report it
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a service or the programs of a session."""
_FOLDERS = tuple(sys.path[1:])  # without the first, which the program's folder replaces


@dataclass(frozen=True)
class Ending:
    """How a program ended."""

    code: int
    error: BaseException | None = None  # the uncaught exception
    by: str = ""  # a signal, os._exit, or the exec function
    in_child: bool = False  # in a process that the program forked


class Finish(Protocol):
    """Work at the end of a program."""

    def finish(self, ending: Ending) -> None:
        """Called once: on the main thread, or on any thread if a signal or os._exit ends the program."""

    def resume(self) -> None:
        """Called after `finish` if the program continues because os.exec* failed."""

    def given_up(self) -> str:
        """The sentence printed if `finish` is interrupted."""


@contextlib.contextmanager
def own_imports() -> Iterator[None]:
    """While open, gpuscope imports without the program's folder: a random.py there is only the program's.

    The program's folders stay at the end of the path, as its threads may continue.
    """
    of_program = sys.path
    sys.path = [*_FOLDERS, *of_program]
    try:
        yield
    finally:
        sys.path = of_program


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """While open, a signal that ends a service or session ends the block like Ctrl-C, and then the process.

    So the block can write its log, restore the terminal and remove a temporary file.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread has handlers
        yield
        return

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    ours = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]  # nohup ignores one
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    except SystemExit as error:
        for number in ours:
            if error.code == 128 + number:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)  # the first process of a container survives this
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class Ends:
    """While open, this process does not end without `finish`; forked children are excluded.

    A forked child calls `in_fork` and does not end without the `Finish` that it returns. With None, nothing is done.

    A signal that ends the program by default ends it after `finish`. The program's own handlers replace ours, and
    ``signal.getsignal`` does not show ours. Ctrl-C, or SystemExit from a handler, interrupts `finish`; the loss is
    reported.
    """

    def __init__(self, finish: Finish | None, in_fork: Callable[[], Finish | None] = lambda: None) -> None:
        self._finish = finish
        self._in_fork = in_fork
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._thread: int | None = None  # the thread that runs `finish`
        self._begun = False
        self._out = console.errors()  # the program may replace sys.stderr
        self._replaced: list[tuple[str, str, Any, Any]] = []  # module, name, its function and ours
        self._spare: list[int] = []  # spare descriptors for `finish`, if the program leaves none

    def __enter__(self) -> Ends:
        with contextlib.suppress(OSError):  # few are available
            while len(self._spare) < _SPARE_FILES:
                self._spare.append(os.open(os.devnull, os.O_RDONLY))
        self._replace("signal", self._setting_signal, "signal")
        self._replace("_exit", self._exiting, *_OS)
        for name in ("execv", "execve"):  # the other exec functions call these
            self._replace(name, self._executing, *_OS)
        if self._finish is not None:
            self._watch_signals()
        os.register_at_fork(after_in_child=self._adopt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() == self._process:
            _core.unwatch_signals()
        self._free_spare()
        for module, name, original, ours in self._replaced:
            if getattr(sys.modules[module], name) is ours:
                setattr(sys.modules[module], name, original)

    def _watch_signals(self) -> None:
        try:
            _core.watch_signals(self._on_signal, _GIVEN_UP)
        except NotAvailable as error:
            with self._out.forgiving():
                self._out.complain(str(error), "bold yellow")

    def _adopt(self) -> None:
        if self._begun or (finish := self._in_fork()) is None:
            return
        self._finish, self._process = finish, os.getpid()
        self._lock, self._thread = threading.Lock(), None  # a thread of the parent may hold the old lock
        self._watch_signals()

    def finish(self, ending: Ending) -> Ending:
        """Runs `finish`, or waits until another thread has; returns how the program ended after all."""
        if self._finish is None or os.getpid() != self._process:
            return replace(ending, in_child=True)
        if self._thread == threading.get_ident():  # a handler of the program ends it meanwhile
            self._say_given_up(ending.by)
            return ending
        try:
            with self._lock:
                if not self._begun:
                    self._begun, self._thread = True, threading.get_ident()
                    self._free_spare()
                    with own_imports():
                        self._finish.finish(ending)
                    self._thread = None
        except KeyboardInterrupt:
            self._say_given_up("a Ctrl-C")
            return Ending(INTERRUPTED)
        except SystemExit as error:
            self._say_given_up("SystemExit")
            return Ending(error.code if isinstance(error.code, int) else int(error.code is not None))
        return ending

    def _free_spare(self) -> None:
        while self._spare:
            number = self._spare.pop()
            with contextlib.suppress(OSError):  # the program may have replaced it
                if os.path.samestat(os.fstat(number), os.stat(os.devnull)):
                    os.close(number)

    def _say_given_up(self, by: str) -> None:
        assert self._finish is not None
        with self._out.forgiving():
            self._out.complain(f"{self._finish.given_up()}: interrupted by {by}", "bold yellow")

    def _on_signal(self, number: int) -> None:
        name = next((each.name for each in signal.Signals if each == number), f"signal {number}")
        self.finish(Ending(128 + number, by=name))

    def _replace(self, name: str, wrapper: Callable[[Any], Any], *modules: str) -> None:
        original = getattr(sys.modules[modules[0]], name)
        ours = functools.wraps(original)(wrapper(original))
        for module in modules:
            self._replaced.append((module, name, original, ours))
            setattr(sys.modules[module], name, ours)

    def _setting_signal(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_signal(signalnum: Any, handler: Any) -> Any:
            previous = original(signalnum, handler)
            if handler == signal.SIG_DFL:
                _core.watch_signal(int(signalnum))
            return previous

        return set_signal

    def _exiting(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def exit_now(status: int) -> NoReturn:
            self.finish(Ending(status, by="os._exit"))
            original(status)

        return exit_now

    def _executing(self, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def execute(path: Any, *args: Any, **named: Any) -> NoReturn:
            may_end = _can_be_executed(path)  # else exec fails and the program continues
            if may_end:
                self.finish(Ending(0, by=f"os.{original.__name__}"))
            try:
                original(path, *args, **named)
            except BaseException:
                if may_end and self._finish is not None and os.getpid() == self._process:
                    with own_imports():
                        self._finish.resume()
                    self._begun = False
                raise

        return execute


def _can_be_executed(path: Any) -> bool:
    try:
        return isinstance(path, int) or (os.path.isfile(path) and os.access(path, os.X_OK))
    except (TypeError, ValueError):
        return False
