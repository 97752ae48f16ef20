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

_ROUNDS = 4  # of Tukey's weights
_TUKEY = 4.685  # 95 % efficiency for normal errors
_MAD = 1.4826  # of a normal distribution, to its standard deviation
_MEDIAN = 1.2533  # standard error of a median, relative to that of a mean
_SAMPLES = 32  # of the noise, for standard errors
_WANDERS = 6.0  # standard deviations of a residual; more need more knots
LEAST_RELEASES = 10  # whose median is about normal
_LEAST_CLUSTERS = 8
_MARGIN = 1.1  # the deviation from the median of ten releases is 6 % too small, and their medians have tails
_KNOTS = 41  # of a node, at most

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
        before, after, share = self.places(node, time)
        found: Array = (1 - share) * self.values[before] + share * self.values[after]
        return found

    def drift(self) -> Array:
        """The mean slope of each node."""
        slope: Array = (self.values[self.first + self.segments] - self.values[self.first]) / (self.high - self.low)
        return slope

    def bend(self) -> Array:
        """The largest second difference of the knots of each node: 8 times the error between knots of a smooth clock."""
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

    def without_common(self, part: Array, values: Array) -> Array:
        """Values at the knots without the offset and the drift that all nodes of a part share."""
        of_knot = part[self.node]
        count = np.maximum(np.bincount(of_knot), 1)
        time = self.time - (np.bincount(of_knot, self.time) / count)[of_knot]
        mean = np.bincount(of_knot, values) / count
        slope = np.bincount(of_knot, time * values) / np.maximum(np.bincount(of_knot, time * time), 1.0)
        moves = (self.segments > 0)[self.node]  # an offset needs no drift removed while all nodes have one knot
        rest: Array = values - mean[of_knot] - np.where(moves.any(), slope[of_knot] * time, 0.0)
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


def observe(
    time: Array, instance: Array, first: Array, node: Array, communicator: Array, bins: int
) -> tuple[Observations, Array]:
    """Observations of the releases of fences, and the time of each fence.

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
    members = len(time) / (len(time) - len(first))  # n / (n - 1): the median of n members follows each of them
    group = np.cumsum(np.append(True, np.diff(key[edges] // nodes) > 0)) - 1
    observations = Observations(
        key[edges] % nodes,
        group,
        key[edges] // (nodes * bins),
        key[edges] // nodes % bins,
        count.astype(float),
        np.add.reduceat(when[instance[order]], edges) / count,
        medians,
        float(_MEDIAN * _MAD * deviation * members**0.5),
    )
    return observations, when


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
        self._scale = np.where(scale > 0, scale, 1.0)

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
        step = residual / self._scale
        energy = float(residual @ step)
        target_energy = tolerance**2 * float((whole := self._normal(target)) @ (whole / self._scale))
        direction = step
        for _ in range(2 * self._unknowns + 10):
            if energy <= max(target_energy, 1e-12):
                break
            image = self._normal(self.spread(direction))
            length = energy / float(direction @ image)
            values += length * direction
            residual -= length * image
            step = residual / self._scale
            energy, before = float(residual @ step), energy
            direction = step + energy / before * direction
        return values


@dataclass(frozen=True)
class Fit:
    """What a solve found, beside the corrections.

    Attributes:
        scale: standard error of an observation of one release, ns.
        excess_ns: per node, its largest mean residual of a time bin, if larger than the noise; else 0.
        wanders: per node, whether its clock is not linear between knots.
        error_ns: per node, half-width of the 95 % interval of its correction at all times.
    """

    scale: float
    excess_ns: Array
    wanders: Array
    error_ns: Array


def fit(corrections: Corrections, seen: Observations, part: Array, *, errors: bool) -> Fit:
    """Adds the least-squares solution to `corrections`.

    Args:
        corrections: changed in place.
        seen: observations after these corrections.
        part: connected component of each node.
        errors: whether to compute `Fit.error_ns`; else it is 0.
    """
    system = _System(corrections, seen)
    groups = int(seen.group[-1]) + 1
    nodes, parts = len(corrections.low), len(np.unique(part[seen.node]))
    used = len(np.unique(np.concatenate([system._before, system._after])))
    freedom = max(len(seen.node) - groups - used + parts * (2 if corrections.segments.any() else 1), 1)
    change = np.zeros(len(corrections.values))
    for _ in range(_ROUNDS):
        change = system.solve(seen.value, change)
        residual = system.centred(seen.value - system.spread(change))
        standard = np.abs(residual) * seen.count**0.5
        between = _MAD * float(np.median(standard)) * (len(residual) / freedom) ** 0.5
        limit = _TUKEY * max(between, seen.noise, 1.0)
        system.weigh(seen.count * np.clip(1 - (standard / limit) ** 2, 0, None) ** 2)
    corrections.values += corrections.without_common(part, change)
    scale = max(between, seen.noise, _between_communicators(seen, residual, system.weight, parts))
    bins = int(seen.bin.max()) + 1
    key = seen.node * bins + seen.bin
    total = np.bincount(key, seen.count)
    filled = np.flatnonzero(total)
    usual = seen.noise if np.median(seen.count) >= LEAST_RELEASES else max(between, seen.noise)
    most = limit / seen.count**0.5  # else a few late releases would look as a clock that wanders

    def means(values: Array) -> Array:
        found: Array = np.abs(np.bincount(key, seen.count * values)[filled]) / total[filled]
        return found

    beyond = means(np.clip(residual, -most, most)) > _WANDERS * usual / total[filled] ** 0.5 + 1
    excess = np.zeros(nodes)
    np.maximum.at(excess, filled[beyond] // bins, means(residual)[beyond])
    error = np.zeros(nodes)
    if errors:
        random, squares = np.random.default_rng(0), np.zeros(len(change))
        noisy = np.flatnonzero(system.weight > 0)
        for _ in range(_SAMPLES):  # the solution of noise has the covariance of the errors
            noise = np.zeros(len(residual))
            noise[noisy] = random.standard_normal(len(noisy)) * scale / system.weight[noisy] ** 0.5
            squares += corrections.without_common(part, system.solve(noise, np.zeros(len(change)), 1e-2)) ** 2
        knots = np.minimum(corrections.segments + 1, _KNOTS)
        factor = np.array(
            [0.0, *(_quantile(1 - 0.025 / each, min(freedom, _SAMPLES)) for each in range(1, _KNOTS + 1))]
        )
        np.maximum.at(error, corrections.node, (squares / _SAMPLES) ** 0.5)
        error = error * factor[knots] * _MARGIN + corrections.bend() / 8
    return Fit(scale, excess, excess > 0, error)


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
