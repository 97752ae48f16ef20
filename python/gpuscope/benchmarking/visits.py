# SPDX-License-Identifier: Apache-2.0
"""Estimates the time of work that was visited several times, and compares two such times.

All calls of a visit share its clocks, memory placement and cache contents. So a visit counts as one observation, the
centre of its calls, and intervals are from the differences between visits. Logarithms are used, as these conditions
change a time by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope import stats
from gpuscope.stats.distributions import normal_two_sided, student_factor

CONFIDENCE = 0.95
SHORTEST = 1e-9  # seconds; a clock that saw less saw nothing


@dataclass(frozen=True)
class Level:
    """The logarithm of a time or of a ratio of times, estimated from visits.

    Attributes:
        value: the mean.
        error: its standard error.
        freedom: degrees of freedom of the error; 0 for a single visit.
    """

    value: float
    error: float
    freedom: float

    def half_width(self, confidence: float) -> float:
        """Half of Student's interval; infinite for a single visit. Degrees of freedom are rounded down."""
        return student_factor(confidence, math.floor(self.freedom)) * self.error if self.freedom >= 1 else math.inf


def level(visits: ArrayLike) -> Level:
    """The level of the seconds of each visit."""
    logs = np.log(np.maximum(np.asarray(visits, dtype=np.float64), SHORTEST))
    count = len(logs)
    error = float(logs.std(ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    return Level(float(logs.mean()), error, count - 1.0)


def difference(above: Level, below: Level) -> Level:
    """The logarithm of the ratio of two times with unequal variances.

    Degrees of freedom: B. L. Welch, The generalization of "Student's" problem when several different population
    variances are involved, Biometrika 34 (1947).
    """
    value = above.value - below.value
    if min(above.freedom, below.freedom) < 1:
        return Level(value, math.inf, 0.0)
    squares = above.error**2, below.error**2
    weighed = squares[0] ** 2 / above.freedom + squares[1] ** 2 / below.freedom
    freedom = sum(squares) ** 2 / weighed if weighed else above.freedom + below.freedom
    return Level(value, math.sqrt(sum(squares)), freedom)


def estimate(visits: ArrayLike, samples: int, tick: float = 0.0) -> stats.Estimate:
    """The time with its interval: infinite for a single visit, +- half a tick if all are equal."""
    found = level(visits)
    value = math.exp(found.value)
    half = found.half_width(CONFIDENCE)
    low, high = (value * math.exp(-half), value * _exp(half)) if half < math.inf else (-math.inf, math.inf)
    if not found.error:
        low, high = value - tick / 2, value + tick / 2
    return stats.Estimate(value, low, high, samples, found.freedom + 1, "mean of visits", CONFIDENCE)


def ratio(above: ArrayLike, below: ArrayLike, confidence: float = CONFIDENCE) -> stats.Ratio:
    """The ratio of two times, given the seconds of each visit."""
    found = difference(level(above), level(below))
    half = found.half_width(confidence)
    n = min(np.size(above), np.size(below))
    return stats.Ratio(math.exp(found.value), _exp(found.value - half), _exp(found.value + half), n, _two_sided(found))


def draws(levels: Sequence[Level], count: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draws of the true levels, one row per draw, by generalized pivotal quantities.

    S. Weerahandi, Generalized confidence intervals, Journal of the American Statistical Association 88 (1993).
    """
    values, errors, freedoms = np.array([(each.value, each.error, each.freedom) for each in levels]).T
    drawn: NDArray[np.float64] = values + errors * generator.standard_t(freedoms, (count, len(levels)))
    return drawn


def _two_sided(found: Level) -> float:
    """The two-sided p of a level; after D. L. Wallace, Annals of Mathematical Statistics 30 (1959)."""
    if not found.freedom:
        return 1.0
    if not found.error:
        return 0.0 if found.value else 1.0
    freedom = found.freedom
    spread = math.sqrt(freedom * math.log1p((found.value / found.error) ** 2 / freedom))
    return normal_two_sided((8 * freedom + 1) / (8 * freedom + 3) * spread)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
