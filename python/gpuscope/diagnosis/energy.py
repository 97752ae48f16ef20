# SPDX-License-Identifier: Apache-2.0
"""Energy and clock throttling of regions and steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import plots
from gpuscope.analysis.device_samples import REASONS, DeviceReadings, Series, sampled_devices, why_not_sampled
from gpuscope.arguments import check_count
from gpuscope.diagnosis.energy_model import Array, Energy, EnergyModel, Work, kinds_of_work
from gpuscope.diagnosis.steps import as_passed, find_steps
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.results import Result, plain_fields
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.trace import NONE, Trace, number_of
from gpuscope.units import format_seconds, format_share

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

_ROWS = 20
_NS = 1e9
_TOO_SHORT = "the counter steps ten times a second, which is too seldom for so short a recording"
_NO_TICKS = "the recording is too short: the counter, which steps ten times a second, stepped less than twice in it"
_TOO_MUCH = "there is more work than the model can hold"


@dataclass(frozen=True)
class EnergyRow:
    """The GPU work launched in a region or in its inner regions.

    Attributes:
        name: call path of the region.
        count: number of kernels, graphs, copies and fills.
        seconds: their total duration.
        energy: of the GPU while they ran, idle power included, shared with concurrent work; None if unknown.
        power_w: mean power while they ran; None if unknown.
        sm_mhz: mean SM clock while they ran; None if it was not read.
        throttled: by reason, the share of that time with throttled clocks; None if unknown.
    """

    name: str
    count: int
    seconds: float
    energy: Energy | None
    power_w: float | None
    sm_mhz: float | None
    throttled: Mapping[str, float | None]


@dataclass(frozen=True, repr=False)
class DeviceEnergy(Result):
    """The energy of one GPU; printing it shows its figures. Unknown figures are None.

    Attributes:
        device: CUDA's number of the GPU.
        name: of the product.
        seconds: duration of the recording.
        total: energy of all processes.
        idle: the part without work of this program.
        outside: the part of work outside all regions.
        idle_power_w: power without work; None if idle time was too short to measure it.
        power_w: mean over the recording.
        regions: by call path, most energy first.
        steps: number of steps.
        step: mean of a step, idle time included.
        step_joules: of each step; empty if unknown.
        throttled: by reason, the share of the recording with throttled clocks.
        why: reasons for unknown figures, by name: energy, regions, steps, sm_mhz and the keys of `throttled`.
    """

    device: int
    name: str
    seconds: float
    total: Energy | None
    idle: Energy | None
    outside: Energy | None
    idle_power_w: float | None
    power_w: float | None
    regions: tuple[EnergyRow, ...]
    steps: int
    step: Energy | None
    step_joules: tuple[float, ...]
    throttled: Mapping[str, float | None]
    why: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, region: str) -> EnergyRow:
        """The region with this name or call path ("train/forward"); KeyError if there is none."""
        for row in self.regions:
            if row.name == region or row.name.endswith(f"/{region}"):
                return row
        raise KeyError(region)

    def to_dict(self) -> dict[str, Any]:
        """Joules, watts, seconds, MHz and shares; None where something is not known, ``why`` says why."""
        return plain_fields(self)

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per region."""
        return [{"device": self.device, **plain_fields(row)} for row in self.regions]

    def plot(self, top: int = 15, ax: Axes | None = None) -> Axes:
        """Draws a bar per region, most energy first, and one for idle time, with 95 % intervals.

        Args:
            top: maximum number of regions.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed, or the energy of regions is unknown.
            InvalidArgument: `top` is below 1.
        """
        known = [(row.name, row.energy) for row in self.regions if row.energy is not None][: check_count("top", top, 1)]
        if self.idle is not None:
            known.append(("(idle)", self.idle))
        if not known:
            why = self.why.get("energy") or self.why.get("regions") or "nothing ran on it"
            raise NotAvailable(f"the energy of regions on GPU {self.device} is not known: {why}")
        names, energies = zip(*known, strict=True)
        return plots.bars(
            names,
            [each.joules for each in energies],
            quantity="J",
            what="energy",
            intervals=[(each.low, each.high) for each in energies],
            ax=ax,
            title=self._title(),
        )

    def __str__(self) -> str:
        lines = [self._title()]
        if self.total is not None and self.idle is not None:
            idle = f"idle: {self.idle}"
            idle += f", at {self.idle_power_w:.0f} W" if self.idle_power_w is not None else ""
            lines.append(idle)
        if self.step is not None:
            lines.append(f"a step: {self.step} ({self.steps} steps)")
        held = [f"{reason} {format_share(share)}" for reason, share in self.throttled.items() if share]
        unknown = [reason for reason, share in self.throttled.items() if share is None]
        if held or not unknown:
            lines.append(f"clocks held back: {', '.join(held) or 'never'}")
        lines += [f"{what} not known: {reason}" for what, reason in self.why.items()]
        if self.regions:
            rows = [("region", "GPU time", "energy", "power", "clock", "held back"), *map(_cells, self.regions[:_ROWS])]
            lines += ["", *align_columns(rows, left=1, rule=True)]
            if len(self.regions) > _ROWS:
                lines.append(f"... and {len(self.regions) - _ROWS} more")
        return "\n".join(lines)

    def _title(self) -> str:
        title = f"GPU {self.device} {self.name}".rstrip()
        if self.total is None:
            return title
        return f"{title}: {self.total} in {format_seconds(self.seconds)}, {self.total.joules / self.seconds:.0f} W"


def _cells(row: EnergyRow) -> tuple[str, ...]:
    held = [share for share in row.throttled.values() if share is not None]
    return (
        row.name,
        format_seconds(row.seconds),
        str(row.energy) if row.energy is not None else "-",
        f"{row.power_w:.0f} W" if row.power_w is not None else "-",
        f"{row.sm_mhz:.0f} MHz" if row.sm_mhz is not None else "-",
        format_share(max(held)) if held else "-",
    )


@dataclass(frozen=True, repr=False)
class EnergyReport(Result):
    """The energy of a recording; printing it shows it.

    Attributes:
        devices: the GPUs that the program used, by number.
        why: why there are none; else "".
    """

    devices: tuple[DeviceEnergy, ...]
    why: str = ""

    def __getitem__(self, device: int) -> DeviceEnergy:
        """The GPU with this number; KeyError if there is none."""
        for each in self.devices:
            if each.device == device:
                return each
        raise KeyError(device)

    def to_dict(self) -> dict[str, Any]:
        """Joules, watts, seconds, MHz and shares; None where something is not known, ``why`` says why."""
        return {"devices": [each.to_dict() for each in self.devices], "why": self.why}

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per region and GPU."""
        return [row for device in self.devices for row in device._frame_rows()]

    def plot(self, device: int | None = None, top: int = 15, ax: Axes | None = None) -> Axes:
        """`DeviceEnergy.plot` of one GPU.

        Args:
            device: CUDA's number of it, default the first.
            top: maximum number of regions.
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed, or no energy is known.
            InvalidArgument: the program did not use that GPU, or `top` is below 1.
        """
        if not self.devices:
            raise NotAvailable(f"no energy is known: {self.why}")
        chosen = next((each for each in self.devices if device in (None, each.device)), None)
        if chosen is None:
            known = ", ".join(str(each.device) for each in self.devices)
            raise InvalidArgument(f"device is {brief(device)}; accepted are {known}")
        return chosen.plot(top, ax)

    def __str__(self) -> str:
        if not self.devices:
            return f"no energy is known: {self.why}"
        return "\n\n".join(map(str, self.devices))


def energy(trace: Trace) -> EnergyReport:
    """Computes each GPU's energy in total, by region and by step, and the share of time with throttled clocks.

    The GPU is not synchronized: see `energy_model`. Intervals are 95 % confidence intervals.

    Args:
        trace: a recording of ``profile(device_samples=True)``.
    """
    work = _AllWork(trace)
    sampled = sampled_devices(trace)
    used = sorted({*np.unique(work.device).tolist(), *sampled})
    if not sampled:
        return EnergyReport((), why_not_sampled(trace, used[0] if used else 0))
    return EnergyReport(tuple(_of_device(trace, work, device) for device in used))


class _AllWork:
    """Kernels, graphs traced as a whole, copies and fills of all GPUs."""

    def __init__(self, trace: Trace) -> None:
        names = trace.kernel_names(short=True)
        distinct = {name: row for row, name in enumerate(dict.fromkeys(names))}
        of_variant = np.array([distinct[name] for name in names], np.int64)
        self.names = [*distinct, "CUDA graphs", "copies", "fills"]
        start: list[Array] = []
        end: list[Array] = []
        name: list[Array] = []
        region: list[Array] = []
        device: list[Array] = []
        for number, table in enumerate((trace.kernels, trace.graph_launches, trace.memcpy, trace.memset)):
            if not len(table):
                continue
            start.append(table.start_ns)
            end.append(table.start_ns + np.maximum(table.duration_ns, 0))
            region.append(table.region)
            device.append(trace.tracks.device[table.track].astype(np.int64))
            named = of_variant[table.variant] if number == 0 else np.full(len(table), len(distinct) + number - 1)
            name.append(named)

        def joined(columns: list[Array]) -> Array:
            found: Array = np.concatenate([np.zeros(0, np.int64), *columns]).astype(np.int64)
            return found

        self.start_ns, self.end_ns, self.name = joined(start), joined(end), joined(name)
        self.region, self.device = joined(region), joined(device)


def _of_device(trace: Trace, work: _AllWork, device: int) -> DeviceEnergy:
    readings = DeviceReadings(trace, device)
    begin_ns, end_ns = _span(trace, readings)
    here = np.flatnonzero((work.device == device) & (work.start_ns < end_ns) & (work.end_ns > begin_ns))
    start_ns, stop_ns = np.maximum(work.start_ns[here], begin_ns), np.minimum(work.end_ns[here], end_ns)
    owners = _Owners(trace, work.region[here])
    kinds = kinds_of_work(work.names, work.name[here], owners.innermost, stop_ns - start_ns)
    own = Work(start_ns, stop_ns, *kinds)
    why: dict[str, str] = {}
    edges = _steps(trace, begin_ns, end_ns, why)
    ticks, reason = readings.energy
    model = None
    if ticks is None:
        why["energy"] = reason
    elif int(((ticks.time_ns >= begin_ns) & (ticks.time_ns <= end_ns)).sum()) < 2:
        why["energy"] = _NO_TICKS
    else:
        try:
            model = EnergyModel(ticks, own, begin_ns, end_ns, edges.reshape(-1))
        except ValueError:
            why["energy"] = _TOO_MUCH
    if model is not None and not model.is_solved:
        why["regions"] = _TOO_SHORT
    of_regions = model.of_work(owners.piece, owners.owner, owners.count) if model and model.is_solved else None
    throttled, growth = _throttled(readings, begin_ns, end_ns, why)
    if readings.clock is None:
        why["sm_mhz"] = why_not_sampled(trace, device, "sm_mhz")
    rows = tuple(_rows(owners, own, of_regions, growth, readings.clock))
    total = model.total if model else None
    seconds = max(end_ns - begin_ns, 1) / _NS
    idle = None
    if model is not None and model.is_solved and total is not None:
        idle = _rest(total, model.of_work(np.arange(len(here)), np.zeros(len(here), np.int64), 1)[0])
    step, joules = _of_steps(model, edges)
    named = zip(trace.devices.ordinal.tolist(), trace.devices.name.tolist(), strict=True)
    names = {ordinal: trace.string(name) for ordinal, name in named}
    return DeviceEnergy(
        device,
        names.get(device, ""),
        seconds,
        total,
        idle,
        of_regions[owners.outside] if of_regions else None,
        model.base_w if model else None,
        total.joules / seconds if total else None,
        rows,
        len(edges),
        step,
        joules,
        throttled,
        why,
    )


def _span(trace: Trace, readings: DeviceReadings) -> tuple[int, int]:
    """Begin and end of the recording."""
    info = trace.info
    begin_ns, end_ns = (number_of(info, f"session.{edge}_ns") for edge in ("start", "stop"))
    if 0 < begin_ns < end_ns:
        return begin_ns, end_ns
    moments = np.concatenate([trace.device_samples.start_ns, trace.device_counters.start_ns])
    return int(moments.min()), int(moments.max())


def _steps(trace: Trace, begin_ns: int, end_ns: int, why: dict[str, str]) -> Array:
    """Begin and end of each step, one row each."""
    try:
        found = find_steps(trace)
        if not found.repeat:
            raise NotAvailable("nothing in the recording repeats")
        steps = as_passed(trace, found)
    except NotAvailable as error:
        why["steps"] = str(error).removeprefix("steps are not known: ")
        return np.zeros((0, 2), np.int64)
    edges = np.column_stack([steps.start_ns, steps.end_ns])
    inside: Array = edges[(edges[:, 0] >= begin_ns) & (edges[:, 1] <= end_ns) & (edges[:, 0] < edges[:, 1])]
    return inside


def _of_steps(model: EnergyModel | None, edges: Array) -> tuple[Energy | None, tuple[float, ...]]:
    if model is None or not model.is_solved or len(edges) == 0:
        return None, ()
    middle = (model.edges_ns[:-1] + model.edges_ns[1:]) // 2
    owner = np.searchsorted(edges[:, 0], middle, side="right") - 1
    owner = np.where((owner >= 0) & (middle < edges[np.maximum(owner, 0), 1]), owner, -1)
    together = model.of_cells(np.where(owner >= 0, 0, -1), 1)[0]
    count = len(edges)
    mean = Energy(together.joules / count, together.low / count, together.high / count)
    return mean, tuple(each.joules for each in model.of_cells(owner, count))


def _rest(whole: Energy, part: Energy) -> Energy:
    """The whole less a part. The interval is the part's: the whole is more precise."""
    value = max(whole.joules - part.joules, 0.0)
    half = (part.high - part.low) / 2
    return Energy(value, max(0.0, value - half), value + half)


class _Owners:
    """The call paths of each piece of work: its region and all outer regions.

    Attributes:
        count: number of paths, plus one for work outside all regions.
        outside: index of that last one.
        innermost: the path that launched each piece of work.
        piece: index of a piece of work, once per path.
        owner: the path of each entry in `piece`.
        names: full name of each path, outer regions first.
    """

    def __init__(self, trace: Trace, region: Array) -> None:
        parents = trace.paths.parent.astype(np.int64)
        self.outside = len(parents)
        self.count = len(parents) + 1
        paths = np.append(trace.regions.path.astype(np.int64), self.outside)
        current = paths[np.minimum(np.where(region == NONE, len(paths) - 1, region), len(paths) - 1)]
        self.innermost = current
        pieces, owners = [np.arange(len(region))], [current]
        above = np.append(np.where(parents == NONE, -1, parents), -1)
        piece = pieces[0]
        while len(piece):
            current = above[current]
            inside = current >= 0
            piece, current = piece[inside], current[inside]
            pieces.append(piece)
            owners.append(current)
        self.piece, self.owner = np.concatenate(pieces), np.concatenate(owners)
        self.names: list[str] = []
        for name, parent in zip(trace.paths.name.tolist(), parents.tolist(), strict=True):
            spelled = trace.string(name)
            self.names.append(f"{self.names[parent]}/{spelled}" if parent != NONE else spelled)


def _rows(
    owners: _Owners,
    work: Work,
    energies: list[Energy] | None,
    growth: Mapping[str, Series | None],
    clock: Series | None,
) -> list[EnergyRow]:
    lengths = (work.end_ns - work.start_ns).astype(np.float64)

    def summed(values: Array) -> Array:
        found: Array = np.bincount(owners.owner, values[owners.piece], owners.count)
        return found

    count = np.bincount(owners.owner, minlength=owners.count)
    time_ns = summed(lengths)
    held = {
        reason: None if series is None else summed(series.at(work.end_ns) - series.at(work.start_ns))
        for reason, series in growth.items()
    }
    clocked = None if clock is None else summed(clock.integral(work.start_ns, work.end_ns))
    order = np.argsort(-time_ns[: owners.outside], kind="stable").tolist()
    if energies is not None:
        order.sort(key=lambda path: -energies[path].joules)
    return [
        EnergyRow(
            owners.names[path],
            int(count[path]),
            float(time_ns[path]) / _NS,
            energies[path] if energies is not None else None,
            energies[path].joules / (float(time_ns[path]) / _NS) if energies is not None else None,
            float(clocked[path] / time_ns[path]) if clocked is not None else None,
            {
                reason: None if values is None else float(np.clip(values[path] / time_ns[path], 0, 1))
                for reason, values in held.items()
            },
        )
        for path in order
        if time_ns[path] > 0
    ]


def _throttled(
    readings: DeviceReadings, begin_ns: int, end_ns: int, why: dict[str, str]
) -> tuple[dict[str, float | None], dict[str, Series | None]]:
    """By reason: the share of the recording, and the counter over time."""
    shares: dict[str, float | None] = {}
    growth: dict[str, Series | None] = {}
    for reason in REASONS:
        growth[reason], unknown = readings.counter(f"{reason}_ns")
        shares[reason] = None
        series = growth[reason]
        if series is None:
            why[reason] = unknown
        else:
            span = float(series.time_ns[-1] - series.time_ns[0])
            shares[reason] = float(np.clip((series.values[-1] - series.values[0]) / max(span, 1.0), 0, 1))
    return shares, growth
