# SPDX-License-Identifier: Apache-2.0
"""Sampling stops on a narrow interval of enough independent samples without drift; batches grow by what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.benchmarking import stopping
from gpuscope.benchmarking.stopping import Budget, judge, next_batch


def samples(count, spread=0.01):
    return 10e-6 * np.random.default_rng(4).normal(1, spread, count)


def test_a_narrow_interval_is_enough():
    assert judge(samples(100), 0.0, 0.01).converged


def test_a_wide_one_is_not():
    assert not judge(samples(100, spread=0.2), 0.0, 0.01).converged


def test_thirty_samples_are_needed():
    assert not judge(samples(29), 0.0, 0.01).converged


def test_twenty_independent_samples_are_needed():
    walk = 10e-6 * (1 + 1e-4 * np.repeat(np.random.default_rng(4).normal(0, 1, 15), 8))
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


def test_the_first_batch_is_a_fixed_one():
    assert next_batch(None, 0.01, 1e-6, 10.0) == 50


def test_a_batch_is_what_the_interval_lacks():
    progress = judge(samples(100, spread=0.05), 0.0, 0.01)
    ratio = progress.estimate.relative_half_width / 0.01
    assert next_batch(progress, 0.01, 1e-9, 10.0) == int(110 * (ratio**2 - 1))


def test_a_batch_grows_at_most_fourfold():
    progress = judge(samples(100, spread=0.05), 0.0, 0.01)
    assert next_batch(progress, 1e-5, 1e-9, 10.0) == 450


@pytest.mark.parametrize(("cost", "left", "count"), [(0.01, 0.1, 10), (0.01, 10.0, 25), (1.0, 10.0, 1), (1.0, 0.0, 1)])
def test_a_batch_fits_the_time_that_is_left_and_is_over_soon(cost, left, count):
    assert next_batch(None, 0.01, cost, left) == count


def test_a_share_is_of_the_whole_as_far_as_it_is_there(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(stopping, "now", lambda: clock[0])
    whole = Budget(2.0)
    assert whole.share(0.25).seconds == 0.5
    clock[0] = 1.8
    assert whole.share(0.25).seconds == pytest.approx(0.2)
    clock[0] = 3.0
    assert (whole.left, whole.share(0.25).left) == (0.0, 0.0)
