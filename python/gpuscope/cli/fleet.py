# SPDX-License-Identifier: Apache-2.0
"""``gpuscope fleet``: what a job of many ranks loses time to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope.cli import console, options
from gpuscope.cli.merging import counted
from gpuscope.errors import InvalidArgument
from gpuscope.paths import is_stream
from gpuscope.results import Result

_FOUND, _NOT_JUDGED = 1, 3
_STRAGGLER = "straggler"
_UNREAD = ("segment", "kernel_stat")


class FleetCommand:
    """Diagnoses a job."""

    description = (
        "Says what a job of many ranks loses time to: slow ranks, nodes and links, late ranks at collectives, exposed\n"
        "communication, missing ranks. A job is the folder that `gpuscope merge` wrote, or recordings: a folder or\n"
        "patterns. A .parquet file in the schema of StragglerAnalysis gives the what-if analysis of its operations."
    )
    examples = """\
  gpuscope fleet job/                               the verdict, on one screen
  gpuscope fleet ranks/                             recordings, without `gpuscope merge` before
  gpuscope fleet job/ --html job.html               an interactive page too
  gpuscope fleet job/ --json - --fail-on straggler  for programs; exit code 1 if a rank, node or link is slow
  gpuscope fleet trace-AR.parquet                   operations of StragglerAnalysis"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "job", metavar="JOB", nargs="+", help="a folder of tables or recordings, recordings, or patterns in quotes"
        )
        parser.add_argument("--html", metavar="FILE", help="write an interactive page too")
        parser.add_argument("--json", metavar="FILE", help="write the diagnosis as JSON too, - for standard output")
        parser.add_argument(
            "--fail-on",
            choices=[_STRAGGLER],
            help="exit code 1 if a rank, a node or a link is slower than its equals, or a rank arrives late",
        )
        parser.add_argument("--anonymous", action="store_true", help="leave names of hosts and paths out")

    def run(self, options_: argparse.Namespace) -> int:
        """Reads the job, prints the verdict and writes the files."""
        pages = options.writable_paths([options_.html], options.PAGE_SUFFIXES)
        written = options.writable_paths([options_.json])
        options.check_apart([*pages, *written], options_.job)
        outputs: list[tuple[Path, Callable[[Path], object]]]
        progress = console.errors()
        if len(options_.job) == 1 and options_.job[0].endswith(".parquet"):
            if pages:
                raise InvalidArgument("--html needs a job's tables or recordings; a .parquet file has operations only")
            found, has_straggler = _what_if(options_.job[0])
            is_judged = True
            outputs = []
        else:
            with progress.status() as say:
                job = read_job(options_.job, options_.anonymous, counted(say), whole=bool(pages))
            with progress.working(f"comparing {job.seen:,} ranks"):
                found = job.diagnose()
            has_straggler, is_judged = found.has_straggler, found.is_judged
            outputs = [(path, job.report) for path in pages]
        outputs += [(path, found.to_json) for path in written]
        # Files first: the reader of standard output may leave early.
        for path, write in sorted(outputs, key=lambda output: is_stream(output[0])):
            with progress.working(f"writing {console.display(path)}"):
                write(path)
        out = console.output([*pages, *written])
        out.report(str(found))
        for path in pages:
            out.sentence("wrote ", (console.display(path), "bold"))
        if options_.fail_on != _STRAGGLER:
            return 0
        return _FOUND if has_straggler else 0 if is_judged else _NOT_JUDGED


def read_job(inputs: list[str], anonymous: bool, told: Callable[[str], object], *, whole: bool) -> Any:
    """The job of a folder of tables, or of recordings; unless `whole`, without the tables that no diagnosis reads."""
    from gpuscope.fleet import merging, tables
    from gpuscope.fleet.job import Fleet

    if len(inputs) == 1 and tables.is_job(inputs[0]):
        wanted = [name for name in tables.SCHEMA if whole or name not in _UNREAD]
        columns, notes = tables.read(Path(inputs[0]), wanted), merging.read_notes(Path(inputs[0]))
    else:
        columns, notes = merging.merge_files(merging.find_recordings(inputs), told)
    if anonymous:
        columns, notes = merging.without_names(columns, notes)
    return Fleet(columns, notes)


def _what_if(path: str) -> tuple[Result, bool]:
    """The what-if analysis of a file of operations, and whether slow ranks are the cause."""
    from gpuscope.fleet.dependencies import Operations
    from gpuscope.fleet.what_if import RANKS, what_if
    from gpuscope.readers.straggler import read_straggler

    found = what_if(Operations.of_trace(read_straggler(path)))
    return found, found.cause == RANKS
