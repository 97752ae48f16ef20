# SPDX-License-Identifier: Apache-2.0
"""``gpuscope report``: a recording as text."""

from __future__ import annotations

import argparse

from gpuscope.cli import console, files, view


class Report:
    """Prints what a .gscope file holds."""

    name = "report"
    summary = "print the table, the call tree and the verdict of a recording"
    description = "Prints a recording: what ran, when and where, the table, the tree, and whether anything is missing."
    examples = """\
  gpuscope report train.gscope
  gpuscope report train.gscope --sort-by cpu_time_total --row-limit 50
  gpuscope report train.gscope --group-by-input-shape    recorded with --record-shapes
  gpuscope report train.gscope --group-by-stack-n 3      recorded with --with-stack
  gpuscope report train.gscope --no-table --tree --max-depth 3"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("recording", metavar="FILE.gscope", help="what gpuscope run or profile.save wrote")
        view.add_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Reads and prints."""
        recording = files.open_recording(options.recording, console.errors())
        out = console.output()
        view.show_origin(recording, out)
        view.show(recording, options, out)
        return 0
