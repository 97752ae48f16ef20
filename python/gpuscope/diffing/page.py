# SPDX-License-Identifier: Apache-2.0
"""A difference as one interactive HTML page: overview, tree, two steps and tables."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuscope.diffing.changes import NOT_COMPARABLE, RUN, STEP, Change, Differences, MedianStep, Promise
from gpuscope.exporters.page.report_events import TICK_NS, Group, Lanes, Stretch, columns_of
from gpuscope.exporters.page.report_names import Names, brief_name
from gpuscope.page.markup import file_of_page, filled, island, page_of, share_text, shown, table, time_text
from gpuscope.page.planes import encode
from gpuscope.steps.breakdown import StepBreakdown, break_down
from gpuscope.steps.steps import WHOLE_RUN, Steps
from gpuscope.text import shorten

SCRIPTS = (
    *("units.js", "elements.js", "data.js", "theme.js", "axis.js", "lanes.js", "pen.js", "model.js"),
    *("timeline.js", "table.js", "icicle.js", "keys.js", "sections.js", "diff.js"),
)
"""The modules of the page, each after its imports."""

_HEADINGS = {
    "overview": "Overview",
    "tree": "Tree",
    "timeline": "Two steps",
    "tables": "Tables",
    "conditions": "Conditions",
}
_FAMILIES = {"function": "Functions", "gpu": "GPU work", "idle": "GPU idle", "host": "Host"}
_KINDS = ("regions", "stream", "idle", "calls", "samples", "functions")  # of lanes, from the top
_VERDICTS = (
    *("slower", "faster", "more", "less", "more often", "less often", "new", "gone", "inconclusive", "same"),
    NOT_COMPARABLE,
)
_PLAIN_ROWS = 50  # of the table for print and for readers without JavaScript
_MOST_NODES = 4_000  # of the tree, the largest; the tables have the others too
_MOST_ROWS = 20_000
_MOST_UNCERTAIN = 4
_LONGEST_LABEL = 60


def render(found: Differences, sentence: str) -> str:
    """The page's text, with the sentence behind the verdict."""
    names = Names(found.medians[0].trace, ())
    timeline, columns, lights = _two_steps(found, names)
    rows = _rows(found.nodes[:_MOST_ROWS], names, lights)
    facts, texts = encode(columns)
    sections = {
        "overview": _overview(found),
        "tree": _tree_section() if found.nodes and found.is_comparable else "",
        "timeline": _timeline_section(found) if timeline["groups"] else "",
        "tables": _tables(found, rows),
        "conditions": _conditions(found),
    }
    data = {
        "tick_ns": TICK_NS,
        **timeline,
        "columns": facts,
        "tree": _tree(found.nodes, names),
        "samples": None,
        "rows": rows,
        "windows": [],
        "steps": None,
        "series": [],
        "has_gpu": True,
        "unit": found.unit,
        "things": names.to_dict(),
        "strings": names.strings,
    }
    program = " and ".join(filter(None, dict.fromkeys((found.before.program, found.after.program))))
    parts = {
        "title": shown(f"{program}: before and after"[:300] if program else "Before and after"),
        "verdict": shown(found.verdict),
        "sentence": shown(sentence),
        "navigation": "".join(
            f'<a href="#/{name}">{_heading(name, found.unit)}</a>' for name, text in sections.items() if text
        ),
        "sections": "".join(_section(name, text, found.unit) for name, text in sections.items() if text),
        "data": island(data),
        "columns": "".join(
            f'<script type="text/plain" id="column-{name}">{text}</script>' for name, text in texts.items()
        ),
    }
    return page_of(
        "diff.html", parts, styles=("parts.css", "diff.css"), scripts=SCRIPTS, data_id="diff", package=__package__
    )


def _heading(name: str, unit: str) -> str:
    return "Two runs" if name == "timeline" and unit == RUN else _HEADINGS[name]


def _section(name: str, text: str, unit: str) -> str:
    heading = f'<h2 id="{name}-title">{_heading(name, unit)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{heading}{text}</section>'


# -- figures and doubts ------------------------------------------------------------------------------------------------


def _overview(found: Differences) -> str:
    step, busy, unit = found.step, (found.before.busy_ns, found.after.busy_ns), found.unit
    low, high = step.interval_ns
    around = f"95 %: {_signed(low)} to {_signed(high)}" if math.isfinite(high - low) else f"too few {unit}s to be sure"
    if unit == RUN and found.replicates != "runs":
        around = f"{step.times}, one run each" if found.before.runs == found.after.runs == 1 else step.times
    times = (time_text(step.before_ns), time_text(step.after_ns))
    figures = [(f"a {unit} takes", _signed(step.delta_ns), f"{times[0]} to {times[1]}; {around}")]
    if not found.is_comparable:
        busy = (0.0, 0.0)
        figures = [(f"a {unit} before", times[0], shown(found.before.program))]
        figures.append((f"a {unit} after", times[1], shown(found.after.program)))
    if found.target is not None:
        state, _, interval = str(found.target).removeprefix("target ").partition(" (")
        figures.append(("target", shown(state), shown(interval.replace(")", "", 1))))
    if (cause := found.cause) and unit == RUN:
        both = f"{time_text(cause.before_ns)} to {time_text(cause.after_ns)}"
        figures.append(("changed most", shown(shorten(cause.label, _LONGEST_LABEL)), both))
    if any(busy):
        idle = (step.before_ns - busy[0], step.after_ns - busy[1])
        figures.append(
            ("the busiest GPU works", _signed(busy[1] - busy[0]), f"{time_text(busy[0])} to {time_text(busy[1])}")
        )
        figures.append(("and idles", _signed(idle[1] - idle[0]), f"{time_text(idle[0])} to {time_text(idle[1])}"))
    if found.is_comparable:
        figures.append(("nodes that changed", f"{len(found.changes):,}", f"of {len(found.nodes):,}"))
        figures.append(("time of common nodes", share_text(found.matched), "of the side that has less of it"))
    else:
        figures.append(("time of common nodes", share_text(found.shared), "half is the least for a comparison"))
    text = "".join(f"<div class='figure'><dt>{a}</dt><dd><b>{b}</b><span>{c}</span></dd></div>" for a, b, c in figures)
    parts = [f'<dl class="figures">{text}</dl>']
    if found.promises:
        rows = [
            (
                f"<code>{shown(promise.id)}</code> {shown(promise.title)}",
                _saving(promise),
                f"{shown(_percent(step))}",
                promise.state,
            )
            for promise in found.promises
        ]
        header = ("finding before", "saving that was promised", f"a {unit} takes", "the finding")
        parts.append(table(header, rows, caption="Promised savings and the result", numbers=(1, 2)))
    uncertain = [f"not certain: {each.label} {_signed(each.delta_ns)}" for each in found.uncertain[:_MOST_UNCERTAIN]]
    unknown = [f"not compared: {what}" for what in found.not_compared]
    doubts = "".join(f"<li>{shown(doubt)}</li>" for doubt in (*uncertain, *unknown, *found.doubts))
    if doubts:
        parts.append(f'<div class="notice" role="note">Before believing it:<ul class="notes">{doubts}</ul></div>')
    return "".join(parts)


def _saving(promise: Promise) -> str:
    return "not known" if promise.saving is None else share_text(promise.saving)


def _conditions(found: Differences) -> str:
    rows = []
    sides = (found.before, found.after)
    for what, values in (
        ("program", [side.program for side in sides]),
        ("recordings", [f"{side.runs:,}" for side in sides]),
        *(
            ("steps looked at", [f"{side.steps:,}" for side in sides]),
            ("steps left out, as they start up or are cut", [f"{side.left_out:,}" for side in sides]),
        )[: 2 * (found.unit == STEP)],
        ("steps are", [side.source for side in sides]),
        ("audit", ["; ".join(side.incomplete) or "complete" for side in sides]),
    ):
        rows.append((what, *map(shown, values)))
    text = table(("condition", "before", "after"), rows, caption="Both sides")
    unlike = "".join(f"<li>{shown(sentence)}</li>" for sentence in found.unlike)
    same = "GPUs, driver, CUPTI, host and the way of recording were the same on both sides."
    text += f'<p>Different conditions:</p><ul class="notes">{unlike}</ul>' if unlike else f"<p>{same}</p>"
    how = {"runs": "recordings", "steps": "steps"}.get(found.replicates, found.replicates)
    return text + (
        f'<p class="hint">Times are means a {found.unit}. Intervals come from how {how} differ. A node counts as '
        f"changed if it differs certainly, and by more than {share_text(found.margin)} of its own time. Of two "
        "recordings of one program, one comparison in twenty names a change. Functions and regions are two views of "
        "the same time.</p>"
    )


def _signed(time_ns: float) -> str:
    return f"{'+' if time_ns >= 0 else '-'}{time_text(abs(time_ns))}"


def _percent(change: Change) -> str:
    return f"{100 * (change.ratio - 1):+.1f} %" if math.isfinite(change.ratio) else "new"


# -- tables ------------------------------------------------------------------------------------------------------------


def _spelled(change: Change) -> str:
    if change.kind == "function":
        return change.label
    return f"{change.name} in {' / '.join(change.path)}" if change.path else change.name


def _rows(nodes: Sequence[Change], names: Names, lights: dict[str, set[int]]) -> dict[str, Any]:
    """Columns with an entry per node, times in ns per step; None if not known."""
    rows: dict[str, Any] = {
        "kind": [names.id(change.kind) for change in nodes],
        "name": [names.id(_spelled(change)) for change in nodes],
        "full": [names.id(_spelled(change) + (f" (was {change.was})" if change.was else "")) for change in nodes],
        "before": [_whole(change.before_ns) for change in nodes],
        "after": [_whole(change.after_ns) for change in nodes],
        "delta": [_whole(change.delta_ns) for change in nodes],
        "size": list(range(len(nodes), 0, -1)),  # certain ones first
        "ratio": [round(change.ratio - 1, 6) if math.isfinite(change.ratio) else None for change in nodes],
        "low": [_whole(change.interval_ns[0]) for change in nodes],
        "high": [_whole(change.interval_ns[1]) for change in nodes],
        "calls_before": [round(change.count_before, 3) for change in nodes],
        "calls_after": [round(change.count_after, 3) for change in nodes],
        "slower": [_whole(change.slower_ns) for change in nodes],
        "oftener": [_whole(change.more_often_ns) for change in nodes],
        "verdict": [1 + _VERDICTS.index(change.verdict) for change in nodes],
        "verdicts": _VERDICTS,
        "lights": [sorted(lights.get(change.name, ())) for change in nodes],
    }
    rows["family"] = {
        kind: [row for row, change in enumerate(nodes) if change.kind == kind]
        for kind in _FAMILIES
        if any(change.kind == kind for change in nodes)
    }
    return rows


def _whole(time_ns: float) -> int | None:
    return round(time_ns) if math.isfinite(time_ns) else None


def _tables(found: Differences, rows: dict[str, Any]) -> str:
    if not found.nodes:
        return '<p class="hint">Nothing was recorded that takes time in a step.</p>'
    tabs = "".join(
        f'<button type="button" role="tab" id="tab-{family}" data-family="{family}" aria-controls="rows" '
        f'aria-selected="false">{_FAMILIES[family]} <small>{len(members):,}</small></button>'
        for family, members in rows["family"].items()
    )
    return filled(file_of_page("tables.html"), {"tabs": tabs}) + f'<div class="plain">{_plain_table(found)}</div>'


def _plain_table(found: Differences) -> str:
    chosen = (found.changes or found.nodes)[:_PLAIN_ROWS]
    cells = [
        (
            f"<code>{shown(_spelled(change)[:160])}</code>",
            _FAMILIES[change.kind],
            _signed(change.delta_ns),
            shown(_percent(change)),
            change.verdict,
            time_text(change.before_ns),
            time_text(change.after_ns),
        )
        for change in chosen
    ]
    header = ("node", "kind", f"a {found.unit}", "", "", "before", "after")
    what = "What changed" if found.changes else "Nothing changed surely; the largest differences"
    return table(header, cells, caption=what, numbers=(2, 3, 5, 6))


# -- tree --------------------------------------------------------------------------------------------------------------


def _tree_section() -> str:
    return (
        '<p class="hint live">A box is as wide as its time. <span class="more">takes more than before</span>'
        '<span class="less">takes less</span>, the paler the less; its words say by how much.</p>'
        + file_of_page("tree.html")
    )


def _tree(nodes: Sequence[Change], names: Names) -> dict[str, Any]:
    """Nodes by kind and region, parents first; times in ns per step. Inner nodes have the sums of their children.

    Parents are written as differences from the one before.
    """
    largest = sorted(range(len(nodes)), key=lambda row: -max(nodes[row].before_ns, nodes[row].after_ns))
    columns: dict[str, list[int]] = {
        name: [] for name in ("parent", "name", "kind", "before", "after", "larger", "row", "count")
    }
    places: dict[tuple[str, ...], int] = {}
    views = "functions, host" if any(change.kind == "function" for change in nodes) else "host"

    def add(way: tuple[str, ...], kind: str) -> int:
        depth = next(depth for depth in range(len(way), -1, -1) if way[:depth] in places or depth == 0)
        parent = places.get(way[:depth], -1)
        for deeper in range(depth + (parent >= 0), len(way) + 1):
            places[way[:deeper]] = len(columns["parent"])
            name = way[deeper - 1] if deeper else f"{views} and GPUs, added up"
            what = kind if deeper == len(way) else "region" if deeper > 1 else "kind"
            values = (parent, names.id(name), names.id(what), 0, 0, 0, -1, 0)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
            parent = places[way[:deeper]]
        return parent

    add((), "step")
    for row in largest[:_MOST_NODES]:
        change = nodes[row]
        at = add((_FAMILIES[change.kind], *change.path, change.name), change.kind)
        columns["row"][at] = row if row < _MOST_ROWS else -1
        times = (change.before_ns, change.after_ns, max(change.before_ns, change.after_ns))
        for name, value in zip(("before", "after", "larger"), times, strict=True):
            columns[name][at] += round(value)
    for at in range(len(columns["parent"]) - 1, 0, -1):  # children come after their parents
        for name in ("before", "after", "larger"):
            columns[name][columns["parent"][at]] += columns[name][at]
    return {**columns, "parent": np.diff(columns["parent"], prepend=0)}


# -- two steps ---------------------------------------------------------------------------------------------------------


def _timeline_section(found: Differences) -> str:
    which = []
    for step, side in zip(found.medians, ("before", "after"), strict=True):
        number = "the run" if step.steps.source == WHOLE_RUN else f"step {step.number + 1:,} of {len(step.steps):,}"
        which.append(f"{number} {side} ({time_text(step.steps.durations_ns[step.number])})")
    what = "The median step of each side" if found.unit == STEP else "Both sides"
    text = f"{what}, from the start on: {' and '.join(which)}."
    return f'<p class="hint">{shown(text)}</p>' + file_of_page("timeline.html")


def _two_steps(found: Differences, names: Names) -> tuple[dict[str, Any], dict[str, Any], dict[str, set[int]]]:
    """The timeline's data, its columns, and the event texts of each node's name."""
    stretches: list[Stretch] = []
    groups: list[tuple[int, int, int, Group]] = []
    places: dict[tuple[str, str], int] = {}  # the same lanes of both sides are next to each other
    lights: defaultdict[str, set[int]] = defaultdict(set)
    for side, step in zip(("before", "after"), found.medians, strict=True):
        if step.number < 0:
            continue
        own = names.beside(step.trace)
        lanes = Lanes(step.trace, _breakdown(step), own, reduces=False)
        edges = np.array([moments[step.number] for moments in (step.steps.start_ns, step.steps.end_ns)])
        start, end = lanes.ticks(edges).tolist()
        stretches.append(Stretch(lanes, start, max(end, start + 1)))
        for group in lanes.groups:
            if lanes.has_events(group, start, end):
                place = places.setdefault((group.kind, group.title), len(places))
                titled = Group(f"{side}: {group.title}", group.kind, group.lanes)
                groups.append((_KINDS.index(group.kind), place, len(stretches) - 1, titled))
        for full, short in zip(step.trace.kernel_names(), step.trace.kernel_names(short=True), strict=True):
            lights[short].add(own.id(brief_name(full)))
    for change in found.nodes[:_MOST_ROWS]:
        lights[change.name].add(names.id(change.name))
        for where in (change.where_before, change.where_after):
            if where is not None and where.file:
                lights[change.name].add(names.id(f"{change.name} ({os.path.basename(where.file)})"))
    groups.sort(key=lambda each: each[:3])
    columns, made, firsts = columns_of(stretches, [(at, group) for *_, at, group in groups])
    span = max((stretch.end - stretch.start for stretch in stretches), default=1)
    return {"span": span, "groups": made, "firsts": firsts}, columns, lights


def _breakdown(step: MedianStep) -> StepBreakdown:
    start, end = (moments[step.number : step.number + 1] for moments in (step.steps.start_ns, step.steps.end_ns))
    return break_down(step.trace, Steps(start, end, step.steps.source, step.steps.thread))
