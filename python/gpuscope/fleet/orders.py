# SPDX-License-Identifier: Apache-2.0
"""Ranks that call collectives of two communicators in another order than the others: this can hang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.fleet.fences import first_rows, sorted_rows
from gpuscope.fleet.tables import Array

_LEAST_STEPS = 2
_LEAST_SHARE = 0.5  # of the steps: threads of one process may take turns by chance


@dataclass(frozen=True)
class SwappedOrder:
    """A rank that first calls on one communicator, where most ranks with both first call on the other.

    Attributes:
        rank: its number.
        first: communicator that it calls first.
        second: communicator that it calls later in the step.
        kinds: the first call on each in the step, in its order.
        step: the first such step.
        steps: number of such steps.
        ranks: number of ranks that have both communicators.
        has_majority: whether most of them have the other order; with two ranks either may be wrong.
    """

    rank: int
    first: int
    second: int
    kinds: tuple[str, str]
    step: int
    steps: int
    ranks: int
    has_majority: bool


def find_swapped_orders(collectives: Mapping[str, Any]) -> tuple[SwappedOrder, ...]:
    """Compares in each step the order of the first calls on the host.

    Args:
        collectives: columns rank, step, communicator, kind and called_ns; calls with unknown time are left out.
    """
    rows = np.flatnonzero((collectives["called_ns"] >= 0) & (collectives["step"] >= 0))
    rank, step, communicator, called = (
        collectives[name][rows] for name in ("rank", "step", "communicator", "called_ns")
    )
    if not ((np.diff(called) >= 0) | (rank[1:] != rank[:-1])).all():
        order = np.lexsort((called, rank))
        rows, rank, step = rows[order], rank[order], step[order]
        communicator, called = communicator[order], called[order]
    order = sorted_rows(rank, step, communicator)  # keeps calls of one communicator in the order of time
    first = order[first_rows(rank[order], step[order], communicator[order])]
    first = first[np.lexsort((called[first], step[first], rank[first]))]
    pairs = _pairs(rank[first], step[first])
    one, other = first[pairs[:, 0]], first[pairs[:, 1]]  # in the order of their calls
    low, high = np.minimum(communicator[one], communicator[other]), np.maximum(communicator[one], communicator[other])
    group = _groups(low, high, step[one])
    ascends = communicator[one] == low
    size, ups = np.bincount(group), np.bincount(group, ascends)
    with_own = np.where(ascends, ups[group], size[group] - ups[group])
    odd = np.flatnonzero((with_own < size[group]) & (2 * with_own <= size[group]))
    found: dict[tuple[int, int, int], list[int]] = {}
    for at in odd.tolist():
        key = (int(rank[one[at]]), int(communicator[one[at]]), int(communicator[other[at]]))
        found.setdefault(key, []).append(at)
    shared = _groups(rank[one], low, high)
    together = np.bincount(shared)
    kinds = collectives["kind"][rows]
    return tuple(
        SwappedOrder(
            rank=key[0],
            first=key[1],
            second=key[2],
            kinds=(str(kinds[one[at[0]]]), str(kinds[other[at[0]]])),
            step=int(step[one[at[0]]]),
            steps=len(at),
            ranks=int(size[group[at[0]]]),
            has_majority=bool(2 * with_own[at[0]] < size[group[at[0]]]),
        )
        for key, at in sorted(found.items())
        if len(at) >= max(_LEAST_STEPS, _LEAST_SHARE * together[shared[at[0]]])
    )


def _groups(*keys: Array) -> Array:
    """The number of the group of equal keys that each row is in."""
    order = sorted_rows(*keys)
    first = first_rows(*(key[order] for key in keys))
    found = np.empty(len(order), np.int64)
    found[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    return found


def _pairs(rank: Array, step: Array) -> Array:
    """All pairs of positions of one rank and step, which are contiguous."""
    found = [np.zeros((0, 2), np.int64)]
    for apart in range(1, len(rank)):
        at = np.flatnonzero((rank[apart:] == rank[:-apart]) & (step[apart:] == step[:-apart]))
        if not len(at):
            break
        found.append(np.stack([at, at + apart], axis=1))
    return np.concatenate(found)
