# SPDX-License-Identifier: Apache-2.0
"""Spans of time as two integer arrays, starts and ends. "Apart" means: they neither overlap nor touch."""

from __future__ import annotations

import heapq
import sys
from typing import Any

import numpy as np

from gpuscope import _core

Array = np.ndarray[Any, Any]
Spans = tuple[Array, Array]


def count_before(edges: Array, moments: Array, *, equal: bool) -> Array:
    """The number of sorted edges before each moment; with `equal`, also at it."""
    return _core.count_before(edges, moments, equal)


def union(starts: Array, ends: Array) -> Spans:
    """The union of the spans, in order and apart. Empty spans are dropped."""
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    order = np.argsort(starts, kind="stable")
    starts, until = starts[order], np.maximum.accumulate(ends[order])
    if len(starts) == 0:
        return starts, until
    first = np.append(True, starts[1:] > until[:-1])
    return starts[first], until[np.append(first[1:], True)]


def union_ns(starts: Array, ends: Array) -> int:
    """The duration of the union."""
    begins, until = union(starts, ends)
    return int((until - begins).sum())


def in_turn(starts: Array, ends: Array) -> Spans:
    """The spans in order of start, each without the time that earlier ones cover."""
    order = np.argsort(starts, kind="stable")
    starts, until = starts[order], np.maximum.accumulate(ends[order])
    begins = np.maximum(starts, np.append(starts[:1], until[:-1]))
    return begins, np.maximum(until, begins)


def has_overlap(starts: Array, ends: Array) -> bool:
    """Whether any two spans overlap."""
    order = np.argsort(starts, kind="stable")
    return bool((starts[order][1:] < np.maximum.accumulate(ends[order])[:-1]).any())


def covered_ns(starts: Array, ends: Array, begins: Array, until: Array) -> Array:
    """The time from each of `begins` to its `until` that the spans cover. Spans are in order and apart."""
    if len(starts) == 0:
        return np.zeros(len(begins), np.int64)
    before = np.append(0, np.cumsum(ends - starts))

    def covered_by(moments: Array) -> Array:
        at = count_before(starts, moments, equal=True) - 1
        last = np.maximum(at, 0)
        return np.where(at >= 0, before[last] + np.minimum(moments, ends[last]) - starts[last], 0)

    found: Array = covered_by(until) - covered_by(begins)
    return found


def expand(first: Array, count: Array) -> tuple[Array, Array]:
    """Pairs of an entry and one of its places: each entry has `count` places, from `first` on."""
    entry = np.repeat(np.arange(len(count)), count)
    return entry, np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(entry))


def overlaps(spans: Spans, begins: Array, until: Array) -> tuple[Array, Array]:
    """Pairs of a row of `begins` and a span that overlap. Spans are in order and do not overlap each other."""
    first = count_before(spans[1], begins, equal=True)
    return expand(first, np.maximum(count_before(spans[0], until, equal=False) - first, 0))


def intersection(spans: Spans, others: Spans) -> Spans:
    """The intersection. Both inputs are in order and apart."""
    begins, until = others
    each, span = overlaps(spans, begins, until)
    return np.maximum(begins[each], spans[0][span]), np.minimum(until[each], spans[1][span])


def free_lanes(starts: Array, ends: Array, *, shortest: int = 0, most: int = sys.maxsize) -> Array:
    """The first lane that is free at each start. Starts are in order.

    Args:
        starts: in order.
        ends: likewise.
        shortest: least time for which a span takes its lane, if any spans overlap.
        most: number of lanes. Spans that find none free are in the last one.
    """
    found = np.zeros(len(starts), np.int64)
    if not has_overlap(starts, ends):
        return found
    taken: list[tuple[int, int]] = []  # until when, and the lane
    free: list[int] = []
    count = 0
    for row, (start, end) in enumerate(zip(starts.tolist(), np.maximum(ends, starts + shortest).tolist(), strict=True)):
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if not free and count == most:
            found[row] = most - 1
            continue
        if not free:
            free, count = [count], count + 1
        found[row] = lane = heapq.heappop(free)
        heapq.heappush(taken, (end, lane))
    return found
