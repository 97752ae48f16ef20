# SPDX-License-Identifier: Apache-2.0
"""A recording as one interactive HTML page that needs nothing but a browser."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope.analysis import Tree, audit, key_averages, samples, tree
from gpuscope.costs.roofline import roofline
from gpuscope.diagnosis.diagnose import diagnose
from gpuscope.errors import NotAvailable
from gpuscope.exporters.page import report_overview as overview
from gpuscope.exporters.page.report_events import TICK_NS, Lanes, Stretch, columns_of
from gpuscope.exporters.page.report_names import Names
from gpuscope.exporters.page.report_roofline import roofline_section
from gpuscope.exporters.page.report_series import memory_of, series_of
from gpuscope.exporters.page.report_tables import (
    PYTHON,
    add_functions,
    columns_of_nodes,
    nodes_of,
    rows_of,
    sampled_code,
)
from gpuscope.page.markup import (
    file_of_page,
    filled,
    island,
    page_of,
    shown,
    table,
    time_text,
)
from gpuscope.page.planes import encode
from gpuscope.paths import check_writable, replacing
from gpuscope.steps.breakdown import StepBreakdown, break_down
from gpuscope.steps.kernel_classes import KernelClass, kernel_class
from gpuscope.steps.steps import WHOLE_RUN
from gpuscope.trace import NONE, Trace

if TYPE_CHECKING:
    from gpuscope.diagnosis.findings import Diagnosis

SCRIPTS = (
    *("units.js", "elements.js", "data.js", "theme.js", "axis.js", "lanes.js", "pen.js", "model.js"),
    *("timeline.js", "ranges.js", "table.js", "icicle.js", "memory_chart.js", "keys.js", "sections.js", "report.js"),
)
"""The modules of the page, each after those that it imports from."""

_MOST_SERVED = 100_000  # events at a time; the page asks for fewer
_PLAIN_ROWS = 50  # of tables for print and without JavaScript
_PLAIN_LEVELS = 3
_PLAIN_SHARE = 1.0  # percent
_OWN = ' · <span class="own">your code</span>'  # the mark of own code
_TITLES = {
    "kernels": "Kernels and copies",
    "operators": "Operators",
    "regions": "Regions",
    "calls": "Driver calls",
    PYTHON: "Python functions",
}


def export_report(
    trace: Trace, path: str | os.PathLike[str], *, title: str | None = None, findings: bool = True
) -> None:
    """Writes a recording as one HTML page that needs no other file and no network; see `Recording.report`.

    Args:
        trace: the recording, in any mode.
        path: where to write, ending in .html.
        title: heading of the page; by default the program's command line.
        findings: include the findings of `diagnose`.

    Raises:
        InvalidArgument: the path has another suffix.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, (".html", ".htm"))
    text = render(trace, title=title, findings=findings)
    with replacing(checked) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def render(trace: Trace, *, title: str | None = None, findings: bool = True) -> str:
    """The page's text; arguments as of `export_report`."""
    return _made(trace, title=title, findings=findings)[0]


class ServedReport:
    """The page of a recording for a server, which sends it further events on request.

    Attributes:
        text: the page.
    """

    def __init__(self, trace: Trace, *, title: str | None = None, findings: bool = True) -> None:
        self.text, self._lanes = _made(trace, title=title, findings=findings, is_served=True)

    def events(self, start: int, end: int) -> str | None:
        """The events between two ticks as JSON; None if they are too many for one answer."""
        lanes = self._lanes
        stretch = Stretch(lanes, max(start, 0), min(max(end, start), lanes.span), is_cut=False)
        if sum(len(stretch.rows(lane)) for group in lanes.groups for lane in group.lanes) > _MOST_SERVED:
            return None
        columns, groups, firsts = columns_of([stretch], [(0, group) for group in lanes.groups])
        facts, texts = encode(columns)
        return island({"columns": facts, "texts": texts, "groups": groups, "firsts": firsts})


def _made(trace: Trace, *, title: str | None, findings: bool, is_served: bool = False) -> tuple[str, Lanes]:
    """The page's text, and its events."""
    breakdown, why_not = _breakdown(trace)
    averages, verdict = key_averages(trace), audit(trace)
    names = Names(trace, averages)
    rows = rows_of(trace, averages, names)
    whole, seen = tree(trace), samples(trace)
    functions, calls = sampled_code(seen)
    add_functions(rows, functions, seen.recorded_ns, trace, names)
    nodes, sampled = nodes_of(whole, names), columns_of_nodes(calls, names) if calls else None
    lanes = Lanes(trace, breakdown, names)
    columns, groups, firsts = lanes.columns()
    facts, texts = encode(columns)
    reduced = _reduced(lanes, is_served)
    chart, at_peak = memory_of(trace, lanes)
    sections = {
        "overview": _overview(trace, breakdown, why_not, lanes, diagnose(trace) if findings else None),
        "timeline": file_of_page("timeline.html") if lanes.kept else "<p>No single events were recorded.</p>",
        "tables": _tables(rows, names),
        "tree": _tree(whole) if len(nodes["name"]) > 1 or sampled else "",
        "idle": overview.idle(trace, breakdown, lanes) if breakdown and breakdown.devices else "",
        "memory": (file_of_page("memory_section.html", __package__) if chart else "") + at_peak,
        "communication": overview.communication(trace, breakdown, _is_communication(trace)),
        "roofline": _roofline(trace),
        "audit": overview.audit_section(trace, verdict, reduced),
    }
    if sampled and not (breakdown and breakdown.steps.repeat):
        sections = {name: sections[name] for name in ("overview", "tree", "tables", *sections)}
    data = {
        "tick_ns": TICK_NS,
        "zero_ns": str(lanes.zero_ns),
        "span": lanes.span,
        "strings": names.strings,
        "things": names.to_dict(),
        "rows": rows,
        "tree": nodes,
        "samples": sampled,
        "columns": facts,
        "firsts": firsts,
        "groups": groups,
        "windows": lanes.windows,
        "steps": _steps(breakdown, lanes),
        "series": series_of(trace, lanes),
        "memory": chart,
        "has_gpu": bool(averages.has_device),
        "events": "events" if is_served and lanes.windows else None,
    }
    heading = title or overview.title_of(trace)
    parts = {
        "title": shown(heading[:300]),
        "facts": overview.header_facts(trace, breakdown),
        "complete": "complete" if verdict.complete else "incomplete",
        "verdict": shown(verdict.verdict.removeprefix("audit: ")),
        "reduced": f'<p class="notice" role="note">{shown(reduced)}</p>' if lanes.windows else "",
        "sections": "".join(_section(name, text) for name, text in sections.items() if text),
        "navigation": "".join(f'<a href="#/{name}">{_HEADINGS[name]}</a>' for name, text in sections.items() if text),
        "data": island(data),
        "columns": "".join(
            f'<script type="text/plain" id="column-{name}">{text}</script>' for name, text in texts.items()
        ),
    }
    styles = ("parts.css", "report.css")
    unused = {*([] if is_served else ["ranges.js"]), *([] if chart else ["memory_chart.js"])}
    text = page_of(
        "report.html",
        parts,
        styles=styles,
        scripts=[name for name in SCRIPTS if name not in unused],
        data_id="report",
        package=__package__,
        is_served=is_served,
    )
    return text, lanes


_HEADINGS = {
    "overview": "Overview",
    "timeline": "Timeline",
    "tables": "Tables",
    "tree": "Tree",
    "idle": "Idle",
    "memory": "Memory",
    "communication": "Communication",
    "roofline": "Roofline",
    "audit": "Audit",
}


def _section(name: str, text: str) -> str:
    heading = f'<h2 id="{name}-title">{_HEADINGS[name]}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{heading}{text}</section>'


def _breakdown(trace: Trace) -> tuple[StepBreakdown | None, str]:
    try:
        return break_down(trace), ""
    except NotAvailable as error:
        return None, str(error)


def _overview(
    trace: Trace, breakdown: StepBreakdown | None, why_not: str, lanes: Lanes, found: Diagnosis | None
) -> str:
    parts = [f'<dl class="figures">{overview.figures(trace, breakdown)}</dl>']
    if found is not None and breakdown is not None:
        parts.append(overview.findings(found))
    if breakdown is None:
        parts.append(f'<p class="hint">{shown(overview.sentence(why_not))}.</p>')
    elif breakdown.devices:
        parts.append(overview.step_breakdown(breakdown, lanes))
    else:
        parts.append('<p class="hint">No GPU work was recorded: this page shows the CPU.</p>')
    if breakdown is not None and len(trace.python_samples):
        parts.append(overview.own_lines(trace, breakdown))
    return "".join(parts)


def _tables(rows: dict[str, Any], names: Names) -> str:
    there = [family for family in _TITLES if rows["family"].get(family)]
    if not there:
        return '<p class="hint">No region, driver call or GPU work was recorded.</p>'
    if "kernels" not in there:
        there.sort(key=lambda family: family != PYTHON)
    tabs = "".join(
        f'<button type="button" role="tab" id="tab-{family}" data-family="{family}" aria-controls="rows" '
        f'aria-selected="false">{_TITLES[family]} <small>{len(rows["family"][family]):,}'
        f"{_OWN * (family == PYTHON)}</small></button>"
        for family in there
    )
    return filled(file_of_page("tables.html"), {"tabs": tabs}) + "".join(
        _plain_table(family, rows, names) for family in there
    )


def _plain_table(family: str, rows: dict[str, Any], names: Names) -> str:
    chosen = rows["family"][family]
    on_gpu, is_python = any(rows["gpu"][row] for row in chosen), family == PYTHON
    order = "gpu" if on_gpu else "self_cpu" if is_python else "cpu"
    longest = sorted(chosen, key=lambda row: -rows[order][row])[:_PLAIN_ROWS]
    titles = {"gpu": "GPU total", "self_gpu": "GPU self"} if on_gpu else {}
    titles |= {"cpu": "CPU total", "self_cpu": "CPU self"}
    titles |= {"on_cpu": "on a CPU"} if is_python else {"p50": "p50", "p95": "p95"}
    header = ("name", "count", *titles.values())
    cells = [
        (
            f"<code>{shown(names.strings[rows['name'][row]][:160])}</code>",
            f"{rows['count'][row]:,}",
            *(time_text(rows[name][row]) for name in titles),
        )
        for row in longest
    ]
    more = f", the first {_PLAIN_ROWS} of {len(chosen):,}" if len(chosen) > _PLAIN_ROWS else ""
    text = table(header, cells, caption=f"{_TITLES[family]}{more}", numbers=range(1, len(header)))
    return f'<div class="plain">{text}</div>'


def _tree(whole: Tree) -> str:
    text = whole.render(max_depth=_PLAIN_LEVELS, min_percent=_PLAIN_SHARE, width=120).replace(whole.verdict, "")
    lines = text.rstrip().split("\n")
    more = [f"and {len(lines) - _PLAIN_ROWS:,} more"] if len(lines) > _PLAIN_ROWS else []
    shown_lines = "\n".join(map(shown, [*lines[:_PLAIN_ROWS], *more]))
    return file_of_page("tree.html") + f'<pre class="plain">{shown_lines}</pre>'


def _steps(breakdown: StepBreakdown | None, lanes: Lanes) -> dict[str, Any] | None:
    """Begin and end of steps; None if windows are shown instead of steps."""
    if breakdown is None or len(breakdown.steps) == 0 or breakdown.steps.source == WHOLE_RUN:
        return None
    steps = breakdown.steps
    starts, ends = lanes.ticks(steps.start_ns), lanes.ticks(steps.end_ns)
    return {"starts": np.diff(starts, prepend=0), "lengths": ends - starts, "source": steps.source}


def _is_communication(trace: Trace) -> np.ndarray[Any, Any]:
    return np.array([kernel_class(name) == KernelClass.COMMUNICATION for name in trace.kernel_names()], bool)


def _roofline(trace: Trace) -> str:
    """The roofline, if bytes or operations are known, as it may measure peaks of a GPU in this machine."""
    has_shapes = bool((trace.details.shapes != NONE).any())
    if not len(trace.kernels) or not (has_shapes or len(trace.counter_samples)):
        return ""
    try:
        return roofline_section(roofline(trace))
    except NotAvailable:
        return ""


def _reduced(lanes: Lanes, is_served: bool) -> str:
    if not lanes.windows:
        return ""
    return (
        f"The recording has {lanes.total:,} events, more than a page holds: {lanes.kept:,} of them are here one by "
        f"one, in {len(lanes.windows)} stretches of time with the first, median, slowest and last steps and the "
        "longest gaps. Tables, totals and the timeline from afar are of all."
        + (" The others are asked for where the view is near enough to show them." if is_served else "")
    )
