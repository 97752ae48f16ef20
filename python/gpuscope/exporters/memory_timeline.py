# SPDX-License-Identifier: Apache-2.0
"""Memory over time, in the formats of torch.profiler's ``export_memory_timeline``.

Categories follow from the operators and regions that allocate and free memory. Autograd's operators and the
optimizer's regions are always recorded. The forward is known from modules (``with_modules``), call stacks
(``with_stack``) or else from the operators that autograd's refer to.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import plots
from gpuscope._core import RegionKind
from gpuscope.devices import HOST
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters.page.memory import render
from gpuscope.memory.history.categories import UNKNOWN, Phase, between_neighbours, by_phase, phase_of
from gpuscope.memory.history.events import SOURCES, Frame, MemoryEvents
from gpuscope.paths import check_writable, find_suffix, replacing
from gpuscope.text import brief
from gpuscope.trace import AUTOGRAD_ENGINE, NONE, Trace

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

# torch.profiler._memory_profiler: the order of its categories, the last for memory without one, and its actions.
CATEGORIES = (
    *("PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT", "AUTOGRAD_DETAIL", "Unknown"),
)
PREEXISTING, CREATE, DESTROY = 1, 2, 4

_SUFFIXES = (".html", ".json", ".json.gz")
_RAW_SUFFIX = ".raw.json.gz"
_DEEPEST = 1000  # nested regions
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")


@dataclass(frozen=True, eq=False)
class MemoryTimeline:
    """The allocations of one device.

    Attributes:
        device: "cuda:0", "cpu".
        events: allocations and releases of that device, in order of time.
        categories: an index into CATEGORIES for each of ``events.lifetimes()``.
    """

    device: str
    events: MemoryEvents
    categories: NDArray[np.uint8]

    @property
    def before(self) -> int:
        """Bytes in use when the recording began, 0 if the allocator does not report them."""
        return max(0, int(self.events.allocated_bytes[0]) - int(self.events.bytes[0]))

    @property
    def category(self) -> NDArray[np.uint8]:
        """The category of the memory of each event; UNKNOWN for memory allocated before the recording."""
        lifetimes = self.events.lifetimes()
        found = np.full(len(self.events), UNKNOWN, dtype=np.uint8)
        found[lifetimes.born] = self.categories
        ended = ~lifetimes.alive
        ends = lifetimes.died[ended]
        released = self.events.bytes[ends] < 0  # else the release was missed, and the event is another allocation
        found[ends[released]] = self.categories[ended][released]
        return found

    @property
    def by_category(self) -> dict[str, NDArray[np.int64]]:
        """Bytes in use after each event, by category in torch's order.

        Memory that no event here allocated is unknown: it is from before the recording, or from between two windows.
        """
        category = self.category
        parts = {
            name: np.cumsum(np.where(category == number, self.events.bytes, 0))
            for number, name in enumerate(CATEGORIES)
        }
        allocated = self.events.allocated_bytes
        unseen = allocated - np.cumsum(self.events.bytes) if allocated.any() else self.before
        parts["Unknown"] = np.maximum(parts["Unknown"] + unseen, 0)
        return parts


def export_memory_timeline(trace: Trace, path: str | os.PathLike[str], device: str | None = None) -> None:
    """Writes the memory in use over time; the suffix selects one of torch.profiler's formats.

    Memory is "unknown" if operators and regions do not show its category, as all from before the recording.
    ``with_modules`` or ``with_stack`` show more of the forward.

    ``.html`` is the page of `export_memory_page`. ``.json`` and ``.json.gz`` contain ``[times in us, sizes by
    category]``. ``.raw.json.gz`` contains ``[time in ns, action, bytes, category]`` for each allocation.

    Raises:
        InvalidArgument: another suffix, or a device that has no allocations.
        NotAvailable: the recording has no allocations.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, _SUFFIXES)
    timeline = read_timeline(trace, device)
    suffix = find_suffix(checked, (*_SUFFIXES, _RAW_SUFFIX))
    if suffix == ".html":
        events = timeline.events
        text = render(
            events,
            device=int(events.device[0]),
            categories=timeline.categories,
            title=f"Memory of {timeline.device}",
        )
        content = text.encode("utf-8", "backslashreplace")
    else:
        content = json.dumps(_raw(timeline) if suffix == _RAW_SUFFIX else _sizes(timeline)).encode()
    with replacing(checked) as file:
        is_compressed = suffix in (".json.gz", _RAW_SUFFIX)
        file.write(gzip.compress(content, compresslevel=6, mtime=0) if is_compressed else content)


def plot_memory_timeline(trace: Trace, device: str | None = None, ax: Axes | None = None) -> Axes:
    """Draws the memory in use over time, by category; arguments and errors as of `read_timeline`."""
    timeline = read_timeline(trace, device)
    seconds = (timeline.events.time_ns - int(timeline.events.time_ns[0])) / 1e9
    found = {name.lower().replace("_", " "): sizes for name, sizes in timeline.by_category.items() if sizes.any()}
    return plots.levels(seconds, found, what="memory", ax=ax, title=f"memory of {timeline.device}")


def read_timeline(trace: Trace, device: str | None = None) -> MemoryTimeline:
    """The allocations of one device.

    Args:
        trace: the recording.
        device: "cuda:0", "cuda" (the first) or "cpu"; None takes the first GPU with allocations, else the host.

    Raises:
        NotAvailable: the recording has no allocations.
        InvalidArgument: the device has no allocations.
    """
    memory = trace.memory
    if not len(memory):
        is_totals = trace.info.get("session.mode") == "aggregate"
        modes = " in the modes 'full' and 'ring': mode='aggregate' keeps no events" if is_totals else ""
        raise NotAvailable(
            "export_memory_timeline is not available: the recording has no allocations; they are recorded with "
            f"profile(profile_memory=True){modes}"
        )
    ordinals = sorted(set(memory.ordinal.tolist()))
    names = {("cpu" if ordinal == NONE else f"cuda:{ordinal}"): ordinal for ordinal in ordinals}
    first = next(iter(names))
    chosen = first if device is None or (str(device) == "cuda" and first != "cpu") else str(device)
    if chosen not in names:
        raise InvalidArgument(f"device is {brief(device)}; the recording has allocations on {', '.join(names)}")
    rows = np.flatnonzero(memory.ordinal == names[chosen])
    rows = rows[np.argsort(memory.start_ns[rows], kind="stable")]
    regions = _Regions(trace)
    events = _events(trace, rows, regions)
    region = memory.region[rows]
    phases = between_neighbours(_of(regions.phase, region, Phase.UNKNOWN), events.thread)
    categories = by_phase(events.lifetimes(), phases, _of(regions.operator, region, -1))
    return MemoryTimeline(chosen, events, categories)


def _sizes(timeline: MemoryTimeline) -> list[list[Any]]:
    """``[times, sizes]``: bytes in use after the last event of each us; the first size is torch's base line, 0."""
    times_us = timeline.events.time_ns // 1000
    last = np.flatnonzero(np.diff(times_us, append=times_us[-1] + 1))
    sizes = np.stack([np.zeros_like(last), *(part[last] for part in timeline.by_category.values())], axis=1)
    return [times_us[last].tolist(), sizes.tolist()]


def _raw(timeline: MemoryTimeline) -> list[list[int]]:
    rows = [[-1, PREEXISTING, timeline.before, UNKNOWN]] if timeline.before else []
    events = timeline.events
    columns = (events.time_ns.tolist(), events.bytes.tolist(), timeline.category.tolist())
    for time_ns, change, category in zip(*columns, strict=True):
        rows.append([time_ns, CREATE if change >= 0 else DESTROY, change, category])
    return rows


class _Regions:
    """Properties of regions that classify the allocations in them, one value a region.

    Attributes:
        phase: a `Phase`.
        operator: the region of autograd's operator around it, -1 for none.
        stack: the call stack of the innermost operator around it that has one, -1 for none.
        annotation: the string id of the innermost annotation of the program or of a library; -1 for none.
        frames: of each call stack, innermost first.
    """

    def __init__(self, trace: Trace) -> None:
        regions, paths, details = trace.regions, trace.paths, trace.details
        rows = np.arange(len(regions))
        parent = np.where(regions.parent == NONE, rows, regions.parent)
        of_path = np.array(
            [
                _named(trace.string(name), kind)
                for name, kind in zip(paths.name.tolist(), paths.kind.tolist(), strict=True)
            ],
            dtype=np.uint8,
        )
        self.frames = _frames(trace)
        phase = of_path[regions.path]
        self.operator = _inherit(np.where(phase == Phase.BACKWARD, rows, -1), parent)
        stack = np.full(len(rows), -1, dtype=np.int64)
        known = (details.region != NONE) & (details.stack != NONE)
        stack[details.region[known]] = details.stack[known]
        # The region's own name has priority over its stack.
        by_stack = np.array([phase_of(frames) for frames in self.frames], dtype=np.uint8)
        unnamed = (stack >= 0) & (phase == Phase.UNKNOWN)
        phase[unnamed] = by_stack[stack[unnamed]]
        forward = details.forward[details.forward != NONE]
        phase[forward[np.isin(phase[forward], (Phase.UNKNOWN, Phase.OUTSIDE))]] = Phase.FORWARD
        self.phase = _outer_phases(phase, parent)
        self.stack = _inherit(stack, parent)
        names = np.where(np.isin(paths.kind, (RegionKind.REGION, RegionKind.RANGE)), paths.name.astype(np.int64), -1)
        self.annotation = _inherit(names[regions.path], parent)


def _named(name: str, kind: int) -> int:
    if name.startswith(AUTOGRAD_ENGINE):
        return Phase.BACKWARD
    if name.startswith(_OPTIMIZER):
        return Phase.OPTIMIZER
    return Phase.FORWARD if kind == RegionKind.MODULE else Phase.UNKNOWN


def _frames(trace: Trace) -> list[tuple[Frame, ...]]:
    stacks = trace.stacks
    known: list[tuple[Frame, ...]] = []
    rows = zip(*(stacks[column].tolist() for column in ("parent", "function", "file", "line")), strict=True)
    for row, (parent, function, file, line) in enumerate(rows):
        callers = known[parent] if parent < row else ()
        known.append((Frame(trace.string(function), trace.string(file), line), *callers))
    return known


def _outer_phases(phase: NDArray[np.uint8], parent: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The outer region's phase wins, except for a forward that a backward recomputes."""
    for _ in range(_DEEPEST):
        outer = phase[parent]
        recomputed = (outer == Phase.BACKWARD) & (phase == Phase.FORWARD)
        decided = (outer != Phase.UNKNOWN) & (outer != Phase.OUTSIDE) & (phase != outer) & ~recomputed
        if not decided.any():
            break
        phase[decided] = outer[decided]
    phase[phase == Phase.UNKNOWN] = Phase.OUTSIDE
    return phase


def _inherit(values: NDArray[np.int64], parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each region's own value; if it is below 0, the value of the innermost region around it that has one."""
    for _ in range(_DEEPEST):
        missing = (values < 0) & (values[parent] >= 0)
        if not missing.any():
            break
        values[missing] = values[parent][missing]
    return values


def _of(values: NDArray[Any], region: NDArray[np.uint32], otherwise: int) -> NDArray[Any]:
    """The value of each region; `otherwise` for NONE."""
    found = np.full(len(region), otherwise, dtype=values.dtype)
    inside = region != NONE
    found[inside] = values[region[inside]]
    return found


def _events(trace: Trace, rows: NDArray[np.int64], regions: _Regions) -> MemoryEvents:
    memory = trace.memory
    region = memory.region[rows]
    # -1 (no annotation) is always included, so that names have the numbers from 1 on.
    names, numbers = np.unique(np.append(_of(regions.annotation, region, -1), -1), return_inverse=True)
    return MemoryEvents(
        time_ns=memory.start_ns[rows],
        address=memory.address[rows],
        bytes=memory.bytes[rows],
        allocated_bytes=memory.allocated_bytes[rows].astype(np.int64),
        reserved_bytes=memory.reserved_bytes[rows].astype(np.int64),
        device=np.where(memory.ordinal[rows] == NONE, HOST, memory.ordinal[rows].astype(np.int64)).astype(np.int32),
        stack=(_of(regions.stack, region, -1) + 1).astype(np.uint32),
        region=numbers[:-1].astype(np.uint32),
        thread=memory.thread[rows].astype(np.uint64) + np.uint64(1),
        source=np.full(len(rows), SOURCES.index("torch"), dtype=np.uint8),
        frames=lambda stack: regions.frames[stack - 1] if stack else (),
        regions=("", *(trace.string(name) for name in names[1:].tolist())),
    )
