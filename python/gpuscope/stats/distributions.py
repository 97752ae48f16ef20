# SPDX-License-Identifier: Apache-2.0
"""Quantiles that intervals need. `scipy.stats` has them too, but is slow to import."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=1024)
def normal_quantile(probability: float) -> float:
    """The standard normal's quantile."""
    return NormalDist().inv_cdf(probability)


def normal_two_sided(z: float) -> float:
    """The probability that a standard normal is further from 0 than `z`."""
    return math.erfc(abs(z) / math.sqrt(2))


@lru_cache(maxsize=4096)
def student_factor(confidence: float, freedom: float) -> float:
    """The t with a share `confidence` of Student's distribution between -t and t.

    After G. W. Hill, Student's t-quantiles, Communications of the ACM 13 (1970), algorithm 396: six digits from
    3 degrees of freedom on; exact at 1 and 2. Between 1 and 2 its logarithm is interpolated linearly in 1 / `freedom`,
    up to 4 % too much.
    """
    p = 1 - confidence
    at_two = math.sqrt(2 / (p * (2 - p)) - 2)
    if freedom < 2:
        at_one = 1 / math.tan(p * math.pi / 2)
        return at_two * math.pow(at_one / at_two, 2 / max(freedom, 1) - 1)
    if freedom == 2:
        return at_two
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = (d * p) ** (2 / freedom)
    if y > 0.05 + a:
        x = normal_quantile(p / 2)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3) + 0.5 / (freedom + 4)) * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)


@lru_cache(maxsize=256)
def median_rank(n: int, confidence: float) -> float:
    """The rank, counted from 1, at which an interval of the median of `n` independent samples begins.

    It ends at the mirrored rank ``n + 1 - rank``. Ranks are fractions, as whole ranks would cover more than the
    confidence: T. P. Hettmansperger and S. J. Sheather, Confidence intervals based on interpolated order statistics,
    Statistics & Probability Letters 4 (1986). Above 200 samples by the normal approximation. Below 1 when `n` is too
    small for any interval of that confidence.
    """
    if n > 200:
        return (n + 1) / 2 - normal_quantile((1 + confidence) / 2) * math.sqrt(n) / 2
    # covered(d) is how often the d-th smallest and the d-th largest sample enclose the median.
    below, rank = 0.5**n, 1
    covered = 1 - 2 * below
    if covered < confidence:
        return 0.0
    while True:
        below += math.exp(math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) - n * math.log(2))
        next_covered = 1 - 2 * below
        if next_covered < confidence:
            break
        covered, rank = next_covered, rank + 1
    share = (covered - confidence) / (covered - next_covered)
    return rank + (n - rank) * share / (rank + (n - 2 * rank) * share)


@lru_cache(maxsize=256)
def signed_rank_distribution(n: int) -> NDArray[np.float64]:
    """The probability of each sum of the positive ranks 1 to `n` if every sign is a fair coin's."""
    chances = np.zeros(n * (n + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, n + 1):
        chances[rank:] += chances[: len(chances) - rank].copy()
        chances /= 2
    return chances
