# SPDX-License-Identifier: Apache-2.0
"""Whether a change to a program is accepted: the time before and after, and the saving that a finding promised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope.arguments import check_fraction
from gpuscope.diagnosis.findings import Diagnosis
from gpuscope.diffing.differences import MARGIN, Diff, Recorded, diff
from gpuscope.errors import InvalidArgument
from gpuscope.results import Result, heading, plain_fields
from gpuscope.stats.distributions import student_factor
from gpuscope.stats.ratio import paired_ratio
from gpuscope.text import brief, one_line, wrapped
from gpuscope.units import format_seconds, format_share

ACCEPT, REJECT, INCONCLUSIVE = "accept", "reject", "inconclusive"
RUNS, FEWEST_RUNS = 5, 3
"""Runs of the new version by default, and the fewest that show how runs differ."""
PAIRS, FEWEST_PAIRS = 30, 9
"""Pairs of old and new runs likewise: of all 2^9 choices of signs, the two extremes are 0.4 %."""
MARGIN_OF_RUNS = 0.05
"""A slow-down that does not count; `MARGIN` for pairs."""

_OF_RUNS, _OF_PAIRS = 0.99, 0.995  # pairs are judged twice: 0.99 together
_LEAST_KEPT = 0.5  # of the promised saving
_ROWS = 5
_NS_PER_S = 1e9


@dataclass(frozen=True)
class Claim:
    """The saving that a finding of the recording before promised. Shares are of the time of a step or run.

    Attributes:
        id: of the rule, as "R09".
        key: of the finding; None in recordings without.
        title: the fault, in words.
        saving: of its fix; None if the diagnosis could not predict it.
        interval: of the saving. It contains the saving of this fix both before and after those of other findings.
    """

    id: str
    key: str | None
    title: str
    saving: float | None
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, found: Diagnosis, wanted: str) -> Claim:
        """The claim of a finding, named by its key, its rule or its number; of several of one rule, the largest.

        Raises:
            InvalidArgument: there is no such finding.
        """
        findings = [part for each in (*found.findings, *found.small) for part in (each, *each.parts)]
        asked = wanted.lower()
        named = [each for each in findings if asked in (each.id.lower(), each.key.lower())]
        if asked.isdecimal() and 0 < int(asked[:9]) <= len(found.findings):
            named = [found.findings[int(asked[:9]) - 1]]
        if not named:  # the text of a line is part of a key, and the file may have changed since
            of_rule = [each for each in findings if each.id.lower() == asked.rpartition("-")[0]]
            named = of_rule if len(of_rule) == 1 else []
        if not named:
            names = ", ".join(dict.fromkeys(each.key or each.id for each in findings)) or "none"
            raise InvalidArgument(f"claim is {brief(wanted)}; accepted is a finding of the recording: {names}")
        chosen = named[0]
        if chosen.saving is None:
            return cls(chosen.id, chosen.key, chosen.title, None, None)
        shares = [chosen.saving, *(chosen.interval or ()), *([] if chosen.alone is None else [chosen.alone])]
        return cls(chosen.id, chosen.key, chosen.title, chosen.saving, (min(shares), max(shares)))


@dataclass(frozen=True, repr=False, eq=False)
class Verification(Result):
    """The verdict on a change of a program. Shares are of the time before.

    Attributes:
        verdict: "accept", "reject" or "inconclusive".
        why: the reason, a sentence.
        change: time after over time before, less 1.
        interval: of the change.
        confidence: of the interval.
        runs: number of runs after.
        pairs: whether old and new runs took turns.
        margin: a slow-down that does not count.
        claim: the finding that the change is for, or None.
        is_gone: whether that finding is gone; None if it is unknown.
        found: all differences.
        notes: what limits the verdict, a sentence each.
    """

    verdict: str
    why: str
    change: float
    interval: tuple[float, float]
    confidence: float
    runs: int
    pairs: bool
    margin: float
    claim: Claim | None
    is_gone: bool | None
    found: Diff
    notes: tuple[str, ...]

    @property
    def saving(self) -> tuple[float, tuple[float, float]]:
        """The saving, and its interval."""
        return -self.change, (-self.interval[1], -self.interval[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        saving, interval = self.saving
        values = {**heading("verification"), **plain_fields(self, without=("found", "claim", "is_gone"))}
        values |= {"unit": self.found.unit, "step": self.found.step.to_dict()}
        values["promised"] = self.claim and {**vars(self.claim), "is_gone": self.is_gone}
        return values | {"got": {"saving": saving, "interval": list(interval)}}

    def page(self, width: int = 100) -> str:
        """The text, in lines of at most `width` columns."""
        step, (low, high) = self.found.step, self.interval
        around = f"{100 * low:+.1f} % to {100 * high:+.1f} %" if math.isfinite(low + high) else "interval unknown"
        times = " -> ".join(format_seconds(time / _NS_PER_S) for time in (step.before_ns, step.after_ns))
        lines = [
            f"{self.verdict}: {self.why}",
            f"a {self.found.unit} {times}, {100 * self.change:+.1f} % ({around}, {format_share(self.confidence)} sure)",
        ]
        if self.claim is not None:
            promised = "nothing in figures"
            if self.claim.saving is not None and self.claim.interval is not None:
                promised = _share(self.claim.saving, self.claim.interval)
            lines.append(f"promised  {promised}  {self.claim.key or self.claim.id} {self.claim.title}")
            state = "" if self.is_gone is None else f", and the finding is {'gone' if self.is_gone else 'still there'}"
            lines.append(f"got       {_share(*self.saving)}{state}")
        text = ["\n".join(wrapped(one_line(line), width, 10)) for line in lines]
        if self.found.changes and (low > 0 or high < 0):
            text += ["", self.found.table(_ROWS, width)]
        notes = ["\n".join(wrapped(one_line(f"note: {note}"), width, 6)) for note in self.notes]
        return "\n".join([*text, *([""] if notes else []), *notes])

    def __str__(self) -> str:
        return self.page()


def verify(
    before: Sequence[Recorded],
    after: Sequence[Recorded],
    *,
    pairs: bool = False,
    claim: Claim | None = None,
    margin: float | None = None,
) -> Verification:
    """Judges a change of a program by recordings before and after it.

    Pairs are judged by the ratio of their steps, with the signed-rank interval (`paired_ratio`). Else the recordings
    after show how runs differ. The interval is then Student's for the difference between one more run and their mean,
    of logarithms: if nothing changed, the recording before is one more run (G. J. Hahn, Factors for calculating
    two-sided prediction intervals, Journal of the American Statistical Association 64, 1969).

    Args:
        before: one recording of the program before; of pairs, several.
        after: recordings after, 3 or more.
        pairs: the recordings of a place in both lists ran next to each other.
        claim: the finding that the change is for.
        margin: a slow-down that does not count; None is 2 % for pairs, else 5 %.

    Raises:
        InvalidArgument: `margin` is no fraction.
        NotAvailable: a recording has only totals.
    """
    found = diff(before, after, findings=claim is not None)
    usual, confidence = (MARGIN, _OF_PAIRS) if pairs else (MARGIN_OF_RUNS, _OF_RUNS)
    margin = usual if margin is None else check_fraction("margin", margin)
    sides = zip(before if pairs else [*before] * len(after), after, strict=True)
    ratios = [diff(*side, findings=False).step.ratio for side in sides]
    change, interval = _change([math.log(each) for each in ratios], pairs, confidence)
    unlike = [each for each in found.unlike if each.startswith("GPU")]
    if not found.is_comparable:
        verdict, why = INCONCLUSIVE, found.sentence
    elif unlike:
        verdict, why = INCONCLUSIVE, f"the recordings are of different GPUs: {unlike[0]}"
    else:
        verdict, why = judged(interval, margin, claim, found.unit)
    notes = [*found.unlike, *(each for each in found.doubts if "incomplete" in each)]
    if verdict == INCONCLUSIVE:
        more = "more --runs" if pairs else "old and new runs in turns (--against COMMIT)"
        notes.append(f"the interval is wide because runs differ; {more} make it narrower")
    gone = [each.is_gone for each in found.promises if claim is not None and each.id == claim.id]
    is_gone = all(gone) if gone and None not in gone else None
    return Verification(
        verdict, why, change, interval, confidence, len(after), pairs, margin, claim, is_gone, found, tuple(notes)
    )


def _change(log_ratios: Sequence[float], pairs: bool, confidence: float) -> tuple[float, tuple[float, float]]:
    """The change of the time, and its interval; see `verify`."""
    if pairs:
        ratio = paired_ratio(log_ratios, confidence=confidence)
        return ratio.value - 1, (ratio.low - 1, ratio.high - 1)
    count, mean = len(log_ratios), statistics.fmean(log_ratios)
    half = student_factor(confidence, count - 1) * statistics.stdev(log_ratios) * math.sqrt(1 + 1 / count)
    return math.exp(mean) - 1, (math.exp(mean - half) - 1, math.exp(mean + half) - 1)


def looks(pairs: int) -> tuple[int, ...]:
    """After how many pairs to judge: at half, where a clear verdict ends the runs, and at the end."""
    return (pairs // 2, pairs) if pairs // 2 >= FEWEST_PAIRS else (pairs,)


def judged(interval: tuple[float, float], margin: float, claim: Claim | None, unit: str) -> tuple[str, str]:
    """The verdict by the interval of the change, and its reason. `interval`, `margin`: shares of the time before."""
    low, high = interval
    if claim is None:
        if high < 0:
            return ACCEPT, f"a {unit} is surely faster"
        if high <= margin:
            return ACCEPT, f"a {unit} is surely not slower by more than {format_share(margin)}"
        if low > 0:
            return REJECT, f"a {unit} is surely slower"
        return INCONCLUSIVE, f"a {unit} may be slower by more than {format_share(margin)}, and may not"
    if low > 0:
        return REJECT, f"a {unit} is surely slower"
    promised = claim.interval[0] if claim.interval is not None else 0.0
    if -low < _LEAST_KEPT * promised:
        return REJECT, f"a {unit} surely saves less than half of the promised time"
    if high >= 0:
        return INCONCLUSIVE, f"a {unit} may be faster, and may not"
    if -low < promised:
        return INCONCLUSIVE, f"a {unit} is surely faster, and saves surely less than promised, but not less than half"
    return ACCEPT, f"a {unit} is surely faster{', as promised' if promised else ''}"


def _share(saving: float, interval: tuple[float, float]) -> str:
    known = math.isfinite(sum(interval))
    around = f" ({format_share(interval[0])} to {format_share(interval[1])})" if known else " (interval unknown)"
    return f"saves {format_share(saving)}{around}"
