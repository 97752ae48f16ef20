# SPDX-License-Identifier: Apache-2.0
"""Transfers of collectives: bandwidths by group, and the links between nodes that may be slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscope.counters.short_kernels import solve_nonnegative
from gpuscope.fleet.instances import KINDS, Array, MatchedCollectives, grouped_medians
from gpuscope.stats.distributions import normal_quantile
from gpuscope.tables import align_columns
from gpuscope.units import format_bytes, format_digits

BELOW = "below clock error"
LEAST_PEERS = 6
"""Fewest equals for a comparison by median and median absolute deviation."""
DEVIATION = 1.4826
"""Standard deviation over median absolute deviation, of normal values."""
FALSE_ALARMS = 0.01
"""Accepted share of jobs with a false alarm."""
_NS = 1e9
_BEST = 0.95  # quantile of bandwidths that counts as the best: single values depend on clock errors
_LEAST_SLOWER = 0.05
_MOST_NODES = 64  # of a group whose pairs of nodes are suspects
# Bandwidth of the links over the rate of one rank's message, for n ranks: the convention of nccl-tests. The message of
# an all_gather is its input, that of a reduce_scatter its output.
_FACTOR: dict[str, Callable[[Array], Array]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(("all_gather", "reduce_scatter"), lambda n: n - 1.0),
    "all_to_all": lambda n: (n - 1) / n,
    **dict.fromkeys(("broadcast", "reduce", "send"), np.ones_like),
}


@dataclass(frozen=True)
class Bandwidth:
    """The bus bandwidth of collectives of one kind, size and group shape, in GB/s.

    Attributes:
        kind: of collective.
        size_bytes: sizes are from here to below twice this.
        ranks: of the group.
        nodes: of the group.
        count: number of instances.
        median: of instances; None if the transfers are below the clock error.
        best: 95 % of the instances are below it.
    """

    kind: str
    size_bytes: int
    ranks: int
    nodes: int
    count: int
    median: float | None
    best: float | None


@dataclass(frozen=True)
class SlowLink:
    """A link that would explain slow transfers.

    Attributes:
        links: pairs of hosts; if several, the groups do not separate them and any may be slow. Two equal hosts mean
            links inside of this node.
        slower: by how much transfers over it take longer, relative to equal groups.
        cost_s: GPU-seconds of these transfers above the usual.
        groups: number of slow communicators that use it.
        test: a command that measures the first link, with nccl-tests.
    """

    links: tuple[tuple[str, str], ...]
    slower: float
    cost_s: float
    groups: int
    test: str

    def __str__(self) -> str:
        first, last = self.links[0]
        name = f"inside {first}" if first == last else f"{first} - {last}"
        more = f" or one of {len(self.links) - 1} more" if len(self.links) > 1 else ""
        return f"link {name}{more}: transfers {100 * self.slower:+.0f} % in {self.groups} groups; test: {self.test}"


def _cells(row: Bandwidth) -> tuple[str, ...]:
    group = f"{row.ranks} ranks, {row.nodes} node{'s' * (row.nodes != 1)}"
    if row.median is None or row.best is None:
        rates = (BELOW, "-")
    else:
        rates = (format_digits(row.median), format_digits(row.best))
    return row.kind, format_bytes(row.size_bytes), group, f"{row.count:,}", *rates


def bandwidth_table(rows: tuple[Bandwidth, ...]) -> list[str]:
    """The lines of a table."""
    head = ("collective", "size", "group", "count", "GB/s", "best")
    return align_columns([head, *map(_cells, rows)], left=3, rule=True)


def find_bandwidths(found: MatchedCollectives) -> tuple[Bandwidth, ...]:
    """Computes bandwidths by kind, power of two of the size, and group shape."""
    has_rate = np.isin(found.kind, [KINDS.index(kind) for kind in _FACTOR]) & (found.size_bytes > 0)
    at = np.flatnonzero(has_rate)
    size, code = found.sizes[found.communicator[at]], found.communicator[at]
    bucket, most = np.log2(found.size_bytes[at]).astype(np.int64), len(found.members.rank) + 1
    shape = found.kind[at].astype(np.int64) * 64 + bucket
    shape = (shape * most + np.minimum(size, most - 1)) * most + found.nodes[code]
    _, at_class, which = np.unique(shape, return_index=True, return_inverse=True)
    classes = np.stack([found.kind[at], bucket, size, found.nodes[code]], axis=1)[at_class]
    transfer = found.transfer_ns[at]
    factor = np.ones(len(at))
    for kind, of_size in _FACTOR.items():
        rows = found.kind[at] == KINDS.index(kind)
        factor[rows] = of_size(size[rows].astype(float))
    is_known = transfer > found.error_ns[at]
    rate = np.where(is_known, found.size_bytes[at] / np.where(is_known, transfer, 1.0) * factor, np.nan)
    rows = []
    by_class = np.lexsort((rate, which))
    by_class = by_class[is_known[by_class]]
    edges = np.searchsorted(which[by_class], np.arange(len(classes) + 1))
    totals = np.bincount(which, minlength=len(classes))
    for each, (kind, bucket, members, nodes) in enumerate(classes.tolist()):
        rates = rate[by_class[edges[each] : edges[each + 1]]]
        # A class with fewer known transfers than this would be judged by its slow ones.
        known = len(rates) > 0 and len(rates) >= 0.5 * totals[each]
        rows.append(
            Bandwidth(
                kind=KINDS[kind],
                size_bytes=1 << bucket,
                ranks=members,
                nodes=nodes,
                count=int(totals[each]),
                median=float(np.median(rates)) if known else None,
                best=float(rates[min(int(_BEST * len(rates)), len(rates) - 1)]) if known else None,
            )
        )
    return tuple(rows)


def robust_scores(values: Array) -> Array:
    """Distance of each value from the median, in standard deviations by the median absolute deviation.

    nan are left out, and remain nan. Values that differ from all equal others have an infinite score.
    """
    apart = values - np.nanmedian(values)
    spread = DEVIATION * np.nanmedian(np.abs(apart))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(apart == 0, 0.0, apart / spread)


def find_slow_links(found: MatchedCollectives) -> tuple[tuple[SlowLink, ...], str]:
    """Searches pairs of nodes that explain why some groups transfer slower than others of the same shape.

    A group is slow if its median transfer is in both halves of its calls. Non-negative least squares attributes the
    slowness to pairs of nodes, by all groups that contain a pair.

    Returns:
        The suspects, most GPU time first, and why groups were not compared; "" if all were.
    """
    slower, judged, excess = _slow_groups(found)
    why = "" if judged.any() else f"links: fewer than {LEAST_PEERS} groups have the same kind, size and shape"
    inside = np.zeros((len(found.communicators), len(found.members.hosts)), bool)
    node = found.members.node[found.pairs[:, 1]]
    inside[found.pairs[node >= 0, 0], node[node >= 0]] = True
    slow = np.flatnonzero((slower > 0) & (inside.sum(axis=1) <= _MOST_NODES))
    suspects: set[tuple[int, int]] = set()
    for group in slow.tolist():
        nodes = np.flatnonzero(inside[group])
        first, second = np.triu_indices(len(nodes), 0 if len(nodes) == 1 else 1)
        suspects.update(zip(nodes[first].tolist(), nodes[second].tolist(), strict=True))
    if not suspects:
        return (), why
    first, second = np.array(sorted(suspects)).T
    rows = np.flatnonzero(judged & inside[:, np.union1d(first, second)].any(axis=1))
    uses = inside[rows][:, first] & inside[rows][:, second]
    uses &= (first != second) | (found.nodes[rows] == 1)[:, None]
    # Pairs in the same groups cannot be separated: they are one unknown.
    mixed = np.random.default_rng(0).random(len(rows)) @ uses
    _, at, which = np.unique(np.round(mixed, 9), return_index=True, return_inverse=True)
    matrix = uses[:, at].astype(float)
    solution = solve_nonnegative(matrix.T @ matrix, matrix.T @ slower[rows])
    parts = matrix * solution
    parts /= np.maximum(parts.sum(axis=1, keepdims=True), 1e-300)
    links = []
    for column in np.flatnonzero(solution >= _LEAST_SLOWER).tolist():
        pairs = np.flatnonzero(which.reshape(-1) == column)
        affected = slower[rows][uses[:, at[column]] & (slower[rows] > 0)]
        names = tuple((found.members.hosts[first[pair]], found.members.hosts[second[pair]]) for pair in pairs)
        a, b = names[0]
        where = f"-H {a}:2" if a == b else f"-H {a}:1,{b}:1"
        links.append(
            SlowLink(
                links=names,
                slower=float(np.median(affected)),
                cost_s=float((parts[:, column] * excess[rows]).sum() / _NS),
                groups=len(affected),
                test=f"mpirun -np 2 {where} all_reduce_perf -b 8M -e 256M -f 2 -g 1",
            )
        )
    return tuple(sorted(links, key=lambda each: -each.cost_s)), why


def _slow_groups(found: MatchedCollectives) -> tuple[Array, Array, Array]:
    """By communicator: by how much it is slower (0 if not slow), whether it is judged, and GPU-ns above the usual."""
    number = len(found.communicators)
    slower, judged, excess = np.zeros(number), np.zeros(number, bool), np.zeros(number)
    at = np.flatnonzero((found.size_bytes > 0) & (found.transfer_ns > found.error_ns))
    code = found.communicator[at]
    shape = np.stack([found.kind[at], found.size_bytes[at], found.sizes[code], found.nodes[code]], axis=1)
    order = np.lexsort((code, *shape.T))  # stable: calls of a group remain in order
    shape, code, transfer = shape[order], code[order], found.transfer_ns[at][order]
    is_class = np.append(True, (shape[1:] != shape[:-1]).any(axis=1))[: len(code)]
    begin = np.flatnonzero(is_class | np.append(True, code[1:] != code[:-1])[: len(code)])
    count = np.diff(np.append(begin, len(code)))
    group_class, group_code = (np.cumsum(is_class) - 1)[begin], code[begin]
    halves = np.stack([count // 2, count - count // 2], axis=1)
    medians = np.full((len(begin), 2), np.nan)
    medians.reshape(-1)[halves.reshape(-1) > 0] = grouped_medians(np.log(transfer), halves[halves > 0])
    edges = np.searchsorted(group_class, np.arange(int(is_class.sum()) + 1))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        values = medians[first:last]
        if np.isfinite(values).all(axis=1).sum() < LEAST_PEERS:
            continue
        groups = group_code[first:last]
        judged[groups] = True
        apart = values - np.nanmedian(values, axis=0)
        scores = np.stack([robust_scores(values[:, half]) for half in (0, 1)], axis=1)
        limit = normal_quantile(1 - FALSE_ALARMS / number)
        is_slow = (scores > limit).all(axis=1) & (apart >= np.log1p(_LEAST_SLOWER)).all(axis=1)
        share = np.where(is_slow, np.expm1(apart.mean(axis=1)), 0.0)
        usual = np.exp(np.nanmedian(values))
        slower[groups] = np.maximum(slower[groups], share)
        excess[groups] += share * usual * count[first:last] * found.sizes[groups]
    return slower, judged, excess
