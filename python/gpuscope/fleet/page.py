# SPDX-License-Identifier: Apache-2.0
"""A job as one interactive HTML page: its verdict, heat maps of ranks, their table, and a timeline of some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.fleet.tables import Array, Columns
from gpuscope.fleet.verdict import JobDiagnosis, JobFinding
from gpuscope.page.markup import file_of_page, filled, island, page_of, share_text, shown, time_text
from gpuscope.page.planes import TIMES, PageColumn, encode
from gpuscope.spans import free_lanes
from gpuscope.text import one_line, shorten

SCRIPTS = (
    *("units.js", "elements.js", "data.js", "theme.js", "axis.js", "lanes.js", "pen.js", "model.js"),
    *("timeline.js", "table.js", "keys.js", "sections.js", "fleet.js"),
)
"""The modules of the page, each after its imports."""

_HEADINGS = {
    "overview": "Overview",
    "steps": "Steps of all ranks",
    "waits": "Waits",
    "tables": "Ranks",
    "timeline": "Timeline",
}
_MOST_CELLS = 400_000  # of a value by step; of more, successive steps are averaged
_MOST_WAITS = 240_000  # cells of waits by collective
_MOST_BLAMED = 64  # ranks with a matrix of who waits for whom
_RATIO_UNIT = 0.0025  # of the codes of compute
_SHOWN_STEPS = 3
_COSTLIEST, _TYPICAL = 2, 2  # ranks of the timeline
_LANES = 6  # of overlapping collectives
_THINGS = {
    "compute": ("GPU", 7),
    "copies": ("GPU", 0),
    "no work": ("GPU idle", 2),
    "wait": ("collectives", 1),
    "transfer": ("collectives", 11),
    "step": ("CPU", 8),
}
"""Pieces of the timeline: where each runs, and its color."""
_PARTS = ("wait", "transfer")  # of a collective


def render(
    found: JobDiagnosis,
    tables: Mapping[str, Columns],
    collectives: Columns,
    ranks: Sequence[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> str:
    """The page's text.

    Args:
        found: the job's diagnosis.
        tables: its tables.
        collectives: its collective table with aligned times.
        ranks: of the timeline; default the two costliest and two typical ones.
        steps: the first and the last of the timeline; default three, in which the costliest rank is late as usual.

    Raises:
        InvalidArgument: a rank or all these steps have no recording.
    """
    figures = _Figures.of(found, tables, collectives)
    chosen = _chosen_ranks(figures, ranks)
    shown_steps = _chosen_steps(figures, chosen, steps)
    timeline, columns = _timeline(tables["segment"], figures, chosen, shown_steps)
    matrices: dict[str, list[dict[str, Any]]] = {}
    for place, views in (("steps", _step_views(figures)), ("waits", _wait_views(figures))):
        if views:
            matrices[place] = [facts for facts, _ in views]
            columns |= {f"cells-{facts['key']}": PageColumn(codes) for facts, codes in views}
    facts, texts = encode(columns)
    sections = {
        "overview": _overview(found),
        "steps": _matrix_section("steps", "Value of each rank and step", is_first=True) if "steps" in matrices else "",
        "waits": _matrix_section("waits", "Waits of each rank", "steps" not in matrices) if "waits" in matrices else "",
        "tables": _tables(figures),
        "timeline": _timeline_section(figures, chosen, shown_steps) if timeline["groups"] else "",
    }
    sections = {name: text for name, text in sections.items() if text}
    rows, texts_of_rows = figures.rows(timeline["strings"])
    data = {
        "tick_ns": 1,
        "windows": [],
        "series": [],
        "steps": None,
        "has_gpu": True,
        "ratio_unit": _RATIO_UNIT,
        "matrices": matrices,
        "columns": facts,
        "rows": rows,
        **texts_of_rows,
        **timeline,
    }
    parts = {
        "title": shown(f"{found.seen:,} of {found.expected:,} ranks on {found.hosts:,} host{'s' * (found.hosts != 1)}"),
        "verdict": shown(found.verdict.removeprefix("verdict: ")),
        "navigation": "".join(f'<a href="#/{name}">{_HEADINGS[name]}</a>' for name in sections),
        "sections": "".join(
            f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{_HEADINGS[name]}</h2>'
            f"{text}</section>"
            for name, text in sections.items()
        ),
        "data": island(data),
        "columns": "".join(
            f'<script type="text/plain" id="column-{name}">{text}</script>' for name, text in texts.items()
        ),
    }
    return page_of(
        "fleet.html", parts, styles=("parts.css", "fleet.css"), scripts=SCRIPTS, data_id="fleet", package=__package__
    )


# -- figures of ranks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Figures:
    """Figures by position of the rank in `numbers`; NaN if not known.

    Attributes:
        numbers: the ranks, in order.
        rank: the columns of the rank table, in this order.
        role: index of each rank's role.
        comparable: whether its clock is aligned.
        step: of each row of the step table, the position of its rank.
        wait_ns: of each row of the collective table, its wait; NaN if it was left out.
        collective: of each row of the collective table, the position of its rank.
        found: the diagnosis.
        columns: the step table, and the collective table.
    """

    numbers: Array
    rank: Columns
    role: Array
    comparable: Array
    step: Array
    wait_ns: Array
    collective: Array
    found: JobDiagnosis
    columns: tuple[Columns, Columns]

    @classmethod
    def of(cls, found: JobDiagnosis, tables: Mapping[str, Columns], collectives: Columns) -> _Figures:
        ranks, step = tables["rank"], tables["step"]
        order = np.argsort(ranks["rank"], kind="stable")
        ranks = {name: values[order] for name, values in ranks.items()}
        numbers = ranks["rank"]
        instances = found.waits.instances
        wait = np.full(len(collectives["rank"]), np.nan)
        ready = np.minimum(instances.last_ns[instances.instance], instances.release_ns)
        wait[instances.row] = ready - instances.arrival_ns
        _, role = np.unique(ranks["role"], return_inverse=True)
        unaligned = np.array(list(found.clock.unaligned), np.int64)
        return cls(
            numbers=numbers,
            rank=ranks,
            role=role.reshape(-1),
            comparable=~np.isin(numbers, unaligned),
            step=np.searchsorted(numbers, step["rank"]),
            wait_ns=wait,
            collective=np.searchsorted(numbers, collectives["rank"]),
            found=found,
            columns=(step, collectives),
        )

    def medians(self, column: str) -> Array:
        """Of a column of the step table, the median of each rank; NaN without steps."""
        values, found = self.columns[0][column], np.full(len(self.numbers), np.nan)
        order = np.lexsort((values, self.step))
        count = np.bincount(self.step, minlength=len(self.numbers))
        first, has = np.cumsum(count) - count, count > 0
        low, high = (first + (count - 1) // 2)[has], (first + count // 2)[has]
        found[has] = (values[order][low] + values[order][high]) / 2
        return found

    def sums(self, column: str) -> Array:
        """Of a column of the step table, the sum of each rank."""
        return np.bincount(self.step, self.columns[0][column], len(self.numbers))

    def slower(self) -> Array:
        """Compute of each rank relative to the median of its role, less 1."""
        compute = self.medians("compute_ns")[:, None]
        return _relative(compute, self.role)[:, 0]

    def costs(self) -> Array:
        """GPU time that other ranks waited for each one, ns."""
        costs = np.zeros(len(self.numbers))
        for late in self.found.waits.late:
            costs[np.searchsorted(self.numbers, late.rank)] = late.cost_s * 1e9
        return costs

    def rows(self, strings: list[str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """The rows of the table, times in ns, and the texts of its columns. Adds the names of ranks to `strings`."""
        causes = {late.rank: late.cause for late in self.found.waits.late}
        names = [len(strings) + at for at in range(len(self.numbers))]
        strings += [f"rank {number}" for number in self.numbers.tolist()]
        texts: dict[str, list[str]] = {}

        def coded(name: str, values: Sequence[str]) -> list[int]:
            codes: dict[str, int] = {}
            found = [codes.setdefault(one_line(value), len(codes) + 1) if value else 0 for value in values]
            texts[name] = list(codes)
            return found

        known = np.isfinite(self.wait_ns) & (self.columns[1]["step"] >= 0)
        wait = np.bincount(self.collective[known], self.wait_ns[known], len(self.numbers))
        total = self.sums("duration_ns")
        rows: dict[str, Any] = {
            "name": names,
            "full": names,
            **{name: coded(f"{name}s", self.rank[name].tolist()) for name in ("host", "device", "verdict")},
            "cause": coded("causes", [causes.get(number, "") for number in self.numbers.tolist()]),
            "cost": _rounded(self.costs(), None),
            "step": _rounded(self.medians("duration_ns"), None),
            "compute": _rounded(self.medians("compute_ns"), None),
            "slower": _rounded(self.slower()),
            "wait": _rounded(_over(wait, total)),
            "exposed": _rounded(_over(self.sums("exposed_ns"), total)),
            "idle": _rounded(_over(self.sums("idle_ns"), total)),
            "role": (self.role + 1).tolist() if self.role.max(initial=0) else [0] * len(names),
            "family": {"ranks": list(range(len(names)))},
            "totals": {},
        }
        return rows, texts


def _over(part: Array, whole: Array) -> Array:
    found: Array = np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) > 0)
    return found


def _rounded(values: Array, digits: int | None = 4) -> list[float | None]:
    return [None if np.isnan(value) else round(value, digits) for value in values.tolist()]


def _relative(values: Array, group: Array) -> Array:
    """Values relative to the median of each column over the rows of a group, less 1; of a single row, to its own."""
    found = np.full(values.shape, np.nan)
    for each in np.unique(group):
        rows = np.flatnonzero(group == each)
        ordered = np.sort(values[rows], axis=0 if len(rows) > 1 else 1)
        ordered = ordered if len(rows) > 1 else ordered.T
        count = np.isfinite(ordered).sum(axis=0)[None]
        ends = [np.take_along_axis(ordered, np.maximum(at, 0), axis=0) for at in ((count - 1) // 2, count // 2)]
        middle = np.broadcast_to((ends[0] + ends[1]) / 2, values[rows].shape)
        found[rows] = _over(values[rows], middle) - 1
    return found


# -- heat maps ---------------------------------------------------------------------------------------------------------

_View = tuple[dict[str, Any], Array]


def _view(key: str, title: str, kind: str, what: str, names: list[str], codes: Array) -> _View:
    return {"key": key, "title": title, "kind": kind, "what": what, "names": names}, codes.reshape(-1)


def _shares_coded(shares: Array) -> Array:
    found: Array = np.where(np.isfinite(shares), 1 + np.rint(254 * np.clip(np.nan_to_num(shares), 0, 1)), 0)
    return found.astype(np.int64)


def _step_views(figures: _Figures) -> list[_View]:
    """Values of each rank and step, as codes from 1; 0 for none."""
    (step, collective), ranks = figures.columns, len(figures.numbers)
    if not len(step["step"]):
        return []
    labels, at = np.unique(step["step"], return_inverse=True)
    each = -(-len(labels) * ranks // _MOST_CELLS)
    names = [
        f"{labels[first]}" if each == 1 else f"{labels[first]} to {labels[min(first + each, len(labels)) - 1]}"
        for first in range(0, len(labels), each)
    ]
    cell = figures.step * len(names) + at.reshape(-1) // each

    def cells(values: Array, where: Array = cell) -> Array:
        found: Array = np.bincount(where, values, ranks * len(names)).reshape(ranks, len(names))
        return found

    duration, count = cells(step["duration_ns"]), cells(np.ones(len(cell)))
    ratio = _relative(_over(cells(step["compute_ns"]), count), figures.role) / _RATIO_UNIT
    compute = np.where(np.isfinite(ratio), 128 + np.rint(np.clip(np.nan_to_num(ratio), -127, 127)), 0)
    what = "steps" if each > 1 else "step"
    views = []
    if step["compute_ns"].any():
        views.append(_view("compute", "compute, to its equals", "ratio", what, names, compute.astype(np.int64)))
    known = np.isfinite(figures.wait_ns) & np.isin(collective["step"], labels)
    if known.any():
        column = np.searchsorted(labels, collective["step"][known]) // each
        waits = cells(figures.wait_ns[known], figures.collective[known] * len(names) + column)
        waits[~figures.comparable] = np.nan
        views.append(_view("wait", "waits", "share", what, names, _shares_coded(_over(waits, duration))))
    for key, title in (("idle", "idle"), ("exposed", "exposed communication")):
        views.append(_view(key, title, "share", what, names, _shares_coded(_over(cells(step[f"{key}_ns"]), duration))))
    return views


def _wait_views(figures: _Figures) -> list[_View]:
    """Waits of each rank, by position of the collective in the step and by the rank that was late; codes in us."""
    collective, waits, ranks = figures.columns[1], figures.found.waits, len(figures.numbers)
    known = np.flatnonzero(np.isfinite(figures.wait_ns) & (collective["step"] >= 0))
    if not len(known):
        return []
    order = known[np.lexsort((collective["start_ns"][known], collective["step"][known], figures.collective[known]))]
    rank, step = figures.collective[order], collective["step"][order]
    begins = np.append(True, (np.diff(rank) != 0) | (np.diff(step) != 0))
    first = np.flatnonzero(begins)
    position = np.arange(len(order)) - first[np.cumsum(begins) - 1]
    each = -(-(int(position.max()) + 1) * ranks // _MOST_WAITS)
    column = position // each
    wide = int(column.max()) + 1
    kinds = dict(zip(position[::-1].tolist(), collective["kind"][order][::-1].tolist(), strict=True))
    names = [f"{at + 1} {kinds[at]}" if each == 1 else f"{at + 1} to {at + each}" for at in range(0, wide * each, each)]
    cell = rank * wide + column
    count = np.bincount(cell, minlength=ranks * wide)
    mean = _over(np.bincount(cell, figures.wait_ns[order], ranks * wide), count)
    views = [_view("position", "mean wait", "time", "collective", names, _times_coded(mean))]
    if ranks <= _MOST_BLAMED:
        found = waits.instances
        steps = max(len(np.unique(step)), 1)
        late = np.searchsorted(figures.numbers, found.members.rank[found.rank[found.late]])[found.instance]
        counts = (found.is_fence & (found.lead_ns > found.error_ns))[found.instance]
        cell = figures.collective[found.row] * ranks + late
        total = np.bincount(cell[counts], figures.wait_ns[found.row][counts], ranks * ranks) / steps
        names = [f"rank {number}" for number in figures.numbers.tolist()]
        views.append(_view("blame", "waits a step", "time", "for", names, _times_coded(total)))
    return views


def _times_coded(times_ns: Array) -> Array:
    found: Array = np.where(np.isfinite(times_ns), 1 + np.rint(np.nan_to_num(times_ns) / 1000), 0)
    return found.astype(np.int64)


def _matrix_section(name: str, label: str, is_first: bool) -> str:
    choices = {"rank": "number", "host": "host", "role": "role", "cost": "cost", "slower": "compute"}
    options = "".join(f'<option value="{value}">{text}</option>' for value, text in choices.items())
    order = f'<label>Ranks by <select id="order">{options}</select></label>' if is_first else ""
    return filled(file_of_page("matrix.html", str(__package__)), {"id": name, "label": label, "order": order})


# -- overview and table ------------------------------------------------------------------------------------------------


def _overview(found: JobDiagnosis) -> str:
    figures = []
    if found.breakdown is not None:
        steps = f"{found.breakdown.steps:,} steps, mean of all ranks"
        figures.append(("a step takes", time_text(found.breakdown.step_s * 1e9), steps))
        for part, share in found.breakdown.shares.items():
            least, low, most, high = found.breakdown.extremes[part]
            ends = f"{share_text(low)} (rank {least}) to {share_text(high)} (rank {most})"
            figures.append((part, share_text(share), ends))
    waiting = found.waits.wait_share
    if found.waits.count and waiting is not None:
        figures.append(("of collectives is waiting", share_text(waiting), f"{found.waits.count:,} collectives"))
    if len(found.clock.nodes) > 1:
        worst = max(node.error_ns for node in found.clock.nodes)
        figures.append(("clocks are aligned within", time_text(worst), f"{len(found.clock.nodes):,} hosts"))
    text = "".join(
        f"<div class='figure'><dt>{shown(a)}</dt><dd><b>{shown(b)}</b><span>{shown(c)}</span></dd></div>"
        for a, b, c in figures
    )
    parts = [f'<dl class="figures">{text}</dl>'] if figures else []
    if found.findings:
        parts.append(f'<h3>Findings</h3><ol class="findings">{"".join(map(_finding, found.findings))}</ol>')
    if found.notes:
        notes = "".join(f"<li>{shown(shorten(each, 300))}</li>" for each in found.notes)
        parts.append(f'<details class="notice"><summary>Notes: {len(found.notes):,}</summary>'
                     f'<ul class="notes">{notes}</ul></details>')  # fmt: skip
    return "".join(parts) or '<p class="hint">No steps and no collectives were recorded.</p>'


def _finding(finding: JobFinding) -> str:
    level = "" if finding.share is None else "critical" if finding.share >= 0.1 else "warn"
    worth = ""
    if finding.cost_s is not None and finding.share is not None:
        cost = time_text(finding.cost_s * 1e9)
        worth = f'<span class="worth">{cost} of GPU time, {share_text(finding.share)}</span>'
    advice = f"<p>{shown(finding.advice)}</p>" if finding.advice else ""
    mark = f'<span class="mark">{shown(finding.kind)}</span>'
    return f'<li class="finding {level}">{mark}<p>{shown(finding.sentence)}{worth}</p>{advice}</li>'


def _tables(figures: _Figures) -> str:
    tab = (
        '<button type="button" role="tab" id="tab-ranks" data-family="ranks" aria-controls="rows" '
        f'aria-selected="false">Ranks <small>{len(figures.numbers):,}</small></button>'
    )
    return filled(file_of_page("tables.html"), {"tabs": tab})


# -- timeline ----------------------------------------------------------------------------------------------------------


def _chosen_ranks(figures: _Figures, ranks: Sequence[int] | None) -> list[int]:
    """Positions of the ranks of the timeline."""
    if ranks is not None:
        known = set(figures.numbers[figures.comparable].tolist())
        if unknown := [rank for rank in ranks if rank not in known]:
            raise InvalidArgument(
                f"ranks has {unknown[0]}; accepted are the {len(known):,} ranks with a recording and an aligned clock"
            )
        return [int(np.searchsorted(figures.numbers, rank)) for rank in dict.fromkeys(ranks)]
    slower, costs = figures.slower(), figures.costs()
    order = np.lexsort((-np.nan_to_num(slower, nan=-1.0), -costs, ~figures.comparable))
    worst = order[:_COSTLIEST].tolist()
    usual = np.lexsort((np.abs(np.nan_to_num(slower, nan=9.0)), costs > np.median(costs), ~figures.comparable))
    found = [*worst, *[at for at in usual.tolist() if at not in worst][:_TYPICAL]]
    return [at for at in found if figures.comparable[at]]


def _chosen_steps(figures: _Figures, chosen: Sequence[int], steps: tuple[int, int] | None) -> Array:
    """Numbers of the steps of the timeline."""
    table, waits = figures.columns[0], figures.found.waits
    there = np.unique(table["step"][np.isin(figures.step, chosen)])
    if steps is not None:
        found: Array = there[(there >= steps[0]) & (there <= steps[1])]
        if not len(found):
            raise InvalidArgument(f"steps is {steps[0]}:{steps[1]}; the ranks {_range(there)}")
        return found
    instances = waits.instances
    middle = len(there) // 2
    if len(chosen) and len(instances.late) and len(there):
        of = np.searchsorted(figures.numbers, instances.members.rank[instances.rank[instances.late]])
        at = figures.columns[1]["step"][instances.row[instances.late]]
        mine = (of == chosen[0]) & np.isin(at, there)
        lead = np.bincount(np.searchsorted(there, at[mine]), instances.lead_ns[mine], len(there))
        if (late := np.flatnonzero(lead)).size:
            middle = int(late[np.argsort(lead[late], kind="stable")][len(late) // 2])
    first = max(0, min(middle - _SHOWN_STEPS // 2, len(there) - _SHOWN_STEPS))
    return there[first : first + _SHOWN_STEPS]


def _range(steps: Array) -> str:
    return f"have steps {steps[0]} to {steps[-1]}" if len(steps) else "have no steps"


def _timeline(
    segment: Columns, figures: _Figures, chosen: Sequence[int], steps: Array
) -> tuple[dict[str, Any], dict[str, PageColumn]]:
    """The timeline's data and its columns: steps, work between collectives, and collectives as wait and transfer."""
    step, collectives = figures.columns
    events: dict[str, list[tuple[Array, Array, Array]]] = {"regions": [], "work": []}
    groups: list[dict[str, Any]] = []
    strings: list[str] = [*_THINGS]
    things: list[tuple[int, int]] = [(at, at) for at in range(len(_THINGS))]
    place = {name: at for at, name in enumerate(_THINGS)}

    def thing(name: str, category: str) -> int:
        strings.append(one_line(name))
        things.append((len(strings) - 1, place[category]))
        return len(things) - 1

    number_of_step = {each: thing(f"step {each}", "step") for each in steps.tolist()}
    kinds = {
        (kind, part): thing(f"{kind}: {part}", part)
        for kind in dict.fromkeys(collectives["kind"].tolist())
        for part in _PARTS
    }
    for at in chosen:
        number = int(figures.numbers[at])
        rows = np.flatnonzero((figures.step == at) & np.isin(step["step"], steps))
        if not len(rows):
            continue
        rows = rows[np.argsort(step["start_ns"][rows])]
        start, length = figures.found.clock.aligned(number, step["start_ns"][rows]), step["duration_ns"][rows]
        own = np.flatnonzero((figures.collective == at) & np.isin(collectives["step"], steps))
        own = own[np.argsort(collectives["start_ns"][own], kind="stable")]
        arrival, release = collectives["start_ns"][own], collectives["end_ns"][own]
        wait = np.nan_to_num(figures.wait_ns[own]).astype(np.int64)
        lanes = [_pieces(segment, number, step["step"][rows], start, length, arrival, release)]
        lane_of = free_lanes(arrival, release, most=_LANES)
        for lane in range(int(lane_of.max(initial=-1)) + 1):
            mine = np.flatnonzero(lane_of == lane)
            begins = np.stack([arrival[mine], arrival[mine] + wait[mine]], axis=1)
            spent = np.stack([wait[mine], (release - arrival - wait)[mine]], axis=1)
            what = [[kinds[kind, part] for part in _PARTS] for kind in collectives["kind"][own[mine]].tolist()]
            keep = spent > 0
            lanes.append((begins[keep], spent[keep], np.array(what, np.int64).reshape(-1, 2)[keep]))
        host = str(figures.rank["host"][at])
        title = f"rank {number} on {host}" if host else f"rank {number}"
        named = np.array([number_of_step[each] for each in step["step"][rows].tolist()], np.int64)
        for kind, name, found in (("regions", "regions", [(start, length, named)]), ("stream", "work", lanes)):
            made = []
            for lane_events in found:
                first = sum(len(begins) for begins, *_ in events[name])
                events[name].append(lane_events)
                end = first + len(lane_events[0])
                made.append({"table": name, "first": first, "end": end, "total": end - first})
            strings.append(one_line(title if kind == "regions" else f"{title}: work and collectives"))
            groups.append({"title": len(strings) - 1, "kind": kind, "lanes": made})
    zero = min((int(begins.min()) for parts in events.values() for begins, *_ in parts if len(begins)), default=0)
    columns, firsts, span = {}, {}, 1
    for name, parts in events.items():
        if not parts:
            continue
        firsts[name] = np.cumsum([0, *[len(begins) for begins, *_ in parts]])[:-1].tolist()
        begins, spent, shown_as = (np.concatenate(each) for each in zip(*parts, strict=True))
        columns[f"{name}-start"] = PageColumn(begins - zero, TIMES, firsts[name])
        columns[f"{name}-length"] = PageColumn(spent)
        columns[f"{name}-thing"] = PageColumn(shown_as)
        span = max(span, int((begins - zero + spent).max(initial=1)))
    legend = [(where, name, slot) for name, (where, slot) in _THINGS.items()]
    count = len(things)
    described: Mapping[str, Any] = {
        "names": [name for name, _ in things],
        "rows": [-1] * count,
        "notes": [-1] * count,
        "categories": [category for _, category in things],
        "legend": legend,
    }
    return {"span": span, "groups": groups, "firsts": firsts, "things": described, "strings": strings}, columns


def _pieces(
    segment: Columns, rank: int, steps: Array, start: Array, length: Array, arrival: Array, release: Array
) -> tuple[Array, Array, Array]:
    """Begin, duration and thing of what ran between collectives: compute, then copies, then no work, in each piece."""
    places = [list(_THINGS).index(name) for name in ("compute", "copies", "no work")]
    released = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(release))
    parts = []
    for number, begin, end in zip(steps.tolist(), start.tolist(), (start + length).tolist(), strict=True):
        rows = np.flatnonzero((segment["rank"] == rank) & (segment["step"] == number))
        rows = rows[np.argsort(segment["position"][rows])]
        first, last = np.searchsorted(arrival, [begin, end])
        stops = np.append(arrival[first:last], end)[: len(rows)]
        rows = rows[: len(stops)]
        begins = np.clip(released[first : first + len(rows)], begin, stops)
        spent = np.stack([segment[name][rows] for name in ("compute_ns", "copy_ns", "host_ns")], axis=1)
        edges = np.minimum(begins[:, None] + np.cumsum(np.pad(spent, ((0, 0), (1, 0))), axis=1), stops[:, None])
        parts.append((edges[:, :-1], np.diff(edges, axis=1), np.broadcast_to(places, spent.shape)))
    begins, spent, what = (np.concatenate(each) for each in zip(*parts, strict=True))
    keep = spent > 0
    return begins[keep], spent[keep], what[keep]


def _timeline_section(figures: _Figures, chosen: Sequence[int], steps: Array) -> str:
    ranks = ", ".join(f"{figures.numbers[at]}" for at in chosen)
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    clock = figures.found.clock
    worst = max(node.error_ns for node in clock.nodes)
    are_sure = clock.usable or len(clock.nodes) == 1
    clocks = "aligned clocks" if are_sure else f"clocks that differ by up to {time_text(worst)}"
    text = (
        f"Ranks {ranks}, {which}, on {clocks}. Between two collectives, compute is drawn first, then copies, then the "
        "time without work, as the job's tables have no order of them."
    )
    return f'<p class="hint">{shown(text)}</p>' + file_of_page("timeline.html")
