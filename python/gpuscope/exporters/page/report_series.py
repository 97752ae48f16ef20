# SPDX-License-Identifier: Apache-2.0
"""What a report draws as curves: memory in use by category, hardware counters, the process' use of CPUs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gpuscope.counters.timelines import timelines
from gpuscope.errors import GpuscopeError
from gpuscope.exporters.memory_timeline import CATEGORIES, MemoryTimeline, read_timeline
from gpuscope.exporters.page.report_events import Lanes
from gpuscope.page.markup import share_text, shown, table
from gpuscope.page.planes import Array
from gpuscope.trace import Trace
from gpuscope.units import format_bytes

_POINTS = 1_500  # of a curve; more cannot be told apart on a screen
_MOST_COUNTERS = 24
_MOST_LINES = 25
_NOT_KNOWN = -1


def series_of(trace: Trace, lanes: Lanes) -> list[dict[str, Any]]:
    """Curves over the timeline: ticks, and values from then on."""
    found = []
    memory = trace.memory
    for ordinal in np.unique(memory.ordinal).tolist():
        rows = np.flatnonzero(memory.ordinal == ordinal)
        where = "host" if ordinal == 0xFFFFFFFF else f"GPU {ordinal}"
        for column, words in (("allocated_bytes", "in use"), ("reserved_bytes", "held")):
            values = memory[column][rows].astype(np.float64)
            if values.any():
                found.append(_curve(f"{where} memory {words}", "B", lanes.ticks(memory.start_ns[rows]), values))
    usages = trace.process_usages
    for process in np.unique(usages.process).tolist():
        rows = np.flatnonzero((usages.process == process) & (usages.duration_ns > 0))
        if len(rows) > 1:
            cores = usages.cpu_ns[rows] / usages.duration_ns[rows]
            found.append(_curve(f"process {process}: CPUs in use", "", lanes.ticks(usages.start_ns[rows]), cores))
    counters = range(min(len(trace.counters), _MOST_COUNTERS))
    for device, timeline in (timelines(trace, list(counters)) if len(trace.counter_samples) else {}).items():
        for counter in counters:
            values = timeline.rates[:, counter]
            known = np.flatnonzero(~np.isnan(values))
            if len(known):
                name, unit = (trace.string(int(trace.counters[each][counter])) for each in ("name", "unit"))
                unit = "%" if unit == "percent" or ".pct" in name else unit
                ticks = lanes.ticks(timeline.start_ns[known])
                found.append(_curve(f"GPU {device} {name}", unit, ticks, values[known]))
    return found


def _curve(title: str, unit: str, ticks: Array, values: Array) -> dict[str, Any]:
    """At most so many points: of each stretch of time the highest and the lowest, so that no peak is lost."""
    if len(ticks) > _POINTS:
        edges = np.linspace(0, len(ticks), _POINTS // 2 + 1).astype(int)[:-1]
        most = np.maximum.reduceat(values, edges)
        least = np.minimum.reduceat(values, edges)
        ticks = np.stack([ticks[edges], ticks[edges] + 1], axis=1).ravel()
        values = np.stack([most, least], axis=1).ravel()
    return {
        "title": title,
        "unit": unit,
        "ticks": np.diff(ticks, prepend=0),
        "values": [float(f"{v:.4g}") for v in values],
    }


def memory_of(trace: Trace, lanes: Lanes) -> tuple[dict[str, Any] | None, str]:
    """Memory in use by category over time for a chart, and what lived at the peak as tables."""
    if len(trace.memory) == 0:
        return None, ""
    try:
        timeline = read_timeline(trace)
    except GpuscopeError:
        return None, ""
    categories = timeline.by_category
    used = np.sum(list(categories.values()), axis=0)
    if len(used) == 0:
        return None, ""
    peak = int(used.argmax())
    chosen = np.arange(len(used))
    if len(used) > _POINTS:
        edges = np.linspace(0, len(used), _POINTS + 1).astype(int)
        chosen = np.unique(
            [first + int(used[first:last].argmax()) for first, last in itertools.pairwise(edges.tolist())]
        )
    chart = {
        "ticks": np.diff(lanes.ticks(timeline.events.time_ns[chosen]), prepend=0),
        "peak": int(np.searchsorted(chosen, peak)),
        "bands": [
            {"name": _words(name), "values": np.diff(values[chosen], prepend=0)}
            for name, values in categories.items()
            if values[chosen].any()
        ],
    }
    at_peak = sorted(
        ((int(values[peak]), name) for name, values in categories.items() if values[peak] > 0), reverse=True
    )
    rows = [(format_bytes(size), share_text(size / max(int(used[peak]), 1)), _words(name)) for size, name in at_peak]
    text = table(("at the peak", "share", "category"), rows, caption=f"In use at the peak on {timeline.device}",
                 numbers=(0, 1))  # fmt: skip
    return chart, text + _regions_at(timeline, peak)


def _regions_at(timeline: MemoryTimeline, peak: int) -> str:
    """What lived at the peak by the region that asked for it."""
    events, lifetimes = timeline.events, timeline.events.lifetimes()
    alive = (lifetimes.born <= peak) & (lifetimes.alive | (lifetimes.died > peak))
    region = events.region[lifetimes.born[alive]].astype(np.int64)
    if not region.any():
        return ""
    sums = np.bincount(region, lifetimes.bytes[alive], len(events.regions))
    counts = np.bincount(region, minlength=len(events.regions))
    total = max(float(sums.sum()), 1.0)
    rows = [
        (
            format_bytes(float(sums[at])),
            share_text(float(sums[at]) / total),
            f"{counts[at]:,}",
            f"<code>{shown(events.regions[at] or 'no region')}</code>",
        )
        for at in np.argsort(-sums, kind="stable")[:_MOST_LINES].tolist()
        if sums[at] > 0
    ]
    header = ("at the peak", "share", "allocations", "asked for in")
    return table(header, rows, caption="In use at the peak by region", numbers=(0, 1, 2))


def _words(category: str) -> str:
    return category.lower().replace("_", " ") if category in CATEGORIES else category
