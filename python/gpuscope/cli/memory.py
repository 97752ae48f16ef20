# SPDX-License-Identifier: Apache-2.0
"""``gpuscope memory``: runs an unmodified script and reports its memory.

No failure of the measurement reaches the program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpuscope import _core
from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.ends import Ending
from gpuscope.cli.memory_show import show_peak
from gpuscope.cli.options import PAGE_SUFFIXES, positive, writable_paths
from gpuscope.cli.program import Program
from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.exporters.page.memory import export_memory_page
from gpuscope.frameworks.numpy import unreported
from gpuscope.memory.history.events import MemoryEvents
from gpuscope.memory.history.history import MOST_ENTRIES, record_memory_history
from gpuscope.memory.history.leaks import find_leaks
from gpuscope.memory.history.peak import peak_memory
from gpuscope.memory.history.snapshot_writer import dump_memory_snapshot
from gpuscope.memory.limits.out_of_memory_reports import report_out_of_memory
from gpuscope.memory.usage.ledger import memory_ledger
from gpuscope.memory.usage.snapshot import memory_snapshot
from gpuscope.memory.usage.tracking import memory_stages
from gpuscope.paths import find_suffix, write_text
from gpuscope.profiler import lifecycle
from gpuscope.text import brief

_FEWEST_STEPS = 8  # for leaks: growth over fewer may be chance
_MAX_ENTRIES = 1_000_000  # 64 MB, about a minute of training
_SUFFIXES = (*PAGE_SUFFIXES, ".pickle", ".pkl", ".json")

T = TypeVar("T")


class Memory:
    """Runs a script, module or code as ``python`` would, with a history of its memory."""

    description = (
        "Runs a script as 'python script.py args...' would: same output, same exit code. At its end, also when it\n"
        "raises, is interrupted or runs out of memory, prints to standard error: the holders of the GPU's memory, the\n"
        "peak by line of code, the stages of track_memory, and leaks if the script called gpuscope.step() at the end\n"
        "of at least 8 steps. 'gpuscope memory show FILE' shows a snapshot file instead."
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
            help=".html a page, .pickle torch's format, .json or - numbers; may be given more than once",
        )
        parser.add_argument(
            "--max-entries",
            metavar="N",
            type=_entries,
            default=_MAX_ENTRIES,
            help=f"allocations and releases kept, 64 bytes each (default: {_MAX_ENTRIES:,})",
        )
        parser.add_argument("--no-stacks", action="store_true", help="do not record call stacks")
        parser.add_argument("--no-numpy", action="store_true", help="do not record NumPy's arrays")
        parser.add_argument("--top", metavar="N", type=positive, default=10, help="lines of code at most (default: 10)")

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program, prints and writes."""
        program = Program.given(options.kind, options.program)
        program.check()
        outputs = writable_paths(options.output, _SUFFIXES)
        out = console.errors()  # before the run: the program may replace or close sys.stderr
        watch = _Watch(options.max_entries, stacks=not options.no_stacks, numpy=not options.no_numpy)
        report = _Report(program.name, outputs, watch, options.top, out)
        ending = program.run(report)
        return ending.code or (0 if ending.in_child else int(report.failed))


def _entries(text: str) -> int:
    if (number := positive(text)) > MOST_ENTRIES:
        raise argparse.ArgumentTypeError(f"{brief(text)} is not an integer from 1 to {MOST_ENTRIES:,}")
    return number


class _Report:
    """Prints the findings and writes the files at the end.

    Attributes:
        failed: whether a file could not be written.
    """

    def __init__(self, program: str, outputs: Sequence[Path], watch: _Watch, top: int, out: Console) -> None:
        self._program = program
        self._missing = list(outputs)
        self._watch = watch
        self._top = top
        self._out = out
        self.failed = False

    def finish(self, ending: Ending) -> None:
        """Ends the watch, prints and writes."""
        out = self._out
        self._watch.end()
        with out.working("analyzing the memory"):
            found = self._watch.findings(self._program)
        with out.forgiving():
            found.show(self._top, out)
        for path in tuple(self._missing):
            why = found.write(path)
            self.failed = self.failed or bool(why)
            with out.forgiving():
                if why:
                    out.complain(f"{console.display(path)} could not be written: {why}", "bold yellow")
                else:
                    out.wrote(path)
            self._missing.remove(path)
        if ending.by.startswith("SIG"):
            with out.forgiving():
                out.complain(f"the program was ended by {ending.by}", "bold yellow")

    def resume(self) -> None:
        """Watches the program again from now on. The files cover the time before."""
        self._watch = _Watch(**self._watch.options)

    def given_up(self) -> str:
        """The message if `finish` is interrupted: which files may be missing."""
        missing = " and ".join(map(console.display, self._missing))
        return f"the report is not complete{f', and {missing} may not be written' if missing else ''}"


@dataclass
class _Findings:
    """The results. Sizes are bytes. A missing result is None or empty, and a note says why."""

    program: str
    snapshot: Any
    ledgers: list[Any]
    leaks: Any
    notes: list[str]
    events: MemoryEvents | None = None
    limits: tuple[str, ...] = ()  # of the history
    peak: Any = None
    stages: Any = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""

        def plain(result: Any) -> Any:
            return None if result is None else result.to_dict()

        return {
            "program": self.program,
            "snapshot": plain(self.snapshot),
            "ledgers": [plain(ledger) for ledger in self.ledgers],
            "history": None if self.events is None else {"events": len(self.events), "lost": self.events.lost},
            "peak": plain(self.peak),
            "peak_by_category": {
                one.name.replace(" ", "_"): one.bytes for one in getattr(self.peak, "categories", None) or ()
            },
            "stages": plain(self.stages),
            "leaks": plain(self.leaks),
            "notes": self.notes,
        }

    def show(self, top: int, out: Console) -> None:
        """Prints everything, with at most `top` lines of code per table."""
        out.line()
        for whole in self.ledgers or ([self.snapshot] if self.snapshot is not None else []):
            _show_block(str(whole), out)
        if self.peak is not None:
            show_peak(self.peak, top, out)
        for part in (self.stages, self.leaks):
            if part is not None:
                _show_block(str(part), out)
        if self.events is not None and not len(self.events):
            why = "the program used no PyTorch, CuPy, NumPy or CUDA memory that is recorded"
            out.sentence(f"no allocations were recorded: {why}")
        if self.events is not None and self.events.lost:
            out.note(f"{self.events.lost:,} older events are no longer kept: raise --max-entries to see them")
        for note in self.notes:
            out.note(note, style="dim")

    def write(self, path: Path) -> str:
        """Writes one file; returns why it failed, or ""."""
        try:
            suffix = find_suffix(path, _SUFFIXES)
            if suffix in PAGE_SUFFIXES:
                self._write_page(path)
            elif suffix in (".json", None):  # None: a pipe
                write_text(path, json.dumps(self.to_dict(), indent=1, default=str) + "\n")
            else:
                dump_memory_snapshot(path)
        except Exception as error:  # the exit code is the program's
            return str(error) if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
        return ""

    def _write_page(self, path: Path) -> None:
        if self.events is None or not len(self.events):
            raise NotAvailable("the history has no events")
        export_memory_page(
            self.events,
            path,
            device=getattr(self.peak, "device", None),
            title=f"Memory of {self.program}",
            notes=self.limits,
        )


def _show_block(text: str, out: Console) -> None:
    for line in text.rstrip("\n").split("\n"):
        out.sentence(line)
    out.line()


class _Watch:
    """Records the memory history, out-of-memory reports and the program's steps, from now to `end`."""

    def __init__(self, max_entries: int, *, stacks: bool, numpy: bool) -> None:
        self.options: dict[str, Any] = {"max_entries": max_entries, "stacks": stacks, "numpy": numpy}
        self._notes: list[str] = []
        self._steps_ns = [_core.now_ns()]
        self._leaks: Any = None
        self._snapshot: Any = None
        self._ledgers: list[Any] = []
        self._history = self._attempt("the history", lambda: record_memory_history(**self.options))
        self._reports = self._attempt("reports", report_out_of_memory)
        self._finder: Any = self._attempt("leaks", lambda: find_leaks())
        if self._finder is not None and self._history is not None:
            self._attempt("leaks", self._finder.__enter__)
        if self._history is not None:
            lifecycle.keep_contexts_at_exit()
        lifecycle.watch(self)

    def step(self) -> None:
        """A step of the program has ended."""
        self._steps_ns.append(_core.now_ns())
        if self._finder is not None:
            with contextlib.suppress(Exception):
                self._finder.step()

    def stop(self) -> None:
        """The process ends before `end`."""

    def abandon(self) -> None:
        """In a forked child: the watch belongs to the parent."""

    @unreported()
    def end(self) -> None:
        """Takes snapshot, ledger and leaks while the program's objects are alive, then ends the history."""
        lifecycle.forget(self)
        # The ledger names libraries from the driver watch, which ends with the history.
        self._snapshot = self._attempt("the snapshot", memory_snapshot)
        for device in getattr(self._snapshot, "devices", ()):
            ledger = self._attempt("the ledger", partial(memory_ledger, device.device))
            if ledger is not None:
                self._ledgers.append(ledger)
        if self._finder is not None and self._history is not None and len(self._steps_ns) > _FEWEST_STEPS:
            # This runs the garbage collector, whose releases must be in the history.
            self._attempt("leaks", lambda: self._finder.__exit__(None, None, None))
            self._leaks = self._attempt("leaks", self._finder.report)
        if self._history is not None:
            if not self._history.active:
                self._notes.append("the program began or ended a memory history itself: later events are missing")
            self._attempt("the end of the history", self._history.stop)
        if self._reports is not None:
            self._attempt("the end of the history", self._reports.close)

    def findings(self, program: str) -> _Findings:
        """All results. Call after `end`."""
        found = _Findings(program, self._snapshot, self._ledgers, self._leaks, self._notes)
        if self._history is not None:
            found.events = self._attempt("the history", self._history.events)
            found.limits = self._history.notes
            self._notes += [note for note in found.limits if note not in self._notes]
        if found.events is not None and len(found.events):
            events = found.events
            steps = self._steps_ns if len(self._steps_ns) > 1 else []
            found.peak = self._attempt("the peak", lambda: peak_memory(events, steps_ns=steps))
        stages = self._attempt("stages", memory_stages)
        found.stages = stages if stages is not None and stages.stages else None
        return found

    def _attempt(self, what: str, make: Callable[[], T]) -> T | None:
        """The result of `make`; on an error None, and a note."""
        try:
            return make()
        except GpuscopeError as error:
            note = str(error)
        except Exception as error:
            note = f"{what} could not be had: {type(error).__name__}: {error}"
        if note not in self._notes:
            self._notes.append(note)
        return None
