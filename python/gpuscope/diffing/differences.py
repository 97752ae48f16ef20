# SPDX-License-Identifier: Apache-2.0
"""Compares recordings of two versions of a program, with intervals."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import plots
from gpuscope.analysis.completeness import audit
from gpuscope.arguments import check_count, check_fraction
from gpuscope.conditions import RECORDED
from gpuscope.diagnosis.diagnose import diagnose
from gpuscope.diagnosis.findings import Diagnosis
from gpuscope.diffing.changes import (
    ENOUGH_RUNS,
    LEAST_SHARED,
    NOT_COMPARABLE,
    ONE_RUN_MARGIN,
    RUN,
    STEP,
    Change,
    Differences,
    MedianStep,
    Side,
    is_windows,
    promises_of,
)
from gpuscope.diffing.costs import THE_STEP, Costs, compare_functions, costs_of, without_waits
from gpuscope.diffing.judging import ONE_RUN, changes_of, shares, tables_of_nodes, tables_of_steps
from gpuscope.diffing.page import render
from gpuscope.distributed import STARTED_BY
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.paths import write_text
from gpuscope.recording import Analyses, load
from gpuscope.results import Result, abstained, heading, import_pandas, plain_values
from gpuscope.steps.steps import Steps, as_passed, find_steps, steady_steps
from gpuscope.tables import GAP, align_columns
from gpuscope.targets import Target
from gpuscope.text import columns_of, one_line, shorten, wrapped
from gpuscope.threads import thread_pool
from gpuscope.trace import Trace, program_name
from gpuscope.units import format_digits, format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MARGIN = 0.02
"""Share of a node's own time below which a difference does not count; see also `ONE_RUN_MARGIN`."""

_MOST_UNCERTAIN = 4
_BEFORE, _AFTER, _CALLS = 2, 3, 5  # columns of the table
_LEAST_NAME = 24
_NARROWEST, _INDENT = 40, 2
_ROWS, _ROWS_OF_MARKDOWN, _MOST_MARKDOWN = 20, 10, 60_000  # GitHub takes 65,536 characters
_NS_PER_S = 1e9
_UNLIKE = (
    ("cuda.driver_version", "CUDA of the driver"),
    ("cupti.version", "CUPTI"),
    ("process.host", "host"),
    ("session.mode", "mode"),
    ("session.tier", "tier"),
    ("session.graphs", "graphs"),
    *RECORDED.items(),
    ("metadata.with_stack", "with_stack"),
    ("metadata.record_shapes", "record_shapes"),
    ("metadata.profile_memory", "profile_memory"),
    ("metadata.with_modules", "with_modules"),
    ("samples.interval_ns", "time between samples of Python"),
    ("samples.python", "Python of the samples"),
)

Recorded = Analyses | str | os.PathLike[str]


@dataclass(frozen=True, repr=False, eq=False)
class Diff(Differences, Result):
    """The differences between two versions of a program. ``print`` shows them."""

    def fails(self, fail_over: float) -> bool:
        """Whether a step or the run is certainly slower, and by more than this share.

        For single runs no difference below the margin is certain.

        Raises:
            InvalidArgument: `fail_over` is no fraction, or the recordings are not comparable or of different GPUs.
        """
        fail_over = check_fraction("fail_over", fail_over) if fail_over else 0.0
        if not self.is_comparable:
            raise InvalidArgument(f"fail_over is for versions of one program; {self.sentence}")
        gpus = [sentence for sentence in self.unlike if sentence.startswith("GPU")]
        if gpus:
            raise InvalidArgument(f"fail_over is for recordings of like GPUs; {gpus[0]}")
        least = max(fail_over, self.margin) if self.replicates == ONE_RUN else fail_over
        return self.step.interval_ns[0] > 0 and self.step.ratio - 1 > least

    def to_dict(self) -> dict[str, Any]:
        """Plain values, times in seconds per step or run."""
        sides = {
            name: {
                "program": side.program,
                "runs": side.runs,
                "steps": side.steps,
                "left_out": side.left_out,
                "source": side.source,
                "busy_s": side.busy_ns / _NS_PER_S,
                "incomplete": list(side.incomplete),
                "waited_s": side.waited_ns / _NS_PER_S,
                "recordings": list(side.recordings),
            }
            for name, side in (("before", self.before), ("after", self.after))
        }
        return {
            **heading("diff"),
            "abstained": abstained(self.abstentions),
            "verdict": self.verdict,
            "summary": self.sentence,
            "unit": self.unit,
            **sides,
            "step": self.step.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "nodes": [change.to_dict() for change in self.nodes],
            "unlike": list(self.unlike),
            "doubts": list(self.doubts),
            "matched": self.matched,
            "shared": self.shared,
            "not_compared": list(self.not_compared),
            "margin": self.margin,
            "replicates": self.replicates,
            "target": plain_values(self.target),
            "promises": [{**vars(each), "is_bound": each.saving is None} for each in self.promises],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per node; times in seconds per step or run.

        Raises:
            NotAvailable: pandas is not installed.
        """
        rows = [change.to_dict() for change in (self.step, *self.nodes)]
        for row in rows:
            row["path"] = "/".join(row["path"])
            row["low_s"], row["high_s"] = row.pop("interval_s")
        return import_pandas().DataFrame(rows)

    def plot(self, top: int = 15, ax: Axes | None = None) -> Axes:
        """One bar with its interval for the step and each changed node, the largest difference first.

        Args:
            top: most nodes to show; if no change is certain, the nodes with the largest differences.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: `top` is below 1.
        """
        shown = (self.step, *(self.changes or self.nodes)[: check_count("top", top, 1)])
        return plots.differences(
            [f"a {self.unit}", *(f"{each.kind}: {each.name}" for each in shown[1:])],
            [each.delta_ns / _NS_PER_S for each in shown],
            [(each.interval_ns[0] / _NS_PER_S, each.interval_ns[1] / _NS_PER_S) for each in shown],
            [each.verdict for each in shown],
            ax=ax,
            title=self.verdict
            if self.verdict in ("inconclusive", NOT_COMPARABLE)
            else f"a {self.unit} is {self.verdict}",
        )

    def table(self, row_limit: int = _ROWS, width: int | None = None) -> str:
        """The changed nodes, the largest difference first.

        Args:
            row_limit: most rows.
            width: most columns: names are cut in the middle; if that is not enough, calls and times are dropped.

        Raises:
            InvalidArgument: `row_limit` is below 1.
        """
        check_count("row_limit", row_limit, 1)
        rows = [(f"a {self.unit}", "", "before", "after", "", "calls", "what")]
        for change in self.changes[:row_limit]:
            calls = "" if not (change.count_before or change.count_after) else _calls(change)
            rows.append(
                (
                    _signed(change.delta_ns),
                    change.verdict,
                    _time(change.before_ns),
                    _time(change.after_ns),
                    _percent(change.ratio),
                    calls,
                    _what(change) + (f" (was {change.was})" if change.was else ""),
                )
            )
        numbers: list[tuple[str, ...]] = [row[:-1] for row in rows]
        if not any(row[_CALLS] for row in numbers[1:]):
            numbers = [row[:_CALLS] for row in numbers]
        names = [one_line(row[-1]) for row in rows]
        aligned = _padded(align_columns(numbers))
        if width is not None:
            for column in (_CALLS, _AFTER, _BEFORE)[len(numbers[0]) <= _CALLS :]:
                if width - len(aligned[0]) - len(GAP) >= min(_LEAST_NAME, max(map(columns_of, names))):
                    break
                numbers = [(*row[:column], *row[column + 1 :]) for row in numbers]
                aligned = _padded(align_columns(numbers))
            names = [shorten(name, max(1, width - len(aligned[0]) - len(GAP))) for name in names]
        lines = [f"{line}{GAP}{name}".rstrip() for line, name in zip(aligned, names, strict=True)]
        if len(self.changes) > row_limit:
            lines.append(f"{len(self.changes) - row_limit} more")
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """One line: the times of both sides and their difference."""
        step = self.step
        times = f"{_time(step.before_ns)} -> {_time(step.after_ns)}"
        low, high = (1 + end / step.before_ns if step.before_ns else math.inf for end in step.interval_ns)
        is_known = math.isfinite(low + high) and self.replicates != ONE_RUN
        around = f" ({_percent(low)} to {_percent(high)})" if is_known else ""
        if not self.is_comparable:
            what = f"functions, regions and kernels that both have take {format_share(self.shared)} of the time"
            return f"{NOT_COMPARABLE}: {what}; {format_share(LEAST_SHARED)} is the least"
        if self.unit == STEP:
            return f"a step {times}, {_percent(step.ratio)}{around}"
        if self.before.waited_ns or self.after.waited_ns:
            times += " without waits for a CPU"
        if self.verdict in ("slower", "faster"):
            return f"{step.times}: {times}{around}"
        return f"{self.verdict}: run time {times}, {_percent(step.ratio)}{around}"

    def head(self) -> list[str]:
        """Lines on the step or the run: its interval, its verdict and the largest change."""
        step, unit = self.step, self.unit
        program = self.after.program or self.before.program
        sides = " and ".join(
            f"{side.steps:,} {unit}{'s' * (side.steps != 1)}"
            f"{f' of {side.runs} runs' if side.runs > 1 and unit == STEP else ''} {name}"
            for name, side in (("before", self.before), ("after", self.after))
        )
        if self.before.program != self.after.program:
            program = f"{self.before.program or 'unknown'} and {self.after.program or 'unknown'}"
        about = f"{program}: {sides}".lstrip(": ")
        if not self.is_comparable:
            return [
                self.sentence,
                about,
                f"a {unit} takes {_time(step.before_ns)} before, {_time(step.after_ns)} after",
            ]
        if unit == STEP:
            lines = [f"{about}; steps are {self.after.source}", f"{self.sentence}: {step.verdict}"]
        else:
            lines = [self.sentence, about]
            if cause := self.cause:
                lines.insert(1, f"{_what(cause)} changed most: {_time(cause.before_ns)} -> {_time(cause.after_ns)}")
        lines += [str(self.target)] if self.target is not None else []
        if self.before.busy_ns or self.after.busy_ns:
            busy_ns = self.after.busy_ns - self.before.busy_ns
            lines.append(
                f"the busiest GPU works {_signed(busy_ns)} and idles {_signed(step.delta_ns - busy_ns)} a {unit}"
            )
        for promise in self.promises:
            got = f"a {unit} takes {_percent(step.ratio)}; it {promise.state}"
            lines.append(f"{promise.id} {promise.title}: promised {promise.worth}, {got}")
        return lines

    def page(self, width: int = 100, row_limit: int = _ROWS) -> str:
        """The text, in lines of at most `width` columns."""
        width = max(width, _NARROWEST)

        def fitted(text: str) -> str:
            return "\n".join(wrapped(one_line(text), width, _INDENT))

        lines = [fitted(line) for line in self.head()]
        if self.changes:
            lines += ["", self.table(row_limit, width)]
        elif self.nodes and self.is_comparable:
            lines += ["", fitted(f"no node changed by more than {format_share(self.margin)} with certainty")]
        if self.uncertain:
            listed = (f"{_what(each)} {_signed(each.delta_ns)}" for each in self.uncertain[:_MOST_UNCERTAIN])
            lines.append(fitted(f"not certain: {', '.join(listed)}"))
        lines += [fitted(f"not compared: {what}") for what in self.not_compared]
        lines += [""] + [fitted(f"note: {doubt}") for doubt in self.doubts]
        return "\n".join(lines).rstrip()

    def __str__(self) -> str:
        return self.page()

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One self-contained interactive page; also written to `path` if given.

        It contains the verdict with its caveats, the tree of nodes colored by difference, the median steps of both
        sides, and tables of all nodes.

        Raises:
            InvalidArgument: the path has another suffix than .html.
            GpuscopeError: the file cannot be written.
        """
        text = render(self, self.sentence.removeprefix(f"{self.verdict}: "))  # the page shows the verdict itself
        if path is not None:
            write_text(path, text, (".html", ".htm"))
        return text

    def markdown(self) -> str:
        """Text for a pull request: the verdict, ten rows, and folded further rows; below GitHub's limit."""
        title, *others = self.head()[self.unit == STEP and self.is_comparable :]
        lines = [f"**{one_line(title)}**", ""]
        lines += [html.escape(one_line(line)) for line in others]
        shown, folded = self.changes[:_ROWS_OF_MARKDOWN], self.changes[_ROWS_OF_MARKDOWN:]
        if shown:
            lines += ["", *_rows_of_markdown(shown, self.unit)]
        elif self.nodes and self.is_comparable:
            lines += ["", "No node changed with certainty."]
        lines += [f"Not compared: {html.escape(one_line(what))}" for what in self.not_compared]
        size = sum(map(len, lines))
        rest = []
        for row in _rows_of_markdown(folded, self.unit) if folded else ():
            size += len(row) + 1
            if size > _MOST_MARKDOWN - 2000:
                break
            rest.append(row)
        if rest:
            lines += ["", f"<details><summary>{len(folded)} more</summary>", "", *rest, "", "</details>"]
        notes = [f"* {html.escape(one_line(doubt))}" for doubt in self.doubts[:10]]
        return "\n".join([*lines, "", *notes]).rstrip() + "\n"


_MARKUP = frozenset("&<>|`*_[]~\\")  # special in GitHub's Markdown or HTML
_KINDS = {"gpu": "", "host": "host: ", "idle": "idle: ", "function": "", "step": "", "run": ""}


def diff(
    before: Recorded | Iterable[Recorded],
    after: Recorded | Iterable[Recorded],
    *,
    margin: float | None = None,
    findings: bool = True,
    target: str | None = None,
) -> Diff:
    """Compares recordings of two versions of a program, step by step and node by node.

    A node is a kernel or copy at its launch site, a region's or operator's own host time, or a cause of idle time. In
    runs, and in steps without GPU work, functions are nodes too. Times are means per step, so that differences add up.
    Intervals are Welch's over steps, corrected for autocorrelation; with three recordings or more on both sides, over
    runs. Of comparisons of equal programs, one in twenty reports any change (`gpuscope.stats.means.holm`).

    If a recording has no steps, whole runs are compared. Intervals of single runs are from the samples and from the
    calls of each region or kernel (`variance_of_samples` and `variance_of_sums` of `gpuscope.stats.means`); they do not
    include differences between runs.

    Args:
        before: a recording, a profiler or the path of a ``.gscope`` file, or several.
        after: likewise.
        margin: the share of a node's own time below which a difference does not count; None is 2 %, or 10 % for single
            runs.
        findings: also compare the diagnoses: which findings are gone, and the savings promised for them.
        target: goal for a step or run after: "20 ms" at most, "+30 %" faster than before, or "-20 %" of the time. It is
            judged by the interval of the difference, which is wider than that of the time after.

    Raises:
        InvalidArgument: `margin` is no fraction, or a side is empty.
        NotAvailable: a recording has only totals, or no time passed in it.
        GpuscopeError: a file cannot be read.
    """
    wanted = None if target is None else Target.of(target)
    given_traces = [_traces("before", before), _traces("after", after)]
    sides = [_programs(traces) for traces in given_traces]
    by_runs = min(map(len, sides)) >= ENOUGH_RUNS
    found_steps = [_steps(name, side) for name, side in zip(("before", "after"), sides, strict=True)]
    unit = RUN if any(is_windows(each.source) for side in found_steps for each in side) else STEP
    replicates = "runs" if by_runs else ONE_RUN if unit == RUN else "steps"
    usual = ONE_RUN_MARGIN if replicates == ONE_RUN else MARGIN
    margin = usual if margin is None else check_fraction("margin", margin)
    given = [list(zip(*side, strict=True)) for side in zip(sides, found_steps, strict=True)]
    with thread_pool(len(given)) as pool:
        costs = list(pool.map(lambda side: [costs_of(*each, is_run=unit == RUN) for each in side], given))
    costs = without_waits(_comparable(costs))
    others = sum(map(len, given_traces)) - sum(map(len, sides))
    not_compared = [f"{others} processes that the programs started: name one recording of each side"] if others else []
    if unit == RUN or not any(each.busy_ns.any() for side in costs for each in side):
        costs, why = compare_functions(costs)
        not_compared += [why] if why else []
    (step,) = changes_of(tables_of_steps(costs, unit, by_runs), margin, replicates)
    tables = tables_of_nodes(costs, by_runs)
    changes = changes_of(tables, margin, replicates)
    matched, shared = shares(tables, (step.before_ns, step.after_ns))
    if not changes:
        not_compared.append("what the time is spent on: no kernel, region or function was recorded")
    if shared < LEAST_SHARED:
        step, *changes = (replace(change, verdict=NOT_COMPARABLE) for change in (step, *changes))
    with thread_pool(len(sides)) as pool:
        found = list(pool.map(_diagnosis, sides)) if findings and shared >= LEAST_SHARED else []
    changes.sort(key=lambda change: (_rank(change), [-size for size in change.size_ns[_rank(change) != 1 :]]))
    return Diff(
        step=step,
        changes=tuple(change for change in changes if _rank(change) == 0),
        nodes=tuple(changes),
        before=_side(sides[0], found_steps[0], costs[0]),
        after=_side(sides[1], found_steps[1], costs[1]),
        unlike=tuple(_unlike(*sides)),
        matched=matched,
        margin=margin,
        promises=promises_of(*found) if found else (),
        replicates=replicates,
        medians=(_median(sides[0][0], found_steps[0][0]), _median(sides[1][0], found_steps[1][0])),
        unit=unit,
        shared=shared,
        not_compared=tuple(not_compared),
        target=wanted and _judged(wanted, step, margin if replicates == ONE_RUN else 0.0),
    )


def _judged(wanted: Target, step: Change, margin: float) -> Target:
    """Whether the time after meets the target. `margin`: usual difference of single runs, a share."""
    if step.verdict == NOT_COMPARABLE:
        return replace(wanted, why=NOT_COMPARABLE)
    before, doubt = step.before_ns / _NS_PER_S, margin * step.after_ns
    low, high = step.before_ns + step.interval_ns[0] - doubt, step.before_ns + step.interval_ns[1] + doubt
    return wanted.judged((max(low, 0.0) / _NS_PER_S, high / _NS_PER_S), (before, before, before))


def _rank(change: Change) -> int:
    """Sort key: certain changes first, then inconclusive ones, then the rest."""
    return {"inconclusive": 1, "same": 2, NOT_COMPARABLE: 2}.get(change.verdict, 0)


def _traces(name: str, given: Recorded | Iterable[Recorded]) -> list[Trace]:
    is_one = isinstance(given, (Analyses, str, os.PathLike))
    several: list[Any] = list(given) if isinstance(given, Iterable) and not is_one else [given]
    for each in several:
        if not isinstance(each, (Analyses, str, os.PathLike)):
            raise InvalidArgument(f"{name} has {type(each).__name__!r}; accepted are recordings, profilers and paths")
    if not several:
        raise InvalidArgument(f"{name} has no recording; accepted is at least one")
    return [each.trace if isinstance(each, Analyses) else load(each).trace for each in several]


def _programs(traces: list[Trace]) -> list[Trace]:
    """The traces without child processes; of a job only the ranks. All of them if nothing else is given."""
    programs = [each for each in traces if f"metadata.{STARTED_BY}" not in each.info]
    ranks = [each for each in programs if "process.rank" in each.info]
    return ranks or programs or traces


def _steps(name: str, traces: Sequence[Trace]) -> list[Steps]:
    try:
        return [find_steps(trace) for trace in traces]
    except NotAvailable as error:
        raise NotAvailable(f"{name}: {error}") from error


def _median(trace: Trace, steps: Steps) -> MedianStep:
    return MedianStep.of(trace, steady_steps(as_passed(trace, steps))[0])


def _comparable(sides: Sequence[Sequence[Costs]]) -> list[list[Costs]]:
    """Drops the time outside of regions unless all recordings have it (``step()`` makes no regions)."""
    if all(THE_STEP in each.nodes for side in sides for each in side):
        return [list(side) for side in sides]
    return [[each.without(THE_STEP) for each in side] for side in sides]


def _diagnosis(traces: Sequence[Trace]) -> Diagnosis:
    """The diagnosis of the first recording."""
    return diagnose(traces[0])


def _side(traces: Sequence[Trace], steps: Sequence[Steps], costs: Sequence[Costs]) -> Side:
    incomplete = dict.fromkeys(reason for trace in traces for reason in audit(trace).reasons)
    sources = [each.source for each in steps]
    return Side(
        program_name(traces[0].info),
        len(traces),
        sum(1 if each.is_run else len(each.steps) for each in costs),
        sum(each.left_out for each in costs),
        next(filter(is_windows, sources), sources[0]),
        float(np.mean([each.busy_ns.mean() for each in costs])),
        tuple(incomplete),
        float(np.mean([each.left_out_ns for each in costs])),
        tuple(trace.content_hash for trace in traces),
    )


def _unlike(*sides: Sequence[Trace]) -> Iterable[str]:
    """A sentence for each fact that differs between recordings."""
    facts = [("GPUs", [[_gpus(trace) for trace in side] for side in sides])]
    facts += [(what, [[_fact(trace, key) for trace in side] for side in sides]) for key, what in _UNLIKE]
    for what, values in facts:
        known = set().union(*values) - ({""} if what in RECORDED.values() else set())  # absent from older recordings
        if len(known) > 1:
            before, after = (" and ".join(dict.fromkeys(value or "not" for value in side)) for side in values)
            yield f"{what}: {before} before, {after} after"


def _fact(trace: Trace, key: str) -> str:
    value = trace.info.get(key, "")
    return _time(int(value)) if key.endswith("_ns") and value.isdecimal() else value


def _gpus(trace: Trace) -> str:
    return ", ".join(trace.string(name) for name in trace.devices.name.tolist()) or "none"


# -- text -------------------------------------------------------------------------------------------------------------
def _time(time_ns: float) -> str:
    return format_seconds(time_ns / _NS_PER_S)


def _signed(time_ns: float) -> str:
    return f"{'+' if time_ns >= 0 else '-'}{_time(abs(time_ns))}"


def _percent(ratio: float) -> str:
    if not math.isfinite(ratio):
        return ""
    return f"{100 * (ratio - 1):+.1f} %"


def _what(change: Change) -> str:
    return _KINDS[change.kind] + change.label


def _calls(change: Change) -> str:
    counts = (change.count_before, change.count_after)
    before, after = (f"{count:,.0f}" if abs(count - round(count)) < 0.005 else format_digits(count) for count in counts)
    return before if before == after else f"{before} -> {after}"


def _padded(lines: Sequence[str]) -> list[str]:
    width = max(map(len, lines))
    return [line.ljust(width) for line in lines]


def _rows_of_markdown(changes: Sequence[Change], unit: str) -> list[str]:
    lines = [f"| a {unit} | | before | after | calls | what |", "|---:|---|---:|---:|---:|---|"]
    for change in changes:
        name = shorten(one_line(change.label), 200)
        name = (
            html.escape(name).replace("|", "&#124;").replace("`", "&#96;").replace("*", "&#42;").replace("_", "&#95;")
        )
        cells = (
            f"{_signed(change.delta_ns)} {_percent(change.ratio)}",
            change.verdict,
            _time(change.before_ns),
            _time(change.after_ns),
            _calls(change) if change.count_before or change.count_after else "",
            f"{_KINDS[change.kind]}{name}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines
