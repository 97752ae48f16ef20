# SPDX-License-Identifier: Apache-2.0
"""A GPU whose power is known at every moment, read as NVML's counters are: what a recording of it then holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fakes.gscope import NONE
from fakes.recordings import make_trace
from gpuscope import _core
from gpuscope.trace import Trace

START = 1_700_000_000_000_000_000
MS = 1_000_000
S = 1_000_000_000
IDLE_W = 90.0

Array = np.ndarray[Any, Any]


class PoweredGpu:
    """Kernels one after the other; times in ns from the beginning of the recording on.

    Args:
        seed: of all that is random: the phase of the counter, what powers vary by, how well ticks are known.
        tick_ns: from tick to tick of the energy counter.
        varies: by how much the power of each kernel differs from that of its name, as a part of it.
        tick_error_ns: how well it is known when a tick was.
        every: how many ticks lie between those that are read; 0: those about which a recording reads them, two that
            follow each other, a sixth of the time apart that has passed, up to 5 s.
        lag_ns: how far the counter's value at a tick is behind.
        jitter_ns: by how much each tick seems to be earlier or later than it was, the root of the mean square; what
            the recording says of its ticks' errors knows nothing of that.
        uneven_ns: by how much each tick was earlier or later than an even one, which it seems to be, likewise.
        unread_ns: between which moments the counter was not read.
        means_ns: how often power is read, the mean over a second, which goes on each 0.1 s; 0: never.
        capability: of the GPU.
    """

    def __init__(
        self,
        seed: int = 1,
        tick_ns: int = 99_500_000,
        *,
        varies: float = 0.02,
        tick_error_ns: int = 5 * MS,
        every: int = 1,
        lag_ns: int = 0,
        jitter_ns: int = 0,
        uneven_ns: int = 0,
        unread_ns: tuple[int, int] = (0, 0),
        means_ns: int = 0,
        capability: tuple[int, int] = (9, 0),
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.tick_ns, self.tick_error_ns, self.every = tick_ns, tick_error_ns, every
        self.varies, self.lag_ns, self.jitter_ns, self.uneven_ns = varies, lag_ns, jitter_ns, uneven_ns
        self.unread_ns, self.means_ns, self.capability = unread_ns, means_ns, capability
        self.now = 0
        self.paths: list[tuple[str, int]] = []
        self._rows: list[tuple[int, int, int, int, float]] = []  # name, start, end, path, watts
        self._names: list[str] = []
        self.info: dict[str, str] = {}

    def idle(self, ns: int) -> None:
        """Nothing runs."""
        self.now += ns

    def run(self, name: str, ns: int, watts: float, path: str = "") -> None:
        """A kernel of that power, launched in these regions."""
        if name not in self._names:
            self._names.append(name)
        drawn = watts * (1 + self.varies * float(self.random.standard_normal()))
        self._rows.append((self._names.index(name), self.now, self.now + ns, self._path(path), drawn))
        self.now += ns

    def _path(self, spelled: str) -> int:
        parent = NONE
        for name in filter(None, spelled.split("/")):
            if (name, parent) not in self.paths:
                self.paths.append((name, parent))
            parent = self.paths.index((name, parent))
        return parent

    def joules(self, path: str | None = None) -> float:
        """The truth: of all, or of the kernels of a region and those inside it."""
        if path is None:
            return self.until(np.array([self.now]))[0]
        wanted, inside = self._path(path), set()
        for row, (_, parent) in enumerate(self.paths):
            if row == wanted or parent in inside:
                inside.add(row)
        return sum((end - start) * watts / S for _, start, end, where, watts in self._rows if where in inside)

    def until(self, moments: Array) -> Array:
        """Joules from the beginning to each moment, which may lie before it or after the end."""
        starts, ends = (np.array([row[column] for row in self._rows], np.float64) for column in (1, 2))
        extra = np.array([row[4] for row in self._rows]) - IDLE_W
        knots = np.concatenate([[-2 * S], np.ravel(np.column_stack([starts, ends])), [self.now + S]])
        power = np.concatenate([[IDLE_W], np.ravel(np.column_stack([extra + IDLE_W, np.full(len(extra), IDLE_W)]))])
        total = np.append(0.0, np.cumsum(np.diff(knots) * power)) / S
        found: Array = np.interp(moments, knots, total) - np.interp(0.0, knots, total)
        return found

    def readings(self) -> dict[str, list[Any]]:
        """What the counter of energy had at its ticks, and when those seemed to be."""
        phase = int(self.random.integers(self.tick_ns))
        every_tick = np.arange(phase - self.tick_ns, self.now, self.tick_ns)
        read = every_tick[:: self.every] if self.every else every_tick[_read_by_recordings(every_tick)]
        read = read[(read <= self.unread_ns[0]) | (read >= self.unread_ns[1])]
        ticks = np.unique(np.concatenate([read, every_tick[-1:]]))  # the last is read at the end
        bias = int(self.random.integers(-self.tick_error_ns, self.tick_error_ns + 1))
        moments = np.sort(ticks - self.lag_ns + self.uneven_ns * self.random.standard_normal(len(ticks)))
        before = 1e6 + self.until(moments)
        seeming = ticks + bias
        if self.jitter_ns:
            seeming = np.sort(seeming + np.round(self.jitter_ns * self.random.standard_normal(len(ticks))).astype(int))
        called = np.minimum(np.maximum(ticks + 8 * MS, 0), self.now - 1)
        return {
            "start_ns": (START + called).tolist(),
            "energy_mj": np.round(before * 1000).astype(np.int64).tolist(),
            "tick_ns": (START + seeming).tolist(),
            "tick_error_ns": [self.tick_error_ns] * len(ticks),
            **dict.fromkeys(THROTTLED, [-1] * len(ticks)),
        }

    def means(self) -> dict[str, list[Any]]:
        """What was read of the power."""
        times = np.arange(0, self.now, self.means_ns)
        until = times // (100 * MS) * (100 * MS) - 37 * MS
        power = (self.until(until) - self.until(until - S)) * 1000
        unread = dict.fromkeys(("sm_mhz", "sm_max_mhz"), [-1] * len(times))
        return {"start_ns": (START + times).tolist(), "power_mw": np.round(power).astype(int).tolist(), **unread}

    def tables(self) -> dict[str, dict[str, list[Any]]]:
        """What was recorded."""
        rows = self._rows
        regions = [row[3] for row in rows]
        grid = {f"{what}_{axis}": [1] * len(self._names) for what in ("grid", "block") for axis in "xyz"}
        known = [row for row in regions if row != NONE]
        spans = {path: [row for row in rows if row[3] == path] for path in dict.fromkeys(known)}
        numbers = {path: number for number, path in enumerate(spans)}
        return {
            "device": {
                "ordinal": [0],
                "name": ["NVIDIA H100"],
                "multiprocessors": [132],
                "capability_major": [self.capability[0]],
                "capability_minor": [self.capability[1]],
            },
            "thread": {"system_id": [1]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "path": {"name": [name for name, _ in self.paths], "parent": [parent for _, parent in self.paths]},
            "variant": {"name": self._names, **grid},
            # One region stands for all turns of a path.
            "region": {
                "start_ns": [START + each[0][1] for each in spans.values()],
                "duration_ns": [each[-1][2] - each[0][1] for each in spans.values()],
                "parent": [NONE for _ in spans],
                "path": list(spans),
            },
            "kernel": {
                "start_ns": [START + row[1] for row in rows],
                "duration_ns": [row[2] - row[1] for row in rows],
                "correlation": list(range(1, len(rows) + 1)),
                "variant": [row[0] for row in rows],
                "region": [numbers.get(row, NONE) for row in regions],
                "track": [0] * len(rows),
            },
            "device_counter": self.readings(),
            **({"device_sample": self.means()} if self.means_ns else {}),
        }

    def trace(self, **tables: dict[str, list[Any]]) -> Trace:
        """The recording, with further tables."""
        info = {"session.mode": "full", "session.tier": "cupti", "audit.device_samples": "1"}
        info |= {"session.start_ns": str(START), "session.stop_ns": str(START + self.now)}
        made = {name: columns for name, columns in self.tables().items() if all(columns.values())}
        return make_trace({**made, **tables}, info={**info, **self.info})


def _read_by_recordings(ticks: Array) -> Array:
    """Which of them are told."""
    chosen = [0, 1, 2, 3]
    while chosen[-1] < len(ticks):
        after = chosen[-1] + max(2, int(min(ticks[chosen[-1]] / 6, 5 * S) / (ticks[1] - ticks[0])))
        chosen += [after - 1, after]
    told: Array = np.unique([number for number in chosen if number < len(ticks)])
    return told


THROTTLED = tuple(f"{reason}_ns" for reason in _core.THROTTLE_COUNTERS)
