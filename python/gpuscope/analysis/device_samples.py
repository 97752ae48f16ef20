# SPDX-License-Identifier: Apache-2.0
"""What NVML told of a GPU beside a recording: its counters between any two moments, and its power and clocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope.trace import Table, Trace

NOT_READ = -1
"""What the columns of ``trace.device_samples`` and ``device_counters`` hold where nothing was read."""

REASONS: tuple[str, ...] = tuple(_core.THROTTLE_COUNTERS)
"""Why clocks are held back, as far as NVML counts for how long: the column of each has ``_ns`` behind it."""

NOT_RECORDED = "NVML was not asked: device_samples=True, --device-samples 100ms"

_STUCK_NS = 2_000_000_000  # a board draws some watts at any time: its energy grows
_FARTHEST_NS = 10_000_000_000  # that a tick may lie from its reading: a file may hold anything
_LEAST_PERIOD_NS = 5_000_000
_MHZ_MOST = 100_000
_SECOND_NS = 1_000_000_000
# "On Ampere (except GA100) or newer GPUs, the API returns power averaged over 1 sec interval": NVML's documentation of
# nvmlDeviceGetPowerUsage.
_FIRST_AVERAGES = (8, 6)  # compute capability; GA100 is 8.0
_NEAR_NS = 150_000_000  # a mean is of a moment where it was read this near, before it and after it
_WIDE_NS = 1_500_000_000  # between two ticks, that a mean cuts
_LEAST_PIECE_NS = 250_000_000
_LONGEST_NS = 10_000 * _SECOND_NS  # of a recording that is cut: ticks 5 s apart tell enough of longer ones
# How much later a mean is read than the counter has it, as was seen on H100s: 30 to 140 ms.
_LATER_NS = range(-100_000_000, 200_000_001, 5_000_000)
_USUALLY_LATER_NS = 80_000_000, 40_000_000  # and the spread of that
_UNEVEN_MEANS_NS = 12e6  # so that intervals hold the truth as often as they say: benchmarks/python/energy_simulated.py
_FEWEST_CHECKED = 3  # ticks that means are checked by
_LEAST_OFF, _MOST_OFF = 0.005, 0.08  # the root of the mean square, as a part of what was used in a second

Array = np.ndarray[Any, Any]


def sampled_devices(trace: Trace) -> list[int]:
    """CUDA's numbers of the GPUs that NVML told something of."""
    return sorted({*trace.device_samples.device.tolist(), *trace.device_counters.device.tolist()})


def why_not_sampled(trace: Trace, device: int, column: str | None = None) -> str:
    """Why NVML told nothing of a GPU, or not this column."""
    info = trace.info
    reasons = (info.get(f"device_samples.{device}.{name}") for name in (column, "all") if name)
    if (why := next(filter(None, reasons), None)) is not None:
        return why
    if "audit.device_samples" not in info and not sampled_devices(trace):
        return NOT_RECORDED
    return info.get("device_samples.why") or "it was not read"


@dataclass(frozen=True, eq=False)
class EnergyTicks:
    """A GPU's counter of energy where it went on, in order.

    Attributes:
        time_ns: when.
        error_ns: by how much that may have been earlier or later.
        joules: what it had then.
        uneven_ns: by how much each may have been earlier or later on its own, as far as that is known before.
    """

    time_ns: Array
    error_ns: Array
    joules: Array
    uneven_ns: float = 0.0

    def __len__(self) -> int:
        return len(self.time_ns)


class Series:
    """A figure over time, of which the integral over many spans takes two places in it each.

    Between two readings it is taken to change evenly, before the first and after the last not at all.
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

    def nearest(self, moment_ns: int) -> int:
        """When it was read that is nearest to a moment."""
        after = int(np.searchsorted(self.time_ns, moment_ns))
        around = self.time_ns[max(after - 1, 0) : after + 1].tolist()
        return int(min(around, key=lambda time_ns: abs(time_ns - moment_ns)))

    def is_near(self, moments_ns: Array, distance_ns: int) -> Array:
        """Whether it was read no farther from each moment than this, before it and after it, but at the ends."""
        after = np.searchsorted(self.time_ns, moments_ns, side="left")
        ahead = self.time_ns[np.minimum(after, len(self) - 1)] - moments_ns
        behind = moments_ns - self.time_ns[np.maximum(after - 1, 0)]
        near: Array = np.maximum(ahead, behind) <= distance_ns
        return near

    def integral(self, start_ns: Array, end_ns: Array) -> Array:
        """Its value times ns, over each span."""
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
        device: CUDA's number of it.
    """

    def __init__(self, trace: Trace, device: int) -> None:
        self.device = device
        self._trace = trace

    def _read(self, table: Table, column: str) -> Array:
        """The rows where this was read, in order of time."""
        rows = np.flatnonzero((table.device == self.device) & (table[column] >= 0))
        ordered: Array = rows[np.argsort(table.start_ns[rows], kind="stable")]
        return ordered

    def series(self, column: str) -> Series | None:
        """A column of ``trace.device_samples`` over time; None where it was never read."""
        return self._series(self._trace.device_samples, column)

    def _series(self, table: Table, column: str) -> Series | None:
        rows = self._read(table, column)
        return Series(table.start_ns[rows], table[column][rows]) if len(rows) else None

    def counter(self, column: str) -> tuple[Series | None, str]:
        """A column of ``trace.device_counters`` over time; None, and why, where its growth is not known."""
        found = self._series(self._trace.device_counters, column)
        if found is None:
            return None, why_not_sampled(self._trace, self.device, column)
        if len(found) < 2:
            return None, "the recording is too short: it was read once alone"
        if (np.diff(found.values) < 0).any():
            return None, "the counter began anew, as it does where the driver is loaded again"
        return found, ""

    @cached_property
    def clock(self) -> Series | None:
        """The clock of the multiprocessors, in MHz; None where it was never read."""
        found = self.series("sm_mhz")
        return found if found is None or found.values.max() < _MHZ_MOST else None

    @cached_property
    def energy(self) -> tuple[EnergyTicks | None, str]:
        """Where the counter of energy went on; None, and why, where that is not known."""
        table = self._trace.device_counters
        rows = self._read(table, "energy_mj")
        if len(rows) == 0:
            return None, why_not_sampled(self._trace, self.device, "energy_mj")
        read_ns, value = table.start_ns[rows], table.energy_mj[rows]
        time_ns, error_ns = table.tick_ns[rows].copy(), table.tick_error_ns[rows].copy()
        if (np.diff(value) < 0).any():
            return None, "the counter began anew, as it does where the driver is loaded again"
        if value[-1] == value[0]:
            stuck = read_ns[-1] - read_ns[0] > _STUCK_NS
            return None, "the counter stands still" if stuck else "the recording is shorter than the counter's steps"
        known = (time_ns >= 0) & (np.abs(time_ns - read_ns) < _FARTHEST_NS) & (error_ns >= 0)
        error_ns = np.where(known, error_ns, np.iinfo(np.int64).max)
        # Of the readings of one value, the one that knows best when it began.
        first = np.flatnonzero(np.append(True, np.diff(value) > 0))
        best = [int(at + np.argmin(error_ns[at:to])) for at, to in zip(first, [*first[1:], len(value)], strict=True)]
        time_ns, error_ns, value, known = time_ns[best], error_ns[best], value[best], known[best]
        steps = np.diff(time_ns[known])
        steps = steps[steps > _LEAST_PERIOD_NS]
        if len(known) > 1 and known[1] and not known[0] and len(steps):
            # What it had at first is of the tick before the first that was seen.
            period = int(np.median(steps[steps < 1.5 * steps.min()]))
            time_ns[0], error_ns[0], known[0] = time_ns[1] - period, 2 * error_ns[1], True
        time_ns, error_ns, value = time_ns[known], error_ns[known], value[known]
        later = np.append(True, time_ns[1:] > np.maximum.accumulate(time_ns)[:-1]) if len(time_ns) else known[:0]
        time_ns, error_ns, value = time_ns[later], error_ns[later], value[later]
        if len(time_ns) < 2:
            return None, "the recording is too short to tell when the counter goes on"
        return self._cut_by_means(EnergyTicks(time_ns, error_ns, value / 1e3)), ""

    def _cut_by_means(self, ticks: EnergyTicks) -> EnergyTicks:
        """With moments a second apart where ticks are far apart, and what the counter had then.

        A reading of power is the mean over the second before it, so that each says how much the counter grew in that
        second. It costs a hundredth of a reading of the counter, which is therefore read seldom: on an H100 whose NVML
        took 14 ms each time, not for 4.4 s, and two busy seconds were told as 1,506 J. With means they are 1,399; in
        others of that program the counter grew by 1,393 to 1,450.
        """
        means = self.series("power_mw") if self._has_means() else None
        is_long = int(ticks.time_ns[-1]) - int(ticks.time_ns[0]) > _LONGEST_NS
        wide = np.flatnonzero((np.diff(ticks.time_ns) > _WIDE_NS) & (not is_long))
        later_ns = _later_ns(ticks, means) if means is not None and len(wide) else None
        if means is None or later_ns is None:
            return ticks
        time_ns, error_ns, joules = [ticks.time_ns], [ticks.error_ns], [ticks.joules]
        for row in wide.tolist():
            begin_ns, end_ns = ticks.time_ns[row : row + 2].tolist()
            # From the reading that was nearest on, as between two a mean is not known: what was used from there to the
            # tick is taken to be as in the second before, which all moments have in common.
            nearest_ns = means.nearest(end_ns + later_ns) - later_ns
            moments = np.arange(nearest_ns, begin_ns + _LEAST_PIECE_NS, -_SECOND_NS)[1:]
            read_ns = moments + _SECOND_NS + later_ns
            seconds = means.at(read_ns) / 1e3
            if len(moments) == 0 or not means.is_near(read_ns, _NEAR_NS).all():
                continue
            values = ticks.joules[row + 1] - (end_ns - nearest_ns) / _SECOND_NS * seconds[0] - np.cumsum(seconds)
            if values[-1] > ticks.joules[row]:
                time_ns.append(moments)
                error_ns.append(np.full(len(moments), max(_SECOND_NS // 20, int(ticks.error_ns[row + 1]))))
                joules.append(values)
        order = np.argsort(np.concatenate(time_ns), kind="stable")
        uneven_ns = _UNEVEN_MEANS_NS if len(time_ns) > 1 else 0.0
        times, errors, values = (np.concatenate(each)[order] for each in (time_ns, error_ns, joules))
        return EnergyTicks(times, errors, values, uneven_ns)

    def _has_means(self) -> bool:
        """Whether this GPU's power is told as the mean over a second."""
        devices = self._trace.devices
        rows = np.flatnonzero(devices.ordinal == self.device)
        known = [(int(devices.capability_major[row]), int(devices.capability_minor[row])) for row in rows]
        return bool(known) and known[0] >= _FIRST_AVERAGES


def _later_ns(ticks: EnergyTicks, means: Series) -> int | None:
    """How much later than at a tick the mean over the second before it is read; None where they do not agree.

    That is learned from ticks that are near each other, as those of a recording's first seconds are.
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
    # Where power was much the same all the time, ticks tell little of it.
    unusual = (np.array(_LATER_NS) - _USUALLY_LATER_NS[0]) / _USUALLY_LATER_NS[1]
    best = int(np.argmin(len(checked) * np.log(np.maximum(off, _LEAST_OFF)) + unusual**2 / 2))
    factor = float(grown @ told[best]) / max(float(told[best] @ told[best]), 1e-9)
    return _LATER_NS[best] if off[best] <= _MOST_OFF and abs(factor - 1) <= _MOST_OFF / 2 else None
