# SPDX-License-Identifier: Apache-2.0
"""Runs a script, a module or a string of code in this process, as the interpreter itself would."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib.util
import io
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Literal

from gpuscope.cli.ends import INTERRUPTED, Ending, Ends, Finish
from gpuscope.errors import InvalidArgument


@dataclass(frozen=True)
class Program:
    """The words after ``python`` on a command line: a script, ``-m`` module, ``-c`` code or ``-``, and its arguments.

    Attributes:
        kind: "stdin" for code from standard input.
        target: path, name of the module, or code.
    """

    kind: Literal["script", "module", "code", "stdin"]
    target: str
    arguments: tuple[str, ...] = ()

    @staticmethod
    def prepare_parser(parser: argparse.ArgumentParser) -> None:
        """Adds the arguments that name a program, which `given` takes as ``kind`` and ``program``."""
        parser.usage = f"{parser.prog} [options] (script.py | -m module | -c code | -) [args ...]"
        parser.add_argument("-m", dest="kind", action="store_const", const="module", help="run a module, as python -m")
        parser.add_argument("-c", dest="kind", action="store_const", const="code", help="run a string, as python -c")
        parser.add_argument("program", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)

    @classmethod
    def given(cls, kind: Literal["module", "code"] | None, words: Sequence[str]) -> Program:
        """The program of a command line: `kind` from -m or -c, and the other words; ``-`` reads standard input."""
        rest = words[1:] if words[:1] == ["--"] else words
        if not rest:
            raise InvalidArgument("there is nothing to run: give a script, -m module, -c code or - for standard input")
        if kind is None and rest[0] == "-":
            return cls("stdin", _standard_input(), tuple(rest[1:]))
        return cls(kind or "script", rest[0], tuple(rest[1:]))

    @property
    def name(self) -> str:
        """A short name for the run, fit for a file name."""
        if self.kind == "script":
            return Path(os.path.abspath(self.target)).stem
        return self.target if self.kind == "module" else self.kind

    @property
    def file_name(self) -> str:
        """The name of code without a file in tracebacks."""
        return "<stdin>" if self.kind == "stdin" else "<string>"

    def check(self) -> None:
        """Checks that there is something to run, without running it; raises InvalidArgument otherwise."""
        if self.kind == "module":
            folder = sys.path[0]
            self._enter(os.getcwd(), "-m")
            try:
                found = importlib.util.find_spec(self.target.partition(".")[0])
            except ValueError:  # an empty name, and a module that was not imported, as __main__
                found = None
            finally:
                sys.path[0] = folder  # only while it runs: gpuscope must not import from it
            if found is None:
                raise InvalidArgument(f"there is no module {self.target!r}")
        if self.kind == "script":
            if not os.path.exists(self.target):
                raise InvalidArgument(f"there is no script {self.target!r}")
            if not os.access(self.target, os.R_OK):
                raise InvalidArgument(f"the script {self.target!r} cannot be read")
            if os.path.isdir(self.target) and _main_of(self.target) is None:
                raise InvalidArgument(f"the folder {self.target!r} has no __main__.py to run")

    def run(self, finish: Finish, in_fork: Callable[[], Finish | None] = lambda: None) -> Ending:
        """Runs it as the main program, waits for the threads it left behind, and then finishes.

        If the program forks, this also returns in its child, after finishing with the result of `in_fork`. If a signal,
        os._exit or os.exec* ends the program, this finishes first and does not return.

        An uncaught exception is printed as by the interpreter, without the frames of gpuscope.
        ``__main__`` remains the program's: functions registered with atexit, and pickle, still need it.

        Raises:
            InvalidArgument: there is no such module; nothing is finished.
        """
        with Ends(finish, in_fork) as ends:
            try:
                ending = self._execute()
            except KeyboardInterrupt:  # a second one, while the first is reported
                ending = Ending(INTERRUPTED)
            return ends.finish(ending)

    def _execute(self) -> Ending:
        main = ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins, __package__=None, __spec__=None)
        if sys.version_info < (3, 14):
            main.__dict__.update(__annotations__={})
        raised: BaseException | None = None
        try:
            code = self._load(main)
            if sys.version_info >= (3, 15):
                main.__dict__.pop("__cached__", None)
            sys.modules["__main__"] = main
            exec(code, main.__dict__)
        except BaseException as error:
            own = _own_part(error.__traceback__)
            if own is None and isinstance(error, InvalidArgument):
                raise
            raised = error.with_traceback(own)
        # Outside the except block, else this error becomes the context of an exception in the program's excepthook.
        ending = Ending(0) if raised is None else _ending(raised)
        try:
            _wait_for_threads()
        except KeyboardInterrupt:
            ending = Ending(INTERRUPTED)
        # The interpreter reports at its end a stream that the program closed or broke.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        return ending

    def _load(self, main: ModuleType) -> CodeType:
        if self.kind == "code":
            self._enter("", "-c")
            main.__loader__ = BuiltinImporter
            return compile(self.target, self.file_name, "exec", dont_inherit=True)
        if self.kind == "stdin":
            self._enter("", "-")
            main.__dict__.update(__file__=self.file_name, __cached__=None, __loader__=BuiltinImporter)
            return compile(self.target.encode(errors="surrogateescape"), self.file_name, "exec", dont_inherit=True)
        if self.kind == "module":
            self._enter(os.getcwd(), "-m")
            code, spec = _find_module(self.target)
            sys.argv[0] = spec.origin or self.target
            return _adopt(main, code, spec)
        spec_of_folder = _main_of(self.target)
        if spec_of_folder is not None:
            self._enter(_absolute(self.target), self.target)
            code_of_folder = _code(spec_of_folder)
            assert code_of_folder is not None
            return _adopt(main, code_of_folder, spec_of_folder)
        self._enter(os.path.dirname(os.path.realpath(self.target)), self.target)
        path = _absolute(self.target)
        main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        return _read(path)

    def _enter(self, folder: str, name: str) -> None:
        sys.argv[:] = [name, *self.arguments]
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path[0] = folder


def _standard_input() -> str:
    """All of standard input. Bytes that are not UTF-8 become surrogates, as the code may declare its encoding."""
    if sys.stdin is None:
        raise InvalidArgument("the program is -, but standard input is closed; accepted is - with code there")
    return sys.stdin.buffer.read().decode(errors="surrogateescape")


def _adopt(main: ModuleType, code: CodeType, spec: ModuleSpec) -> CodeType:
    main.__dict__.update(__spec__=spec, __loader__=spec.loader, __package__=spec.parent)
    main.__dict__.update(__file__=spec.origin, __cached__=spec.cached)
    return code


def _main_of(path: str) -> ModuleSpec | None:
    """The ``__main__`` of a folder or an archive; None for any other file."""
    finder = pkgutil.get_importer(_absolute(path))
    return finder.find_spec("__main__") if finder is not None else None


def _find_module(name: str) -> tuple[CodeType, ModuleSpec]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    code = _code(spec)
    if spec is None or code is None:
        raise InvalidArgument(f"there is no module {name!r}, or it is a package without a __main__ module")
    return code, spec


def _code(spec: ModuleSpec | None) -> CodeType | None:
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    return get_code(spec.name) if spec is not None and get_code is not None else None


def _absolute(path: str) -> str:
    """An absolute path as the interpreter makes it: the current folder in front, and nothing else resolved."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # the current folder may be gone


def _read(path: str) -> CodeType:
    """The code of a source file, or of a compiled one."""
    with io.open_code(path) as file:
        data = file.read()  # once: a pipe cannot be read twice
    code = pkgutil.read_code(io.BytesIO(data))
    if code is None:
        return compile(data, path, "exec", dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def _ending(error: BaseException) -> Ending:
    """Handles an uncaught exception as the interpreter does."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return Ending(int(error.code or 0))
        _say(error.code)
        return Ending(1)
    code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    try:
        getattr(sys, "excepthook", sys.__excepthook__)(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        code = _ending(leaving).code
    except BaseException as failure:
        own = _own_part(failure.__traceback__)
        _say("Error in sys.excepthook:")
        sys.__excepthook__(type(failure), failure.with_traceback(own), own)
        _say("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return Ending(code, error)


def _say(what: object) -> None:
    with contextlib.suppress(Exception):  # the program may have closed or broken the stream
        sys.stderr.write(f"{what}\n")


def _wait_for_threads() -> None:
    """Waits for the threads that the interpreter would wait for before it ends.

    Does not wait for workers of concurrent.futures. Idle ones end only when the interpreter shuts them down, and then
    no pool accepts work, which exporters need.
    """
    idle = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())
    own = (threading.current_thread(), threading.main_thread())
    while left := [t for t in threading.enumerate() if not t.daemon and t not in own and t not in idle]:
        for thread in left:
            thread.join()


def _own_part(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on, without this file and the import system."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _BEFORE_THE_PROGRAM:
        traceback = traceback.tb_next
    return traceback


_BEFORE_THE_PROGRAM = (
    __file__,
    importlib.util.find_spec.__code__.co_filename,
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)
