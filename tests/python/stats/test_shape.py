# SPDX-License-Identifier: Apache-2.0
"""Trends, modes and ratios."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from gpuscope import stats
from gpuscope.errors import InvalidArgument
from gpuscope.stats.ratio import sign_flip_p
from gpuscope.stats.shape import mann_kendall, theil_sen


def test_the_slope_is_scipys():
    points = np.random.default_rng(1).normal(10, 1, 150) + 0.01 * np.arange(150)
    assert theil_sen(points) == pytest.approx(scipy.stats.theilslopes(points).slope)


def test_the_trends_variance_is_kendalls_with_ties():
    points = np.round(np.random.default_rng(1).normal(10, 1, 80), 1)
    s, variance = mann_kendall(points)
    tau = scipy.stats.kendalltau(np.arange(80), points, method="asymptotic")
    assert scipy.stats.norm.sf(abs(s) / math.sqrt(variance)) * 2 == pytest.approx(tau.pvalue)


@pytest.mark.parametrize("n", [50, 399, 1234, 10_000])
def test_a_drift_is_told_over_the_whole_run(n):
    samples = np.linspace(0.99, 1.01, n) + np.random.default_rng(1).normal(0, 0.002, n)
    found = stats.trend(samples)
    assert found.drift == pytest.approx(0.02, rel=0.1)
    assert found.p < 1e-6


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_noise_seldom_looks_like_a_trend(rho):
    random = np.random.default_rng(1)
    alarms = 0
    for _ in range(300):
        noise = random.normal(size=200)
        for i in range(1, 200):
            noise[i] += rho * noise[i - 1]
        alarms += stats.trend(100 + noise).p < 0.05
    assert alarms <= 30


def test_two_samples_have_no_trend():
    assert stats.trend([1.0, 2.0]) == stats.Trend(0.0, 1.0)


@pytest.mark.parametrize("tick", [0.0, 32e-9])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_two_states_of_a_clock_are_two_modes(share, tick):
    random = np.random.default_rng(1)
    samples = 20e-6 * np.where(random.random(500) < share, 1, 1.015) * (1 + 0.002 * random.normal(size=500))
    if tick:
        samples = np.round(samples / tick) * tick
    first, second = stats.modes(samples, tick=tick)
    assert first.value == pytest.approx(20e-6, rel=2e-3)
    assert second.value == pytest.approx(20.3e-6, rel=2e-3)
    assert first.share == pytest.approx(share, abs=0.06)


SHAPES = {
    "lognormal": lambda random, n: random.lognormal(0, 0.05, n),
    "exponential tail": lambda random, n: 1 + random.exponential(0.01, n),
    "uniform": lambda random, n: random.random(n),
    "heavy tails": lambda random, n: random.standard_t(2, n),
    "normal on 3 ticks": lambda random, n: np.round(random.normal(62.4, 0.6, n)),
    "between 2 ticks": lambda random, n: 62.0 + (random.random(n) < 0.3),
    "constant": lambda random, n: np.full(n, 62.0),
}


@pytest.mark.parametrize("n", [1, 29, 100, 1000, 10_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_mode_is_seen_as_one(shape, n):
    samples = SHAPES[shape](np.random.default_rng(n), n)
    assert len(stats.modes(samples, tick=1.0 if "tick" in shape else 0.0)) == 1


@pytest.mark.parametrize("n", [60, 150, 1500])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "heavy tails"])
def test_one_mode_is_taken_for_two_in_one_of_a_hundred_runs_at_most(shape, n):
    random = np.random.default_rng(n)
    draw = {**SHAPES, "normal": lambda random, n: random.normal(1, 0.01, n)}[shape]
    assert np.mean([len(stats.modes(draw(random, n))) > 1 for _ in range(300)]) <= 0.01


@pytest.mark.parametrize(("share", "n"), [(0.5, 60), (0.5, 1500), (0.1, 150), (0.1, 1500)])
def test_two_modes_ten_percent_apart_are_found(share, n):
    random = np.random.default_rng(n)
    levels = [np.where(random.random(n) < share, 1.1, 1.0) for _ in range(200)]
    assert np.mean([len(stats.modes(level * random.normal(1, 0.01, n))) == 2 for level in levels]) >= 0.95


@pytest.mark.parametrize("times", [10, 100, 10_000])
def test_a_mode_many_times_as_long_is_found(times):
    random = np.random.default_rng(1)
    samples = np.where(np.arange(1000) % 10, 1, times) * (1 + 0.002 * random.exponential(size=1000))
    assert [mode.share for mode in stats.modes(samples)] == [0.9, 0.1]


def test_values_that_differ_by_what_floats_round_are_one_mode():
    assert len(stats.modes([0.1 + 0.2] * 20 + [0.3] * 20)) == 1


@pytest.mark.parametrize("n", [8, 40, 60])
def test_the_p_of_pairs_is_scipys(n):
    logs = np.random.default_rng(n).normal(0.01, 0.03, n)
    assert sign_flip_p(logs) == pytest.approx(scipy.stats.wilcoxon(logs, method="exact").pvalue)


def test_the_p_of_many_or_equal_pairs_is_scipys_normal_one():
    logs = np.round(np.random.default_rng(1).normal(0.01, 0.03, 300), 2)
    expected = scipy.stats.wilcoxon(logs, method="asymptotic", correction=False).pvalue
    assert sign_flip_p(logs) == pytest.approx(expected)


def test_the_paired_ratio_is_hodges_and_lehmanns():
    assert stats.paired_ratio(np.log([1.0, 2.0, 4.0])).value == pytest.approx(2.0)


def test_the_signed_rank_interval_is_the_tabulated_one():
    # Of 10 pairs the 95 % interval lies between the 9th smallest and 9th largest of the 55 averages (T = 8).
    logs = np.random.default_rng(1).normal(size=10)
    averages = np.sort([(logs[i] + logs[j]) / 2 for i in range(10) for j in range(i, 10)])
    found = stats.paired_ratio(logs)
    assert (found.low, found.high) == (pytest.approx(math.exp(averages[8])), pytest.approx(math.exp(averages[-9])))


@pytest.mark.parametrize("n", [10, 61, 1200])
def test_the_paired_ratios_interval_holds_the_truth_as_often_as_it_says(n):
    random = np.random.default_rng(n)
    found = [stats.paired_ratio(0.02 + 0.05 * random.standard_t(4, n)) for _ in range(300)]
    assert 0.915 <= np.mean([one.low <= math.exp(0.02) <= one.high for one in found]) <= 0.985


def test_five_pairs_have_no_interval_of_95_percent():
    found = stats.paired_ratio([0.1, 0.2, 0.3, 0.4, 0.5])
    assert (found.low, found.high) == (0.0, math.inf)


def test_equal_pairs_are_no_difference():
    assert stats.paired_ratio(np.zeros(20)).p == 1.0


def test_the_ratio_of_medians_holds_the_truth_as_often_as_it_says():
    random = np.random.default_rng(1)
    found = [
        stats.ratio_of_medians(1.5 * random.lognormal(0, 0.05, 100), random.lognormal(0, 0.1, 60)) for _ in range(500)
    ]
    assert 0.92 <= np.mean([one.low <= 1.5 <= one.high for one in found]) <= 0.985


def test_the_ratio_of_equals_is_seldom_told_from_one():
    random = np.random.default_rng(1)
    ps = [stats.ratio_of_medians(random.lognormal(0, 0.1, 60), random.lognormal(0, 0.1, 60)).p for _ in range(500)]
    assert 0.01 <= np.mean(np.array(ps) < 0.05) <= 0.07


def test_too_few_samples_have_a_ratio_without_bounds():
    found = stats.ratio_of_medians([2.0, 2.1], [1.0, 1.1])
    assert (found.low, found.high) == (0.0, math.inf)


def test_a_ratio_of_medians_takes_positive_samples():
    with pytest.raises(InvalidArgument, match=r"^denominator holds numbers that are not above 0; accepted are"):
        stats.ratio_of_medians([1.0], [0.0])


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("spikes", [False, True])
def test_the_interval_of_a_ratio_of_sums_holds_the_truth_as_often_as_it_says(n, spikes):
    random = np.random.default_rng(8)
    hold = 0
    for _ in range(400):
        seconds = random.normal(1, 0.1, n) + (2 * (random.random(n) < 0.1) if spikes else 0)
        low, high = stats.ratio_of_sums(seconds, np.ones(n))
        hold += low <= (1.2 if spikes else 1.0) <= high
    assert 0.915 <= hold / 400 <= 0.985


def test_too_few_batches_have_no_interval():
    assert stats.ratio_of_sums(np.ones(29), np.ones(29)) is None


@pytest.mark.parametrize("bad", [[], [math.nan]])
def test_bad_log_ratios_get_one_sentence(bad):
    with pytest.raises(InvalidArgument, match=r"^log_ratios .*; accepted "):
        stats.paired_ratio(bad)


def test_a_change_of_level_is_found_where_it_is():
    random = np.random.default_rng(8)
    found = stats.change(random.normal(1, 0.005, 100) * np.repeat([1.0, 1.03], [70, 30]))
    assert found.at == 70
    assert found.size == pytest.approx(0.03, abs=0.003)
    assert found.p < 0.001


def test_samples_of_one_level_change_by_chance_alone():
    random = np.random.default_rng(9)
    assert np.mean([stats.change(random.normal(1, 0.01, 50)).p < 0.05 for _ in range(400)]) < 0.08
