# SPDX-License-Identifier: Apache-2.0
"""``gpuscope monitor``: the state of the GPUs, as a page, as rows, or as JSON."""

from __future__ import annotations

import argparse
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

from gpuscope import _core
from gpuscope.arguments import type_of_option
from gpuscope.cli import console
from gpuscope.cli import options as options_of
from gpuscope.cli.console import Console
from gpuscope.cli.ends import ENDING, ended_by_signals
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument, NotAvailable
from gpuscope.monitor.gpu_monitor import LONGEST, SHORTEST, GPUMonitor
from gpuscope.monitor.host import HostState, host_snapshot
from gpuscope.monitor.layout import FirstFrame, Look
from gpuscope.monitor.lines import csv_line, json_line
from gpuscope.monitor.log import SUFFIXES, read_log
from gpuscope.monitor.processes import BY_CPU, LEAST_S, ProcessReader, ProcessRow, process_lines, sorted_rows
from gpuscope.monitor.programs import programs
from gpuscope.monitor.rows import SampleRows
from gpuscope.monitor.sample import GpuSample
from gpuscope.monitor.schema import COLUMNS
from gpuscope.monitor.snapshot import gpu_snapshot
from gpuscope.paths import as_path
from gpuscope.results import json_text
from gpuscope.text import brief
from gpuscope.units import format_share, parse_seconds

_INTERVAL_S = 1.0
_INTERVAL_OF_PAGE_S = 0.5
_LONGEST_SLEEP_S = 0.05  # between checks for samples: the longest delay of a row
_COLUMNS = 80  # of a snapshot


def _interval(text: str) -> float:
    seconds = parse_seconds(text)
    if not SHORTEST <= seconds <= LONGEST:
        raise InvalidArgument(f"{brief(text)} is not between {SHORTEST * 1e3:.0f}ms and {LONGEST / 60:.0f}min")
    return seconds


class Monitor:
    """Watches, or shows a log again."""

    description = (
        "On a terminal a page: what each GPU is used for, what holds it back, memory, power, links, processes and the\n"
        "host. Elsewhere, as in a pipe, a row for each GPU and moment. Ctrl-C ends it. On a machine without a GPU the\n"
        "host and your processes are shown. A log of GPUMonitor or of --log is shown again the same way, and so is a\n"
        "recording with samples of GPUs (gpuscope run --device-samples 100ms)."
    )
    examples = (
        "  gpuscope monitor                               the page; ? shows its keys\n"
        "  gpuscope monitor --once                        the current state, and end\n"
        "  gpuscope monitor --once --json | jq '.gpus[0].power_w'\n"
        "  gpuscope monitor --interval 100ms | tee gpus   rows\n"
        "  gpuscope monitor --csv --count 60 > gpu.csv    the columns of GPUMonitor's logs\n"
        "  gpuscope monitor --log gpu.parquet             the page, and a log beside it\n"
        "  gpuscope monitor gpu.csv                       a log again, with pause and scroll\n"
        "  gpuscope monitor --prometheus 9400 --log gpu.jsonl > /dev/null"
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("file", nargs="?", metavar="FILE", help=f"a log to show again: {', '.join(SUFFIXES)}")
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="an object for each GPU and moment, a line each")
        form.add_argument("--csv", action="store_true", help="the columns of a .csv log")
        form.add_argument("--rows", action="store_true", help="rows on a terminal too")
        parser.add_argument("--once", action="store_true", help="show the current state, and end")
        parser.add_argument(
            "--interval",
            type=type_of_option(_interval),
            metavar="TIME",
            help="between samples, 10ms to 60min (default: 1s, of the page 500ms)",
        )
        parser.add_argument(
            "--count", type=options_of.positive, metavar="N", help="end after N moments; not for the page"
        )
        parser.add_argument("--log", metavar="FILE", help="append the samples to this file too")
        parser.add_argument(
            "--prometheus", type=_port, metavar="PORT", help="serve the figures on localhost, for Prometheus"
        )
        parser.add_argument(
            "--names",
            choices=("gpuscope", "dcgm"),
            help="whose names, labels and units they have there: dcgm-exporter's, for boards that exist",
        )
        parser.add_argument(
            "--board", metavar="FOLDER", help="write a Grafana board and alert rules for these figures there, and end"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Watches."""
        if options.names is not None and options.prometheus is None:
            raise InvalidArgument("--names is of what --prometheus PORT serves; give both, or neither")
        if options.once and options.prometheus is not None:
            raise InvalidArgument("--prometheus serves until Ctrl-C, and --once ends at once; leave one out")
        out = console.output()
        if options.board is not None:
            from gpuscope.monitor.prometheus import board_paths, write_board

            folder = as_path(options.board)
            options_of.writable_paths([str(path) for path in board_paths(folder)])
            for path in write_board(folder):
                out.wrote(path)
            return 0
        samples = None if options.file is None else _recorded(options)
        options_of.writable_paths([options.log], SUFFIXES)
        if options.once:
            return _show_once(options, out, samples)
        form = options.json or options.csv or options.rows
        if out.on_terminal and _is_on_terminal() and not form and not options.count:
            return _show_page(options, samples)
        write = _writer(options, out)
        if samples is not None:
            for sample in _first_moments(samples, options.count):
                write([sample])
            return 0
        with _running(options, options.interval or _INTERVAL_S) as monitor:
            _tell_of_no_gpu(monitor)
            told = False
            for batch in _moments(monitor, options.count):
                write(batch)
                if sys.stdout is not None:
                    sys.stdout.flush()
                if (error := monitor.error) and not told:
                    console.errors().note(f"the samples wait for their log: {error}")
                    told = True
        return 0


def _is_on_terminal() -> bool:
    """Whether keys come from a terminal, and Textual can draw on standard error."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _port(text: str) -> int:
    number = options_of.positive(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no port; accepted are 1 to 65535")
    return number


def _recorded(options: argparse.Namespace) -> Sequence[GpuSample]:
    for name in ("interval", "log", "prometheus"):
        if getattr(options, name) is not None:
            raise InvalidArgument(f"--{name} is of samples that are taken, and {options.file} has been; leave one out")
    recording = read_log(options.file)
    if recording.damaged:
        console.errors().note(f"{recording.damaged} lines of {options.file} were cut or damaged, and left out")
    return recording.samples


@contextmanager
def _running(options: argparse.Namespace, interval: float) -> Iterator[GPUMonitor]:
    """A monitor that runs, with its log and its server.

    Raises:
        GpuscopeError: the log could not be written; raised at the end.
    """
    monitor = GPUMonitor(options.log, interval)
    with ended_by_signals():
        try:
            with ExitStack() as open_things:
                open_things.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", GpuscopeWarning)  # which are reported here
                open_things.enter_context(monitor)
                if options.prometheus is not None:
                    from gpuscope.monitor.prometheus import serve

                    open_things.enter_context(serve(monitor, options.prometheus, options.names or "gpuscope"))
                yield monitor
        finally:
            if monitor.hangs:
                console.errors().note(monitor.hangs)
            if monitor.error:
                raise GpuscopeError(monitor.error)


def _tell_of_no_gpu(monitor: GPUMonitor) -> None:
    if monitor.why:
        console.errors().note(f"no GPU: {monitor.why}; what follows is of the host")


def _moments(monitor: GPUMonitor, count: int | None) -> Iterator[list[GpuSample]]:
    """Samples as they come, of `count` moments if given."""
    first: int | None = None
    moments = taken_ns = 0
    while True:
        is_last = count is not None and monitor.cost.rounds >= count  # their samples are available by now
        batch: list[GpuSample] = []
        for sample in monitor.take():
            index = _index(sample)
            first = index if first is None else first
            moments += index == first
            if count is not None and moments > count:
                yield batch
                return
            batch.append(sample)
            taken_ns = sample.time_ns
        if batch:
            yield batch
        if is_last:
            return
        # Without a GPU a round has one sample, and then none until the next interval.
        next_s = (taken_ns - _core.now_ns()) / 1e9 + monitor.interval if monitor.why and taken_ns else 0.0
        threading.Event().wait(max(next_s, min(_LONGEST_SLEEP_S, monitor.interval)))


def _first_moments(samples: Sequence[GpuSample], count: int | None) -> Iterator[GpuSample]:
    """The samples of a log's first `count` moments; all if None."""
    moments = 0
    for sample in samples:
        moments += _index(sample) == _index(samples[0])
        if count is not None and moments > count:
            return
        yield sample


def _index(sample: GpuSample) -> int:
    return -1 if sample.gpu is None else sample.gpu.index


def _writer(
    options: argparse.Namespace, out: Console, before: Iterable[GpuSample] = ()
) -> Callable[[Iterable[GpuSample]], None]:
    """A function that writes samples in the requested form; `before` are earlier samples, which are not written."""
    if options.csv:
        out.line(",".join(COLUMNS))
    rows = SampleRows(before, None if options.file else ProcessReader().busiest)
    why: dict[int, Mapping[str, str]] = {}

    def write(samples: Iterable[GpuSample]) -> None:
        if options.json:
            lines: Iterable[str] = (json_line(sample, why) for sample in samples)
        elif options.csv:
            lines = map(csv_line, samples)
        else:
            lines = rows.lines(samples)
        show = out.line if options.json or options.csv else out.sentence
        for line in lines:
            show(line.rstrip("\n"))

    return write


def _show_once(options: argparse.Namespace, out: Console, samples: Sequence[GpuSample] | None) -> int:
    """Shows the current state, or the last moment of a log."""
    if samples is not None:
        latest = {_index(sample): place for place, sample in enumerate(samples)}
        last = {*latest.values()}
        before = (sample for place, sample in enumerate(samples) if place not in last)
        _writer(options, out, before)(samples[place] for place in latest.values())
        return 0
    if not options.csv and options.log is None:
        _show_snapshot(options, out)
        return 0
    with _running(options, _INTERVAL_S) as monitor:
        if options.csv:
            write = _writer(options, out)
            _tell_of_no_gpu(monitor)
            for batch in _moments(monitor, 1):
                write(batch)
        else:
            _show_snapshot(options, out)
            for _ in _moments(monitor, 1):
                pass  # the log has it
    return 0


def _show_snapshot(options: argparse.Namespace, out: Console) -> None:
    snapshot, host, running = gpu_snapshot(), host_snapshot(), programs()
    busy, rows = ("", []) if snapshot.gpus else _work_of_host(host)
    if options.json:
        facts = snapshot.to_dict() | {"host": asdict(host), "programs": [*map(asdict, running)]}
        names = ("cpu_ratio", "resident_bytes", "age_s", "parent")
        processes = [asdict(row.process) | {name: getattr(row, name) for name in names} for row in rows]
        out.line(json_text(facts if snapshot.gpus else facts | {"processes": processes}))
        return
    lines = [str(snapshot), f"{host}{busy}"]
    lines += [textwrap.fill(f"program: {program}", _COLUMNS, subsequent_indent="  ") for program in running]
    table = process_lines([(0, row) for row in rows], _COLUMNS, sort=BY_CPU) if rows else []
    lines += ["".join(text for text, _ in line).rstrip() for line in table]
    out.report("\n".join(lines))


def _work_of_host(host: HostState) -> tuple[str, list[ProcessRow]]:
    """The CPU load over the next half second, and the user's processes, the busiest first."""
    reader, began_ns = ProcessReader(), _core.monotonic_ns()
    reader.of_user()
    threading.Event().wait(LEAST_S)
    spent_s, passed_s = host_snapshot().machine_cpu_s, (_core.monotonic_ns() - began_ns) / 1e9
    rows = sorted_rows(reader.of_user(LEAST_S), BY_CPU)
    if spent_s is None or host.machine_cpu_s is None or not host.machine_cpus:
        return "", rows
    share = (spent_s - host.machine_cpu_s) / passed_s / host.machine_cpus
    return f", CPUs {format_share(min(1.0, share))} busy", rows


def _show_page(options: argparse.Namespace, samples: Sequence[GpuSample] | None) -> int:
    if samples is not None:
        _page()(None, samples)
        return 0
    with ExitStack() as open_things:
        with FirstFrame() as first:
            monitor = open_things.enter_context(_running(options, options.interval or _INTERVAL_OF_PAGE_S))
            look = Look.of_last_time()
            samples = first.draw(monitor, look)
            show = _page()
        show(monitor, samples, look, ENDING)
    return 0


def _page() -> Callable[..., None]:
    """The function that shows the page: its import takes some 0.3 s."""
    try:
        from gpuscope.monitor.page import show
    except ImportError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise NotAvailable(
            "the page of gpuscope monitor is not available: textual is not installed; "
            "pip install textual, or gpuscope monitor --rows"
        ) from None
    return show
