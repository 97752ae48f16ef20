# SPDX-License-Identifier: Apache-2.0
"""Times of work that was visited several times, on visits whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuscope.benchmarking import visits


def drawn(seed, runs, count, effect, seconds=1e-5):
    """Seconds of each visit, a row a run."""
    return seconds * np.random.default_rng(seed).lognormal(0, effect, (runs, count))


def test_the_interval_is_students():
    found = visits.estimate([0.9, 1.0, 1.1], 300)
    logs = np.log([0.9, 1.0, 1.1])
    half = 4.303 * logs.std(ddof=1) / math.sqrt(3)
    assert math.log(found.high / found.value) == pytest.approx(half, rel=1e-3)
    assert math.log(found.value / found.low) == pytest.approx(half, rel=1e-3)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(count):
    found = [visits.estimate(each, 100) for each in drawn(count, 1000, count, 0.03)]
    assert 0.93 <= sum(each.low <= 1e-5 <= each.high for each in found) / 1000 <= 0.97


def test_a_single_visit_has_no_interval():
    found = visits.estimate([1.0], 500)
    assert (found.value, found.low, found.high) == (1.0, -math.inf, math.inf)


def test_visits_that_are_all_the_same_give_half_a_tick():
    found = visits.estimate([1.0, 1.0, 1.0], 300, tick=0.1)
    assert (found.low, found.high) == pytest.approx((0.95, 1.05))


def test_the_interval_of_a_time_of_zero_is_finite():
    found = visits.estimate([0.0, 0.0], 2)
    assert found.low == found.high == pytest.approx(visits.SHORTEST)


@pytest.mark.parametrize(("above", "below"), [((6, 0.03), (6, 0.03)), ((4, 0.03), (12, 0.003))])
def test_equals_are_seldom_told_apart(above, below):
    pairs = zip(drawn(1, 1000, *above), drawn(2, 1000, *below), strict=True)
    told = [ratio.low > 1 or ratio.high < 1 for ratio in (visits.ratio(a, b, 0.95) for a, b in pairs)]
    assert 0.03 <= sum(told) / 1000 <= 0.07


def test_p_is_small_as_often_as_it_says():
    pairs = zip(drawn(1, 1000, 6, 0.03), drawn(2, 1000, 6, 0.03), strict=True)
    small = [visits.ratio(a, b).p < 0.05 for a, b in pairs]
    assert 0.035 <= sum(small) / 1000 <= 0.065


def test_a_ratio_with_a_single_visit_has_no_interval():
    found = visits.ratio([2.0], [1.0, 1.01])
    assert (found.low, found.high, found.p, found.n) == (0.0, math.inf, 1.0, 1)


def test_different_times_without_any_noise_are_told_apart():
    found = visits.ratio([2.0, 2.0], [1.0, 1.0])
    assert (found.value, found.low, found.high, found.p) == (2.0, 2.0, 2.0, 0.0)
