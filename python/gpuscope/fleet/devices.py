# SPDX-License-Identifier: Apache-2.0
"""Power, clock and memory of a job's GPUs, and the ranks in which they differ from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscope.analysis.device_samples import sampled_devices
from gpuscope.fleet.tables import Array, Columns
from gpuscope.stats.histories import MAD
from gpuscope.trace import NONE, Trace
from gpuscope.units import format_bytes

UNKNOWN = -1
_BUSY = 50  # percent: idle GPUs lower their clock and their power
_LEAST_RANKS = 4
_LEAST_APART, _APART = 0.05, 5.0  # of the median, and standard deviations of the ranks
_LISTED = 3
_MOST_DEVICES, _MOST_BYTES = 1 << 16, 1 << 61  # of any recording, as files may contain any number


def find_devices(trace: Trace, device: int | None) -> Columns:
    """Rows of the table `device`: the GPUs of a recording, or this one, with `UNKNOWN` for what was not recorded.

    Power and clock are means of NVML's readings while the GPU was busy. The memory is the most that NVML saw in use,
    else the most that allocators held.
    """
    samples, memory = trace.device_samples, trace.memory
    numbers = sorted({*sampled_devices(trace), *np.unique(memory.ordinal[memory.ordinal != NONE]).tolist()})
    numbers = [number for number in numbers if device in (None, number) and number < _MOST_DEVICES]
    busy = (samples.busy_percent < 0) | (samples.busy_percent >= _BUSY)
    rows = []
    for number in numbers:
        own = samples.device == number
        power, clock = (_known(samples[column][own & busy]) for column in ("power_mw", "sm_mhz"))
        used = _known(samples.memory_used_bytes[own])
        used = used if len(used) else memory.reserved_bytes[memory.ordinal == number]
        means = (round(float(each.mean())) if len(each) else UNKNOWN for each in (power, clock))
        rows.append((number, *means, min(int(used.max()), _MOST_BYTES) if len(used) else UNKNOWN))
    names = ("device", "power_mw", "sm_mhz", "peak_memory_bytes")
    return {name: np.array([row[at] for row in rows], np.int64) for at, name in enumerate(names)}


def _known(values: Array) -> Array:
    found: Array = values[values >= 0]
    return found


@dataclass(frozen=True)
class DeviceSpread:
    """A figure of the GPUs, and the ranks whose GPU is far from the others.

    Attributes:
        figure: "clock", "power" or "memory".
        median: of all GPUs, in MHz, mW or bytes.
        ranks: ranks that are at least 5 % and 5 standard deviations from the median, furthest first.
        value: the median of these ranks; None without any.
    """

    figure: str
    median: float
    ranks: tuple[int, ...]
    value: float | None

    def __str__(self) -> str:
        _, verb, text = _FIGURES[self.figure]
        if self.value is None:
            return f"{self.figure}: {text(self.median)}"
        more = len(self.ranks) - _LISTED
        names = ", ".join(map(str, self.ranks[:_LISTED])) + (f" and {more} more" if more > 0 else "")
        one = len(self.ranks) == 1
        who = f"rank {names} {verb}s" if one else f"ranks {names} {verb}"
        to = " at" if self.figure == "clock" else ""
        return f"{who}{to} {text(self.value)}, others{to} {text(self.median)}"


_FIGURES: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "clock": ("sm_mhz", "run", lambda mhz: f"{mhz / 1e3:.2f} GHz"),
    "power": ("power_mw", "draw", lambda milliwatts: f"{milliwatts / 1e3:.0f} W"),
    "memory": ("peak_memory_bytes", "use", format_bytes),
}


def find_spreads(device: Columns) -> tuple[DeviceSpread, ...]:
    """How each recorded figure differs between the GPUs of a job."""
    found = []
    for figure, (column, _, _) in _FIGURES.items():
        known = np.flatnonzero(device[column] > 0)
        if len(known) == 0:
            continue
        values, ranks = device[column][known].astype(np.float64), device["rank"][known]
        median = float(np.median(values))
        apart = np.abs(values - median)
        least = max(_LEAST_APART * median, _APART * MAD * float(np.median(apart)))
        order = np.argsort(-apart, kind="stable")
        far = order[apart[order] > least] if len(known) >= _LEAST_RANKS else order[:0]
        names = tuple(dict.fromkeys(ranks[far].tolist()))
        found.append(DeviceSpread(figure, median, names, float(np.median(values[far])) if len(far) else None))
    return tuple(found)


def spread_lines(spreads: tuple[DeviceSpread, ...]) -> list[str]:
    """The figures as at most three lines: a line for each with ranks that differ, and one for the others."""
    even = ", ".join(str(each) for each in spreads if each.value is None)
    return [str(each) for each in spreads if each.value is not None] + ([f"GPUs: {even}"] if even else [])
