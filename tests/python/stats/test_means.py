# SPDX-License-Identifier: Apache-2.0
"""Differences of means on series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.stats.means import effective_rows, holm, of_known_variance, variance_of_samples, variance_of_sums, welch


def coverage(rows: int, like: float, columns: int = 4000) -> float:
    """How often the interval of a difference of 1 holds it, where each row repeats a share of the one before."""
    random = np.random.default_rng(rows)
    sides = []
    for mean in (10.0, 11.0):
        values = random.standard_normal((rows, columns))
        for row in range(1, rows):
            values[row] = like * values[row - 1] + np.sqrt(1 - like**2) * values[row]
        sides.append(values + mean)
    half, _ = welch(sides[0], sides[1], 0.95)
    difference = sides[1].mean(axis=0) - sides[0].mean(axis=0)
    return float((np.abs(difference - 1.0) <= half).mean())


@pytest.mark.parametrize(("rows", "like"), [(5, 0.0), (20, 0.0), (100, 0.0), (30, 0.5), (100, 0.5), (128, 0.8)])
def test_intervals_hold_the_difference(rows: int, like: float) -> None:
    assert coverage(rows, like) >= 0.93


def test_chances_of_equals_are_even() -> None:
    random = np.random.default_rng(1)
    _, chance = welch(random.standard_normal((15, 4000)), random.standard_normal((15, 4000)), 0.95)
    for level in (0.5, 0.1, 0.01):
        assert (chance <= level).mean() <= 1.15 * level + 0.003


def test_values_without_spread_differ_by_more_than_a_tick_or_not_at_all() -> None:
    before, after = np.full((5, 3), 100.0), np.full((5, 3), [100.0, 101.0, 1100.0])
    _, chance = welch(before, after, 0.95, tick=32.0)
    assert (chance < 0.01).tolist() == [False, False, True]


def test_rows_that_repeat_each_other_count_for_fewer() -> None:
    assert effective_rows(np.repeat(np.random.default_rng(1).standard_normal((5, 1)), 20, axis=0))[0] < 20
    assert effective_rows(np.random.default_rng(1).standard_normal((100, 200))).mean() > 85
    assert effective_rows(np.ones((10, 1)))[0] > 8


def test_holm_stops_at_the_first_that_is_not_sure() -> None:
    def sure(*chances: float) -> list[bool]:
        return list(np.array(chances) <= holm(np.array(chances), 0.05))

    assert sure(0.001, 0.02, 0.9, 0.012) == [True, True, False, True]
    assert sure(0.02, 0.02, 0.02) == [False, False, False]
    assert sure() == []


def test_a_heavy_test_loses_nothing_to_many_light_ones() -> None:
    chance, weights = np.array([0.02, *[0.5] * 1000]), np.array([1000.0, *[0.1] * 1000])
    assert (chance <= holm(chance, 0.05, weights)).tolist() == [True] + [False] * 1000
    assert not (chance <= holm(chance, 0.05)).any()


def test_weighted_tests_of_equals_name_any_in_one_family_of_twenty() -> None:
    random = np.random.default_rng(3)
    weights = random.exponential(size=50) ** 3
    named = [bool((chance <= holm(chance, 0.05, weights)).any()) for chance in random.random((4000, 50))]
    assert np.mean(named) == pytest.approx(0.05, abs=0.01)


def test_differences_of_known_variance_are_judged_by_the_normal_distribution() -> None:
    half, chance = of_known_variance(np.array([0.0, 5.0]), np.full(2, 25.0), np.array([0.95, 0.99]))
    np.testing.assert_allclose(half, [1.96 * 5, 2.576 * 5], rtol=1e-3)
    np.testing.assert_allclose(chance, [1.0, 0.3173], rtol=1e-3)


def test_the_variance_of_a_sum_is_that_of_independent_values_and_not_of_their_drift() -> None:
    random = np.random.default_rng(1)
    groups = np.tile([0, 1], 500)
    drift = np.repeat(np.arange(500.0), 2) * (groups == 1)
    variance = variance_of_sums(random.normal(0.0, 2.0, 1000) + drift, groups, 3)
    np.testing.assert_allclose(variance[:2], 500 * 4.0, rtol=0.25)
    assert variance[2] == 0


def test_samples_that_alternate_are_uncertain_as_shares_are_and_long_stretches_by_a_sample() -> None:
    random = np.random.default_rng(2)
    mixed = (random.random(4000) < 0.3).astype(np.int64)
    np.testing.assert_allclose(variance_of_samples(mixed, np.ones(4000), 2), 4000 * 0.3 * 0.7, rtol=0.1)
    assert variance_of_samples(np.repeat([0, 1, 2], 1000), np.ones(3000), 3).tolist() == [0.5, 1.0, 0.5]


def test_a_column_that_no_other_moves_with_is_known_by_itself() -> None:
    before, after = np.random.default_rng(1).normal(100.0, 5.0, (2, 30, 4))
    alone, without = welch(before, after, 0.95, groups=np.arange(4)), welch(before, after, 0.95)
    np.testing.assert_allclose(alone, without)
