# SPDX-License-Identifier: Apache-2.0
"""Curves of a report: memory in use, samples of NVML, hardware counters, the use of CPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuscope.analysis.device_samples import REASONS, DeviceReadings, sampled_devices
from gpuscope.counters.timelines import timelines
from gpuscope.errors import GpuscopeError
from gpuscope.exporters.memory_timeline import CATEGORIES, MemoryTimeline, read_timeline
from gpuscope.exporters.page.report_events import Lanes
from gpuscope.memory.history.call_stacks import line_text, program_line
from gpuscope.page.markup import share_bar, shown, table
from gpuscope.page.planes import Array
from gpuscope.text import one_line
from gpuscope.trace import Trace
from gpuscope.units import format_bytes

_POINTS = 1_500  # of a curve; more cannot be distinguished on a screen
_MOST_COUNTERS = 24
_MOST_LINES = 25
_MOST_BANDS = 10  # lines of code; the palette has 12 colors
_LARGEST = 1e9  # of a limit that is one
_NS_PER_S = 1e9
_FIGURES = (
    ("power_mw", "power", "W", 1e-3, "power_limit_mw"),
    ("sm_mhz", "clock of the multiprocessors", "Hz", 1e6, "sm_max_mhz"),
    ("memory_mhz", "clock of the memory", "Hz", 1e6, ""),
    ("temperature_c", "temperature", "°C", 1, ""),
    ("busy_percent", "time in which kernels ran", "%", 1, ""),
    ("memory_busy_percent", "time in which memory was read or written", "%", 1, ""),
    ("memory_used_bytes", "memory used by all processes", "B", 1, ""),
)
"""Columns of ``trace.device_samples``: title, unit here, factor to it, and the column with the limit."""


def series_of(trace: Trace, lanes: Lanes) -> list[dict[str, Any]]:
    """Curves over the timeline: ticks, and values from then on, as made by `_curve`."""
    found = []
    memory = trace.memory
    for ordinal in np.unique(memory.ordinal).tolist():
        rows = np.flatnonzero(memory.ordinal == ordinal)
        rows = rows[np.argsort(memory.start_ns[rows], kind="stable")]  # of several threads
        where = "host" if ordinal == 0xFFFFFFFF else f"GPU {ordinal}"
        for column, words in (("allocated_bytes", "in use"), ("reserved_bytes", "held")):
            values = memory[column][rows].astype(np.float64)
            if values.any():
                found.append(_curve(f"{where} memory {words}", "B", lanes.ticks(memory.start_ns[rows]), values))
    for device in sampled_devices(trace):
        found += _device_curves(trace, device, lanes)
    usages = trace.process_usages
    for process in np.unique(usages.process).tolist():
        rows = np.flatnonzero((usages.process == process) & (usages.duration_ns > 0))
        if len(rows) > 1:
            cores = usages.cpu_ns[rows] / usages.duration_ns[rows]
            found.append(_curve(f"process {process}: CPUs in use", "", lanes.ticks(usages.start_ns[rows]), cores))
    counters = range(min(len(trace.counters), _MOST_COUNTERS))
    for device, timeline in (timelines(trace, list(counters)) if len(trace.counter_samples) else {}).items():
        for counter in counters:
            known = np.flatnonzero(np.isfinite(timeline.rates[:, counter]))
            if len(known):
                name, unit = (trace.string(int(trace.counters[each][counter])) for each in ("name", "unit"))
                unit = "%" if unit == "percent" or ".pct" in name else unit
                unit = f"{'B' if unit == 'byte' else unit}/s" if name.endswith(".sum") else unit
                spans = timeline.start_ns[known], timeline.end_ns[known]
                moments, values = _with_gaps(*spans, timeline.rates[known, counter])
                found.append(_curve(f"GPU {device} {name}", unit, lanes.ticks(moments), values))
    return found


def _device_curves(trace: Trace, device: int, lanes: Lanes) -> Iterator[dict[str, Any]]:
    """NVML's samples of a GPU, and the growth of its counters of energy and of throttling."""
    readings = DeviceReadings(trace, device)
    for column, words, unit, scale, limit in _FIGURES:
        series, most = readings.series(column), readings.series(limit) if limit else None
        if series is not None:
            curve = _curve(f"GPU {device} {words}", unit, lanes.ticks(series.time_ns), series.values * scale)
            if most is not None and most.values.max() < _LARGEST:
                curve["most"] = max(float(most.values.max()) * scale, *curve["values"])
            yield curve
    energy, _ = readings.energy
    if energy is not None:
        watts = np.diff(energy.values) / np.diff(energy.time_ns) * _NS_PER_S
        ticks = lanes.ticks(energy.time_ns)
        yield _curve(f"GPU {device} power, by its energy counter", "W", ticks, np.append(watts, np.nan))
    for reason in REASONS:
        held, _ = readings.counter(f"{reason}_ns")
        if held is not None and held.values[-1] > held.values[0]:
            shares = 100 * np.diff(held.values) / np.maximum(np.diff(held.time_ns), 1)
            words = f"GPU {device} clocks held back: {reason.replace('_', ' ')}"
            yield _curve(words, "%", lanes.ticks(held.time_ns), np.append(np.minimum(shares, 100), np.nan))


def _with_gaps(start_ns: Array, end_ns: Array, values: Array) -> tuple[Array, Array]:
    """Moments and values, with no value between samples that do not touch."""
    lengths = end_ns - start_ns
    apart = np.append(start_ns[1:] - end_ns[:-1] > lengths[:-1], True)
    rows = np.flatnonzero(apart)
    return np.insert(start_ns, rows + 1, end_ns[rows]), np.insert(values, rows + 1, np.nan)


def _curve(title: str, unit: str, ticks: Array, values: Array) -> dict[str, Any]:
    """A curve of at most `_POINTS` points. With more, each stretch of time has its highest and lowest ("ranges").

    Unknown values are None.
    """
    ranges = len(ticks) > _POINTS
    if ranges:
        edges = np.linspace(0, len(ticks), _POINTS // 2 + 1).astype(int)[:-1]
        most = np.fmax.reduceat(values, edges)
        least = np.fmin.reduceat(values, edges)
        ticks = np.stack([ticks[edges], ticks[edges] + 1], axis=1).ravel()
        values = np.stack([most, least], axis=1).ravel()
    return {
        "title": title,
        "unit": unit,
        "ranges": ranges,
        "ticks": np.diff(ticks, prepend=0),
        "values": [float(f"{v:.4g}") if math.isfinite(v) else None for v in values.tolist()],
    }


def memory_of(trace: Trace, lanes: Lanes) -> tuple[dict[str, Any] | None, str]:
    """Memory in use over time for a chart, by line of code if stacks are known, and the memory at the peak."""
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
    by_line = _by_line(timeline, used, peak)
    by = {_words(name): values for name, values in categories.items()}
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
            {"name": name, "values": np.diff(values[chosen], prepend=0)}
            for name, values in (by_line or by).items()
            if values[chosen].any()
        ],
    }
    text = "".join(
        _at_peak(what, f"In use at the peak on {timeline.device} by {what}", values, peak)
        for what, values in (("line of code", by_line), ("category", by))
        if values
    )
    return chart, text + _regions_at(timeline, peak)


def _at_peak(what: str, caption: str, groups: dict[str, Array], peak: int) -> str:
    sizes = sorted(((int(values[peak]), name) for name, values in groups.items() if values[peak] > 0), reverse=True)
    total, most = sum(size for size, _ in sizes), sizes[0][0] if sizes else 0
    rows = [(format_bytes(size), share_bar(size / total, most / total), shown(name)) for size, name in sizes]
    return table(("at the peak", "share", what), rows, caption=caption, numbers=(0, 1))


def _by_line(timeline: MemoryTimeline, used: Array, peak: int) -> dict[str, Array]:
    """Bytes in use after each event by the program's line, for lines with most at the peak; {} without stacks."""
    events, lifetimes = timeline.events, timeline.events.lifetimes()
    if not lifetimes.stack.any():
        return {}
    stacks, of = np.unique(lifetimes.stack, return_inverse=True)
    texts = [one_line(line_text(program_line(events.frames(stack)))) for stack in stacks.tolist()]
    names = sorted(set(texts))
    line = np.array([names.index(text) for text in texts])[of.reshape(-1)]
    died = np.where(lifetimes.alive, len(events), lifetimes.died)
    alive = (lifetimes.born <= peak) & (died > peak)
    most = np.argsort(-np.bincount(line[alive], lifetimes.bytes[alive], len(names)), kind="stable")[:_MOST_BANDS]
    found: dict[str, Array] = {}
    rest = used.copy()
    for number in most.tolist():
        own, changes = line == number, np.zeros(len(events) + 1, np.int64)
        np.add.at(changes, lifetimes.born[own], lifetimes.bytes[own])
        np.add.at(changes, died[own], -lifetimes.bytes[own])
        found[names[number]] = np.cumsum(changes[:-1])
        rest -= found[names[number]]
    return {**found, "other lines, and before the recording": np.maximum(rest, 0)}


def _regions_at(timeline: MemoryTimeline, peak: int) -> str:
    """Memory at the peak by the region that allocated it."""
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
            share_bar(float(sums[at]) / total, float(sums.max()) / total),
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
