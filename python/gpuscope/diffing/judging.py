# SPDX-License-Identifier: Apache-2.0
"""Tables of both sides, and the changes between them with their certainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpuscope.diagnosis.context import Where
from gpuscope.diffing.changes import ENOUGH_RUNS, LEAST_STEPS, Change
from gpuscope.diffing.costs import FUNCTION, GPU, HOST, UNSEEN, Array, Costs, Node, pair
from gpuscope.stats.means import holm, of_known_variance, welch

SURE = 0.95
ONE_RUN = "samples and calls of one run"
"""Source of the intervals if single runs are compared."""

_WORTH_A_WORD = 5e-4  # of a step, on either side: smaller nodes are not certain
_LEAST_LEVEL = 1e-12  # smallest level with a quantile
_MUCH = 0.1  # of a step: less time does not show whether two programs are versions of one
_TICK_NS = 32.0  # of the GPU's clock


@dataclass(frozen=True)
class Tables:
    """The nodes of both sides, with a table per side. Times in ns.

    Attributes:
        nodes: as they are after.
        time_ns: of each side (replicates, nodes).
        count: likewise.
        variance: of each side (nodes,), of the mean of single runs; see `Costs`.
        was: the node before of each renamed node.
        own: nodes that only versions of one program share.
        places: of each side, the lines of functions.
    """

    nodes: list[Node]
    time_ns: list[Array]
    count: list[Array]
    variance: list[Array]
    was: dict[Node, Node] = field(default_factory=dict)
    own: set[Node] = field(default_factory=set)
    places: tuple[dict[Node, Where], dict[Node, Where]] = ({}, {})

    @property
    def means(self) -> list[Array]:
        """The mean time of each node, of each side."""
        return [time_ns.mean(axis=0) for time_ns in self.time_ns]

    def add(self, runs: Sequence[Sequence[Array]], by_runs: bool) -> None:
        """Adds the next side: times, counts and variances of its runs."""
        for into, tables in zip((self.time_ns, self.count), zip(*(run[:2] for run in runs), strict=True), strict=True):
            into.append(np.vstack([table.mean(axis=0, keepdims=True) if by_runs else table for table in tables]))
        self.variance.append(np.sum([run[2] for run in runs], axis=0) / len(runs) ** 2)


def tables_of_steps(costs: Sequence[Sequence[Costs]], kind: str, by_runs: bool) -> Tables:
    """The times of steps, or of runs, as the times of one node."""
    found = Tables([Node(kind, (), kind)], [], [], [])
    for side in costs:
        doubts = [np.array([(UNSEEN * each.left_out_ns) ** 2]) for each in side]
        times = [each.step_ns[:, None] for each in side]
        found.add([(of, np.zeros_like(of), doubt) for of, doubt in zip(times, doubts, strict=True)], by_runs)
    return found


def tables_of_nodes(costs: Sequence[Sequence[Costs]], by_runs: bool) -> Tables:
    """The nodes of both sides; nodes of the same name, and pairs of `pair`, are one."""
    of_sides = [list(dict.fromkeys(node for run in runs for node in run.nodes)) for runs in costs]
    paired = pair(*of_sides)
    nodes = list(dict.fromkeys([*(paired.get(node, node) for node in of_sides[0]), *of_sides[1]]))
    place = {node: column for column, node in enumerate(nodes)}
    found = Tables(nodes, [], [], [], {new: old for old, new in paired.items() if old != new}, places=({}, {}))
    for side, runs in enumerate(costs):
        tables = []
        for run in runs:
            names = {node: node if side else paired.get(node, node) for node in run.nodes}
            columns = np.array([place[name] for name in names.values()], np.int64)
            tables.append([np.zeros((*values.shape[:-1], len(nodes))) for values in run.values])
            for wide, values in zip(tables[-1], run.values, strict=True):
                wide[..., columns] = values
            found.own.update(names[node] for node in run.nodes if node in run.own)
            found.places[side].update({names[node]: where for node, where in run.places.items()})
        found.add(tables, by_runs)
    return found


def shares(tables: Tables, step_ns: Sequence[float]) -> tuple[float, float]:
    """Shares of the time in nodes of both sides: of the most important kind of node, and the largest of any kind.

    The first is that of the side with the smaller share, the second that of the side with the larger one. The second
    skips kinds that take little time.
    """
    times = tables.means
    kinds = np.array([node.kind for node in tables.nodes])
    own = np.array([node in tables.own for node in tables.nodes], bool)
    both = (times[0] > 0) & (times[1] > 0)

    def of_kind(of: NDArray[np.bool_]) -> list[float]:
        return [float(time[of & both].sum() / time[of].sum()) for time in times if time[of].sum() > 0]

    matters = next((kind for kind in (GPU, FUNCTION) if (kinds == kind).any()), HOST)
    found: dict[bool, list[float]] = {True: [], False: []}
    for kind in (GPU, FUNCTION, HOST):
        of = own & (kinds == kind)
        is_much = any(time[of].sum() >= _MUCH * step for time, step in zip(times, step_ns, strict=True))
        found[is_much] += of_kind(of)
    return min(of_kind(kinds == matters), default=1.0), max(found[True] or found[False], default=1.0)


def changes_of(tables: Tables, margin: float, replicates: str) -> list[Change]:
    """Each node with its verdict; small nodes hardly lower the test level of one with much of the time."""
    nodes, means, (before, after) = tables.nodes, tables.means, tables.time_ns
    counts = [count.mean(axis=0) for count in tables.count]
    step_ns = max(_a_step(nodes, side) for side in means)
    half_ns, sure = np.full(len(nodes), np.inf), np.zeros(len(nodes), bool)
    tested: Callable[..., tuple[Array, Array]] | None = None
    if replicates == ONE_RUN:
        variance = tables.variance[0] + tables.variance[1] + _TICK_NS**2 / 6
        tested = partial(of_known_variance, means[1] - means[0], variance)
    elif min(len(before), len(after)) >= min(LEAST_STEPS, ENOUGH_RUNS):
        tested = partial(welch, before, after, tick=_TICK_NS, groups=_groups(nodes, means[0], step_ns))
    if tested is not None:
        _, chance = tested(confidence=SURE)
        if replicates != ONE_RUN:
            of_all = math.comb(len(before) + len(after), len(before))
            chance = np.where(_came_or_went(before, after), np.minimum(chance, 2 / of_all), chance)
        levels = np.maximum(holm(chance, 1 - SURE, means[0] + means[1]), _LEAST_LEVEL)
        half_ns, _ = tested(confidence=1 - levels)
        sure = (chance <= levels) & (np.maximum(*means) >= _WORTH_A_WORD * step_ns)
    found = []
    for column, node in enumerate(nodes):
        one, other = float(means[0][column]), float(means[1][column])
        half, delta = float(half_ns[column]), other - one
        low, high = max(delta - half, -one), delta + half  # not more than all of it can go
        nearest = min(abs(delta), 1.0)  # ns: where approximations of the test and of the interval differ
        if not sure[column]:
            low, high = min(low, 0.0), max(high, 0.0)
        elif delta > 0:
            low = max(low, nearest)
        else:
            high = min(high, -nearest)
        was = tables.was.get(node)
        change = Change(
            node.kind,
            node.path,
            node.name,
            one,
            other,
            (low, high),
            float(counts[0][column]),
            float(counts[1][column]),
            "inconclusive",
            str(was) if was is not None and (node.kind != FUNCTION or was.name != node.name) else None,
            *(side.get(node) for side in tables.places),
        )
        found.append(_judged(change, bool(sure[column]), margin))
    return found


def _came_or_went(before: Array, after: Array) -> NDArray[np.bool_]:
    """Whether each is in every row of one side and in no row of the other: true for two of all orders of the rows."""
    came = (before == 0).all(axis=0) & (after > 0).all(axis=0)
    went = (before > 0).all(axis=0) & (after == 0).all(axis=0)
    either: NDArray[np.bool_] = came | went
    return either


def _groups(nodes: Sequence[Node], means: Array, step_ns: float) -> NDArray[np.int64]:
    """Groups of nodes that vary together: GPU work, and the host's nodes. Small nodes and all others are single."""
    kinds = {"gpu": 0, "host": 1}
    alone = np.arange(len(kinds), len(kinds) + len(nodes))
    together = np.array([kinds.get(node.kind, -1) for node in nodes], np.int64)
    return np.where((together >= 0) & (means >= _WORTH_A_WORD * step_ns), together, alone)


def _a_step(nodes: Sequence[Node], means: Array) -> float:
    """Approximate time of a step: the most that one kind of node takes."""
    kinds = np.array([node.kind for node in nodes])
    return max((float(means[kinds == kind].sum()) for kind in set(kinds)), default=0.0)


def _judged(change: Change, sure: bool, margin: float) -> Change:
    low, high = change.interval_ns
    most = margin * max(change.before_ns, change.after_ns)
    if sure and abs(change.delta_ns) > most:
        verdict = "slower" if change.delta_ns > 0 else "faster"
        if not change.before_ns or not change.after_ns:
            verdict = "new" if change.after_ns else "gone"
        elif abs(change.more_often_ns) > abs(change.slower_ns):
            verdict = "more often" if change.delta_ns > 0 else "less often"
        if change.kind == "idle" and verdict in ("slower", "faster"):
            verdict = "more" if change.delta_ns > 0 else "less"
    else:
        verdict = "same" if sure or (-most <= low and high <= most) else "inconclusive"
    return replace(change, verdict=verdict)
