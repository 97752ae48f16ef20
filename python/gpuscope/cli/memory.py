# SPDX-License-Identifier: Apache-2.0
"""``gpuscope memory``: runs an unmodified script and says where its memory went."""

from __future__ import annotations

import argparse
import contextlib
import os

from gpuscope.cli import console, files, memory_files, memory_text, view
from gpuscope.cli.script import Program

_MAX_ENTRIES = 1_000_000  # 64 MB: a minute or so of training


class Memory:
    """Runs a script, module or code as ``python`` would, with a history of its memory."""

    name = "memory"
    summary = "run a script and say where its memory goes"
    description = (
        "Runs a script as 'python script.py args...' would: same output, same exit code. At its end, also when it\n"
        "raises, is interrupted or runs out of memory, standard error gets: who holds the GPU's memory, what lived at\n"
        "the peak by line of code, the stages of track_memory, and leaks if the script called gpuscope.step() at the\n"
        "end of at least 8 steps. 'gpuscope memory show FILE' looks at a snapshot's file instead."
    )
    examples = """\
  gpuscope memory train.py --epochs 1
  gpuscope memory -o memory.html train.py                memory over time, as a page for any browser
  gpuscope memory -o memory.pickle -m package.train      torch's format, for https://pytorch.org/memory_viz
  gpuscope memory --top 5 -o memory.json train.py        five lines of code each, and all figures as JSON
  gpuscope memory show memory.pickle --html memory.html  a file of torch.cuda.memory._dump_snapshot, or ours"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        Program.prepare_parser(parser)
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            action="append",
            default=[],
            help=".html a page, .pickle torch's format, .json numbers; may be given more than once",
        )
        parser.add_argument(
            "--max-entries",
            metavar="N",
            type=view.positive,
            default=_MAX_ENTRIES,
            help=f"allocations and releases kept, 64 bytes each (default: {_MAX_ENTRIES:,})",
        )
        parser.add_argument("--no-stacks", action="store_true", help="leave out where in the program memory was taken")
        parser.add_argument(
            "--top", metavar="N", type=view.positive, default=10, help="lines of code at most (default: 10)"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program, prints and writes."""
        from gpuscope.cli.memory_watch import MemoryWatch

        program = Program.given(options.kind, options.program)
        program.check()
        outputs = memory_files.checked(options.output)
        out = console.errors()  # the stream of before the run: the program may replace or close sys.stderr
        process = os.getpid()
        watch = MemoryWatch(options.max_entries, stacks=not options.no_stacks)
        try:
            ending = program.run()
        finally:
            if os.getpid() == process:
                watch.end()
        # The program may have forked, and the child comes out here too; the history is its parent's.
        if os.getpid() != process:
            return ending.code
        failed = False
        with contextlib.suppress(BrokenPipeError, ValueError):  # nobody reads it, or the program closed the stream
            with out.working("looking at the memory"):
                found = watch.findings(program.name)
            memory_text.show(found, options.top, out)
            for path in outputs:
                why = memory_files.write(found, path)
                if why:
                    out.line(("gpuscope: ", "bold yellow"), f"{files.display(path)} could not be written: {why}")
                    failed = True
                else:
                    out.line("wrote ", (files.display(path), "bold"), (f"  {files.size(path)}", "dim"))
        return ending.code or int(failed)
