# SPDX-License-Identifier: Apache-2.0
"""Differences of means on series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.stats.means import effective_rows, holm, welch


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
    assert holm(np.array([0.001, 0.02, 0.9, 0.012]), 0.05).tolist() == [True, True, False, True]
    assert holm(np.array([0.02, 0.02, 0.02]), 0.05).tolist() == [False, False, False]
    assert holm(np.array([]), 0.05).tolist() == []


def test_a_column_that_no_other_moves_with_is_known_by_itself() -> None:
    before, after = np.random.default_rng(1).normal(100.0, 5.0, (2, 30, 4))
    alone, without = welch(before, after, 0.95, groups=np.arange(4)), welch(before, after, 0.95)
    np.testing.assert_allclose(alone, without)
