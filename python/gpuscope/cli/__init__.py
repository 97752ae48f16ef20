# SPDX-License-Identifier: Apache-2.0
"""The command line."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from gpuscope import _core
from gpuscope.cli import console
from gpuscope.errors import GpuscopeError, InvalidArgument, NotEnoughMemory, lacks_memory
from gpuscope.text import KEPT_SPACE, shorten, wrapped


class Command(Protocol):
    """One command; ``run`` returns the exit code."""

    description: str
    examples: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Does the work. InvalidArgument ends the process with code 2, any other GpuscopeError with code 1."""


@dataclass(frozen=True)
class Entry:
    """A command as the help lists it. Its module is imported only when it runs: all modules take half a second.

    Attributes:
        name: one word or two.
        summary: a line.
        home: module of this package and class.
        runs_program: runs a script of the user in this process, which keeps its own output and exit.
    """

    name: str
    summary: str
    home: str
    runs_program: bool = False

    def load(self) -> Command:
        """The command."""
        module, _, kind = self.home.partition(".")
        command: Command = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
        return command


COMMANDS: tuple[Entry, ...] = (
    Entry("run", "run a script and profile it", "run.Run", runs_program=True),
    Entry(
        "diagnose",
        "say where a program loses its time, and what a fix would save",
        "diagnose.Diagnose",
        runs_program=True,
    ),
    Entry("diff", "say what changed between two recordings, and whether it got slower", "diffs.Diff"),
    Entry("verify", "run a recorded command again, and accept or reject what changed", "verify.Verify"),
    Entry("merge", "reduce the recordings of a job's ranks to small tables", "merging.Merge"),
    Entry("fleet", "say what a job of many ranks loses time to", "fleet.FleetCommand"),
    Entry("hang", "say why a job does not continue: which rank misses what, and where it is", "hang.Hang"),
    Entry("watch", "show a watched job as it runs: steps, cost of recording, dumps", "watches.WatchCommand"),
    Entry("attach", "record a process that runs, for some steps or seconds", "attach.Attach"),
    Entry("detach", "end a recording that attach began", "attach.Detach"),
    Entry("dump", "print where a process is now: stacks, regions, steps, GPUs", "attach.DumpCommand"),
    Entry("trigger", "ask a process for a dump in a folder", "attach.TriggerCommand"),
    Entry("report", "print the table, call tree and verdict of a recording, or write its page", "report.Report"),
    Entry("view", "show the page of a recording in the browser", "view.View"),
    Entry("export", "turn a recording into a trace for Perfetto, Chrome or TensorBoard", "export.Export"),
    Entry("sql", "ask a recording or a job in SQL, by DuckDB", "sql.Sql"),
    Entry("bench", "measure a line of Python on the GPU or the CPU", "bench.Bench"),
    Entry("bench explore", "CPU against GPU: which is faster, for which work, from which size on", "bench.Explore"),
    Entry("memory", "run a script and say where its memory goes", "memory.Memory", runs_program=True),
    Entry("memory show", "look at a memory snapshot's file, of torch or gpuscope", "memory_show.MemoryShow"),
    Entry("monitor", "watch the GPUs: how useful, throttled, full and connected they are", "monitor.Monitor"),
    Entry("demo", "profile a small training loop, with or without a GPU", "demo.Demo"),
    Entry("schema", "print the JSON Schema of what --json writes", "schema.SchemaCommand"),
    Entry("counters", "list the hardware counters of this GPU", "counters.Counters"),
    Entry("completion", "print the script by which a shell completes all of this", "completion.Completion"),
    Entry("mcp", "serve recordings to a coding agent, by the Model Context Protocol", "agents.Mcp"),
    Entry("skill", "print or install a skill file that teaches a coding agent these commands", "agents.Skill"),
    Entry("doctor", "say what works on this machine, and what would fix the rest", "doctor.Doctor"),
)

_EXAMPLES = """\
examples:
  gpuscope demo                                   with or without a GPU
  gpuscope run train.py --epochs 1                profile a script as it is
  gpuscope diagnose train.py                      what it loses its time to
  gpuscope diff before.gscope after.gscope        did it get slower?
  gpuscope verify before.gscope                   is the change accepted?
  gpuscope merge ranks/ -o job/                   the tables of a job of many ranks
  gpuscope fleet job/                             who holds the others up
  gpuscope hang watch/                            why a job does not continue
  gpuscope watch watch/                           a job that is left on for days
  gpuscope attach 4711 --steps 20                 record a process that runs
  gpuscope report train.gscope --tree             look at the result again
  gpuscope view train.gscope                      the same in the browser
  gpuscope export train.gscope -o train.pftrace   for https://ui.perfetto.dev
  gpuscope sql train.gscope "select * from idle"  when a GPU had nothing to do
  gpuscope bench 'sum(range(1000))'               how long a line takes
  gpuscope bench explore -o explorer.html         CPU against GPU, by size
  gpuscope memory train.py                        who holds the memory
  gpuscope counters 'dram__*'                     what the hardware can count
  gpuscope monitor                                the GPUs now
  gpuscope mcp --root runs/                       for coding agents
  gpuscope doctor                                 what works on this machine
"""

_FAILED, _MISUSED = 1, 2
_LONGEST = 500  # columns of a message of argparse, which quotes the whole argument
_IN_BRACKETS = re.compile(r"\[[^\]]*\]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

# Errors begin with the argument's name in Python; some options have another name.
_OPTIONS = {
    "sort_by": "--sort-by",
    "fail_on": "--fail-on",
    "query": "QUERY",
    "claim": "--claim",
    "max_bytes": "--max-memory",
    "ring_seconds": "--ring-seconds",
    "python_samples": "--python-samples",
    "device_samples": "--device-samples",
    "counter_interval_us": "--counter-interval",
    **{
        name: f"--{name}"
        for name in ("setup", "target", "budget", "bytes", "flops", "stream", "processes", "operations", "sizes")
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments after ``gpuscope``, default the arguments of the process.

    Returns:
        The exit code. 0: success; 1: the work failed; 2: unusable arguments; 3: the file held only part of the
        recording; 128 plus the signal's number: interrupted. ``run`` returns the exit code of the script.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    console.remember_folder()
    try:
        return _run(arguments)
    except GpuscopeError as error:
        _complain(str(error))
        code = _MISUSED if isinstance(error, InvalidArgument) else _FAILED
    except (MemoryError, ImportError) as error:
        if not lacks_memory(error):
            raise
        _complain(str(NotEnoughMemory()))
        code = _FAILED
    except BrokenPipeError:  # the reader closed the pipe
        code = 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename:
            _complain(str(error))
        elif lacks_memory(error):
            _complain(str(NotEnoughMemory()))
        elif isinstance(error, FileNotFoundError):  # of os.getcwd
            _complain("the current folder no longer exists")
        else:
            _complain(f"cannot write the output: {error.strerror}")
        code = _FAILED
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    console.discard_unwritten(sys.stdout)
    return code


def _run(arguments: list[str]) -> int:
    arguments = _joined(arguments)
    chosen = _chosen(arguments)
    command = None if chosen is None else chosen.load()
    parser = _parser(chosen, command)
    options = parser.parse_args(arguments)
    if chosen is None or command is None:
        parser.print_help()
        return 0
    code = command.run(options)
    if not chosen.runs_program:  # otherwise the interpreter reports it for the program
        _flush_output()
    return code


def _flush_output() -> None:
    """Reports a failed write now instead of when the interpreter ends."""
    if sys.stdout is not None:
        sys.stdout.flush()


class _Help(argparse.HelpFormatter):
    """Lines that fit the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(110, shutil.get_terminal_size((110, 24)).columns - 2))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return _examples(text, width) if text.startswith("examples:") else super()._fill_text(text, width, indent)

    def _format_usage(self, usage: str | None, *args: Any) -> str:
        text = super()._format_usage(usage, *args)
        lines = text.rstrip().split("\n") if usage else [" ".join(text.split())]  # argparse's texts are one sentence
        if max(map(len, text.split("\n"))) <= self._width:
            return text
        whole = (_IN_BRACKETS.sub(lambda option: option[0].replace(" ", KEPT_SPACE), line) for line in lines)
        return "\n".join(each for line in whole for each in wrapped(line, self._width, len("usage: ") + 2)) + "\n\n"


def _examples(text: str, width: int) -> str:
    """Commands with their explanations on the right, or below if a command is too wide.

    A command that is too wide is split with a backslash, so that a shell still accepts it. Quotes stay whole.
    """
    lines = text.rstrip().split("\n")
    if max(map(len, lines)) <= width:
        return text
    found = []
    for line in lines:
        own, _, remark = line.lstrip().partition("  ")
        if line.startswith(" " * 6) and not own.startswith("-"):  # of the command above it
            own, remark = "", own
        blanks = line[: len(line) - len(line.lstrip())]
        quoted = _QUOTED.sub(lambda text: text[0].replace(" ", KEPT_SPACE), blanks + own)
        command = wrapped(quoted, width - 2, 6, whole_words=True) if own else []
        found += [f"{each} \\" for each in command[:-1]] + command[-1:]
        found += [f"      {each}" for each in wrapped(remark.lstrip(), width - 6)]
    return "\n".join(found)


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # argparse reports them with the help of the main parser
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        if (stream := file or sys.stderr) is not None:
            stream.write(message)  # argparse hides errors

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        _flush_output()
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"{shorten(message, _LONGEST, '...')}; see {self.prog} --help")


def _parser(chosen: Entry | None, command: Command | None) -> argparse.ArgumentParser:
    """The main parser: the arguments of the chosen command, and the names of the others."""
    parser = _Parser(
        prog="gpuscope",
        description="Where a program's time and memory go, on the GPU and the CPU.",
        epilog=_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuscope {_core.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for entry in COMMANDS:
        subparser = commands.add_parser(entry.name, help=entry.summary, formatter_class=_Help, allow_abbrev=False)
        if entry is chosen and command is not None:
            subparser.description = command.description
            subparser.epilog = f"examples:\n{command.examples}"
            command.prepare_parser(subparser)
    return parser


def _joined(arguments: list[str]) -> list[str]:
    """The arguments, with a command name of two words as one argument."""
    name = " ".join(arguments[:2])
    return [name, *arguments[2:]] if any(command.name == name for command in COMMANDS) else arguments


def _chosen(arguments: list[str]) -> Entry | None:
    """The command that the first argument names; None if it is an option or absent."""
    if not arguments or arguments[0].startswith("-"):
        return None
    given = arguments[0]
    for entry in COMMANDS:
        if entry.name == given:
            return entry
    names = [entry.name for entry in COMMANDS]
    if os.path.exists(given):
        advice = f"did you mean 'gpuscope {'report' if given.lower().endswith('.gscope') else 'run'} {given}'?"
    elif close := difflib.get_close_matches(given, names, n=1):
        advice = f"did you mean '{close[0]}'?"
    else:
        advice = f"there are {', '.join(names)}"
    raise InvalidArgument(f"there is no command {given!r}; {advice}")


def _complain(message: str) -> None:
    argument, space, rest = message.partition(" ")
    message = f"{_OPTIONS.get(argument, argument)}{space}{rest}"
    out = console.errors()
    with out.forgiving():
        out.complain(message)
