# SPDX-License-Identifier: Apache-2.0
"""Slower than the baseline or not, and how sure that is.

The run under test is one process; another run of the same code differs by more than the samples within one show. How
much runs differ is learned from all tests of the session: from their histories, or where these are one run long from
how differently the tests changed. Where neither is enough, the verdict rests on the spread within the runs, against
each baseline, and the margin has to cover the rest.

A test is slower when two things are sure: at 95 % that it lies beyond its margin, and, so that a session of many tests
whose code is the same fails in at most 1 % of cases, at 1 % shared among the tests that it is slower at all. That
holds where runs scatter about normally: a test that jumps between two times is taken for one whose code changes.
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
SESSION_ERROR = 0.01  # how often a session may fail though nothing changed
FEWEST_FREEDOM = 2  # to say how much runs differ: three baselines of one test
FEWEST_TESTS = 10  # to say so by how differently tests changed
# Runs that differ by more than this, as a standard deviation, are no benchmark. It stands in where nothing is known.
LARGEST_SPREAD = 0.1
MOST_THROTTLED = 0.05


@dataclass(frozen=True)
class Verdict:
    """How a test's time compares with that of its baselines.

    Attributes:
        kind: "slower" and "faster" are sure, and go beyond the margin; "same" is surely within it; "inconclusive" is
            anything else; "refused": no baseline may be compared with; "new": none has this test.
        ratio: time now to time then; None when nothing was compared.
        low: where the ratio's 95 % interval begins.
        high: where it ends.
        runs: baselines compared with.
        reasons: sentences: what was refused, why it is inconclusive.
        culprit: which kernel's time grew; empty unless slower.
    """

    kind: Kind
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    reasons: tuple[str, ...] = ()
    culprit: str = ""


@dataclass(frozen=True)
class Run:
    """One test in one run, by the logarithm of its time.

    Attributes:
        log: of the estimate.
        variance: of `log` by the samples within the run; None when there is a single sample.
    """

    log: float
    variance: float | None

    @staticmethod
    def of(facts: Mapping[str, Any]) -> Run:
        """From what was stored."""
        return Run(math.log(facts["estimate"]), _variance(facts))


@dataclass(frozen=True)
class _Case:
    """A test that there are baselines for; the oldest of them first."""

    now: Run
    runs: list[Run]
    before: list[Run]  # of before the last change of level
    residuals: list[float]  # of all runs about their level
    freedom: int
    reasons: list[str]

    @property
    def variance(self) -> float:
        """Between runs: at least what the samples within them explain."""
        found = sum(residual**2 for residual in self.residuals) / max(self.freedom, 1)
        return max(found, _mean_variance([*self.before, *self.runs]), 1e-12)

    @property
    def change(self) -> float:
        return self.now.log - sum(run.log for run in self.runs) / len(self.runs)


def judge(measured: Mapping[str, Measured], baselines: Sequence[Baseline], processor: str) -> dict[str, Verdict]:
    """The verdicts on all tests of a session, by name: this run on this `processor` against the stored ones.

    Baselines without a date count as the oldest, in the order given.
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
    histories = {test: [Run.of(then) for _, then in runs] for test, runs in accepted.items()}
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
            now=Run.of(measured[test].stored()),
            runs=runs[starts[-1] if starts else 0 :],
            before=runs[: starts[-1] if starts else 0],
            residuals=[run.log - mean for level, mean in zip(levels, means, strict=True) for run in level],
            freedom=len(runs) - len(levels),
            reasons=reasons[test],
        )
    return cases


def _spreads(cases: Sequence[_Case]) -> Sequence[Spread | None]:
    """How much runs of each test differ; None where that is not known."""
    freedom = sum(case.freedom for case in cases)
    if len(cases) >= FEWEST_TESTS and freedom < MAD_EFFICIENCY * len(cases):
        found = spread_of_changes([case.change for case in cases])
        # Tests that changed count as noise here, however many they are.
        return [Spread(min(found.variance, LARGEST_SPREAD**2), found.freedom)] * len(cases)
    if freedom < FEWEST_FREEDOM:
        return [None] * len(cases)
    return pooled_spreads([case.variance for case in cases], [case.freedom for case in cases])


def _verdict(measured: Measured, case: _Case, spread: Spread | None, latest: Mapping[str, Any], tests: int) -> Verdict:
    """The verdict on one of so many tests; `latest` is the last of its baselines."""
    now, margin = measured.facts, math.log1p(measured.margin)
    value, low, high = interval(case.now, case.runs, spread, CONFIDENCE)
    _, surely, at_most = interval(case.now, case.runs, spread, 1 - 2 * SESSION_ERROR / tests)
    reasons = [*case.reasons, *([f"this run {doubt(now)}"] if doubt(now) else [])]
    kind: Kind = "inconclusive"
    if low > margin and surely > 0:
        kind = "slower"
    elif _throttled(now) or _throttled(latest):
        pass  # which can look like a change, or hide one
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
    """What differs in the conditions of the latest baseline, in one line; nothing where older files have none."""
    known = [facts.get("conditions") for facts in (then, now)]
    before, after = (Conditions.of(each if isinstance(each, Mapping) else {}) for each in known)
    return list(filter(None, [before.differences(after)]))


def doubt(facts: Mapping[str, Any]) -> str:
    """What makes these facts less sure than they should be; empty when nothing does."""
    if _throttled(facts):
        return f"was throttled in {100 * facts['throttled']:.0f}% of its samples"
    if not facts["converged"]:
        return f"did not reach its target precision ({facts['stopped']})"
    return ""


def _throttled(facts: Mapping[str, Any]) -> bool:
    return bool(facts["throttled"] > MOST_THROTTLED)


def interval(now: Run, runs: Sequence[Run], spread: Spread | None, confidence: float) -> tuple[float, float, float]:
    """The logarithm of the ratio of the time now to that of earlier runs, and where its interval begins and ends.

    With a known spread this is Student's prediction interval for one further run: G. J. Hahn and W. Q. Meeker,
    Statistical Intervals (1991), 4.7; no wider than if that spread were known to be the largest, unless it is clearly
    larger. The spread of a run is that between runs, or what its own samples say where this is more. With an unknown
    spread it is the hull of the intervals against each run.
    """
    normal = normal_quantile((1 + confidence) / 2)
    value = now.log - sum(run.log for run in runs) / len(runs)
    single = LARGEST_SPREAD**2  # what a single sample may be off
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
    if between <= 4 * single:  # as a few runs of the largest spread show it
        half = min(half, normal * math.sqrt(max(own, single) + max(between, single) / len(runs)))
    return value, value - half, value + half


def _mean_variance(runs: Sequence[Run]) -> float:
    """Of the runs by their own samples, as far as it is known."""
    known = [run.variance for run in runs if run.variance is not None]
    return sum(known) / len(known) if known else 0.0


def _variance(facts: Mapping[str, Any]) -> float | None:
    """Of the logarithm of the estimate, by its own interval, or where there is none by the few samples."""
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
