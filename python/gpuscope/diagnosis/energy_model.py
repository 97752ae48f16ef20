# SPDX-License-Identifier: Apache-2.0
"""Where the energy of a GPU went, from a counter that goes on ten times a second.

What it used between two ticks of the counter is known exactly, and spread over what ran in between by a model: a GPU
draws some power at any time, and each kind of work draws more while it runs. The same kernel is a kind of its own in
each region, as it may draw less where it runs on and on than in turns with others. These powers are those that explain
the energy between all ticks best, none of them negative, by least squares; kinds that the recording does not tell apart
are expected to be alike, within a half, those of one kernel within a tenth, which the intervals say. Nobody has to wait
for the GPU, and a region may be far shorter than the time between two ticks, where it comes often enough. What the
model says of the time between two ticks is scaled to what was measured there, so that all parts add up to it.

A counter may be behind by some tens of ms, and each tick a little early or late. Both show in what the powers leave:
how far it is behind is the shift of all ticks for which that is least; a tick that was late has left too much before it
and too little behind it, and that is put back before the scaling. Where it was read seldom, means of power tell what
was used in between (see `DeviceReadings`): those tenths of a second are what is scaled to, and powers are still those
that the ticks tell, as what is wrong with such moments is much the same for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.analysis.device_samples import EnergyTicks
from gpuscope.beside import cached_property
from gpuscope.counters.short_kernels import Spans, solve_nonnegative
from gpuscope.spans import covered_ns, union

FEWEST_TICKS = 8
"""Between fewer ticks powers are told apart by chance."""

_DRAWS = 64
_SEED = 17
_FARTHEST_BEHIND_NS = 1.2e8  # that what the counter has at a tick may be, a period and a bit
_BEHIND_NS = 5e7  # and the root of the mean square that is expected of it
_SHIFT_STEPS = 24
_MOST_UNEVEN = 5_000  # ticks, where they are asked for how uneven they are: more take seconds, and tell less of each
_UNEVEN_NS = (0.0, 1e5, 3e5, 1e6, 2e6, 4e6, 8e6, 16e6, 32e6)  # of ticks, beside the least noise of intervals
_MOST_ROUNDS = 50  # until the noise that powers leave is the noise that they were found with
_MOST_CELLS = 20_000_000
_MOST_KERNELS = 24  # that have a power of their own
_MOST_APART = 24  # pairs of a kernel and a region that have
_LEAST_SPREAD = 0.01  # of the energy between two ticks: a power is no constant
_ALIKE = 0.5  # how far powers of kernels are expected to be from their mean, as a part of it
_SAME = 0.1  # and those of one kernel in several regions from that kernel's, as a part of that
_LEAST_SAME = 0.1  # of what is typical: what draws next to nothing, as waiting does, is near that everywhere
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
        kernel: of each kind, whose it is; kinds of one kernel are expected to draw much the same.
    """

    start_ns: Array
    end_ns: Array
    kind: Array
    kernel: Array


class _Cells:
    """The time of a recording cut at ticks and other moments, and the work in each cell."""

    def __init__(self, edges: Array, work: Work, kinds: int) -> None:
        self.edges = edges
        self.lengths_s = np.diff(edges) / _NS
        self.piece, self.cell, length = _split(work.start_ns, work.end_ns, edges)
        self.seconds = length / _NS
        count = len(edges) - 1
        self.kind = work.kind[self.piece]
        flat = _sums(self.cell * kinds + self.kind, self.seconds, count * kinds)
        self.of_kinds: Array = flat.reshape(count, kinds)  # seconds of each kind, added up where several ran at once
        self.busy_s = covered_ns(*union(work.start_ns, work.end_ns), edges[:-1], edges[1:]) / _NS

    @property
    def at_once(self) -> Array:
        """The time that something ran over the sum of all that did."""
        total = self.of_kinds.sum(axis=1)
        found: Array = np.where(total > 0, self.busy_s / np.where(total > 0, total, 1.0), 0.0)
        return found


def _sums(place: Array, values: Array, count: int) -> Array:
    """The sum of the values at each of `count` places; np.bincount() of none gives integers."""
    found: Array = np.bincount(place, values, count).astype(np.float64, copy=False)
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


@dataclass(frozen=True, eq=False)
class _Powers:
    """Watts: what is drawn at any time, then what each kind of work draws on top of that.

    Attributes:
        watts: the likeliest.
        covariance: how sure they are, as the data and what is expected of kinds have it.
        misfit: the mean square of what they leave, in joules.
    """

    watts: Array
    covariance: Array
    misfit: float

    @cached_property
    def draws(self) -> Array:
        """Others that are as likely."""
        values, vectors = np.linalg.eigh((self.covariance + self.covariance.T) / 2)
        random = np.random.default_rng(_SEED).standard_normal((_DRAWS, len(self.watts)))
        drawn: Array = self.watts + (random * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        found: Array = np.maximum(drawn, 0.0)
        return found


class _Intervals:
    """What ran between the ticks, for ticks that are all a little earlier or later than they seemed to be."""

    def __init__(self, ticks: EnergyTicks, work: Work, begin_ns: int, end_ns: int) -> None:
        self.ticks, self._begin_ns, self._end_ns = ticks, begin_ns, end_ns
        self._kernel = work.kernel
        self._noise: _Noise | None = None
        kinds = int(work.kind.max()) + 1 if len(work.kind) else 0
        self._spans = []
        for kind in range(kinds):
            here = work.kind == kind
            self._spans.append(Spans(work.start_ns[here], (work.end_ns - work.start_ns)[here]))
        self.energy = np.diff(ticks.joules)

    def measured(self, shift_ns: float) -> Array:
        """The energy between ticks, of which what a tick that was early or late has moved is put back.

        In all it is what the counter says.
        """
        rows, energy = self._rows(shift_ns)
        if self._noise is None or len(self._noise) != len(rows):
            return energy
        modelled = rows @ self.solve(shift_ns).watts
        found: Array = np.maximum(modelled + self._noise.of_intervals(energy - modelled), 0.0)
        found *= float(energy.sum()) / max(float(found.sum()), 1e-12)
        return found

    def _rows(self, shift_ns: float) -> tuple[Array, Array]:
        """Seconds of each kind between ticks, and the energy."""
        time_ns = self.ticks.time_ns + round(shift_ns)
        seen = (time_ns[:-1] >= self._begin_ns) & (time_ns[1:] <= self._end_ns)
        columns = [time_ns, *(spans.until(time_ns) for spans in self._spans)]
        rows: Array = np.column_stack([np.diff(column) for column in columns])[seen] / _NS
        return rows, self.energy[seen]

    def expect_uneven(self, shift_ns: float) -> float:
        """Takes ticks from now on for as uneven as explains the energies best; says how much, in ns.

        One that was late has left the interval before it with too much energy and the next one with too little.
        """
        rows, energy = self._rows(shift_ns)
        if len(rows) < FEWEST_TICKS:
            return 0.0
        power = energy / np.maximum(rows[:, 0], 1e-12)
        at_ticks = np.concatenate([power[:1], (power[1:] + power[:-1]) / 2, power[-1:]])
        rest = (_LEAST_SPREAD * float(energy.mean())) ** 2 / 4
        found: list[tuple[float, float, _Noise]] = []
        for uneven_ns in _UNEVEN_NS:
            self._noise = _Noise(rest, energy / energy.mean(), uneven_ns / _NS * at_ticks)
            scale = self.solve(shift_ns).misfit / rest
            unlikely = self._noise.log_volume + len(energy) / 2 * float(np.log(scale))
            found.append((unlikely, uneven_ns * scale**0.5, self._noise))
        _, uneven_ns, self._noise = min(found, key=lambda each: each[0])
        return uneven_ns

    def solve(self, shift_ns: float) -> _Powers:
        """The powers, where all ticks were that much later."""
        rows, energy = self._rows(shift_ns)
        mean = float(energy.sum() / max(float(rows[:, 0].sum()), 1e-12)) if len(rows) else 0.0
        size = rows.shape[1]
        if len(rows) < FEWEST_TICKS or size == 1:
            watts = np.append(mean, np.zeros(size - 1))
            left = energy - rows @ watts
            return _Powers(watts, np.zeros((size, size)), float(np.mean(left**2)) if len(rows) else 0.0)
        least = (_LEAST_SPREAD * float(energy.mean())) ** 2 / 4
        if self._noise is not None and len(self._noise) == len(rows):  # or other ticks lie in the recording, so shifted
            even = self._noise.evened(np.column_stack([rows, energy]))
            rows, energy = even[:, :-1], even[:, -1]
        return _fitted(rows, energy, mean, least, self._kernel)


class _Noise:
    """What powers leave of the energies between ticks: of each tick, which was early or late, and of each interval.

    Attributes:
        log_volume: half of the logarithm of the determinant of its covariance.
    """

    def __init__(self, rest: float, of_interval: Array, at_ticks: Array) -> None:
        """`rest`: the variance of a mean interval; `of_interval`: in parts of it; `at_ticks`: joules a tick moves."""
        self._rest, self._of_interval = rest, of_interval
        moved = at_ticks**2
        diagonal = rest * of_interval + moved[:-1] + moved[1:]
        # Neighbours have what a tick moves between them in common: Cholesky's decomposition of a band of two.
        self._own, self._other = np.zeros(len(diagonal)), np.zeros(len(diagonal))
        least = (rest * of_interval).tolist()
        for row, value in enumerate(diagonal.tolist()):
            self._own[row] = max(value - self._other[row] ** 2, least[row]) ** 0.5
            if row + 1 < len(diagonal):
                self._other[row + 1] = -moved[row + 1] / self._own[row]
        self.log_volume = float(np.log(self._own).sum())

    def __len__(self) -> int:
        return len(self._own)

    def evened(self, rows: Array) -> Array:
        """Combinations of rows that are independent of each other and have the noise of a mean interval."""
        found: Array = self._whitened(rows) * self._rest**0.5
        return found

    def _whitened(self, rows: Array) -> Array:
        found: Array = rows / self._own[:, None]
        for row in range(1, len(rows)):
            found[row] -= self._other[row] / self._own[row] * found[row - 1]
        return found

    def of_intervals(self, left: Array) -> Array:
        """Of what powers leave, the part that is no tick's, as far as the two can be told apart."""
        found = self._whitened(left[:, None])[:, 0]
        for row in range(len(found) - 1, -1, -1):
            after = self._other[row + 1] * found[row + 1] if row + 1 < len(found) else 0.0
            found[row] = (found[row] - after) / self._own[row]
        part: Array = self._rest * self._of_interval * found
        return part


def _fitted(rows: Array, energy: Array, mean: float, least: float, kernel: Array) -> _Powers:
    """By least squares, with powers expected near what is typical of work, as far as the noise leaves that open."""
    size = rows.shape[1]
    whole = np.column_stack([rows[:, 0], rows[:, 1:].sum(axis=1)])
    alike = solve_nonnegative(whole.T @ whole, whole.T @ energy)
    typical = np.append(0.0, np.full(size - 1, alike[1]))
    scale = max(float(alike[1]), 0.2 * mean)
    noise = max(float(np.mean((energy - whole @ alike) ** 2)), least)
    gram, products = rows.T @ rows, rows.T @ energy
    watts, pull = typical, np.zeros((size, size))
    for _ in range(_MOST_ROUNDS):
        precision = _expected(kernel, _of_kernels(kernel, rows, watts), scale)
        pull = noise * precision
        pull[0, 0] = 1e-9
        watts_before, noise_before = watts, noise
        watts = np.linalg.solve(gram + pull, products + pull @ typical)
        if (watts < 0).any():
            watts = solve_nonnegative(gram + pull, products + pull @ typical)
        told = float(np.trace(np.linalg.solve(gram + pull, gram)))  # parameters that the data tells
        left = float(((energy - rows @ watts) ** 2).sum())
        noise = max(left / max(len(energy) - told, 1.0), least)
        is_settled = np.abs(watts - watts_before).max() < 0.01 * scale
        if is_settled and abs(noise / noise_before - 1) < 0.01:
            break
    return _Powers(watts, noise * np.linalg.inv(gram + pull), noise)


def _of_kernels(kernel: Array, rows: Array, watts: Array) -> Array:
    """Of each kind of work, the mean power of its kernel."""
    seconds = rows[:, 1:].sum(axis=0)
    count = int(kernel.max()) + 1
    joules = _sums(kernel, seconds * watts[1:], count)
    mean: Array = joules / np.maximum(_sums(kernel, seconds, count), 1e-12)
    return mean[kernel]


def _expected(kernel: Array, of_kernel: Array, scale: float) -> Array:
    """The precision of powers before anything is known of them: none of what is drawn at any time."""
    own = _SAME * np.maximum(of_kernel, _LEAST_SAME * scale)
    precision = np.zeros((len(kernel) + 1, len(kernel) + 1))
    precision[1:, 1:] = np.linalg.inv((scale * _ALIKE) ** 2 * (kernel[:, None] == kernel) + np.diag(own**2))
    return precision


class EnergyModel:
    """The energy of one GPU between two moments, by what ran.

    Attributes:
        is_solved: powers of work are known; there are `FEWEST_TICKS` for that.
        base_w: what the GPU draws while nothing runs; None where it was idle for too short a time to tell.
        spread: what the model leaves of the energy between two ticks, as a part of that.
        shift_ns: how much later than it seemed the counter goes on, as the work tells.
        uneven_ns: by how much each tick was earlier or later than that, the root of the mean square.
    """

    def __init__(
        self, ticks: EnergyTicks, work: Work, begin_ns: int, end_ns: int, cuts_ns: Array | None = None
    ) -> None:
        """`cuts_ns`: other moments between which energy is asked for. Raises ValueError where work is too much."""
        self._work = work
        self._begin_ns, self._end_ns = begin_ns, max(end_ns, begin_ns + 1)
        self._cuts_ns = np.zeros(0, np.int64) if cuts_ns is None else cuts_ns
        self._kinds = int(work.kind.max()) + 1 if len(work.kind) else 0
        if len(ticks) * (self._kinds + 1) > _MOST_CELLS:
            raise ValueError
        intervals = _Intervals(ticks, work, begin_ns, end_ns)
        seen = (ticks.time_ns >= begin_ns) & (ticks.time_ns <= end_ns)
        self.is_solved = int(seen.sum()) > FEWEST_TICKS + 1
        self.shift_ns, uncertain_ns, powers = _aligned(intervals, float(np.median(ticks.error_ns)), self.is_solved)
        self.uneven_ns = float(np.median(ticks.error_ns)) / 3
        if self.is_solved and len(ticks) <= _MOST_UNEVEN:
            intervals.expect_uneven(self.shift_ns)
            self.shift_ns, uncertain_ns, _ = _aligned(intervals, float(np.median(ticks.error_ns)), True)
            self.uneven_ns = max(intervals.expect_uneven(self.shift_ns), self.uneven_ns, ticks.uneven_ns)
            powers = intervals.solve(self.shift_ns)
        shifted = [intervals.solve(self.shift_ns + side * uncertain_ns) for side in (-1, 1)]
        if self.is_solved and ticks.moments is not None:
            # These tell better when energy was used, but are of each other: powers are those that the ticks tell.
            intervals = _Intervals(ticks.moments, work, begin_ns, end_ns)
            self.shift_ns, uncertain_ns, _ = _aligned(intervals, float(np.median(ticks.error_ns)), True)
            self.uneven_ns = max(self.uneven_ns, ticks.moments.uneven_ns)
            if len(ticks.moments) <= _MOST_UNEVEN:
                intervals.expect_uneven(self.shift_ns)
        self._solution = _Solution(self, intervals, self.shift_ns, powers)
        self._shifted = [
            _Solution(self, intervals, self.shift_ns + side * uncertain_ns, each)
            for side, each in zip((-1, 1), shifted, strict=True)
        ]
        # What powers leave between two ticks may be left of each moment in between: intervals of regions of 5 ms hold
        # what is known of them in 7 of 10, on H100s, even so.
        typical = float(np.mean(intervals.energy)) if len(intervals.energy) else 1.0
        self.spread = max(powers.misfit**0.5 / max(typical, 1e-9), _LEAST_SPREAD) if self.is_solved else 0.5
        cells = self._solution.cells
        inside = self._solution.is_inside
        idle_s = float((cells.lengths_s - cells.busy_s)[inside].sum())
        tells_idle = idle_s > 0.02 * float(cells.lengths_s[inside].sum())
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
        variance = own.misfit(parts, self.spread) + own.uneven(parts, self.uneven_ns)
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

    Of what they may be wrong by together, and what the counter may be behind, that for which powers explain the
    energies best.
    """
    if not is_solved:
        return 0.0, error_ns / 3**0.5, intervals.solve(0.0)
    shifts = np.linspace(-error_ns - _FARTHEST_BEHIND_NS, error_ns, _SHIFT_STEPS)
    for _ in range(2):
        misfits = np.maximum([intervals.solve(float(shift)).misfit for shift in shifts], 1e-12)
        likely = (misfits / misfits.min()) ** (-len(intervals.energy) / 2) * np.exp(-((shifts / _BEHIND_NS) ** 2) / 2)
        likely /= likely.sum()
        best = float(likely @ shifts)
        step = float(shifts[1] - shifts[0])
        uncertain = max(float(likely @ (shifts - best) ** 2) ** 0.5, step / 2)
        if uncertain > 2 * step:
            break
        shifts = np.linspace(best - 2 * step, best + 2 * step, _SHIFT_STEPS // 2)
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

    def __init__(self, model: EnergyModel, intervals: _Intervals, shift_ns: float, powers: _Powers) -> None:
        ticks, begin_ns, end_ns = intervals.ticks, model._begin_ns, model._end_ns
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
        self.energy = np.full(count, np.nan)
        self.energy[1:-1][seen] = intervals.measured(shift_ns)
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
        total = _sums(place.reshape(-1), seconds, len(key))
        return _Parts(owners, key // (intervals * kinds), key // kinds % intervals, key % kinds, total)

    def _joules(self, parts: _Parts, watts: Array) -> Array:
        found: Array = self._scale(watts)[parts.interval] * watts[parts.kind] * parts.seconds
        return found

    def sum_parts(self, parts: _Parts, watts: Array) -> Array:
        """Joules of each owner, with these powers."""
        return _sums(parts.owner, self._joules(parts, watts), parts.owners)

    def _shares(self, parts: _Parts) -> tuple[Array, Array, Array, Array, Array]:
        """By owner and interval: these, the owner's joules, those of the interval, and the part that the former are."""
        intervals, watts = len(self.seconds), self.powers.watts
        key, place = np.unique(parts.owner * intervals + parts.interval, return_inverse=True)
        joules = _sums(place.reshape(-1), self._joules(parts, watts), len(key))
        owner, interval = key // intervals, key % intervals
        whole = (self.seconds @ watts * self._scale(watts))[interval]
        share = np.clip(joules / np.where(whole > 0, whole, 1.0), 0.0, 1.0)
        return owner, interval, joules, whole, share

    def uneven(self, parts: _Parts, uneven_ns: float) -> Array:
        """The variance of that, as each tick was a little earlier or later on its own.

        What that moves from the interval on one side of a tick to the one on the other is the owner's in the part that
        it has of each: nothing where it has as much of both, and all where the counter tells of one side alone.
        """
        owner, interval, _, whole, share = self._shares(parts)
        power = whole / np.maximum(self.seconds[interval, 0], 1e-9)
        is_measured = np.isfinite(self.energy)[interval]
        owner, interval, moved = owner[is_measured], interval[is_measured], (share * power)[is_measured]
        ticks = len(self.seconds) + 1
        at = np.concatenate([owner * ticks + interval, owner * ticks + interval + 1])
        key, place = np.unique(at, return_inverse=True)
        joules = _sums(place.reshape(-1), np.append(moved, -moved), len(key)) * uneven_ns / _NS
        return _sums(key // ticks, joules**2, parts.owners)

    def misfit(self, parts: _Parts, spread: float) -> Array:
        """The variance of that, as powers are not as constant as the model has them.

        It is nothing for an owner that all the energy between two ticks is of.
        """
        owner, interval, joules, whole, share = self._shares(parts)
        is_measured = np.isfinite(self.energy)[interval]
        error = np.where(is_measured, spread * whole * 2 * share * (1 - share), spread * joules)
        return _sums(owner, error**2, parts.owners)


def kinds_of_work(names: Sequence[str], name: Array, place: Array, length_ns: Array) -> tuple[Array, Array]:
    """The kind of each piece of work of these names, launched in these places, and whose kernel each kind is.

    Those names and those pairs of a name and a place that take most time have a kind each; what is of none of such
    pairs is of its name's, or else of one that all others have.
    """
    pairs, pair = np.unique(np.column_stack([name, place]), axis=0, return_inverse=True)
    pair = pair.reshape(-1)
    of_name = np.full(len(names), _MOST_KERNELS)
    chosen = _longest(name, length_ns, len(names), _MOST_KERNELS)
    of_name[chosen] = np.arange(len(chosen))
    of_pair = of_name[pairs[:, 0]] if len(pairs) else np.zeros(0, np.int64)
    kernel = of_pair.copy()
    apart = [at for at in _longest(pair, length_ns, len(pairs), _MOST_APART) if kernel[at] < _MOST_KERNELS]
    of_pair[apart] = _MOST_KERNELS + 1 + np.arange(len(apart))
    _, first, kind = np.unique(of_pair[pair], return_index=True, return_inverse=True)
    return kind.reshape(-1), kernel[pair[first]]


def _longest(key: Array, length_ns: Array, count: int, most: int) -> Array:
    """The keys that take most time together."""
    found: Array = np.argsort(-_sums(key, length_ns, count), kind="stable")[:most]
    return found
