# SPDX-License-Identifier: Apache-2.0
"""``gpuscope hang``: why a job does not continue."""

from __future__ import annotations

import argparse
import os
import re

from gpuscope.cli import console, options
from gpuscope.errors import GpuscopeError, InvalidArgument

_ADDRESS = re.compile(r"(?P<host>[^/\s]+):(?P<port>\d{1,5})")
_HANG = 1


class Hang:
    """Names the cause of a hang."""

    description = (
        "Says why a job hangs: which rank misses which collective, where that rank is, and who waits for it.\n"
        "A folder contains black boxes of `gpuscope.watch`, dumps of PyTorch's Flight Recorder, Python stacks of\n"
        "faulthandler or py-spy, or texts of ncclras. HOST:28028 asks NCCL's RAS service.\n"
        "Exit code 0: no hang seen; 1: a cause was named; 2: unusable arguments or files, or RAS does not answer."
    )
    examples = """\
  gpuscope hang watch/                  black boxes of a run, while it hangs or after it
  gpuscope hang /tmp/nccl_traces/       dumps of PyTorch's Flight Recorder
  gpuscope hang node-07:28028           the job of a process on that node, as NCCL sees it
  gpuscope hang watch/ --json - | jq .causes"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("source", metavar="DIR|HOST:28028", help="a folder, or an address of NCCL's RAS service")
        parser.add_argument(
            "--after",
            metavar="TIME",
            type=options.seconds,
            default=10.0,
            help="a shorter wait is no hang (default: 10s)",
        )
        parser.add_argument("--json", metavar="FILE", help="write the causes as JSON too, - for standard output")

    def run(self, options_: argparse.Namespace) -> int:
        """Reads the evidence and prints the causes."""
        from gpuscope.watching import hang

        written = options.writable_paths([options_.json])
        address = None if os.path.exists(options_.source) else _ADDRESS.fullmatch(options_.source)
        with console.errors().working(f"reading {options_.source}"):
            if address is None:
                report = hang.find_hang(options_.source, options_.after)
            else:
                try:
                    report = hang.find_hang_by_ras(address["host"].strip("[]"), int(address["port"]), options_.after)
                except GpuscopeError as error:  # not 1, which would be a hang
                    raise InvalidArgument(str(error)) from error
        for path in written:
            report.to_json(path)
        console.output(written).report(str(report))
        return _HANG if report.is_hang else 0
