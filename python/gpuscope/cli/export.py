# SPDX-License-Identifier: Apache-2.0
"""``gpuscope export``: a recording in the formats of other tools."""

from __future__ import annotations

import argparse

from gpuscope.cli import console, files


class Export:
    """Reads a .gscope file and writes others; the suffix chooses the format."""

    name = "export"
    summary = "turn a recording into a trace for Perfetto, Chrome or TensorBoard"
    description = (
        "Writes a recording in other formats, chosen by the suffix: .pftrace and .perfetto-trace for\n"
        "https://ui.perfetto.dev (small, fast), .json and .json.gz for every tool that reads Chrome's traces."
    )
    examples = """\
  gpuscope export train.gscope -o train.pftrace
  gpuscope export train.gscope -o train.json.gz -o train.pftrace"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("recording", metavar="FILE.gscope", help="what gpuscope run or profile.save wrote")
        parser.add_argument(
            "-o", "--output", metavar="FILE", action="append", required=True, help="where to; may be given repeatedly"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Reads, writes, and names what it wrote on standard output."""
        progress = console.errors()
        outputs = files.Outputs(options.output)
        outputs.write(files.open_recording(options.recording, progress), progress)
        for path in outputs.written:
            console.output().line(files.display(path), (f"  {files.size(path)}", "dim"))
        return 0
