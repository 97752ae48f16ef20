# SPDX-License-Identifier: Apache-2.0
"""NVML's readings of a GPU during a recording: its energy counter between two moments, its power and clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope.beside import cached_property
from gpuscope.trace import Table, Trace

NOT_READ = -1
"""The value in ``trace.device_samples`` and ``device_counters`` for "not read"."""

REASONS: tuple[str, ...] = tuple(_core.THROTTLE_COUNTERS)
"""Reasons for throttling whose duration NVML counts; the column of each ends with ``_ns``."""

NOT_RECORDED = "NVML was not asked: device_samples=True, --device-samples 100ms"

_STUCK_NS = 2_000_000_000  # a board draws some watts at any time: its energy grows
_FARTHEST_NS = 10_000_000_000  # most between a tick and its reading; damaged files hold more
_LEAST_PERIOD_NS = 5_000_000
_MHZ_MOST = 100_000
_SECOND_NS = 1_000_000_000
# "On Ampere (except GA100) or newer GPUs, the API returns power averaged over 1 sec interval": NVML's documentation of
# nvmlDeviceGetPowerUsage.
_FIRST_AVERAGES = (8, 6)  # compute capability; GA100 is 8.0
_NEAR_NS = 150_000_000  # a mean counts at a moment if read this near, before and after
_LEAST_PIECE_NS = 250_000_000  # ticks nearer than this need no means
_WIDE_NS = 1_500_000_000  # likewise, if both are precise
_VAGUE_NS = 20_000_000
_LONGEST_NS = 10_000 * _SECOND_NS  # longest recording that uses means: longer ones have enough ticks
_LONGEST_FINE_NS = 400 * _SECOND_NS  # longest that uses ten means a second
_MOMENTS_A_SECOND = 10  # of the solved energy curve
_OFF_MEANS = 0.01  # relative error of a mean: 0.01 to 0.02 at changes of power, on H100s
_UNSTEADY = 10.0  # change of power per moment, relative to its mean: practically free
_LEAST_SPREAD_J = 0.1
_LEAST_GROWTH = 0.05  # from moment to moment, as a part of the mean: a GPU always draws some power
# How much later NVML shows a mean than the counter: 30 to 140 ms on H100s.
_LATER_NS = range(-100_000_000, 200_000_001, 5_000_000)
_USUALLY_LATER_NS = 80_000_000, 40_000_000  # and the spread of that
_UNEVEN_MEANS_NS = 12e6  # makes intervals cover the truth at their nominal rate: benchmarks/python/energy_simulated.py
_FEWEST_CHECKED = 3  # ticks needed to check means
_LEAST_OFF, _MOST_OFF = 0.005, 0.08  # root mean square error, relative to the energy of a second

Array = np.ndarray[Any, Any]


def sampled_devices(trace: Trace) -> list[int]:
    """CUDA's numbers of the GPUs that NVML reported."""
    return sorted({*trace.device_samples.device.tolist(), *trace.device_counters.device.tolist()})


def why_not_sampled(trace: Trace, device: int, column: str | None = None) -> str:
    """Why NVML reported nothing of a GPU, or nothing in this column."""
    info = trace.info
    reasons = (info.get(f"device_samples.{device}.{name}") for name in (column, "all") if name)
    if (why := next(filter(None, reasons), None)) is not None:
        return why
    if "audit.device_samples" not in info and not sampled_devices(trace):
        return NOT_RECORDED
    return info.get("device_samples.why") or "it was not read"


@dataclass(frozen=True, eq=False)
class EnergyTicks:
    """The steps of a GPU's energy counter, in order.

    Attributes:
        time_ns: time of each step.
        error_ns: largest error of that time, either way.
        joules: the counter after the step.
        uneven_ns: independent error of each time, known beforehand.
        moments: the counter at evenly spaced moments, from means of power; None without them. Neighbours have nearly
            the same error, so differences are more precise than values.
    """

    time_ns: Array
    error_ns: Array
    joules: Array
    uneven_ns: float = 0.0
    moments: EnergyTicks | None = None

    def __len__(self) -> int:
        return len(self.time_ns)


class Series:
    """A figure over time, with integrals over spans.

    It is interpolated linearly between readings, and constant before the first and after the last.
    """

    def __init__(self, time_ns: Array, values: Array) -> None:
        self.time_ns = time_ns.astype(np.int64)
        self.values = values.astype(np.float64)
        lengths = np.diff(self.time_ns).astype(np.float64)
        self._before = np.append(0.0, np.cumsum(lengths * (self.values[1:] + self.values[:-1]) / 2))

    def __len__(self) -> int:
        return len(self.time_ns)

    def at(self, moments_ns: Array) -> Array:
        """Its value at each moment."""
        base = self.time_ns[0]
        found: Array = np.interp((moments_ns - base).astype(np.float64), self.time_ns - base, self.values)
        return found

    def is_near(self, moments_ns: Array, distance_ns: int) -> Array:
        """Whether readings before and after each moment are at most this far away, except at the ends."""
        after = np.searchsorted(self.time_ns, moments_ns, side="left")
        ahead = self.time_ns[np.minimum(after, len(self) - 1)] - moments_ns
        behind = moments_ns - self.time_ns[np.maximum(after - 1, 0)]
        near: Array = np.maximum(ahead, behind) <= distance_ns
        return near

    def integral(self, start_ns: Array, end_ns: Array) -> Array:
        """The integral over each span, in value times ns."""
        return self._until(end_ns) - self._until(start_ns)

    def _until(self, moments_ns: Array) -> Array:
        left = np.clip(np.searchsorted(self.time_ns, moments_ns, side="right") - 1, 0, len(self) - 1)
        since = (moments_ns - self.time_ns[left]).astype(np.float64)
        mean = (self.values[left] + self.at(moments_ns)) / 2
        until: Array = self._before[left] + since * mean
        return until


class DeviceReadings:
    """The rows of ``trace.device_samples`` and ``trace.device_counters`` of one GPU.

    Attributes:
        device: CUDA's number of the GPU.
    """

    def __init__(self, trace: Trace, device: int) -> None:
        self.device = device
        self._trace = trace

    def _read(self, table: Table, column: str) -> Array:
        """The rows in which the column was read, in order of time."""
        rows = np.flatnonzero((table.device == self.device) & (table[column] >= 0))
        ordered: Array = rows[np.argsort(table.start_ns[rows], kind="stable")]
        return ordered

    def series(self, column: str) -> Series | None:
        """A column of ``trace.device_samples`` over time; None if it was never read."""
        return self._series(self._trace.device_samples, column)

    def _series(self, table: Table, column: str) -> Series | None:
        rows = self._read(table, column)
        return Series(table.start_ns[rows], table[column][rows]) if len(rows) else None

    def counter(self, column: str) -> tuple[Series | None, str]:
        """A column of ``trace.device_counters`` over time; or None and the reason why its growth is unknown."""
        found = self._series(self._trace.device_counters, column)
        if found is None:
            return None, why_not_sampled(self._trace, self.device, column)
        if len(found) < 2:
            return None, "the recording is too short: it was read only once"
        if (np.diff(found.values) < 0).any():
            return None, "the counter was reset, as when the driver is reloaded"
        return found, ""

    @cached_property
    def clock(self) -> Series | None:
        """The clock of the multiprocessors, in MHz; None if it was never read."""
        found = self.series("sm_mhz")
        return found if found is None or found.values.max() < _MHZ_MOST else None

    @cached_property
    def energy(self) -> tuple[EnergyTicks | None, str]:
        """The steps of the energy counter; or None and the reason why they are unknown."""
        table = self._trace.device_counters
        rows = self._read(table, "energy_mj")
        if len(rows) == 0:
            return None, why_not_sampled(self._trace, self.device, "energy_mj")
        read_ns, value = table.start_ns[rows], table.energy_mj[rows]
        time_ns, error_ns = table.tick_ns[rows].copy(), table.tick_error_ns[rows].copy()
        if (np.diff(value) < 0).any():
            return None, "the counter was reset, as when the driver is reloaded"
        if value[-1] == value[0]:
            stuck = read_ns[-1] - read_ns[0] > _STUCK_NS
            return None, "the counter stands still" if stuck else "the recording is shorter than the counter's steps"
        known = (time_ns >= 0) & (np.abs(time_ns - read_ns) < _FARTHEST_NS) & (error_ns >= 0)
        error_ns = np.where(known, error_ns, np.iinfo(np.int64).max)
        # Of the readings of one value, the one with the most precise start.
        first = np.flatnonzero(np.append(True, np.diff(value) > 0))
        best = [int(at + np.argmin(error_ns[at:to])) for at, to in zip(first, [*first[1:], len(value)], strict=True)]
        time_ns, error_ns, value, known = time_ns[best], error_ns[best], value[best], known[best]
        steps = np.diff(time_ns[known])
        steps = steps[steps > _LEAST_PERIOD_NS]
        if len(known) > 1 and known[1] and not known[0] and len(steps):
            # The first value is from the tick before the first that was seen.
            period = int(np.median(steps[steps < 1.5 * steps.min()]))
            time_ns[0], error_ns[0], known[0] = time_ns[1] - period, 2 * error_ns[1], True
        time_ns, error_ns, value = time_ns[known], error_ns[known], value[known]
        later = np.append(True, time_ns[1:] > np.maximum.accumulate(time_ns)[:-1]) if len(time_ns) else known[:0]
        time_ns, error_ns, value = time_ns[later], error_ns[later], value[later]
        if len(time_ns) < 2:
            return None, "the recording is too short to show when the counter steps"
        return self._with_means(EnergyTicks(time_ns, error_ns, value / 1e3)), ""

    def _with_means(self, ticks: EnergyTicks) -> EnergyTicks:
        """Adds moments between distant ticks, from means of power.

        A reading of power is the mean over the second before it: the counter's growth in that second. The counter costs
        a hundred times as much to read, so it is read rarely. If a reading is slow, its ticks are known only to 65 ms.
        """
        means = self.series("power_mw") if self._has_means() else None
        length_ns = int(ticks.time_ns[-1]) - int(ticks.time_ns[0])
        apart_ns = np.diff(ticks.time_ns)
        vague = apart_ns > np.where(ticks.error_ns[1:] > _VAGUE_NS, _LEAST_PIECE_NS, _WIDE_NS)
        if means is None or not _SECOND_NS < length_ns <= _LONGEST_NS or not vague.any():
            return ticks
        later_ns = _later_ns(ticks, means)
        return ticks if later_ns is None else _cut(ticks, _told_by_means(ticks, means, later_ns))

    def _has_means(self) -> bool:
        """Whether this GPU reports power as the mean over a second."""
        devices = self._trace.devices
        rows = np.flatnonzero(devices.ordinal == self.device)
        known = [(int(devices.capability_major[row]), int(devices.capability_minor[row])) for row in rows]
        return bool(known) and known[0] >= _FIRST_AVERAGES


def _later_ns(ticks: EnergyTicks, means: Series) -> int | None:
    """How much later than a tick the mean over the second before it is read; None if they disagree.

    Learned from ticks that are near each other, such as those of a recording's first seconds.
    """
    before_ns = ticks.time_ns - _SECOND_NS
    row = np.clip(np.searchsorted(ticks.time_ns, before_ns, side="right") - 1, 0, len(ticks) - 2)
    close = (before_ns >= ticks.time_ns[0]) & (np.diff(ticks.time_ns)[row] <= _LEAST_PIECE_NS)
    checked = np.flatnonzero(close & means.is_near(ticks.time_ns, _NEAR_NS))
    if len(checked) < _FEWEST_CHECKED:
        return None
    base = ticks.time_ns[0]
    had = np.interp((before_ns[checked] - base).astype(np.float64), ticks.time_ns - base, ticks.joules)
    grown = ticks.joules[checked] - had
    told = [means.at(ticks.time_ns[checked] + later) / 1e3 for later in _LATER_NS]
    off = np.array([float(np.mean((each - grown) ** 2)) ** 0.5 / float(grown.mean()) for each in told])
    # Under a steady power ticks say little about the delay.
    unusual = (np.array(_LATER_NS) - _USUALLY_LATER_NS[0]) / _USUALLY_LATER_NS[1]
    best = int(np.argmin(len(checked) * np.log(np.maximum(off, _LEAST_OFF)) + unusual**2 / 2))
    factor = float(grown @ told[best]) / max(float(told[best] @ told[best]), 1e-9)
    return _LATER_NS[best] if off[best] <= _MOST_OFF and abs(factor - 1) <= _MOST_OFF / 2 else None


def _cut(ticks: EnergyTicks, moments: EnergyTicks) -> EnergyTicks:
    """Adds moments about a second apart where ticks are far apart."""
    chosen: list[int] = []
    for begin_ns, end_ns in zip(ticks.time_ns[:-1].tolist(), ticks.time_ns[1:].tolist(), strict=True):
        pieces = max(1, (end_ns - begin_ns) // _SECOND_NS) if end_ns - begin_ns > _WIDE_NS else 1
        cuts = begin_ns + (end_ns - begin_ns) * np.arange(1, pieces) // pieces
        chosen += np.minimum(np.searchsorted(moments.time_ns, cuts), len(moments) - 1).tolist()
    time_ns, error_ns, joules = (
        np.append(own, other[chosen])
        for own, other in (
            (ticks.time_ns, moments.time_ns),
            (ticks.error_ns, np.maximum(moments.error_ns, _SECOND_NS // 20)),
            (ticks.joules, moments.joules),
        )
    )
    order = np.argsort(time_ns, kind="stable")
    grows = np.append(True, np.diff(np.maximum.accumulate(joules[order])) > 0)
    order = order[grows]
    uneven_ns = moments.uneven_ns if chosen else 0.0
    return EnergyTicks(time_ns[order], error_ns[order], joules[order], uneven_ns, moments)


def _told_by_means(ticks: EnergyTicks, means: Series, later_ns: int) -> EnergyTicks:
    """The counter at evenly spaced moments: least squares over ticks, means and steady power."""
    begin_ns, end_ns = int(ticks.time_ns[0]), int(ticks.time_ns[-1])
    a_second = _MOMENTS_A_SECOND if end_ns - begin_ns <= _LONGEST_FINE_NS else 1
    step_ns = _SECOND_NS // a_second
    equations = _Equations((end_ns - begin_ns) // step_ns + 2, max(a_second, 2))
    moments = begin_ns + step_ns * np.arange(equations.unknowns)
    number = np.arange(equations.unknowns)
    told = means.at(moments + later_ns) / 1e3
    known = number[a_second:][means.is_near(moments + later_ns, _NEAR_NS)[a_second:]]
    equations.add([known, known - a_second], [1.0, -1.0], told[known], _OFF_MEANS * told[known])
    at = (ticks.time_ns - begin_ns) / step_ns
    left = np.minimum(at.astype(np.int64), equations.unknowns - 2)
    moved = means.at(ticks.time_ns) / 1e3 * ticks.error_ns / _SECOND_NS / 3**0.5  # joules, error of a late tick
    grown = ticks.joules - ticks.joules[0]
    equations.add([left, left + 1], [1 - (at - left), at - left], grown, moved)
    typical = float(told.mean()) * step_ns / _SECOND_NS
    unsteady = np.full(len(number) - 2, _UNSTEADY * typical)
    equations.add([number[:-2], number[1:-1], number[2:]], [1.0, -2.0, 1.0], np.zeros(len(unsteady)), unsteady)
    joules = ticks.joules[0] + equations.solve()
    highest = np.maximum.accumulate(joules)
    grows = (moments <= end_ns) & np.append(True, joules[1:] - highest[:-1] > _LEAST_GROWTH * typical)
    error_ns = np.full(int(grows.sum()), int(np.median(ticks.error_ns)))
    return EnergyTicks(moments[grows], error_ns, joules[grows], _UNEVEN_MEANS_NS)


class _Equations:
    """Least squares; the unknowns of one equation are at most a block's size apart."""

    def __init__(self, unknowns: int, size: int) -> None:
        blocks = -(-unknowns // size)
        self.unknowns = blocks * size
        self._own = np.zeros((blocks, size, size))
        self._before = np.zeros((blocks, size, size))  # of a block's rows, the columns of the block before it
        self._right = np.zeros((blocks, size))

    def add(self, unknowns: list[Array], factors: list[Any], values: Array, spread: Array) -> None:
        """Adds an equation for each value: the sum of factors times unknowns is the value, within the spread."""
        weight = 1 / np.maximum(spread, _LEAST_SPREAD_J) ** 2
        size = self._right.shape[1]
        for row, factor in zip(unknowns, factors, strict=True):
            np.add.at(self._right, (row // size, row % size), factor * values * weight)
            for column, other in zip(unknowns, factors, strict=True):
                product = factor * other * weight
                own, before = row // size == column // size, row // size == column // size + 1
                for part, into in ((own, self._own), (before, self._before)):
                    np.add.at(into, (row[part] // size, row[part] % size, column[part] % size), product[part])

    def solve(self) -> Array:
        """All unknowns, by elimination of one block after the other."""
        own, right = self._own.copy(), self._right.copy()
        for block in range(1, len(own)):
            factor = np.linalg.solve(own[block - 1], self._before[block].T).T
            own[block] -= factor @ self._before[block].T
            right[block] -= factor @ right[block - 1]
        found = np.zeros_like(right)
        after = np.zeros(right.shape[1])
        for block in range(len(own) - 1, -1, -1):
            found[block] = np.linalg.solve(own[block], right[block] - after)
            after = self._before[block].T @ found[block]
        flat: Array = found.reshape(-1)
        return flat
