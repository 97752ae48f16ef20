# SPDX-License-Identifier: Apache-2.0
"""Attributes the energy of a GPU to its work, from a counter that steps ten times a second.

The energy between two ticks (steps of the counter) is measured. The model has a base power, and a power of each
kind of work: a kernel, or a kernel in one region. Non-negative least squares over all ticks gives the powers. The prior
keeps similar kinds close, and the intervals include it. The GPU need not be synchronized, and regions may be far
shorter than a tick. Modelled energies are scaled to the measured energy of each interval.

The counter lags by tens of ms, and ticks are a little early or late. The lag is the shift of all ticks with the
smallest residual. A late tick has too much energy before it and too little after it; this is corrected before scaling.
If the counter was read seldom, the scaling uses moments from means of power (see `DeviceReadings`), but powers still
come from ticks: neighbouring moments share their errors.
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
"""With fewer intervals between ticks, powers are separated only by chance."""

_DRAWS = 64
_SEED = 17
_FARTHEST_BEHIND_NS = 1.2e8  # maximum lag of the counter, slightly over a period
_BEHIND_NS = 5e7  # expected root mean square of the lag
_SHIFT_STEPS = 24
_MOST_UNEVEN = 5_000  # ticks, to estimate how uneven they are; more take seconds
_UNEVEN_NS = (
    0.0,
    1e5,
    3e5,
    1e6,
    2e6,
    4e6,
    8e6,
    16e6,
    32e6,
)  # candidates for the error of ticks
_MOST_ROUNDS = 50  # until the residual noise equals the assumed noise
_MOST_CELLS = 20_000_000
_MOST_KERNELS = 24  # with their own power
_MOST_APART = 24  # pairs of a kernel and a region with their own power
_LEAST_SPREAD = 0.01  # minimum noise, relative to the energy between two ticks: power is not constant
_ALIKE = 0.5  # expected deviation of kernels' powers from their mean, relative to it
_SAME = 0.1  # likewise, of one kernel's powers in several regions from its mean
_LEAST_SAME = 0.1  # minimum for that mean, relative to the typical power: kernels that wait draw almost none
_NORMAL = 1.96
_NS = 1e9

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Energy:
    """Joules with their 95 % interval.

    The interval excludes the counter's own error, which the vendor does not specify.
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
    """The pieces of work of a GPU.

    Attributes:
        start_ns: begin of each piece.
        end_ns: end of each piece.
        kind: its kind of work, from 0 without gaps.
        kernel: the kernel of each kind. Kinds of one kernel are expected to draw similar power.
    """

    start_ns: Array
    end_ns: Array
    kind: Array
    kernel: Array


class _Cells:
    """The time of a recording, cut at ticks and other moments, and the work in each cell."""

    def __init__(self, edges: Array, work: Work, kinds: int) -> None:
        self.edges = edges
        self.lengths_s = np.diff(edges) / _NS
        self.piece, self.cell, length = _split(work.start_ns, work.end_ns, edges)
        self.seconds = length / _NS
        count = len(edges) - 1
        self.kind = work.kind[self.piece]
        flat = _sums(self.cell * kinds + self.kind, self.seconds, count * kinds)
        self.of_kinds: Array = flat.reshape(count, kinds)  # seconds of each kind; concurrent work adds up
        self.busy_s = covered_ns(*union(work.start_ns, work.end_ns), edges[:-1], edges[1:]) / _NS

    @property
    def at_once(self) -> Array:
        """Busy time over the sum of the durations of work."""
        total = self.of_kinds.sum(axis=1)
        found: Array = np.where(total > 0, self.busy_s / np.where(total > 0, total, 1.0), 0.0)
        return found


def _sums(place: Array, values: Array, count: int) -> Array:
    """The sum of the values at each of `count` places. An empty np.bincount() would return integers."""
    found: Array = np.bincount(place, values, count).astype(np.float64, copy=False)
    return found


def _split(start_ns: Array, end_ns: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Splits spans at edges: the span, the cell and the length of each piece."""
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
    """Base power, then the additional power of each kind of work, in watts.

    Attributes:
        watts: the estimates.
        covariance: of the estimates, from data and prior.
        misfit: mean square of the residuals, in joules squared.
    """

    watts: Array
    covariance: Array
    misfit: float

    @cached_property
    def draws(self) -> Array:
        """Random samples of the powers, by their covariance."""
        values, vectors = np.linalg.eigh((self.covariance + self.covariance.T) / 2)
        random = np.random.default_rng(_SEED).standard_normal((_DRAWS, len(self.watts)))
        drawn: Array = self.watts + (random * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        found: Array = np.maximum(drawn, 0.0)
        return found


class _Intervals:
    """The work and energy between ticks, for any common shift of the ticks."""

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
        """The energy between ticks, corrected for early and late ticks. The total is the counter's."""
        rows, energy = self._rows(shift_ns)
        if self._noise is None or len(self._noise) != len(rows):
            return energy
        modelled = rows @ self.solve(shift_ns).watts
        found: Array = np.maximum(modelled + self._noise.of_intervals(energy - modelled), 0.0)
        found *= float(energy.sum()) / max(float(found.sum()), 1e-12)
        return found

    def _rows(self, shift_ns: float) -> tuple[Array, Array]:
        """Between ticks: the seconds, in total and of each kind, and the energy."""
        time_ns = self.ticks.time_ns + round(shift_ns)
        seen = (time_ns[:-1] >= self._begin_ns) & (time_ns[1:] <= self._end_ns)
        columns = [time_ns, *(spans.until(time_ns) for spans in self._spans)]
        rows: Array = np.column_stack([np.diff(column) for column in columns])[seen] / _NS
        return rows, self.energy[seen]

    def expect_uneven(self, shift_ns: float) -> float:
        """Estimates the independent error of ticks by maximum likelihood, for later solutions; returns it in ns.

        A late tick leaves too much energy in the interval before it and too little in the next.
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
        """The powers if all ticks were `shift_ns` later."""
        rows, energy = self._rows(shift_ns)
        mean = float(energy.sum() / max(float(rows[:, 0].sum()), 1e-12)) if len(rows) else 0.0
        size = rows.shape[1]
        if len(rows) < FEWEST_TICKS or size == 1:
            watts = np.append(mean, np.zeros(size - 1))
            left = energy - rows @ watts
            return _Powers(watts, np.zeros((size, size)), float(np.mean(left**2)) if len(rows) else 0.0)
        least = (_LEAST_SPREAD * float(energy.mean())) ** 2 / 4
        if self._noise is not None and len(self._noise) == len(
            rows
        ):  # else the shift changed the ticks within the recording
            even = self._noise.evened(np.column_stack([rows, energy]))
            rows, energy = even[:, :-1], even[:, -1]
        return _fitted(rows, energy, mean, least, self._kernel)


class _Noise:
    """The noise of the energies between ticks: from early or late ticks, and of each interval.

    Attributes:
        log_volume: half of the logarithm of the covariance's determinant.
    """

    def __init__(self, rest: float, of_interval: Array, at_ticks: Array) -> None:
        """`rest`: variance of a mean interval. `of_interval`: relative to it. `at_ticks`: joules that a tick moves."""
        self._rest, self._of_interval = rest, of_interval
        moved = at_ticks**2
        diagonal = rest * of_interval + moved[:-1] + moved[1:]
        # A tick moves energy between its two neighbours, so the covariance is tridiagonal. Its Cholesky decomposition:
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
        """Combinations of rows that are independent and have the noise of a mean interval."""
        found: Array = self._whitened(rows) * self._rest**0.5
        return found

    def _whitened(self, rows: Array) -> Array:
        found: Array = rows / self._own[:, None]
        for row in range(1, len(rows)):
            found[row] -= self._other[row] / self._own[row] * found[row - 1]
        return found

    def of_intervals(self, left: Array) -> Array:
        """The expected part of the residuals that is noise of intervals, not of ticks."""
        found = self._whitened(left[:, None])[:, 0]
        for row in range(len(found) - 1, -1, -1):
            after = self._other[row + 1] * found[row + 1] if row + 1 < len(found) else 0.0
            found[row] = (found[row] - after) / self._own[row]
        part: Array = self._rest * self._of_interval * found
        return part


def _fitted(rows: Array, energy: Array, mean: float, least: float, kernel: Array) -> _Powers:
    """Solves by least squares, with a prior near the typical power. More noise gives the prior more weight."""
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
        told = float(np.trace(np.linalg.solve(gram + pull, gram)))  # effective number of parameters
        left = float(((energy - rows @ watts) ** 2).sum())
        noise = max(left / max(len(energy) - told, 1.0), least)
        is_settled = np.abs(watts - watts_before).max() < 0.01 * scale
        if is_settled and abs(noise / noise_before - 1) < 0.01:
            break
    return _Powers(watts, noise * np.linalg.inv(gram + pull), noise)


def _of_kernels(kernel: Array, rows: Array, watts: Array) -> Array:
    """The mean power of each kind's kernel."""
    seconds = rows[:, 1:].sum(axis=0)
    count = int(kernel.max()) + 1
    joules = _sums(kernel, seconds * watts[1:], count)
    mean: Array = joules / np.maximum(_sums(kernel, seconds, count), 1e-12)
    return mean[kernel]


def _expected(kernel: Array, of_kernel: Array, scale: float) -> Array:
    """The prior precision of the powers; 0 for the base power."""
    own = _SAME * np.maximum(of_kernel, _LEAST_SAME * scale)
    precision = np.zeros((len(kernel) + 1, len(kernel) + 1))
    precision[1:, 1:] = np.linalg.inv((scale * _ALIKE) ** 2 * (kernel[:, None] == kernel) + np.diag(own**2))
    return precision


class EnergyModel:
    """The energy of one GPU between two moments, by work.

    Attributes:
        is_solved: whether the powers are known; needs more than `FEWEST_TICKS` intervals between ticks.
        base_w: power without work; None if idle time was too short to measure it.
        spread: residual between two ticks, relative to the energy between them.
        shift_ns: shift of all ticks that fits the work best.
        uneven_ns: independent error of each tick, root mean square.
    """

    def __init__(
        self, ticks: EnergyTicks, work: Work, begin_ns: int, end_ns: int, cuts_ns: Array | None = None
    ) -> None:
        """`cuts_ns`: more edges for `of_cells`. Raises ValueError if there is too much work."""
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
            # Moments locate energy more precisely but depend on each other, so powers are from ticks.
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
        # The residual between two ticks may be from any moment between them. Even so, the intervals of 5 ms regions
        # contain the true energy in 7 of 10 cases (H100).
        typical = float(np.mean(intervals.energy)) if len(intervals.energy) else 1.0
        self.spread = max(powers.misfit**0.5 / max(typical, 1e-9), _LEAST_SPREAD) if self.is_solved else 0.5
        cells = self._solution.cells
        inside = self._solution.is_inside
        idle_s = float((cells.lengths_s - cells.busy_s)[inside].sum())
        tells_idle = idle_s > 0.02 * float(cells.lengths_s[inside].sum())
        self.base_w = float(powers.watts[0]) if self.is_solved and tells_idle else None

    @property
    def total(self) -> Energy:
        """Energy from the first moment to the last."""
        count = len(self._solution.cells.lengths_s)
        return self.of_cells(np.zeros(count, np.int64), 1)[0]

    @property
    def edges_ns(self) -> Array:
        """The moments between which `of_cells` counts."""
        return self._solution.cells.edges

    def of_cells(self, owner: Array, owners: int) -> list[Energy]:
        """Energy of the cells between `edges_ns`, idle time included. `owner`: of each cell, -1 for none."""

        def split(solution: _Solution) -> _Parts:
            # A shifted solution has other cells with the same cuts: match them by their middle.
            middle = (solution.cells.edges[:-1] + solution.cells.edges[1:]) // 2
            here = np.clip(np.searchsorted(self.edges_ns, middle, side="right") - 1, 0, len(owner) - 1)
            return solution.parts_of_cells(owner[here], owners)

        return self._energies(split)

    def of_work(self, piece: Array, owner: Array, owners: int) -> list[Energy]:
        """Energy while pieces of work ran, by owner. A piece may have several owners."""
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
    """The shift of all ticks, its standard deviation, and the powers at this shift.

    It is the mean of possible shifts, weighted by likelihood. They cover the error of ticks and the counter's lag.
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
    """Seconds by owner, interval between ticks and kind of work. Kind 0 is the base power."""

    owners: int
    owner: Array
    interval: Array
    kind: Array
    seconds: Array


class _Solution:
    """The powers for shifted ticks, and the matching cells of time."""

    def __init__(self, model: EnergyModel, intervals: _Intervals, shift_ns: float, powers: _Powers) -> None:
        ticks, begin_ns, end_ns = intervals.ticks, model._begin_ns, model._end_ns
        self.powers = powers
        time_ns = ticks.time_ns + round(shift_ns)
        edges = np.concatenate([time_ns, model._cuts_ns, [begin_ns, end_ns]])
        first_ns, last_ns = min(begin_ns, int(time_ns[0])), max(end_ns, int(time_ns[-1]))
        self.cells = _Cells(np.unique(edges[(edges >= first_ns) & (edges <= last_ns)]), model._work, model._kinds)
        # The interval of each cell: 0 before the first tick, then between ticks, and one after the last.
        self.interval = np.searchsorted(time_ns, self.cells.edges[:-1], side="right")
        count = len(time_ns) + 1
        self.seconds = np.zeros((count, model._kinds + 1))
        seconds = np.column_stack([self.cells.lengths_s, self.cells.of_kinds])
        np.add.at(self.seconds, self.interval, seconds)
        # The work before and after the recording is unknown.
        seen = (time_ns[:-1] >= begin_ns) & (time_ns[1:] <= end_ns)
        self.energy = np.full(count, np.nan)
        self.energy[1:-1][seen] = intervals.measured(shift_ns)
        self.is_inside = (self.cells.edges[:-1] >= begin_ns) & (self.cells.edges[1:] <= end_ns)

    def _scale(self, watts: Array) -> Array:
        """Measured over modelled energy between ticks; 1 if not measured."""
        modelled = self.seconds @ watts
        known = np.isfinite(self.energy) & (modelled > 0)
        found: Array = np.where(known, np.where(known, self.energy, 1.0) / np.where(known, modelled, 1.0), 1.0)
        return found

    def parts_of_cells(self, owner: Array, owners: int) -> _Parts:
        """The parts of whole cells."""
        cells = np.flatnonzero((owner >= 0) & self.is_inside)
        seconds = np.column_stack([self.cells.lengths_s[cells], self.cells.of_kinds[cells]])
        at, kind = np.nonzero(seconds > 0)
        return self._gathered(owners, owner[cells][at], self.interval[cells][at], kind, seconds[at, kind])

    def parts_of_work(self, piece: Array, owner: Array, owners: int) -> _Parts:
        """The parts of sorted pieces of work, each with its share of the base power."""
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
        """Joules of each owner at these powers."""
        return _sums(parts.owner, self._joules(parts, watts), parts.owners)

    def _shares(self, parts: _Parts) -> tuple[Array, Array, Array, Array, Array]:
        """By owner and interval: both, the owner's joules, the interval's joules, and their ratio."""
        intervals, watts = len(self.seconds), self.powers.watts
        key, place = np.unique(parts.owner * intervals + parts.interval, return_inverse=True)
        joules = _sums(place.reshape(-1), self._joules(parts, watts), len(key))
        owner, interval = key // intervals, key % intervals
        whole = (self.seconds @ watts * self._scale(watts))[interval]
        share = np.clip(joules / np.where(whole > 0, whole, 1.0), 0.0, 1.0)
        return owner, interval, joules, whole, share

    def uneven(self, parts: _Parts, uneven_ns: float) -> Array:
        """The variance of the joules from independent errors of ticks.

        An error moves energy between the two intervals at the tick. For an owner it is the difference of its shares of
        both, or its share of one if the other was not measured.
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
        """The variance of the joules because real powers are not constant.

        It is 0 for an owner of all energy between two ticks.
        """
        owner, interval, joules, whole, share = self._shares(parts)
        is_measured = np.isfinite(self.energy)[interval]
        error = np.where(is_measured, spread * whole * 2 * share * (1 - share), spread * joules)
        return _sums(owner, error**2, parts.owners)


def kinds_of_work(names: Sequence[str], name: Array, place: Array, length_ns: Array) -> tuple[Array, Array]:
    """The kind of each piece of work, by name and place of launch, and the kernel of each kind.

    The names and the (name, place) pairs with most time have their own kinds. Other work has the kind of its name, or
    one common kind.
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
    """The keys with the most total time."""
    found: Array = np.argsort(-_sums(key, length_ns, count), kind="stable")[:most]
    return found
