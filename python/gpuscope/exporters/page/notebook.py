# SPDX-License-Identifier: Apache-2.0
"""A recording in a notebook: static HTML of at most 30 kB, without scripts and style sheets, which notebooks strip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from gpuscope._core import GRAPH_NAME
from gpuscope.analysis.averages import Averages, key_averages
from gpuscope.analysis.completeness import audit
from gpuscope.analysis.program_tree import ProgramTree
from gpuscope.analysis.rows import OUTSIDE
from gpuscope.diagnosis import break_down, diagnose
from gpuscope.errors import NotAvailable
from gpuscope.exporters.page.report import render
from gpuscope.exporters.page.report_overview import figure_facts, title_of
from gpuscope.page.markup import share_text, shown, time_text
from gpuscope.page.planes import Array
from gpuscope.plots import COLOURS, GREY
from gpuscope.steps.breakdown import StepBreakdown
from gpuscope.steps.kernel_classes import KernelClass, kernel_class
from gpuscope.text import shorten
from gpuscope.trace import NONE, Trace

MOST_BYTES = 30_000

_ROWS, _FINDINGS, _NAME = 10, 5, 60
_BRANCHES, _COLUMNS = 20, 110  # of the tree of functions
_WIDTH, _LANE, _LEFT = 900, 14, 110  # pixels: of the drawing, a lane's height, and where lanes begin
_DEEPEST, _STREAMS = 5, 4  # lanes of regions and of streams
_LEAST_TEXT = 40  # pixels of a box that has its name
_CELL = 'style="padding:2px 10px;text-align:{}"'
_CLASSES = {
    KernelClass.TENSOR_PRODUCT: COLOURS[0],
    KernelClass.PRODUCT: COLOURS[4],
    KernelClass.ATTENTION: COLOURS[3],
    KernelClass.REDUCTION: COLOURS[1],
    KernelClass.ELEMENTWISE: COLOURS[2],
    KernelClass.OTHER: COLOURS[7],
    KernelClass.COMMUNICATION: COLOURS[5],
}
_COPY = "#888888"
_GRAPH = "#882255"
_REGIONS = ("#c6d7eb", "#f2dcc0", "#cfe8dc", "#ecd3e2", "#dcdcf2", "#e6e3c5")  # by depth


def notebook_html(trace: Trace) -> str:
    """Figures, findings, the ten rows that took most and a drawing of the median step.

    If long names would exceed `MOST_BYTES`, the drawing and then the findings are left out.
    """
    breakdown = _breakdown(trace)
    averages = key_averages(trace)
    parts = [
        f"<p><b>{shown(shorten(title_of(trace), 100))}</b><br>{shown(shorten(audit(trace).brief, 300))}</p>",
        _figures(trace, breakdown),
        _findings(trace),
        _table(averages),
        _functions(trace),
        _drawing(trace, breakdown),
    ]
    for left_out in ((), (5,), (5, 2)):
        kept = [part for number, part in enumerate(parts) if number not in left_out]
        html = f'<div style="max-width:{_WIDTH}px">{"".join(kept)}</div>'
        if len(html.encode("utf-8", "backslashreplace")) <= MOST_BYTES:
            break
    return html


def page_in_frame(trace: Trace, height: int, title: str | None = None) -> str:
    """The whole report in a frame that runs its scripts without access to the notebook.

    Args:
        trace: the recording.
        height: of the frame, in pixels.
        title: heading of the page.
    """
    # Without a base, links within the page are relative to the notebook.
    based = render(trace, title=title).replace("<head>", '<head><base href="about:srcdoc">', 1)
    page = escape(based, quote=True)
    return (
        f'<iframe sandbox="allow-scripts" title="gpuscope report" width="100%" height="{height}" '
        f'style="border:1px solid #8888" srcdoc="{page}"></iframe>'
    )


def _breakdown(trace: Trace) -> StepBreakdown | None:
    try:
        return break_down(trace)
    except NotAvailable:
        return None


def _figures(trace: Trace, breakdown: StepBreakdown | None) -> str:
    cells = "".join(
        f'<td style="padding:4px 16px 4px 0;text-align:left"><small>{shown(name)}</small><br><b>{shown(value)}</b>'
        f"<br><small>{shown(more)}</small></td>"
        for name, value, more in figure_facts(trace, breakdown)
    )
    return f"<table><tr>{cells}</tr></table>" if cells else ""


def _findings(trace: Trace) -> str:
    try:
        found = diagnose(trace)
    except NotAvailable:
        return ""
    if not found.findings:
        return f"<p>{shown(shorten(found.summary, 300))}</p>"
    items = []
    for finding in found.findings[:_FINDINGS]:
        where = next((str(each) for each in finding.where if str(each)), "")
        place = f" at <code>{shown(shorten(where, 100))}</code>" if where else ""
        worth = shown(finding.worth().replace("+-", "±"))
        advice = shown(shorten(finding.advice, 300))
        items.append(f"<li><b>{shown(finding.title)}</b> ({worth}){place}<br><small>→ {advice}</small></li>")
    more = len(found.findings) - len(items)
    return f"<ol>{''.join(items)}</ol>" + (f"<p><small>and {more} more</small></p>" if more > 0 else "")


def _table(averages: Averages) -> str:
    """The rows that took most: regions, operators, driver calls and GPU work."""
    on_gpu = averages.has_device
    key, total = (
        ("device_time_total", averages.self_device_time_total)
        if on_gpu
        else ("cpu_time_total", averages.self_cpu_time_total)
    )
    header = ("name", "calls", *(("GPU time", "share") if on_gpu else ()), "CPU time", *(() if on_gpu else ("share",)))
    rows = []
    for row in [row for row in averages.sorted_by(key) if row.key != OUTSIDE][:_ROWS]:
        share = share_text(getattr(row, key) / total) if total else "-"
        gpu = (time_text(row.device_time_total * 1e3), share) if on_gpu else ()
        cpu = (time_text(row.cpu_time_total * 1e3), *(() if on_gpu else (share,)))
        rows.append((row.key, f"{row.count:,}", *gpu, *cpu))
    if not rows:
        return ""
    head = "".join(
        f"<th {_CELL.format('right' if at else 'left')}>{shown(name)}</th>" for at, name in enumerate(header)
    )
    beyond = len(averages) - len(rows)
    more = f"<p><small>{beyond:,} more rows: key_averages()</small></p>" if beyond > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table>{more}"


def _functions(trace: Trace) -> str:
    """The tree of the program's functions, by samples."""
    if not len(trace.python_samples):
        return ""
    lines = ProgramTree(trace).render(_BRANCHES, _COLUMNS, more="samples()").splitlines()
    return f'<pre style="line-height:1.3;overflow-x:auto">{"<br>".join(map(shown, lines))}</pre>'


def _row(cells: Sequence[str]) -> str:
    name, *numbers = cells
    first = f"<td {_CELL.format('left')}><code>{shown(shorten(name, _NAME))}</code></td>"
    others = "".join(f"<td {_CELL.format('right')}>{shown(each)}</td>" for each in numbers)
    return f"<tr>{first}{others}</tr>"


# -- the median step ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lane:
    """Boxes next to each other: begin and end in ns, names and colours."""

    label: str
    start_ns: Array
    end_ns: Array
    names: Sequence[str]
    colours: Sequence[str]


def _drawing(trace: Trace, breakdown: StepBreakdown | None) -> str:
    if breakdown is None or not len(breakdown.steps):
        return ""
    steps = breakdown.steps
    step = int(np.argsort(steps.durations_ns, kind="stable")[len(steps) // 2])
    begin, end = int(steps.start_ns[step]), int(steps.end_ns[step])
    lanes = [*_regions(trace, begin, end, steps.thread), *_streams(trace, begin, end)]
    if not lanes or end <= begin:
        return ""
    scale = (_WIDTH - _LEFT) / (end - begin)
    drawn: list[str] = []
    texts: list[str] = []
    for number, lane in enumerate(lanes):
        y = number * (_LANE + 2)
        texts.append(f'<text x="0" y="{y + 11}">{shown(shorten(lane.label, 17))}</text>')
        drawn.extend(_boxes(lane, begin, end, scale, y))
        texts.extend(_names(lane, begin, end, scale, y))
    height = len(lanes) * (_LANE + 2)
    ran = {kernel_class(trace.kernel_names()[variant]) for variant in np.unique(_kernels(trace, begin, end)).tolist()}
    legend = " ".join(
        f'<span style="color:{_CLASSES[each]}">■</span> {shown(each.label)}' for each in KernelClass if each in ran
    )
    return (
        f"<p><small>the median step, {step + 1} of {len(steps)}: {time_text(end - begin)} ({shown(steps.source)})"
        f"{'<br>' if legend else ''}{legend}</small></p>"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="timeline of the median step" font-family="sans-serif" font-size="10">'
        f'{"".join(drawn)}<g fill="currentColor">{"".join(texts)}</g></svg>'
    )


def _kernels(trace: Trace, begin: int, end: int) -> Array:
    kernels = trace.kernels
    here = (kernels.start_ns < end) & (kernels.start_ns + kernels.duration_ns > begin)
    variants: Array = kernels.variant[here]
    return variants


def _regions(trace: Trace, begin: int, end: int, thread: int | None) -> Iterator[_Lane]:
    """The outer regions of the thread that takes the steps, a lane a level."""
    regions = trace.regions
    here = np.flatnonzero((regions.start_ns < end) & (regions.start_ns + regions.duration_ns > begin))
    if not len(here):
        return
    threads = regions.thread[here]
    chosen = int(np.bincount(threads).argmax()) if thread is None else thread
    here = here[threads == chosen]
    if not len(here):
        return
    paths = regions.path[here]
    depth = trace.paths.depth[paths].astype(int)
    spelled = {path: trace.string(int(trace.paths.name[path])) for path in np.unique(paths).tolist()}
    for level in np.unique(depth)[:_DEEPEST].tolist():
        at = here[depth == level]
        colour = _REGIONS[level % len(_REGIONS)]
        names = [spelled[path] for path in regions.path[at].tolist()]
        ends = regions.start_ns[at] + regions.duration_ns[at]
        label = "regions" if level == depth.min() else ""
        yield _Lane(label, regions.start_ns[at], ends, names, [colour] * len(at))


def _streams(trace: Trace, begin: int, end: int) -> Iterator[_Lane]:
    """Kernels, CUDA graphs traced as a whole, copies and fills, a lane a stream, the busiest stream first."""
    found: dict[int, list[tuple[int, int, str, str]]] = {}
    of_variant = [(name, _CLASSES[kernel_class(name)]) for name in trace.kernel_names()]
    short = trace.kernel_names(short=True)
    graphs = trace.graph_launches
    whole = [f"{GRAPH_NAME} {number}" for number in graphs.graph.tolist()]
    for table, what in ((trace.kernels, ""), (graphs, GRAPH_NAME), (trace.memcpy, "copy"), (trace.memset, "fill")):
        ends = table.start_ns + table.duration_ns
        rows = np.flatnonzero((table.start_ns < end) & (ends > begin))
        for row, start, stop, track in zip(rows, table.start_ns[rows], ends[rows], table.track[rows], strict=True):
            if what:
                name, colour = (whole[row], _GRAPH) if table is graphs else (what, _COPY)
            else:
                variant = int(table.variant[row])
                name, colour = (short[variant], of_variant[variant][1]) if variant < len(short) else ("", GREY)
            found.setdefault(int(track), []).append((int(start), int(stop), name, colour))
    for track, boxes in sorted(found.items(), key=lambda pair: -len(pair[1]))[:_STREAMS]:
        boxes.sort()
        starts, stops, names, colours = zip(*boxes, strict=True)
        known = track < len(trace.tracks)
        stream = int(trace.tracks.stream[track]) if known else NONE
        gpu = int(trace.tracks.device[track]) if known else 0
        label = f"GPU {gpu}" + (f" stream {stream}" if stream != NONE else "")
        yield _Lane(label, np.array(starts), np.array(stops), names, colours)


def _boxes(lane: _Lane, begin: int, end: int, scale: float, y: int) -> Iterator[str]:
    """One path for each colour; boxes of one colour that share a pixel are merged."""
    left = np.round((np.maximum(lane.start_ns, begin) - begin) * scale, 1)
    right = np.round((np.minimum(lane.end_ns, end) - begin) * scale, 1)
    order = np.argsort(left, kind="stable")
    for colour in dict.fromkeys(lane.colours):
        path, box = [], None
        for at in order[[lane.colours[at] == colour for at in order]].tolist():
            if box is not None and left[at] < box[1] + 0.7:
                box = (box[0], max(box[1], float(right[at])))
                continue
            if box is not None:
                path.append(_outline(*box))
            box = (float(left[at]), float(right[at]))
        if box is not None:
            path.append(_outline(*box))
        yield f'<path transform="translate({_LEFT} {y})" fill="{colour}" d="{"".join(path)}"/>'


def _outline(left: float, right: float) -> str:
    width = max(0.5, right - left - (0.3 if right - left > 2 else 0))
    return f"M{left:g} 0h{width:.4g}v{_LANE}h-{width:.4g}z"


def _names(lane: _Lane, begin: int, end: int, scale: float, y: int) -> Iterator[str]:
    """The names of boxes that have room for one."""
    for start, stop, name, colour in zip(lane.start_ns, lane.end_ns, lane.names, lane.colours, strict=True):
        left, right = (max(start, begin) - begin) * scale, (min(stop, end) - begin) * scale
        if right - left >= _LEAST_TEXT:
            text = shorten(name, int((right - left - 6) / 5.6))
            fill = "#222" if colour in _REGIONS else "#fff"
            yield f'<text x="{_LEFT + left + 3:.0f}" y="{y + 11}" fill="{fill}">{shown(text)}</text>'
