# SPDX-License-Identifier: Apache-2.0
"""The time of each GPU in the steps of a program: parts that add up to the steps, to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import _core, plots
from gpuscope.analysis.completeness import audit
from gpuscope.analysis.rows import NS_PER_US, Kind
from gpuscope.errors import InvalidArgument
from gpuscope.results import Result
from gpuscope.steps.idle import Drain, Idle, IdleCause, IdlePieces, Work, explain_idle
from gpuscope.steps.kernel_classes import KernelClass, kernel_class
from gpuscope.steps.steps import Array, Steps, as_passed, calls_of, distinct, find_steps, steady_steps
from gpuscope.tables import align_columns
from gpuscope.text import brief, shorten, wrapped
from gpuscope.threads import cached_property
from gpuscope.trace import Trace
from gpuscope.units import format_share, format_time

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

IDLE = "idle"
_MATTERS = 3  # columns of the table that are always shown
_MOST_DRAINS = 3
# The most kinds of copies with a part of their own; a damaged file may have more.
_MOST_COPIES, _OTHER_COPIES = 32, "other copies"
_GRAPHS = "CUDA graphs as a whole"
_NS_PER_S = 1e9


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a GPU's time. Times in ns.

    Attributes:
        name: of the class of work, or of the copy as torch.profiler calls it; of idle time, its cause.
        kind: kernel, graph launch, memcpy, memset or idle.
        per_step_ns: exclusive time in each step: if several parts ran at once, the first in the list counts.
        covered_ns: time in all steps, including overlap with other parts; of idle time, the exclusive time.
        fill: of kernels, the share of the multiprocessors that their grids can fill, weighted by time:
            sum(min(1, blocks / multiprocessors) * duration) / sum(duration); None for others.
    """

    name: str
    kind: str
    per_step_ns: Array
    covered_ns: int
    fill: float | None = None

    @property
    def exclusive_ns(self) -> int:
        """Exclusive time in all steps."""
        return int(self.per_step_ns.sum())

    @property
    def overlapped_ns(self) -> int:
        """Time in which an earlier part ran too."""
        return self.covered_ns - self.exclusive_ns


@dataclass(frozen=True, eq=False)
class DeviceWork(Work):
    """The work of one GPU: kernels first, then graphs that were traced as a whole, copies and fills.

    Attributes:
        kinds: name and kind of each class, as in a `Part`.
        classes: the class of each piece of work.
        tables: its table, a row of `WORK_TABLES`.
        rows: its row there.
    """

    kinds: tuple[tuple[str, str], ...]
    classes: Array
    tables: Array
    rows: Array


WORK_TABLES = ("kernels", "graph_launches", "memcpy", "memset")
"""The tables of a trace with the work of GPUs."""


@dataclass(frozen=True, eq=False)
class DeviceBreakdown:
    """One GPU.

    Attributes:
        device: CUDA's number of it.
        name: the product's.
        parts: in the order in which they count, idle time by cause last; without parts that took no time.
        work: all its work.
        idle: its idle time.
    """

    device: int
    name: str
    parts: tuple[Part, ...]
    work: DeviceWork
    idle: Idle

    @property
    def drains(self) -> tuple[Drain, ...]:
        """Calls that waited until the GPU was out of work, most idle time after them first."""
        return self.idle.drains

    @property
    def pieces(self) -> IdlePieces:
        """Its idle time, piece by piece."""
        return self.idle.pieces

    @property
    def idle_ns(self) -> int:
        """Its idle time in the steps."""
        return sum(part.exclusive_ns for part in self.parts if part.kind == IDLE)

    def __getitem__(self, name: str) -> Part:
        """The part of that name; KeyError when there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)


@dataclass(frozen=True, repr=False, eq=False)
class StepBreakdown(Result):
    """The breakdown of a recording; printing it shows it.

    Attributes:
        steps: its steps.
        devices: the GPUs that ran something, by number. The parts of each GPU add up to each step.
        all_idle_ns: time of each step in which no GPU worked.
        verdict: the audit's line.
        gpu_reason: why no GPU was traced; empty if one was.
        left_out: number of excluded steps: warm-up and the last.
    """

    steps: Steps
    devices: tuple[DeviceBreakdown, ...]
    all_idle_ns: Array
    verdict: str
    gpu_reason: str = ""
    left_out: int = 0

    @cached_property
    def wall_ns(self) -> int:
        """The time of all steps."""
        return int(self.steps.durations_ns.sum())

    def to_dict(self) -> dict[str, Any]:
        """Seconds, all steps together; `p50_s` and `p95_s` are of single steps."""
        durations = self.steps.durations_ns / _NS_PER_S
        return {
            "steps": len(self.steps),
            "source": self.steps.source,
            "left_out": self.left_out,
            "wall_s": self.wall_ns / _NS_PER_S,
            "step": {"p50_s": float(np.median(durations)), "p95_s": float(np.quantile(durations, 0.95))},
            "all_idle_s": int(self.all_idle_ns.sum()) / _NS_PER_S,
            "devices": [
                {
                    "device": device.device,
                    "name": device.name,
                    "idle_s": device.idle_ns / _NS_PER_S,
                    "drains": [
                        {
                            "call": each.call,
                            "where": each.where,
                            "count": each.count,
                            "idle_s": each.idle_ns / _NS_PER_S,
                        }
                        for each in device.drains
                    ],
                    "parts": [
                        {
                            "name": part.name,
                            "kind": part.kind,
                            "exclusive_s": part.exclusive_ns / _NS_PER_S,
                            "covered_s": part.covered_ns / _NS_PER_S,
                            "share": self._share(part.exclusive_ns),
                            "p50_s": float(np.median(part.per_step_ns)) / _NS_PER_S,
                            "p95_s": float(np.quantile(part.per_step_ns, 0.95)) / _NS_PER_S,
                            "fill": part.fill,
                        }
                        for part in device.parts
                    ],
                }
                for device in self.devices
            ],
            "audit": self.verdict,
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per part of each GPU."""
        return [
            {"device": device["device"], **part} for device in self.to_dict()["devices"] for part in device["parts"]
        ]

    def plot(self, device: int | None = None, ax: Axes | None = None) -> Axes:
        """Plots a bar per step, divided into its parts; idle time by cause is grey.

        Args:
            device: CUDA's number of the GPU; None takes the first. Without one, the steps' times are drawn.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: that GPU did nothing in the recording.
        """
        if device is None and not self.devices:
            return plots.sequence(self.steps.durations_ns / _NS_PER_S, ax=ax, title=self.steps.source)
        chosen = next((each for each in self.devices if device in (None, each.device)), None)
        if chosen is None:
            known = ", ".join(str(each.device) for each in self.devices)
            raise InvalidArgument(f"device is {brief(device)}; accepted are {known or 'none, as no GPU did anything'}")
        parts = {part.name: (part.per_step_ns / _NS_PER_S, part.kind == IDLE) for part in chosen.parts}
        return plots.stacked(parts, ax=ax, title=f"GPU {chosen.device} {chosen.name}: {self.steps.source}")

    def table(self, width: int | None = None) -> str:
        """The parts of each GPU, as text without the verdict.

        Args:
            width: maximum columns: sentences are wrapped, the last columns left out and names cut in the middle.
        """

        def sentence(text: str, indent: str = "") -> list[str]:
            return [indent + line for line in wrapped(text, width - len(indent), 2)] if width else [indent + text]

        durations_us = self.steps.durations_ns / NS_PER_US
        count = len(self.steps)
        excluded = f" ({self.left_out} excluded: warm-up and the last)" if self.left_out else ""
        lines = sentence(
            f"{count:,} step{'s' * (count != 1)}{excluded} of {self._a_step(self.wall_ns)} "
            f"(p50 {format_time(float(np.median(durations_us)))}, "
            f"p95 {format_time(float(np.quantile(durations_us, 0.95)))}): {self.steps.source}"
        )
        for device in self.devices:
            busy = [part for part in device.parts if part.kind != IDLE]
            idle = [part for part in device.parts if part.kind == IDLE]
            title = f"GPU {device.device} {device.name}".rstrip()
            rows: list[tuple[str, ...]] = [(title, "a step", "share", "hidden", "grid fill")]
            rows += [self._row(f"  {part.name}", part.exclusive_ns, part.overlapped_ns, part.fill) for part in busy]
            rows.append(self._row("  idle", device.idle_ns))
            rows += [self._row(f"    {part.name}", part.exclusive_ns) for part in idle]
            lines += ["", *_fitted(rows, width)]
            for drain in device.drains[:_MOST_DRAINS]:
                place = f" in {drain.where}" if drain.where else ""
                lines += sentence(
                    f"{drain.call}{place} left it without work {drain.count:,} time{'s' * (drain.count != 1)}, "
                    f"for {self._a_step(drain.idle_ns)} a step ({format_share(self._share(drain.idle_ns))})",
                    "  ",
                )
        if len(self.devices) > 1:
            idle_ns = int(self.all_idle_ns.sum())
            lines += ["", f"no GPU did anything for {format_share(self._share(idle_ns))}"]
        if not self.devices:
            lines += ["", "no GPU work was recorded" + (f": {self.gpu_reason}" if self.gpu_reason else "")]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.verdict}"

    def __repr__(self) -> str:
        return f"<StepBreakdown: {len(self.steps):,} steps, {len(self.devices)} GPUs>"

    def _row(self, name: str, time_ns: int, beside_ns: int = 0, fill: float | None = None) -> tuple[str, ...]:
        share, beside = format_share(self._share(time_ns)), self._a_step(beside_ns) if beside_ns else "-"
        return name, self._a_step(time_ns), share, beside, format_share(fill) if fill is not None else "-"

    def _share(self, time_ns: int) -> float:
        return time_ns / self.wall_ns if self.wall_ns else 0.0

    def _a_step(self, time_ns: int) -> str:
        return format_time(time_ns / len(self.steps) / NS_PER_US)


def _fitted(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """The table, without its last columns if they do not fit."""
    lines = align_columns(rows, left=1)
    if width is None:
        return lines
    while max(map(len, lines)) > width and len(rows[0]) > _MATTERS:
        rows = [row[:-1] for row in rows]
        lines = align_columns(rows, left=1)
    if (over := max(map(len, lines)) - width) > 0:
        room = max(1, max(len(row[0]) for row in rows) - over)
        lines = align_columns([(shorten(row[0], room), *row[1:]) for row in rows], left=1)
    return lines


def break_down(trace: Trace, steps: Steps | None = None) -> StepBreakdown:
    """Divides the time of each GPU in each step into parts.

    A moment belongs to one part: the first that ran, in the order of `KernelClass`, then graphs that were traced as a
    whole, copies, fills. So communication and copies count only while nothing was computed; their overlapped time is
    reported separately. If the host does not wait, a step ends when the work launched in it is done. Work that is
    launched in one step and runs in the next counts where it runs.

    Args:
        trace: the recording.
        steps: default those of `find_steps`, `as_passed`, without the first three and the last if five others are left.

    Raises:
        NotAvailable: the recording has only totals, or no time passed in it.
    """
    left_out = 0
    if steps is None:
        kept, left_out = steady_steps(find_steps(trace))
        steps = as_passed(trace, kept)
    work = _AllWork(trace)
    devices = tuple(_device(trace, steps, work, number) for number in work.numbers)
    found = audit(trace)
    reason = "" if found.gpu_traced else found.tier_reason
    return StepBreakdown(steps, devices, _all_idle_ns(steps, work, devices), found.verdict, reason, left_out)


def _all_idle_ns(steps: Steps, work: _AllWork, devices: Sequence[DeviceBreakdown]) -> Array:
    """Time of each step in which no GPU worked."""
    if len(devices) == 1:
        idle: Array = sum(
            (part.per_step_ns for part in devices[0].parts if part.kind == IDLE), np.zeros(len(steps), int)
        )
        return idle
    classes = np.zeros(len(work.start_ns), np.uint8)
    busy, _ = _core.divide_time(steps.start_ns, steps.end_ns, [(work.start_ns, work.end_ns, classes)], 1)
    none: Array = busy[-1]
    return none


class _AllWork:
    """All work of GPUs: one entry per kernel, graph, copy and fill, of all devices. Kernels come first."""

    def __init__(self, trace: Trace) -> None:
        self.kinds: list[tuple[str, str]] = [(each.label, Kind.KERNEL.label) for each in KernelClass]
        self.class_of_variant = np.array([*map(kernel_class, trace.kernel_names()), KernelClass.OTHER], np.uint8)
        classes = [self.class_of_variant[np.minimum(trace.kernels.variant, len(trace.variants))]]
        classes.append(self._add_kind(_GRAPHS, Kind.GRAPH_LAUNCH, len(trace.graph_launches)))
        classes.append(self._add_copies(trace))
        classes.append(self._add_kind(_core.MEMSET_NAME, Kind.MEMSET, len(trace.memset)))
        tables = [getattr(trace, name) for name in WORK_TABLES]
        self.classes = np.concatenate(classes)
        self.tables = np.repeat(np.arange(len(tables), dtype=np.uint8), [len(table) for table in tables])
        self.rows = np.concatenate([np.arange(len(table)) for table in tables])
        self.start_ns = np.concatenate([table.start_ns for table in tables])
        self.end_ns = self.start_ns + np.concatenate([table.duration_ns for table in tables])
        self.launch = calls_of(trace, np.concatenate([table.correlation for table in tables]))
        devices = np.append(trace.tracks.device, 0).astype(np.int64)
        self.track = np.concatenate([table.track for table in tables])
        known = np.minimum(self.track, len(devices) - 1)
        self.device = devices[known]
        self.numbers: list[int] = np.unique(devices[distinct(known, len(devices))]).tolist()

    def _add_kind(self, name: str, kind: Kind, count: int) -> Array:
        self.kinds.append((name, kind.label))
        return np.full(count, len(self.kinds) - 1, np.uint8)

    def _add_copies(self, trace: Trace) -> Array:
        copies = trace.memcpy
        keys = copies.kind.astype(np.uint32) << 16 | copies.source.astype(np.uint32) << 8 | copies.destination
        each = np.unique(keys)
        names = [_core.copy_name(key >> 16, key >> 8 & 0xFF, key & 0xFF) for key in each.tolist()]
        known = sorted(set(names))[:_MOST_COPIES]
        names = [name if name in known else _OTHER_COPIES for name in names]
        first, known = len(self.kinds), list(dict.fromkeys(names))
        self.kinds += [(name, Kind.MEMCPY.label) for name in known]
        classes = np.array([first + known.index(name) for name in names], np.uint8)
        found: Array = classes[np.searchsorted(each, keys)]
        return found


def _device(trace: Trace, steps: Steps, work: _AllWork, number: int) -> DeviceBreakdown:
    here = work.device == number
    chosen = slice(None) if here.all() else here
    on_device = DeviceWork(
        work.start_ns[chosen],
        work.end_ns[chosen],
        work.launch[chosen],
        work.track[chosen],
        tuple(work.kinds),
        work.classes[chosen],
        work.tables[chosen],
        work.rows[chosen],
    )
    spans = (on_device.start_ns, on_device.end_ns, on_device.classes)
    alone, covered = _core.divide_time(steps.start_ns, steps.end_ns, [spans], len(work.kinds), covered=True)
    known = np.flatnonzero(trace.devices.ordinal == number)
    product = trace.string(int(trace.devices.name[known[0]])) if len(known) else ""
    fills = _fills(trace, work, here, int(trace.devices.multiprocessors[known[0]]) if len(known) else 0)
    parts = [
        Part(name, kind, alone[at], int(covered[at].sum()), fills[at] if at < len(fills) else None)
        for at, (name, kind) in enumerate(work.kinds)
        if covered[at].any()
    ]
    others_ns = np.sort(work.end_ns[~here & (work.end_ns > work.start_ns)])
    idle = explain_idle(trace, steps, on_device, alone[-1], others_ns)
    for cause in sorted(IdleCause, key=lambda cause: -int(idle.per_step_ns[:, cause].sum())):
        per_step = idle.per_step_ns[:, cause]
        if per_step.any():
            parts.append(Part(cause.label, IDLE, per_step, int(per_step.sum())))
    return DeviceBreakdown(number, product, tuple(parts), on_device, idle)


def _fills(trace: Trace, work: _AllWork, here: Array, processors: int) -> Sequence[float | None]:
    """Of each class of kernels, the share of the GPU that their grids fill."""
    variants, kernels = trace.variants, trace.kernels
    if processors == 0 or len(variants) == 0:
        return [None] * len(KernelClass)
    blocks = np.prod([variants[f"grid_{axis}"].astype(np.float64) for axis in "xyz"], axis=0)
    filled = np.append(np.minimum(1.0, blocks / processors), 1.0)  # one more for a variant that a file lacks
    durations_ns = kernels.duration_ns * here[: len(kernels)]
    weights = np.bincount(np.minimum(kernels.variant, len(variants)), durations_ns, len(filled))
    classes, count = work.class_of_variant, len(KernelClass)
    sums = zip(np.bincount(classes, weights * filled, count), np.bincount(classes, weights, count), strict=True)
    return [float(a / b) if b else None for a, b in sums]
