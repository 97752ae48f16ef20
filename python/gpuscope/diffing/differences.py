# SPDX-License-Identifier: Apache-2.0
"""What changed between two versions of a program, and how sure that is."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import plots
from gpuscope.analysis.completeness import audit
from gpuscope.arguments import check_count, check_fraction
from gpuscope.beside import for_each
from gpuscope.diagnosis.diagnose import diagnose
from gpuscope.diagnosis.findings import Diagnosis
from gpuscope.diffing.changes import (
    ENOUGH_RUNS,
    LEAST_STEPS,
    NO_STEPS,
    Change,
    Differences,
    MedianStep,
    Side,
    is_windows,
    promises_of,
)
from gpuscope.diffing.costs import THE_STEP, Array, Costs, Node, costs_of, pair
from gpuscope.diffing.page import render
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.paths import write_text
from gpuscope.recording import Analyses, load
from gpuscope.results import Result, import_pandas
from gpuscope.stats.means import holm, welch
from gpuscope.text import columns_of, one_line, shorten, wrapped
from gpuscope.trace import Trace, program_name
from gpuscope.units import align_columns, format_digits, format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MARGIN = 0.02
"""Of a node's own time: what is less is the same."""
SURE = 0.95

_WORTH_A_TEST = 5e-4  # of a step, on either side: what is less would cost the others their certainty
_TICK_NS = 32.0  # of the GPU's clock, which values without any spread lie on
_MOST_UNCERTAIN = 4
_BEFORE, _AFTER, _CALLS = 2, 3, 5  # columns of the table
_GAP, _LEAST_NAME = "  ", 24
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
    ("metadata.with_stack", "with_stack"),
    ("metadata.record_shapes", "record_shapes"),
    ("metadata.profile_memory", "profile_memory"),
    ("metadata.with_modules", "with_modules"),
)

Recorded = Analyses | str | os.PathLike[str]


@dataclass(frozen=True, repr=False, eq=False)
class Diff(Differences, Result):
    """The difference; printing it shows it."""

    def fails(self, fail_over: float) -> bool:
        """Whether a step is surely slower, and by more than that share.

        Raises:
            InvalidArgument: `fail_over` is no fraction, or the recordings are of unlike GPUs.
            NotAvailable: they have no steps.
        """
        fail_over = check_fraction("fail_over", fail_over) if fail_over else 0.0
        if not self.has_steps:
            raise NotAvailable(f"fail_over is not available: {NO_STEPS}")
        gpus = [sentence for sentence in self.unlike if sentence.startswith("GPU")]
        if gpus:
            raise InvalidArgument(f"fail_over is for recordings of like GPUs; {gpus[0]}")
        return self.step.interval_ns[0] > 0 and self.step.ratio - 1 > fail_over

    def to_dict(self) -> dict[str, Any]:
        """Plain values, times in seconds a step."""
        sides = {
            name: {
                "program": side.program,
                "runs": side.runs,
                "steps": side.steps,
                "left_out": side.left_out,
                "source": side.source,
                "busy": side.busy_ns / _NS_PER_S,
                "incomplete": list(side.incomplete),
            }
            for name, side in (("before", self.before), ("after", self.after))
        }
        return {
            "verdict": self.verdict,
            **sides,
            "step": self.step.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "nodes": [change.to_dict() for change in self.nodes],
            "unlike": list(self.unlike),
            "doubts": list(self.doubts),
            "matched": self.matched,
            "margin": self.margin,
            "replicates": self.replicates,
            "promises": [vars(promise) for promise in self.promises],
        }

    def to_pandas(self) -> pd.DataFrame:
        """A row a node; times in seconds a step.

        Raises:
            NotAvailable: pandas is not installed.
        """
        rows = [change.to_dict() for change in (self.step, *self.nodes)]
        for row in rows:
            row["path"] = "/".join(row["path"])
            row["low"], row["high"] = row.pop("interval")
        return import_pandas().DataFrame(rows)

    def plot(self, top: int = 15, ax: Axes | None = None) -> Axes:
        """What changed, a bar each with its interval, the largest difference first; the step on top.

        Args:
            top: so many nodes at most; where nothing changed surely, those with the largest difference.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: `top` is below 1.
        """
        shown = (self.step, *(self.changes or self.nodes)[: check_count("top", top, 1)])
        return plots.differences(
            ["a step", *(f"{each.kind}: {each.name}" for each in shown[1:])],
            [each.delta_ns / _NS_PER_S for each in shown],
            [(each.interval_ns[0] / _NS_PER_S, each.interval_ns[1] / _NS_PER_S) for each in shown],
            [each.verdict for each in shown],
            ax=ax,
            title=f"a step is {self.verdict}" if self.verdict != "inconclusive" else "inconclusive",
        )

    def table(self, row_limit: int = _ROWS, width: int | None = None) -> str:
        """What changed, the largest difference first.

        Args:
            row_limit: rows at most.
            width: columns at most: names are cut in the middle; calls and times are left out where that is not enough.

        Raises:
            InvalidArgument: `row_limit` is below 1.
        """
        check_count("row_limit", row_limit, 1)
        rows = [("a step", "", "before", "after", "", "calls", "what")]
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
        names = [one_line(row[-1]) for row in rows]
        aligned = _padded(align_columns(numbers))
        if width is not None:
            for column in (_CALLS, _AFTER, _BEFORE):
                if width - len(aligned[0]) - len(_GAP) >= min(_LEAST_NAME, max(map(columns_of, names))):
                    break
                numbers = [(*row[:column], *row[column + 1 :]) for row in numbers]
                aligned = _padded(align_columns(numbers))
            names = [shorten(name, max(1, width - len(aligned[0]) - len(_GAP))) for name in names]
        lines = [f"{line}{_GAP}{name}".rstrip() for line, name in zip(aligned, names, strict=True)]
        if len(self.changes) > row_limit:
            lines.append(f"{len(self.changes) - row_limit} more")
        return "\n".join(lines)

    def head(self) -> list[str]:
        """The step, its interval and its verdict; where the time went."""
        step = self.step
        program = self.after.program or self.before.program
        sides = " and ".join(
            f"{side.steps:,} step{'s' * (side.steps != 1)}{f' of {side.runs} runs' if side.runs > 1 else ''} {name}"
            for name, side in (("before", self.before), ("after", self.after))
        )
        lines = [f"{program}: {sides}; steps are {self.after.source}".lstrip(": ")]
        low, high = (1 + end / step.before_ns if step.before_ns else math.inf for end in step.interval_ns)
        around = f" ({_percent(low)} to {_percent(high)})" if math.isfinite(low + high) else ""
        lines.append(
            f"a step {_time(step.before_ns)} -> {_time(step.after_ns)}, {_percent(step.ratio)}{around}: {step.verdict}"
        )
        if self.before.busy_ns or self.after.busy_ns:
            busy_ns = self.after.busy_ns - self.before.busy_ns
            lines.append(
                f"the busiest GPU works {_signed(busy_ns)} and idles {_signed(step.delta_ns - busy_ns)} a step"
            )
        for promise in self.promises:
            got = f"a step takes {_percent(step.ratio)}; it {promise.state}"
            lines.append(f"{promise.id} {promise.title}: promised {promise.worth}, {got}")
        return lines

    def page(self, width: int = 100, row_limit: int = _ROWS) -> str:
        """The text, in lines of at most so many columns."""
        width = max(width, _NARROWEST)

        def fitted(text: str) -> str:
            return "\n".join(wrapped(one_line(text), width, _INDENT))

        lines = [fitted(line) for line in self.head()]
        if self.changes:
            lines += ["", self.table(row_limit, width)]
        else:
            lines += ["", fitted(f"no node changed by more than {format_share(self.margin)}, as far as can be told")]
        if self.uncertain:
            listed = (f"{_what(each)} {_signed(each.delta_ns)}" for each in self.uncertain[:_MOST_UNCERTAIN])
            lines.append(fitted(f"not certain: {', '.join(listed)}"))
        lines += [""] + [fitted(f"note: {doubt}") for doubt in self.doubts]
        return "\n".join(lines).rstrip()

    def __str__(self) -> str:
        return self.page()

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One interactive page that needs nothing but a browser; also written to `path` when one is given.

        It has the verdict and what to know before believing it, the tree of nodes in the colors of their differences,
        the median step of both sides over each other, and tables of all nodes.

        Raises:
            InvalidArgument: the path has another suffix than .html.
            GpuscopeError: the file cannot be written.
        """
        text = render(self, self.head()[1].removesuffix(f": {self.verdict}"))  # which stands before it
        if path is not None:
            write_text(path, text, (".html", ".htm"))
        return text

    def markdown(self) -> str:
        """For a comment on a pull request: the verdict, ten rows, the rest folded away; below GitHub's limit."""
        lines = [f"**{one_line(self.head()[1])}**", ""]
        lines += [html.escape(one_line(line)) for line in self.head()[2:]]
        shown, folded = self.changes[:_ROWS_OF_MARKDOWN], self.changes[_ROWS_OF_MARKDOWN:]
        lines += ["", *_rows_of_markdown(shown)] if shown else ["", "No node changed, as far as can be told."]
        size = sum(map(len, lines))
        rest = []
        for row in _rows_of_markdown(folded) if folded else ():
            size += len(row) + 1
            if size > _MOST_MARKDOWN - 2000:
                break
            rest.append(row)
        if rest:
            lines += ["", f"<details><summary>{len(folded)} more</summary>", "", *rest, "", "</details>"]
        notes = [f"* {html.escape(one_line(doubt))}" for doubt in self.doubts[:10]]
        return "\n".join([*lines, "", *notes]).rstrip() + "\n"


_MARKUP = frozenset("&<>|`*_[]~\\")  # what GitHub's Markdown or HTML would read
_KINDS = {"gpu": "", "host": "host: ", "idle": "idle: ", "step": ""}


def diff(
    before: Recorded | Iterable[Recorded],
    after: Recorded | Iterable[Recorded],
    *,
    margin: float = MARGIN,
    findings: bool = True,
) -> Diff:
    """Compares recordings of two versions of a program, step by step and node by node.

    A node is a kernel or copy by where it was launched, a region's or operator's own time on the host, or a cause of
    idle time. The times of a step are means, so that differences add up. Their intervals are Welch's, with as many
    steps as their first autocorrelation leaves; with three recordings or more on both sides they are of the runs. Of
    all nodes together, one in twenty comparisons of two equal programs names any as changed (S. Holm, A simple
    sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979).

    Args:
        before: a recording, a profiler or the path of a ``.gscope`` file, or several.
        after: likewise.
        margin: the share of a node's own time below which a difference does not count.
        findings: compare their diagnoses too: which findings are gone, and what was promised for that.

    Raises:
        InvalidArgument: `margin` is no fraction, or a side is empty.
        NotAvailable: the steps of a recording are not known.
        GpuscopeError: a file cannot be read.
    """
    margin = check_fraction("margin", margin)
    sides = [_traces("before", before), _traces("after", after)]
    costs = _comparable(for_each(lambda side: _costs(*side), [("before", sides[0]), ("after", sides[1])]))
    found = for_each(_diagnosis, sides) if findings else []
    by_runs = min(map(len, sides)) >= ENOUGH_RUNS
    steps = [_step_rows(each, by_runs) for each in costs]
    step = _changes([Node("step", (), "step")], {}, steps[0], steps[1], margin)[0]
    nodes, was, rows = _aligned(costs, by_runs)
    changes = _changes(nodes, was, rows[0], rows[1], margin)
    changes.sort(key=lambda change: -abs(change.delta_ns))
    return Diff(
        step=step,
        changes=tuple(change for change in changes if change.verdict not in ("same", "inconclusive")),
        nodes=tuple(changes),
        before=_side(sides[0], costs[0]),
        after=_side(sides[1], costs[1]),
        unlike=tuple(_unlike(*sides)),
        matched=_matched(nodes, rows[0], rows[1]),
        margin=margin,
        promises=promises_of(*found) if found else (),
        replicates="runs" if by_runs else "steps",
        medians=(MedianStep.of(sides[0][0], costs[0][0].steps), MedianStep.of(sides[1][0], costs[1][0].steps)),
    )


def _traces(name: str, given: Recorded | Iterable[Recorded]) -> list[Trace]:
    is_one = isinstance(given, (Analyses, str, os.PathLike))
    several: list[Any] = list(given) if isinstance(given, Iterable) and not is_one else [given]
    for each in several:
        if not isinstance(each, (Analyses, str, os.PathLike)):
            raise InvalidArgument(f"{name} has {type(each).__name__!r}; accepted are recordings, profilers and paths")
    if not several:
        raise InvalidArgument(f"{name} has no recording; accepted is at least one")
    return [each.trace if isinstance(each, Analyses) else load(each).trace for each in several]


def _costs(name: str, traces: Sequence[Trace]) -> list[Costs]:
    try:
        return [costs_of(trace) for trace in traces]
    except NotAvailable as error:
        raise NotAvailable(f"{name}: {error}") from error


def _comparable(sides: Sequence[Sequence[Costs]]) -> list[list[Costs]]:
    """Without the time in no region where some recordings have none: steps by ``step()`` alone are no regions."""
    if all(THE_STEP in each.nodes for side in sides for each in side):
        return [list(side) for side in sides]
    return [[each.without(THE_STEP) for each in side] for side in sides]


def _diagnosis(traces: Sequence[Trace]) -> Diagnosis:
    """That of the first recording."""
    return diagnose(traces[0])


def _side(traces: Sequence[Trace], costs: Sequence[Costs]) -> Side:
    incomplete = dict.fromkeys(reason for trace in traces for reason in audit(trace).reasons)
    sources = [each.steps.source for each in costs]
    return Side(
        program_name(traces[0].info),
        len(traces),
        sum(len(each.steps) for each in costs),
        sum(each.left_out for each in costs),
        next(filter(is_windows, sources), sources[0]),
        float(np.mean([each.busy_ns.mean() for each in costs])),
        tuple(incomplete),
    )


def _unlike(*sides: Sequence[Trace]) -> Iterable[str]:
    """A sentence for each fact that is not the same in all recordings."""
    facts = [("GPUs", [[_gpus(trace) for trace in side] for side in sides])]
    facts += [(what, [[trace.info.get(key, "") for trace in side] for side in sides]) for key, what in _UNLIKE]
    for what, values in facts:
        if len(set().union(*values)) > 1:
            before, after = (" and ".join(dict.fromkeys(value or "not" for value in side)) for side in values)
            yield f"{what}: {before} before, {after} after"


def _gpus(trace: Trace) -> str:
    return ", ".join(trace.string(name) for name in trace.devices.name.tolist()) or "none"


# -- tables of both sides ---------------------------------------------------------------------------------------------
Rows = tuple[Array, Array]
"""Times in ns and counts: (replicates, nodes)."""


def _step_rows(costs: Sequence[Costs], by_runs: bool) -> Rows:
    columns = [each.step_ns[:, None] for each in costs]
    rows = np.vstack([column.mean(axis=0) for column in columns] if by_runs else columns)
    return rows, np.zeros_like(rows)


def _aligned(costs: Sequence[Sequence[Costs]], by_runs: bool) -> tuple[list[Node], dict[Node, Node], list[Rows]]:
    """The nodes of both sides, named as they are after; what those were that are named otherwise; their tables."""
    of_sides = [list(dict.fromkeys(node for run in runs for node in run.nodes)) for runs in costs]
    paired = pair(*of_sides)
    nodes = list(dict.fromkeys([*(paired.get(node, node) for node in of_sides[0]), *of_sides[1]]))
    place = {node: column for column, node in enumerate(nodes)}
    rows = []
    for side, runs in enumerate(costs):
        tables: tuple[list[Array], list[Array]] = ([], [])
        for run in runs:
            own = [node if side else paired.get(node, node) for node in run.nodes]
            columns = np.array([place[node] for node in own], np.int64)
            for table, values in zip(tables, (run.time_ns, run.count), strict=True):
                whole = np.zeros((len(values), len(nodes)))
                whole[:, columns] = values
                table.append(whole.mean(axis=0, keepdims=True) if by_runs else whole)
        rows.append((np.vstack(tables[0]), np.vstack(tables[1])))
    return nodes, {after: before for before, after in paired.items() if before != after}, rows


def _matched(nodes: Sequence[Node], before: Rows, after: Rows) -> float:
    """The smaller share of the two sides, of GPU work where there is any."""
    times = [side[0].mean(axis=0) for side in (before, after)]
    kinds = np.array([node.kind for node in nodes])
    of = kinds == ("gpu" if (kinds == "gpu").any() else "host")
    both = of & (times[0] > 0) & (times[1] > 0)
    shares = [float(time[both].sum() / time[of].sum()) for time in times if time[of].sum() > 0]
    return min(shares, default=1.0)


# -- statistics -------------------------------------------------------------------------------------------------------
def _changes(nodes: Sequence[Node], was: dict[Node, Node], before: Rows, after: Rows, margin: float) -> list[Change]:
    """Each node with its verdict; those that hardly take time are no part of the family of tests."""
    means = [side[0].mean(axis=0) for side in (before, after)]
    counts = [side[1].mean(axis=0) for side in (before, after)]
    step_ns = max(_a_step(nodes, side) for side in means)
    least = min(LEAST_STEPS, ENOUGH_RUNS)
    if min(len(before[0]), len(after[0])) < least:
        half_ns, chance = np.full(len(nodes), np.inf), np.ones(len(nodes))
    else:
        half_ns, chance = welch(before[0], after[0], SURE, _TICK_NS, _groups(nodes, means[0], step_ns))
        of_all = math.comb(len(before[0]) + len(after[0]), len(before[0]))
        chance = np.where(_came_or_went(before[0], after[0]), np.minimum(chance, 2 / of_all), chance)
    tested = np.maximum(means[0], means[1]) >= _WORTH_A_TEST * step_ns
    sure = np.zeros(len(nodes), bool)
    sure[tested] = holm(chance[tested], 1 - SURE)
    found = []
    for column, node in enumerate(nodes):
        one, other = float(means[0][column]), float(means[1][column])
        half, delta = float(half_ns[column]), other - one
        change = Change(
            node.kind,
            node.path,
            node.name,
            one,
            other,
            (max(delta - half, -one), delta + half),  # no more can go than was there
            float(counts[0][column]),
            float(counts[1][column]),
            "inconclusive",
            str(was[node]) if node in was else None,
        )
        found.append(_judged(change, bool(sure[column]), margin))
    return found


def _came_or_went(before: Array, after: Array) -> NDArray[np.bool_]:
    """Which are in every row of one side and in none of the other: of all orders of the rows two are like that."""
    came = (before == 0).all(axis=0) & (after > 0).all(axis=0)
    went = (before > 0).all(axis=0) & (after == 0).all(axis=0)
    either: NDArray[np.bool_] = came | went
    return either


def _groups(nodes: Sequence[Node], means: Array, step_ns: float) -> NDArray[np.int64]:
    """What moves together: the work of GPUs, the time of the host; what hardly counts, and idle time, by itself."""
    kinds = {"gpu": 0, "host": 1}
    alone = np.arange(len(kinds), len(kinds) + len(nodes))
    together = np.array([kinds.get(node.kind, -1) for node in nodes], np.int64)
    return np.where((together >= 0) & (means >= _WORTH_A_TEST * step_ns), together, alone)


def _a_step(nodes: Sequence[Node], means: Array) -> float:
    """About the time of a step: the most that one kind of node takes."""
    kinds = np.array([node.kind for node in nodes])
    return max((float(means[kinds == kind].sum()) for kind in set(kinds)), default=0.0)


def _judged(change: Change, sure: bool, margin: float) -> Change:
    low, high = change.interval_ns
    most = margin * max(change.before_ns, change.after_ns)
    if sure and abs(change.delta_ns) > most:
        verdict = "slower" if change.delta_ns > 0 else "faster"
        if not change.before_ns or not change.after_ns:
            verdict = "new" if change.after_ns else "gone"
        elif abs(change.more_often_ns) > abs(change.slower_ns):
            verdict = "more often" if change.delta_ns > 0 else "less often"
        if change.kind == "idle" and verdict in ("slower", "faster"):
            verdict = "more" if change.delta_ns > 0 else "less"
    else:
        verdict = "same" if -most <= low and high <= most else "inconclusive"
    return Change(**{**vars(change), "verdict": verdict})


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
    return _KINDS[change.kind] + "/".join((*change.path, change.name))


def _calls(change: Change) -> str:
    counts = (change.count_before, change.count_after)
    before, after = (f"{count:,.0f}" if abs(count - round(count)) < 0.005 else format_digits(count) for count in counts)
    return before if before == after else f"{before} -> {after}"


def _padded(lines: Sequence[str]) -> list[str]:
    width = max(map(len, lines))
    return [line.ljust(width) for line in lines]


def _rows_of_markdown(changes: Sequence[Change]) -> list[str]:
    lines = ["| a step | | before | after | calls | what |", "|---:|---|---:|---:|---:|---|"]
    for change in changes:
        name = shorten(one_line("/".join((*change.path, change.name))), 200)
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
