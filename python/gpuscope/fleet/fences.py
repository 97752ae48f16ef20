# SPDX-License-Identifier: Apache-2.0
"""Fences: collectives that no rank leaves before all ranks have arrived, matched between ranks.

Ranks agree on the sequence number of a collective within its communicator. A rank whose recording began late may have
counted from another number. Its shift is found from kinds, bytes and times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.fleet.instances import IS_FENCE, arrays, grouped_medians, kind_codes
from gpuscope.text import brief

COLUMNS = ("rank", "communicator", "size", "sequence", "kind", "bytes", "start_ns", "end_ns")
_REALTIME_NS = 5e6  # CLOCK_REALTIME under NTP is within about twice this
_FAR_NS = 2e7  # a difference between two such clocks that makes a shift likely
_NEAR_NS = 1e8  # a shift moves collectives by less than this
_LEAST_SPREAD_NS = 1e3
_MOST_SHIFTS, _PROBES, _LEAST_PROBES = 400, 256, 8
_ALIKE = 0.95  # of the collectives that have the same kind and bytes
_SURE = 0.99  # confidence that a shift needs

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LateStart:
    """A rank that counts the collectives of a communicator from another number than its peers.

    Attributes:
        rank: the rank.
        communicator: hash of the communicator.
        shift: added to the rank's sequence numbers.
        confidence: probability of this shift, compared with the other shifts, 0 to 1.
        used: whether the collectives were used; False if the confidence is below 0.99.
    """

    rank: int
    communicator: int
    shift: int
    confidence: float
    used: bool


@dataclass(frozen=True)
class Fences:
    """Rows of fences; instances are contiguous, in order of communicator and sequence.

    Attributes:
        rank: index of the rank in the table of ranks, per row.
        communicator: number of the communicator from 0, per row.
        start_ns: arrival on the rank's clock, per row.
        end_ns: release on the rank's clock, per row.
        first: first row of each instance.
        complete: whether all ranks of the communicator are there, per instance.
        spans_ns: begin of the first and end of the last collective of each rank, on its clock; 0 without collectives.
        late_starts: ranks that count from another number.
    """

    rank: Array
    communicator: Array
    start_ns: Array
    end_ns: Array
    first: Array
    complete: Array
    spans_ns: tuple[Array, Array]
    late_starts: tuple[LateStart, ...]


def group_medians(values: Array, first: Array) -> Array:
    """The median of each group of successive values; `first` has the first row of each."""
    return grouped_medians(values, np.diff(np.append(first, len(values))))


def sorted_rows(*keys: Array) -> Array:
    """The order of rows by integer keys, the first key first."""
    spans = [int(key.max()) - int(key.min()) + 1 if len(key) else 1 for key in keys]
    if math.prod(spans) >= 2**62:
        return np.lexsort(keys[::-1])
    packed = np.zeros(len(keys[0]), np.int64)  # one key sorts faster than many
    for key, span in zip(keys, spans, strict=True):
        packed = packed * span + (key - (key.min() if len(key) else 0))
    return np.argsort(packed, kind="stable")


def first_rows(*keys: Array) -> Array:
    """The first row of each group of equal keys; rows are sorted."""
    if len(keys[0]) == 0:
        return np.zeros(0, np.int64)
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.flatnonzero(np.append(True, changes))


def find_fences(collectives: Mapping[str, Any], ranks: Array, realtime_ns: Any) -> Fences:
    """Matches the fences of all ranks.

    Args:
        collectives: columns of `COLUMNS`.
        ranks: the known ranks, sorted.
        realtime_ns: function of (indexes into `ranks`, their clocks' times) that returns about CLOCK_REALTIME.

    Raises:
        InvalidArgument: a column is missing, or a rank is not in `ranks`.
    """
    table = dict(zip(COLUMNS, arrays(collectives, "collectives", COLUMNS), strict=True))
    kind = kind_codes(table["kind"])
    number = table["rank"]
    rank = np.minimum(np.searchsorted(ranks, number), len(ranks) - 1)
    if len(wrong := np.flatnonzero(ranks[rank] != number)):
        raise InvalidArgument(f"collectives has rank {brief(int(number[wrong[0]]))}; accepted are the ranks of `ranks`")
    begin, end = np.full(len(ranks), np.iinfo(np.int64).max), np.full(len(ranks), np.iinfo(np.int64).min)
    np.minimum.at(begin, rank, table["start_ns"])
    np.maximum.at(end, rank, table["end_ns"])
    spans = np.where(begin > end, 0, begin), np.where(begin > end, 0, end)
    kept = np.flatnonzero(IS_FENCE[kind] & (table["end_ns"] >= table["start_ns"]))
    hashes, communicator = np.unique(table["communicator"][kept], return_inverse=True)
    order = sorted_rows(communicator.reshape(-1), rank[kept], table["sequence"][kept])
    source = kept[order]
    rows = _Sequences(
        rank[source],
        communicator.reshape(-1)[order],
        table["sequence"][source].astype(np.int64),
        kind[source],
        table["bytes"][source].astype(np.int64),
        table["end_ns"][source].astype(np.int64),
        realtime_ns,
    )
    late, used = rows.align()
    rows_of = sorted_rows(rows.communicator, rows.sequence, rows.rank)
    rows_of = rows_of[used[rows_of]]
    first = first_rows(rows.communicator[rows_of], rows.sequence[rows_of])
    count = np.diff(np.append(first, len(rows_of)))
    rows_of = rows_of[np.repeat(count > 1, count)]
    count = count[count > 1]
    first = np.cumsum(count) - count
    source = source[rows_of]
    return Fences(
        rows.rank[rows_of],
        rows.communicator[rows_of],
        table["start_ns"][source].astype(np.int64),
        rows.end_ns[rows_of],
        first,
        count >= table["size"][source[first]],
        spans,
        tuple(replace(each, rank=int(ranks[each.rank]), communicator=int(hashes[each.communicator])) for each in late),
    )


class _Sequences:
    """Rows sorted by communicator, rank and sequence; a pair is a rank in a communicator."""

    def __init__(
        self, rank: Array, communicator: Array, sequence: Array, kind: Array, size: Array, end_ns: Array, realtime: Any
    ) -> None:
        self.rank, self.communicator, self.sequence = rank, communicator, sequence
        self._kind, self._bytes, self.end_ns = kind, size, end_ns
        self._realtime_ns = realtime(rank, end_ns)
        self._first = first_rows(communicator, rank)
        self._count = np.diff(np.append(self._first, len(rank)))

    def align(self) -> tuple[list[LateStart], Array]:
        """Shifts sequences to those of the longest one of each communicator; returns shifts and the rows to use."""
        used = np.ones(len(self.rank), bool)
        late: list[LateStart] = []
        of_pair = self.communicator[self._first]
        longest = np.lexsort((-self._count, of_pair))
        reference = longest[first_rows(of_pair[longest])]
        for pair in np.flatnonzero(self._doubtful(reference[of_pair])).tolist():
            own, other = self._rows(pair), self._rows(int(reference[of_pair[pair]]))
            shift, confidence = self._find_shift(own, other)
            sure = confidence >= _SURE
            if sure:
                self.sequence[own] += shift
            used[own] = sure
            if shift or not sure:
                late.append(LateStart(int(self.rank[own][0]), int(of_pair[pair]), shift, confidence, sure))
        return late, used

    def _rows(self, pair: int) -> slice:
        return slice(int(self._first[pair]), int(self._first[pair] + self._count[pair]))

    def _doubtful(self, reference: Array) -> Array:
        """Whether the numbers of each pair may differ from those of its reference pair."""
        pair = np.repeat(np.arange(len(self._first)), self._count)
        is_reference = reference[pair] == pair
        by_instance = sorted_rows(self.communicator, self.sequence, np.where(is_reference, 0, 1))
        first = first_rows(self.communicator[by_instance], self.sequence[by_instance])
        partner = np.empty(len(pair), np.int64)
        partner[by_instance] = np.repeat(by_instance[first], np.diff(np.append(first, len(pair))))
        both = np.flatnonzero(is_reference[partner] & ~is_reference)
        doubtful: Array = reference != np.arange(len(reference))
        if len(both) == 0:
            return doubtful
        first = first_rows(pair[both])
        count = np.diff(np.append(first, len(both)))
        found = pair[both][first]
        alike = np.add.reduceat(self._alike(both, partner[both]), first, dtype=np.int64) / count
        apart = np.abs(group_medians((self._realtime_ns[both] - self._realtime_ns[partner[both]]) * 1.0, first))
        spread = group_medians(_changes((self.end_ns[both] - self.end_ns[partner[both]]) * 1.0, first), first)
        far = spread > 5 * np.median(spread) + _LEAST_SPREAD_NS
        doubtful[found] = (alike < _ALIKE) | (apart > _FAR_NS) | far
        return doubtful

    def _alike(self, own: Array, other: Array) -> Array:
        sizes = self._bytes[own], self._bytes[other]
        known = (sizes[0] >= 0) & (sizes[1] >= 0)
        alike: Array = (self._kind[own] == self._kind[other]) & ((sizes[0] == sizes[1]) | ~known)
        return alike

    def _find_shift(self, own: slice, other: slice) -> tuple[int, float]:
        """The most probable shift and its probability; 0 if no shift fits.

        The right shift has the smallest spread of time differences between successive collectives. Differences that
        CLOCK_REALTIME makes improbable count against a shift, with heavy tails, as such a clock may be unset.
        """
        count = own.stop - own.start
        begin = own.start + max(0, (count - _PROBES) // 2)
        rows = np.arange(begin, min(begin + _PROBES, own.stop))
        middle = rows[len(rows) // 2]
        apart = np.abs(self._realtime_ns[other] - self._realtime_ns[middle])
        near = np.argsort(apart, kind="stable")[:_MOST_SHIFTS]
        near = near[apart[near] <= _NEAR_NS]
        shifts = np.unique(np.append(0, self.sequence[other][near] - self.sequence[middle]))
        wanted = self.sequence[rows] + shifts[:, None]
        at = other.start + np.minimum(np.searchsorted(self.sequence[other], wanted), other.stop - other.start - 1)
        matched = self.sequence[at] == wanted
        if not matched.any() and len(near) == 0:  # recorded at other times: nothing contradicts its numbers
            return 0, 1.0
        fits = matched.sum(1) >= min(_LEAST_PROBES, len(rows))
        fits &= (matched & self._alike(rows, at)).sum(1) >= _ALIKE * matched.sum(1)
        score = np.full(len(shifts), -np.inf)
        for each in np.flatnonzero(fits).tolist():
            mine, partner = rows[matched[each]], at[each][matched[each]]
            changes = np.abs(np.diff((self.end_ns[mine] - self.end_ns[partner]) * 1.0))
            spread = float(np.median(changes)) if len(changes) else np.inf
            off = float(np.median(self._realtime_ns[mine] - self._realtime_ns[partner])) / _REALTIME_NS
            # Spreads of neighbouring shifts are correlated: they count as 8 observations, however many there are.
            score[each] = -8 * np.log(spread + _LEAST_SPREAD_NS) - np.log1p(off**2)
        if not np.isfinite(score).any():
            return 0, 0.0
        best = int(np.argmax(score))
        return int(shifts[best]), float(1 / np.exp(score - score[best]).sum())


def _changes(values: Array, first: Array) -> Array:
    """The absolute difference from the row before; the first row of a group has that of its next row."""
    changes = np.abs(np.diff(values, prepend=values[:1]))
    following = np.minimum(first + 1, len(values) - 1)
    single = np.append(first[1:], len(values)) == first + 1
    changes[first] = np.where(single, 0.0, changes[following])
    return changes
