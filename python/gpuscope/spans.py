# SPDX-License-Identifier: Apache-2.0
"""Spans of time as two integer arrays, starts and ends. "Apart" means: they neither overlap nor touch."""

from __future__ import annotations

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


def intersection(spans: Spans, others: Spans) -> Spans:
    """The intersection. Both inputs are in order and apart."""
    begins, ends = others
    first = np.searchsorted(spans[1], begins, side="right")
    count = np.maximum(np.searchsorted(spans[0], ends, side="left") - first, 0)
    each = np.repeat(np.arange(len(begins)), count)
    span = np.repeat(first, count) + np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count)
    return np.maximum(begins[each], spans[0][span]), np.minimum(ends[each], spans[1][span])
