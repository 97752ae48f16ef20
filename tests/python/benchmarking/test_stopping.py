# SPDX-License-Identifier: Apache-2.0
"""Sampling stops on a narrow interval of enough independent samples without drift; bursts are spread over a span."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from gpuscope.benchmarking import stopping
from gpuscope.benchmarking.stopping import Budget, Bursts, judge


def samples(count, spread=0.01):
    return 10e-6 * np.random.default_rng(4).normal(1, spread, count)


def test_a_narrow_interval_is_enough():
    assert judge(samples(100), 0.0, 0.01).converged


def test_a_wide_one_is_not():
    assert not judge(samples(100, spread=0.2), 0.0, 0.01).converged


def test_what_differs_between_processes_is_added_in_quadrature():
    alone, allowing = (judge(samples(100), 0.0, 0.01, None, differ).estimate for differ in (0.0, 0.01))
    assert allowing.value == alone.value
    for end in ("low", "high"):
        within, beyond = (abs(getattr(each, end) / each.value - 1) for each in (alone, allowing))
        assert beyond**2 == pytest.approx(within**2 + 0.0196**2, rel=1e-3)


def test_samples_that_are_enough_do_not_make_it_converge():
    progress = judge(samples(100), 0.0, 0.01, None, 0.01)
    assert progress.enough
    assert not progress.converged


def test_thirty_samples_are_needed():
    assert not judge(samples(29), 0.0, 0.01).converged


def test_twenty_independent_samples_are_needed():
    walk = 10e-6 * (1 + 1e-4 * np.repeat(np.random.default_rng(4).normal(0, 1, 20), 8))
    progress = judge(walk, 0.0, 0.01)
    assert progress.estimate.relative_half_width < 0.01
    assert not progress.converged


def test_samples_that_drift_do_not_converge():
    progress = judge(samples(400) * np.linspace(1, 1.01, 400), 0.0, 0.01)
    assert progress.estimate.relative_half_width < 0.01
    assert progress.drifts
    assert not progress.converged


def test_a_drift_too_small_to_matter_does():
    assert judge(samples(400, 0.002) * np.linspace(1, 1.002, 400), 0.0, 0.01).converged


def test_slow_noise_widens_the_interval_of_bursts():
    random = np.random.default_rng(4)
    slow = 10e-6 * np.repeat(random.normal(1, 0.05, 24), 50) * random.normal(1, 0.001, 1200)
    assert not judge(slow, 0.0, 0.01, [50] * 24).converged


@pytest.mark.parametrize("seed", range(5))
def test_few_bursts_in_a_rarer_state_may_be_of_more(seed):
    # 3 of 24 are 2.3 standard errors from a share of 30 %, an interval of 99 % is 2.8 wide to each side.
    states = np.isin(np.arange(24), [4, 11, 17])
    taken = np.repeat(np.where(states, 1.1, 1.0), 40) * np.random.default_rng(seed).normal(1, 0.01, 960)
    median_with_30_percent = 1 + 0.01 * NormalDist().inv_cdf(0.5 / 0.7)
    assert judge(taken, 0.0, 0.01, [40] * 24).estimate.high > median_with_30_percent


def test_samples_that_change_level_do_not_converge():
    progress = judge(samples(1200) * np.repeat([1.0, 1.02], [500, 700]), 0.0, 0.02, [50] * 24)
    assert progress.changed
    assert not progress.converged


def test_the_interval_of_a_change_holds_both_levels():
    found = judge(samples(1200, 0.001) * np.repeat([1.0, 1.02], [400, 800]), 0.0, 0.05, [50] * 24).estimate
    assert found.low < 10.01e-6
    assert found.high > 10.19e-6


def test_bursts_are_spread_over_the_span():
    bursts = Bursts(2.0, np.random.default_rng(1))
    size = bursts.size(10e-6, 2.0)
    spent = sum(bursts.pause(size, 10e-6, 2.0) + size * 10e-6 for _ in range(stopping.BURSTS))
    assert spent == pytest.approx(stopping.SPAN, rel=0.3)


def test_each_part_of_the_span_has_its_burst():
    bursts = Bursts(2.0, np.random.default_rng(1))
    size = bursts.size(10e-6, 2.0)
    steps = np.array([bursts.pause(size, 10e-6, 2.0) + size * 10e-6 for _ in range(stopping.BURSTS)])
    begins = np.cumsum(steps) - size * 10e-6
    assert (begins // (stopping.SPAN / stopping.BURSTS) == np.arange(stopping.BURSTS)).all()


def test_a_small_budget_has_a_shorter_span():
    assert Bursts(0.1, np.random.default_rng(1)).span < 0.1


@pytest.mark.parametrize(("cost", "left", "size"), [(1e-6, 2.0, 64), (1e-3, 2.0, 3), (1.0, 2.0, 1), (1e-3, 0.002, 2)])
def test_a_burst_is_a_part_of_its_time(cost, left, size):
    assert Bursts(2.0, np.random.default_rng(1)).size(cost, left) == size


def test_long_calls_follow_each_other_without_a_pause():
    assert Bursts(2.0, np.random.default_rng(1)).pause(1, 0.1, 2.0) == 0.0


def test_bursts_grow_where_they_were_not_enough():
    bursts = Bursts(2.0, np.random.default_rng(1))
    bursts.looked(0.3)
    assert bursts.size(1e-6, 2.0) == 256
    assert bursts.next_look > 0.3


def test_a_share_is_of_the_whole_as_far_as_it_is_there(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(stopping, "now", lambda: clock[0])
    whole = Budget(2.0)
    assert whole.share(0.25).seconds == 0.5
    clock[0] = 1.8
    assert whole.share(0.25).seconds == pytest.approx(0.2)
    clock[0] = 3.0
    assert (whole.left, whole.share(0.25).left) == (0.0, 0.0)
