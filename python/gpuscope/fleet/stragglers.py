# SPDX-License-Identifier: Apache-2.0
"""Ranks and nodes that compute more slowly than their equals, for long or for a while, and the time of no steps.

The compute time of a step is compared, not its duration: a step takes the same time on all ranks, as they wait for each
other. Equals are ranks of one role. The limit is for the whole job, so that 1 % of healthy jobs have a false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gpuscope.arguments import check_count
from gpuscope.fleet.instances import Array, Columns, Members, arrays, grouped_medians
from gpuscope.fleet.links import DEVIATION, FALSE_ALARMS, LEAST_PEERS, SlowLink, find_slow_links, robust_scores
from gpuscope.fleet.waits import NS, Waits
from gpuscope.results import Result, plain_fields
from gpuscope.stats.distributions import normal_quantile
from gpuscope.tables import align_columns
from gpuscope.units import format_seconds, format_share

_ROWS = 10
_LEAST = math.log1p(0.02)  # slower, to be worth a finding
# Of the cumulative sum, in standard deviations. The rate is that of false alarms for normal noise with 1 % of outliers.
_SLACK, _CLIP, _RATE = 1.0, 3.0, 1.5
_LEAST_DEVIATION = 1e-3
_MOST_ALIKE = 0.95
_SLOW_STEP = 2.0  # times the median step: the rest of such a step is not productive
_LEAST_GROUP = 4

Who = tuple[int | None, str]  # rank and node


@dataclass(frozen=True)
class Slow:
    """A rank or a node that computes more slowly than its equals.

    Attributes:
        rank: its number; None for a whole node.
        node: its host; "" if not known.
        slower: by how much its compute takes longer, as 0.05; of a rank on a slow node, relative to the node.
        first_step: begin of the slow time.
        last_step: its end.
        cost_s: GPU-seconds that the other ranks lose if all wait for it.
        basis: "equals" (ranks of its role), "nodes", "own history" (slower only for these steps) or "waits". By waits,
            a rank is compared with other roles, so it may be an imbalance.
    """

    rank: int | None
    node: str
    slower: float
    first_step: int
    last_step: int
    cost_s: float
    basis: str


@dataclass(frozen=True)
class OddRank:
    """A rank whose kernels differ from those of most ranks of its group.

    Attributes:
        rank: its number.
        node: its host; "" if not known.
        role: its fingerprint.
        usual: the fingerprint of the others.
        communicator: the group; None for the whole job.
        members: number of ranks of the group.
    """

    rank: int
    node: str
    role: int
    usual: int
    communicator: int | None
    members: int


@dataclass(frozen=True)
class RoleLoad:
    """The compute of a role.

    Attributes:
        role: fingerprint.
        ranks: number of its ranks.
        compute_s: of a step: the median over its ranks of their medians.
        relative: to the mean over all ranks; the largest sets the pace of a pipeline.
    """

    role: int
    ranks: int
    compute_s: float
    relative: float


@dataclass(frozen=True, repr=False)
class Stragglers(Result):
    """Slow ranks, nodes and links of a job; printing it shows them.

    Attributes:
        seen: number of ranks with a recording.
        expected: number of ranks of the job.
        steps: number of steps.
        windows: number of windows that they are divided into.
        stragglers: ranks that are slow in two successive windows, highest cost first.
        nodes: nodes that are, likewise. Their ranks are named only if they are slower than their node.
        transients: ranks that are slow for some steps, relative to their own history.
        links: links that may be slow; empty without `waits`.
        odd: ranks with a program of their own.
        roles: compute by role, most first.
        goodput: shares of the wall time of all ranks, None if not known. "steps" is the productive part. "slow steps"
            is the time above the median, of steps that take twice as long. The others are "start-up", "between steps"
            and "after the last step".
        notes: what is not judged, and why.
    """

    seen: int
    expected: int
    steps: int
    windows: int
    stragglers: tuple[Slow, ...]
    nodes: tuple[Slow, ...]
    transients: tuple[Slow, ...]
    links: tuple[SlowLink, ...]
    odd: tuple[OddRank, ...]
    roles: tuple[RoleLoad, ...]
    goodput: Mapping[str, float] | None
    notes: tuple[str, ...]

    @property
    def imbalance(self) -> float | None:
        """By how much the role with most compute is above the mean of all ranks; None with one role."""
        return self.roles[0].relative - 1 if len(self.roles) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values: seconds and shares."""
        return {**plain_fields(self), "imbalance": self.imbalance}

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per slow rank or node."""
        return [plain_fields(each) for each in (*self.stragglers, *self.nodes, *self.transients)]

    def __str__(self) -> str:
        lines = [f"{self.seen:,} of {self.expected:,} ranks, {self.steps:,} steps"]
        found = (*self.nodes, *self.stragglers, *self.transients)
        if found:
            rows = [("slow", "node", "compute", "steps", "cost", "relative to"), *map(_cells, found[:_ROWS])]
            lines += ["", *align_columns(rows, left=(0, 1, 5), rule=True)]
            if len(found) > _ROWS:
                lines.append(f"... and {len(found) - _ROWS} more")
            lines.append("")
        elif self.windows > 1:
            lines.append("no slow rank or node")
        lines += [str(link) for link in self.links[:_ROWS]]
        for odd in self.odd[:_ROWS]:
            group = "the job" if odd.communicator is None else f"communicator {odd.communicator}"
            lines.append(f"rank {odd.rank} runs other kernels than most of the {odd.members:,} ranks of {group}")
        if self.imbalance is not None:
            lines.append(f"roles: {len(self.roles)}; the largest computes {100 * self.imbalance:+.1f} % over the mean")
        if self.goodput is not None:
            parts = [f"{what} {format_share(part)}" for what, part in self.goodput.items() if part >= 1e-3]
            lines.append(f"wall time: {', '.join(parts)}")
        return "\n".join([*lines, *(f"not judged: {note}" for note in self.notes)])


def _cells(row: Slow) -> tuple[str, ...]:
    name = "node" if row.rank is None else f"rank {row.rank}"
    steps = f"{row.first_step} to {row.last_step}"
    return name, row.node or "-", f"{100 * row.slower:+.1f} %", steps, format_seconds(row.cost_s), row.basis


def find_stragglers(steps: Columns, ranks: Columns, *, waits: Waits | None = None, window: int = 50) -> Stragglers:
    """Compares the compute of ranks.

    Args:
        steps: the step table, or the segment table (then goodput is not known): rank, step and compute_ns.
        ranks: the rank table.
        waits: of `find_waits`; for slow links, and for ranks with fewer than 6 equals.
        window: fewest steps of a window. Two windows are needed.

    Raises:
        InvalidArgument: a column is absent, a rank is not in the rank table, or `window` is below 5.
    """
    window = check_count("window", window, 5)
    number, step, compute = arrays(steps, "steps", ("rank", "step", "compute_ns"))
    members = Members.of(ranks)
    rank = members.index(number, "steps").astype(np.int64)
    named = np.unique(step[step >= 0])
    known = len(named)
    named = named if known else np.array([-1])
    shape = len(members.rank), len(named)
    cell = rank[step >= 0] * shape[1] + np.searchsorted(named, step[step >= 0])
    total = np.bincount(cell, compute[step >= 0], shape[0] * shape[1]).reshape(shape)
    with np.errstate(divide="ignore"):
        levels = np.where(total > 0, np.log(total), np.nan)  # of each rank and step

    notes = []
    count = known // window
    if count < 2:
        notes.append(f"slow ranks: {known} steps are fewer than two windows of {window}")
    role, peers = np.unique(members.role, return_inverse=True, return_counts=True)[1:]
    stragglers, nodes, judged, compared = _slow_ranks(levels, max(count, 1), named, role, peers, members)
    transients = _transients(levels, role, peers, judged, members, named)
    few = peers[role] < LEAST_PEERS
    if few.any():
        how = "judged by their own history" + (" and by waits" if waits is not None else "")
        notes.append(f"{int(few.sum()):,} ranks with fewer than {LEAST_PEERS} ranks of their role: {how}")
    if waits is not None:
        stragglers += _by_waits(waits, members, few, total.sum(axis=1), named)
    if compared < LEAST_PEERS:
        notes.append(f"slow nodes: {compared} nodes with several compared ranks; {LEAST_PEERS} are needed")
    links, why = find_slow_links(waits.instances) if waits is not None else ((), "links: no waits are given")
    odd = _odd_ranks(members, waits)
    goodput = None
    if {"start_ns", "duration_ns"} <= set(steps) and {"start_ns", "end_ns"} <= set(ranks):
        goodput = _goodput(rank, np.asarray(steps["start_ns"]), np.asarray(steps["duration_ns"]), ranks, members)
    return Stragglers(
        seen=shape[0],
        expected=members.expected,
        steps=known,
        windows=count,
        stragglers=_costliest(stragglers),
        nodes=_costliest(nodes),
        transients=_costliest(transients),
        links=links,
        odd=odd,
        roles=_role_loads(members, _row_medians(levels), {each.rank for each in odd}),
        goodput=goodput,
        notes=(*notes, *([why] if why else [])),
    )


def _costliest(found: list[Slow]) -> tuple[Slow, ...]:
    return tuple(sorted(found, key=lambda each: -each.cost_s))


def _slow_ranks(
    levels: Array, count: int, named: Array, role: Array, peers: Array, members: Members
) -> tuple[list[Slow], list[Slow], Array, int]:
    """Slow ranks, slow nodes, whether a rank belongs to neither, and the number of compared nodes."""
    number = len(members.rank)
    edges = np.linspace(0, len(named), count + 1).astype(np.int64)
    values = np.stack([_row_medians(levels[:, a:b]) for a, b in pairwise(edges.tolist())], axis=1)
    apart, spread = _compare(values, role, peers)
    usual = np.nan_to_num(np.exp(_row_medians(values.T))) * np.diff(edges)  # compute of a usual rank in each window
    at = [(int(named[a]), int(named[b - 1]), ns) for (a, b), ns in zip(pairwise(edges.tolist()), usual, strict=True)]

    effect, compared = _node_effects(apart, members)
    node_flags: Array = _twice(np.stack([_flags(column, compared) for column in effect.T], axis=1))
    size = np.bincount(members.node + 1, minlength=len(members.hosts) + 1)[1:]
    nodes = _findings(node_flags, effect, at, "nodes", [(None, host) for host in members.hosts], number - size)
    # Ranks of unknown node have the index -1.
    effect = np.vstack([np.where(node_flags, effect, 0.0), np.zeros((1, count))])[members.node]
    apart = apart - effect
    flags = _twice((apart > normal_quantile(1 - FALSE_ALARMS / max(number, 2)) * spread) & (apart >= _LEAST))
    who = [(rank, members.host(place)) for place, rank in enumerate(members.rank.tolist())]
    ranks = _findings(flags, apart, at, "equals", who, np.full(number, number - 1))
    judged = (flags | (effect > 0)).sum(axis=1) == 0
    return ranks, nodes, judged, compared


def _findings(
    flags: Array, effect: Array, at: Sequence[tuple[int, int, float]], basis: str, who: Sequence[Who], others: Array
) -> list[Slow]:
    """A finding for each row with a flag. `at` describes the windows; `others` is the number of ranks that wait."""
    found = []
    for row in np.flatnonzero(flags.any(axis=1)).tolist():
        windows = np.flatnonzero(flags[row]).tolist()
        lost = sum(at[each][2] * math.expm1(effect[row, each]) for each in windows) * float(others[row]) / NS
        slower = math.expm1(np.median(effect[row, windows]))
        found.append(Slow(*who[row], slower, at[windows[0]][0], at[windows[-1]][1], lost, basis))
    return found


def _row_medians(values: Array) -> Array:
    """The median of each row; nan if fewer than half of its values are known."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    ordered = np.sort(values, axis=1)  # nan are last
    known = np.isfinite(values).sum(axis=1)
    rows = np.arange(len(values))
    middle = ordered[rows, np.maximum(known - 1, 0) // 2] + ordered[rows, np.minimum(known // 2, values.shape[1] - 1)]
    medians: Array = np.where(2 * known >= values.shape[1], middle / 2, np.nan)
    return medians


def _compare(values: Array, role: Array, peers: Array) -> tuple[Array, Array]:
    """Distance of each rank and window from the median of its role, and the deviation of the role; nan if too few."""
    apart, spread = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    for each in np.flatnonzero(peers >= LEAST_PEERS).tolist():
        part = values[role == each]
        center = np.where(np.isfinite(part).sum(axis=0) >= LEAST_PEERS, _row_medians(part.T), np.nan)
        apart[role == each] = part - center
        spread[role == each] = DEVIATION * _row_medians(np.abs(part - center).T)
    return apart, spread


def _node_effects(apart: Array, members: Members) -> tuple[Array, int]:
    """Effect of each node by window, and the number of judged nodes. More than half of the ranks of a node have it."""
    effect = np.full((len(members.hosts), apart.shape[1]), np.nan)
    most = 0
    for window, column in enumerate(apart.T):
        rows = np.flatnonzero((members.node >= 0) & np.isfinite(column))
        rows = rows[np.lexsort((column[rows], members.node[rows]))]
        count = np.bincount(members.node[rows], minlength=len(members.hosts))
        nodes = np.flatnonzero(count > 1)
        first = np.cumsum(count) - count
        effect[nodes, window] = column[rows[first[nodes] + (count[nodes] - 1) // 2]]
        most = max(most, len(nodes))
    return effect, most


def _flags(effect: Array, judged: int) -> Array:
    if np.isfinite(effect).sum() < LEAST_PEERS:
        return np.zeros(len(effect), bool)
    flags: Array = (robust_scores(effect) > normal_quantile(1 - FALSE_ALARMS / judged)) & (effect >= _LEAST)
    return flags


def _twice(flags: Array) -> Array:
    """The flags that the window before or after has too."""
    both = flags.copy()
    both[:, 1:] &= flags[:, :-1]
    both[:, 0] = False
    both[:, :-1] |= both[:, 1:]
    return both


def _transients(levels: Array, role: Array, peers: Array, judged: Array, members: Members, named: Array) -> list[Slow]:
    """Times in which a rank is slower than usual: cumulative sums of its distance from its own median.

    What all ranks of a role have in common is taken away; for small roles, what all ranks of the job have in common.
    """
    apart = levels - _row_medians(levels)[:, None]
    groups = [(role == each, levels[role == each]) for each in np.flatnonzero(peers >= LEAST_PEERS).tolist()]
    if len(levels) >= LEAST_PEERS:
        groups.append((peers[role] < LEAST_PEERS, levels))
    for rows, equals in groups:
        apart[rows] -= np.nan_to_num(_row_medians((equals - _row_medians(equals)[:, None]).T))
    # Differences between steps do not grow by a slow time; the usual deviation includes slow changes of all ranks.
    own = DEVIATION * np.nan_to_num(_row_medians(np.abs(np.diff(apart, axis=1)))) / 2**0.5
    usual = DEVIATION * np.median(np.nan_to_num(_row_medians(np.abs(apart)))) if len(apart) else 0.0
    deviation = np.maximum(np.maximum(own, usual), _LEAST_DEVIATION)[:, None]
    # Successive steps of a rank may be alike: sums then vary more, by the time of an autoregressive process.
    parts = np.clip(np.nan_to_num(apart / deviation), -_CLIP, _CLIP)
    alike = (parts[:, 1:] * parts[:, :-1]).sum(axis=1) / np.maximum((parts**2).sum(axis=1), 1e-9)
    alike = min(max(float(np.median(alike)), 0.0), _MOST_ALIKE) if len(alike) else 0.0
    deviation = deviation * ((1 + alike) / (1 - alike)) ** 0.5
    scores = np.clip(np.nan_to_num(apart / deviation), -_CLIP, _CLIP) - _SLACK
    scores[~judged] = -_SLACK
    limit = math.log(max(levels.size, 2) / FALSE_ALARMS) / _RATE
    total, peak = np.zeros(len(levels)), np.zeros(len(levels))
    begin, end = np.zeros(len(levels), np.int64), np.zeros(len(levels), np.int64)
    found = []
    for step, score in enumerate(scores.T):
        begin[total <= 0] = step
        total = np.maximum(total + score, 0.0)
        rises = total > peak
        peak[rises], end[rises] = total[rises], step
        closed = (peak > limit) & ((total <= peak - limit) | (step == len(named) - 1))
        found += [(each, int(begin[each]), int(end[each])) for each in np.flatnonzero(closed).tolist()]
        total[closed] = 0.0
        peak[total <= 0] = 0.0
    slow = []
    for each, first, last in found:
        part = apart[each, first : last + 1]
        effect = float(np.nanmedian(part))
        if effect < _LEAST:
            continue
        lost = np.nansum(np.exp(levels[each, first : last + 1]) * -np.expm1(-part))  # of its compute, above the usual
        who = int(members.rank[each]), members.host(each)
        cost = float(lost * (len(members.rank) - 1) / NS)
        slow.append(Slow(*who, math.expm1(effect), int(named[first]), int(named[last]), cost, "own history"))
    return slow


def _by_waits(waits: Waits, members: Members, few: Array, compute: Array, named: Array) -> list[Slow]:
    """Ranks without equals whose compute made others wait for at least 2 % of it."""
    found = []
    for late in waits.late:
        at = int(np.searchsorted(members.rank, late.rank))
        if late.cause != "compute" or not few[at] or not compute[at]:
            continue
        slower = late.lead_s * late.count * NS / compute[at]
        if math.log1p(slower) >= _LEAST:
            steps = int(named[0]), int(named[-1])
            found.append(Slow(late.rank, late.node, slower, *steps, late.caused_s, "waits"))
    return found


def _odd_ranks(members: Members, waits: Waits | None) -> tuple[OddRank, ...]:
    """Ranks with another role than at least 90 % of a group, or than all others of it."""
    everyone = np.arange(len(members.rank))
    groups = [(np.zeros(len(everyone), np.int64), everyone)]
    if waits is not None:
        groups.append((waits.instances.pairs[:, 0] + 1, waits.instances.pairs[:, 1]))
    group, rank = (np.concatenate(each) for each in zip(*groups, strict=True))
    roles, role = np.unique(members.role, return_inverse=True)
    size = np.bincount(group)
    kinds, which, count = np.unique(group * len(roles) + role[rank], return_inverse=True, return_counts=True)
    order = np.argsort(count, kind="stable")
    usual = np.zeros(len(size), np.int64)
    usual[kinds[order] // max(len(roles), 1)] = order  # the most frequent role is written last
    is_clear = (size >= _LEAST_GROUP) & (size - count[usual] <= np.maximum(size // 10, 1)) if len(size) else size > 0
    odd: dict[int, OddRank] = {}
    for place in np.flatnonzero(is_clear[group] & (usual[group] != which)).tolist():
        at, of = int(rank[place]), int(group[place])
        odd.setdefault(
            at,
            OddRank(
                rank=int(members.rank[at]),
                node=members.host(at),
                role=int(members.role[at]),
                usual=int(roles[kinds[usual[of]] % len(roles)]),
                communicator=int(waits.instances.communicators[of - 1]) if waits is not None and of else None,
                members=int(size[of]),
            ),
        )
    return tuple(odd[at] for at in sorted(odd))


def _role_loads(members: Members, level: Array, odd: set[int]) -> tuple[RoleLoad, ...]:
    rows = np.flatnonzero(np.isfinite(level) & ~np.isin(members.rank, list(odd)))
    rows = rows[np.argsort(members.role[rows], kind="stable")]
    roles, count = np.unique(members.role[rows], return_counts=True)
    compute = np.exp(grouped_medians(level[rows], count)) / NS
    mean = float(np.average(compute, weights=count)) if len(count) else 1.0
    order = np.argsort(-compute, kind="stable").tolist()
    return tuple(RoleLoad(int(roles[n]), int(count[n]), float(compute[n]), float(compute[n] / mean)) for n in order)


def _goodput(rank: Array, start: Array, duration: Array, ranks: Columns, members: Members) -> dict[str, float] | None:
    """Shares of the wall time of all ranks that have steps; they add up to 1."""
    order = np.lexsort((start, rank))
    rank, start, duration = rank[order], start[order], duration[order].astype(float)
    if not len(rank):
        return None
    present, first, count = np.unique(rank, return_index=True, return_counts=True)
    last = first + count - 1
    begin, end = (np.asarray(ranks[name])[members.rows][present] for name in ("start_ns", "end_ns"))
    typical = np.repeat(grouped_medians(duration, count), count)
    good = np.where(duration > _SLOW_STEP * typical, typical, duration).sum()
    until = start + duration.astype(np.int64)
    gaps = np.maximum(start[1:] - until[:-1], 0)[rank[1:] == rank[:-1]].sum()
    parts = {
        "steps": good,
        "slow steps": duration.sum() - good,
        "start-up": np.maximum(start[first] - begin, 0).sum(),
        "between steps": gaps,
        "after the last step": np.maximum(end - until[last], 0).sum(),
    }
    wall = float(sum(parts.values()))
    return {what: float(each / wall) for what, each in parts.items()} if wall else None
