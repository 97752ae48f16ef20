# SPDX-License-Identifier: Apache-2.0
"""``gpuscope attach``, ``detach``, ``dump`` and ``trigger``: commands for a process that runs."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuscope.cli import console, options
from gpuscope.cli.console import Console
from gpuscope.cli.ends import ended_by_signals
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.watching.attaching import Target

_SECONDS = 10.0
_POLL_S = 0.2
_PATIENCE_S = 10.0


class Attach:
    """Records a process that runs."""

    description = (
        "Records a running process of yours for some steps or seconds, and leaves nothing behind. The process listens\n"
        "(`gpuscope run --listen DIR`, or gpuscope.listen() in it), or runs Python 3.14 or later. Ctrl-C ends the\n"
        "recording early. Not seen: launches inside CUDA graphs captured before, and regions entered before."
    )
    examples = """\
  gpuscope attach 4711                          10 s
  gpuscope attach 4711 --steps 20 -o trace/     the next 20 steps, as trace/rank-00000.gscope
  gpuscope attach 4711 --seconds 5m --spool     written while it runs: what was recorded survives SIGKILL"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        _add_pid(parser)
        limits = parser.add_mutually_exclusive_group()
        limits.add_argument(
            "--steps", metavar="N", type=options.positive, help="record N steps; the program calls gpuscope.step()"
        )
        limits.add_argument(
            "--seconds", metavar="TIME", type=options.seconds, help="record this long, as 30s (default: 10s)"
        )
        parser.add_argument("-o", "--output", metavar="DIR", help="folder of the recording (default: attach-PID/)")
        parser.add_argument("--spool", action="store_true", help="write the recording while the program runs")

    def run(self, options: argparse.Namespace) -> int:
        """Begins the recording and waits for it."""
        out = console.errors()
        folder = os.path.abspath(options.output or f"attach-{options.pid}")
        seconds = None if options.steps else options.seconds or _SECONDS
        with _target(options.pid) as target:
            begun = target.ask("attach", dir=folder, steps=options.steps, seconds=seconds, spool=options.spool)
            what = f"{options.steps:,} steps" if options.steps else f"{seconds:g} s"
            out.sentence(f"recording {what} of process {options.pid} ({begun['program']}); Ctrl-C ends it early")
            state = _waited(target, begun, folder, out)
        return _tell(state)


class Detach:
    """Ends a recording that `attach` began."""

    description = "Ends the recording that `gpuscope attach` began in a process, and says where it is."
    examples = "  gpuscope detach 4711"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        _add_pid(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Ends the recording."""
        with _target(options.pid) as target:
            return _tell(target.ask("detach"))


class DumpCommand:
    """Prints the state of a process."""

    description = (
        "Prints where a process of yours is now: the Python stacks of all threads, open regions, last steps and GPUs.\n"
        "It reaches the same processes as `gpuscope attach`."
    )
    examples = "  gpuscope dump 4711"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        _add_pid(parser)
        parser.add_argument("--stacks", action="store_true", help="only the stacks, with every frame")

    def run(self, options: argparse.Namespace) -> int:
        """Prints the state."""
        with _target(options.pid) as target:
            found = target.ask("dump")
        console.output().report(str(found["stacks" if options.stacks else "text"]))
        return 0


class TriggerCommand:
    """Asks a process for a dump."""

    description = (
        "Asks a process of yours for a dump: a folder with why.txt, why.json and stacks.txt. A watch writes it to its\n"
        "own folder, with its last recordings. It reaches the same processes as `gpuscope attach`."
    )
    examples = """\
  gpuscope trigger 4711                 into the folder of its watch, or without a watch into dumps-4711/
  gpuscope trigger 4711 -o dumps/       without a watch, into dumps/0001-asked/"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        _add_pid(parser)
        parser.add_argument("-o", "--output", metavar="DIR", help="folder without a watch (default: dumps-PID/)")

    def run(self, options: argparse.Namespace) -> int:
        """Asks, and prints where the dump is."""
        out = console.output()
        with _target(options.pid) as target:
            found = target.ask("trigger", dir=os.path.abspath(options.output or f"dumps-{options.pid}"))
        out.sentence("the dump is in ", (console.display(Path(found["path"])), "bold"))
        if found["is_watched"] and options.output:
            out.note("-o has no effect: a watch runs in the process, and writes into its own folder")
        return 0


def _add_pid(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", type=options.positive, help="number of the process")


@contextlib.contextmanager
def _target(pid: int) -> Iterator[Target]:
    if pid == os.getpid():
        raise InvalidArgument(f"PID is {pid}, this command itself; accepted is another process")
    with ended_by_signals():
        target = Target(pid)
        try:
            yield target
        finally:
            target.release()


def _waited(target: Target, begun: dict[str, Any], folder: str, out: Console) -> dict[str, Any]:
    """Waits for the end of a recording, and returns its state. Ctrl-C or a signal ends it."""
    state, patient_until = begun, time.monotonic() + _PATIENCE_S
    try:
        while not state["is_over"]:
            time.sleep(_POLL_S)
            state = target.ask("state")
            if state["number"] != begun["number"]:
                return _latest(folder, "another recording has begun meanwhile")
            if begun["waits"] and time.monotonic() > patient_until:
                patient_until = math.inf
                if state["waits"]:
                    out.note("no step has ended yet; --steps needs a program that calls gpuscope.step()")
    except NotAvailable:
        return _latest(folder, f"the process {target.pid} ended meanwhile")
    except (KeyboardInterrupt, SystemExit) as error:
        with contextlib.suppress(GpuscopeError):  # it may be over
            target.ask("detach")
        if isinstance(error, SystemExit):
            raise
        state = target.ask("state")
    return state


def _latest(folder: str, note: str) -> dict[str, Any]:
    """The newest recording of a folder: a process writes its recording before it ends."""
    found = sorted(Path(folder).glob("rank-*.gscope"), key=os.path.getmtime)
    return {"path": str(found[-1]) if found else None, "note": note}


def _tell(state: dict[str, Any]) -> int:
    if not state["path"]:
        raise GpuscopeError(f"there is no recording: {state['note']}")
    out, path = console.output(), Path(state["path"])
    if path.is_dir():
        out.sentence("the recording is in ", (f"{console.display(path)}/", "bold"))
    else:
        out.wrote(path)
    if state["note"]:
        out.note(state["note"])
    return 0
