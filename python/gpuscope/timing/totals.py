# SPDX-License-Identifier: Apache-2.0
"""Totals of the times of blocks and functions by name, in bounded memory."""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.results import Result, import_pandas
from gpuscope.tables import align_columns
from gpuscope.threads import shared_lock
from gpuscope.timing.measurement import Measurement, Steps, Times
from gpuscope.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEPT = 4096  # samples for the median
_PENDING = 1024  # blocks that the GPU is not done with
_COLUMNS = ("total", "mean", "median", "min", "max")
_LONGEST_NAME = 40

_lock = shared_lock()
_totals: dict[str, Totals] = {}


@dataclass(frozen=True)
class Spread:
    """Times of many blocks, in seconds.

    Attributes:
        count: blocks whose time is known.
        total, mean, std, min, max: of all of them.
        median, p50, p90, p95, p99: exact for up to 4096 blocks; beyond that, of a uniform random sample of 4096.
    """

    count: int
    total: float
    mean: float
    std: float
    min: float
    max: float
    median: float
    p90: float
    p95: float
    p99: float

    @property
    def p50(self) -> float:
        """The median."""
        return self.median


@dataclass(frozen=True)
class Timing:
    """Times of the blocks of one name.

    Attributes:
        name: the name.
        count: blocks that have ended.
        gpu: their time on the GPU; None if no block's is known.
        wall: from a block's begin on the host to the end of its GPU work, or without a GPU the time on the host; None
            if no block's is known.
        launch: their time on the host; None before the first block has ended.
        why: why some of the blocks have no GPU or wall time; empty when all have both.
        elapsed: of coroutines, from a call's start to its end, suspended or not; None without coroutines.
    """

    name: str
    count: int
    gpu: Spread | None
    wall: Spread | None
    launch: Spread | None
    why: str
    elapsed: Spread | None = None


class _Sum:
    """Adds up seconds, and keeps a sample of them (Vitter's algorithm R) for the quantiles."""

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._mean = self._squares = 0.0  # by Welford's algorithm
        self._min, self._max = float("inf"), float("-inf")
        self._sample: list[float] = []
        self._random = random.Random(0)

    def add(self, seconds: float) -> None:
        self._count += 1
        self._total += seconds
        away = seconds - self._mean
        self._mean += away / self._count
        self._squares += away * (seconds - self._mean)
        self._min = min(self._min, seconds)
        self._max = max(self._max, seconds)
        if len(self._sample) < _KEPT:
            self._sample.append(seconds)
        elif (place := int(self._random.random() * self._count)) < _KEPT:
            self._sample[place] = seconds

    def spread(self) -> Spread | None:
        if self._count == 0:
            return None
        mean = min(max(self._total / self._count, self._min), self._max)  # rounding can leave the range
        std = math.sqrt(max(self._squares, 0.0) / self._count)
        cuts = statistics.quantiles(self._sample, n=100, method="inclusive") if self._count > 1 else self._sample * 99
        tail = (cuts[89], cuts[94], cuts[98])
        median = statistics.median(self._sample)
        return Spread(self._count, self._total, mean, std, self._min, self._max, median, *tail)


class Totals:
    """The sums of one name. Any thread: one lock, never held while waiting for the GPU."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = shared_lock()
        self._pending: deque[Measurement | Steps] = deque()
        self._count = 0
        self._gpu, self._wall, self._launch, self._elapsed = _Sum(), _Sum(), _Sum(), _Sum()
        self._why = ""

    def add(self, block: Measurement | Steps, elapsed: float | None = None) -> None:
        """Adds a block that has ended, and the times of blocks whose GPU work is done."""
        with self._lock:
            self._count += 1
            self._launch.add(block.launch)
            if elapsed is not None:
                self._elapsed.add(elapsed)
            if len(self._pending) < _PENDING:
                self._pending.append(block)
            else:
                self._why = f"{_PENDING} blocks were waiting for the GPU already; more are counted, and not timed on it"
        self._collect(wait=False)

    def timing(self) -> Timing:
        """The sums; waits for the GPU work of every block that had ended before."""
        self._collect(wait=True)
        with self._lock:
            spreads = (self._gpu.spread(), self._wall.spread(), self._launch.spread())
            return Timing(self._name, self._count, *spreads, self._why, self._elapsed.spread())

    def _collect(self, *, wait: bool) -> None:
        for _ in range(len(self._pending)):  # without blocks that end meanwhile
            with self._lock:
                if not self._pending or not (wait or self._pending[0].ready):
                    return
                block = self._pending[0]
            times = block.result()
            with self._lock:
                if self._pending and self._pending[0] is block:  # no other thread has added it meanwhile
                    self._pending.popleft()
                    self._add_times(times)

    def _add_times(self, times: Times) -> None:
        if times.gpu is not None:
            self._gpu.add(times.gpu)
        if times.wall is not None:
            self._wall.add(times.wall)
        self._why = times.why or self._why


class Timings(Result, Mapping[str, Timing]):
    """Timing by name. ``print(timings())`` shows a table, the names that took longest first."""

    def __init__(self, timings: Mapping[str, Timing]) -> None:
        self._timings = dict(timings)

    def __getitem__(self, name: str) -> Timing:
        return self._timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._timings)

    def __len__(self) -> int:
        return len(self._timings)

    def __str__(self) -> str:
        """A table of GPU time, or of host time without a GPU; then the reasons for missing times."""
        if not self._timings:
            return "nothing has been timed yet"
        on_gpu = any(timing.gpu for timing in self.values())
        kind = "GPU" if on_gpu else "CPU"
        heading = ["name", "calls", *(f"{kind} {column}" for column in _COLUMNS), *(["wall total"] if on_gpu else [])]
        rows = [heading]
        for timing in sorted(self.values(), key=_seconds, reverse=True):
            row = [_shortened(timing.name), str(timing.count), *_cells(timing.gpu if on_gpu else timing.wall)]
            rows.append(row + ([format_seconds(timing.wall.total if timing.wall else None)] if on_gpu else []))
        lines = align_columns(rows, left=1)
        lines.insert(1, "-" * len(lines[0]))
        return "\n".join(lines + self._notes())

    def __repr__(self) -> str:
        return f"<gpuscope.Timings of {len(self)} names>"

    def to_dict(self) -> dict[str, Any]:
        """The timing of each name as plain values, in seconds."""
        return {name: asdict(timing) for name, timing in self.items()}

    def to_pandas(self) -> pd.DataFrame:
        """One row a name: blocks, then seconds as gpu_total, wall_mean, launch_p99; needs pandas."""
        rows = [
            {"name": timing.name, "blocks": timing.count}
            | {
                f"{kind}_{figure}": value
                for kind, spread in (
                    *(("gpu", timing.gpu), ("wall", timing.wall), ("launch", timing.launch)),
                    ("elapsed", timing.elapsed),
                )
                for figure, value in (asdict(spread) if spread else {}).items()
            }
            for timing in self.values()
        ]
        return import_pandas().DataFrame(rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """One bar per name: GPU time if there is any, else host time.

        Args:
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
        """
        from gpuscope import plots  # with NumPy

        on_gpu = any(timing.gpu for timing in self.values())
        found = sorted(self.values(), key=_seconds, reverse=True)
        spreads = [timing.gpu if on_gpu else timing.wall for timing in found]
        totals = [spread.total if spread else 0.0 for spread in spreads]
        what = f"total {'GPU' if on_gpu else 'wall'} time"
        return plots.bars([timing.name for timing in found], totals, what=what, ax=ax)

    def _notes(self) -> list[str]:
        missing: dict[str, list[str]] = {}
        for timing in self.values():
            if timing.why:
                missing.setdefault(timing.why, []).append(timing.name)
        every = len(self._timings)
        return [
            f"no GPU or wall time for some of {'all names' if len(names) == every else ', '.join(names)}: {why}"
            if any(self[name].gpu for name in names)
            else f"no GPU time for {'any name' if len(names) == every else ', '.join(names)}: {why}"
            for why, names in missing.items()
        ]


def _seconds(timing: Timing) -> float:
    spread = timing.gpu or timing.wall or timing.launch
    return spread.total if spread else 0.0


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * len(_COLUMNS)
    return [format_seconds(getattr(spread, column)) for column in _COLUMNS]


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def timings() -> Timings:
    """The totals of all names, in the order of first use; prints as a table. Waits for the GPU."""
    with _lock:
        all_totals = list(_totals.items())
    return Timings({name: totals.timing() for name, totals in all_totals})


def reset_timings() -> None:
    """Forgets all totals. Blocks that are open now count when they end."""
    with _lock:
        _totals.clear()


def totals_of(name: str) -> Totals:
    """The sums of a name; new ones at its first use."""
    with _lock:
        if name not in _totals:
            _totals[name] = Totals(name)
        return _totals[name]
