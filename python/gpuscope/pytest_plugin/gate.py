# SPDX-License-Identifier: Apache-2.0
"""Judges whether tests are slower than their baselines.

Runs of the same code differ by more than the samples within one run. This spread is estimated from all tests of the
session: from their histories, or if these have one run each, from the differences between the tests' changes. If
neither is enough, the spread within the runs is used against each baseline, and the margin has to cover the rest.

A test is slower if it is beyond its margin at 95 % confidence, and slower at all at an error of 1 % shared among the
tests. So a session without changes fails in at most 1 % of cases. This assumes roughly normal runs: a test that jumps
between two times looks like a change of the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuscope.conditions import Conditions
from gpuscope.pytest_plugin.baselines import Baseline
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.stats.distributions import normal_quantile, student_factor
from gpuscope.stats.histories import MAD_EFFICIENCY, Spread, changes, pooled_spreads, spread_of_changes
from gpuscope.units import format_change, format_seconds

Kind = Literal["slower", "faster", "same", "inconclusive", "refused", "new"]

CONFIDENCE = 0.95
SESSION_ERROR = 0.01  # share of sessions that may fail without a change
FEWEST_FREEDOM = 2  # to estimate the spread of runs: three baselines of one test
FEWEST_TESTS = 10  # to estimate it from the tests' changes
# Standard deviation between runs above which a test is no benchmark. It is used if nothing is known.
LARGEST_SPREAD = 0.1
MOST_THROTTLED = 0.05


@dataclass(frozen=True)
class Verdict:
    """A test's time compared with its baselines.

    Attributes:
        kind: "slower" and "faster": certainly beyond the margin; "same": certainly within it; "inconclusive": neither;
            "refused": no baseline is comparable; "new": no baseline has this test.
        ratio: time now over time then; None when nothing was compared.
        low: begin of the ratio's 95 % interval.
        high: end of that interval.
        runs: number of baselines compared with.
        reasons: sentences on refused baselines and inconclusive verdicts.
        culprit: the kernel whose time grew; empty unless slower.
    """

    kind: Kind
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    reasons: tuple[str, ...] = ()
    culprit: str = ""


@dataclass(frozen=True)
class RunEstimate:
    """The time of one test in one run, as a logarithm.

    Attributes:
        log: of the estimate.
        variance: of `log` by the samples within the run; None for a single sample.
    """

    log: float
    variance: float | None

    @staticmethod
    def of(facts: Mapping[str, Any]) -> RunEstimate:
        """The estimate from stored facts."""
        return RunEstimate(math.log(facts["estimate"]), _variance(facts))


@dataclass(frozen=True)
class _Case:
    """A test with baselines, the oldest first."""

    now: RunEstimate
    runs: list[RunEstimate]
    before: list[RunEstimate]  # before the last change of level
    residuals: list[float]  # of all runs from their level
    freedom: int
    reasons: list[str]

    @property
    def variance(self) -> float:
        """The variance between runs; at least that of the samples within them."""
        found = sum(residual**2 for residual in self.residuals) / max(self.freedom, 1)
        return max(found, _mean_variance([*self.before, *self.runs]), 1e-12)

    @property
    def change(self) -> float:
        return self.now.log - sum(run.log for run in self.runs) / len(self.runs)


def judge(measured: Mapping[str, Measured], baselines: Sequence[Baseline], processor: str) -> dict[str, Verdict]:
    """The verdicts on all tests of a session, by name: this run against the stored ones.

    Baselines without a date count as the oldest, in the given order.
    """
    baselines = sorted(baselines, key=lambda baseline: baseline.date)
    verdicts: dict[str, Verdict] = {}
    accepted: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    reasons: dict[str, list[str]] = {}
    for test, now in measured.items():
        known = [baseline for baseline in baselines if test in baseline.tests]
        refusals = [baseline.refusal(test, now, processor) for baseline in known]
        reasons[test] = [refusal for refusal in refusals if refusal]
        pairs = zip(known, refusals, strict=True)
        runs = [(baseline.label, baseline.tests[test]) for baseline, refusal in pairs if not refusal]
        if not known:
            verdicts[test] = Verdict("new", reasons=("no baseline has this test",))
        elif not runs:
            verdicts[test] = Verdict("refused", reasons=tuple(reasons[test]))
        elif not now.facts["estimate"] > 0:
            why = f"this run's time is {now.facts['estimate']:g} s, of which there is no ratio"
            verdicts[test] = Verdict("refused", reasons=(*reasons[test], why))
        else:
            trusted = [(label, then) for label, then in runs if not doubt(then)]
            if not trusted:
                reasons[test].append(f"the baseline {doubt(runs[-1][1])}")
            accepted[test] = trusted or runs
            reasons[test] += _unlike(accepted[test][-1][1], now.facts)
    cases = _cases(measured, accepted, reasons)
    spreads = _spreads(list(cases.values()))
    for (test, case), spread in zip(cases.items(), spreads, strict=True):
        verdicts[test] = _verdict(measured[test], case, spread, accepted[test][-1][1], len(cases))
    return {test: verdicts[test] for test in measured}


def _cases(
    measured: Mapping[str, Measured],
    accepted: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]],
    reasons: Mapping[str, list[str]],
) -> dict[str, _Case]:
    """The histories, cut at their last change of level."""
    histories = {test: [RunEstimate.of(then) for _, then in runs] for test, runs in accepted.items()}
    logs = [[run.log for run in runs] for runs in histories.values()]
    noises = [math.sqrt(_mean_variance(runs)) for runs in histories.values()]
    cases = {}
    for (test, runs), starts in zip(histories.items(), changes(logs, noises), strict=True):
        levels = [runs[begin:end] for begin, end in zip([0, *starts], [*starts, len(runs)], strict=True)]
        means = [sum(run.log for run in level) / len(level) for level in levels]
        if starts:
            ratio = format_change(math.exp(min(means[-1] - means[-2], 700.0)))
            older = "1 older run was" if starts[-1] == 1 else f"{starts[-1]} older runs were"
            label = accepted[test][starts[-1]][0]
            reasons[test].append(f"{older} left out: the time changed by {ratio} with {label}")
        cases[test] = _Case(
            now=RunEstimate.of(measured[test].stored()),
            runs=runs[starts[-1] if starts else 0 :],
            before=runs[: starts[-1] if starts else 0],
            residuals=[run.log - mean for level, mean in zip(levels, means, strict=True) for run in level],
            freedom=len(runs) - len(levels),
            reasons=reasons[test],
        )
    return cases


def _spreads(cases: Sequence[_Case]) -> Sequence[Spread | None]:
    """The spread between runs of each test; None if not known."""
    freedom = sum(case.freedom for case in cases)
    if len(cases) >= FEWEST_TESTS and freedom < MAD_EFFICIENCY * len(cases):
        found = spread_of_changes([case.change for case in cases])
        # Real changes of tests count as noise here.
        return [Spread(min(found.variance, LARGEST_SPREAD**2), found.freedom)] * len(cases)
    if freedom < FEWEST_FREEDOM:
        return [None] * len(cases)
    return pooled_spreads([case.variance for case in cases], [case.freedom for case in cases])


def _verdict(measured: Measured, case: _Case, spread: Spread | None, latest: Mapping[str, Any], tests: int) -> Verdict:
    """The verdict on one of `tests` tests; `latest` is the last of its baselines."""
    now, margin = measured.facts, math.log1p(measured.margin)
    value, low, high = interval(case.now, case.runs, spread, CONFIDENCE)
    _, surely, at_most = interval(case.now, case.runs, spread, 1 - 2 * SESSION_ERROR / tests)
    reasons = [*case.reasons, *([f"this run {doubt(now)}"] if doubt(now) else [])]
    kind: Kind = "inconclusive"
    if low > margin and surely > 0:
        kind = "slower"
    elif _throttled(now) or _throttled(latest):
        pass  # throttling can look like a change, or hide one
    elif high < -margin and at_most < 0:
        kind = "faster"
    elif -margin <= low and high <= margin:
        kind = "same"
    elif low > margin or high < -margin:
        reasons.append(f"among {tests} tests chance alone gives such a ratio")
    else:
        reasons.append(f"the interval reaches across the margin of {100 * measured.margin:g}%")
    why = culprit(latest["kernels"], now["kernels"]) if kind == "slower" else ""
    return Verdict(kind, _exp(value), _exp(low), _exp(high), len(case.runs), tuple(reasons), why)


def _unlike(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line on the conditions that differ from the latest baseline's; empty if older files have none."""
    known = [facts.get("conditions") for facts in (then, now)]
    before, after = (Conditions.of(each if isinstance(each, Mapping) else {}) for each in known)
    return list(filter(None, [before.differences(after)]))


def doubt(facts: Mapping[str, Any]) -> str:
    """Why the facts of a run are less certain than they should be; empty if they are not."""
    if _throttled(facts):
        return f"was throttled in {100 * facts['throttled']:.0f}% of its samples"
    if not facts["converged"]:
        return f"did not reach the requested precision ({facts['stopped']})"
    return ""


def _throttled(facts: Mapping[str, Any]) -> bool:
    return bool(facts["throttled"] > MOST_THROTTLED)


def interval(
    now: RunEstimate, runs: Sequence[RunEstimate], spread: Spread | None, confidence: float
) -> tuple[float, float, float]:
    """The logarithm of the time now over that of earlier runs, and the ends of its interval.

    With a known spread this is Student's prediction interval for one further run (G. J. Hahn and W. Q. Meeker,
    Statistical Intervals, 1991, 4.7). Unless the spread is clearly larger than `LARGEST_SPREAD`, the interval is at
    most the one for that spread. The variance of this run is the larger of that between runs and that of its samples.
    With an unknown spread the interval is the hull of the intervals against each run.
    """
    normal = normal_quantile((1 + confidence) / 2)
    value = now.log - sum(run.log for run in runs) / len(runs)
    single = LARGEST_SPREAD**2  # variance of a single sample
    if spread is None:
        own = single if now.variance is None else now.variance
        halves = [normal * math.sqrt(own + (single if run.variance is None else run.variance)) for run in runs]
        low = min(now.log - run.log - half for run, half in zip(runs, halves, strict=True))
        return value, low, max(now.log - run.log + half for run, half in zip(runs, halves, strict=True))
    between = max(spread.variance, _mean_variance(runs))
    own = between
    if now.variance is not None:
        own = max(between, now.variance)
    elif any(run.variance is not None for run in runs):
        own = max(between, single)
    half = student_factor(confidence, spread.freedom) * math.sqrt(own + between / len(runs))
    if between <= 4 * single:  # possible for a few runs of the largest spread
        half = min(half, normal * math.sqrt(max(own, single) + max(between, single) / len(runs)))
    return value, value - half, value + half


def _mean_variance(runs: Sequence[RunEstimate]) -> float:
    """The mean known variance of runs by their own samples; 0 if none is known."""
    known = [run.variance for run in runs if run.variance is not None]
    return sum(known) / len(known) if known else 0.0


def _variance(facts: Mapping[str, Any]) -> float | None:
    """The variance of the estimate's logarithm, from its interval, or without one from the few samples."""
    low, high = facts["ci"]
    if low is not None and high is not None and low > 0:
        return (math.log(high / low) / 2 / normal_quantile((1 + facts["confidence"]) / 2)) ** 2
    logs = [math.log(sample) for sample in facts["samples"] if sample > 0]
    n = len(logs)
    if n < 2:
        return None
    mean = sum(logs) / n
    wider = student_factor(CONFIDENCE, n - 1) / normal_quantile((1 + CONFIDENCE) / 2)
    return wider**2 * sum((log - mean) ** 2 for log in logs) / (n - 1) / n


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def culprit(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """Names the kernel whose time per call grew most, and says which kernels came and went."""
    if not then or not now:
        return "which kernel grew is not known: there are no kernel times"
    before = {kernel["name"]: kernel for kernel in then}
    after = {kernel["name"]: kernel for kernel in now}
    came = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    growth = {name: after[name]["seconds"] - before[name]["seconds"] for name in after if name in before}
    worst = max(growth, key=lambda name: growth[name], default="")
    grown = [(growth[worst], _grown(before[worst], after[worst]))] if worst and growth[worst] > 0 else []
    for name in came:
        time = after[name]["seconds"]
        grown.append((time, f"new kernel {name} takes {format_seconds(time, 4)} per call"))
    sentences = [sentence for _, sentence in sorted(grown, key=lambda pair: -pair[0])]
    if not sentences:
        sentences.append("no kernel grew: the time lies between the kernels or on the host")
    sentences += [f"kernel {name} is gone ({format_seconds(before[name]['seconds'], 4)} per call)" for name in gone]
    return "; ".join(sentences)


def _grown(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    ratio = new["seconds"] / old["seconds"] if old["seconds"] else math.inf
    runs = "" if old["count"] == new["count"] else f", {new['count']:g} runs instead of {old['count']:g}"
    return (
        f"kernel {new['name']} takes {format_seconds(new['seconds'], 4)} per call, "
        f"{format_seconds(old['seconds'], 4)} before ({format_change(ratio)}{runs})"
    )
