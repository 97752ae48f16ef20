# SPDX-License-Identifier: Apache-2.0
"""How times are distributed: quantiles, each with an interval where there are enough samples for one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, lgamma, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope import stats
from gpuscope.errors import InvalidArgument

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Quantile:
    """A quantile in seconds.

    Attributes:
        q: which, as 0.99.
        value: of the samples, interpolated as ``numpy.quantile`` does.
        low: where its 95 % interval begins; None when the samples are too few to say.
        high: where it ends.
        why: why there is no interval; empty when there is.
    """

    q: float
    value: float
    low: float | None
    high: float | None
    why: str

    def __float__(self) -> float:
        return self.value

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"q": self.q, "value": self.value, "low": self.low, "high": self.high, "why": self.why}


class Distribution:
    """Some times and their statistics, all in seconds.

    Args:
        samples: in the order they were taken, at least one.

    Attributes:
        samples: float64, seconds.
    """

    def __init__(self, samples: ArrayLike) -> None:
        self.samples: NDArray[np.float64] = np.asarray(samples, dtype=np.float64)
        if not self.samples.size:
            raise InvalidArgument("samples are empty; accepted is at least one")

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def mean(self) -> float:
        """Mean."""
        return float(self.samples.mean())

    @property
    def std(self) -> float:
        """Standard deviation of these samples, as ``numpy.std`` gives it."""
        return float(self.samples.std())

    @property
    def median(self) -> float:
        """Median; ``p50`` has its interval."""
        return float(np.median(self.samples))

    @property
    def minimum(self) -> float:
        """Shortest."""
        return float(self.samples.min())

    @property
    def maximum(self) -> float:
        """Longest."""
        return float(self.samples.max())

    @property
    def p50(self) -> Quantile:
        """Median."""
        return self.quantile(0.5)

    @property
    def p90(self) -> Quantile:
        """90th percentile."""
        return self.quantile(0.9)

    @property
    def p95(self) -> Quantile:
        """95th percentile."""
        return self.quantile(0.95)

    @property
    def p99(self) -> Quantile:
        """99th percentile."""
        return self.quantile(0.99)

    @cached_property
    def independent(self) -> int:
        """How many independent samples these are worth."""
        return max(int(len(self.samples) / stats.autocorrelation_time(self.samples)), 1)

    def quantile(self, q: float) -> Quantile:
        """Any quantile, 0 < q < 1, with the interval between order statistics that holds it in 95 % of cases.

        No shape is assumed: how many samples lie below the true quantile is binomial (H. A. David and H. N. Nagaraja,
        Order Statistics, 3rd edition, 7.1), with the number of independent samples as its count.

        Raises:
            InvalidArgument: q is out of range.
        """
        if not 0 < q < 1:
            raise InvalidArgument(f"q is {q}; accepted are fractions above 0 and below 1")
        value = float(np.quantile(self.samples, q))
        n = self.independent
        needed = fewest_samples(q)
        if n < needed:
            worth = "" if n == len(self) else f", worth {n} independent ones,"
            return Quantile(
                q, value, None, None, f"p{100 * q:g} of {len(self)} samples{worth} has no interval: {needed} are needed"
            )
        ordered = np.sort(self.samples)
        stretch = len(ordered) / n
        low, high = (ordered[min(int((rank - 1) * stretch), len(ordered) - 1)] for rank in ranks(n, q))
        return Quantile(q, value, float(min(low, value)), float(max(high, value)), "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values in seconds, ready for JSON, with the samples."""
        return {
            "n": len(self),
            "mean": self.mean,
            "std": self.std,
            "median": self.median,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "quantiles": [quantile.to_dict() for quantile in (self.p50, self.p90, self.p95, self.p99)],
            "samples": self.samples.tolist(),
        }


def fewest_samples(q: float) -> int:
    """From how many on the smallest and the largest of them enclose the quantile often enough on both sides.

    All n samples lie below the quantile with probability q^n, which may be half of what the interval may miss.
    """
    return ceil(log((1 - CONFIDENCE) / 2) / log(max(q, 1 - q)))


def ranks(n: int, q: float) -> tuple[int, int]:
    """Ranks, counted from 1, of the order statistics that enclose the quantile of `n` samples."""
    tail = (1 - CONFIDENCE) / 2
    counts = np.arange(n + 1)
    logs = [lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(q) + (n - k) * log(1 - q) for k in range(n + 1)]
    below = np.cumsum([exp(each) for each in logs])
    lower = int(counts[below <= tail][-1]) + 1 if (below <= tail).any() else 1
    upper = int(counts[below >= 1 - tail][0]) + 1
    return lower, min(upper, n)
