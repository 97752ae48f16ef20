# SPDX-License-Identifier: Apache-2.0
"""``gpuscope bench explore``: CPU against GPU, by kind of work and size."""

from __future__ import annotations

import argparse
import signal

from gpuscope.cli import console
from gpuscope.cli.options import names, seconds, sizes, writable_paths

_INTERRUPTED = 128 + signal.SIGINT


class Explore:
    """Measures where the GPU begins to pay."""

    name = "bench explore"
    summary = "CPU against GPU: which is faster, for which work, from which size on"
    description = (
        "Measures kinds of work on n by n matrices on the CPU, on the GPU, and on the GPU with the data moved there\n"
        "and back. Prints a table; -o writes one interactive page that needs nothing but a browser. Ctrl-C ends it\n"
        "early and keeps what was measured."
    )
    examples = """\
  gpuscope bench explore -o explorer.html
  gpuscope bench explore --operations matmul,fft --sizes 64:8192 --budget 2min -o explorer.html
  gpuscope bench explore --backend torch --dtype float64 --sizes 100,300,1000 --json explorer.json"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "--operations",
            metavar="LIST",
            type=names,
            help="of matmul, elementwise, reduction, fft, copy and sort, with commas (default: all)",
        )
        parser.add_argument(
            "--sizes",
            metavar="SIZES",
            type=sizes,
            default=sizes("64:4096"),
            help="n of the n by n matrices: FIRST:LAST doubles, 100,500 is a list (default: 64:4096)",
        )
        parser.add_argument(
            "--backend",
            choices=("torch", "cupy", "numpy"),
            help="torch on both sides, cupy against NumPy, or NumPy alone (default: NumPy against torch, or cupy)",
        )
        parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(default: float32)")
        parser.add_argument(
            "--budget",
            metavar="TIME",
            type=seconds,
            default=60.0,
            help="time to measure, as 60s or 2min; every point is measured once in any case (default: 60s)",
        )
        parser.add_argument("-o", "--output", metavar="FILE.html", help="write the interactive page")
        parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="JSON; without FILE, instead of text")

    def run(self, options: argparse.Namespace) -> int:
        """Measures, prints and writes."""
        from gpuscope.benchmarking.explorer import explore
        from gpuscope.benchmarking.explorer.exploration import plotly_version

        pages = writable_paths([options.output] if options.output is not None else [], (".html", ".htm"))
        if pages:
            plotly_version()
        alone = options.json == "-"
        files = writable_paths([options.json] if options.json is not None and not alone else [])
        with console.errors().status() as say:
            found = explore(
                options.operations,
                options.sizes,
                backend=options.backend,
                dtype=options.dtype,
                budget=options.budget,
                progress=say,
            )
        out = console.output()
        if alone:
            out.line(found.to_json().rstrip("\n"))
        else:
            out.report(found.table())
        for paths, write in ((pages, found.write_html), (files, found.to_json)):
            for path in paths:
                write(path)
                (console.errors() if alone else out).line("wrote ", (console.display(path), "bold"))
        return _INTERRUPTED if found.interrupted else 0
