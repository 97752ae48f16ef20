# SPDX-License-Identifier: Apache-2.0
"""Memory over time as one interactive HTML page: steps, and the allocations alive at each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.devices import HOST
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.history.call_stacks import library_of, line_text, program_line
from gpuscope.memory.history.categories import (
    CATEGORIES,
    WITHOUT_PYTHON,
    backward_without_stack,
    categorize,
    category_text,
)
from gpuscope.memory.history.events import SOURCES, Frame, Lifetimes, MemoryEvents, allocations_of, counted_events
from gpuscope.page.markup import island, page_of
from gpuscope.paths import check_writable, replacing
from gpuscope.text import brief
from gpuscope.units import format_bytes

SCRIPTS = ("units.js", "theme.js", "pen.js", "keys.js", "memory.js")
"""The modules of the page, each after those that it imports from."""

STEPS = 2000  # more cannot be distinguished on a screen
GROUPS, ALLOCATIONS, DEPTH = 40, 2000, 40

_DRIVER = SOURCES.index("driver")
_OTHER, _BEFORE, _NO_REGION = "smaller ones", "from before the history", "no region"
_REGION = '<label><input type="radio" name="view" value="region"> region</label>\n'
_MOST_LINES = 15  # of the table without JavaScript


def export_memory_page(
    events: MemoryEvents,
    path: str | os.PathLike[str],
    *,
    device: int | None = None,
    categories: NDArray[np.uint8] | None = None,
    title: str = "Memory",
    notes: Sequence[str] = (),
) -> None:
    """Writes memory over time as one HTML page that needs no other file.

    It shows live memory by category, line of code, library, region or single allocation. It has at most 2000 moments,
    each with the most memory in use of its interval, so that no maximum is lost.

    Args:
        events: the history, of any length.
        path: where to write, ending in .html.
        device: ordinal of the GPU, or HOST; None takes the GPU with the most events, or the host if no GPU has any.
        categories: of each of ``events.lifetimes()``; by default from `categorize` of the history.
        title: heading of the page.
        notes: sentences above the chart.

    Raises:
        InvalidArgument: the device has no events, or the path has another suffix.
        NotAvailable: there are no events at all.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, (".html", ".htm"))
    text = render(events, device=device, categories=categories, title=title, notes=notes)
    with replacing(checked) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def render(
    events: MemoryEvents,
    *,
    device: int | None = None,
    categories: NDArray[np.uint8] | None = None,
    title: str = "Memory",
    notes: Sequence[str] = (),
) -> str:
    """The page's text; arguments and errors as of `export_memory_page`."""
    if not len(events):
        raise NotAvailable("a page of the memory is not available: the history has no events")
    chosen = _device(events, device)
    steps, rows = make_steps(events, chosen)
    given = categorize(events) if categories is None else categories
    data = _page_data(steps, given[rows])
    all_notes = [*notes]
    if events.lost:
        all_notes.insert(0, f"{events.lost:,} older events are no longer kept: the history begins behind them.")
    parts = {
        "title": escape(title),
        "facts": _facts(steps, chosen),
        "notices": "".join(f'<p class="notice" role="note">{escape(note)}</p>' for note in all_notes),
        "region": _REGION if "region" in data["views"] else "",
        "lines": _lines(steps, data),
        "data": island(data),
    }
    return page_of("memory.html", parts, styles=("memory.css",), scripts=SCRIPTS, data_id="memory", package=__package__)


def _device(events: MemoryEvents, device: int | None) -> int:
    ordinals, counts = np.unique(events.device, return_counts=True)
    if device is not None:
        if device not in ordinals:
            raise InvalidArgument(f"device is {brief(device)}; the history has events of {_names(ordinals.tolist())}")
        return int(device)
    on_gpu = ordinals != HOST
    return int(ordinals[np.argmax(np.where(on_gpu, counts, 0))]) if on_gpu.any() else HOST


def _names(ordinals: Sequence[int]) -> str:
    return ", ".join("the host (-1)" if ordinal == HOST else f"GPU {ordinal}" for ordinal in ordinals)


def _facts(steps: Steps, device: int) -> str:
    times = steps.events.time_ns
    lasted = int(times[-1]) - int(times[0])
    facts = {
        "device": "host" if device == HOST else f"GPU {device}",
        "most in use": format_bytes(int(steps.used[steps.peak])),
        "most held from the driver": format_bytes(int(steps.reserved.max())) if steps.reserved.any() else "",
        "in use at the end": format_bytes(int(steps.used[-1])),
        "events": f"{len(times):,}",
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(times[0]) / 1e9)) if times[0] > 0 else "",
        "lasted": f"{lasted / 1e9:,.3f} s" if lasted >= 1e9 else f"{lasted / 1e6:,.3f} ms",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value)


def _lines(steps: Steps, data: dict[str, Any]) -> str:
    """Memory at the peak by line, for readers without JavaScript."""
    at_peak = [(sum(group["sizes"][: steps.peak + 1]), group["name"]) for group in data["views"]["line"]["groups"]]
    rows = sorted((row for row in at_peak if row[0] > 0), reverse=True)[:_MOST_LINES]
    return "".join(f"<tr><td>{format_bytes(size)}</td><td>{escape(name)}</td></tr>" for size, name in rows)


@dataclass(frozen=True, eq=False)
class Steps:
    """One device's memory at chosen events.

    Attributes:
        events: of that device, without memory that allocators reserve from the driver, so that each byte counts once.
        lifetimes: of the events.
        chosen: rows of the events, ascending: from each interval the one with the most in use, and the last.
        before: bytes in use at each step that no event here allocated: from before the history, or lost.
        used: bytes in use at each step.
        reserved: bytes reserved from the driver at each step, by allocators and libraries; 0 if no allocator reports
            them.
        peak: the step with the most in use.
    """

    events: MemoryEvents
    lifetimes: Lifetimes
    chosen: NDArray[np.int64]
    before: NDArray[np.int64]
    used: NDArray[np.int64]
    reserved: NDArray[np.int64]
    peak: int

    def grouped(self, groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Bytes of each group at each step, shape (groups, steps), from the group of each lifetime."""
        changes = np.zeros((count, len(self.chosen) + 1), dtype=np.int64)
        first, end = self.visible()
        np.add.at(changes, (groups, first), self.lifetimes.bytes)
        np.add.at(changes, (groups, end), -self.lifetimes.bytes)
        return np.asarray(np.cumsum(changes, axis=1)[:, :-1])

    def visible(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first step at which each allocation lives, and the first one at which it no longer does."""
        died = np.where(self.lifetimes.alive, len(self.events), self.lifetimes.died)
        return np.searchsorted(self.chosen, self.lifetimes.born), np.searchsorted(self.chosen, died)

    def largest(self, groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """The most bytes that each group ever had, also between steps. Shape (count,)."""
        alive = self.lifetimes.alive
        rows = np.concatenate((self.lifetimes.born, self.lifetimes.died[~alive]))
        group = np.concatenate((groups, groups[~alive]))
        change = np.concatenate((self.lifetimes.bytes, -self.lifetimes.bytes[~alive]))
        order = np.lexsort((rows, group))
        sums = np.cumsum(change[order])
        # Groups follow each other in one running sum, so each subtracts the sum before its start.
        start = np.searchsorted(group[order], np.arange(count))
        offset = np.where(start > 0, sums[np.maximum(start - 1, 0)] if len(sums) else 0, 0)
        most = np.zeros(count, dtype=np.int64)
        np.maximum.at(most, group[order], sums - offset[group[order]])
        return most


def make_steps(events: MemoryEvents, device: int) -> tuple[Steps, NDArray[np.int64]]:
    """Chooses the events to show of a device that has events.

    Returns the steps, and the row in ``events.lifetimes()`` of each of their lifetimes.
    """
    kept = (events.device == device) & counted_events(events, allocations_of(events))
    mine = events.select(kept)
    lifetimes = mine.lifetimes()
    known = np.zeros(len(mine), dtype=np.int64)
    np.add.at(known, lifetimes.born, lifetimes.bytes)
    ended = ~lifetimes.alive
    np.add.at(known, lifetimes.died[ended], -lifetimes.bytes[ended])
    before, reserved, libraries = (np.zeros(len(mine), dtype=np.int64) for _ in range(3))
    for source in np.unique(mine.source):
        rows = np.flatnonzero(mine.source == source)
        if source == _DRIVER:
            libraries = _held(rows, np.cumsum(known[rows]), len(mine))
            libraries[: rows[0]] = 0
        reserved += _held(rows, mine.reserved_bytes[rows], len(mine))
        if mine.allocated_bytes[rows].any():
            before += _held(rows, np.maximum(mine.allocated_bytes[rows] - np.cumsum(known[rows]), 0), len(mine))
    if reserved.any():
        reserved += libraries
    used = np.cumsum(known) + before
    chosen = _chosen(mine.time_ns, used)
    steps = Steps(mine, lifetimes, chosen, before[chosen], used[chosen], reserved[chosen], int(used[chosen].argmax()))
    whole = events.lifetimes().born
    return steps, np.searchsorted(whole, np.flatnonzero(kept)[lifetimes.born])


def _held(rows: NDArray[Any], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Values at some rows, each until the next; the first also before."""
    place = np.searchsorted(rows, np.arange(count), side="right") - 1
    return np.asarray(values[np.maximum(place, 0)])


def _chosen(times: NDArray[np.int64], used: NDArray[np.int64]) -> NDArray[np.int64]:
    count = len(times)
    if count <= STEPS:
        return np.arange(count)
    # Half of the intervals are equally long, half have equally many events, so that quiet times do not hide busy ones.
    in_time = np.searchsorted(times, np.linspace(times[0], times[-1], STEPS // 2, endpoint=False))
    by_count = np.linspace(0, count, STEPS // 2, endpoint=False).astype(np.int64)
    edges = np.unique(np.concatenate((in_time, by_count)))
    interval = np.searchsorted(edges, np.arange(count), side="right") - 1
    order = np.lexsort((used, interval))
    most = order[np.flatnonzero(np.diff(interval[order], append=len(edges)))]
    return np.unique(np.append(most, count - 1))


def _page_data(steps: Steps, categories: NDArray[np.uint8]) -> dict[str, Any]:
    """Steps, groupings of live memory (by region only if there are regions), and the largest allocations.

    Sizes are differences to the step before, which are mostly 0 and short. Times are whole us.
    """
    stacks = _Stacks(steps)
    names = tuple(category_text(name) for name in CATEGORIES)
    sources = steps.lifetimes.source.astype(np.int64)
    frameworks = [f"{SOURCES[source]}: {library}" for source in range(len(SOURCES)) for library in stacks.libraries]
    start = int(steps.events.time_ns[0])
    views = {
        "category": _view(steps, categories.astype(np.int64), names, None, ordered=True),
        "line": _view(steps, stacks.line, stacks.lines, stacks.of_line),
        "library": _view(steps, sources * len(stacks.libraries) + stacks.library, frameworks, None),
    }
    region = steps.events.region[steps.lifetimes.born].astype(np.int64)
    if region.any():
        views["region"] = _view(steps, region, (_NO_REGION, *steps.events.regions[1:]), None)
    return {
        "times": _differences((steps.events.time_ns[steps.chosen] - start) // 1000),
        "used": _differences(steps.used),
        "reserved": _differences(steps.reserved) if steps.reserved.any() else None,
        "peak": steps.peak,
        "views": views,
        "allocations": _allocations(steps, categories, stacks),
        "categories": names,
        "lines": stacks.lines,
        "stacks": stacks.texts(),
    }


class _Stacks:
    """Lines and libraries of the lifetimes' call stacks; each stack is looked at once."""

    def __init__(self, steps: Steps) -> None:
        numbers, self._of_allocation = np.unique(steps.lifetimes.stack, return_inverse=True)
        self._frames = [steps.events.frames(int(number)) for number in numbers]
        lines: dict[Frame | None, int] = {}
        libraries: dict[str, int] = {}
        line = [lines.setdefault(program_line(frames), len(lines)) for frames in self._frames]
        found = [libraries.setdefault(library_of(frames), len(libraries)) for frames in self._frames]
        self._of_allocation = self._of_allocation.reshape(-1)
        self.line = np.array(line, dtype=np.int64)[self._of_allocation]
        self.library = np.array(found, dtype=np.int64)[self._of_allocation]
        self.lines = [line_text(frame) for frame in lines]
        self.libraries = list(libraries)
        self._largest = self._largest_of_each(line, steps)
        autograds = backward_without_stack(steps.events)[steps.lifetimes.born]
        if autograds.any():
            self._largest.append(int(self._of_allocation[np.argmax(autograds)]))
            self.line[autograds] = len(self.lines)
            self.lines.append(WITHOUT_PYTHON)
        self._used: dict[int, int] = {}

    def _largest_of_each(self, line: list[int], steps: Steps) -> list[int]:
        """The stack with most of each line's bytes."""
        bytes_ = np.bincount(self._of_allocation, weights=steps.lifetimes.bytes, minlength=len(line))
        largest = [0] * len(self.lines)
        for stack in np.argsort(bytes_).tolist():
            largest[line[stack]] = stack
        return largest

    def of_line(self, line: int) -> int:
        """The number, in the page, of the stack with most of a line's bytes."""
        return self._used.setdefault(self._largest[line], len(self._used))

    def of_allocation(self, allocation: int) -> int:
        """The number, in the page, of a lifetime's stack."""
        return self._used.setdefault(int(self._of_allocation[allocation]), len(self._used))

    def texts(self) -> list[list[str]]:
        """The frames of the stacks that were asked for, innermost first."""
        return [[str(frame) for frame in self._frames[stack][:DEPTH]] for stack in self._used]


def _view(
    steps: Steps,
    groups: NDArray[np.int64],
    names: Sequence[str],
    stack_of: Callable[[int], int] | None,
    *,
    ordered: bool = False,
) -> dict[str, Any]:
    most = steps.largest(groups, len(names))
    shown = [group for group in np.argsort(-most, kind="stable").tolist() if most[group] > 0][:GROUPS]
    if ordered:
        shown.sort()
    place = np.full(len(names), len(shown), dtype=np.int64)
    place[shown] = np.arange(len(shown))
    sizes = steps.grouped(place[groups], len(shown) + 1)
    made: list[dict[str, Any]] = []  # the lowest band first
    if steps.before.any():
        made.append({"name": _BEFORE, "id": -1, "sizes": _differences(steps.before)})
    for group, row in zip(shown, sizes, strict=False):
        made.append({"name": names[group], "id": group, "sizes": _differences(row)})
        if stack_of is not None:
            made[-1]["stack"] = stack_of(group)
    if sizes[-1].any():
        made.append({"name": _OTHER, "id": -1, "sizes": _differences(sizes[-1])})
    return {"groups": made}


def _allocations(steps: Steps, categories: NDArray[np.uint8], stacks: _Stacks) -> dict[str, list[int]]:
    """The largest allocations, to be drawn one by one, in order of allocation."""
    first, end = steps.visible()
    lifetimes = steps.lifetimes
    # Allocations at the peak first, then those with most bytes times lifetime.
    at_peak = (first <= steps.peak) & (steps.peak < end)
    weight = lifetimes.bytes.astype(np.float64) * (end - first)
    order = np.lexsort((-np.where(at_peak, lifetimes.bytes, weight), ~at_peak))
    chosen = np.sort(order[weight[order] > 0][:ALLOCATIONS])
    return {
        "first": first[chosen].tolist(),
        "end": end[chosen].tolist(),
        "bytes": lifetimes.bytes[chosen].tolist(),
        "category": categories[chosen].tolist(),
        "line": stacks.line[chosen].tolist(),
        "stack": [stacks.of_allocation(allocation) for allocation in chosen.tolist()],
    }


def _differences(values: NDArray[np.int64]) -> list[int]:
    return np.diff(values, prepend=0).tolist()  # type: ignore[no-any-return]
