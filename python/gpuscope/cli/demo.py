# SPDX-License-Identifier: Apache-2.0
"""``gpuscope demo``: profiles a small training loop, on the GPU or without one."""

from __future__ import annotations

import argparse
import os

from gpuscope.cli import console, files, view
from gpuscope.errors import InvalidArgument


class Demo:
    """Shows on any machine what the results look like."""

    name = "demo"
    summary = "profile a small training loop, with or without a GPU"
    description = (
        "Profiles a small loop with data loading, forward, backward and optimizer: kernels of its own on a GPU, NumPy\n"
        "without one. Prints table, call tree and verdict, and writes demo.gscope and demo.pftrace."
    )
    examples = "  gpuscope demo\n  gpuscope demo --steps 100 -o /tmp"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("--steps", metavar="N", type=view.positive, default=50, help="length (default: 50)")
        parser.add_argument("-o", "--output", metavar="DIR", default=".", help="where files go (default: here)")

    def run(self, options: argparse.Namespace) -> int:
        """Trains, prints and writes."""
        from gpuscope.cli.training import choose_model, train
        from gpuscope.profiler import profile

        if not os.path.isdir(options.output):
            raise InvalidArgument(f"-o is {options.output!r}, which is no folder")
        outputs = files.Outputs([os.path.join(options.output, f"demo{suffix}") for suffix in (".gscope", ".pftrace")])
        out = console.output()
        model = choose_model()
        train(model, steps=1)
        with console.errors().working(f"training {options.steps} steps on {model.device}"), profile() as profiler:
            train(model, options.steps)
        outputs.write(profiler, console.errors())

        out.line(("gpuscope demo", "bold"), f"  {options.steps} training steps on {model.device}")
        out.line()
        view.show_table(profiler, out)
        view.show_tree(profiler, out)
        view.show_audit(profiler.audit(), out)
        recording, trace = map(files.display, outputs.written)
        out.line()
        out.line(
            "open ",
            (trace, "bold"),
            " at https://ui.perfetto.dev, or print again: ",
            (f"gpuscope report {recording}", "bold"),
        )
        return 0
