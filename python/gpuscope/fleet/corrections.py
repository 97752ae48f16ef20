# SPDX-License-Identifier: Apache-2.0
"""Clock corrections of nodes from fences: one weighted least-squares solve over the graph of nodes.

All ranks leave a fence at about the same time. Each communicator and time bin therefore gives one equation per node:
the median release, relative to those of the other nodes. The unknowns are the corrections at the knots of each node,
piecewise linear between them: one knot is an offset, two are an offset and a drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from gpuscope.fleet.fences import first_rows, group_medians

_CLIPPED = 5.0  # deviations of releases in a mean, to their median deviation
_ROUNDS = 4  # of Tukey's weights
_CONVEX_ROUNDS = 10  # of Huber's
_TUKEY, _HUBER = 4.685, 1.345  # 95 % efficiency for normal errors
_MAD = 1.4826  # of a normal distribution, to its standard deviation
_MEDIAN = 1.2533  # standard error of a median, relative to that of a mean
_SAMPLES = 32  # of the noise, for standard errors
_WANDERS = 6.0  # standard deviations of a residual; more need more knots
LEAST_RELEASES = 10  # whose median is about normal
_LEAST_CLUSTERS = 8
_MARGIN = 1.1  # the deviation from the median of ten releases is 6 % too small, and their medians have tails
_WHOLE_NS = 2.0  # times are integers

Array = np.ndarray[Any, Any]


class Corrections:
    """Per node, what to subtract from its clock, piecewise linear in time.

    Attributes:
        low: time of the first knot of each node, ns.
        high: time of its last knot.
        segments: number of linear pieces of equal length; 0 is a constant.
        first: index of its first knot.
        values: corrections at the knots, ns.
    """

    def __init__(self, low: Array, high: Array, segments: Array) -> None:
        self.low, self.high, self.segments = low, np.maximum(high, low + 1), segments
        self.first = np.cumsum(segments + 1) - (segments + 1)
        self.values = np.zeros(int((segments + 1).sum()))
        self.node = np.repeat(np.arange(len(low)), segments + 1)  # of each knot
        step = np.arange(len(self.node)) - self.first[self.node]
        self.time = low[self.node] + step * self._length()[self.node]
        self.time[segments[self.node] == 0] = ((low + high) / 2)[self.node][segments[self.node] == 0]

    def _length(self) -> Array:
        length: Array = (self.high - self.low) / np.maximum(self.segments, 1)
        return length

    def places(self, node: Array, time: Array) -> tuple[Array, Array, Array]:
        """The knots before and after each time, and the weight of the one after; outside, the last piece continues."""
        at = (time - self.low[node]) / self._length()[node]
        piece = np.clip(np.floor(at), 0, np.maximum(self.segments[node] - 1, 0)).astype(np.int64)
        moves = self.segments[node] > 0
        before = self.first[node] + piece
        return before, before + moves, np.where(moves, at - piece, 0.0)

    def at(self, node: Array, time: Array) -> Array:
        """The corrections of nodes at times, ns."""
        if self.segments.max(initial=0) < 2:  # lines: most jobs, and far fewer passes over the rows
            slope = self.drift()
            rise = (self.values[self.first] - slope * self.low)[node]
            line: Array = rise + slope[node] * time
            return line
        before, after, share = self.places(node, time)
        found: Array = (1 - share) * self.values[before] + share * self.values[after]
        return found

    def drift(self) -> Array:
        """The mean slope of each node."""
        slope: Array = (self.values[self.first + self.segments] - self.values[self.first]) / (self.high - self.low)
        return slope

    def bend(self) -> Array:
        """The largest second difference of knots of each node: 8 times the error between knots, if smooth."""
        inner = np.flatnonzero((self.node[2:] == self.node[:-2]) & (self.node[1:-1] == self.node[:-2])) + 1
        bend = np.zeros(len(self.low))
        difference = np.abs(self.values[inner - 1] - 2 * self.values[inner] + self.values[inner + 1])
        np.maximum.at(bend, self.node[inner], difference)
        return bend

    def refined(self, low: Array, high: Array, segments: Array) -> Corrections:
        """The same corrections with other knots."""
        other = Corrections(low, high, segments)
        other.values = self.at(other.node, other.time)
        return other

    def without_common(self, part: Array, values: Array, weight: Array) -> Array:
        """Values at the knots without the offset and the drift that the nodes of a part share, by weighted mean."""
        of_knot = part[self.node]
        total = np.maximum(np.bincount(of_knot, weight), 1e-300)
        time = self.time - (np.bincount(of_knot, weight * self.time) / total)[of_knot]
        mean = np.bincount(of_knot, weight * values) / total
        square = np.maximum(np.bincount(of_knot, weight * time**2), 1.0)
        slope = np.bincount(of_knot, weight * time * values) / square * self.segments.any()
        rest: Array = values - mean[of_knot] - slope[of_knot] * time
        return rest


@dataclass(frozen=True)
class Observations:
    """The median release of a node in a communicator and a time bin, relative to the other members.

    Attributes:
        node: index of the node.
        group: number of the communicator and bin.
        communicator: number of the communicator.
        bin: number of the time bin.
        count: number of releases.
        time: their mean time, ns.
        value: their median, ns.
        noise: standard error of one release's share in `value`, ns, of all observations together.
    """

    node: Array
    group: Array
    communicator: Array
    bin: Array
    count: Array
    time: Array
    value: Array
    noise: float


def observe(time: Array, instance: Array, first: Array, node: Array, communicator: Array, bins: int) -> Observations:
    """Observations of the releases of fences.

    Args:
        time: corrected release of each row, ns from a reference.
        instance: instance of each row.
        first: first row of each instance.
        node: node of each row.
        communicator: number of each row's communicator.
        bins: number of time bins.
    """
    when = group_medians(time, first)
    value = time - when[instance]
    most = _CLIPPED * float(np.median(np.abs(value)))
    members = np.diff(np.append(first, len(time)))
    # Relative to their median, one release of each fence is 0, and medians of few members would hardly move from there.
    value -= (np.add.reduceat(np.clip(value, -most, most), first) / members)[instance]
    low, high = when.min(), when.max()
    of_instance = np.minimum((when - low) / max(high - low, 1.0) * bins, bins - 1).astype(np.int64)
    nodes = int(node.max()) + 1
    key = (communicator * bins + of_instance[instance]) * nodes + node
    order = np.argsort(key, kind="stable")
    ordered, key = value[order], key[order]
    edges = first_rows(key)
    count = np.diff(np.append(edges, len(key)))
    medians = group_medians(ordered, edges)
    several = np.repeat(count > 1, count)
    lost = np.repeat((count / np.maximum(count - 1, 1)) ** 0.5, count)  # by deviations from their own median
    deviation = np.median((np.abs(ordered - np.repeat(medians, count)) * lost)[several]) if several.any() else 0.0
    shared = len(time) / (len(time) - len(first))  # n / (n - 1): the mean of n members follows each of them
    group = np.cumsum(np.append(True, np.diff(key[edges] // nodes) > 0)) - 1
    return Observations(
        key[edges] % nodes,
        group,
        key[edges] // (nodes * bins),
        key[edges] // nodes % bins,
        count.astype(float),
        np.add.reduceat(when[instance[order]], edges) / count,
        medians,
        float(_MEDIAN * _MAD * deviation * shared**0.5),
    )


class _System:
    """The normal equations, with the common release of each group eliminated."""

    def __init__(self, corrections: Corrections, seen: Observations) -> None:
        self._before, self._after, self._share = corrections.places(seen.node, seen.time)
        self._unknowns, self._group = len(corrections.values), seen.group
        self.weigh(seen.count)

    def weigh(self, weight: Array) -> None:
        self.weight = weight
        self._sum = np.maximum(np.bincount(self._group, weight), 1e-300)
        scale = self._gather(weight * (1 - self._share), weight * self._share, squared=True)
        self.scale = np.where(scale > 0, scale, 1.0)

    def centred(self, values: Array) -> Array:
        """Values without the weighted mean of their group."""
        rest: Array = values - (np.bincount(self._group, self.weight * values) / self._sum)[self._group]
        return rest

    def spread(self, knots: Array) -> Array:
        """Values at the knots, at the observations."""
        values: Array = (1 - self._share) * knots[self._before] + self._share * knots[self._after]
        return values

    def _gather(self, before: Array, after: Array, *, squared: bool = False) -> Array:
        if squared:
            before, after = before * (1 - self._share), after * self._share
        total: Array = np.bincount(self._before, before, self._unknowns)
        return total + np.bincount(self._after, after, self._unknowns)

    def _normal(self, values: Array) -> Array:
        weighted = self.weight * self.centred(values)
        return self._gather((1 - self._share) * weighted, self._share * weighted)

    def solve(self, target: Array, start: Array, tolerance: float = 1e-6) -> Array:
        """Conjugate gradients, preconditioned by the diagonal; components that nothing determines stay as in `start`.

        Args:
            target: per observation.
            start: initial values at the knots.
            tolerance: of the residual, relative to the right side.
        """
        values = start.copy()
        residual = self._normal(target - self.spread(values))
        step = residual / self.scale
        energy = float(residual @ step)
        target_energy = tolerance**2 * float((whole := self._normal(target)) @ (whole / self.scale))
        direction = step
        for _ in range(2 * self._unknowns + 10):
            if energy <= max(target_energy, 1e-12):
                break
            image = self._normal(self.spread(direction))
            length = energy / float(direction @ image)
            values += length * direction
            residual -= length * image
            step = residual / self.scale
            energy, before = float(residual @ step), energy
            direction = step + energy / before * direction
        return values


def fit(
    corrections: Corrections, seen: Observations, part: Array, *, convex: bool = False, errors: bool = False
) -> tuple[Array, Array]:
    """Adds the least-squares solution to `corrections`.

    Returns two arrays, per node in ns: by how much its clock is not linear between knots, the largest mean residual of
    a time bin, or 0 within the noise; and the half-width of the 95 % interval of its correction at all times, infinite
    if unknown.

    Args:
        corrections: changed in place.
        seen: observations after these corrections.
        part: connected component of each node.
        convex: whether to use Huber's weights, which need no good initial corrections, instead of Tukey's.
        errors: whether to compute the intervals; else they are 0.
    """
    system = _System(corrections, seen)
    groups = int(seen.group[-1]) + 1
    nodes, parts = len(corrections.low), len(np.unique(part[seen.node]))
    used = len(np.unique(np.concatenate([system._before, system._after])))
    known = len(seen.node) - groups - used + parts * (2 if corrections.segments.any() else 1)
    freedom = max(known, 1)
    releases = int(seen.count.sum()) - len(seen.count)  # beyond one each, which show the noise
    change = np.zeros(len(corrections.values))
    for turn in range((_CONVEX_ROUNDS if convex else _ROUNDS) + 1):
        if turn:
            change = system.solve(seen.value, change)
        residual = system.centred(seen.value - system.spread(change))
        standard = np.abs(residual) * seen.count**0.5
        between = _MAD * float(np.median(standard)) * (len(residual) / freedom) ** 0.5
        scale = max(between, seen.noise, 1.0)
        if convex:
            system.weigh(seen.count / np.maximum(standard / (_HUBER * scale), 1))
        else:
            system.weigh(seen.count * np.clip(1 - (standard / (_TUKEY * scale)) ** 2, 0, None) ** 2)
    corrections.values += corrections.without_common(part, change, system.scale)
    most = _TUKEY * scale / seen.count**0.5
    usual = seen.noise if np.median(seen.count) >= LEAST_RELEASES else max(between, seen.noise)
    excess = _excess(seen, residual, most, usual, nodes)
    if not errors:
        return excess, np.zeros(nodes)
    if max(known, releases) <= 0:
        return excess, np.full(nodes, np.inf)
    scale = max(scale, _between_communicators(seen, residual, system.weight, parts))
    error = _standard_errors(corrections, system, part, scale)
    for knots in np.unique(corrections.segments + 1).tolist():  # the interval holds at all knots at once
        quantile = _quantile(1 - 0.025 / knots, min(max(known, releases), _SAMPLES))
        error[corrections.segments + 1 == knots] *= quantile * _MARGIN
    return excess, error + corrections.bend() / 8 + _WHOLE_NS


def _excess(seen: Observations, residual: Array, most: Array, noise: float, nodes: int) -> Array:
    """The largest mean residual of a time bin of each node, or 0 within the noise of one release.

    A few late releases are no sign of a clock that wanders: residuals count up to `most`.
    """
    bins = int(seen.bin.max()) + 1
    key = seen.node * bins + seen.bin
    total = np.bincount(key, seen.count)
    filled = np.flatnonzero(total)

    def means(values: Array) -> Array:
        found: Array = np.abs(np.bincount(key, seen.count * values)[filled]) / total[filled]
        return found

    beyond = means(np.clip(residual, -most, most)) > _WANDERS * noise / total[filled] ** 0.5 + 1
    excess = np.zeros(nodes)
    np.maximum.at(excess, filled[beyond] // bins, means(residual)[beyond])
    return excess


def _standard_errors(corrections: Corrections, system: _System, part: Array, scale: float) -> Array:
    """Standard error of each node at its worst knot: the solution of noise has the covariance of the errors."""
    random, squares = np.random.default_rng(0), np.zeros(len(corrections.values))
    deviation = np.where(system.weight > 0, scale / np.maximum(system.weight, 1e-12) ** 0.5, 0.0)
    for _ in range(_SAMPLES):
        noise = random.standard_normal(len(deviation)) * deviation
        solution = system.solve(noise, np.zeros(len(squares)), 1e-2)
        squares += corrections.without_common(part, solution, system.scale) ** 2
    error = np.zeros(len(corrections.low))
    np.maximum.at(error, corrections.node, (squares / _SAMPLES) ** 0.5)
    return error


def _quantile(share: float, freedom: float) -> float:
    """Quantile of Student's distribution, by its expansion at the normal one (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(share)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _between_communicators(seen: Observations, residual: Array, weight: Array, parts: int) -> float:
    """The scale from means of a node in each communicator: larger than others if ranks leave in a steady order."""
    pair = seen.communicator * (int(seen.node.max()) + 1) + seen.node
    total = np.bincount(pair, weight)
    filled = np.flatnonzero(total)
    total = total[filled]
    mean = np.bincount(pair, weight * residual)[filled] / total
    freedom = len(filled) - len(np.unique(seen.communicator)) - len(np.unique(seen.node)) + parts
    if freedom < _LEAST_CLUSTERS:
        return 0.0
    return float(_MAD * np.median(np.abs(mean) * total**0.5) * (len(filled) / freedom) ** 0.5)
