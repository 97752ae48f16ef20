# SPDX-License-Identifier: Apache-2.0
"""Reports of benchmarks on a terminal."""

from __future__ import annotations

from gpuscope.cli.console import Console


def show(report: str, out: Console) -> None:
    """A report line by line: the first of a paragraph stands out, and so do warnings."""
    first = True
    for line in report.splitlines():
        style = "bold" if first else "yellow" if line.lstrip().startswith("warning:") else ""
        if line.lstrip().startswith("-"):
            style = "dim"
        out.line((line, style))
        first = not line.strip()
