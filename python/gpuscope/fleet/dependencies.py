# SPDX-License-Identifier: Apache-2.0
"""The operations of a job, what each of them waits for, and the times of steps if operations took other times.

A rank does its own work in order. Work waits for all transfers that the rank began before it. A transfer begins when
all members have begun it; a member begins it after its work, and after transfers that ended before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument
from gpuscope.readers.straggler import StragglerTrace

_FEW = 3

Column = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Operations:
    """The operations of a job, one value per operation in each array.

    Attributes:
        rank: number of the rank.
        step: number of the step.
        kind: index into `kinds`.
        start_ns: int64; only the order and the overlap of one rank's operations, and the arrivals at a transfer count.
        end_ns: int64, likewise.
        group: number of the transfer in the step; -1 for work of one rank. Its members have the same number.
        like: operations of the same number should take equally long; None for those of a kind.
        stage: pipeline stage of the rank, -1 if unknown; None if there are none.
        replica: number of the rank's replica (data parallel); None if unknown.
        microbatch: number of the microbatch, -1 for none; None if unknown.
        kinds: names of the kinds.
        gpus: number of GPUs of the job.
    """

    rank: Column
    step: Column
    kind: Column
    start_ns: Column
    end_ns: Column
    group: Column
    kinds: tuple[str, ...]
    gpus: int
    like: Column | None = None
    stage: Column | None = None
    replica: Column | None = None
    microbatch: Column | None = None

    @staticmethod
    def of_trace(trace: StragglerTrace) -> Operations:
        """The operations of a file that `read_straggler` read."""
        gpus = trace.facts.get("world_size")
        known = isinstance(gpus, int) and gpus > 0
        return Operations(
            **trace.columns, kinds=trace.kinds, gpus=int(gpus or 0) if known else len(np.unique(trace.columns["rank"]))
        )

    @staticmethod
    def of_tables(
        segment: Mapping[str, Column], collective: Mapping[str, Column], rank: Mapping[str, Column] | None = None
    ) -> Operations:
        """The operations of a job's fleet tables.

        Operations of one role and position in the step should take equally long, as should collectives of one kind,
        size and number of bytes. Collectives outside of steps are left out.

        Args:
            segment: columns of the table ``segment``.
            collective: columns of the table ``collective``, with ``start_ns`` and ``end_ns`` on one clock for all.
            rank: columns of the table ``rank``, for the roles, and for pipeline stages if it has the column ``stage``.

        Raises:
            InvalidArgument: no step has operations.
        """
        inside = np.flatnonzero(collective["step"] >= 0)
        order = np.lexsort(tuple(collective[name][inside] for name in ("start_ns", "step", "rank")))
        calls = {name: values[inside[order]] for name, values in collective.items()}
        inside = np.flatnonzero(segment["step"] >= 0)
        pieces = {name: values[inside] for name, values in segment.items()}
        if not len(calls["step"]) + len(inside):
            raise InvalidArgument("segment and collective have no rows of a step; a what-if needs steps")
        # A segment begins with the collective after it, before which it is sorted; the last with the end of the last.
        ranks, rank_of = np.unique(np.r_[calls["rank"], pieces["rank"]], return_inverse=True)
        steps, step_of = np.unique(np.r_[calls["step"], pieces["step"]], return_inverse=True)
        block = rank_of * len(steps) + step_of
        count = len(calls["step"])
        first, last = (np.searchsorted(block[:count], block[count:], side) for side in ("left", "right"))
        after = first + pieces["position"]
        starts, ends = np.r_[calls["start_ns"], 0], np.r_[calls["end_ns"], 0]
        start_ns = np.where(after < last, starts[np.minimum(after, count)], np.where(first < last, ends[last - 1], 0))
        role, stage = np.zeros(len(ranks), np.int64), None
        if rank is not None:
            row = np.argsort(rank["rank"], kind="stable")
            row = row[np.minimum(np.searchsorted(rank["rank"][row], ranks), len(row) - 1)]
            known = rank["rank"][row] == ranks
            role = np.where(known, np.unique(rank["role"], return_inverse=True)[1][row], -1)
            stage = np.where(known, rank["stage"][row], -1) if "stage" in rank else None
        # Each part of a segment is an operation, unless all segments like it lack that part.
        parts = ("compute", "copy", "host")
        part = np.repeat(np.arange(len(parts)), len(inside))
        piece = np.tile(np.arange(len(inside)), len(parts))
        spent = np.concatenate([pieces[f"{name}_ns"] for name in parts])
        like = number_rows(part, role[rank_of[count:]][piece], pieces["position"][piece])
        kept = np.flatnonzero(np.bincount(like, spent)[like] > 0)
        part, piece, spent, like = part[kept], piece[kept], spent[kept], like[kept]
        kinds, kind = np.unique(calls["kind"].astype(str), return_inverse=True)
        moved = number_rows(kind, calls["size"], calls["bytes"])
        rows = np.r_[piece + count, np.arange(count)]
        return Operations(
            rank=ranks[rank_of[rows]],
            step=steps[step_of[rows]],
            kind=np.r_[part, kind + len(parts)],
            start_ns=np.r_[start_ns[piece], calls["start_ns"]],
            end_ns=np.r_[start_ns[piece] + spent, calls["end_ns"]],
            group=np.r_[np.full(len(piece), -1), number_rows(calls["communicator"], calls["sequence"])],
            kinds=(*parts, *kinds.tolist()),
            gpus=len(ranks),
            like=np.r_[like, moved + like.max(initial=-1) + 1],
            stage=stage[rank_of[rows]] if stage is not None else None,
        )


class _Level:
    """Units that wait only for operations of lower levels."""

    def __init__(self, operations: slice, unit: Column, before: Column, begins: Column) -> None:
        """Of each operation its unit in the level; of each unit, the operations before it from `begins` on."""
        counts = np.diff(begins, append=len(before))
        self._operations, self._unit = operations, unit if len(unit) > len(begins) else None
        self._before, self._begins = [before], begins
        if (most := int(counts.max())) <= _FEW:  # then a gather for each is faster than `reduceat`
            self._before = [before[begins + np.minimum(each, counts - 1)] for each in range(most)]

    def add_starts(self, ends: Column) -> None:
        """Adds the time at which its operations begin to their durations."""
        starts = ends[self._before[0]]
        for each in self._before[1:]:
            np.maximum(starts, ends[each], out=starts)
        if len(starts) > len(self._begins):
            starts = np.maximum.reduceat(starts, self._begins)
        ends[self._operations] += starts if self._unit is None else starts[self._unit]


class Replay:
    """Simulates the steps of a job with given durations. Arrays are in the order of `order`, not of the operations.

    Attributes:
        order: indices of the operations.
        duration_ns: of each operation; of a transfer from the last arrival.
        is_work: whether it is work of one rank.
        steps: numbers of the steps.
    """

    def __init__(self, operations: Operations) -> None:
        by_time = _order(number_rows(operations.step, operations.rank), operations.start_ns)
        rank, step, start_ns, group = (
            getattr(operations, name)[by_time] for name in ("rank", "step", "start_ns", "group")
        )
        end_ns = operations.end_ns[by_time]
        rows = len(by_time)
        is_work = group < 0
        first = np.r_[True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1])]
        self.steps, step = np.unique(step, return_inverse=True)
        unit, arrival_ns = _units(is_work, step, group, start_ns)
        duration_ns = np.maximum(end_ns - arrival_ns, 0)
        before, after = _edges(is_work, first, unit, start_ns, end_ns)
        level = _levels(int(unit.max()) + 1, rows, unit, before, after)
        # Units by level, operations by unit: then each level is a slice.
        units = _order(level)
        new_unit = np.empty_like(units)
        new_unit[units] = np.arange(len(units))
        unit = new_unit[unit]
        order = _order(unit)
        place = np.empty_like(order)
        place[order] = np.arange(rows)
        self.order, self.duration_ns, self.is_work = by_time[order], duration_ns[order], is_work[order]
        unit = unit[order]
        before, after = place[before], new_unit[after]
        edges = _order(after)
        before, after = before[edges], after[edges]
        bounds = np.searchsorted(level[units], np.arange(1, int(level.max()) + 2))
        op_bounds, edge_bounds = np.searchsorted(unit, bounds), np.searchsorted(after, bounds)
        begins = np.searchsorted(after, np.arange(len(units)))
        self._levels = [
            _Level(
                slice(op_bounds[each], op_bounds[each + 1]),
                unit[op_bounds[each] : op_bounds[each + 1]] - bounds[each],
                before[edge_bounds[each] : edge_bounds[each + 1]],
                begins[bounds[each] : bounds[each + 1]] - edge_bounds[each],
            )
            for each in range(len(bounds) - 1)
        ]
        step = step[order]
        self._by_step = _order(step)
        self._step_begins = np.searchsorted(step[self._by_step], np.arange(len(self.steps)))

    def mean_step_ns(self, duration_ns: Column) -> float:
        """The mean duration of a step if operations took `duration_ns`."""
        ends = duration_ns.astype(np.float64)
        for level in self._levels:
            level.add_starts(ends)
        return float(np.maximum.reduceat(ends[self._by_step], self._step_begins).mean())


def number_rows(*columns: Column) -> Column:
    """Equal numbers, 0 or more, for rows with equal values in all columns. They are below 16 per row."""
    rows = len(columns[0])
    number, count = np.zeros(rows, np.int64), 1
    for each in columns:
        if each.dtype.kind not in "iu" or rows == 0 or int(each.max()) - int(each.min()) >= 16 * rows:
            each = np.unique(each, return_inverse=True)[1]
        low, width = (int(each.min()), int(each.max()) - int(each.min()) + 1) if rows else (0, 1)
        number, count = number * width + (each - low), count * width
        if count > 16 * rows:
            values, number = np.unique(number, return_inverse=True)
            count = len(values)
    return number


def _order(*columns: Column) -> Column:
    """Rows sorted by the first column, then by the next, then as given. One number sorts faster than `lexsort`."""
    key, count = np.zeros(len(columns[0]), np.int64), 1
    for each in (*columns, np.arange(len(key))) if len(key) else ():
        low, width = int(each.min()), int(each.max()) - int(each.min()) + 1
        if (count := count * width) >= 1 << 62:
            return np.lexsort(columns[::-1])
        key = key * width + (each - low)
    return np.argsort(key)


def _units(is_work: Column, step: Column, group: Column, start_ns: Column) -> tuple[Column, Column]:
    """The unit that an operation begins with: its own, or that of its transfer. And when the last member began it."""
    unit = np.cumsum(is_work) - 1
    arrival_ns = start_ns.copy()
    moves = np.flatnonzero(~is_work)
    if len(moves):
        by_group = moves[_order(step[moves], group[moves])]
        new = np.r_[True, np.diff(group[by_group]) | np.diff(step[by_group])] != 0
        number = np.cumsum(new) - 1
        unit[by_group] = number + np.count_nonzero(is_work)
        arrival_ns[by_group] = np.maximum.reduceat(start_ns[by_group], np.flatnonzero(new))[number]
    return unit, arrival_ns


def _edges(is_work: Column, first: Column, unit: Column, start_ns: Column, end_ns: Column) -> tuple[Column, Column]:
    """Pairs of an operation and a unit that waits for it."""
    rows = np.arange(len(is_work))
    begin = np.maximum.accumulate(np.where(first, rows, 0))
    end = np.r_[rows[1:][first[1:]], len(rows)][np.cumsum(first) - 1]
    follows_move = ~first & ~np.r_[True, is_work[:-1]]
    # Transfers of a rank that overlap form a wave; a wave waits for the one before it.
    overlaps = ~is_work & follows_move & (np.r_[0, end_ns[:-1]] > start_ns)
    wave = np.maximum.accumulate(np.where(overlaps, 0, rows))
    in_later_wave = ~is_work & follows_move[wave]
    last_work = np.r_[-1, np.maximum.accumulate(np.where(is_work, rows, -1))[:-1]]
    after_work = (last_work >= begin) & ~in_later_wave & ~(is_work & follows_move)
    next_work = np.minimum.accumulate(np.where(is_work, rows, len(rows))[::-1])[::-1]
    before_work = ~is_work & (next_work < end)
    before = np.concatenate((last_work[after_work], rows[before_work], wave[in_later_wave] - 1))
    after = unit[np.concatenate((rows[after_work], next_work[before_work], rows[in_later_wave]))]
    differ = unit[before] != after
    return before[differ], after[differ]


def _levels(units: int, rows: int, unit: Column, before: Column, after: Column) -> Column:
    """The level of each unit: one more than the highest level of what it waits for.

    Raises:
        InvalidArgument: operations wait for each other in a circle.
    """
    before = unit[before]
    by_before = _order(before)
    before, after = before[by_before], after[by_before]
    begins = np.searchsorted(before, np.arange(units + 1))
    waits = np.bincount(after, minlength=units)
    level = np.zeros(units, np.int64)
    ready = np.flatnonzero(waits == 0)
    done = number = 0
    while len(ready):
        level[ready] = number
        done += len(ready)
        number += 1
        begin, count = begins[ready], begins[ready + 1] - begins[ready]
        ends = np.cumsum(count)
        freed, times = np.unique(
            after[np.repeat(begin - ends + count, count) + np.arange(ends[-1])], return_counts=True
        )
        waits[freed] -= times
        ready = freed[waits[freed] == 0]
    if done < units:
        raise InvalidArgument(
            f"{units - done:,} of {rows:,} operations wait for each other in a circle; "
            "accepted are operations whose ranks take part in their transfers in the same order"
        )
    return level
