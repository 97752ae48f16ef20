# SPDX-License-Identifier: Apache-2.0
"""How often pytest's gate fails a session in which nothing changed, and which slowdowns it finds, by simulation.

A session has many tests; each was saved in some runs before and is measured once now. A run's level differs from the
test's true time by a normal share ("spread"), and its samples by 2 % within the run. The rules of pytest-benchmark,
asv, pyperf, criterion and benchstat judge the same samples: the first three by these tools' own functions where they
are installed, else, as the others, by what their documentation says. Needs no GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import measure
import numpy as np
from numpy.typing import NDArray

from gpuscope.pytest_plugin.baselines import Baseline
from gpuscope.pytest_plugin.gate import judge
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.stats.distributions import normal_quantile, normal_two_sided, student_factor

WITHIN = 0.02  # standard deviation of a sample within its run
SAMPLES = 40  # of a run
MARGIN = 0.05
SESSIONS, QUICK_SESSIONS = 500, 50

# The tools' own judgements.
try:
    from pytest_benchmark.utils import PercentageRegressionCheck
except ImportError:
    PercentageRegressionCheck = None
try:
    from asv._stats import is_different
except ImportError:
    is_different = None
try:
    from pyperf._utils import is_significant
except ImportError:
    is_significant = None

Times = NDArray[np.float64]
Rule = Callable[[Times, Times], NDArray[np.bool_]]  # of the saved runs and this one, which tests fail


@dataclass(frozen=True)
class Session:
    """What is simulated.

    Attributes:
        tests: of the session.
        runs: saved before, the oldest first.
        spread: standard deviation between runs, as a fraction.
        uneven: how much tests differ in it: standard deviation of its logarithm.
        slower: how many times as long the tests that regressed take now.
        regressed: share of tests that did.
        improved_by: factor by which all tests became faster in the middle of their history.
    """

    tests: int = 200
    runs: int = 3
    spread: float = 0.02
    uneven: float = 0.0
    slower: float = 1.0
    regressed: float = 0.0
    improved_by: float = 1.0

    def draw(self, random: np.random.Generator) -> tuple[Times, NDArray[np.bool_]]:
        """Samples by test, run (this one is the last) and call, in seconds; and which tests regressed."""
        true = np.exp(random.uniform(np.log(2e-6), np.log(2e-2), self.tests))
        spread = self.spread * np.exp(random.normal(0, self.uneven, self.tests))
        levels = np.log(true)[:, None] + random.normal(0, 1, (self.tests, self.runs + 1)) * spread[:, None]
        levels[:, : self.runs // 2] += np.log(self.improved_by)
        bad = np.zeros(self.tests, bool)
        bad[random.permutation(self.tests)[: round(self.regressed * self.tests)]] = True
        levels[bad, -1] += np.log(self.slower)
        noise = random.normal(0, WITHIN, (self.tests, self.runs + 1, SAMPLES))
        return np.exp(levels[:, :, None] + noise), bad


def gpuscope_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """This project's gate, with the margin of 5 %."""
    names = [str(test) for test in range(len(now))]
    baselines = [
        Baseline(f"run {run}", "", {name: _facts(row) for name, row in zip(names, before[:, run], strict=True)}, {})
        for run in range(before.shape[1])
    ]
    measured = {name: _measured(row) for name, row in zip(names, now, strict=True)}
    return np.array([verdict.kind == "slower" for verdict in judge(measured, baselines, "").values()])


def pytest_benchmark_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """`--benchmark-compare --benchmark-compare-fail=median:5%`: the median against the last saved run's."""
    return _beyond(np.median(before[:, -1], axis=1), np.median(now, axis=1))


def pytest_benchmark_all_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """The same with `--benchmark-compare='0*'`: against each of the saved runs; one is enough."""
    runs = [_beyond(np.median(run, axis=1), np.median(now, axis=1)) for run in before.transpose(1, 0, 2)]
    failed: NDArray[np.bool_] = np.any(runs, axis=0)
    return failed


def _beyond(before: Times, now: Times) -> NDArray[np.bool_]:
    if PercentageRegressionCheck is None:
        failed: NDArray[np.bool_] = now > (1 + MARGIN) * before
        return failed
    check = PercentageRegressionCheck("median", round(100 * MARGIN))
    return np.array([bool(check.fails({"median": b}, {"median": a})) for a, b in zip(before, now, strict=True)])


def asv_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """`asv continuous`: medians that differ by the factor 1.1, and a U test of the samples with p below 0.002."""
    last = before[:, -1]
    larger: NDArray[np.bool_] = np.median(last, axis=1) < np.median(now, axis=1) / 1.1
    if is_different is None:
        return larger & (_u_test(last, now) < 0.002)
    rows = zip(larger, last.tolist(), now.tolist(), strict=True)  # its test takes 1,600 steps of Python
    return np.array([bool(beyond) and is_different(a, b, None, None) for beyond, a, b in rows])


def pyperf_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """`pyperf compare_to`: a larger mean, and a t test of the values at 95 %."""
    last = before[:, -1]
    slower: NDArray[np.bool_] = now.mean(axis=1) > last.mean(axis=1)
    if is_significant is None:
        error = np.sqrt((now.var(axis=1, ddof=1) + last.var(axis=1, ddof=1)) / SAMPLES)
        t = (now.mean(axis=1) - last.mean(axis=1)) / error
        return slower & (np.abs(t) >= student_factor(0.95, 2 * SAMPLES - 2))
    rows = zip(slower, last.tolist(), now.tolist(), strict=True)
    return np.array([bool(larger) and bool(is_significant(a, b)[0]) for larger, a, b in rows])


def criterion_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """A t test of the means with p below 0.05, and the change's 95 % interval above the noise threshold of 1 %.

    criterion resamples for both; of so many samples that are nearly normal, the normal distribution gives the same.
    """
    last = before[:, -1]
    error = np.sqrt((now.var(axis=1, ddof=1) + last.var(axis=1, ddof=1)) / SAMPLES)
    change = now.mean(axis=1) - last.mean(axis=1)
    z = normal_quantile(0.975)
    regressed: NDArray[np.bool_] = (np.abs(change) > z * error) & (change - z * error > 0.01 * last.mean(axis=1))
    return regressed


def benchstat_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """Ten values of one process on each side, as its documentation asks for, and a U test with p below 0.05."""
    old, new = before[:, -1].reshape(len(now), 10, -1).mean(axis=2), now.reshape(len(now), 10, -1).mean(axis=2)
    slower: NDArray[np.bool_] = (np.median(new, axis=1) > np.median(old, axis=1)) & (_u_test(old, new) < 0.05)
    return slower


def benchstat_runs_rule(before: Times, now: Times) -> NDArray[np.bool_]:
    """A value a run: of so few, no U test has a p below 0.05 (three against one: 0.5)."""
    smallest = 2 / (before.shape[1] + 1)
    old, new = np.median(before, axis=2), np.median(now, axis=1)
    beyond: NDArray[np.bool_] = (new[:, None] > old).all(axis=1) & (smallest < 0.05)
    return beyond


RULES: dict[str, Rule] = {
    "gpuscope": gpuscope_rule,
    "pytest-benchmark, last run": pytest_benchmark_rule,
    "pytest-benchmark, all runs": pytest_benchmark_all_rule,
    "asv": asv_rule,
    "pyperf": pyperf_rule,
    "criterion": criterion_rule,
    "benchstat, values of a run": benchstat_rule,
    "benchstat, a value a run": benchstat_runs_rule,
}

SAME = {
    "2 % spread, 3 runs": Session(),
    "2 % spread, 1 run": Session(runs=1),
    "2 % spread, 2 runs": Session(runs=2),
    "2 % spread, 10 runs": Session(runs=10),
    "5 % spread, 3 runs": Session(spread=0.05),
    "0.5 to 8 % spread, 3 runs": Session(uneven=0.7),
    "0.5 to 8 % spread, 10 runs": Session(uneven=0.7, runs=10),
    "20 tests, 2 % spread, 3 runs": Session(tests=20),
    "1 test, 2 % spread, 3 runs": Session(tests=1),
    "twice as fast since run 5 of 10": Session(runs=10, improved_by=2.0),
}
SLOWER = {
    "10 %, 1 % spread, 3 runs": Session(spread=0.01, slower=1.1, regressed=0.05),
    "10 %, 1 % spread, 1 run": Session(spread=0.01, slower=1.1, regressed=0.05, runs=1),
    "10 %, 1 % spread, all tests": Session(spread=0.01, slower=1.1, regressed=1.0),
    "10 %, 1 % spread, 20 tests": Session(spread=0.01, slower=1.1, regressed=0.05, tests=20),
    "10 %, 1 % spread, 1 test": Session(spread=0.01, slower=1.1, regressed=1.0, tests=1),
    "10 %, 2 % spread, 3 runs": Session(slower=1.1, regressed=0.05),
    "15 %, 2 % spread, 3 runs": Session(slower=1.15, regressed=0.05),
    "10 %, once twice as fast": Session(spread=0.01, slower=1.1, regressed=0.05, runs=10, improved_by=2.0),
    "2x, 2 % spread, 3 runs": Session(slower=2.0, regressed=0.05),
    "2x, 2 % spread, half of the tests": Session(slower=2.0, regressed=0.5),
    "2x, 2 % spread, 1 run, half of them": Session(slower=2.0, regressed=0.5, runs=1),
    "2x, 5 % spread, 1 test, 3 runs": Session(slower=2.0, regressed=1.0, tests=1, spread=0.05),
}


def rates(session: Session, rule: Rule, count: int, seed: int) -> tuple[float, float]:
    """The share of sessions in which a test that did not change failed, and the share found of those that did."""
    random = np.random.default_rng(seed)
    false = found = changed = 0
    for _ in range(count):
        samples, bad = session.draw(random)
        failed = rule(samples[:, :-1], samples[:, -1])
        false += bool(failed[~bad].any())
        found += int(failed[bad].sum())
        changed += int(bad.sum())
    return false / count, found / changed if changed else 0.0


def _facts(samples: Times) -> dict[str, object]:
    """What the fixture stores of a run, as far as the gate reads it; the median's interval by order statistics."""
    ordered = np.sort(samples)
    n = len(ordered)
    reach = normal_quantile(0.975) * math.sqrt(n) / 2
    low, high = ordered[int(n / 2 - reach)], ordered[math.ceil(n / 2 + reach)]
    return {
        "estimate": float(ordered[n // 2 - 1] + ordered[n // 2]) / 2,
        "ci": [float(low), float(high)],
        "confidence": 0.95,
        "samples": [],
        "converged": True,
        "stopped": "precision",
        "throttled": 0.0,
        "quantity": "kernel",
        "cold": True,
        "gpu": "a model",
        "driver": None,
        "power_limit_w": None,
        "kernels": [],
    }


def _measured(samples: Times) -> Measured:
    return Measured(_facts(samples), [], MARGIN)


def _u_test(a: Times, b: Times) -> Times:
    """The two-sided p of the Mann-Whitney U test of each row, by the normal approximation."""
    n, m = a.shape[1], b.shape[1]
    ranks = np.concatenate([a, b], axis=1).argsort(axis=1).argsort(axis=1) + 1
    u = ranks[:, n:].sum(axis=1) - m * (m + 1) / 2
    z = (np.abs(u - n * m / 2) - 0.5) / np.sqrt(n * m * (n + m + 1) / 12)
    return np.array([normal_two_sided(max(float(one), 0.0)) for one in z])


def _table(title: str, cases: dict[str, Session], count: int, seed: int, *, found: bool) -> None:
    print(title)
    for name, session in cases.items():
        sessions = max(count, count * 20 // session.tests) if session.tests < 20 else count
        print(f"  {name}")
        for label, rule in RULES.items():
            share = rates(session, rule, sessions, seed)[found]
            print(f"    {label:<27} {100 * share:7.2f} %", flush=True)


def main() -> None:
    """With ``--only`` or ``--sessions``, also prints both tables."""
    options = measure.arguments(__doc__, sessions=0, seed=1, only="")
    if options.sessions or options.only:
        own = {"pytest-benchmark": PercentageRegressionCheck, "asv": is_different, "pyperf": is_significant}
        print(f"by their own functions: {', '.join(name for name, rule in own.items() if rule is not None) or 'none'}")
        for title, cases in (("sessions of unchanged code that fail", SAME), ("slowdowns that are found", SLOWER)):
            chosen = {name: case for name, case in cases.items() if options.only in name}
            _table(title, chosen, options.sessions or SESSIONS, options.seed, found=cases is SLOWER)
    sessions = QUICK_SESSIONS if options.quick else SESSIONS
    false, _ = rates(SAME["2 % spread, 3 runs"], gpuscope_rule, sessions, options.seed)
    _, found = rates(SLOWER["10 %, 1 % spread, 3 runs"], gpuscope_rule, sessions, options.seed)
    measure.answer({"rows": {"gate_false": {"value": false}, "gate_missed": {"value": round(1 - found, 4)}}})


if __name__ == "__main__":
    main()
