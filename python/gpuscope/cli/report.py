# SPDX-License-Identifier: Apache-2.0
"""The text of a recording, its origin, table, tree and verdict, and ``gpuscope report``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuscope.cli import console
from gpuscope.cli.children import show_processes
from gpuscope.cli.console import Console
from gpuscope.cli.export import (
    add_recording,
    choose_recording,
    exit_code,
    open_pages,
    open_recording,
    recordings_of,
)
from gpuscope.cli.options import PAGE_SUFFIXES, check_apart, positive, writable_paths
from gpuscope.errors import NotAvailable
from gpuscope.text import one_line, wrapped
from gpuscope.units import format_date

if TYPE_CHECKING:
    from gpuscope.analysis import Audit, Averages
    from gpuscope.analysis.terminal import Line
    from gpuscope.recording import Analyses

_SCREEN = 40  # lines of a report at most
_AROUND = 14  # lines outside the table and the functions
_MOST_ROWS = 25  # of the table
_MOST_ROWS_BESIDE = (10, 12)  # of the table next to functions: without and with GPU work
_LEAST_ROWS = 10  # of functions

_TIERS = {
    "cupti": "CUPTI tracing",
    "cupti-shared": "CUPTI tracing beside torch.profiler",
    "events": "CUDA events",
    "cpu": "CPU only",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose the parts to show."""
    group = parser.add_argument_group("what is shown")
    group.add_argument("--sort-by", metavar="KEY", help="column that orders the table, as device_time_total")
    group.add_argument(
        "--row-limit", metavar="N", type=positive, help="rows of the table at most (default: what fits on a screen)"
    )
    group.add_argument("--group-by-input-shape", action="store_true", help="a row for each shape of operators' inputs")
    group.add_argument(
        "--group-by-stack-n", metavar="N", type=positive, default=0, help="a row for each N innermost frames"
    )
    group.add_argument("--wide", action="store_true", help="every column, with names cut at 55 characters at most")
    group.add_argument("--no-table", action="store_true", help="leave the table out")
    group.add_argument("--tree", action="store_true", help="the call tree too, and every sampled function")
    group.add_argument("--no-functions", action="store_true", help="leave the sampled Python functions out")
    group.add_argument("--steps", action="store_true", help="each GPU's work in a step, and why it was idle")
    group.add_argument("--max-depth", metavar="N", type=positive, help="levels of the trees (default: all)")
    group.add_argument("--audit", action="store_true", help="notes, and every count behind the verdict")


def check(options: argparse.Namespace) -> None:
    """Raises InvalidArgument for an unknown sort key, before time is spent on the table."""
    if options.sort_by is not None:
        from gpuscope.analysis import EventList

        EventList[Any]().sorted_by(options.sort_by)


def show_origin(results: Analyses, out: Console) -> None:
    """Shows what ran, when, for how long, where, and how it was recorded."""
    from gpuscope.trace import command_line, metadata_of, number_of

    info = results.trace.info
    start_ns, stop_ns = (number_of(info, f"session.{end}_ns") for end in ("start", "stop"))
    when = format_date(start_ns) or "unknown"
    versions = [
        f"{name} {version}"
        for name, version in (
            ("driver", info.get("cuda.driver_version")),
            ("CUPTI", info.get("cupti.version")),
            ("gpuscope", info.get("gpuscope.version")),
        )
        if version
    ]
    rows = (
        ("program", command_line(info) or "unknown"),
        ("when", f"{when}, for {_duration(stop_ns - start_ns)}"),
        ("where", ", ".join(filter(None, (info.get("process.host"), *_devices(results))))),
        ("how", ", ".join(filter(None, (*_how(info), *versions)))),
        ("with", ", ".join(_extras(results))),
        ("metadata", metadata_of(info)),
    )
    for name, text in rows:
        if text:
            first, *rest = wrapped(one_line(text), max(20, _width(out) - 9)) or [""]
            out.line((f"{name:<9}", "dim"), first)
            for line in rest:
                out.line(" " * 9, line)
    out.line()


def show_summary(results: Analyses, out: Console) -> None:
    """Shows in one line how long was recorded, and how."""
    from gpuscope.trace import number_of

    info = results.trace.info
    elapsed_ns = number_of(info, "session.stop_ns") - number_of(info, "session.start_ns")
    how = ", ".join(_how(info))
    out.sentence(("gpuscope", "bold"), f"  recorded {_duration(elapsed_ns)}", (f"  {how}", "dim"))
    out.line()


def show(results: Analyses, options: argparse.Namespace, out: Console) -> None:
    """Shows the parts that the options select, and the verdict under them. Without options they fit on a screen.

    Without GPU work the functions come first: they say more of the host than the table.
    """
    has_functions = not options.no_functions and len(results.trace.python_samples) > 0
    table, has_device = [], False
    if not options.no_table:
        events = results.key_averages(
            group_by_input_shape=options.group_by_input_shape, group_by_stack_n=options.group_by_stack_n
        )
        has_device = events.has_device
        row_limit = options.row_limit or (_MOST_ROWS_BESIDE[has_device] if has_functions else _MOST_ROWS)
        table = list(_table(results, events, out, options.sort_by, row_limit, options.wide))
        table += _missing(results, options)
    functions = _functions(results, options, out, _SCREEN - _AROUND - len(table)) if has_functions else []
    for lines in (table, functions) if has_device else (functions, table):
        _show_lines(lines, out, out.line if options.wide and lines is table else out.sentence)
    if options.tree:
        show_tree(results, out, max_depth=options.max_depth)
    if options.steps:
        show_steps(results, out)
    if len(results.trace.counter_samples):
        show_counters(results, out)
    elif why := results.trace.info.get("counters.why"):
        out.note(f"hardware counters were not sampled: {why}")
    show_audit(results.audit(), out, details=options.audit)


def _show_lines(lines: Sequence[Line], out: Console, write: Callable[..., None]) -> None:
    for parts in lines:
        write(*parts)
    if lines:
        out.line()


def show_steps(results: Analyses, out: Console) -> None:
    """Shows each GPU's work in a step, or why the recording does not contain it."""
    try:
        text = results.step_breakdown().table(out.width and max(40, out.width))
    except NotAvailable as error:
        text = str(error)
    for line in text.split("\n"):
        out.sentence(line)
    out.line()


def show_counters(results: Analyses, out: Console) -> None:
    """Shows the hardware counters of regions and kernels."""
    for line in str(results.counters()).split("\n"):
        out.sentence(line)
    out.line()


def show_table(results: Analyses, out: Console) -> None:
    """Shows one row per name, the longest first, with the most important columns that fit."""
    _show_lines(list(_table(results, results.key_averages(), out, None, _MOST_ROWS, False)), out, out.line)


def _table(
    results: Analyses, events: Averages, out: Console, sort_by: str | None, row_limit: int, wide: bool
) -> Iterator[Line]:
    from gpuscope.analysis.terminal import averages_lines

    if [event.kind for event in events] == ["outside"]:  # only the functions have data
        return
    if not events:
        yield ("no region, driver call or GPU work was recorded",)
    elif wide:
        yield from _all_columns(events, sort_by, row_limit)
    else:
        width, unicode = _width(out), out.unicode
        yield from averages_lines(results.trace, events, width, sort_by=sort_by, row_limit=row_limit, unicode=unicode)


def _missing(results: Analyses, options: argparse.Namespace) -> Iterator[Line]:
    """Notes on unrecorded details that rows should be grouped by."""
    extras = _extras(results)
    wanted = (
        (options.group_by_input_shape, "shapes", "--record-shapes"),
        (options.group_by_stack_n, "stacks", "--with-stack"),
    )
    for is_wanted, what, option in wanted:
        if is_wanted and what not in extras:
            yield ((f"no {what} were recorded to group by: gpuscope run {option}", "dim"),)


def _all_columns(events: Averages, sort_by: str | None, row_limit: int) -> Iterator[Line]:
    """torch.profiler's table at full width."""
    default = "device_time_total" if events.has_device else "cpu_time_total"
    events.note = ""  # `_missing` names the command's options
    # The verdict is shown below everything.
    table = events.table(sort_by=sort_by or default, row_limit=row_limit).replace(events.verdict, "")
    for line in table.rstrip("\n").split("\n"):
        yield ((line, "dim" if not line.strip("- ") else ""),)
    if len(events) > row_limit:
        yield ((f"{len(events) - row_limit} more rows: --row-limit {len(events)}", "dim"),)


def show_tree(results: Analyses, out: Console, *, max_depth: int | None = None) -> None:
    """Shows the nested regions with the GPU work launched in each."""
    from gpuscope.analysis.terminal import tree_table

    tree = results.tree()
    if not tree.root.children:
        return
    for parts in tree_table(tree, _width(out), max_depth=max_depth, unicode=out.unicode):
        out.line(*parts)
    out.line()


def _functions(results: Analyses, options: argparse.Namespace, out: Console, most_rows: int) -> list[Line]:
    """The Python functions as a call tree: the program's own, or all with --tree or --max-depth."""
    from gpuscope.analysis.program_tree import ProgramTree

    width = max(40, min(140, out.width or 140))
    if options.tree or options.max_depth:
        text = results.samples().render(max_depth=options.max_depth, width=width)
    else:
        text = ProgramTree(results.trace).render(max(_LEAST_ROWS, most_rows), width)
    return [((line, "dim" if number < 2 else ""),) for number, line in enumerate(text.rstrip("\n").split("\n"))]


def show_audit(audit: Audit, out: Console, *, details: bool = False) -> None:
    """Shows in one line whether the recording is complete; `details` adds every note and count."""
    style = "green" if audit.complete else "bold red"
    if not details:
        out.sentence((audit.brief, style), (": --audit" if audit.remarks else "", "dim"))
        return
    verdict, *lines = str(audit).split("\n")
    out.sentence((verdict, style))
    for line in lines:
        out.sentence((line, "dim"))


def _width(out: Console) -> int:
    from gpuscope.analysis.terminal import NO_TERMINAL

    return out.width or NO_TERMINAL


def _duration(elapsed_ns: int) -> str:
    """A time in its largest unit: "2 us"."""
    units = (("s", 10**9), ("ms", 10**6), ("us", 10**3))
    unit, length = next((pair for pair in units if elapsed_ns >= pair[1]), ("ns", 1))
    digits = ".3g" if elapsed_ns < 1000 * length else ",.0f"
    return f"{elapsed_ns / length:{digits}} {unit}"


def _how(info: Mapping[str, str]) -> list[str]:
    tier = info.get("session.tier", "")
    return [f"{info.get('session.mode', 'full')} mode", _TIERS.get(tier, tier)]


def _extras(results: Analyses) -> list[str]:
    """Recorded details of operators and calls other than time."""
    from gpuscope.trace import NONE

    trace = results.trace
    there = {
        "shapes": bool((trace.details.shapes != NONE).any()),
        "stacks": len(trace.stacks) > 0,
        "memory": len(trace.memory) > 0,
        "hardware counters": len(trace.counter_samples) > 0,
        "samples of Python": len(trace.python_samples) > 0,
    }
    return [name for name, is_there in there.items() if is_there]


def _devices(results: Analyses) -> list[str]:
    trace = results.trace
    return [trace.string(int(name)) for name in trace.devices.name] if len(trace.devices) else []


def _stem(path: str) -> str:
    """The name of a recording without folder and suffix."""
    name = os.path.basename(path)
    return next(
        (name.removesuffix(suffix) for suffix in (".json.gz", ".json", ".gscope") if name.endswith(suffix)), name
    )


class Report:
    """Prints a .gscope file, or writes it as a page."""

    description = (
        "Prints a recording: what ran, when and where, the table, the tree, and whether anything is missing.\n"
        "With -o, writes it as one interactive HTML page instead, which needs no network."
    )
    examples = """\
  gpuscope report                                        the newest recording of this folder
  gpuscope report run/                                   a line for each process of gpuscope run --children -o run/
  gpuscope report train.gscope -o train.html             timeline, tables, tree, idle time, findings
  gpuscope report train.gscope --open                    the same, shown in the browser
  gpuscope report train.gscope --sort-by cpu_time_total --row-limit 50
  gpuscope report train.gscope --wide | less -S          every column of the table
  gpuscope report train.gscope --group-by-input-shape    recorded with --record-shapes
  gpuscope report train.gscope --group-by-stack-n 3      recorded with --with-stack
  gpuscope report train.gscope --no-table --tree --max-depth 3
  gpuscope report train.gscope --salvage                 the intact part of a damaged file"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        add_recording(parser)
        parser.add_argument("-o", "--output", metavar="FILE", help="write an interactive page, .html, instead")
        parser.add_argument("--open", action="store_true", help="write the page, to <recording>.html, and show it")
        add_options(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Reads and prints, or writes the page; the exit code is 3 if the file held only part of the recording."""
        check(options)
        choose_recording(options)
        page = options.output or (f"{_stem(options.recording)}.html" if options.open else None)
        if page is None and len(found := recordings_of(options.recording)) > 1:
            show_processes(found, console.output())
            return 0
        paths = writable_paths([page], PAGE_SUFFIXES)
        check_apart(paths, [options.recording])
        recording = open_recording(options, console.errors())
        if paths:
            with console.errors().working(f"writing {console.display(paths[0])}"):
                recording.report(paths[0])
            out = console.output(paths)
            out.line(console.display(paths[0]), (console.size_of(paths[0]), "dim"))
            if options.open:
                open_pages(paths)
            return exit_code(recording)
        out = console.output()
        show_origin(recording, out)
        show(recording, options, out)
        return exit_code(recording)
