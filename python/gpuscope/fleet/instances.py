# SPDX-License-Identifier: Apache-2.0
"""Collectives of many ranks as instances: the rows of all members of one call, with its arrivals and releases.

An instance is a communicator and a sequence number. Rows are sorted once, by communicator, sequence and rank. All
figures are then reductions over successive rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send",
    "recv",
    "barrier",
    "other",
)
"""Kinds of collectives. A column `kind` has these names, or integers: their indexes here."""
FENCES = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")
"""Kinds in which no rank is released before the last one has arrived."""

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Any]
"""A table: NumPy arrays of one length, by the name of the column."""

IS_FENCE = np.array([kind in FENCES for kind in KINDS])
_SEND, _RECV, _OTHER = KINDS.index("send"), KINDS.index("recv"), KINDS.index("other")
_OWN_BYTES = (KINDS.index("all_to_all"), _OTHER)  # of which ranks may pass different sizes


def arrays(table: Columns, name: str, columns: tuple[str, ...]) -> list[Array]:
    """The columns as arrays.

    Raises:
        InvalidArgument: a column is absent, or the lengths differ.
    """
    if absent := [each for each in columns if each not in table]:
        raise InvalidArgument(f"{name} has no column {absent[0]}; needed are {', '.join(columns)}")
    found = [np.asarray(table[each]) for each in columns]
    if len({len(each) for each in found}) > 1:
        lengths = ", ".join(f"{each} {len(values)}" for each, values in zip(columns, found, strict=True))
        raise InvalidArgument(f"the columns of {name} have the lengths {lengths}; accepted are equal lengths")
    return found


def grouped_medians(values: Array, count: Array) -> Array:
    """The median of each group of successive values; `count` has the sizes of the groups, all at least 1."""
    first = np.cumsum(count) - count
    medians = np.empty(len(count))
    for size in np.flatnonzero(np.bincount(count)).tolist():  # rows of a matrix sort faster than groups of any size
        groups = np.flatnonzero(count == size)
        ordered = np.sort(values[first[groups][:, None] + np.arange(size)], axis=1)
        medians[groups] = (ordered[:, (size - 1) // 2] + ordered[:, size // 2]) / 2
    return medians


@dataclass(frozen=True)
class Members:
    """The ranks of a job that have a recording.

    Attributes:
        rank: their numbers, in order.
        expected: the number of ranks of the job.
        node: index of each rank's host in `hosts`; -1 if the host is not known.
        hosts: names of hosts.
        role: fingerprint of each rank's program; 0 for all if not known.
        rows: row of each rank in the table.
    """

    rank: Array
    expected: int
    node: Array
    hosts: tuple[str, ...]
    role: Array
    rows: Array

    @classmethod
    def of(cls, ranks: Columns) -> Members:
        """Reads a rank table: rank and world_size, and if present host and role.

        Raises:
            InvalidArgument: a column is absent, or a rank occurs twice.
        """
        number, world = arrays(ranks, "ranks", ("rank", "world_size"))
        rows = np.argsort(number, kind="stable")
        number = number[rows].astype(np.int64)
        if (twice := number[1:] == number[:-1]).any():
            raise InvalidArgument(
                f"ranks has rank {number[1:][twice][0]} more than once; accepted is one row per rank of one job"
            )
        hosts = [str(each) for each in np.asarray(ranks.get("host", [""] * len(number)))[rows].tolist()]
        names = {host: index for index, host in enumerate(dict.fromkeys(filter(None, hosts)))}
        role = np.asarray(ranks.get("role", np.zeros(len(number), np.int64)))[rows]
        expected = max(int(world.max(initial=0)), len(number), int(number.max(initial=-1)) + 1)
        node = np.array([names.get(host, -1) for host in hosts], np.int64)
        return cls(number, expected, node, tuple(names), role, rows)

    def index(self, rank: Array, name: str) -> Array:
        """Position of each rank number in `rank`.

        Raises:
            InvalidArgument: a number is not in the table.
        """
        lookup = np.full(max(int(self.rank.max(initial=-1)), int(rank.max(initial=-1))) + 2, -1, np.int32)
        lookup[self.rank] = np.arange(len(self.rank))
        found = lookup[rank]
        if (unknown := (found < 0) | (rank < 0)).any():
            raise InvalidArgument(f"{name} has rank {rank[unknown][0]}; accepted are the ranks of the rank table")
        return found

    def host(self, index: int) -> str:
        """The host of the rank at this position; "" if not known."""
        return self.hosts[self.node[index]] if self.node[index] >= 0 else ""

    def __str__(self) -> str:
        return f"{len(self.rank):,} of {self.expected:,} ranks"


@dataclass(frozen=True)
class MatchedCollectives:
    """MatchedCollectives of collectives. Figures per row are in order of communicator, sequence and rank.

    Attributes:
        members: the ranks.
        row: per row, its place in the table.
        rank: per row, the position of its rank in `members`.
        instance: per row, its instance.
        arrival_ns: per row, begin of its GPU work.
        release_ns: per row, end of its GPU work.
        first: per instance, its first row.
        count: per instance, the number of its rows.
        communicator: per instance, index in `communicators`.
        sequence: per instance, number of the call.
        kind: per instance, index in `KINDS`; of a point-to-point call "send".
        size_bytes: per instance, as its first row; -1 if not known.
        last_ns: per instance, the last arrival.
        late: per instance, row of the last arrival; of equal ones that of the lowest rank.
        lead_ns: per instance, from the second latest to the last arrival.
        transfer_ns: per instance, float: from the last arrival to the median release.
        error_ns: per instance, bound on the clock error between its ranks; 0 on one node.
        communicators: their ids, in order.
        sizes: per communicator, its number of ranks.
        nodes: per communicator, its number of nodes; a rank of unknown host counts as one.
        pairs: per communicator and rank that occur together, indexes of both: an array (pairs, 2).
        skipped: number of instances that are left out, by reason.
        differing: calls that differ between ranks: the row in the table, a row of most ranks, and 1 if more ranks
            agree with that than with any other.
        endings: ranks that lack the last calls of a communicator: row in `pairs`, last sequence, number of missing
            calls, ns of the first arrival at one of them, and 1 if others ended a later fence.
    """

    members: Members
    row: Array
    rank: Array
    instance: Array
    arrival_ns: Array
    release_ns: Array
    first: Array
    count: Array
    communicator: Array
    sequence: Array
    kind: Array
    size_bytes: Array
    last_ns: Array
    late: Array
    lead_ns: Array
    transfer_ns: Array
    error_ns: Array
    communicators: Array
    sizes: Array
    nodes: Array
    pairs: Array
    skipped: Mapping[str, int]
    differing: Array
    endings: Array

    @property
    def is_fence(self) -> Array:
        """Per instance, whether its kind is one of `FENCES`."""
        return IS_FENCE[self.kind]


def match_collectives(collectives: Columns, ranks: Columns, clock_error_ns: Any = 0.0) -> MatchedCollectives:
    """Matches the collectives of all ranks.

    Args:
        collectives: the columns rank, communicator, size, sequence, kind, bytes, start_ns and end_ns, with aligned
            times. Work that did not end has an `end_ns` before its `start_ns`.
        ranks: the rank table.
        clock_error_ns: bound on each rank's clock error, as the rows of `ranks`; or one for all.

    Raises:
        InvalidArgument: a column is absent, or a rank is not in the rank table.
    """
    names = ("rank", "communicator", "size", "sequence", "kind", "bytes", "start_ns", "end_ns")
    number, communicator, size, sequence, kinds, size_bytes, start, end = arrays(collectives, "collectives", names)
    members = Members.of(ranks)
    rank = members.index(number, "collectives")
    error = np.broadcast_to(np.asarray(clock_error_ns, np.float64), (len(members.rank),))[members.rows]
    kind = kind_codes(kinds)

    communicators = np.unique(communicator)
    code = np.searchsorted(communicators, communicator)
    lowest = int(sequence.min(initial=0))
    key = code * (int(sequence.max(initial=0)) - lowest + 1) + (sequence - lowest)
    order = np.argsort(rank, kind="stable") if (rank[1:] < rank[:-1]).any() else np.arange(len(rank))
    order = order[np.argsort(key[order], kind="stable")]
    key, rank, start, end, kind = key[order], rank[order], start[order], end[order], kind[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    count = np.diff(np.append(first, len(key)))
    code, of = code[order[first]], np.repeat(np.arange(len(first)), count)

    sizes = np.zeros(len(communicators), np.int64)
    sizes[code] = size[order[first]]
    pairs, ending = _pairs(code[of] * max(len(members.rank), 1) + rank, of, len(members.rank))
    nodes, largest = _shape(pairs, members.node, error, len(communicators))

    # Communicator ids that were used again, work that did not end, and calls that one rank has recorded.
    again = np.zeros(len(first), bool)
    again[of[1:][(rank[1:] == rank[:-1]) & (of[1:] == of[:-1])]] = True
    unfinished = np.zeros(len(first), bool)
    unfinished[of[end < start]] = True
    unfinished &= ~again
    alone = (count < 2) & ~again & ~unfinished
    skipped = {
        "ambiguous: a rank has the same sequence number twice": int(again.sum()),
        "unfinished on some rank": int(unfinished.sum()),
        "recorded by one rank only": int((alone & (sizes[code] > 1)).sum()),
    }
    differing = _differing(kind, size_bytes[order], of, first, ~again)
    differing[:, :2] = order[differing[:, :2]]
    sequences = sequence[order[first]]
    endings = _endings(pairs, ending, code, sequences, start, first, unfinished, kind[first])

    kept = ~(again | unfinished | alone)
    rows = kept[of]
    order, rank, start, end, count = order[rows], rank[rows], start[rows], end[rows], count[kept]
    code, sequences, kind = code[kept], sequences[kept], kind[first[kept]]
    first = np.cumsum(count) - count
    of = np.repeat(np.arange(len(first)), count)
    last = np.maximum.reduceat(start, first) if len(first) else start[:0]
    latest = np.flatnonzero(start == last[of])[::-1]
    late = np.zeros(len(first), np.int64)
    late[of[latest]] = latest  # of several, the lowest rank is written last
    others = start.copy()
    others[late] = np.iinfo(np.int64).min
    second = np.maximum.reduceat(others, first) if len(first) else last
    return MatchedCollectives(
        members=members,
        row=order,
        rank=rank,
        instance=of,
        arrival_ns=start,
        release_ns=end,
        first=first,
        count=count,
        communicator=code,
        sequence=sequences,
        kind=np.where(kind == _RECV, _SEND, kind),
        size_bytes=size_bytes[order[first]],
        last_ns=last,
        late=late,
        lead_ns=last - second,
        transfer_ns=grouped_medians(end - last[of], count),
        error_ns=np.where(nodes[code] == 1, 0.0, largest[code] + error[rank[late]]),
        communicators=communicators,
        sizes=sizes,
        nodes=nodes,
        pairs=pairs,
        skipped={why: number for why, number in skipped.items() if number},
        differing=differing,
        endings=endings,
    )


def kind_codes(kinds: Array) -> Array:
    """The index in `KINDS` of each name of a kind; integers are such indexes.

    Raises:
        InvalidArgument: an integer is no index.
    """
    if kinds.dtype.kind in "iu":
        if len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(KINDS):
            raise InvalidArgument(f"kind is {kinds.max()}; accepted are names or indexes below {len(KINDS)}")
        return kinds.astype(np.int8)
    names = kinds.tolist()
    known = dict.fromkeys(names, _OTHER) | {kind: index for index, kind in enumerate(KINDS)}
    return np.fromiter(map(known.__getitem__, names), np.int8, len(kinds))


def _pairs(key: Array, of: Array, ranks: int) -> tuple[Array, Array]:
    """Pairs of communicator and rank, and the last instance of each."""
    found = np.unique(key)
    ending = np.empty(len(found), np.int64)
    ending[np.searchsorted(found, key)] = of  # instances are in order: the last one stays
    return np.stack(np.divmod(found, max(ranks, 1)), axis=1), ending


def _shape(pairs: Array, node: Array, error: Array, communicators: int) -> tuple[Array, Array]:
    """Number of nodes of each communicator, ranks of unknown node counted each, and the largest clock error."""
    code, rank = pairs.T
    place = np.where(node[rank] >= 0, node[rank], len(node) + rank)
    of_place = np.unique(code * (2 * len(node) + 1) + place) // (2 * len(node) + 1)
    largest = np.zeros(communicators)
    np.maximum.at(largest, code, error[rank])
    return np.bincount(of_place, minlength=communicators), largest


def _differing(kind: Array, size_bytes: Array, of: Array, first: Array, judged: Array) -> Array:
    """Rows whose kind or size differs from that of most ranks: (row, row of the majority, whether there is one)."""
    if not len(first):
        return np.zeros((0, 3), np.int64)
    kind = np.where(kind == _RECV, _SEND, kind).astype(np.int64)
    comparable = np.minimum.reduceat(size_bytes, first)[of] >= 0
    code = np.where(comparable & ~np.isin(kind, _OWN_BYTES), size_bytes, 0) * 16 + kind
    unequal = (np.minimum.reduceat(code, first) != np.maximum.reduceat(code, first)) & judged
    rows = np.flatnonzero(unequal[of])
    rows = rows[np.lexsort((code[rows], of[rows]))]
    begin = np.flatnonzero(np.append(True, (np.diff(code[rows]) != 0) | (np.diff(of[rows]) != 0))[: len(rows)])
    number = np.diff(np.append(begin, len(rows)))
    instance = of[rows[begin]]
    order = np.lexsort((-number, instance))
    top = order[np.append(True, np.diff(instance[order]) != 0)[: len(order)]]
    place = np.searchsorted(instance[top], instance)
    has_majority = np.bincount(place, number == number[top][place], len(top))[place] == 1
    others = np.repeat(np.arange(len(begin)) != top[place], number)
    found = (rows, np.repeat(rows[begin[top]][place], number), np.repeat(has_majority, number))
    return np.stack([each[others].astype(np.int64) for each in found], axis=1)


def _endings(
    pairs: Array, ending: Array, code: Array, sequence: Array, start: Array, first: Array, open_: Array, kind: Array
) -> Array:
    """Ranks that lack the last calls of a communicator, in order of time. See `MatchedCollectives`."""
    last = np.zeros(int(code.max(initial=-1)) + 1, np.int64)
    last[code] = np.arange(len(code))
    behind = np.flatnonzero(ending < last[pairs[:, 0]])
    if not len(behind):
        return np.zeros((0, 5), np.int64)
    at, final = ending[behind], last[pairs[behind, 0]]
    ended = np.append(0, np.cumsum(IS_FENCE[kind] & ~open_))
    goes_on = ended[final + 1] > ended[at + 1]
    time = np.minimum.reduceat(start, first)[at + 1]
    found = np.stack([behind, sequence[at], final - at, time, goes_on.astype(np.int64)], axis=1)
    return found[np.lexsort((pairs[behind, 1], time))]
