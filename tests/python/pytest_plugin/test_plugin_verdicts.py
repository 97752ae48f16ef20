# SPDX-License-Identifier: Apache-2.0
"""How often the gate is wrong, and what it finds, over many simulated histories of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuscope.pytest_plugin.baselines import Baseline
from gpuscope.pytest_plugin.gate import RunEstimate, interval, judge
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.stats.histories import Spread

SURE = 0.002  # half of the width of a run's own interval, as a fraction


def measured(seconds, **changes):
    facts = {
        "quantity": "kernel",
        "cold": True,
        "estimate": seconds,
        "ci": [seconds * (1 - SURE), seconds * (1 + SURE)],
        "confidence": 0.95,
        "converged": True,
        "stopped": "precision",
        "throttled": 0.0,
        "gpu": "H100",
        "driver": None,
        "power_limit_w": None,
        "kernels": [],
    }
    return Measured(facts | changes, [seconds], 0.05)


def verdicts(logs):
    """Of tests, a row each: the logarithms of their times, those of the saved runs first."""
    names = [f"test_{test}" for test in range(len(logs))]
    times = np.exp(np.asarray(logs)) * 10e-6
    baselines = [
        Baseline("", "", {name: measured(time).stored() for name, time in zip(names, column, strict=True)}, {})
        for column in times[:, :-1].T
    ]
    now = {name: measured(time) for name, time in zip(names, times[:, -1], strict=True)}
    return list(judge(now, baselines, "").values())


def kinds(logs):
    return [verdict.kind for verdict in verdicts(logs)]


def test_conditions_that_differ_from_the_latest_baseline_are_named():
    then, now = ({"python": "3.11.7", "cudnn_benchmark": each} for each in (False, True))
    baselines = [Baseline("", "", {"test": measured(1e-5, conditions=then).stored()}, {})]
    verdict = judge({"test": measured(1e-5, conditions=now)}, baselines, "")["test"]
    assert "the conditions differ: cudnn_benchmark off before, on after" in verdict.reasons


def session(seed, *, tests=200, runs=3, spread=0.02):
    return np.random.default_rng(seed).normal(0, spread, (tests, runs + 1))


@pytest.mark.parametrize("runs", [1, 2, 3, 10])
def test_session_of_many_tests_of_the_same_code_does_not_fail(runs):
    failed = sum("slower" in kinds(session(seed, runs=runs)) for seed in range(30))
    assert failed <= 1


def test_session_whose_tests_differ_in_their_spread_does_not_fail():
    failed = 0
    for seed in range(30):
        spreads = 0.01 * np.exp(np.random.default_rng(seed).normal(0, 0.5, 200))
        failed += "slower" in kinds(session(seed, spread=1.0) * spreads[:, None])
    assert failed <= 1


def test_three_baselines_find_a_tenth_among_many_tests():
    found = 0
    for seed in range(10):
        logs = session(seed, spread=0.01)
        logs[:40, -1] += math.log(1.1)
        found += kinds(logs)[:40].count("slower")
    assert found >= 0.95 * 400


def test_single_test_that_is_twelve_percent_slower_than_many_runs_is_mostly_found():
    found = 0
    for seed in range(100):
        logs = session(seed, tests=1, runs=10, spread=0.01)
        logs[0, -1] += math.log(1.12)
        found += kinds(logs).count("slower")
    assert found >= 90


@pytest.mark.parametrize("runs", [1, 2, 3, 10])
@pytest.mark.parametrize("tests", [1, 5, 200])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_twice_as_slow_always_fails(runs, tests, share):
    for seed in range(3):
        logs = session(seed, tests=tests, runs=runs)
        changed = max(1, round(share * tests))
        logs[:changed, -1] += math.log(2)
        assert set(kinds(logs)[:changed]) == {"slower"}


@pytest.mark.parametrize("factor", [4.0, 100.0])
def test_sure_slowdown_of_an_imprecise_run_is_slower(factor):
    then = Baseline("", "", {"test": measured(1.0, converged=False).stored()}, {})
    now = measured(factor, ci=[factor * 0.8, factor * 1.2], converged=False, throttled=0.5)
    assert judge({"test": now}, [then], "")["test"].kind == "slower"


def test_speedup_in_all_histories_does_not_hide_regressions():
    found = 0
    for seed in range(10):
        logs = session(seed, tests=50, runs=10, spread=0.01)
        logs[:, :6] += math.log(1.3)
        logs[:5, -1] += math.log(1.15)  # still faster than it used to be
        found += kinds(logs)[:5].count("slower")
    assert found >= 47


def test_same_code_is_mostly_the_same():
    assert kinds(session(0, spread=0.01)).count("same") >= 180


def test_all_tests_faster_by_a_tenth_are_faster():
    logs = session(0, spread=0.005)
    logs[:, -1] -= math.log(1.1)
    assert kinds(logs).count("faster") >= 190


def test_new_tests_and_refused_ones_do_not_change_what_others_get():
    logs = session(3, spread=0.01)
    before = verdicts(logs)
    names = [f"test_{test}" for test in range(len(logs))]
    times = np.exp(logs) * 10e-6
    baselines = [
        Baseline("", "", {name: measured(time).stored() for name, time in zip(names, column, strict=True)}, {})
        for column in times[:, :-1].T
    ]
    now = {"new": measured(1.0), **{name: measured(time) for name, time in zip(names, times[:, -1], strict=True)}}
    assert list(judge(now, baselines, "").values())[1:] == before


def test_time_of_nothing_is_refused():
    then = Baseline("", "", {"test": measured(1e-6).stored()}, {})
    verdict = judge({"test": measured(0.0)}, [then], "")["test"]
    assert (verdict.kind, verdict.reasons) == ("refused", ("this run's time is 0 s, of which there is no ratio",))


def test_prediction_interval_is_students():
    logs = np.array([-0.02, 0.0, 0.01, 0.03])
    spread = Spread(float(logs.var(ddof=1)), 3)
    value, low, high = interval(
        RunEstimate(math.log(1.1), 1e-8), [RunEstimate(float(log), 1e-8) for log in logs], spread, 0.95
    )
    students = 3.182446305  # of three degrees of freedom, at 97.5 %
    half = students * logs.std(ddof=1) * np.sqrt(1 + 1 / 4)
    centre = np.log(1.1) - logs.mean()
    assert (value, low, high) == pytest.approx((centre, centre - half, centre + half), rel=1e-5)


def test_unsure_run_widens_the_prediction_interval():
    runs = [RunEstimate(0.0, 1e-8)] * 3
    sure = interval(RunEstimate(0.2, 1e-8), runs, Spread(1e-4, 100), 0.95)
    unsure = interval(RunEstimate(0.2, 0.01), runs, Spread(1e-4, 100), 0.95)
    assert unsure[2] - unsure[1] > 5 * (sure[2] - sure[1])


def test_run_of_a_single_call_is_as_unsure_as_runs_may_be():
    _, low, high = interval(RunEstimate(0.0, None), [RunEstimate(0.0, 1e-8)], None, 0.95)
    assert (low, high) == pytest.approx((-0.196, 0.196), abs=1e-3)
