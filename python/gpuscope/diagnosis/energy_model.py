# SPDX-License-Identifier: Apache-2.0
"""Where the energy of a GPU went, from a counter that goes on ten times a second.

What it used between two ticks of the counter is known exactly, and spread over what ran in between by a model: a GPU
draws some power at any time, and each kind of work draws more while it runs. These powers are those that explain the
energy between all ticks best, none of them negative, by least squares; kinds that the recording does not tell apart are
expected to be alike, within a half, which the intervals say. Nobody has to wait for the GPU, and a region may be far
shorter than the time between two ticks, where it comes often enough. What the model says of the time between two ticks
is scaled to what was measured there, so that all parts add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.analysis.device_samples import EnergyTicks
from gpuscope.counters.short_kernels import Spans, solve_nonnegative

FEWEST_TICKS = 8
"""Between fewer ticks powers are told apart by chance."""

_DRAWS = 64
_SEED = 17
_SHIFTS = np.linspace(-1, 1, 9)  # of all ticks together, in parts of what they may be wrong by
_ROUNDS = 4
_MOST_CELLS = 20_000_000
_LEAST_SPREAD = 0.01  # of the energy between two ticks: a power is no constant
_ALIKE = 0.5  # how far powers of kinds of work are expected to be from their mean, as a part of it
_NORMAL = 1.96
_NS = 1e9

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Energy:
    """Joules, with their 95 % interval.

    It is of what the counter says; how true that is the vendor does not tell.
    """

    joules: float
    low: float
    high: float

    def __str__(self) -> str:
        half = (self.high - self.low) / 2
        digits = 0 if half <= 0 else max(0, min(6, 1 - int(np.floor(np.log10(half)))))
        return f"{self.joules:,.{digits}f} J +-{half:,.{digits}f}"


@dataclass(frozen=True, eq=False)
class Work:
    """What ran on a GPU, a piece each.

    Attributes:
        start_ns: when it began.
        end_ns: when it ended.
        kind: which kind of work it is, from 0 on without a gap.
    """

    start_ns: Array
    end_ns: Array
    kind: Array


class _Cells:
    """The time of a recording cut at ticks and other moments, and the work in each cell."""

    def __init__(self, edges: Array, work: Work, kinds: int) -> None:
        self.edges = edges
        self.lengths_s = np.diff(edges) / _NS
        self.piece, self.cell, length = _split(work.start_ns, work.end_ns, edges)
        self.seconds = length / _NS
        count = len(edges) - 1
        self.kind = work.kind[self.piece]
        flat = np.bincount(self.cell * kinds + self.kind, self.seconds, count * kinds)
        self.of_kinds: Array = flat.reshape(count, kinds)  # seconds of each kind, added up where several ran at once
        self.busy_s = _busy(work.start_ns, work.end_ns, edges) / _NS

    @property
    def at_once(self) -> Array:
        """The time that something ran over the sum of all that did."""
        total = self.of_kinds.sum(axis=1)
        found: Array = np.where(total > 0, self.busy_s / np.where(total > 0, total, 1.0), 0.0)
        return found


def _split(start_ns: Array, end_ns: Array, edges: Array) -> tuple[Array, Array, Array]:
    """The pieces of spans in each cell between edges: the span, the cell, and how long."""
    first = np.maximum(np.searchsorted(edges, start_ns, side="right") - 1, 0)
    last = np.minimum(np.searchsorted(edges, end_ns, side="left") - 1, len(edges) - 2)
    count = np.maximum(last - first + 1, 0)
    if int(count.sum()) > _MOST_CELLS:
        raise ValueError
    span = np.repeat(np.arange(len(start_ns)), count)
    cell = first[span] + np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count)
    length = np.minimum(end_ns[span], edges[cell + 1]) - np.maximum(start_ns[span], edges[cell])
    inside = length > 0
    return span[inside], cell[inside], length[inside]


def _busy(start_ns: Array, end_ns: Array, edges: Array) -> Array:
    """How long something ran between edges."""
    if len(start_ns) == 0:
        return np.zeros(len(edges) - 1)
    order = np.argsort(start_ns, kind="stable")
    starts, ends = start_ns[order], np.maximum.accumulate(end_ns[order])
    begins = np.append(True, starts[1:] > ends[:-1])
    joined = starts[begins], ends[np.append(np.flatnonzero(begins)[1:] - 1, len(ends) - 1)]
    spans = Spans(joined[0], joined[1] - joined[0])
    found: Array = np.diff(spans.until(edges)).astype(np.float64)
    return found


@dataclass(frozen=True, eq=False)
class _Powers:
    """Watts: what is drawn at any time, then what each kind of work draws on top of that.

    Attributes:
        watts: the likeliest.
        draws: others as likely as the data and what is expected of kinds have them.
        misfit: the mean square of what they leave, in joules.
    """

    watts: Array
    draws: Array
    misfit: float


class _Intervals:
    """What ran between the ticks, for ticks that are all a little earlier or later than they seemed to be."""

    def __init__(self, ticks: EnergyTicks, work: Work, begin_ns: int, end_ns: int) -> None:
        self._ticks, self._begin_ns, self._end_ns = ticks, begin_ns, end_ns
        kinds = int(work.kind.max()) + 1 if len(work.kind) else 0
        self._spans = []
        for kind in range(kinds):
            here = work.kind == kind
            self._spans.append(Spans(work.start_ns[here], (work.end_ns - work.start_ns)[here]))
        self.energy = np.diff(ticks.joules)

    def solve(self, shift_ns: float) -> _Powers:
        """The powers, where all ticks were that much later."""
        time_ns = self._ticks.time_ns + round(shift_ns)
        seen = (time_ns[:-1] >= self._begin_ns) & (time_ns[1:] <= self._end_ns)
        columns = [time_ns, *(spans.until(time_ns) for spans in self._spans)]
        rows = np.column_stack([np.diff(column) for column in columns])[seen] / _NS
        energy = self.energy[seen]
        mean = float(energy.sum() / max(float(rows[:, 0].sum()), 1e-12)) if len(rows) else 0.0
        size = rows.shape[1]
        if len(rows) < FEWEST_TICKS or size == 1:
            watts = np.append(mean, np.zeros(size - 1))
            left = energy - rows @ watts
            return _Powers(watts, np.tile(watts, (_DRAWS, 1)), float(np.mean(left**2)) if len(rows) else 0.0)
        return _fitted(rows, energy, mean)


def _fitted(rows: Array, energy: Array, mean: float) -> _Powers:
    """By least squares, with powers expected near what is typical of work, as far as the noise leaves that open."""
    size = rows.shape[1]
    whole = np.column_stack([rows[:, 0], rows[:, 1:].sum(axis=1)])
    alike = solve_nonnegative(whole.T @ whole, whole.T @ energy)
    typical = np.append(0.0, np.full(size - 1, alike[1]))
    wide = (_ALIKE * max(float(alike[1]), 0.2 * mean)) ** 2
    least = (_LEAST_SPREAD * float(energy.mean())) ** 2 / 4
    noise = max(float(np.mean((energy - whole @ alike) ** 2)), least)
    gram, products = rows.T @ rows, rows.T @ energy
    watts, pull = typical, np.zeros(size)
    for _ in range(_ROUNDS):
        pull = np.append(1e-9, np.full(size - 1, noise / wide))
        watts = solve_nonnegative(gram + np.diag(pull), products + pull * typical)
        told = float(np.trace(np.linalg.solve(gram + np.diag(pull), gram)))  # parameters that the data tells
        left = float(((energy - rows @ watts) ** 2).sum())
        noise = max(left / max(len(energy) - told, 1.0), least)
    covariance = noise * np.linalg.inv(gram + np.diag(pull))
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    random = np.random.default_rng(_SEED).standard_normal((_DRAWS, size))
    draws = watts + (random * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return _Powers(watts, np.maximum(draws, 0.0), noise)


class EnergyModel:
    """The energy of one GPU between two moments, by what ran.

    Attributes:
        is_solved: powers of work are known; there are `FEWEST_TICKS` for that.
        base_w: what the GPU draws while nothing runs; None where it was idle for too short a time to tell.
        spread: what the model leaves of the energy between two ticks, as a part of that.
        shift_ns: how much later than it seemed the counter goes on, as the work tells.
    """

    def __init__(
        self, ticks: EnergyTicks, work: Work, begin_ns: int, end_ns: int, cuts_ns: Array | None = None
    ) -> None:
        """`cuts_ns`: other moments between which energy is asked for. Raises ValueError where work is too much."""
        self._ticks, self._work = ticks, work
        self._begin_ns, self._end_ns = begin_ns, max(end_ns, begin_ns + 1)
        self._cuts_ns = np.zeros(0, np.int64) if cuts_ns is None else cuts_ns
        self._kinds = int(work.kind.max()) + 1 if len(work.kind) else 0
        if len(ticks) * (self._kinds + 1) > _MOST_CELLS:
            raise ValueError
        intervals = _Intervals(ticks, work, begin_ns, end_ns)
        seen = (ticks.time_ns >= begin_ns) & (ticks.time_ns <= end_ns)
        self.is_solved = int(seen.sum()) > FEWEST_TICKS + 1
        self.shift_ns, uncertain_ns, powers = _aligned(intervals, float(np.median(ticks.error_ns)), self.is_solved)
        self._solution = _Solution(self, self.shift_ns, powers)
        shifted = (self.shift_ns + side * uncertain_ns for side in (-1, 1))
        self._shifted = [_Solution(self, shift_ns, intervals.solve(shift_ns)) for shift_ns in shifted]
        typical = float(np.mean(intervals.energy)) if len(intervals.energy) else 1.0
        self.spread = max(powers.misfit**0.5 / max(typical, 1e-9), _LEAST_SPREAD) if self.is_solved else 0.5
        cells = self._solution.cells
        idle_s = float((cells.lengths_s - cells.busy_s).sum())
        tells_idle = idle_s > 0.02 * float(cells.lengths_s.sum())
        self.base_w = float(powers.watts[0]) if self.is_solved and tells_idle else None

    @property
    def total(self) -> Energy:
        """From the first moment to the last."""
        count = len(self._solution.cells.lengths_s)
        return self.of_cells(np.zeros(count, np.int64), 1)[0]

    @property
    def edges_ns(self) -> Array:
        """The moments between which `of_cells` counts."""
        return self._solution.cells.edges

    def of_cells(self, owner: Array, owners: int) -> list[Energy]:
        """What was used in cells between `edges_ns`, idle time included; `owner` of each cell, -1 for none."""

        def split(solution: _Solution) -> _Parts:
            # The cells of a shifted solution are other ones, with the same cuts: found by their middle.
            middle = (solution.cells.edges[:-1] + solution.cells.edges[1:]) // 2
            here = np.clip(np.searchsorted(self.edges_ns, middle, side="right") - 1, 0, len(owner) - 1)
            return solution.parts_of_cells(owner[here], owners)

        return self._energies(split)

    def of_work(self, piece: Array, owner: Array, owners: int) -> list[Energy]:
        """What was used while these pieces of work ran, each for its owner; a piece may have several."""
        order = np.argsort(piece, kind="stable")
        piece, owner = piece[order], owner[order]
        return self._energies(lambda solution: solution.parts_of_work(piece, owner, owners))

    def _energies(self, split: Callable[[_Solution], _Parts]) -> list[Energy]:
        own = self._solution
        parts = split(own)
        value = own.sum_parts(parts, own.powers.watts)
        variance = own.misfit(parts, self.spread)
        variance += np.stack([own.sum_parts(parts, watts) for watts in own.powers.draws]).var(axis=0)
        early, late = (each.sum_parts(split(each), each.powers.watts) for each in self._shifted)
        variance += ((late - early) / 2) ** 2
        half = _NORMAL * np.sqrt(variance)
        return [
            Energy(float(mean), max(0.0, float(mean - each)), float(mean + each))
            for mean, each in zip(value, half, strict=True)
        ]


def _aligned(intervals: _Intervals, error_ns: float, is_solved: bool) -> tuple[float, float, _Powers]:
    """How much later than they seemed ticks were, how sure that is, and the powers then.

    Of what they may be wrong by together, that for which powers explain the energies best.
    """
    if not is_solved or error_ns == 0:
        return 0.0, error_ns / 3**0.5, intervals.solve(0.0)
    shifts = _SHIFTS * error_ns
    misfits = np.array([intervals.solve(float(shift)).misfit for shift in shifts])
    likely = (misfits / misfits.min()) ** (-len(intervals.energy) / 2)
    likely /= likely.sum()
    best = float(likely @ shifts)
    step = error_ns * float(_SHIFTS[1] - _SHIFTS[0])
    uncertain = max(float(likely @ (shifts - best) ** 2) ** 0.5, step / 2)
    return best, uncertain, intervals.solve(best)


@dataclass(frozen=True, eq=False)
class _Parts:
    """Seconds by owner and interval between ticks, of each kind of work; kind 0 is what is drawn at any time."""

    owners: int
    owner: Array
    interval: Array
    kind: Array
    seconds: Array


class _Solution:
    """The powers for ticks that were a little later than they seemed, and the cells of time that go with them."""

    def __init__(self, model: EnergyModel, shift_ns: float, powers: _Powers) -> None:
        ticks, begin_ns, end_ns = model._ticks, model._begin_ns, model._end_ns
        self.powers = powers
        time_ns = ticks.time_ns + round(shift_ns)
        edges = np.concatenate([time_ns, model._cuts_ns, [begin_ns, end_ns]])
        first_ns, last_ns = min(begin_ns, int(time_ns[0])), max(end_ns, int(time_ns[-1]))
        self.cells = _Cells(np.unique(edges[(edges >= first_ns) & (edges <= last_ns)]), model._work, model._kinds)
        # The interval that each cell is in: 0 before the first tick, then between ticks, one more after the last.
        self.interval = np.searchsorted(time_ns, self.cells.edges[:-1], side="right")
        count = len(time_ns) + 1
        self.seconds = np.zeros((count, model._kinds + 1))
        seconds = np.column_stack([self.cells.lengths_s, self.cells.of_kinds])
        np.add.at(self.seconds, self.interval, seconds)
        # What ran before the recording, or after it, is not known.
        seen = (time_ns[:-1] >= begin_ns) & (time_ns[1:] <= end_ns)
        self.energy = np.concatenate([[np.nan], np.where(seen, np.diff(ticks.joules), np.nan), [np.nan]])
        self.is_inside = (self.cells.edges[:-1] >= begin_ns) & (self.cells.edges[1:] <= end_ns)

    def _scale(self, watts: Array) -> Array:
        """What was measured between ticks over what the powers say; 1 where nothing was measured."""
        modelled = self.seconds @ watts
        known = np.isfinite(self.energy) & (modelled > 0)
        found: Array = np.where(known, np.where(known, self.energy, 1.0) / np.where(known, modelled, 1.0), 1.0)
        return found

    def parts_of_cells(self, owner: Array, owners: int) -> _Parts:
        """Of whole cells."""
        cells = np.flatnonzero((owner >= 0) & self.is_inside)
        seconds = np.column_stack([self.cells.lengths_s[cells], self.cells.of_kinds[cells]])
        at, kind = np.nonzero(seconds > 0)
        return self._gathered(owners, owner[cells][at], self.interval[cells][at], kind, seconds[at, kind])

    def parts_of_work(self, piece: Array, owner: Array, owners: int) -> _Parts:
        """Of pieces of work in order, each with its part of what is drawn at any time."""
        cells = self.cells
        inside = np.flatnonzero(self.is_inside[cells.cell])
        first = np.searchsorted(piece, cells.piece[inside], side="left")
        count = np.searchsorted(piece, cells.piece[inside], side="right") - first
        at = np.repeat(inside, count)
        mine = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(at))
        seconds, cell, owned = cells.seconds[at], cells.cell[at], owner[mine]
        interval = self.interval[cell]
        return self._gathered(
            owners,
            np.append(owned, owned),
            np.append(interval, interval),
            np.append(cells.kind[at] + 1, np.zeros(len(at), np.int64)),
            np.append(seconds, seconds * cells.at_once[cell]),
        )

    def _gathered(self, owners: int, owner: Array, interval: Array, kind: Array, seconds: Array) -> _Parts:
        intervals, kinds = self.seconds.shape
        key, place = np.unique((owner * intervals + interval) * kinds + kind, return_inverse=True)
        total = np.bincount(place.reshape(-1), seconds, len(key))
        return _Parts(owners, key // (intervals * kinds), key // kinds % intervals, key % kinds, total)

    def _joules(self, parts: _Parts, watts: Array) -> Array:
        found: Array = self._scale(watts)[parts.interval] * watts[parts.kind] * parts.seconds
        return found

    def sum_parts(self, parts: _Parts, watts: Array) -> Array:
        """Joules of each owner, with these powers."""
        found: Array = np.bincount(parts.owner, self._joules(parts, watts), parts.owners)
        return found

    def misfit(self, parts: _Parts, spread: float) -> Array:
        """The variance of that, as powers are not as constant as the model has them.

        It is nothing for an owner that all the energy between two ticks is of.
        """
        intervals, watts = len(self.seconds), self.powers.watts
        key, place = np.unique(parts.owner * intervals + parts.interval, return_inverse=True)
        joules = np.bincount(place.reshape(-1), self._joules(parts, watts), len(key))
        owner, interval = key // intervals, key % intervals
        whole = (self.seconds @ watts * self._scale(watts))[interval]
        share = np.clip(joules / np.where(whole > 0, whole, 1.0), 0.0, 1.0)
        is_measured = np.isfinite(self.energy)[interval]
        error = np.where(is_measured, spread * whole * 2 * share * (1 - share), spread * joules)
        found: Array = np.bincount(owner, error**2, parts.owners)
        return found


def kinds_by_time(names: Sequence[str], name: Array, length_ns: Array, most: int = 24) -> Array:
    """The kind of each piece of work of these names: those that take most time, and one more for the others."""
    total = np.bincount(name, length_ns, len(names))
    chosen = np.argsort(-total, kind="stable")[:most]
    kind = np.full(len(names), len(chosen))
    kind[chosen] = np.arange(len(chosen))
    _, place = np.unique(kind[name], return_inverse=True)
    found: Array = place.reshape(-1)
    return found
