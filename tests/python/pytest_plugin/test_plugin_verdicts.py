# SPDX-License-Identifier: Apache-2.0
"""How often the gate is wrong, over many simulated histories of runs."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.benchmark_results import Canned
from gpuscope.pytest_plugin.gate import Baseline, compare, judge
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.pytest_plugin.options import Options

BETWEEN = 0.01  # standard deviation of a run's level


def measured(seconds, seed, noise=0.02, n=60):
    result = Canned(seconds=seconds, noise=noise, n=n, seed=seed).result(None, True)
    return Measured.of(result, Options())


def verdicts(runs, slower, histories=150):
    random = np.random.default_rng(runs)
    found = []
    for history in range(histories):
        levels = 10e-6 * np.exp(random.normal(0, BETWEEN, runs + 1))
        seeds = history * (runs + 1) + np.arange(runs + 1)
        then = [measured(level, seed) for level, seed in zip(levels[:-1], seeds[:-1], strict=True)]
        baselines = [Baseline(f"run {i}", "", {"test": one.stored()}) for i, one in enumerate(then)]
        found.append(judge("test", measured(levels[-1] * slower, seeds[-1]), baselines, "").kind)
    return found


@pytest.mark.parametrize("runs", [1, 2, 3, 5])
def test_same_code_is_hardly_ever_slower(runs):
    # Two runs' levels differ by 5 % or more in 2 histories of 10 000.
    assert verdicts(runs, 1.0).count("slower") <= 1


@pytest.mark.parametrize("runs", [1, 2, 5])
def test_code_that_is_twelve_percent_slower_is_mostly_found(runs):
    assert verdicts(runs, 1.12).count("slower") >= 0.8 * 150


def test_same_code_is_the_same_or_inconclusive():
    assert set(verdicts(5, 1.0)) <= {"same", "inconclusive"}


def test_prediction_interval_is_students():
    scipy_stats = pytest.importorskip("scipy.stats")
    logs = np.array([-0.02, 0.0, 0.01, 0.03])
    runs = [{"estimate": float(np.exp(log))} for log in logs]
    now = {"estimate": 1.1, "ci": [1.0999, 1.1001], "confidence": 0.95}
    value, low, high = compare(now, runs)
    half = scipy_stats.t.ppf(0.975, 3) * logs.std(ddof=1) * np.sqrt(1 + 1 / 4)
    centre = np.log(1.1) - logs.mean()
    assert (value, low, high) == pytest.approx(np.exp([centre, centre - half, centre + half]), rel=1e-5)


def test_unsure_run_widens_the_prediction_interval():
    runs = [{"estimate": 1.0}] * 3
    now = {"estimate": 1.2, "ci": [1.0, 1.44], "confidence": 0.95}
    _, low, high = compare(now, runs)
    assert low < 1.0
    assert high > 1.44


def test_run_whose_interval_is_not_known_leaves_everything_open():
    runs = [{"estimate": 1.0}] * 3
    _, low, high = compare({"estimate": 5.0, "ci": [None, None], "confidence": 0.95}, runs)
    assert low == 0.0
    assert high > 1e100
