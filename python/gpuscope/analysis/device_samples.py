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
    """

    time_ns: Array
    error_ns: Array
    joules: Array

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
        return EnergyTicks(time_ns, error_ns, value / 1e3), ""
