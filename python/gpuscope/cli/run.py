# SPDX-License-Identifier: Apache-2.0
"""``gpuscope run``: profiles an unmodified script."""

from __future__ import annotations

import argparse
import os
import warnings
from typing import TYPE_CHECKING

from gpuscope.cli import console, view
from gpuscope.cli.files import Outputs
from gpuscope.cli.script import Program
from gpuscope.errors import GpuscopeError, InvalidArgument

if TYPE_CHECKING:
    from gpuscope.activities import ProfilerActivity
    from gpuscope.recording import Results
    from gpuscope.schedules import Schedule


class Run:
    """Runs a script, module or code as ``python`` would, and hands over what was recorded."""

    name = "run"
    summary = "run a script and profile it"
    description = (
        "Runs a script as 'python script.py args...' would: same output, same exit code. The report goes to standard\n"
        "error, the recording to a file; both also when the script raises, exits or is interrupted by Ctrl-C."
    )
    examples = """\
  gpuscope run train.py --epochs 1
  gpuscope run -o out.gscope -o out.pftrace -m package.train --lr 0.1
  gpuscope run --mode aggregate --tree server.py         one row per call path, for runs of any length
  gpuscope run --mode ring --ring-seconds 10 server.py   the last ten seconds, then Ctrl-C
  gpuscope run --schedule wait=5,warmup=1,active=3 train.py
                                                         steps 6 to 8; train.py calls gpuscope.step() after each
  gpuscope run -c 'import torch; torch.ones(9).sum()'"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.usage = "gpuscope run [options] (script.py | -m module | -c code) [args ...]"
        parser.add_argument("-m", dest="kind", action="store_const", const="module", help="run a module, as python -m")
        parser.add_argument("-c", dest="kind", action="store_const", const="code", help="run a string, as python -c")
        parser.add_argument("program", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            action="append",
            help=".gscope, .json, .json.gz or .pftrace; may be given more than once (default: <script name>.gscope)",
        )
        what = parser.add_argument_group("what is recorded")
        what.add_argument(
            "--mode",
            choices=("full", "ring", "aggregate"),
            default="full",
            help="every event, the last seconds, or one row per call path (default: full)",
        )
        what.add_argument("--activities", metavar="LIST", help="cpu, cuda or both as cpu,cuda (default: both)")
        what.add_argument(
            "--graphs",
            choices=("node", "launch"),
            default="node",
            help="CUDA graphs kernel by kernel, or one record per launch (default: node)",
        )
        what.add_argument("--schedule", metavar="SPEC", help="steps to record, as wait=1,warmup=1,active=3,repeat=1")
        what.add_argument("--ring-seconds", metavar="S", type=float, help="how far back the ring reaches")
        what.add_argument("--max-memory", metavar="SIZE", help="the most memory for events, as 512MB or 1GiB")
        what.add_argument("--sync", action="store_true", help="record synchronization on the GPU too")
        view.add_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program and delivers the results."""
        program = _program(options)
        program.check()
        outputs = Outputs(options.output or [f"{program.name}.gscope"])
        view.check(options)
        return _Session(options, outputs).profile(program)


def _program(options: argparse.Namespace) -> Program:
    words: list[str] = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not words:
        raise InvalidArgument("there is nothing to run: give a script, -m module or -c code")
    return Program(options.kind or "script", words[0], tuple(words[1:]))
