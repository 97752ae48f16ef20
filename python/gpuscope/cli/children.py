# SPDX-License-Identifier: Apache-2.0
"""Counts the Python processes that a recorded program starts; ``--children`` records and reports them."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import importlib
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.ends import Ending, Ends, own_imports
from gpuscope.cli.export import Outputs, in_folder, is_folder
from gpuscope.cli.recorder import Recorder
from gpuscope.distributed import STARTED_BY, distributed_rank
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.paths import append_text
from gpuscope.tables import align_columns
from gpuscope.text import brief, shorten
from gpuscope.units import format_seconds

_VARIABLE = "GPUSCOPE_CHILDREN"
_STARTUP = os.path.join(os.path.dirname(__file__), "startup")
_TRACKER, _FORK_SERVER = "multiprocessing.resource_tracker", "multiprocessing.forkserver"
_NOT_RECORDED = ("gpuscope", _TRACKER)  # the commands, which may record a program themselves
_MOST_LINES = 10
_MOST_NAME = 40  # columns of a process's name


def add_children(parser: argparse.ArgumentParser) -> None:
    """Adds --children."""
    parser.add_argument(
        "--children",
        action="store_true",
        help="record the Python processes that the program starts too, all into one folder (default: <script name>/, "
        "or with the next free number, as train-2/)",
    )


def choose_folder(options: argparse.Namespace, name: str) -> None:
    """Names a new folder for --children if -o is not given.

    Raises:
        InvalidArgument: -o names files only.
    """
    if not options.children or any(map(is_folder, options.output or ())):
        return
    if options.output:
        raise InvalidArgument(f"--children needs a folder, as -o out/; -o is {brief(options.output[0])}")
    folder, number = name, 1
    while os.path.lexists(folder):
        number += 1
        folder = f"{name}-{number}"
    options.output = [os.path.join(folder, "")]


@dataclass(frozen=True)
class Order:
    """How to record the processes that a recorded process starts.

    Attributes:
        folder: of the recordings.
        log: a file with two lines for each process: one when its recording begins, one with the files it wrote.
        root: the process that the command runs.
        rank: of the process that gives the order.
        options: of the command.
    """

    folder: str
    log: str
    root: int
    rank: int | None
    options: dict[str, Any]

    def give(self) -> None:
        """Puts it into the environment of new processes, with the ``sitecustomize`` that calls `begin`."""
        os.environ[_VARIABLE] = json.dumps(asdict(replace(self, rank=_own_rank())))
        paths = os.environ.get("PYTHONPATH", "")
        if _STARTUP not in paths.split(os.pathsep):
            os.environ["PYTHONPATH"] = f"{_STARTUP}{os.pathsep}{paths}" if paths else _STARTUP

    def say(self, **facts: Sequence[str]) -> None:
        """Adds a line of this process to the log. Without facts it says that the recording begins."""
        if os.path.exists(self.log):  # else the report is already shown
            with contextlib.suppress(GpuscopeError):
                append_text(Path(self.log), json.dumps({"process": os.getpid(), **facts}) + "\n")

    def record(self) -> Child | None:
        """Starts recording this process; None if that fails, with the reason in the log."""
        self.say()
        try:
            path = in_folder(self.folder, True, self.rank)
            child = Child(Outputs([path], replaces=False), self)
            child.profiler.start()
        except Exception as error:  # the program must run anyway
            self.say(files=[], why=[str(error)])
            return None
        return child


class Child(Recorder):
    """Records a process that a recorded process started."""

    def __init__(self, outputs: Outputs, order: Order) -> None:
        super().__init__(outputs, argparse.Namespace(**order.options))
        self._order = order
        if _own_rank() in (None, order.rank):
            self.profiler.add_metadata(STARTED_BY, str(order.root))

    def finish(self, ending: Ending) -> None:
        """Ends the recording, and writes the names of its files to the log."""
        self.stop()
        self._order.say(files=[str(path) for path in self.outputs.written], why=self.complaints[:1])

    def resume(self) -> None:
        """Continues the recording."""
        super().resume()
        self._order.say()

    def given_up(self) -> str:
        """The sentence printed if `finish` is interrupted."""
        return f"the recording of process {os.getpid()} is not written"


def begin() -> None:
    """Records this new process and the processes it starts, if the environment has an order."""
    if (text := os.environ.get(_VARIABLE)) is None or (program := _program()) in _NOT_RECORDED:
        return
    order = Order(**json.loads(text))
    children = Children(order)
    children.watch()
    ends = Ends(None if program == _FORK_SERVER else order.record(), children.record_fork)
    ends.__enter__()
    atexit.register(_end, ends)


def _end(ends: Ends) -> None:
    ends.finish(Ending(0))
    ends.__exit__(None, None, None)


def _own_rank() -> int | None:
    rank = distributed_rank()
    return None if rank is None else rank.rank


def _program() -> str:
    """The script or module of this process. For -c, the module that the code first imports from."""
    kind = sys.argv[0]
    if kind not in ("-m", "-c"):
        return os.path.basename(kind)
    words = sys.orig_argv[sys.orig_argv.index(kind) + 1].split()
    return words[kind == "-c" and words[:1] == ["from"]] if words else ""


class Children:
    """Counts the Python processes that this process starts; with an order they are recorded."""

    def __init__(self, order: Order | None) -> None:
        self._order = order
        self._process = os.getpid()
        self._started = 0
        self._interpreters: set[int] = set()  # processes that have run Python from their start
        self._executing: set[int] = set()  # threads that start another program
        self._is_shown = False

    @classmethod
    def asked_for(cls, options: argparse.Namespace) -> Children:
        """From a command's options: --children, and the first folder of -o."""
        if not options.children:
            return cls(None)
        folder = os.path.join(os.path.abspath(next(filter(is_folder, options.output))), "")
        kept = {name: value for name, value in vars(options).items() if name != "program"}
        log = f"{folder}.children-{os.getpid()}"
        append_text(Path(log), "")
        return cls(Order(folder, log, os.getpid(), None, kept))

    def watch(self) -> None:
        """Starts counting, and gives the order."""
        importlib.import_module("_posixsubprocess")
        if self._order is not None:
            self._order.give()
        os.register_at_fork(after_in_parent=self._count_fork)
        homes = (("_posixsubprocess", "fork_exec"), ("subprocess", "_fork_exec"))  # the second from Python 3.11 on
        for module, name in (*homes, ("os", "posix_spawn"), ("os", "posix_spawnp")):
            if function := getattr(sys.modules.get(module), name, None):
                setattr(sys.modules[module], name, self._counted(function, int(module == "os")))

    def record_fork(self) -> Child | None:
        """Starts recording this forked process; None without an order, or just before exec."""
        if self._order is None or threading.get_ident() in self._executing:
            return None
        return replace(self._order, rank=_own_rank()).record()

    def show(self, out: Console) -> None:
        """Shows a line for each recording, or how many processes were not recorded. Only the first call does."""
        if self._is_shown or os.getpid() != self._process:
            return
        self._is_shown = True
        with out.forgiving(), own_imports():
            if self._order is not None:
                self._show_recorded(self._order, out)
            elif self._started:
                were = "process that it started was" if self._started == 1 else "processes that it started were"
                out.note(f"{self._started} Python {were} not recorded: --children")

    def _show_recorded(self, order: Order, out: Console) -> None:
        """Shows the recordings, failures and unrecorded processes of the log, and removes the log."""
        with open(order.log, encoding="utf-8") as file:
            entries = [json.loads(line) for line in file]
        os.unlink(order.log)
        last = {entry["process"]: entry for entry in entries}
        files = [Path(name) for entry in entries for name in entry.get("files", ())]
        if files:
            out.line()
            out.line(("processes that it started", "bold"))
            show_processes(files, out)
        failed = [f"process {process}: {why}" for process, entry in last.items() for why in entry.get("why", ())]
        for complaint in failed[:_MOST_LINES]:
            out.complain(complaint, "bold yellow")
        if missing := [str(process) for process, entry in last.items() if "files" not in entry]:
            have = "process has" if len(missing) == 1 else "processes have"
            names = ", ".join(missing[:_MOST_LINES]) + ", ..." * (len(missing) > _MOST_LINES)
            out.note(f"{len(missing)} {have} no recording, as killed or still running: {names}")
        if unseen := len(self._interpreters - set(last)):
            were = "process was" if unseen == 1 else "processes were"
            out.note(f"{unseen} Python {were} not recorded: another Python, -I, -E, -S or its own environment")

    def _count_fork(self) -> None:
        self._started += threading.get_ident() not in self._executing

    def _counted(self, start: Callable[..., int], at: int) -> Callable[..., int]:
        """Wraps a function that starts a program; `at` is the place of the command among its arguments."""

        @functools.wraps(start)
        def start_program(*args: Any, **named: Any) -> int:
            thread = threading.get_ident()
            self._executing.add(thread)
            try:
                process = start(*args, **named)
            finally:
                self._executing.discard(thread)
            with contextlib.suppress(Exception):
                words = [os.fsdecode(word) for word in args[at]]
                own_name = os.path.basename(sys.executable) or "python"
                is_python = os.path.basename(words[0]).startswith(("python", own_name))
                if is_python and not any(_TRACKER in word for word in words):
                    self._started += 1
                    if not any(_FORK_SERVER in word for word in words):
                        self._interpreters.add(process)
            return process

        return start_program


def show_processes(recordings: Sequence[Path], out: Console) -> None:
    """A line per process, the longest first: name, recorded time, hottest line and file."""
    with out.working(f"reading {len(recordings)} recordings"):
        rows = sorted(map(_row, recordings), key=lambda row: row[0], reverse=True)
    heading = ("process", "recorded", "its line with most time", "recording")
    for line in align_columns([heading, *(row[1:] for row in rows[:_MOST_LINES])], left=len(heading)):
        out.line(line)
    if len(rows) > _MOST_LINES:
        out.line(f"and {len(rows) - _MOST_LINES} more with less time")
    out.sentence("open one: ", (shlex.join(["gpuscope", "report", rows[0][-1]]), "bold"))


def _row(path: Path) -> tuple[int, str, str, str, str]:
    from gpuscope.analysis.program_tree import ProgramTree
    from gpuscope.recording import load
    from gpuscope.trace import number_of, program_name

    try:
        trace = load(path).trace
    except GpuscopeError as error:
        return 0, path.stem, "", f"cannot be read: {error}", console.display(path)
    info = trace.info
    recorded_ns = number_of(info, "session.stop_ns") - number_of(info, "session.start_ns")
    program = program_name(info)
    program = os.path.basename(program) if program.endswith(".py") else program
    called = shorten(info.get("process.name", program), _MOST_NAME, "...")
    name = " ".join(filter(None, (called, info.get("process.id"))))
    hottest = ProgramTree(trace).hottest_line() if len(trace.python_samples) else ""
    return recorded_ns, name, format_seconds(recorded_ns / 1e9), hottest, console.display(path)
