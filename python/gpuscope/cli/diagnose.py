# SPDX-License-Identifier: Apache-2.0
"""``gpuscope diagnose``: why a program's steps lose time, and how much a fix would save."""

from __future__ import annotations

import argparse
import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gpuscope.arguments import Graphs
from gpuscope.cli import console, options
from gpuscope.cli.children import add_children, choose_folder
from gpuscope.cli.console import Console
from gpuscope.cli.ends import Ending
from gpuscope.cli.export import (
    Outputs,
    choose_recording,
    exit_code,
    in_folder,
    is_recording,
    open_recording,
    recordings_of,
)
from gpuscope.cli.options import add_counters, add_device_samples, check_apart
from gpuscope.cli.program import Program
from gpuscope.cli.run import Delivery
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    from gpuscope.diagnosis import Diagnosis
    from gpuscope.recording import Analyses

_FAILED = 1
_WIDEST, _USUAL = 120, 100
# Options that `run` has and `diagnose` has not. A diagnosis needs lines and shapes.
_RECORDED = {
    "mode": "full",
    "activities": None,
    "ring_seconds": None,
    "sync": False,
    "record_shapes": "operators",
    "with_stack": "operators",  # samples say where the program is
    "with_modules": False,
    "with_flops": False,
    "python_samples": True,
}


class Diagnose:
    """Runs a script, or reads a recording, and reports in words where its time is lost."""

    description = (
        "Runs a script as 'python script.py args...' would, or reads a recording, and says what its steps lose\n"
        "their time to: cause, line, evidence, what to change, and what that saves. The page of a script\n"
        "goes to standard error. Steps are marked by gpuscope.step(), or found as a part that repeats."
    )
    examples = """\
  gpuscope diagnose train.py --epochs 1
  gpuscope diagnose -m package.train --lr 0.1
  gpuscope diagnose                                       the newest recording of this folder
  gpuscope diagnose train.gscope                          what gpuscope run --with-stack recorded
  gpuscope diagnose trace.json.gz                         what torch.profiler has written
  gpuscope diagnose --json report.json train.py           the same for programs
  gpuscope diagnose --fail-on critical,R15 train.gscope   exit code 1 where there is such a finding
  gpuscope diagnose --profile-memory train.py             is the batch too small, the memory full?
  gpuscope diagnose --counters why train.py               what the GPU itself says of its idle time too"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        Program.prepare_parser(parser)
        self._parser = parser
        parser.set_defaults(**_RECORDED)
        parser.usage = f"{parser.usage}\n       {parser.prog} [options] [FILE.gscope]"
        parser.add_argument("--json", metavar="FILE", help="write the diagnosis as JSON too, - for standard output")
        parser.add_argument(
            "--fail-on",
            metavar="LIST",
            type=options.names,
            default=[],
            help="exit code 1 if a finding has one of the ids or severities, as R15,critical",
        )
        parser.add_argument("-o", "--output", metavar="FILE", action="append", help="keep the recording in this file")
        parser.add_argument("--salvage", action="store_true", help="read the intact part of a damaged recording")
        add_children(parser)
        what = parser.add_argument_group("what is recorded")
        what.add_argument("--schedule", metavar="SPEC", help="steps to record, as wait=1,warmup=1,active=10")
        what.add_argument(
            "--graphs", choices=get_args(Graphs), default="node", help="CUDA graphs kernel by kernel, or as a whole"
        )
        what.add_argument("--profile-memory", action="store_true", help="what PyTorch's allocators hand out too")
        what.add_argument("--max-memory", metavar="SIZE", help="the most memory for events, as 512MB or 1GiB")
        add_counters(what)
        add_device_samples(what)

    def run(self, options: argparse.Namespace) -> int:
        """Runs or reads, and prints the page."""
        words = options.program
        if options.kind is None and not words:
            options.recording = None
            choose_recording(options, "a script or a recording is missing")
            words = [options.recording]
        is_file = options.kind is None and words[0] != "-" and (is_recording(words[0]) or bool(recordings_of(words[0])))
        if is_file:  # further words are not arguments of a script
            self._parser.parse_args(words[1:], options)
        program = None if is_file else Program.given(options.kind, words)
        if program is not None:
            program.check()
            choose_folder(options, program.name)
        outcome = Outcome(options.json, _checked(options.fail_on))
        named = options.output or []
        given = [in_folder(each, options.children) for each in named]
        outputs = Outputs(given, replaces=given == named)
        check_apart([*outputs.paths, *outcome.paths], words[:1] if options.kind is None else [])
        if program is None:
            return _read(options, words[0], outcome)
        if options.salvage:
            raise InvalidArgument("--salvage is for recordings; a script is run")
        delivery = _Delivery(outputs, console.errors(), options, outcome, program)
        delivery.remember("diagnose", program)
        code = delivery.run(program)
        return code or outcome.code


class Outcome:
    """Writes a diagnosis and its JSON, and determines the exit code.

    Attributes:
        code: 1 if there is a finding that --fail-on names, 0 otherwise.
    """

    def __init__(self, path: str | None, wanted: Sequence[str]) -> None:
        self.paths: list[Path] = options.writable_paths([path])
        self._wanted = wanted
        self.code = 0

    def deliver(self, found: Diagnosis, out: Console) -> None:
        """Prints the page and writes the JSON."""
        self.code = _FAILED if found.matches(self._wanted) else 0
        out.report(found.page(min(out.width or _USUAL, _WIDEST)))
        for path in self.paths:
            found.to_json(path)


class _Delivery(Delivery):
    """Shows the diagnosis instead of the report."""

    def __init__(
        self, outputs: Outputs, out: Console, options: argparse.Namespace, outcome: Outcome, program: Program
    ) -> None:
        super().__init__(outputs, out, options)
        self._outcome = outcome
        self._program = program

    def show_results(self, results: Analyses, options: argparse.Namespace, out: Console) -> None:
        """Prints the page."""
        if self._program.kind in ("code", "stdin"):  # their calls are named by source text
            code, name = self._program.target, self._program.file_name
            linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        self._outcome.deliver(results.diagnose(), out)
        out.line()

    def finish(self, ending: Ending) -> None:
        """As in `run`; also reports if the diagnosis cannot be written."""
        try:
            super().finish(ending)
        except Exception as error:  # the program's exit must not change
            self.failed = True
            with self._out.forgiving():
                self._out.complain(f"the diagnosis could not be made: {error}", "bold yellow")


def _checked(wanted: Sequence[str]) -> Sequence[str]:
    if not wanted:
        return wanted
    from gpuscope.diagnosis import check_wanted  # and NumPy, which the program must import first

    return check_wanted(wanted)


def _read(options: argparse.Namespace, path: str, outcome: Outcome) -> int:
    if options.program or options.kind is not None:
        follows = options.program[0] if options.program else "-m or -c"
        raise InvalidArgument(f"a recording takes no arguments, and {follows!r} follows {path!r}")
    for option in ("output", "children", "schedule", "profile_memory", "max_memory", "counters"):
        if getattr(options, option):
            name = "-o" if option == "output" else f"--{option.replace('_', '-')}"
            raise InvalidArgument(f"{name} is for what is recorded; {path!r} is a recording already")
    options.recording = path
    recording = open_recording(options, console.errors())
    outcome.deliver(recording.diagnose(), console.output(outcome.paths))
    if sys.stdout is not None:
        sys.stdout.flush()
    return outcome.code or exit_code(recording)
