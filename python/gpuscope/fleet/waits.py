# SPDX-License-Identifier: Apache-2.0
"""Waits in collectives: who arrived late, how much GPU time that cost, and why.

NCCL's kernels run while they wait, so the duration of a collective has two parts. A rank waits until the last rank has
arrived; the transfer is the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuscope.fleet.instances import (
    KINDS,
    Array,
    Columns,
    MatchedCollectives,
    arrays,
    grouped_medians,
    match_collectives,
)
from gpuscope.fleet.links import BELOW, Bandwidth, bandwidth_table, find_bandwidths
from gpuscope.results import Result, plain_fields
from gpuscope.spans import covered_ns, expand, union
from gpuscope.tables import align_columns
from gpuscope.units import format_bytes, format_seconds, format_share

NS = 1e9
UNEXPLAINED = "unexplained"
EARLIER = "an earlier collective"
_ROWS = 10
_CAUSES_OF = 64  # ranks with the highest cost have a cause
_MOST_LINKS = 16  # of a path of last arrivals
_LEAST_SHARE = 0.8  # of the lead, that a cause has to cover: the rule of TraceML


@dataclass(frozen=True)
class LateRank:
    """A rank that arrived last at fences, by more than the clock error.

    Attributes:
        rank: its number.
        node: its host; "" if not known.
        count: number of fences.
        fences: number of all its fences.
        cost_s: GPU-seconds that the other ranks waited for this one: each lead over the second latest rank, times the
            number of other ranks.
        caused_s: GPU-seconds of waits that began with this rank. This excludes delays that the rank inherited from an
            earlier collective. It includes delays that later ranks inherited from this rank, in any group.
        lead_s: median lead.
        cause: what covers at least 80 % of `caused_s`: a reason of the caller, "compute", "host idle" or "copy"; "an
            earlier collective" if `caused_s` is at most 20 % of `cost_s`; else "unexplained".
        share: the share that the cause covers; without a cause the largest that any covers.
    """

    rank: int
    node: str
    count: int
    fences: int
    cost_s: float
    caused_s: float
    lead_s: float
    cause: str
    share: float


@dataclass(frozen=True)
class OrderDifference:
    """A rank whose collectives differ from those of most ranks with the same sequence number.

    Attributes:
        rank: its number.
        communicator: of the calls.
        sequence: the first call that differs.
        step: of that call; -1 if not known.
        count: number of calls that differ.
        call: the rank's call, as "all_reduce of 4.00 MiB".
        usual: the call of the others.
        has_majority: whether more ranks agree with the others than with this one; if not, either may be wrong.
    """

    rank: int
    communicator: int
    sequence: int
    step: int
    count: int
    call: str
    usual: str
    has_majority: bool


@dataclass(frozen=True)
class MissingCalls:
    """A rank without the last calls of a communicator.

    Attributes:
        rank: its number.
        communicator: of the calls.
        sequence: of its last call.
        behind: number of calls that other ranks have after it.
        time_ns: arrival of the first other rank at the first missing call, on the aligned clock.
        recorded_only: whether only its recording ends early: others ended a fence that needed this rank. Otherwise the
            rank itself may have stopped.
    """

    rank: int
    communicator: int
    sequence: int
    behind: int
    time_ns: int
    recorded_only: bool


@dataclass(frozen=True, repr=False)
class Waits(Result):
    """Waits and transfers of the collectives of a job; printing it shows them.

    For each rank, wait and transfer add up to the duration.

    Attributes:
        ranks: numbers of the ranks with a recording.
        expected: number of ranks of the job.
        count: number of judged instances.
        incomplete: how many of them lack ranks; these are judged by the others.
        skipped: number of instances that are left out, by reason.
        wait_ns: of each rank, from its arrivals to the last ones.
        transfer_ns: of each rank, the rest.
        error_ns: of each rank, bound on the clock error of `wait_ns`.
        late: the late ranks, highest caused cost first.
        below: number of fences whose lead is below the clock error.
        early: number of rows that were released before the last arrival at a fence, by more than the clock error.
        bandwidths: by kind, size and group shape.
        orders: calls that differ between ranks.
        endings: ranks without the last calls, in order of time.
        instances: the collectives.
    """

    ranks: Array
    expected: int
    count: int
    incomplete: int
    skipped: Mapping[str, int]
    wait_ns: Array
    transfer_ns: Array
    error_ns: Array
    late: tuple[LateRank, ...]
    below: int
    early: int
    bandwidths: tuple[Bandwidth, ...]
    orders: tuple[OrderDifference, ...]
    endings: tuple[MissingCalls, ...]
    instances: MatchedCollectives = field(compare=False)

    @property
    def wait_share(self) -> float | None:
        """Share of the time in collectives that ranks waited; None without collectives or below the clock error."""
        wait = int(self.wait_ns.sum())
        total = wait + int(self.transfer_ns.sum())
        return wait / total if total and wait >= self.error_ns.sum() else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values: names end in their unit; GB/s for bandwidths."""
        return {
            **plain_fields(self, without=("instances",)),
            "seen": len(self.ranks),
            "wait_share": self.wait_share,
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per rank."""
        late = {each.rank: each for each in self.late}
        columns = zip(
            *(each.tolist() for each in (self.ranks, self.wait_ns, self.transfer_ns, self.error_ns)), strict=True
        )
        return [
            {
                "rank": rank,
                "wait_ns": wait,
                "transfer_ns": transfer,
                "error_ns": error,
                "cost_s": late[rank].cost_s if rank in late else 0.0,
                "cause": late[rank].cause if rank in late else "",
            }
            for rank, wait, transfer, error in columns
        ]

    def __str__(self) -> str:
        lines = [f"{len(self.ranks):,} of {self.expected:,} ranks, {self.count:,} collectives"]
        if self.count:
            share = self.wait_share
            lines.append(f"waiting: {BELOW if share is None else f'{format_share(share)} of the time in collectives'}")
        if self.incomplete:
            lines.append(f"{self.incomplete:,} collectives lack ranks and are judged by the others")
        lines += [f"left out: {number:,} collectives, {why}" for why, number in self.skipped.items()]
        if self.early:
            lines.append(f"clocks disagree: {self.early:,} releases precede the last arrival by more than their error")
        if self.late:
            total = sum(each.caused_s for each in self.late)
            lines += [f"GPU time that late ranks cost: {format_seconds(total)}", ""]
            head = ("late rank", "node", "late at", "lead", "cost", "caused", "cause")
            rows = [head, *map(_late_cells, self.late[:_ROWS])]
            lines += align_columns(rows, left=(0, 1, 6), rule=True)
            if len(self.late) > _ROWS:
                lines.append(f"... and {len(self.late) - _ROWS} more")
        elif self.below:
            lines.append(f"late ranks: {BELOW}")
        if self.bandwidths:
            lines += ["", *bandwidth_table(self.bandwidths[:_ROWS])]
        for each in self.orders[:_ROWS]:
            who = "others" if each.has_majority else "another rank, and neither has a majority,"
            lines.append(
                f"rank {each.rank} calls {each.call} where {who} call {each.usual}: step {each.step}, call "
                f"{each.sequence} of communicator {each.communicator}, {each.count:,} calls in all"
            )
        for ending in self.endings[:_ROWS]:
            why = "its recording ends early" if ending.recorded_only else "the others wait for it, or go on without it"
            lines.append(
                f"rank {ending.rank} has no call after {ending.sequence} of communicator {ending.communicator}, "
                f"{ending.behind:,} behind: {why}"
            )
        return "\n".join(lines)


def _late_cells(row: LateRank) -> tuple[str, ...]:
    cause = f"{row.cause} ({format_share(row.share)})" if row.cause != UNEXPLAINED else row.cause
    times = map(format_seconds, (row.lead_s, row.cost_s, row.caused_s))
    return f"{row.rank}", row.node or "-", f"{row.count:,} of {row.fences:,}", *times, cause


def find_waits(
    collectives: Columns, ranks: Columns, clock_error_ns: Any = 0.0, *, reasons: Columns | None = None
) -> Waits:
    """Computes what each rank waited for, and what each late rank cost.

    Args:
        collectives: the collective table of all ranks, with aligned times.
        ranks: the rank table.
        clock_error_ns: bound on each rank's clock error, as the rows of `ranks`; or one for all.
        reasons: what ranks did besides GPU work, with aligned times: the columns rank, start_ns, end_ns and reason, as
            "garbage", "data", "sync", "clock" or a line of the program. Give it for all ranks: a reason counts only as
            far as it takes longer than on the other ranks.

    Raises:
        InvalidArgument: a column is absent, or a rank is not in the rank table.
    """
    found = match_collectives(collectives, ranks, clock_error_ns)
    number, of = len(found.members.rank), found.instance
    ready = np.minimum(found.last_ns[of], found.release_ns)
    wait, transfer = ready - found.arrival_ns, found.release_ns - ready
    early = found.is_fence[of] & (found.last_ns[of] - found.release_ns > found.error_ns[of])
    fences = found.is_fence
    above = fences & (found.lead_ns > found.error_ns)
    return Waits(
        ranks=found.members.rank,
        expected=found.members.expected,
        count=len(found.first),
        incomplete=int((found.count < found.sizes[found.communicator]).sum()),
        skipped=found.skipped,
        wait_ns=np.bincount(found.rank, wait, number).astype(np.int64),
        transfer_ns=np.bincount(found.rank, transfer, number).astype(np.int64),
        error_ns=np.bincount(found.rank, found.error_ns[of], number),
        late=_late_ranks(found, collectives, above, reasons),
        below=int((fences & ~above & (found.error_ns > 0)).sum()),
        early=int(early.sum()),
        bandwidths=find_bandwidths(found),
        orders=_orders(found, collectives),
        endings=_ending_ranks(found),
        instances=found,
    )


def _late_ranks(
    found: MatchedCollectives, collectives: Columns, above: Array, reasons: Columns | None
) -> tuple[LateRank, ...]:
    compute, idle = arrays(collectives, "collectives", ("before_compute_ns", "before_idle_ns"))
    released, previous = _previous_releases(collectives, compute, idle)
    instances, number = np.flatnonzero(above), len(found.members.rank)
    rank, lead = found.rank[found.late[instances]], found.lead_ns[instances]
    costs = lead * (found.count[instances] - 1.0)
    cost = np.bincount(rank, costs, number)

    rows = _rows(found, instances)
    begin = released[found.row[rows]]
    inherited = _excess(found, instances, rows, begin - begin.min(initial=np.iinfo(np.int64).max))
    begun = _begun(found, instances, inherited, costs, previous)
    caused = np.bincount(rank, begun, number)
    order = np.lexsort((-cost, -caused))[: np.count_nonzero(cost)]

    chosen = np.isin(rank, order[:_CAUSES_OF])
    instances, own, begun, of = instances[chosen], (lead - inherited)[chosen], begun[chosen], rank[chosen]
    rows = _rows(found, instances)
    arrival, begin = found.arrival_ns[rows], released[found.row[rows]]
    compute, idle = compute[found.row[rows]], idle[found.row[rows]]
    spent = _reason_times(found, rows, begin, arrival, reasons)
    # Last, as reasons are more specific.
    spent |= {"compute": compute, "host idle": idle, "copy": arrival - begin - compute - idle}
    explained = {}
    for name, values in spent.items():
        part = np.minimum(_excess(found, instances, rows, values), own) / np.maximum(own, 1)
        explained[name] = np.bincount(of, begun * part, number)

    by_rank = np.argsort(rank, kind="stable")
    counts = np.bincount(rank, minlength=number)
    medians = np.zeros(number)
    medians[counts > 0] = grouped_medians(lead[by_rank], counts[counts > 0])
    fences = np.bincount(found.rank, found.is_fence[found.instance], number).astype(np.int64)
    late = []
    for place, at in enumerate(order.tolist()):
        shares = {name: float(values[at] / max(caused[at], 1.0)) for name, values in explained.items()}
        cause = next((name for name, share in shares.items() if share >= _LEAST_SHARE), UNEXPLAINED)
        share = shares.get(cause, max(shares.values()))
        if caused[at] <= (1 - _LEAST_SHARE) * cost[at]:
            cause, share = EARLIER, float(1 - caused[at] / cost[at])
        elif place >= _CAUSES_OF:
            cause, share = UNEXPLAINED, 0.0
        late.append(
            LateRank(
                rank=int(found.members.rank[at]),
                node=found.members.host(at),
                count=int(counts[at]),
                fences=int(fences[at]),
                cost_s=float(cost[at] / NS),
                caused_s=float(caused[at] / NS),
                lead_s=float(medians[at] / NS),
                cause=cause,
                share=share,
            )
        )
    return tuple(late)


def _begun(found: MatchedCollectives, instances: Array, inherited: Array, costs: Array, previous: Array) -> Array:
    """The part of all costs that began at each instance.

    What a late rank inherits began on the path of last arrivals before it: at the nearest instance whose late rank lost
    at least 80 % of it by itself.
    """
    at = np.full(len(previous) + 1, -1)  # the last entry is for rows without a previous one
    at[found.row] = found.instance
    before = np.append(at[previous[found.row[found.late]]], -1)
    own, begun = np.zeros(len(before)), np.zeros(len(before))
    lead = found.lead_ns[instances]
    own[instances] = lead - inherited
    passed = costs * inherited / np.maximum(lead, 1)
    begun[instances] = np.maximum(costs - passed, 0)  # not below, by rounding
    left = np.flatnonzero(inherited > 0)
    each = before[instances[left]]
    for _ in range(_MOST_LINKS):
        ends = (each >= 0) & (own[each] >= _LEAST_SHARE * inherited[left])
        begun += np.bincount(each[ends], passed[left[ends]], len(begun))
        goes_on = (each >= 0) & ~ends
        left, each = left[goes_on], before[each[goes_on]]
    return begun[instances]


def _previous_releases(collectives: Columns, compute: Array, idle: Array) -> tuple[Array, Array]:
    """When the rank of each row was released from its previous collective, and the row of that; -1 if not recorded."""
    rank, start, end = arrays(collectives, "collectives", ("rank", "start_ns", "end_ns"))
    order = np.arange(len(rank))
    if not ((rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (start[1:] >= start[:-1]))).all():
        order = np.lexsort((start, rank))
    released, previous = start - compute - idle, np.full(len(rank), -1)
    later = np.flatnonzero(rank[order[1:]] == rank[order[:-1]]) + 1
    previous[order[later]] = order[later - 1]
    released[order[later]] = np.minimum(end[order[later - 1]], start[order[later]])
    return released, previous


def _rows(found: MatchedCollectives, instances: Array) -> Array:
    """The rows of these instances."""
    return expand(found.first[instances], found.count[instances])[1]


def _excess(found: MatchedCollectives, instances: Array, rows: Array, values: Array) -> Array:
    """By how much the value of each late rank exceeds the median of the others, at most the lead."""
    late = np.searchsorted(rows, found.late[instances])
    others = np.ones(len(rows), bool)
    others[late] = False
    excess: Array = values[late] - grouped_medians(values[others], found.count[instances] - 1)
    return excess.clip(0, found.lead_ns[instances])


def _reason_times(
    found: MatchedCollectives, rows: Array, begin: Array, until: Array, reasons: Columns | None
) -> dict[str, Array]:
    """By reason, how long it took between `begin` and `until` of each row."""
    if reasons is None or not len(rows):
        return {}
    number, start, end, names = arrays(reasons, "reasons", ("rank", "start_ns", "end_ns", "reason"))
    rank = found.members.index(number, "reasons").astype(np.int64)
    # All ranks have one time axis: each rank has its own piece of it.
    lowest, highest = int(begin.min()), int(until.max())
    start, end = (np.clip(each, lowest, highest) - lowest + rank * (highest - lowest + 1) for each in (start, end))
    offset = found.rank[rows].astype(np.int64) * (highest - lowest + 1) - lowest
    texts = np.array([str(each) for each in names.tolist()], dtype=object)
    times = {}
    for name in dict.fromkeys(texts.tolist()):
        spans = union(start[texts == name], end[texts == name])
        times[name] = covered_ns(*spans, begin + offset, until + offset)
    return times


def _orders(found: MatchedCollectives, collectives: Columns) -> tuple[OrderDifference, ...]:
    number, communicator, sequence, kinds, size = arrays(
        collectives, "collectives", ("rank", "communicator", "sequence", "kind", "bytes")
    )
    step = np.asarray(collectives.get("step", np.full(len(number), -1)))

    def call(row: int) -> str:
        kind = kinds[row] if kinds.dtype.kind not in "iu" else KINDS[kinds[row]]
        return f"{kind} of {format_bytes(int(size[row]))}" if size[row] >= 0 else f"{kind}"

    rows = found.differing[:, 0]
    order = np.lexsort((sequence[rows], communicator[rows], number[rows]))
    rows = rows[order]
    begin = np.flatnonzero(
        np.append(True, (np.diff(number[rows]) != 0) | (np.diff(communicator[rows]) != 0))[: len(rows)]
    )
    count = np.diff(np.append(begin, len(rows)))
    return tuple(
        OrderDifference(
            rank=int(number[row]),
            communicator=int(communicator[row]),
            sequence=int(sequence[row]),
            step=int(step[row]),
            count=int(calls),
            call=call(row),
            usual=call(usual),
            has_majority=bool(majority),
        )
        for (row, usual, majority), calls in zip(found.differing[order[begin]].tolist(), count, strict=True)
    )


def _ending_ranks(found: MatchedCollectives) -> tuple[MissingCalls, ...]:
    return tuple(
        MissingCalls(
            rank=int(found.members.rank[found.pairs[pair, 1]]),
            communicator=int(found.communicators[found.pairs[pair, 0]]),
            sequence=sequence,
            behind=behind,
            time_ns=time,
            recorded_only=bool(goes_on),
        )
        for pair, sequence, behind, time, goes_on in found.endings.tolist()
    )
