# SPDX-License-Identifier: Apache-2.0
"""In which order two functions take turns, and what the turns say of their ratio."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# What takes turns: the first function, the second, and the first again as a control that must show no difference.
A, B, CONTROL = 0, 1, 2
FUNCTION = np.array([0, 1, 0], dtype=np.uint32)
ARMS = len(FUNCTION)
# Calls of an arm in a block: one on the way there and one on the way back, or more where the clock is coarse.
FEWEST_CALLS, MOST_CALLS = 2, 32


def order(random: np.random.Generator, blocks: int, calls: int) -> NDArray[np.uint32]:
    """The arms of all calls of some blocks.

    A block is made of palindromes, as ABCCBA, each of a random order: whatever drifts steadily takes the same from each
    arm, and whatever does not meets each arm by chance alone.

    Args:
        random: where the orders come from.
        blocks: how many.
        calls: of each arm in a block, an even number.
    """
    there = random.permuted(np.tile(np.arange(ARMS, dtype=np.uint32), (blocks * calls // 2, 1)), axis=1)
    return np.concatenate([there, there[:, ::-1]], axis=1).reshape(-1)


def calls_per_block(seconds: NDArray[np.float64], arms: NDArray[np.uint32], tick: float) -> int:
    """How many calls of an arm hide the clock's tick in a block's mean.

    Its steps then are a small part of its own variation, and it is no longer skewed as two neighbouring ticks are.
    """
    spreads = []
    for arm in (A, B):
        own = seconds[(arms == arm) & np.isfinite(seconds)]
        spreads.append(float(np.quantile(own, 0.84) - np.quantile(own, 0.16)) / 2 if len(own) else 0.0)
    spread = max(min(spreads), tick / 4)
    wanted = 8 * (tick / spread) ** 2 if tick else 0.0
    return int(min(max(2 * math.ceil(wanted / 2), FEWEST_CALLS), MOST_CALLS))


def log_ratios(
    seconds: NDArray[np.float64], arms: NDArray[np.uint32], calls: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per block, the logarithm of B's mean over A's, and of the control's over A's.

    Args:
        seconds: of whole blocks, in the order called; nan where a call is not valid. Blocks without a valid call of
            each arm are left out.
        arms: of the same calls.
        calls: of each arm in a block.
    """
    rows, own = seconds.reshape(-1, ARMS * calls), arms.reshape(-1, ARMS * calls)
    valid = np.isfinite(rows)
    sums = [np.where(valid & (own == arm), rows, 0.0).sum(axis=1) for arm in range(ARMS)]
    counts = [(valid & (own == arm)).sum(axis=1) for arm in range(ARMS)]
    whole = np.logical_and.reduce([(count > 0) & (total > 0) for count, total in zip(counts, sums, strict=True)])
    a, b, control = (np.log(total[whole] / count[whole]) for total, count in zip(sums, counts, strict=True))
    return b - a, control - a
