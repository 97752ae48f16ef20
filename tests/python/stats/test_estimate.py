# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.signal
import scipy.stats

from gpuscope import stats
from gpuscope.errors import InvalidArgument
from gpuscope.stats.autocorrelation import DIRECT_LAGS, integrated_time
from gpuscope.stats.distributions import median_rank, signed_rank_distribution, student_factor
from gpuscope.stats.location import detected_tick

TICK = 32e-9


def first_order(random: np.random.Generator, rho: float, n: int) -> np.ndarray:
    noise = random.normal(size=n + 100) * math.sqrt(1 - rho**2)
    return scipy.signal.lfilter([1.0], [1.0, -rho], noise)[100:]


def ticked(random: np.random.Generator, seconds: np.ndarray) -> np.ndarray:
    begin = random.random(len(seconds)) * TICK
    return np.round(np.floor((begin + seconds) / TICK) - np.floor(begin / TICK)) * TICK


def share_that_hold(make, true: float, tick: float, runs: int = 600) -> float:
    found = [stats.estimate(make(), tick=tick) for _ in range(runs)]
    return sum(one.low <= true <= one.high for one in found) / runs


# 600 runs of an interval that holds in 95 % show 0.927 to 0.973 in all but one of a hundred cases.
@pytest.mark.parametrize("n", [30, 100, 1000])
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
def test_the_interval_of_a_median_holds_the_truth_as_often_as_it_says(n, rho):
    random = np.random.default_rng(7 * n)
    share = share_that_hold(lambda: np.exp(0.05 * first_order(random, rho, n)), 1.0, 0.0)
    assert 0.92 <= share <= 0.985


@pytest.mark.parametrize("jitter", [0.1e-9, 5e-9, 60e-9, 150e-9])
@pytest.mark.parametrize("true", [2.0e-6, 2.01e-6, 19.999e-6])
def test_the_interval_on_ticks_holds_the_truth_as_often_as_it_says(true, jitter):
    random = np.random.default_rng(3)
    share = share_that_hold(lambda: ticked(random, true + jitter * random.normal(size=100)), true, TICK)
    # A true time on a tick's edge makes nearly all samples equal, and their half tick holds it always.
    assert 0.92 <= share <= (1.0 if jitter < 1e-9 else 0.985)


def test_correlated_samples_are_worth_fewer():
    random = np.random.default_rng(1)
    assert stats.estimate(first_order(random, 0.6, 2000)).n_eff < 1200
    assert stats.estimate(first_order(random, 0.0, 2000)).n_eff > 1600


def test_a_median_that_is_not_on_a_tick_is_found():
    random = np.random.default_rng(2)
    found = stats.estimate(ticked(random, 10.01e-6 + 150e-9 * random.normal(size=20_000)), tick=TICK)
    assert found.method == "median"
    assert found.value == pytest.approx(10.01e-6, abs=4e-9)


def test_a_spread_below_the_tick_takes_the_trimmed_mean():
    random = np.random.default_rng(2)
    found = stats.estimate(ticked(random, np.full(20_000, 2.003e-6)), tick=TICK)
    assert found.method == "trimmed mean"
    assert found.value == pytest.approx(2.003e-6, abs=1e-9)


def test_far_outliers_do_not_sway_the_trimmed_mean():
    random = np.random.default_rng(2)
    samples = ticked(random, np.full(1000, 2.003e-6))
    samples[::50] = 1e-3
    assert stats.estimate(samples, tick=TICK).value == pytest.approx(2.003e-6, abs=3e-9)


def test_equal_samples_leave_half_a_tick_of_doubt():
    found = stats.estimate(np.full(50, 2e-6), tick=TICK)
    assert (found.low, found.high) == (2e-6 - TICK / 2, 2e-6 + TICK / 2)


def test_equal_samples_without_a_tick_leave_none():
    assert stats.estimate(np.full(50, 2.0)).relative_half_width == 0


@pytest.mark.parametrize("tick", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_samples_give_an_interval_without_end(n, tick):
    assert stats.estimate(np.full(n, 5.0), tick=tick).high == math.inf


def test_zero_has_no_relative_width():
    assert stats.estimate([-1.0, 0.0, 1.0] * 10).relative_half_width == math.inf


def test_more_confidence_is_a_wider_interval():
    samples = np.random.default_rng(1).normal(10, 1, 200)
    narrow, wide = stats.estimate(samples, confidence=0.9), stats.estimate(samples, confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize("confidence", [0, 1, 2, -0.5, math.nan])
def test_confidence_is_a_fraction(confidence):
    with pytest.raises(InvalidArgument, match=r"^confidence is .*; accepted are fractions"):
        stats.estimate([1.0, 2.0], confidence=confidence)


@pytest.mark.parametrize("tick", [-1.0, math.nan, math.inf])
def test_a_tick_is_not_negative(tick):
    with pytest.raises(InvalidArgument, match=r"^tick is .*; accepted is"):
        stats.estimate([1.0, 2.0], tick=tick)


@pytest.mark.parametrize("n", [6, 7, 10, 30, 77, 150])
def test_ranks_of_the_median_lie_between_those_that_cover_too_much_and_too_little(n):
    rank = median_rank(n, 0.95)
    whole = int(rank)
    assert 1 - 2 * scipy.stats.binom.cdf(whole - 1, n, 0.5) >= 0.95
    assert 1 - 2 * scipy.stats.binom.cdf(whole, n, 0.5) <= 0.95


def test_the_normal_ranks_go_on_where_the_exact_ones_end():
    assert median_rank(201, 0.95) - median_rank(200, 0.95) == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("freedom", [1.05, 1.3, 1.9])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_students_factor_is_a_little_too_large_between_one_and_two_degrees(confidence, freedom):
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert expected <= student_factor(confidence, freedom) <= 1.04 * expected


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 7.5, 30, 1000])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_students_factor_is_scipys(freedom, confidence):
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert student_factor(confidence, freedom) == pytest.approx(expected, rel=1e-4)


def test_signed_ranks_are_distributed_as_all_signs_say():
    sums = [sum(rank for rank in range(1, 6) if signs >> rank & 1) for signs in range(0, 64, 2)]
    assert signed_rank_distribution(5) == pytest.approx(np.bincount(sums) / 32)


@pytest.mark.parametrize(("rho", "expected"), [(0.0, 1.0), (0.6, 2.98), (0.9, 13.28)])
def test_the_autocorrelation_time_of_signs(rho, expected):
    found = stats.autocorrelation_time(first_order(np.random.default_rng(4), rho, 20_000))
    assert found == pytest.approx(expected, rel=0.15)


def test_the_autocorrelation_time_ignores_outliers():
    samples = np.random.default_rng(4).normal(10, 1, 2000)
    samples[100:103] = 1e9
    assert stats.autocorrelation_time(samples) < 1.3


def test_long_sums_by_fourier_transform_are_those_lag_by_lag():
    series = np.sin(np.arange(400) / 400 * np.pi)  # its correlations stay positive for longer than DIRECT_LAGS
    centred = series - series.mean()
    lags = np.array([centred[lag:] @ centred[: 400 - lag] for lag in range(400)]) / (centred @ centred)
    pairs = lags[0::2] + lags[1::2]
    first = int(np.flatnonzero(pairs <= 0)[0])
    assert 2 * first > DIRECT_LAGS
    assert integrated_time(series) == pytest.approx(2 * pairs[:first].sum() - 1)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [[1.0, 2.0]], ["a"], [10**400, 1]])
@pytest.mark.parametrize("function", [stats.estimate, stats.trend, stats.modes, stats.autocorrelation_time])
def test_bad_samples_get_one_sentence(function, bad):
    with pytest.raises(InvalidArgument, match=r"^samples .*; accepted "):
        function(bad)


def bursts_of_slow_noise(random: np.random.Generator) -> np.ndarray:
    slow = np.repeat(random.normal(1, 0.02, 24), 40)
    return slow * random.normal(1, 0.002, len(slow))


def test_the_interval_of_bursts_holds_the_truth_under_noise_slower_than_a_burst():
    random = np.random.default_rng(5)
    found = [stats.estimate(bursts_of_slow_noise(random), bursts=[40] * 24) for _ in range(400)]
    assert 0.92 <= np.mean([one.low <= 1.0 <= one.high for one in found]) <= 0.985


def test_bursts_of_independent_samples_cost_little():
    samples = np.random.default_rng(6).normal(1, 0.05, 960)
    together, alone = stats.estimate(samples, bursts=[40] * 24), stats.estimate(samples)
    assert together.value == alone.value
    assert together.relative_half_width < 1.4 * alone.relative_half_width


@pytest.mark.parametrize("bursts", [[50, 51], [100, 0], [-1, 101], [50.5, 49.5]])
def test_bursts_must_add_up(bursts):
    with pytest.raises(InvalidArgument, match="bursts do not add up to 100 samples"):
        stats.estimate(np.ones(100), bursts=bursts)


@pytest.mark.parametrize("bursts", ["abc", [[50], [25, 25]], [[50, 50]]])
def test_bursts_that_are_no_sizes_get_one_sentence(bursts):
    with pytest.raises(InvalidArgument, match=r"^bursts .*; accepted "):
        stats.estimate(np.ones(100), bursts=bursts)


def test_a_tick_that_was_not_told_is_found():
    random = np.random.default_rng(3)
    found = [stats.estimate(ticked(random, 2.01e-6 + 5e-9 * random.normal(size=100)), tick=1e-9) for _ in range(400)]
    assert np.mean([one.low <= 2.01e-6 <= one.high for one in found]) >= 0.92


def test_samples_that_all_differ_show_no_tick():
    assert detected_tick(np.random.default_rng(3).normal(1, 0.01, 500)) == 0.0
