# SPDX-License-Identifier: Apache-2.0
"""NVML's readings of a GPU during a recording: its energy counter between two moments, its power and clocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope.threads import cached_property
from gpuscope.trace import Table, Trace

NOT_READ = -1
"""The value in ``trace.device_samples`` and ``device_counters`` for "not read"."""

REASONS: tuple[str, ...] = tuple(_core.THROTTLE_COUNTERS)
"""Reasons for throttling whose duration NVML counts; the column of each ends with ``_ns``."""

NOT_RECORDED = "NVML was not asked: device_samples=True, --device-samples 100ms"

_STUCK_NS = 2_000_000_000  # a board draws some watts at any time: its energy grows
_LEAST_APART_NS = 500_000_000  # readings of energy, whose counter steps each 100 ms
_MHZ_MOST = 100_000

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
    def energy(self) -> tuple[Series | None, str]:
        """The energy counter in joules, at readings half a second apart; or None and the reason why it is unknown."""
        found, why = self.counter("energy_mj")
        if found is None:
            return None, why
        time_ns, joules = found.time_ns, found.values / 1e3
        if joules[-1] == joules[0]:
            stuck = time_ns[-1] - time_ns[0] > _STUCK_NS
            return None, "the counter stands still" if stuck else "the recording is shorter than the counter's steps"
        chosen = [0]
        for row in range(1, len(found)):
            is_new = joules[row] > joules[row - 1]  # else it is older than another reading of the same value
            if is_new and time_ns[row] - time_ns[chosen[-1]] >= _LEAST_APART_NS:
                chosen.append(row)
        last = len(found) - 1  # at the end of the recording
        if len(chosen) == 1:
            chosen.append(last)
        elif time_ns[last] - time_ns[chosen[-1]] < _LEAST_APART_NS:
            chosen[-1] = last
        return Series(time_ns[chosen], joules[chosen]), ""
