# SPDX-License-Identifier: Apache-2.0
"""Randomised blocks of two functions' turns: their order, and what they allow to be said of the ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats

# What takes turns: the first function, the second, and the first again as a control that must show no difference.
A, B, CONTROL = 0, 1, 2
FUNCTION = np.array([0, 1, 0], dtype=np.uint32)
ARMS = len(FUNCTION)
# Calls of an arm in a block: one on the way there and one on the way back, or more where the clock is coarse.
FEWEST_CALLS, MOST_CALLS = 2, 32

Verdict = Literal["faster", "slower", "same", "inconclusive"]

CONFIDENCE = 0.95
"""Of the interval that is reported, all looks taken together."""
LOOKS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""When the blocks are looked at, as shares of the time for them."""
FEWEST_BLOCKS = 10
# A longer wait than so many times the one there was is no advice.
MOST_PATIENCE = 1000.0


def order(random: np.random.Generator, blocks: int, calls: int) -> NDArray[np.uint32]:
    """The arms of all calls of some blocks.

    A block is made of palindromes, as ABCCBA, each of a random order: whatever drifts steadily takes the same from each
    arm, and whatever does not affects each arm by chance alone.

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


class Looks:
    """The chance of error that is left for the next look.

    Whoever looks again and again, and stops when the result pleases, errs more often than a single look would. So the
    5 % are shared out: after a share t of the time, all looks together may have erred in t x 5 % of all cases. It is
    the linear member of the family of K. Kim and D. L. DeMets, Biometrika 74 (1987), its increments added up, which
    holds however the looks depend on each other.
    """

    def __init__(self) -> None:
        self._spent = 0.0

    def confidence(self, share: float) -> float:
        """The confidence of a look after this share of the time; what looks not taken would have spent is in it."""
        level = max((1 - CONFIDENCE) * min(share, 1.0) - self._spent, 1e-9)
        self._spent += level
        return 1 - level


@dataclass(frozen=True)
class Judgement:
    """What one look found.

    Attributes:
        verdict: on b over a.
        ratio: b over a.
        null: the control over a, which is 1 but for noise.
        margin: ratios this close to 1 are taken as no difference, as a fraction.
        biased: the control itself showed a difference, and the margin was widened to it.
        noisy: the control's interval reaches beyond the margin.
    """

    verdict: Verdict
    ratio: stats.Ratio
    null: stats.Ratio
    margin: float
    biased: bool
    noisy: bool


def judge(
    logs: NDArray[np.float64], null_logs: NDArray[np.float64], margin: float, confidence: float, step: float
) -> Judgement:
    """The verdict on blocks.

    A difference must lie outside of the margin, and of what the control shows. Equivalence is the interval inside of
    the margin, which is two one-sided tests at half the level each.

    Args:
        logs: log-ratios of b over a, at least one.
        null_logs: of the control over a.
        margin: a fraction.
        confidence: of this look.
        step: what the clock's tick may hide of a ratio where all blocks are the same, as a fraction.
    """
    ratio, null = _ratio(logs, confidence, step), _ratio(null_logs, confidence, step)
    reach = max(abs(_log(null.low)), abs(_log(null.high)))
    biased = null.low > 1 or null.high < 1
    inner = math.log1p(margin)
    if biased:
        inner = max(inner, reach)
    outer = max(inner, reach)
    low, high = _log(ratio.low), _log(ratio.high)
    verdict: Verdict = "inconclusive"
    if low > outer:
        verdict = "slower"
    elif high < -outer:
        verdict = "faster"
    elif -inner <= low and high <= inner:
        verdict = "same"
    return Judgement(verdict, ratio, null, math.expm1(inner), biased, reach > math.log1p(margin))


def patience(judgement: Judgement) -> float | None:
    """How many times as long a comparison would take to settle, by the square-root law; None when no time would do."""
    low, high = _log(judgement.ratio.low), _log(judgement.ratio.high)
    if not math.isfinite(high - low):
        return None
    away = abs(abs(_log(judgement.ratio.value)) - math.log1p(judgement.margin))
    factor = ((high - low) / 2 / away) ** 2 if away else math.inf
    return max(factor, 1.5) if factor <= MOST_PATIENCE else None


def _ratio(logs: NDArray[np.float64], confidence: float, step: float) -> stats.Ratio:
    """The paired ratio, of groups of blocks where neighbouring ones repeat each other and enough groups remain."""
    size = max(1, min(round(stats.autocorrelation_time(logs)), len(logs) // FEWEST_BLOCKS))
    means = logs[: len(logs) // size * size].reshape(-1, size).mean(axis=1)
    found = stats.paired_ratio(means, confidence=confidence)
    low, high = found.low, found.high
    if low == high:
        low, high = low * math.exp(-step), high * math.exp(step)
    return stats.Ratio(found.value, low, high, len(logs), found.p)


def _log(value: float) -> float:
    if value <= 0:
        return -math.inf
    return math.log(value) if math.isfinite(value) else math.inf
