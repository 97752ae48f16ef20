# SPDX-License-Identifier: Apache-2.0
"""Records a process by the options of a command, and writes its files."""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, get_args

from gpuscope.arguments import OPERATOR_OPTIONS, Graphs, Mode
from gpuscope.cli.ends import own_imports
from gpuscope.cli.export import Outputs
from gpuscope.cli.options import add_counters, add_device_samples, seconds
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument
from gpuscope.text import brief

if TYPE_CHECKING:
    from gpuscope.profiler import Schedule, profile
    from gpuscope.recording import Analyses

# Options of the commands with the names and values of profile().
_OF_PROFILE = ("mode", "graphs", "sync", "python_samples", "counters", "device_samples", *OPERATOR_OPTIONS)


def add_recorded(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the events to record."""
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
    for option, words in OPERATOR_OPTIONS.items():
        what.add_argument(f"--{option.replace('_', '-')}", action="store_true", help=f"record {words}")


def recorded_words(options: argparse.Namespace) -> list[str]:
    """The words of a command line that give the options of `add_recorded` these values, without defaults."""
    parser = argparse.ArgumentParser(add_help=False)
    add_recorded(parser)
    words: list[str] = []
    for action in parser._actions:
        name, value = action.option_strings[0], getattr(options, action.dest)
        if value == action.default and type(value) is type(action.default):
            continue
        if action.nargs == 0:  # a switch
            words += [name] if value is action.const else []
        elif not isinstance(value, bool) and value is not None:
            text = ",".join(value) if isinstance(value, list) else value
            words.append(f"{name}={text:g}s" if action.type is seconds else f"{name}={text}")
    return words


class Recorder:
    """Records this process from `start` to `stop`. Each recorded window is written as it is ready.

    Attributes:
        outputs: the files.
        complaints: files not written and events not recorded, a sentence each.
        windows: how many were recorded.
        failed: a file could not be written.
    """

    def __init__(self, outputs: Outputs, options: argparse.Namespace) -> None:
        self.outputs = outputs
        self.complaints: list[str] = []
        self.windows = 0
        self.failed = False
        self._options = options
        self.profiler = _profiler(options, self)

    def __call__(self, results: Analyses) -> None:
        """Writes the files of one window."""
        self.windows += 1
        with own_imports():
            errors = self.outputs.write(results)
            kept = self.outputs.keep(results) if errors else None
        self.complaints += [f"the recording could not be written: {error}" for error in errors]
        self.failed = self.failed or bool(errors)
        if kept is not None:
            self.complaints.append(f"the recording is kept in {kept}")

    def stop(self) -> None:
        """Ends the recording, which may write one more window."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", GpuscopeWarning)
            self.profiler.stop()
        self.complaints += [str(warning.message) for warning in said]

    def resume(self) -> None:
        """Resumes the recording; with a schedule a new one begins."""
        if not self._options.schedule:
            self.outputs.write_again()
        self.complaints = ["the program could not become another one: it continued, and so did the recording"]
        try:
            self.profiler._resume(as_one=not self._options.schedule)
        except GpuscopeError as error:
            self.complaints = [f"the program could not become another one, and its recording did not continue: {error}"]


def _profiler(options: argparse.Namespace, recorder: Recorder) -> profile:
    from gpuscope.profiler import profile

    limits = {"max_bytes": options.max_memory, "ring_seconds": options.ring_seconds}
    if getattr(options, "spool", None):
        limits |= {"path": options.spool, "spool": True, "spool_bytes": options.spool_bytes}
    return profile(
        activities=_activities(options.activities),
        schedule=_schedule(options.schedule),
        on_trace_ready=recorder,
        counter_interval_us=1e6 * options.counter_interval,
        **{name: getattr(options, name) for name in _OF_PROFILE},
        **{name: value for name, value in limits.items() if value is not None},
    )


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
        except ValueError:  # Python reads no numbers with thousands of digits
            raise InvalidArgument(f"--schedule contains {brief(item)}, a number with too many digits") from None
    if "active" not in numbers:
        raise InvalidArgument(f"--schedule is {brief(text)}; it must say how many steps are active, as active=3")
    return schedule(**numbers)
