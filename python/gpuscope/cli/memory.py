# SPDX-License-Identifier: Apache-2.0
"""``gpuscope memory``: runs an unmodified script and says where its memory went."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.memory_show import show_peak
from gpuscope.cli.options import positive, writable_paths
from gpuscope.cli.program import Program
from gpuscope.errors import GpuscopeError, NotAvailable

if TYPE_CHECKING:
    from gpuscope.cli.memory_watch import MemoryFindings

_MAX_ENTRIES = 1_000_000  # 64 MB: a minute or so of training
_SUFFIXES = (".html", ".htm", ".pickle", ".pkl", ".json")


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
            type=positive,
            default=_MAX_ENTRIES,
            help=f"allocations and releases kept, 64 bytes each (default: {_MAX_ENTRIES:,})",
        )
        parser.add_argument("--no-stacks", action="store_true", help="leave out where in the program memory was taken")
        parser.add_argument("--top", metavar="N", type=positive, default=10, help="lines of code at most (default: 10)")

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program, prints and writes."""
        from gpuscope.cli.memory_watch import MemoryWatch

        program = Program.given(options.kind, options.program)
        program.check()
        outputs = writable_paths(options.output, _SUFFIXES)
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
            _show(found, options.top, out)
            for path in outputs:
                why = _write(found, path)
                if why:
                    out.line(("gpuscope: ", "bold yellow"), f"{console.display(path)} could not be written: {why}")
                    failed = True
                else:
                    out.wrote(path)
        return ending.code or int(failed)


def _show(found: MemoryFindings, top: int, out: Console) -> None:
    """Prints everything; at most `top` lines of code in each table."""
    out.line()
    for whole in found.ledgers or ([found.snapshot] if found.snapshot is not None else []):
        _block(str(whole), out)
    if found.peak is not None:
        show_peak(found.peak, top, out, found.at_peak)
    for part in (found.stages, found.leaks):
        if part is not None:
            _block(str(part), out)
    if found.events is not None and not len(found.events):
        out.line("no allocations were recorded: the program used no PyTorch, CuPy or CUDA memory on this thread")
    if found.events is not None and found.events.lost:
        out.line(
            ("note: ", "bold"),
            f"{found.events.lost:,} older events are no longer kept: raise --max-entries to see them",
        )
    for note in found.notes:
        out.line(("note: ", "bold"), (note, "dim"))


def _block(text: str, out: Console) -> None:
    for line in text.rstrip("\n").split("\n"):
        out.line(line)
    out.line()


def _write(found: MemoryFindings, path: Path) -> str:
    """Writes one file; "" or why that was not possible."""
    try:
        if path.suffix.lower() in (".html", ".htm"):
            _write_page(found, path)
        elif path.suffix.lower() == ".json":
            _write_json(found, path)
        else:
            from gpuscope.memory.snapshot_writer import dump_memory_snapshot

            dump_memory_snapshot(path)
    except Exception as error:  # the program is over, and its exit code is its own
        return str(error) if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
    return ""


def _plain(found: MemoryFindings) -> dict[str, Any]:
    """The findings as JSON has them; what could not be had is None."""

    def plainly(thing: Any) -> Any:
        return None if thing is None else thing.to_dict()

    return {
        "program": found.program,
        "snapshot": plainly(found.snapshot),
        "ledgers": [plainly(ledger) for ledger in found.ledgers],
        "history": None if found.events is None else {"events": len(found.events), "lost": found.events.lost},
        "peak": plainly(found.peak),
        "peak_by_category": {name.lower(): size for name, size in found.at_peak.items()},
        "stages": plainly(found.stages),
        "leaks": plainly(found.leaks),
        "notes": found.notes,
    }


def _write_json(found: MemoryFindings, path: Path) -> None:
    from gpuscope.paths import replacing

    text = json.dumps(_plain(found), indent=1, default=str) + "\n"
    with replacing(path) as file:
        file.write(text.encode())


def _write_page(found: MemoryFindings, path: Path) -> None:
    from gpuscope.exporters.page.memory import export_memory_page

    if found.events is None or not len(found.events):
        raise NotAvailable("the history has no events")
    export_memory_page(
        found.events,
        path,
        device=getattr(found.peak, "device", None),
        categories=found.categories,
        title=f"Memory of {found.program}",
        notes=found.limits,
    )
