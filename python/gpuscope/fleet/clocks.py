# SPDX-License-Identifier: Apache-2.0
"""The clocks of a job's nodes, aligned by their collectives.

All ranks of a node share one clock. Between nodes, CLOCK_REALTIME is right to some milliseconds only. Fences, which no
rank leaves before all have arrived, give microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.fleet.corrections import LEAST_RELEASES, Corrections, fit, observe
from gpuscope.fleet.fences import Fences, LateStart, find_fences, first_rows, group_medians
from gpuscope.fleet.instances import arrays
from gpuscope.fleet.tables import expected_ranks, of_ranks
from gpuscope.results import Result, plain_fields
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.units import format_seconds

_STEP_NS = 50_000  # between processes of a node, that is no noise
_LEAST_BINS, _BINS, _FINE_BINS = 2, 10, 40  # of time
_USABLE = 0.25  # of the median collective
_UNKNOWN_NS, _UNKNOWN_DRIFT = 1e7, 5e-5  # error where fences are too few to know it: that of CLOCK_REALTIME
_ROWS = 20

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NodeClock:
    """The clock of a node.

    Attributes:
        node: name of the host, or "rank 7" if the host is unknown.
        ranks: number of ranks.
        offset_ns: the node's clock minus aligned time, at the middle of its fences; 0 for the only node of a part.
        drift_ppb: how much faster than aligned time its clock is, mean.
        error_ns: half-width of the 95 % interval of its aligned times, relative to the mean of its part by fences,
            while it has collectives; at least 10 ms if its fences are too few, or too near in time for a drift.
        part: number of its connected component, 0 the one with most ranks.
        linear: whether offset and drift describe the clock; else its correction is piecewise linear.
    """

    node: str
    ranks: int
    offset_ns: int
    drift_ppb: float
    error_ns: float
    part: int
    linear: bool


@dataclass(frozen=True, repr=False)
class Clock(Result):
    """The aligned clocks of a job; printing it shows them.

    Nodes without a common fence, directly or through others, are in different parts. Their times cannot be compared.
    Errors suppose that nodes leave fences equally late on average. Times of two nodes are compared to the sum of their
    errors.

    Attributes:
        nodes: clocks, by name of the node.
        unaligned: by rank outside of part 0, why it is not aligned with part 0.
        instances: number of fences between nodes that were used. Lost ranks do not matter: the others left together.
        partial: number of them without the record of a rank of the communicator.
        late_starts: ranks that count collectives from another number; see `LateStart.used`.
        steps_ns: by rank, how far its clock is from the other ranks of its node, if more than 50 us.
        acausal: number of fences with a release before the last arrival by more than the errors of both clocks.
        collective_ns: median duration of these fences on a rank; None without fences.
        usable: whether the median error of nodes is at most 1/4 of `collective_ns`.
        why: why it is not usable; else "".
        expected: number of ranks of the job; 0 if unknown.
    """

    nodes: tuple[NodeClock, ...]
    unaligned: Mapping[int, str]
    instances: int
    partial: int
    late_starts: tuple[LateStart, ...]
    steps_ns: Mapping[int, int]
    acausal: int
    collective_ns: float | None
    usable: bool
    why: str
    _ranks: Array = field(compare=False)
    _node: Array = field(compare=False)  # of each rank
    _offset_ns: Array = field(compare=False)
    _reference_ns: int = field(compare=False)
    _corrections: Corrections = field(compare=False)
    expected: int = 0

    def aligned(self, rank: Any, time_ns: Any, part: int = 0) -> Array:
        """Times on the common clock, int64 ns.

        Args:
            rank: rank of each time, or one rank.
            time_ns: times on the clocks of the ranks, int64 ns.
            part: the part of all these ranks.

        Raises:
            InvalidArgument: a rank is unknown or in another part.
        """
        node = self._nodes_of(rank, part)
        time = np.asarray(time_ns, np.int64) - self._offset_ns[node]
        since = (time - self._reference_ns).astype(float)
        found: Array = time - np.rint(self._corrections.at(node, since)).astype(np.int64)
        return found

    def error_ns(self, rank: Any, part: int = 0) -> Array:
        """Half-width of the 95 % interval of each rank's aligned times, ns; errors as `aligned`."""
        of_node = np.array([each.error_ns for each in self.nodes])
        found: Array = of_node[self._nodes_of(rank, part)]
        return found

    def _nodes_of(self, rank: Any, part: int) -> Array:
        wanted = np.asarray(rank, np.int64)
        row = np.minimum(np.searchsorted(self._ranks, wanted), len(self._ranks) - 1)
        if np.any(unknown := self._ranks[row] != wanted):
            raise InvalidArgument(
                f"rank is {brief(int(wanted[unknown][0]))}; accepted are the {len(self._ranks)} recorded ranks"
            )
        node = self._node[row]
        if np.any(apart := np.array([each.part for each in self.nodes])[node] != part):
            first = int(wanted[apart][0])
            reason = self.unaligned.get(first) or f"it is in part 0, not in part {part}"
            raise InvalidArgument(f"rank {first} cannot be aligned: {reason}; accepted are the ranks of part {part}")
        found: Array = node
        return found

    def to_dict(self) -> dict[str, Any]:
        """Nanoseconds and parts per billion, as the names say; ``why`` says why the clock is not usable."""
        return plain_fields(self, without=[name for name in self.__dataclass_fields__ if name.startswith("_")])

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per node."""
        return [plain_fields(each) for each in self.nodes]

    def __str__(self) -> str:
        parts = max(each.part for each in self.nodes) + 1
        seen = len(self._ranks)
        ranks = of_ranks(seen, self.expected) if seen < self.expected else _many(seen, "rank")
        lines = [f"{_many(len(self.nodes), 'node')}, {ranks}, {_many(self.instances, 'fence')} between nodes"]
        if not self.usable:
            lines.append(f"not usable: {self.why}")
        if parts > 1:
            lines.append(f"{parts} parts share no fence; not aligned with part 0: {_many(len(self.unaligned), 'rank')}")
        if self.partial:
            lines.append(f"without the record of a rank: {_many(self.partial, 'fence')}")
        left_out = sum(not each.used for each in self.late_starts)
        if self.late_starts:
            lines.append(
                f"{_many(len(self.late_starts), 'sequence')} from another number: {len(self.late_starts) - left_out} "
                f"matched, {left_out} left out"
            )
        lines += [
            f"rank {rank} is {format_seconds(step / 1e9)} from the other ranks of its node"
            for rank, step in [*self.steps_ns.items()][:_ROWS]
        ]
        if self.acausal:
            lines.append(f"released before the last arrival, so these clocks are wrong: {_many(self.acausal, 'fence')}")
        rows = [("node", "ranks", "part", "offset", "drift", "error")]
        rows += [
            (
                each.node,
                str(each.ranks),
                str(each.part),
                format_seconds(each.offset_ns / 1e9),
                f"{each.drift_ppb / 1e3:+.3f} ppm" if each.linear else "varies",
                format_seconds(each.error_ns / 1e9),
            )
            for each in sorted(self.nodes, key=lambda each: -each.error_ns)[:_ROWS]
        ]
        lines += ["", *align_columns(rows, left=1, rule=True)]
        if len(self.nodes) > _ROWS:
            lines.append(f"... and {len(self.nodes) - _ROWS} more with smaller errors")
        return "\n".join(lines)


def _many(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' if count != 1 else ''}"


def align(collectives: Mapping[str, Any], ranks: Mapping[str, Any], anchors: Mapping[str, Any]) -> Clock:
    """Aligns the clocks of the nodes of a job.

    Args:
        collectives: columns rank, communicator, size, sequence, kind, bytes, start_ns and end_ns, in any order of rows.
        ranks: columns rank and host, and if known world_size; an empty host is unknown, and its rank a node of its own.
        anchors: columns rank, time_ns and realtime_ns; may have no rows.

    Raises:
        InvalidArgument: a column is missing, a rank is not in `ranks`, or `ranks` is empty or has a rank twice.
    """
    known, host = arrays(ranks, "ranks", ("rank", "host"))
    if len(known) == 0:
        raise InvalidArgument("ranks has no rows; accepted are tables of 1 rank and more")
    order = np.argsort(known, kind="stable")
    numbers = known[order].astype(np.int64)
    if np.any(twice := numbers[1:] == numbers[:-1]):
        raise InvalidArgument(f"ranks has rank {numbers[1:][twice][0]} twice; accepted are tables with a row per rank")
    hosts = [str(host or "") or f"rank {rank}" for host, rank in zip(host[order], numbers, strict=True)]
    names, node = np.unique(np.array(hosts), return_inverse=True)
    readings = _Anchors(arrays(anchors, "anchors", ("rank", "time_ns", "realtime_ns")), numbers, node, len(names))
    fences = find_fences(collectives, numbers, readings.realtime_ns)
    found = _Alignment(names.tolist(), numbers, node, readings, fences).clock()
    return replace(found, expected=expected_ranks(ranks))


class _Anchors:
    """Readings of CLOCK_REALTIME, by node."""

    def __init__(self, table: list[Array], numbers: Array, node: Array, nodes: int) -> None:
        rank, time_ns, realtime_ns = table
        row = np.minimum(np.searchsorted(numbers, rank), len(numbers) - 1)
        kept = numbers[row] == rank
        self._row, self._node = row[kept], node
        self._time = time_ns[kept].astype(np.int64)
        self._ahead = self._time - realtime_ns[kept].astype(np.int64)
        order = np.lexsort((self._time, node[self._row]))
        edges = np.searchsorted(node[self._row][order], np.arange(nodes + 1))
        self._of_node = np.split(order, edges[1:-1])
        self.ahead_ns = np.array(
            [np.sort(self._ahead[rows])[len(rows) // 2] if len(rows) else 0 for rows in self._of_node], np.int64
        )

    def realtime_ns(self, rank: Array, time_ns: Array) -> Array:
        """CLOCK_REALTIME at times on the clocks of rank rows, between the readings of the node."""
        node = self._node[rank]
        found = time_ns - self.ahead_ns[node]
        order = np.argsort(node, kind="stable")
        edges = np.searchsorted(node[order], np.arange(len(self._of_node) + 1))
        for each, rows in enumerate(self._of_node):
            here = order[edges[each] : edges[each + 1]]
            if len(rows) and len(here):
                begin = self._time[rows[0]]
                moved = np.interp(
                    (time_ns[here] - begin).astype(float),
                    (self._time[rows] - begin).astype(float),
                    (self._ahead[rows] - self.ahead_ns[each]).astype(float),
                )
                found[here] -= np.rint(moved).astype(np.int64)
        return found

    def steps_ns(self) -> dict[int, float]:
        """By rank row, the median of its readings relative to its node."""
        order = np.argsort(self._row, kind="stable")
        first = first_rows(self._row[order])
        row = self._row[order][first]
        off = (self._ahead - self.ahead_ns[self._node[self._row]]).astype(float)[order]
        return dict(zip(row.tolist(), group_medians(off, first).tolist(), strict=True))


class _Alignment:
    def __init__(self, names: list[str], numbers: Array, node: Array, readings: _Anchors, fences: Fences) -> None:
        self._names, self._numbers, self._node, self._readings = names, numbers, node, readings
        self._fences = fences
        self._row_node = node[fences.rank]
        self._instance = np.repeat(np.arange(len(fences.first)), np.diff(np.append(fences.first, len(fences.rank))))
        self._part = self._parts()
        alone = np.bincount(self._part, minlength=len(names))[self._part] < 2
        self._offset = np.where(alone, 0, readings.ahead_ns)
        self._reference = int(np.median(fences.end_ns - self._offset[self._row_node])) if len(fences.end_ns) else 0
        nothing = np.zeros(len(names))
        self._corrections = Corrections(nothing, nothing, np.zeros(len(names), np.int64))

    def _parts(self) -> Array:
        """The connected component of each node, the one with most ranks first."""
        label = np.arange(len(self._names))
        while len(self._fences.first):
            least = np.minimum.reduceat(label[self._row_node], self._fences.first)
            joined = label.copy()
            np.minimum.at(joined, self._row_node, least[self._instance])
            if np.array_equal(joined, label):
                break
            label = joined
        _, label = np.unique(label, return_inverse=True)
        size = np.bincount(label, np.bincount(self._node, minlength=len(label)))
        place = np.empty(len(size), np.int64)
        place[np.argsort(-size, kind="stable")] = np.arange(len(size))
        found: Array = place[label]
        return found

    def _times(self, time_ns: Array, node: Array) -> Array:
        """Corrected times on the clocks of nodes, ns from the reference."""
        since: Array = (time_ns - (self._offset + self._reference)[node]).astype(float)
        since -= self._corrections.at(node, since)
        return since

    def _solve(self) -> tuple[Array, Array]:
        """Fits all clocks; returns the error of each node, ns, and the rows of fences between nodes."""
        first, fences = self._fences.first, self._fences
        shared = np.zeros(len(first), bool)
        if len(first):
            least, most = (each.reduceat(self._row_node, first) for each in (np.minimum, np.maximum))
            shared = least != most
        rows = np.flatnonzero(shared[self._instance])
        if len(rows) == 0:
            return np.zeros(len(self._names)), rows
        node, end_ns = self._row_node[rows], fences.end_ns[rows]
        instance = np.cumsum(shared)[self._instance[rows]] - 1
        begins = first_rows(instance)
        communicator = fences.communicator[rows]

        def once(bins: int, *, convex: bool = False, errors: bool = False) -> tuple[Array, Array]:
            seen = observe(self._times(end_ns, node), instance, begins, node, communicator, bins)
            return fit(self._corrections, seen, self._part, convex=convex, errors=errors)

        once(1, convex=True)
        self._take_offsets()
        low, high = self._spans()
        lengths = np.bincount(communicator[begins])
        usual = max(int(np.median(lengths[lengths > 0])) // LEAST_RELEASES, _LEAST_BINS)
        when = group_medians(self._times(end_ns, node), begins)[instance]
        early, late = np.full(len(low), np.inf), np.full(len(low), -np.inf)
        np.minimum.at(early, node, when)
        np.maximum.at(late, node, when)
        enough = late - early >= (when.max() - when.min()) / min(usual, _BINS)  # for a drift
        segments = np.where(enough, 1, 0)
        for bins in sorted({min(usual, limit) for limit in (_BINS, _FINE_BINS)}):
            self._corrections = self._corrections.refined(low, high, segments)
            once(bins, convex=True)
            once(bins)  # the first one's medians are of nodes that drift
            excess, error = once(bins, errors=True)
            if not np.any(wanders := (excess > 0) & enough):
                break
            segments = np.where(wanders, bins, segments)
            # With knots at the same times, the solver leaves out what is common to all nodes, which no fence shows.
            low, high = np.where(wanders, low[node].min(), low), np.where(wanders, high[node].max(), high)
        else:
            self._corrections = self._corrections.refined(low, high, segments)
            once(bins)
            excess, error = once(bins, errors=True)
        unknown = _UNKNOWN_NS + _UNKNOWN_DRIFT * (high - low)
        error = np.where(enough, excess + np.minimum(error, unknown), unknown)
        return np.where(np.bincount(node, minlength=len(enough)) > 0, error, 0.0), rows

    def _spans(self) -> tuple[Array, Array]:
        """The times of the first and the last collective of each node, ns from the reference."""
        low, high = np.full(len(self._names), np.inf), np.full(len(self._names), -np.inf)
        begin, end = (
            (each - self._offset[self._node] - self._reference).astype(float) for each in self._fences.spans_ns
        )
        known = self._fences.spans_ns[1] != 0
        np.minimum.at(low, self._node[known], begin[known])
        np.maximum.at(high, self._node[known], end[known])
        return np.where(high >= low, low, 0.0), np.where(high >= low, high, 0.0)

    def _take_offsets(self) -> None:
        """Moves the offsets of the first fit into integers, relative to the median of each part."""
        values = self._corrections.values
        for part in np.unique(self._part).tolist():
            here = self._part == part
            self._offset[here] += np.rint(values[here] - np.median(values[here])).astype(np.int64)
        self._corrections.values = np.zeros(len(values))

    def _steps(self) -> dict[int, int]:
        """By rank, how far its clock is from the median rank of its node."""
        median = self._readings.steps_ns()
        if len(self._fences.first):
            off = self._times(self._fences.end_ns, self._row_node)
            off -= group_medians(off, self._fences.first)[self._instance]
            size = np.diff(np.append(self._fences.first, len(off)))
            pair = self._fences.first[size == 2]
            pair = pair[self._row_node[pair] == self._row_node[pair + 1]]
            off[[pair, pair + 1]] *= 2  # each is half of the difference from their median
            order = np.argsort(self._fences.rank, kind="stable")
            first = first_rows(self._fences.rank[order])
            rank = self._fences.rank[order][first]
            median |= dict(zip(rank.tolist(), group_medians(off[order], first).tolist(), strict=True))
        steps = {}
        of_node: dict[int, list[int]] = {}
        for row in median:
            of_node.setdefault(int(self._node[row]), []).append(row)
        for rows in of_node.values():
            usual = float(np.median([median[row] for row in rows]))
            for row in rows:
                if abs(median[row] - usual) > _STEP_NS:
                    steps[int(self._numbers[row])] = round(median[row] - usual)
        return dict(sorted(steps.items()))

    def clock(self) -> Clock:
        error, rows = self._solve()
        steps = self._steps()
        for rank, step in steps.items():
            node = self._node[np.searchsorted(self._numbers, rank)]
            error[node] = max(error[node], abs(step))
        instances = self._instance[rows][first_rows(self._instance[rows])]
        usual = float(np.median(error[self._part == 0]))
        collective = float(np.median((self._fences.end_ns - self._fences.start_ns)[rows])) if len(rows) else None
        why = ""
        if collective is not None and usual > _USABLE * collective:
            why = (
                f"the median error of nodes, {format_seconds(usual / 1e9)}, is more than a quarter of the median "
                f"collective, {format_seconds(collective / 1e9)}"
            )
        return Clock(
            self._nodes(error),
            self._unaligned(),
            len(instances),
            int(np.count_nonzero(~self._fences.complete[instances])),
            self._fences.late_starts,
            steps,
            self._acausal(rows, error),
            collective,
            not why,
            why,
            self._numbers,
            self._node,
            self._offset,
            self._reference,
            self._corrections,
        )

    def _nodes(self, error: Array) -> tuple[NodeClock, ...]:
        model, each = self._corrections, np.arange(len(self._names))
        offset = self._offset + np.rint(model.at(each, (model.low + model.high) / 2)).astype(np.int64)
        columns = (
            self._names,
            np.bincount(self._node, minlength=len(each)).tolist(),
            offset.tolist(),
            (model.drift() * 1e9).tolist(),
            error.tolist(),
            self._part.tolist(),
            (model.segments <= 1).tolist(),
        )
        return tuple(NodeClock(*row) for row in zip(*columns, strict=True))

    def _unaligned(self) -> dict[int, str]:
        left_out = {each.rank for each in self._fences.late_starts if not each.used}
        reasons = {}
        for row in np.flatnonzero(self._part[self._node] != 0).tolist():
            rank, part = int(self._numbers[row]), int(self._part[self._node[row]])
            reasons[rank] = f"its node {self._names[self._node[row]]} shares no fence with the nodes of part 0"
            if rank in left_out:
                reasons[rank] += ", and its sequence of collectives matches no other with confidence"
            elif np.count_nonzero(self._part == part) > 1:
                reasons[rank] += f"; it is in part {part}"
        return reasons

    def _acausal(self, rows: Array, error: Array) -> int:
        """The number of fences between nodes with a release before the last arrival, beyond both errors."""
        if len(rows) == 0:
            return 0
        first = first_rows(self._instance[rows])
        node = self._row_node[rows]
        arrival = np.maximum.reduceat(self._times(self._fences.start_ns[rows], node) - error[node], first)
        release = np.minimum.reduceat(self._times(self._fences.end_ns[rows], node) + error[node], first)
        return int((arrival > release).sum())
