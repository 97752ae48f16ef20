# SPDX-License-Identifier: Apache-2.0
"""The parts of a report that need no script: figures, the breakdown of a step, findings, idle time, the audit."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.findings import OWN_CODE, Diagnosis, Finding, percent
from gpuscope.diagnosis.own_code import host_time, source_lines
from gpuscope.exporters.page.report_names import CATEGORIES, IMPORTS, OF_KINDS, brief_name
from gpuscope.page.markup import facts_list, share_bar, share_text, shown, table, time_text
from gpuscope.page.planes import Array
from gpuscope.plots import robust_limits
from gpuscope.steps.breakdown import IDLE, DeviceBreakdown, Part, StepBreakdown
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.kernel_classes import KernelClass
from gpuscope.steps.steps import WHOLE_RUN
from gpuscope.text import shorten
from gpuscope.trace import Trace, command_line, metadata_of, number_of
from gpuscope.units import format_bytes, format_date, format_digits, format_rate

if TYPE_CHECKING:
    from gpuscope.analysis import Audit
    from gpuscope.exporters.page.report_events import Lanes

_BARS = 120  # most bars; with more steps each bar is the slowest of a group
_GAPS = 20
_MOST_PIECES = 20_000  # of idle time are looked up by line, the longest
_MOST_DRAINS = 5
_MOST_OWN_LINES = 10
_LEAST_LINE = 0.01  # of the time
_VISIBLE = 0.005  # of the time of the steps: smaller parts have no row of their own
_BAR_HEIGHT, _BAR_WIDTH = 120, 10
_FAR = 2.0  # times the limit of most steps: longer bars are cut, as they would flatten the others
_CUT_AT, _CUT_HEIGHT = 12, 4  # the gap in its bar
_HOST_SLOTS = (1, 4, 6, 8, 2, 9, 0)
_MARKS = {"critical": "critical", "warn": "warning", "info": "note"}
_LINE = re.compile(r"(.+):(\d+)")
_MICROSECONDS = re.compile(r"(?<=\d) us\b")


def color_slot(part: Part) -> int:
    """Which color of the palette a part of a step has."""
    where, label = ("GPU idle", part.name) if part.kind == IDLE else OF_KINDS.get(part.kind, ("GPU", part.name))
    return CATEGORIES[where].get(label, 3)


# -- header ------------------------------------------------------------------------------------------------------------


def header_facts(trace: Trace, breakdown: StepBreakdown | None) -> str:
    """The program, the date, the duration and the machine."""
    info = trace.info
    start_ns, stop_ns = (number_of(info, f"session.{end}_ns") for end in ("start", "stop"))
    names = [trace.string(int(name)) for name in trace.devices.name] if len(trace.devices) else []
    gpus = ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
    rank, world = info.get("process.rank"), info.get("process.world_size")
    return facts_list(
        {
            "GPU": gpus or "none recorded",
            "recorded": time_text(stop_ns - start_ns) if stop_ns > start_ns else "",
            "began": format_date(start_ns),
            "steps": _count_of_steps(breakdown) if breakdown and breakdown.steps.repeat else "",
            "host": info.get("process.host", ""),
            "rank": f"{rank} of {world}" if rank and world else "",
            "driver": info.get("cuda.driver_version", ""),
            "mode": info.get("session.mode", "full"),
            "metadata": metadata_of(info),
        }
    )


def _count_of_steps(breakdown: StepBreakdown) -> str:
    excluded = f", {breakdown.left_out:,} more excluded" if breakdown.left_out else ""
    return f"{len(breakdown.steps):,}{excluded}"


def title_of(trace: Trace) -> str:
    """The program's command line, if known."""
    return command_line(trace.info) or "Recording"


# -- overview ----------------------------------------------------------------------------------------------------------


def figures(trace: Trace, breakdown: StepBreakdown | None) -> str:
    """`figure_facts` as a list."""
    return "".join(
        f'<div class="figure"><dt>{shown(name)}</dt><dd><b>{shown(value)}</b><span>{shown(more)}</span></dd></div>'
        for name, value, more in figure_facts(trace, breakdown)
    )


def figure_facts(trace: Trace, breakdown: StepBreakdown | None) -> list[tuple[str, str, str]]:
    """Up to four figures with name, value and note: the time of a step, the GPU's busy and idle time, memory."""
    made: list[tuple[str, str, str]] = []
    if breakdown is not None and len(breakdown.steps):
        lasted = breakdown.steps.durations_ns
        middle, high = np.quantile(lasted, (0.5, 0.95))
        spread = f"p50 {time_text(middle)} · p95 {time_text(high)}" if len(lasted) > 1 else ""
        if breakdown.steps.repeat:
            made.append((_mean_of("step", breakdown), time_text(lasted.mean()), spread))
        else:
            made.append(("run", time_text(breakdown.wall_ns), "no steps found"))
        if breakdown.devices:
            wall = max(breakdown.wall_ns, 1)
            busiest = min(breakdown.devices, key=lambda each: each.idle_ns)
            busy = 1 - busiest.idle_ns / wall
            made.append((f"GPU {busiest.device} busy", share_text(busy), "of the time of the steps"))
            causes = [part for part in busiest.parts if part.kind == IDLE]
            most = max(causes, key=lambda part: part.exclusive_ns, default=None)
            why = f"most of it {most.name}" if most else "never"
            made.append((f"GPU {busiest.device} idle", share_text(1 - busy), why))
    if len(trace.memory):
        on_gpu = trace.memory.ordinal != 0xFFFFFFFF
        rows = np.flatnonzero(on_gpu) if on_gpu.any() else np.arange(len(trace.memory))
        peak, held = (int(trace.memory[name][rows].max()) for name in ("allocated_bytes", "reserved_bytes"))
        more = f"{format_bytes(held)} held from the driver" if held else "of the host"
        made.append(("memory at the peak", format_bytes(peak), more))
    elif len(trace.kernels):
        busy_ns = int(trace.kernels.duration_ns.sum())
        made.append(
            ("kernels", f"{len(trace.kernels):,}", f"{time_text(busy_ns / len(trace.kernels))} each on average")
        )
    if breakdown is None and not len(trace.kernels) and trace.summary.device_ns:
        made.append(("GPU time", time_text(trace.summary.device_ns), "of kernels and copies, all streams together"))
    if not len(trace.kernels) and trace.summary.cpu_ns:
        counts = f"{len(trace.regions):,} regions" if len(trace.regions) else ""
        made.append(("CPU time in regions and calls", time_text(trace.summary.cpu_ns), counts))
    return made


def _mean_of(what: str, breakdown: StepBreakdown) -> str:
    """Names the mean of a step, or of a window without steps: parts add up only to the mean."""
    what = what if breakdown.steps.repeat else what.replace("step", "window")
    return f"{what}, mean of {len(breakdown.steps):,}"


def step_breakdown(breakdown: StepBreakdown, lanes: Lanes) -> str:
    """For each GPU a bar of the parts of a step, its legend, and the single steps."""
    return "".join(_device(device, breakdown, lanes) for device in breakdown.devices)


def _device(device: DeviceBreakdown, breakdown: StepBreakdown, lanes: Lanes) -> str:
    wall, count = max(breakdown.wall_ns, 1), max(len(breakdown.steps), 1)
    segments, rows = [], []
    for part in device.parts:
        share, slot = part.exclusive_ns / wall, color_slot(part)
        look = f"part {'idle ' if part.kind == IDLE else ''}c{slot}"
        words = f"{part.name}: {share_text(share)}"
        segments.append(
            f'<span class="{look}" style="flex-grow:{part.exclusive_ns}" data-ns="{part.exclusive_ns}" '
            f'title="{shown(words)}"></span>'
        )
        if share >= _VISIBLE:
            beside = f"{time_text(part.overlapped_ns / count)} more beside other work" if part.overlapped_ns else ""
            fill = f"grids fill {share_text(part.fill)} of the GPU" if part.fill is not None else ""
            remarks = ", ".join(filter(None, (beside, fill)))
            kind = "idle: " if part.kind == IDLE else ""
            rows.append(
                (
                    f'<span class="swatch {look}"></span>{kind}{shown(part.name)}'
                    + (f"<small>{shown(remarks)}</small>" if remarks else ""),
                    time_text(part.exclusive_ns / count),
                    share_text(share),
                )
            )
    small = [part for part in device.parts if part.exclusive_ns / wall < _VISIBLE]
    if small:
        rest = sum(part.exclusive_ns for part in small)
        rows.append(
            (f"{len(small)} smaller part{'s' * (len(small) > 1)}", time_text(rest / count), share_text(rest / wall))
        )
    total = sum(part.exclusive_ns for part in device.parts)
    whole = _mean_of("a step", breakdown)
    unit = whole.partition(",")[0]
    rows.append((f"<b>{whole}</b>", f"<b>{time_text(total / count)}</b>", f"<b>{share_text(total / wall)}</b>"))
    title = f"GPU {device.device} {device.name}".strip()
    return (
        f"<h3>What fills {unit} of {shown(title)}</h3>"
        f'<div class="bar" role="img" aria-label="{shown(title)}: {share_text(1 - device.idle_ns / wall)} busy" '
        f'data-wall="{breakdown.wall_ns}">{"".join(segments)}</div>'
        '<p class="hint">Solid: the GPU works. Striped: it is idle, and why.</p>'
        + '<div class="filled">'
        + _bars(device, breakdown, lanes)
        + table(("part", f"{unit}, mean", "share"), rows, caption=f"Parts of {unit} of {title}", numbers=(1, 2))
        + "</div>"
    )


def _bars(device: DeviceBreakdown, breakdown: StepBreakdown, lanes: Lanes) -> str:
    """The steps as columns, each a link to its place on the timeline; columns far longer than most are cut."""
    lasted = breakdown.steps.durations_ns
    if len(lasted) < 2:
        return ""
    edges = np.unique(np.linspace(0, len(lasted), min(len(lasted), _BARS) + 1).astype(int))
    slowest = [first + int(lasted[first:last].argmax()) for first, last in itertools.pairwise(edges.tolist())]
    drawn = lasted[slowest]
    most = float(drawn[drawn <= _FAR * robust_limits(drawn)[1]].max(initial=0)) or 1.0
    columns = []
    for place, step in enumerate(slowest):
        is_cut = lasted[step] > most
        top = float(_BAR_HEIGHT)
        boxes = []
        for part in device.parts:
            height = float(part.per_step_ns[step]) / max(most, lasted[step]) * (_BAR_HEIGHT - 4)
            if height < 0.15:
                continue
            top -= height
            look = f"{'idle ' if part.kind == IDLE else ''}f{color_slot(part)}"
            boxes.append(_box(look, top, _BAR_WIDTH - 2, height))
        if is_cut:
            boxes.append(_box("cut", _CUT_AT, _BAR_WIDTH - 2, _CUT_HEIGHT))
        words = f"step {step + 1:,}: {time_text(float(lasted[step]))}{', longer than is drawn' if is_cut else ''}"
        start, end = (
            int(lanes.ticks(each[step : step + 1])[0]) for each in (breakdown.steps.start_ns, breakdown.steps.end_ns)
        )
        columns.append(
            f'<a href="#/timeline?t={start}-{end}" transform="translate({place * _BAR_WIDTH})"><title>{words}</title>'
            f"{_box('hit', 0, _BAR_WIDTH, _BAR_HEIGHT)}{''.join(boxes)}</a>"
        )
    fewest, more = divmod(len(lasted), len(slowest))
    some = f"{fewest} or {fewest + 1}" if more else fewest
    each = "each step" if len(slowest) == len(lasted) else f"the slowest of each {some} steps"
    width, cut = len(slowest) * _BAR_WIDTH, int((drawn > most).sum())
    longer = f", {cut} longer {'one is' if cut == 1 else 'ones are'} cut" if cut else ""
    return (
        f'<figure class="steps"><svg viewBox="0 0 {width} {_BAR_HEIGHT}" preserveAspectRatio="none" role="group" '
        f'aria-label="Time of {each}">{"".join(columns)}</svg>'
        f"<figcaption>{each[0].upper()}{each[1:]}, to {time_text(most)}{longer}; click for its timeline. "
        f"Steps are {shown(breakdown.steps.source)}.</figcaption></figure>"
    )


def _box(look: str, top: float, width: float, height: float) -> str:
    """As a path, which is a quarter shorter than a rectangle."""
    return f'<path class="{look}" d="M0 {top:.4g}h{width:g}v{height:.3g}H0z"/>'


def findings(found: Diagnosis) -> str:
    """The verdict and the findings, the one that costs most first."""
    is_run = found.breakdown is not None and found.breakdown.steps.source == WHOLE_RUN
    heads = {"findings": f"What {'the run' if is_run else 'a step'} spends its time on", "fine": "Nothing stands out"}
    parts = [
        f'<h3>{heads.get(found.verdict, "Not enough evidence")}</h3><p class="verdict" data-verdict="{found.verdict}">'
        f"{_said(sentence(found.summary))}.</p>"
    ]
    if found.host_times:
        parts.append(_host_times(found))
    if found.left_out and found.breakdown is not None:
        first = f"The first {found.left_out - 1} (warm-up) and the" if found.left_out > 1 else "The"
        verb = "are" if found.left_out > 1 else "is"
        parts.append(f'<p class="hint">Mean of {len(found.breakdown.steps):,} steps. {first} last {verb} excluded.</p>')
    if found.findings:
        parts.append(f'<ol class="findings">{"".join(map(_finding, found.findings))}</ol>')
    small = "; ".join(f"{each.title} ({percent(each.saving or each.share)})" for each in found.small)
    notes = {
        "Small things": small,
        "Doubts": "; ".join(found.doubts),
        "Notes": "; ".join(found.conditions),
        "Not checked": "; ".join(found.unseen),
    }
    parts += [f'<p class="hint"><b>{name}:</b> {_said(text)}</p>' for name, text in notes.items() if text]
    return "".join(parts)


def _host_times(found: Diagnosis) -> str:
    """The parts of the time of a program without GPU work, as a bar and its legend."""
    imports = CATEGORIES["Python"][IMPORTS]
    parts = [
        (shown(name), share, imports if name.startswith(IMPORTS) else _HOST_SLOTS[at % len(_HOST_SLOTS)])
        for at, (name, share) in enumerate(found.host_times)
    ]
    bar = "".join(f'<span class="part c{slot}" style="flex-grow:{share:.4f}"></span>' for _, share, slot in parts)
    legend = "".join(
        f'<span><span class="swatch part c{slot}"></span>{name} {percent(share)}</span>' for name, share, slot in parts
    )
    hint = '<p class="hint">The time of a function here is without that of the others.</p>' if len(parts) > 2 else ""
    return f'<div class="bar" aria-hidden="true">{bar}</div><div class="legend">{legend}</div>{hint}'


def sentence(text: str) -> str:
    """A text that begins a line."""
    return text[:1].upper() + text[1:]


def _said(text: str) -> str:
    """A sentence of the diagnosis, with the units of the page."""
    return shown(_MICROSECONDS.sub(" µs", text))


def _place(where: Where | str | None) -> str:
    """A place in the program, with the file's name; the whole path is its tooltip."""
    if isinstance(where, Where):
        text, whole = str(where), f"{where.file}:{where.line}" if where.file is not None else ""
    else:
        text = whole = where or ""
        if is_line := _LINE.fullmatch(text):
            text = f"{os.path.basename(is_line[1])}:{is_line[2]}"
    return f'<span title="{shown(whole)}">{shown(text)}</span>' if whole not in ("", text) else shown(text)


def _finding(finding: Finding) -> str:
    worth = shown(finding.worth().replace("+-", "±"))
    where = "; ".join(dict.fromkeys(_place(each) for each in finding.where if str(each)))
    facts = "".join(f"<li>{_said(fact)}</li>" for fact in finding.facts())
    inside = "".join(
        f"<li>{_said(each.title)}: {percent(each.alone or each.share)}; {_said(each.advice)}</li>"
        for each in finding.parts
    )
    evidence = (f"<ul>{facts}{inside}</ul>" if facts or inside else "") + (
        f"<p>To see that it helped: {_said(finding.verify)}</p>" if finding.verify else ""
    )
    title = finding.title if finding.id == OWN_CODE else sentence(finding.title)  # which begins with a name
    return (
        f'<li class="finding {finding.severity}"><p><span class="mark">{_MARKS[finding.severity]}</span>'
        f"<b>{_said(title)}</b> <span class='worth'>{worth}</span></p>"
        + (f'<p class="where">at {where}</p>' if where else "")
        + f"<p>→ {_said(finding.advice)}</p>"
        + (f"<details><summary>Evidence</summary>{evidence}</details>" if evidence else "")
        + "</li>"
    )


# -- idle --------------------------------------------------------------------------------------------------------------


def idle(trace: Trace, breakdown: StepBreakdown, lanes: Lanes) -> str:
    """Causes of idle time, the calls after which it came, and the longest gaps."""
    parts = []
    wall, count = max(breakdown.wall_ns, 1), max(len(breakdown.steps), 1)
    places = Context(trace, breakdown.steps, breakdown)
    for device in breakdown.devices:
        idle_parts = [part for part in device.parts if part.kind == IDLE]
        most = max((part.exclusive_ns for part in idle_parts), default=0) / wall
        causes = [
            (
                f'<span class="swatch part idle c{color_slot(part)}"></span>{shown(part.name)}',
                time_text(part.exclusive_ns / count),
                share_bar(part.exclusive_ns / wall, most),
                f"<code>{_place(_line_of(places, device, part))}</code>",
            )
            for part in idle_parts
        ]
        if not causes:
            parts.append(f"<p>GPU {device.device} was never idle in the steps.</p>")
            continue
        name = f"GPU {device.device}"
        header: tuple[str, ...] = ("cause", "a step, mean", "share", "most of it before the launch at")
        parts.append(table(header, causes, caption=f"Why {name} was idle", numbers=(1, 2)))
        drains = [
            (shown(each.call), f"<code>{_place(each.where)}</code>", f"{each.count:,}", time_text(each.idle_ns / count))
            for each in device.drains[:_MOST_DRAINS]
        ]
        if drains:
            header = ("call that waited", "at", "times", "idle a step, mean")
            parts.append(table(header, drains, caption=f"Waits that left {name} without work", numbers=(2, 3)))
        header = ("gap", "length", "cause", "work after it", "launched at")
        caption = f"The longest gaps of {name}"
        parts.append(table(header, _gaps(trace, device, lanes, places), caption=caption, numbers=(1,)))
    return "".join(parts)


def _line_of(places: Context, device: DeviceBreakdown, part: Part) -> Where | None:
    """The place whose launches ended most of the idle time of a cause; None for a small cause."""
    if part.exclusive_ns < _VISIBLE * places.breakdown.wall_ns:
        return None
    cause = next((each for each in IdleCause if each.label == part.name), IdleCause.UNSEEN)
    weights = device.pieces.cause_ns[cause]
    rows = np.flatnonzero(weights)
    if len(rows) > _MOST_PIECES:
        rows = rows[np.argpartition(weights[rows], -_MOST_PIECES)[-_MOST_PIECES:]]
    if len(rows) == 0:
        return None
    return places.lines(device.pieces.launch[rows], weights[rows])[0][0]


def _gaps(trace: Trace, device: DeviceBreakdown, lanes: Lanes, places: Context) -> Iterator[tuple[str, ...]]:
    pieces, work = device.pieces, device.work
    lasted = pieces.end_ns - pieces.start_ns
    causes = list(IdleCause)
    names = trace.kernel_names()
    for gap in longest_of(lasted, _GAPS):
        start, end = (int(lanes.ticks(each[gap : gap + 1])[0]) for each in (pieces.start_ns, pieces.end_ns))
        around = max((end - start) // 2, 10)
        row, call = int(pieces.next[gap]), int(pieces.launch[gap])
        after = work.kinds[int(work.classes[row])][0]
        if work.tables[row] == 0:
            variant = int(trace.kernels.variant[work.rows[row]])
            after = brief_name(names[variant]) if variant < len(names) else after
        where = places.lines(np.array([call]), np.ones(1))[0][0] if call >= 0 else None
        yield (
            f'<a href="#/timeline?t={max(start - around, 0)}-{end + around}">at {time_text(start * 32)}</a>',
            time_text(int(lasted[gap])),
            shown(causes[int(pieces.cause_ns[:, gap].argmax())].label),
            f"<code>{shown(shorten(after, 120))}</code>",
            f"<code>{_place(where)}</code>",
        )


def longest_of(lengths: Array, count: int) -> list[int]:
    """The indices of the `count` longest, the longest first."""
    rows = np.arange(len(lengths))
    if len(lengths) > count:
        rows = np.sort(np.argpartition(lengths, -count)[-count:])
    found: list[int] = rows[np.argsort(-lengths[rows], kind="stable")].tolist()
    return found


# -- lines of the program ----------------------------------------------------------------------------------------------


def own_lines(trace: Trace, breakdown: StepBreakdown) -> str:
    """The program's own lines with most of the time, by samples, and their source; "" without any."""
    context = Context(trace, breakdown.steps, breakdown)
    found = context.once(host_time)
    wall, repeat = max(found.wall_ns, 1), breakdown.steps.repeat
    functions = list(found.functions)
    for function in functions:
        functions += [inner for inner in function.inner if inner not in functions]
    lines = {
        (each.where.file or "", line, each.where.function or ""): time_ns
        for each in functions
        for line, time_ns in each.lines
        if time_ns >= _LEAST_LINE * wall
    }
    longest = sorted(lines.items(), key=lambda each: -each[1])[:_MOST_OWN_LINES]
    rows = [
        (
            share_bar(time_ns / wall, longest[0][1] / wall),
            time_text(time_ns / max(len(breakdown.steps), 1)),
            f"<code>{_place(f'{file}:{line}')}</code> {shown(function)} "
            f"<code class='text'>{shown(next(iter(source_lines(trace, file)[line - 1 : line]), '').strip())}</code>",
        )
        for (file, line, function), time_ns in longest
    ]
    if not rows:
        return ""
    header = ("share of the steps", "a step, mean", "line") if repeat else ("share of the run", "time", "line")
    return table(header, rows, caption="Your lines with most of the time, with all that they call", numbers=(0, 1))


# -- communication -----------------------------------------------------------------------------------------------------


def communication(trace: Trace, breakdown: StepBreakdown | None, classes: Array) -> str:
    """Collectives by kernel, with the time that other work does not hide; "" without any."""
    kernels = trace.kernels
    if len(classes) == 0 or len(kernels) == 0:
        return ""
    variants = np.minimum(kernels.variant, len(classes) - 1)
    rows = np.flatnonzero(classes[variants])
    if len(rows) == 0:
        return ""
    parts = []
    label = KernelClass.COMMUNICATION.label
    for device in breakdown.devices if breakdown else ():
        part = next((part for part in device.parts if part.name == label), None)
        if part is not None and part.covered_ns and breakdown is not None:
            hidden = share_text(part.overlapped_ns / part.covered_ns)
            exposed = share_text(part.exclusive_ns / max(breakdown.wall_ns, 1))
            parts.append(f"<p>GPU {device.device}: {hidden} of its communication is hidden behind other work; "
                         f"the rest takes {exposed} of the time.</p>")  # fmt: skip
    names = [brief_name(name) for name in trace.kernel_names()]
    distinct = list(dict.fromkeys(names))
    group = np.array([distinct.index(name) for name in names])[variants[rows]]
    sizes = _message_bytes(trace)
    weights = (None, kernels.duration_ns[rows], sizes[np.minimum(kernels.region[rows], len(sizes) - 1)])
    sums = np.stack([np.bincount(group, each, len(distinct)) for each in weights], axis=1)
    cells = [
        (
            f"<code>{shown(distinct[number])}</code>",
            f"{int(count):,}",
            time_text(time_ns),
            time_text(time_ns / count),
            format_bytes(size) if size else "-",
            format_rate(size / (time_ns / 1e9), "B") if size and time_ns else "-",
        )
        for number, (count, time_ns, size) in sorted(enumerate(sums.tolist()), key=lambda each: -each[1][1])
        if count
    ]
    header = ("kernel", "count", "total", "mean", "message bytes", "bytes a second")
    return "".join(parts) + table(header, cells, caption="Collectives", numbers=(1, 2, 3, 4, 5))


def _message_bytes(trace: Trace) -> Array:
    """The size of the message by region, if NCCL reports it, else 0; a 0 follows the last."""
    payloads = trace.payloads
    found = np.zeros(len(trace.regions) + 1)
    names = [name for name in np.unique(payloads.name).tolist() if trace.string(name).startswith("Message size")]
    rows = np.flatnonzero(np.isin(payloads.name, names) & (payloads.type == 0) & (payloads.region < len(trace.regions)))
    found[payloads.region[rows]] = payloads.value[rows]
    return found


# -- audit -------------------------------------------------------------------------------------------------------------


def _count_text(name: str, value: float) -> str:
    if name.endswith("_ns"):
        return time_text(value)
    return f"{value:,}" if isinstance(value, int) else format_digits(value)


def audit_section(trace: Trace, audit: Audit, reduced: str) -> str:
    """Every count behind the verdict, and where the recording was made."""
    values = audit.to_dict()
    counts = [
        (shown(name.removesuffix("_ns").replace("_", " ")), _count_text(name, value))
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value
    ]
    notes = [f"<li>{shown(text)}</li>" for text in (*audit.reasons, *audit.remarks, reduced) if text]
    ignored = ("audit.", "session.notes", "session.windows_ns", "session.step_edges_ns", "session.step_costs_ns")
    facts = sorted((key, value) for key, value in trace.info.items() if not key.startswith(ignored) and value)
    cells = [(f"<code>{shown(key)}</code>", shown(value[:500])) for key, value in facts]
    return (
        (f"<ul>{''.join(notes)}</ul>" if notes else "")
        + '<div class="columns">'
        + (table(("count", ""), counts, caption="Counts that are not 0", numbers=(1,)) if counts else "")
        + table(("fact", ""), cells, caption="Where and how it was recorded")
        + "</div>"
    )
