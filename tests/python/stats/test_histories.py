# SPDX-License-Identifier: Apache-2.0
"""Changes of level in histories of runs, and the spread between runs, on series whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuscope.stats.histories import Spread, changes, digamma, pooled_spreads, spread_of_changes, trigamma


def noise(seed, *shape, scale=0.02):
    return np.random.default_rng(seed).normal(0, scale, shape)


def test_history_of_one_run_has_no_change():
    assert changes([[1.0]], [0.0]) == [[]]


def test_no_histories_have_no_changes():
    assert changes([], []) == []


def test_each_change_of_level_is_found_where_it_is():
    levels = np.repeat([0.0, 0.3, -0.2], [6, 5, 7])
    assert changes([levels + noise(1, 18)], [0.0]) == [[6, 11]]


def test_single_run_that_is_off_is_a_level_of_its_own():
    history = noise(2, 12)
    history[7] += 1.0
    assert changes([history], [0.0]) == [[7, 8]]


def test_change_in_the_last_run_is_found_with_the_scale_of_the_other_histories():
    histories = noise(3, 100, 3)
    histories[4, 2] -= 0.5
    assert [index for index, found in enumerate(changes(histories, [0.0] * 100)) if found] == [4]


def test_histories_without_a_change_are_hardly_ever_cut():
    cut = sum(any(changes(noise(seed, 100, 10), [0.0] * 100)) for seed in range(30))
    assert cut <= 1


def test_history_of_larger_spread_is_not_cut_for_it():
    histories = noise(4, 100, 20)
    histories[0] *= 5
    assert not changes(histories, [0.0] * 100)[0]


def test_difference_within_the_noise_of_the_runs_is_no_change():
    assert changes([[0.0, 0.0, 0.0, 0.1]], [0.0]) == [[3]]
    assert changes([[0.0, 0.0, 0.0, 0.1]], [0.1]) == [[]]


def test_places_count_from_the_oldest_run_of_a_long_history():
    levels = np.repeat([0.0, 1.0], [300, 50])
    assert changes([levels + noise(5, 350)], [0.0]) == [[300]]


def test_spread_of_tests_that_are_alike_is_the_common_one():
    # Of 2 degrees of freedom each, a test's own variance is off by more than a factor of two in most cases.
    variances = noise(6, 200, 3).var(axis=1, ddof=1)
    found = pooled_spreads(variances, [2] * 200)
    assert max(spread.variance for spread in found) < 2 * 0.02**2
    assert min(spread.variance for spread in found) > 0.02**2 / 2


def test_spread_of_tests_that_are_not_alike_stays_their_own():
    scales = np.repeat([0.002, 0.02], 50)
    variances = (noise(7, 100, 10, scale=1.0) * scales[:, None]).var(axis=1, ddof=1)
    found = np.array([spread.variance for spread in pooled_spreads(variances, [9] * 100)])
    assert np.all(np.abs(np.log(found / variances)) < math.log(3))


def test_test_without_a_variance_gets_the_common_one():
    variances = [*noise(8, 100, 5).var(axis=1, ddof=1), 123.0]
    spread = pooled_spreads(variances, [4] * 100 + [0])[-1]
    assert spread.variance == pytest.approx(0.02**2, rel=0.2)


def test_single_test_has_its_own_spread():
    assert pooled_spreads([0.04], [2]) == [Spread(0.04, 2)]


def test_nothing_known_is_none():
    assert pooled_spreads([1.0, 1.0], [0, 0]) == [None, None]


def test_freedom_is_never_more_than_that_of_all_tests_together():
    assert all(spread.freedom <= 400 for spread in pooled_spreads(noise(9, 200, 3).var(axis=1, ddof=1), [2] * 200))


def test_spread_of_changes_is_that_of_one_run():
    random = np.random.default_rng(10)
    found = spread_of_changes(random.normal(0, 0.02, 4000) - random.normal(0, 0.02, 4000))
    assert math.sqrt(found.variance) == pytest.approx(0.02, rel=0.05)


def test_spread_of_changes_heeds_neither_a_few_changed_tests_nor_a_change_of_all():
    values = noise(11, 200)
    values[:20] += 3.0
    same = spread_of_changes(values)
    assert math.sqrt(same.variance) < 0.02
    assert spread_of_changes(values + 0.7).variance == pytest.approx(same.variance)


@pytest.mark.parametrize(
    ("x", "first", "second"), [(1.0, -0.5772156649, 1.6449340668), (0.5, -1.9635100260, 4.9348022005)]
)
def test_digamma_and_trigamma_are_those_of_the_tables(x, first, second):
    assert digamma(x) == pytest.approx(first, abs=1e-8)
    assert trigamma(x) == pytest.approx(second, abs=1e-8)
