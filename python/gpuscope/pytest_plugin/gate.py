# SPDX-License-Identifier: Apache-2.0
"""Slower than the baseline or not, and how sure that is.

The run under test is one process; another run of the same code differs by more than the samples within one tell. With
three baselines or more, how much the runs differ is known: the unit is a run's estimate, and the verdict rests on the
interval in which one further run would lie. With one or two it is not known: the verdict rests on the spread within
the runs, against each baseline, and the margin has to cover the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from gpuscope import stats
from gpuscope.pytest_plugin.baseline import Baseline
from gpuscope.pytest_plugin.culprit import culprit
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.stats.distributions import normal_quantile, student_factor

Kind = Literal["slower", "faster", "same", "inconclusive", "refused", "new"]

CONFIDENCE = 0.95
RUNS_WITH_SPREAD = 3
MOST_THROTTLED = 0.05
TICK = 32e-9  # of a GPU's timestamps


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


def judge(test: str, measured: Measured, baselines: Sequence[Baseline], processor: str) -> Verdict:
    """The verdict on one test.

    Args:
        test: its full name.
        measured: this run's.
        baselines: stored runs, the oldest first.
        processor: this machine's CPU.
    """
    known = [baseline for baseline in baselines if test in baseline.tests]
    if not known:
        return Verdict("new", reasons=("no baseline has this test",))
    refusals = [baseline.refusal(test, measured, processor) for baseline in known]
    reasons = [refusal for refusal in refusals if refusal]
    accepted = [baseline.tests[test] for baseline, refusal in zip(known, refusals, strict=True) if not refusal]
    if not accepted:
        return Verdict("refused", reasons=tuple(reasons))
    trusted = [then for then in accepted if not doubt(then)]
    runs = trusted or accepted
    now = measured.stored()
    ratio, low, high = compare(now, runs)
    kind, most = "inconclusive", 1 + measured.margin
    if doubt(now):
        reasons.append(f"this run {doubt(now)}")
    elif not trusted:
        reasons.append(f"the baseline {doubt(accepted[-1])}")
    elif low > most:
        kind = "slower"
    elif high < 1 / most:
        kind = "faster"
    elif low >= 1 / most and high <= most:
        kind = "same"
    else:
        reasons.append(f"the interval reaches across the margin of {100 * measured.margin:g}%")
    why = culprit(runs[-1]["kernels"], now["kernels"]) if kind == "slower" else ""
    return Verdict(cast(Kind, kind), ratio, low, high, len(runs), tuple(reasons), why)


def doubt(facts: Mapping[str, Any]) -> str:
    """Why no verdict may rest on these facts; empty when one may."""
    if not facts["converged"]:
        return f"did not reach its target precision ({facts['stopped']})"
    if facts["throttled"] > MOST_THROTTLED:
        return f"was throttled in {100 * facts['throttled']:.0f}% of its samples"
    return ""


def compare(now: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """The ratio of the time now to that of earlier runs, and where its interval begins and ends.

    From `RUNS_WITH_SPREAD` runs on this is Student's prediction interval for one further run, on logarithms:
    G. J. Hahn and W. Q. Meeker, Statistical Intervals (1991), 4.7. The spread of this run is taken from the others, or
    from its own samples where these say more. Below, it is the hull of the intervals against each run.
    """
    if len(runs) < RUNS_WITH_SPREAD:
        tick = TICK if now["gpu"] and now["quantity"] in ("kernel", "span", "stream") else 0.0
        ratios = [
            stats.ratio_of_medians(now["samples"], run["samples"], tick=tick, confidence=CONFIDENCE) for run in runs
        ]
        value = math.exp(sum(math.log(ratio.value) for ratio in ratios) / len(ratios))
        return value, min(ratio.low for ratio in ratios), max(ratio.high for ratio in ratios)
    logs = [math.log(run["estimate"]) for run in runs]
    k, mean = len(logs), sum(logs) / len(logs)
    between = sum((log - mean) ** 2 for log in logs) / (k - 1)
    half = student_factor(CONFIDENCE, k - 1) * math.sqrt(max(between, _variance(now)) + between / k)
    value = math.log(now["estimate"]) - mean
    return math.exp(value), math.exp(value - half), math.exp(min(value + half, 700.0))


def _variance(now: Mapping[str, Any]) -> float:
    """Of the logarithm of the estimate, by its own interval."""
    low, high = now["ci"]
    if low is None or high is None or low <= 0:
        return math.inf
    return (math.log(high / low) / 2 / normal_quantile((1 + now["confidence"]) / 2)) ** 2
