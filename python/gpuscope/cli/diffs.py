# SPDX-License-Identifier: Apache-2.0
"""``gpuscope diff``: compares recordings of two versions of a program."""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Callable
from pathlib import Path

from gpuscope.cli import console, options
from gpuscope.cli.export import check_recording, is_recording, open_pages
from gpuscope.errors import InvalidArgument
from gpuscope.paths import is_stream, write_text

_SLOWER, _NOT_COMPARABLE = 1, 2
_WIDEST, _USUAL = 140, 100


class Diff:
    """Compares recordings."""

    description = (
        "Compares recordings of two versions of a program: how much longer a step takes and why, kernel by kernel,\n"
        "region by region and by what the GPU waited for, with intervals. Without steps, run times and the program's\n"
        "functions are compared. A side is a .gscope file or a trace of torch.profiler, a folder of them, or a\n"
        "pattern in quotes; with three or more a side, runs are compared and not steps. The exit code is 2 if the\n"
        "recordings have too little in common. Two folders of gpuscope merge are compared as jobs: the step and its\n"
        "parts, kernels, and ranks relative to the others."
    )
    examples = """\
  gpuscope diff before.gscope after.gscope
  gpuscope diff 'before/*.gscope' 'after/*.gscope' --fail-over 5%   exit code 1 where a step or run is surely slower
  gpuscope diff before.gscope after.gscope -o diff.html             an interactive page: tree, two steps, tables
  gpuscope diff main.gscope branch.gscope --markdown comment.md     for a pull request
  gpuscope diff before.gscope after.gscope --json -                 all nodes, for programs"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("before", metavar="BEFORE", help="a .gscope file, a folder of them, or a pattern in quotes")
        parser.add_argument("after", metavar="AFTER", help="likewise")
        parser.add_argument(
            "--fail-over",
            metavar="SHARE",
            type=options.share,
            help="exit code 1 where a step or run is surely slower, and by more than this, as 5%%",
        )
        parser.add_argument(
            "--target",
            metavar="TEXT",
            help="the time of a step or run to reach: 20ms, +30%% faster, or --target=-20%% of the time; exit code 1 "
            "if it is surely not met",
        )
        parser.add_argument(
            "--margin",
            metavar="SHARE",
            type=options.share,
            help="of a node's own time: what differs by less does not count (default: 2%%; of single runs 10%%)",
        )
        parser.add_argument(
            "--row-limit", metavar="N", type=options.positive, default=20, help="rows at most (default: 20)"
        )
        parser.add_argument("--no-findings", action="store_true", help="leave the diagnoses of both sides out")
        parser.add_argument("-o", "--output", metavar="FILE.html", help="write an interactive page too")
        parser.add_argument("--open", action="store_true", help="show the page, of -o or diff.html, in the browser")
        parser.add_argument("--json", metavar="FILE", help="write all nodes as JSON too, - for standard output")
        parser.add_argument("--markdown", metavar="FILE", help="write a comment for a pull request too, - likewise")

    def run(self, options_: argparse.Namespace) -> int:
        """Reads, compares and prints."""
        from gpuscope.diffing import diff
        from gpuscope.fleet.tables import is_job

        if is_job(options_.before) and is_job(options_.after):
            return _diff_jobs(options_)
        page = options_.output or ("diff.html" if options_.open else None)
        pages = options.writable_paths([page], options.PAGE_SUFFIXES)
        written = options.writable_paths([options_.json, options_.markdown])
        sides = [_files(options_.before), _files(options_.after)]
        options.check_apart([*pages, *written], [*sides[0], *sides[1]])
        progress = console.errors()
        with progress.working(f"comparing {sum(map(len, sides))} recordings"):
            margin = {} if options_.margin is None else {"margin": options_.margin}
            found = diff(*sides, **margin, findings=not options_.no_findings, target=options_.target)
        outputs: list[tuple[Path, Callable[[Path], object]]] = [(path, found.to_html) for path in pages]
        if options_.json:
            outputs.append((written[0], found.to_json))
        if options_.markdown:
            outputs.append((written[-1], lambda path: write_text(path, found.markdown())))
        # Files first: the reader of standard output may leave early.
        for path, write in sorted(outputs, key=lambda output: is_stream(output[0])):
            with progress.working(f"writing {console.display(path)}"):
                write(path)
        out = console.output([*pages, *written])
        out.report(found.page(min(out.width or _USUAL, _WIDEST), options_.row_limit))
        for path in pages:
            out.sentence("wrote ", (console.display(path), "bold"))
        if options_.open:
            open_pages(pages)
        missed = found.target is not None and found.target.met is False
        if options_.fail_over is not None:
            return _SLOWER if found.fails(options_.fail_over) or missed else 0
        if missed:
            return _SLOWER
        return 0 if found.is_comparable else _NOT_COMPARABLE


def _diff_jobs(options_: argparse.Namespace) -> int:
    """Compares two jobs."""
    from gpuscope.fleet.job import Fleet

    if options_.output or options_.open or options_.markdown or options_.target:
        raise InvalidArgument("BEFORE and AFTER are jobs; accepted with jobs are --fail-over and --json")
    written = options.writable_paths([options_.json])
    with console.errors().working("comparing two jobs"):
        found = Fleet.open(options_.before).diff(Fleet.open(options_.after))
    for path in written:
        found.to_json(path)
    console.output(written).report(str(found))
    slower = found.step.verdict == "slower" and (found.step.change or 0.0) > (options_.fail_over or 0.0)
    return _SLOWER if options_.fail_over is not None and slower else 0


def _files(given: str) -> list[str]:
    """The recordings that an argument names."""
    if os.path.isdir(given) and not is_recording(given):
        found = sorted(str(path) for path in Path(given).iterdir() if is_recording(str(path)))
        if not found:
            raise InvalidArgument(f"the folder {given!r} holds no recording")
        return found
    if not os.path.exists(given) and glob.has_magic(given):
        found = sorted(glob.glob(given))
        if not found:
            raise InvalidArgument(f"no file matches {given!r}")
    else:
        found = [given]
    for path in found:
        check_recording(path)
    return found
