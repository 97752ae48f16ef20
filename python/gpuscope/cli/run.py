# SPDX-License-Identifier: Apache-2.0
"""``gpuscope run``: profiles an unmodified script."""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, get_args

from gpuscope.arguments import Graphs, Mode
from gpuscope.cli import console, report
from gpuscope.cli.console import Console
from gpuscope.cli.ends import own_imports
from gpuscope.cli.export import Outputs, in_folder, open_pages
from gpuscope.cli.options import PAGE_SUFFIXES, add_counters, add_device_samples, seconds
from gpuscope.cli.program import Program
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument, NotEnoughMemory, lacks_memory
from gpuscope.text import brief

if TYPE_CHECKING:
    from gpuscope.cli.ends import Ending
    from gpuscope.profiler import Schedule, profile
    from gpuscope.recording import Analyses

# Options of profile() that say what of operators is recorded.
_OPERATOR_OPTIONS = {
    "record_shapes": "record the shapes of operators' inputs",
    "with_stack": "record where in the program operators, regions and launches are",
    "profile_memory": "record what PyTorch's allocators hand out, and what libraries take from the driver",
    "with_modules": "record the torch.nn.Module that operators run in",
    "with_flops": "count floating-point operations of operators, from their shapes",
}


class Run:
    """Runs a script, module or code as ``python`` would, and hands over what was recorded."""

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
            help=".gscope, .html, .json, .json.gz or .pftrace, or - for JSON; a folder (out/) gets pid-12345.gscope, "
            "or rank-00003.gscope under torchrun, mpirun or srun; what exists is replaced; may be repeated "
            "(default: <script name>.gscope, or with the next free number, as train-2.gscope)",
        )
        parser.add_argument(
            "--open", action="store_true", help="show the page, of -o or <script name>.html, in the browser"
        )
        what = parser.add_argument_group("what is recorded")
        what.add_argument(
            "--mode",
            choices=get_args(Mode),
            default="full",
            help="every event, the last seconds, or one row per call path (default: full)",
        )
        what.add_argument("--activities", metavar="LIST", help="cpu, cuda or both as cpu,cuda (default: both)")
        what.add_argument(
            "--graphs",
            choices=get_args(Graphs),
            default="node",
            help="CUDA graphs kernel by kernel, or one record per launch (default: node)",
        )
        what.add_argument("--schedule", metavar="SPEC", help="steps to record, as wait=1,warmup=1,active=3,repeat=1")
        what.add_argument("--ring-seconds", metavar="S", type=float, help="how far back the ring reaches")
        what.add_argument("--max-memory", metavar="SIZE", help="the most memory for events, as 512MB or 1GiB")
        samples = what.add_mutually_exclusive_group()
        samples.add_argument(
            "--python-samples",
            metavar="TIME",
            type=seconds,
            default=True,
            help="time between samples of where threads are in Python (default: 1ms)",
        )
        samples.add_argument("--no-python-samples", dest="python_samples", action="store_false", help="take none")
        add_counters(what)
        add_device_samples(what)
        what.add_argument("--sync", action="store_true", help="record synchronization on the GPU too")
        for option, words in _OPERATOR_OPTIONS.items():
            what.add_argument(f"--{option.replace('_', '-')}", action="store_true", help=words)
        report.add_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program and delivers the results."""
        program = Program.given(options.kind, options.program)
        program.check()
        report.check(options)
        _check_groups(options)
        if options.ring_seconds is not None and options.mode != "ring":
            raise InvalidArgument("--ring-seconds needs --mode ring, which keeps the last seconds alone")
        given = [in_folder(each) for each in options.output or []] or [f"{program.name}.gscope"]
        replaces = given == options.output  # only files that were named
        if options.open and not any(each.endswith(PAGE_SUFFIXES) for each in given):
            given.append(f"{program.name}.html")
        outputs = Outputs(given, replaces=replaces)
        code = Delivery(outputs, console.errors(), options).run(program)
        if options.open:
            with own_imports():
                open_pages(outputs.written)
        return code


class Delivery:
    """Takes each recorded window as it is ready; nothing that goes wrong here reaches the program.

    Attributes:
        failed: something could not be delivered.
    """

    def __init__(self, outputs: Outputs, out: Console, options: argparse.Namespace) -> None:
        self._outputs = outputs
        self._out = out  # the stream of before the run: the program may replace or close sys.stderr
        self._options = options
        self._complaints: list[str] = []
        self._windows = 0
        self.failed = False
        self.profiler = _profiler(options, self)

    def run(self, program: Program) -> int:
        """Runs the program and delivers what was recorded; the exit code is the program's, or 1 where that failed."""
        self.profiler.start()
        try:
            ending = program.run(self)
        except InvalidArgument:  # it was never started: files of earlier runs remain
            self.profiler.on_trace_ready = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GpuscopeWarning)
                self.profiler.stop()
            raise
        return ending.code or (0 if ending.in_child else int(self.failed))

    def __call__(self, results: Analyses) -> None:
        """Writes the files of one window."""
        self._windows += 1
        with own_imports():
            errors = self._outputs.write(results)
            kept = self._outputs.keep(results) if errors else None
        self._complaints += [f"the recording could not be written: {error}" for error in errors]
        self.failed = self.failed or bool(errors)
        if kept is not None:
            self._complaints.append(f"the recording is kept in {kept}")

    def finish(self, ending: Ending) -> None:
        """Ends the recording, which may deliver one more window, and prints the report."""
        with warnings.catch_warnings(record=True) as said, self._out.working("finishing the recording"):
            warnings.simplefilter("always", GpuscopeWarning)
            self.profiler.stop()
        self._complaints += [str(warning.message) for warning in said]
        if ending.by.startswith("SIG"):
            self._complaints.append(f"the program was ended by {ending.by}")
        elif ending.by.startswith("os.exec"):
            self._complaints.append(f"the program became another one by {ending.by}, which is not recorded")
        if _profiled_itself(ending.error):
            self._complaints.append(
                "the script starts a profiler of its own, and only one can run: start it with python, or leave its "
                "profile() out"
            )
        self._show()

    def resume(self) -> None:
        """Records on, into the same recording; with a schedule into one of its own."""
        if not self._options.schedule:
            self._outputs.write_again()
        self._complaints = ["the program could not become another one: it went on, and was recorded on"]
        try:
            self.profiler._resume(as_one=not self._options.schedule)
        except GpuscopeError as error:
            self._complaints = [f"the program could not become another one, and is not recorded on: {error}"]

    def given_up(self) -> str:
        """What is lost where `finish` ends now."""
        missing = [console.display(path) for path in self._outputs.missing]
        if missing:
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not written"
        return "the report is not complete"

    def show_results(self, results: Analyses, options: argparse.Namespace, out: Console) -> None:
        """Prints what was recorded."""
        report.show_summary(results, out)
        report.show(results, options, out)
        for remark in results.audit().remarks:
            if not options.audit and remark.partition(":")[0] in _OPERATOR_OPTIONS:  # asked for, and not there
                out.note(remark)

    def _show(self) -> None:
        with self._out.forgiving():
            self._out.line()
            if self._windows:
                self._show_results()
            for path in self._outputs.written:
                self._out.wrote(path)
            for note in self._outputs.notes:
                self._out.note(note)
            if self._options.schedule and not self._windows and not self.profiler.step_num:
                self._complaints.append("with --schedule the script must call gpuscope.step() at the end of every step")
            for complaint in self._complaints:
                self._out.complain(complaint, "bold yellow")
            if comparison := self._outputs.comparison():
                self._out.sentence("compare: ", (comparison, "bold"))

    def _show_results(self) -> None:
        try:
            self.show_results(self.profiler, self._options, self._out)
        except (OSError, ValueError):  # of the stream
            raise
        except Exception as error:  # as where a Ctrl-C left half of NumPy imported
            error = NotEnoughMemory() if lacks_memory(error) else error
            why = str(error) if isinstance(error, GpuscopeError) else f"{type(error).__name__}: {error}"
            self._complaints.append(f"the results could not be shown: {why}")
            self.failed = True


def _profiler(options: argparse.Namespace, delivery: Delivery) -> profile:
    from gpuscope.profiler import profile

    limits = {"max_bytes": options.max_memory, "ring_seconds": options.ring_seconds}
    return profile(
        activities=_activities(options.activities),
        schedule=_schedule(options.schedule),
        on_trace_ready=delivery,
        mode=options.mode,
        graphs=options.graphs,
        sync=options.sync,
        python_samples=options.python_samples,
        counters=options.counters,
        counter_interval_us=1e6 * options.counter_interval,
        device_samples=options.device_samples,
        **{option: getattr(options, option) for option in _OPERATOR_OPTIONS},
        **{name: value for name, value in limits.items() if value is not None},
    )


def _check_groups(options: argparse.Namespace) -> None:
    """Finds rows asked for by what is not recorded, before the run."""
    for group, option in (("group_by_input_shape", "record_shapes"), ("group_by_stack_n", "with_stack")):
        if getattr(options, group) and not getattr(options, option):
            names = [f"--{name.replace('_', '-')}" for name in (group, option)]
            raise InvalidArgument(f"{names[0]} needs {names[1]}, which records what the rows are grouped by")


def _profiled_itself(error: BaseException | None) -> bool:
    """Whether the program failed as it started a profiler while this one runs."""
    return isinstance(error, InvalidArgument) and str(error).startswith("a profiler is already running")


def _activities(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = text.split(",")
    if not set(names) <= {"cpu", "cuda"}:
        raise InvalidArgument(f"--activities is {text!r}; accepted are cpu, cuda and cpu,cuda")
    return [name.upper() for name in names]


def _schedule(text: str | None) -> Schedule | None:
    """Reads ``wait=1,warmup=1,active=3``."""
    from gpuscope.profiler import schedule

    if text is None:
        return None
    numbers = {"wait": 0, "warmup": 0, "repeat": 0, "skip_first": 0}
    for item in text.split(","):
        name, equals, number = item.partition("=")
        if name not in (*numbers, "active") or not equals or not number.isdecimal():
            raise InvalidArgument(
                f"--schedule contains {brief(item)}; accepted is NAME=NUMBER with wait, warmup, active, repeat or "
                "skip_first"
            )
        try:
            numbers[name] = int(number)
        except ValueError:  # Python reads no number of some thousands of digits
            raise InvalidArgument(f"--schedule contains {brief(item)}, a number with too many digits") from None
    if "active" not in numbers:
        raise InvalidArgument(f"--schedule is {brief(text)}; it must say how many steps are active, as active=3")
    return schedule(**numbers)
