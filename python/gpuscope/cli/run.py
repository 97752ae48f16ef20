# SPDX-License-Identifier: Apache-2.0
"""``gpuscope run``: profiles an unmodified script."""

from __future__ import annotations

import argparse
import atexit
import warnings
from typing import TYPE_CHECKING

from gpuscope.arguments import OPERATOR_OPTIONS
from gpuscope.cli import console, report
from gpuscope.cli.children import Children, add_children, choose_folder
from gpuscope.cli.console import Console
from gpuscope.cli.ends import own_imports
from gpuscope.cli.export import Outputs, in_folder, open_pages
from gpuscope.cli.options import PAGE_SUFFIXES
from gpuscope.cli.program import Program
from gpuscope.cli.recorder import Recorder, add_recorded
from gpuscope.cli.rerun import FACT, Command
from gpuscope.distributed import distributed_rank
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument, NotEnoughMemory, lacks_memory

if TYPE_CHECKING:
    from gpuscope.cli.ends import Ending
    from gpuscope.recording import Analyses


class Run:
    """Runs a script, module or code as ``python`` would, and delivers the recording."""

    description = (
        "Runs a script as 'python script.py args...' would: same output, same exit code. The report goes to standard\n"
        "error, the recording to a file; both also when the script raises, exits, or is ended by Ctrl-C or a signal."
    )
    examples = """\
  gpuscope run train.py --epochs 1
  gpuscope run -o out.gscope -o out.pftrace -m package.train --lr 0.1
  gpuscope run -o train.html --open train.py             an interactive page, shown in the browser
  gpuscope run --python-samples 5ms script.py            where Python was, looked at every 5 ms
  gpuscope run --counters why train.py                   what the GPU's hardware counters say of regions and kernels
  torchrun --nproc-per-node 8 -m gpuscope run -o job/ train.py
                                                         a recording of each rank, as job/rank-00003.gscope
  gpuscope run --children -o run/ train.py               the workers of a DataLoader and other processes too
  gpuscope run --spool runs/ train.py                    written while it runs: what was recorded survives SIGKILL
  gpuscope run --watch watch/ train.py                   for days; train.py calls gpuscope.step() after each step
  gpuscope run --mode aggregate --tree server.py         one row per call path, for runs of any length
  gpuscope run --mode ring --ring-seconds 10 server.py   the last ten seconds, then Ctrl-C
  gpuscope run --schedule wait=5,warmup=1,active=3 train.py
                                                         steps 6 to 8; train.py calls gpuscope.step() after each
  gpuscope run --record-shapes --group-by-input-shape train.py
                                                         operators of PyTorch, a row for each shape of their inputs
  gpuscope run --profile-memory --sort-by self_device_memory_usage train.py
                                                         which operators take the GPU's memory
  gpuscope run --with-stack --group-by-stack-n 3 train.py
                                                         operators by the three frames that call them
  gpuscope run -c 'import torch; torch.ones(9).sum()'"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        Program.prepare_parser(parser)
        parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            action="append",
            help=".gscope, .html, .json, .json.gz or .pftrace, or - for JSON; a folder (out/) gets "
            "rank-00000.gscope, or the rank's number under torchrun, mpirun or srun; a file that exists is replaced, "
            "in a folder numbered; may be repeated "
            "(default: <script name>.gscope, or with the next free number, as train-2.gscope)",
        )
        parser.add_argument(
            "--spool",
            metavar="DIR",
            help="write the recording while the program runs, so that it survives a crash or SIGKILL: a folder "
            "DIR/rank-00000.gscope/ of segments for each process, which all commands open; instead of -o, or with it",
        )
        parser.add_argument(
            "--spool-bytes",
            metavar="SIZE",
            help="most bytes of a process's segments, the oldest are deleted (default: 1GB)",
        )
        parser.add_argument(
            "--watch",
            metavar="DIR",
            help="leave it on: record a few steps now and then at 1 %% of the time at most, and dump slow steps, hangs "
            "and errors into DIR, which `gpuscope watch DIR` shows; the other options do not apply",
        )
        parser.add_argument(
            "--listen",
            metavar="DIR",
            help="record nothing until `gpuscope attach PID` asks: the program listens at a socket in DIR; with or "
            "without --watch, the other options do not apply",
        )
        parser.add_argument(
            "--open", action="store_true", help="show the page, of -o or <script name>.html, in the browser"
        )
        add_children(parser)
        add_recorded(parser)
        report.add_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program and delivers the results."""
        program = Program.given(options.kind, options.program)
        program.check()
        if options.watch is not None or options.listen is not None:
            return _watched(options, program)
        report.check(options)
        _check_groups(options)
        if options.ring_seconds is not None and options.mode != "ring":
            raise InvalidArgument("--ring-seconds needs --mode ring, which keeps the last seconds alone")
        if options.spool and options.children:
            raise InvalidArgument("--spool is given with --children; accepted is one of the two")
        if options.spool_bytes and not options.spool:
            raise InvalidArgument("--spool-bytes needs --spool, whose segments it limits")
        choose_folder(options, program.name)
        given = [in_folder(each, options.children) for each in options.output or []]
        if not given and not options.spool:
            given = [f"{program.name}.gscope"]
        replaces = given == (options.output or [])  # only named files are replaced
        if options.open and not any(each.endswith(PAGE_SUFFIXES) for each in given):
            given.append(f"{program.name}.html")
        outputs = Outputs(given, replaces=replaces)
        delivery = Delivery(outputs, console.errors(), options)
        delivery.remember("run", program)
        code = delivery.run(program)
        if options.open:
            with own_imports():
                open_pages(outputs.written)
        return code


class Delivery(Recorder):
    """Records the program and prints the report; errors here never reach the program."""

    def __init__(self, outputs: Outputs, out: Console, options: argparse.Namespace) -> None:
        super().__init__(outputs, options)
        self._out = out  # from before the run: the program may replace or close sys.stderr
        self._children = Children.asked_for(options)

    def remember(self, recorder: str, program: Program) -> None:
        """Stores the command in each recording, for `gpuscope verify`; a rank is no whole command."""
        command = None if distributed_rank() else Command.now(recorder, self._options, program)
        if command is not None:
            self.profiler._annotations.state({FACT: command.fact()})

    def run(self, program: Program) -> int:
        """Runs the program and delivers the recording. Returns the program's exit code, or 1 if delivery failed."""
        self.profiler.start()
        self._children.watch()
        atexit.register(self._children.show, self._out)  # after multiprocessing has ended its processes
        try:
            ending = program.run(self, self._children.record_fork)
        except InvalidArgument:  # never started: files of earlier runs remain
            self.profiler.on_trace_ready = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GpuscopeWarning)
                self.profiler.stop()
            raise
        return ending.code or (0 if ending.in_child else int(self.failed))

    def finish(self, ending: Ending) -> None:
        """Ends the recording, which may deliver one more window, and prints the report."""
        with self._out.working("finishing the recording"):
            self.stop()
        if ending.by.startswith("SIG"):
            self.complaints.append(f"the program was ended by {ending.by}")
        elif ending.by.startswith("os.exec"):
            left_out = "" if self._options.children else ", which is not recorded"  # with --children, if it is Python
            self.complaints.append(f"the program became another one by {ending.by}{left_out}")
        if _profiled_itself(ending.error):
            self.complaints.append(
                "the script starts a profiler of its own, and only one can run: start it with python, or leave its "
                "profile() out"
            )
        self._show()
        if ending.by:  # atexit does not run
            self._children.show(self._out)

    def given_up(self) -> str:
        """The sentence printed if `finish` is interrupted."""
        missing = [console.display(path) for path in self.outputs.missing]
        if missing:
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not written"
        return "the report is not complete"

    def show_results(self, results: Analyses, options: argparse.Namespace, out: Console) -> None:
        """Prints the report."""
        report.show_summary(results, out)
        report.show(results, options, out)
        for remark in results.audit().remarks:
            if not options.audit and remark.partition(":")[0] in OPERATOR_OPTIONS:  # requested, but not recorded
                out.note(remark)

    def _show(self) -> None:
        with self._out.forgiving():
            self._out.line()
            if self.windows:
                self._show_results()
            for path in self.outputs.written:
                self._out.wrote(path)
            if self.profiler.spool_folder is not None:
                self._out.note(f"the recording is in {console.display(self.profiler.spool_folder)}/, written as it ran")
            for note in self.outputs.notes:
                self._out.note(note)
            if self._options.schedule and not self.windows and not self.profiler.step_num:
                self.complaints.append("with --schedule the script must call gpuscope.step() at the end of every step")
            for complaint in self.complaints:
                self._out.complain(complaint, "bold yellow")
            if comparison := self.outputs.comparison():
                self._out.sentence("compare: ", (comparison, "bold"))

    def _show_results(self) -> None:
        try:
            self.show_results(self.profiler, self._options, self._out)
        except (OSError, ValueError):  # of the stream
            raise
        except Exception as error:  # for example, Ctrl-C interrupted the import of NumPy
            error = NotEnoughMemory() if lacks_memory(error) else error
            why = str(error) if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
            self.complaints.append(f"the results could not be shown: {why}")
            self.failed = True


def _watched(options: argparse.Namespace, program: Program) -> int:
    """Runs the program under a watch, or listening; no recording of the whole, no report."""
    from gpuscope.cli.watches import Watched

    what = "--watch records windows" if options.watch is not None else "--listen waits for `gpuscope attach`"
    for attribute, name in (("output", "-o"), ("spool", "--spool"), ("open", "--open"), ("children", "--children")):
        if getattr(options, attribute):
            raise InvalidArgument(f"{name} is of one recording, and {what}; give one of them")
    return Watched(options, console.errors()).run(program)


def _check_groups(options: argparse.Namespace) -> None:
    """Raises InvalidArgument before the run if rows are grouped by details that are not recorded."""
    for group, option in (("group_by_input_shape", "record_shapes"), ("group_by_stack_n", "with_stack")):
        if getattr(options, group) and not getattr(options, option):
            names = [f"--{name.replace('_', '-')}" for name in (group, option)]
            raise InvalidArgument(f"{names[0]} needs {names[1]}, which records what the rows are grouped by")


def _profiled_itself(error: BaseException | None) -> bool:
    """Whether the program failed because it started a second profiler."""
    return isinstance(error, InvalidArgument) and str(error).startswith("a profiler is already running")
