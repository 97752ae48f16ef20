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
        seed: of all that is random: the phase of the counter, what powers vary by.
        read_ns: how often the counter is read; 0: about each tick, as recordings of earlier versions were.
        step_ns: from step to step of the energy counter.
        varies: by how much the power of each kernel differs from that of its name, as a part of it.
        lag_ns: how far the counter's value at a step is behind.
        uneven_ns: by how much each step is earlier or later than an even one, the root of the mean square.
    """

    def __init__(
        self,
        seed: int = 1,
        read_ns: int = S,
        step_ns: int = 99_500_000,
        *,
        varies: float = 0.02,
        lag_ns: int = 25 * MS,
        uneven_ns: int = 2 * MS,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.read_ns, self.step_ns = read_ns, step_ns
        self.varies, self.lag_ns, self.uneven_ns = varies, lag_ns, uneven_ns
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
        """The energy counter at fixed intervals, at the begin and at the end."""
        steps = np.arange(int(self.random.integers(self.step_ns)) - 3 * self.step_ns, self.now + S, self.step_ns)
        steps = np.sort(steps + np.round(self.uneven_ns * self.random.standard_normal(len(steps))).astype(int))
        if self.read_ns:
            read = np.arange(0, self.now, self.read_ns)
            read = read + self.random.integers(0, 5 * MS, len(read))
        else:
            inside = steps[(steps > 0) & (steps < self.now)]
            read = np.ravel(np.column_stack([inside - 4 * MS, inside + 4 * MS]))
        read = np.unique(np.append(np.clip(read, 0, self.now), self.now))
        step = steps[np.searchsorted(steps, read, side="right") - 1]
        return {
            "start_ns": (START + read).tolist(),
            "energy_mj": np.round((1e6 + self.until(step - self.lag_ns)) * 1000).astype(np.int64).tolist(),
            "tick_ns": [-1] * len(read),
            "tick_error_ns": [-1] * len(read),
            **dict.fromkeys(THROTTLED, [-1] * len(read)),
        }

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
                "capability_major": [9],
                "capability_minor": [0],
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
        }

    def trace(self, **tables: dict[str, list[Any]]) -> Trace:
        """The recording, with further tables."""
        info = {"session.mode": "full", "session.tier": "cupti", "audit.device_samples": "1"}
        info |= {"session.start_ns": str(START), "session.stop_ns": str(START + self.now)}
        made = {name: columns for name, columns in self.tables().items() if all(columns.values())}
        return make_trace({**made, **tables}, info={**info, **self.info})


THROTTLED = tuple(f"{reason}_ns" for reason in _core.THROTTLE_COUNTERS)
