# SPDX-License-Identifier: Apache-2.0
"""Slower than the baseline or not, and how sure that is.

The run under test is one process; another run of the same code differs by more than the samples within one show. With
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
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.stats.distributions import normal_quantile, student_factor
from gpuscope.units import format_change, format_seconds

Kind = Literal["slower", "faster", "same", "inconclusive", "refused", "new"]

CONFIDENCE = 0.95
RUNS_WITH_SPREAD = 3
MOST_THROTTLED = 0.05
TICK = 32e-9  # of a GPU's timestamps


@dataclass(frozen=True)
class Baseline:
    """One file of pytest-benchmark's."""

    label: str  # when it was measured, and at which commit
    processor: str  # the machine's, as pytest-benchmark names it
    tests: Mapping[str, Mapping[str, Any]]  # by full name what gpuscope stored; empty when it stored nothing

    @staticmethod
    def of(run: Mapping[str, Any]) -> Baseline:
        """From the parsed file."""
        commit = ((run.get("commit_info") or {}).get("id") or "")[:8]
        label = f"the baseline of {str(run.get('datetime', 'an unknown time'))[:19]}"
        return Baseline(
            label=f"{label} (commit {commit})" if commit else label,
            processor=processor(run.get("machine_info") or {}),
            tests={
                entry["fullname"]: (entry.get("extra_info") or {}).get("gpuscope") or {} for entry in run["benchmarks"]
            },
        )

    def refusal(self, test: str, measured: Measured, processor: str) -> str:
        """Why this run says nothing about `test` as it was measured now: one sentence; empty when it does."""
        then, now = self.tests[test], measured.facts
        if not then.get("samples"):
            return f"{self.label} was not measured with gpu_benchmark"
        if then["gpu"] != now["gpu"]:
            return f"{self.label} was measured on {_place(then['gpu'])}, this run on {_place(now['gpu'])}"
        if now["gpu"] is None and self.processor != processor:
            return f"{self.label} was measured on {self.processor or '?'}, this run on {processor or '?'}"
        if _differ(_major(then["driver"]), _major(now["driver"])):
            return f"{self.label} was measured with driver {then['driver']}, this run with {now['driver']}"
        if _differ(then["power_limit_w"], now["power_limit_w"]):
            return (
                f"{self.label} was measured at a power limit of {then['power_limit_w']:.0f} W,"
                f" this run at {now['power_limit_w']:.0f} W"
            )
        if then["quantity"] != now["quantity"]:
            return f"{self.label} holds {then['quantity']} times, this run {now['quantity']} times"
        if then["cold"] != now["cold"]:
            return f"{self.label} was measured {_cache(then['cold'])}, this run {_cache(now['cold'])}"
        return ""


def processor(machine_info: Mapping[str, Any]) -> str:
    """The CPU's name in pytest-benchmark's ``machine_info``; empty when unknown."""
    cpu = machine_info.get("cpu")
    return str(cpu.get("brand_raw") or "") if isinstance(cpu, Mapping) else ""


def _differ(then: object, now: object) -> bool:
    return then is not None and now is not None and then != now


def _major(version: str | None) -> str | None:
    return version.partition(".")[0] if version else None


def _place(gpu: str | None) -> str:
    return gpu or "the CPU"


def _cache(cold: bool) -> str:
    return "with a cold cache" if cold else "with a hot cache"


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
    """The verdict on the test of that name: this run on this `processor` against the stored ones, the oldest first."""
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
