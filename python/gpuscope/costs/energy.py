# SPDX-License-Identifier: Apache-2.0
"""Energy of regions and steps, from a counter that is read about once a second, and clock throttling.

Each kind of GPU work has a power in addition to the idle power. Non-negative least squares over the intervals between
readings gives the powers. A prior keeps them near the typical power of their class, as most programs run the same
mixture of kernels all the time. Then the energies of an interval are scaled to the measured energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import plots
from gpuscope.analysis.device_samples import REASONS, DeviceReadings, Series, sampled_devices, why_not_sampled
from gpuscope.arguments import check_count
from gpuscope.counters.short_kernels import Spans, solve_nonnegative
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.results import Result, plain_fields
from gpuscope.spans import covered_ns, union
from gpuscope.steps.kernel_classes import KernelClass, kernel_class
from gpuscope.steps.steps import as_passed, find_steps
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.trace import NONE, Trace, number_of
from gpuscope.units import format_seconds, format_share

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

_ROWS = 20
_NS = 1e9
_NORMAL = 1.96
_LEAST_S = 0.995  # of GPU time, for an energy; this is printed as 1.00 s
_STEP_NS = 9.95e7  # from step to step of the counter (H100)
_LATE_S = 0.1 / 12**0.5  # error of the moment at which the counter had a value that was read, root mean square
_LAGS_NS = np.arange(0, 1.4e8, 1.5e7)  # of the counter behind the energy, in addition to the time since its step
_USUAL_LAG_NS, _LAG_SPREAD_NS = 3e7, 4e7
_LEAST_SPREAD = 0.02  # of the energy of an interval: power is not constant
_LARGEST_ERROR = 0.25  # of idle power, relative to it
_NEAR_NS = 200_000_000  # readings of a recording may be this far outside of it
_MOST_KERNELS = 16  # with their own power
_ROUNDS = 5
_LEAST_MISFIT = 0.05  # with fewer intervals than powers, it would be 0
_STEADY = 0.1  # how much idle power varies, relative to the power of work
_IDLE = 0.2  # expected idle power and its error, relative to the mean power
_APART = 0.4  # error of the typical power of a class, relative to it
# Of work in addition to idle power, relative to products on an H100: a copy drew 385 W, a product 718 W, idle 90 W.
_TYPICAL = {
    KernelClass.TENSOR_PRODUCT: 1.0,
    KernelClass.PRODUCT: 0.9,
    KernelClass.ATTENTION: 0.9,
    KernelClass.REDUCTION: 0.5,
    KernelClass.ELEMENTWISE: 0.5,
    KernelClass.OTHER: 0.5,
    KernelClass.COMMUNICATION: 0.3,
}
_TYPICAL_COPY = 0.3  # by a copy engine
_SHORT = "the recording is too short: the counter steps ten times a second"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Energy:
    """Joules with their 95 % interval.

    The interval excludes the counter's own error, which the vendor does not specify.
    """

    joules: float
    low: float
    high: float

    def __str__(self) -> str:
        half = (self.high - self.low) / 2
        digits = 0 if half <= 0 else max(0, min(6, 1 - int(np.floor(np.log10(half)))))
        return f"{self.joules:,.{digits}f} J +-{half:,.{digits}f}"


@dataclass(frozen=True)
class EnergyRow:
    """The GPU work launched in a region or in its inner regions.

    Attributes:
        name: call path of the region.
        count: number of kernels, graphs, copies and fills.
        seconds: their total duration.
        energy: of the GPU while they ran, idle power included, shared with concurrent work; None if they ran less than
            1 s in all, or unknown.
        power_w: mean power while they ran; None if unknown.
        sm_mhz: mean SM clock while they ran; None if it was not read.
        throttled: by reason, the share of that time with throttled clocks; None if unknown.
        why: why there is no energy; else "".
    """

    name: str
    count: int
    seconds: float
    energy: Energy | None
    power_w: float | None
    sm_mhz: float | None
    throttled: Mapping[str, float | None]
    why: str = ""


@dataclass(frozen=True, repr=False)
class DeviceEnergy(Result):
    """The energy of one GPU; printing it shows its figures. Unknown figures are None.

    Attributes:
        device: CUDA's number of the GPU.
        name: of the product.
        seconds: duration of the recording.
        total: energy of all processes.
        idle: the part without work of this program; None if that was less than 1 s.
        outside: the part of work outside all regions; None if that ran less than 1 s.
        idle_power_w: power without work; None if idle time was too short to measure it.
        power_w: mean over the recording.
        regions: by call path, most energy first.
        steps: number of steps.
        step: mean of a step, idle time included; None if all steps together took less than 1 s.
        step_joules: of each step; empty if any took less than 1 s.
        throttled: by reason, the share of the recording with throttled clocks.
        why: reasons for unknown figures, by name: energy, idle, steps, sm_mhz and the keys of `throttled`.
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
            why = self.why.get("energy") or next((row.why for row in self.regions), "nothing ran on it")
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
        if self.idle is not None:
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
            if self.total is not None and any(row.energy is None for row in self.regions):
                lines.append("-: a region needs 1 s of GPU time in all")
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

    The GPU is not synchronized. A region, idle time and steps need 1 s in all. Intervals are 95 % confidence intervals.

    Args:
        trace: a recording of ``profile(device_samples=True)``.
    """
    sampled = sampled_devices(trace)
    used = sorted({*trace.tracks.device.tolist(), *sampled})
    if not sampled:
        return EnergyReport((), why_not_sampled(trace, used[0] if used else 0))
    return EnergyReport(tuple(_of_device(trace, device) for device in used))


class _DeviceWork:
    """Kernels, graphs traced as a whole, copies and fills of one GPU within a recording.

    Attributes:
        start_ns: begin of each piece.
        end_ns: end of each piece.
        kind: its kind: one of the kernels with the most time, or a class.
        typical: typical power of each kind, see `_TYPICAL`.
        region: region that launched it.
    """

    def __init__(self, trace: Trace, device: int, begin_ns: int, end_ns: int) -> None:
        names = trace.kernel_names(short=True)
        distinct = {name: row for row, name in enumerate(dict.fromkeys(names))}
        of_variant = np.array([distinct[name] for name in names], np.int64)
        of_kernels = [_TYPICAL[kernel_class(name)] for name in distinct]
        typical = np.array([*of_kernels, _TYPICAL[KernelClass.OTHER], _TYPICAL_COPY, _TYPICAL_COPY])
        columns: list[tuple[Array, ...]] = [(np.zeros(0, np.int64),) * 4]
        for number, table in enumerate((trace.kernels, trace.graph_launches, trace.memcpy, trace.memset)):
            name = of_variant[table.variant] if number == 0 else np.full(len(table), len(distinct) + number - 1)
            until_ns = table.start_ns + np.maximum(table.duration_ns, 0)
            here = (trace.tracks.device[table.track] == device) & (table.start_ns < end_ns) & (until_ns > begin_ns)
            columns.append((table.start_ns[here], until_ns[here], name[here], table.region[here]))
        joined = (np.concatenate(column).astype(np.int64) for column in zip(*columns, strict=True))
        start_ns, until_ns, name, self.region = joined
        self.start_ns, self.end_ns = np.maximum(start_ns, begin_ns), np.minimum(until_ns, end_ns)
        longest = np.argsort(-np.bincount(name, self.end_ns - self.start_ns, len(typical)), kind="stable")
        of_name = len(typical) + np.unique(typical, return_inverse=True)[1].reshape(-1)
        of_name[longest[:_MOST_KERNELS]] = longest[:_MOST_KERNELS]
        _, first, kind = np.unique(of_name[name], return_index=True, return_inverse=True)
        self.kind, self.typical = kind.reshape(-1), typical[name[first]]


class _Ran:
    """How long each kind of work ran."""

    def __init__(self, work: _DeviceWork, pieces: Array) -> None:
        self._count, self._spans = len(work.typical), {}
        kinds, start_ns, length_ns = work.kind[pieces], work.start_ns[pieces], (work.end_ns - work.start_ns)[pieces]
        for kind in np.unique(kinds).tolist():
            self._spans[kind] = Spans(start_ns[kinds == kind], length_ns[kinds == kind])

    def between(self, edges: Array) -> Array:
        """Nanoseconds between edges, a column for each kind."""
        found: Array = np.zeros((len(edges) - 1, self._count))
        for kind, spans in self._spans.items():
            found[:, kind] = np.diff(spans.until(edges))
        return found


@dataclass(frozen=True, eq=False)
class _Fit:
    """Powers, with the seconds and the expected error of each interval."""

    rows: Array
    errors: Array
    watts: Array
    covariance: Array
    misfit: float


class _Model:
    """The energy of one GPU between two moments.

    Its tables of seconds have a row for each interval between readings, and one before and one behind them. The columns
    are all time, then the kinds of work.

    Attributes:
        total: seconds of the whole recording.
        base_w: idle power; None if it is uncertain.
    """

    def __init__(self, readings: Series, work: _DeviceWork, begin_ns: int, end_ns: int) -> None:
        self._work, self._begin_ns = work, begin_ns
        self._busy = union(work.start_ns, work.end_ns)
        self._ran = _Ran(work, np.arange(len(work.kind)))
        self._energy = np.diff(readings.values)
        edges = readings.time_ns - self._ages_ns(readings.time_ns)
        self._fitted = fitted = self._fit(edges)
        error_w = float(fitted.covariance[0, 0]) ** 0.5
        self.base_w = float(fitted.watts[0]) if _NORMAL * error_w <= _LARGEST_ERROR * fitted.watts[0] else None
        # Energy before and behind the readings is scaled as that of the neighbors.
        self._rows, self._whole = np.pad(fitted.rows, ((1, 1), (0, 0))), np.pad(self._energy, 1)
        self._scale = np.pad(_scales(fitted.rows * fitted.watts, self._energy), ((1, 1), (0, 0)), mode="edge")
        self._spread = np.pad(max(fitted.misfit, 1.0) ** 0.5 * fitted.errors / self._energy, 1, mode="edge")
        self._late_s = np.full(len(edges) + 2, _LATE_S)
        self._late_s[1] = np.hypot(_LATE_S, max(begin_ns - int(edges[0]), 0) / 2 / _NS)
        self._edges = np.concatenate([[begin_ns], np.clip(edges, begin_ns, end_ns), [end_ns]])
        self.total = self._seconds(self._edges)
        all_ns = self._ran.between(self._edges).sum(axis=1)
        self._at_once = self.total[:, 1:].sum(axis=1) / np.maximum(all_ns, 1)  # seconds, over ns of work

    def _ages_ns(self, time_ns: Array) -> Array:
        """How old the counter's value was at each reading: the mean of possible ages, weighted by likelihood."""
        lags, phases = (each.reshape(-1, 1) for each in np.meshgrid(_LAGS_NS, np.arange(0, _STEP_NS, _STEP_NS / 10)))
        ages = (lags + (time_ns - self._begin_ns - phases) % _STEP_NS).astype(np.int64)
        misfits = np.array([max(self._fit(time_ns - age).misfit, _LEAST_MISFIT) for age in ages])
        unusual = (lags[:, 0] - _USUAL_LAG_NS) / _LAG_SPREAD_NS
        likely = (misfits / misfits.min()) ** (-len(self._energy) / 2) * np.exp(-(unusual**2) / 2)
        found: Array = (likely @ ages / likely.sum()).astype(np.int64)
        return found

    def _seconds(self, edges: Array) -> Array:
        """The seconds between edges. Concurrent work shares them."""
        ran_ns = self._ran.between(edges)
        busy_ns = covered_ns(*self._busy, edges[:-1], edges[1:])
        ran_ns *= (busy_ns / np.maximum(ran_ns.sum(axis=1), 1))[:, None]
        found: Array = np.column_stack([np.diff(edges), ran_ns]) / _NS
        return found

    def _fit(self, edges: Array) -> _Fit:
        """The powers if the counter had its values at these moments."""
        rows, energy, typical = self._seconds(edges), self._energy, self._work.typical
        lead_ns = max(self._begin_ns - int(edges[0]), 0)
        if lead_ns > 0:  # before the recording the GPU was idle, or did the same as just after its begin
            rows[0, 1:] += self._seconds(np.array([self._begin_ns, self._begin_ns + lead_ns]))[0, 1:] / 2
        late_s = np.full(len(rows), 2**0.5 * _LATE_S)
        late_s[0] = np.hypot(late_s[0], lead_ns / 2 / _NS)
        errors = energy * np.hypot(late_s / rows[:, 0], _LEAST_SPREAD)
        mean = float(energy.sum() / rows[:, 0].sum())
        expected, spread = np.array([_IDLE * mean, mean]), np.array([_IDLE * mean, 2 * mean])
        alike = np.column_stack([rows[:, 0], rows[:, 1:] @ typical])
        watts = typical * _solve(alike, energy, errors, expected, spread)[0][1]
        expected, spread = np.append(expected[0], watts), np.append(spread[0], _APART * np.maximum(watts, mean))
        return _Fit(rows, errors, *_solve(rows, energy, errors, expected, spread))

    def of_pieces(self, pieces: Array) -> Array:
        """The seconds in which these pieces of work ran."""
        ran_ns = _Ran(self._work, pieces).between(self._edges)
        ran = ran_ns * self._at_once[:, None]
        found: Array = np.column_stack([ran.sum(axis=1), ran])
        return found

    def of_spans(self, spans: Array) -> Array:
        """The seconds in spans of time, which do not overlap: begin and end of each, one row each."""
        cells = np.unique(np.append(self._edges, spans))
        after = np.searchsorted(spans[:, 0], cells[:-1], side="right")
        inside = (after > 0) & (cells[:-1] < spans[np.maximum(after - 1, 0), 1])
        found = np.zeros_like(self.total)
        row = np.searchsorted(self._edges, cells[:-1], side="right") - 1
        np.add.at(found, np.minimum(row, len(found) - 1), self._seconds(cells) * inside[:, None])
        return found

    def energy(self, seconds: Array) -> Energy:
        """The energy of these seconds."""
        fitted, whole = self._fitted, self._whole
        scaled = self._scale * seconds
        joules = scaled @ fitted.watts
        share = np.where(whole > 0, joules / np.where(whole > 0, whole, 1.0), 0.0)
        # Powers only move energy between the parts of an interval.
        slope = (scaled - share[:, None] * self._scale * self._rows).sum(axis=0)
        variance = slope @ fitted.covariance @ slope
        # Powers are not constant. This is 0 for all energy of an interval.
        uncertain = self._spread * np.where(whole > 0, 2 * whole * share * (1 - share), joules)
        variance += (uncertain**2).sum()
        # A reading that was early or late moves energy between the intervals before and after it.
        moved_w = np.diff(share * whole / np.maximum(self._rows[:, 0], 1 / _NS), prepend=0, append=0)
        half = _NORMAL * float(variance + ((self._late_s * moved_w) ** 2).sum()) ** 0.5
        value = float(joules.sum())
        return Energy(value, max(0.0, value - half), value + half)


def _solve(rows: Array, energy: Array, errors: Array, expected: Array, spread: Array) -> tuple[Array, Array, float]:
    """Non-negative least squares with a prior: the powers, their covariance, and the mean square of the residuals.

    Residuals are relative to `errors`. `expected` and `spread` are the prior.
    """
    rows, energy, noise = rows / errors[:, None], energy / errors, 1.0
    gram = rows.T @ rows
    for _ in range(_ROUNDS):  # more noise gives the prior more weight
        pull = noise * np.diag(spread**-2.0)
        watts = solve_nonnegative(gram + pull, rows.T @ energy + pull @ expected)
        inverse = np.linalg.inv(gram + pull)
        covariance, parameters = noise * inverse, float(np.trace(inverse @ gram))
        left = float(((energy - rows @ watts) ** 2).sum())
        misfit = left / max(len(energy) - parameters, 1.0)
        noise = max(misfit, 1.0)
    return watts, covariance, misfit


def _scales(joules: Array, energy: Array) -> Array:
    """Factors that make the parts of each interval add up to its energy.

    A residual belongs to the parts by their expected variance, the square of their joules.
    """
    variance = (joules * np.append(_STEADY, np.ones(joules.shape[1] - 1))) ** 2
    left = (energy - joules.sum(axis=1)) / np.maximum(variance.sum(axis=1), 1e-9)
    factors = np.maximum(1 + left[:, None] * variance / np.maximum(joules, 1e-9), 0.1)
    found: Array = factors * (energy / np.maximum((factors * joules).sum(axis=1), 1e-9))[:, None]
    return found


def _too_short(what: str, seconds: float) -> str:
    """Why so few seconds have no energy; "" if they have."""
    return "" if seconds >= _LEAST_S else f"needs 1 s of {what} {format_seconds(seconds)}"


def _model_of(readings: DeviceReadings, work: _DeviceWork, span: tuple[int, int]) -> tuple[_Model | None, str]:
    """The model; or None and the reason."""
    counter, why = readings.energy
    if counter is None:
        return None, why
    here = (counter.time_ns >= span[0] - _NEAR_NS) & (counter.time_ns <= span[1] + _NEAR_NS)
    counter = Series(counter.time_ns[here], counter.values[here])
    if len(counter) < 2 or counter.time_ns[-1] - counter.time_ns[0] < 2 * _STEP_NS:
        return None, _SHORT
    return _Model(counter, work, *span), ""


def _of_device(trace: Trace, device: int) -> DeviceEnergy:
    readings, span = DeviceReadings(trace, device), _span(trace)
    work = _DeviceWork(trace, device, *span)
    why: dict[str, str] = {}
    steps = _steps(trace, span, why)
    model, unknown = _model_of(readings, work, span)
    total = idle = step = idle_power_w = None
    step_joules: tuple[float, ...] = ()
    if model is None:
        why["energy"] = unknown
    else:
        total = model.energy(model.total)
        resting = np.zeros_like(model.total)
        resting[:, 0] = np.maximum(model.total[:, 0] - model.total[:, 1:].sum(axis=1), 0)
        if short := _too_short("idle time in all; it lasted", float(resting.sum())):
            why["idle"] = short
        else:
            idle, idle_power_w = model.energy(resting), model.base_w
        if len(steps):
            step, step_joules = _of_steps(model, steps, why)
    throttled, growth = _throttled(readings, why)
    if readings.clock is None:
        why["sm_mhz"] = why_not_sampled(trace, device, "sm_mhz")
    *rows, outside = _rows(trace, work, model, unknown, growth, readings.clock)
    rows.sort(key=lambda row: (-row.energy.joules if row.energy else 0.0, -row.seconds))
    seconds = max(span[1] - span[0], 1) / _NS
    named = zip(trace.devices.ordinal.tolist(), trace.devices.name.tolist(), strict=True)
    names = {ordinal: trace.string(name) for ordinal, name in named}
    return DeviceEnergy(
        device,
        names.get(device, ""),
        seconds,
        total,
        idle,
        outside.energy,
        idle_power_w,
        total.joules / seconds if total else None,
        tuple(row for row in rows if row.seconds > 0),
        len(steps),
        step,
        step_joules,
        throttled,
        why,
    )


def _span(trace: Trace) -> tuple[int, int]:
    """Begin and end of the recording."""
    info = trace.info
    begin_ns, end_ns = (number_of(info, f"session.{edge}_ns") for edge in ("start", "stop"))
    if 0 < begin_ns < end_ns:
        return begin_ns, end_ns
    moments = np.concatenate([trace.device_samples.start_ns, trace.device_counters.start_ns])
    return int(moments.min()), int(moments.max())


def _steps(trace: Trace, span: tuple[int, int], why: dict[str, str]) -> Array:
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
    inside: Array = edges[(edges[:, 0] >= span[0]) & (edges[:, 1] <= span[1]) & (edges[:, 0] < edges[:, 1])]
    return inside


def _of_steps(model: _Model, steps: Array, why: dict[str, str]) -> tuple[Energy | None, tuple[float, ...]]:
    """The mean energy of a step, and the energy of each if all are long enough."""
    lengths_s = (steps[:, 1] - steps[:, 0]) / _NS
    if short := _too_short("steps in all; they lasted", float(lengths_s.sum())):
        why["steps"] = short
        return None, ()
    count, together = len(steps), model.energy(model.of_spans(steps))
    mean = Energy(together.joules / count, together.low / count, together.high / count)
    each = steps[:, None] if lengths_s.min() >= _LEAST_S else steps[:0, None]
    return mean, tuple(model.energy(model.of_spans(step)).joules for step in each)


def _rows(
    trace: Trace,
    work: _DeviceWork,
    model: _Model | None,
    unknown: str,
    growth: Mapping[str, Series | None],
    clock: Series | None,
) -> list[EnergyRow]:
    """A row of each call path; the last is of work outside all regions."""
    names: list[str] = []
    above = np.append(trace.paths.parent.astype(np.int64), NONE)
    for name, parent in zip(trace.paths.name.tolist(), above.tolist(), strict=False):
        names.append(f"{names[parent]}/{trace.string(name)}" if parent != NONE else trace.string(name))
    of_region = np.append(trace.regions.path.astype(np.int64), len(names))
    path = of_region[np.minimum(work.region, len(of_region) - 1)]  # NONE is the largest number
    piece = np.arange(len(path))
    pieces, owners = [], []
    while len(piece):  # work of a region is work of all regions around it
        pieces.append(piece)
        owners.append(path)
        inside = above[path] != NONE
        piece, path = piece[inside], above[path][inside]
    piece, owner = (np.concatenate([np.zeros(0, np.int64), *each]) for each in (pieces, owners))
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(len(names) + 2))
    held = {
        reason: None if series is None else series.at(work.end_ns) - series.at(work.start_ns)
        for reason, series in growth.items()
    }
    clocked = None if clock is None else clock.integral(work.start_ns, work.end_ns)
    rows = []
    for row, name in enumerate([*names, ""]):
        here = piece[order[edges[row] : edges[row + 1]]]
        seconds = float((work.end_ns - work.start_ns)[here].sum()) / _NS
        why = unknown or _too_short("GPU time in all; it ran", seconds)
        energy = model.energy(model.of_pieces(here)) if model is not None and not why else None
        ns = max(seconds * _NS, 1.0)
        throttled = {
            reason: None if values is None else float(np.clip(values[here].sum() / ns, 0, 1))
            for reason, values in held.items()
        }
        rows.append(
            EnergyRow(
                name,
                len(here),
                seconds,
                energy,
                energy.joules / seconds if energy else None,
                None if clocked is None else float(clocked[here].sum() / ns),
                throttled,
                why,
            )
        )
    return rows


def _throttled(
    readings: DeviceReadings, why: dict[str, str]
) -> tuple[dict[str, float | None], dict[str, Series | None]]:
    """By reason: the share of the recording, and the counter over time."""
    shares: dict[str, float | None] = {}
    growth: dict[str, Series | None] = {}
    for reason in REASONS:
        series, unknown = readings.counter(f"{reason}_ns")
        growth[reason], shares[reason] = series, None
        if series is None:
            why[reason] = unknown
        else:
            span = float(series.time_ns[-1] - series.time_ns[0])
            shares[reason] = float(np.clip((series.values[-1] - series.values[0]) / max(span, 1.0), 0, 1))
    return shares, growth
