# SPDX-License-Identifier: Apache-2.0
"""What changed between two versions of a program, and how sure that is."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.analysis.completeness import audit
from gpuscope.arguments import check_fraction
from gpuscope.diagnosis.diagnose import diagnose
from gpuscope.diffing.costs import Array, Costs, Node, costs_of, pair
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.recording import Analyses, load
from gpuscope.results import Result, import_pandas
from gpuscope.stats.means import holm, welch
from gpuscope.text import one_line
from gpuscope.trace import Trace
from gpuscope.units import align_columns, format_digits, format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.02
"""Of a node's own time: what is less is the same."""
SURE = 0.95
ENOUGH_RUNS = 3
"""Recordings a side from which on they are compared with each other, instead of their steps."""
LEAST_STEPS = 4
SAME_PROGRAM = 0.8
"""The share of the time that must be of nodes that both have; with less they are two programs."""

_WORTH_A_TEST = 5e-4  # of a step, on either side: what is less would cost the others their certainty
_TICK_NS = 32.0  # of the GPU's clock, which values without any spread lie on
_WORTH_A_WORD, _MOST_UNCERTAIN = 0.1, 4
_ROWS, _ROWS_OF_MARKDOWN, _MOST_MARKDOWN = 20, 10, 60_000  # GitHub takes 65,536 characters
_NS_PER_S = 1e9
_NO_STEPS = "nothing repeats, so that windows of time are compared and not work; mark steps by gpuscope.step()"
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


@dataclass(frozen=True)
class Change:
    """What a node takes before and after, a step. Times in ns.

    Attributes:
        kind: "step", "gpu", "host" or "idle".
        path: the regions around it, outermost first.
        name: of the kernel, copy, region or cause, as it is after.
        before_ns: mean a step.
        after_ns: likewise.
        interval_ns: 95 % interval of the difference, by Student's t of the steps or runs; infinite with too few.
        count_before: how often a step; 0 of idle time and steps.
        count_after: likewise.
        verdict: "slower" and "faster" where each takes another time, "more often" and "less often" where the number
            is what changed, "new", "gone", "same" where the interval lies within the margin, or "inconclusive".
        was: the name before, where it is another.
    """

    kind: str
    path: tuple[str, ...]
    name: str
    before_ns: float
    after_ns: float
    interval_ns: tuple[float, float]
    count_before: float
    count_after: float
    verdict: str
    was: str | None = None

    @property
    def delta_ns(self) -> float:
        """How much more it takes after."""
        return self.after_ns - self.before_ns

    @property
    def ratio(self) -> float:
        """After over before; infinite for what is new."""
        return self.after_ns / self.before_ns if self.before_ns else math.inf if self.after_ns else 1.0

    @property
    def slower_ns(self) -> float:
        """The part of the difference that comes of how long each takes."""
        if not (self.count_before and self.count_after):
            return 0.0 if self.count_before or self.count_after else self.delta_ns
        return self.count_after * (self.after_ns / self.count_after - self.before_ns / self.count_before)

    @property
    def more_often_ns(self) -> float:
        """The part that comes of how many there are."""
        return self.delta_ns - self.slower_ns

    def to_dict(self) -> dict[str, Any]:
        """Plain values, times in seconds a step."""
        return {
            "kind": self.kind,
            "path": list(self.path),
            "name": self.name,
            "was": self.was,
            "verdict": self.verdict,
            "before": self.before_ns / _NS_PER_S,
            "after": self.after_ns / _NS_PER_S,
            "difference": self.delta_ns / _NS_PER_S,
            "interval": [end / _NS_PER_S for end in self.interval_ns],
            "count_before": self.count_before,
            "count_after": self.count_after,
            "slower": self.slower_ns / _NS_PER_S,
            "more_often": self.more_often_ns / _NS_PER_S,
        }


@dataclass(frozen=True)
class Promise:
    """What a diagnosis of the recording before said that a fix would save.

    Attributes:
        id: of the finding, as R15.
        title: its title.
        saving: the share of a step that was promised; None where it was not known.
        is_gone: the diagnosis of the recording after does not find it.
    """

    id: str
    title: str
    saving: float | None
    is_gone: bool


@dataclass(frozen=True)
class Side:
    """One side.

    Attributes:
        program: what ran.
        runs: recordings.
        steps: of all of them, those looked at.
        left_out: steps that were not, as they start up or are cut.
        source: how the steps were found, as words.
        busy_ns: how long the busiest GPU worked, mean a step.
        incomplete: why recordings are incomplete, as their audits say.
    """

    program: str
    runs: int
    steps: int
    left_out: int
    source: str
    busy_ns: float
    incomplete: tuple[str, ...]


@dataclass(frozen=True, repr=False, eq=False)
class Diff(Result):
    """The difference; printing it shows it.

    Attributes:
        step: of the time of a step.
        changes: nodes that changed, certainly (5 % over all of them together, by Holm's method) and by more than the
            margin, those with the largest difference in time first.
        nodes: all nodes, likewise.
        before: the first side.
        after: the second.
        unlike: what was not the same of the two, a sentence each.
        matched: the share of the time that is of nodes which both sides have.
        margin: the share of a node's time below which a difference does not count.
        promises: what the diagnosis before promised.
        replicates: "steps" or "runs": what the intervals come from.
    """

    step: Change
    changes: tuple[Change, ...]
    nodes: tuple[Change, ...]
    before: Side
    after: Side
    unlike: tuple[str, ...]
    matched: float
    margin: float
    promises: tuple[Promise, ...]
    replicates: str

    @property
    def verdict(self) -> str:
        """That of a step."""
        return self.step.verdict

    def fails(self, fail_over: float) -> bool:
        """Whether a step is surely slower, and by more than that share.

        Raises:
            InvalidArgument: `fail_over` is no fraction, or the recordings are of unlike GPUs.
        NotAvailable: they have no steps.
        """
        fail_over = check_fraction("fail_over", fail_over) if fail_over else 0.0
        if not self.has_steps:
            raise NotAvailable(f"fail_over is not available: {_NO_STEPS}")
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

    @property
    def uncertain(self) -> tuple[Change, ...]:
        """Nodes that may be a tenth of the difference of a step or more, and cannot be told from chance."""
        least = _WORTH_A_WORD * abs(self.step.delta_ns)
        of = (node for node in self.nodes if node.verdict == "inconclusive" and abs(node.delta_ns) > least)
        return tuple(of) if self.verdict in ("slower", "faster") else ()

    @property
    def has_steps(self) -> bool:
        """Whether steps are the program's, or at least what repeats in it."""
        return not any(side.source.startswith("windows") for side in (self.before, self.after))

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a reader should know before believing it, a sentence each."""
        found = list(self.unlike)
        for name, side in (("before", self.before), ("after", self.after)):
            found += [f"the recording {name} is incomplete: {reason}" for reason in side.incomplete]
        if not self.has_steps:
            found.append(_NO_STEPS)
        if self.matched < SAME_PROGRAM:
            found.append(f"only {format_share(self.matched)} of the time is of what both have: these are two programs")
        if self.replicates == "steps":
            if min(self.before.steps, self.after.steps) < LEAST_STEPS:
                found.append(f"fewer than {LEAST_STEPS} steps on a side cannot say what is chance; record more")
            found.append(
                "the intervals know how steps differ, not how runs do: "
                f"give {ENOUGH_RUNS} recordings or more a side to tell a change from another day"
            )
        return tuple(found)

    def table(self, row_limit: int = _ROWS, width: int | None = None) -> str:
        """What changed, the largest difference first.

        Args:
            row_limit: rows at most.
            width: columns at most; names are cut in the middle.
        """
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
        if width is not None:
            others = max((sum(len(cell) + 2 for cell in row[:-1]) for row in rows), default=0)
            room = max(24, width - others - 2)
            rows = [(*row[:-1], _cut(one_line(row[-1]), room)) for row in rows]
        lines = align_columns([row[:-1] for row in rows], left=0)
        lines = [f"{line}  {row[-1]}".rstrip() for line, row in zip(_padded(lines), rows, strict=True)]
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
            promised = f"promised {format_share(promise.saving)}" if promise.saving is not None else "promised nothing"
            state = "is gone" if promise.is_gone else "is still there"
            lines.append(f"{promise.id} {promise.title}: {promised}, a step takes {_percent(step.ratio)}; it {state}")
        return lines

    def page(self, width: int = 100, row_limit: int = _ROWS) -> str:
        """The text, in lines of at most so many columns."""
        lines = self.head()
        if self.changes:
            lines += ["", self.table(row_limit, width)]
        else:
            lines += ["", f"no node changed by more than {format_share(self.margin)}, as far as can be told"]
        if self.uncertain:
            listed = (f"{_what(each)} {_signed(each.delta_ns)}" for each in self.uncertain[:_MOST_UNCERTAIN])
            lines.append(f"not certain: {', '.join(listed)}")
        lines += [""] + [f"note: {doubt}" for doubt in self.doubts]
        return "\n".join(lines).rstrip()

    def __str__(self) -> str:
        return self.page()

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
    with ThreadPoolExecutor(2) as both:
        costs = list(both.map(_costs, ("before", "after"), sides))
        found = list(both.map(_findings, sides)) if findings else [(), ()]
    by_runs = min(map(len, sides)) >= ENOUGH_RUNS
    steps = [_step_rows(each, by_runs) for each in costs]
    step = _changes([Node("step", (), "step")], {}, steps[0], steps[1], margin)[0]
    nodes, was, rows = _aligned(costs, by_runs)
    changes = _changes(nodes, was, rows[0], rows[1], margin)
    changes.sort(key=lambda change: -abs(change.delta_ns))
    still_there = {name for name, _, _ in found[1]}
    return Diff(
        step=step,
        changes=tuple(change for change in changes if change.verdict not in ("same", "inconclusive")),
        nodes=tuple(changes),
        before=_side(sides[0], costs[0]),
        after=_side(sides[1], costs[1]),
        unlike=tuple(_unlike(sides[0][0], sides[1][0])),
        matched=_matched(nodes, rows[0], rows[1]),
        margin=margin,
        promises=tuple(Promise(name, title, saving, name not in still_there) for name, title, saving in found[0]),
        replicates="runs" if by_runs else "steps",
    )


def _traces(name: str, given: Recorded | Iterable[Recorded]) -> list[Trace]:
    several = [given] if isinstance(given, (Analyses, str, os.PathLike)) else list(given)
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


def _findings(traces: Sequence[Trace]) -> Sequence[tuple[str, str, float | None]]:
    """Id, title and saving of the findings of the first recording."""
    return [(each.id, each.title, each.saving) for each in diagnose(traces[0]).findings]


def _side(traces: Sequence[Trace], costs: Sequence[Costs]) -> Side:
    words = traces[0].info.get("process.argv", "").split()
    program = next((word for word in words if word.endswith(".py")), " ".join(words[:3]))
    incomplete = dict.fromkeys(reason for trace in traces for reason in audit(trace).reasons)
    return Side(
        program,
        len(traces),
        sum(len(each.steps) for each in costs),
        sum(each.left_out for each in costs),
        costs[0].steps.source,
        float(np.mean([each.busy_ns.mean() for each in costs])),
        tuple(incomplete),
    )


def _unlike(before: Trace, after: Trace) -> Iterable[str]:
    gpus = [", ".join(trace.string(name) for name in trace.devices.name.tolist()) for trace in (before, after)]
    facts = [("GPUs", *(gpu or "none" for gpu in gpus))]

    facts += [(what, *(trace.info.get(key, "") for trace in (before, after))) for key, what in _UNLIKE]
    for what, one, other in facts:
        if one != other:
            yield f"{what}: {one or 'not'} before, {other or 'not'} after"


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
            (delta - half, delta + half),
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


def _cut(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    first = (width - 3) // 2
    return f"{name[:first]}...{name[len(name) - (width - 3 - first) :]}"


def _rows_of_markdown(changes: Sequence[Change]) -> list[str]:
    lines = ["| a step | | before | after | calls | what |", "|---:|---|---:|---:|---:|---|"]
    for change in changes:
        name = _cut(one_line("/".join((*change.path, change.name))), 200)
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
