# SPDX-License-Identifier: Apache-2.0
"""Ranks that call collectives of two communicators in another order than the others: this can hang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    order = np.lexsort((called, communicator, step, rank))
    new = np.ones(len(order), bool)
    for values in (rank, step, communicator):
        new[1:] &= values[order][1:] == values[order][:-1]
    new = ~new
    new[:1] = True
    first = order[new]  # the first call of each rank, step and communicator
    first = first[np.lexsort((called[first], step[first], rank[first]))]
    pairs = _pairs(rank[first], step[first])
    one, other = first[pairs[:, 0]], first[pairs[:, 1]]  # in the order of their calls
    low, high = np.minimum(communicator[one], communicator[other]), np.maximum(communicator[one], communicator[other])
    _, group = np.unique(np.stack([low, high, step[one]], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    ascends = communicator[one] == low
    size, ups = np.bincount(group), np.bincount(group, ascends)
    with_own = np.where(ascends, ups[group], size[group] - ups[group])
    odd = np.flatnonzero((with_own < size[group]) & (2 * with_own <= size[group]))
    found: dict[tuple[int, int, int], list[int]] = {}
    for at in odd.tolist():
        key = (int(rank[one[at]]), int(communicator[one[at]]), int(communicator[other[at]]))
        found.setdefault(key, []).append(at)
    shared, counts = np.unique(np.stack([rank[one], low, high], axis=1), axis=0, return_counts=True)
    together = {tuple(key): count for key, count in zip(shared.tolist(), counts.tolist(), strict=True)}
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
        if len(at) >= max(_LEAST_STEPS, _LEAST_SHARE * together[key[0], min(key[1:]), max(key[1:])])
    )


def _pairs(rank: Array, step: Array) -> Array:
    """All pairs of positions of one rank and step, which are contiguous."""
    found = [np.zeros((0, 2), np.int64)]
    for apart in range(1, len(rank)):
        at = np.flatnonzero((rank[apart:] == rank[:-apart]) & (step[apart:] == step[:-apart]))
        if not len(at):
            break
        found.append(np.stack([at, at + apart], axis=1))
    return np.concatenate(found)
