# SPDX-License-Identifier: Apache-2.0
"""The result of a diagnosis: findings with their evidence and advice, and the page of them."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.costs.idle_counters import IdleByCounters
from gpuscope.diagnosis.context import Where
from gpuscope.results import Abstention, Result, abstained, heading
from gpuscope.steps.breakdown import IDLE, DeviceBreakdown, StepBreakdown
from gpuscope.steps.steps import WHOLE_RUN
from gpuscope.text import wrapped
from gpuscope.units import format_digits, format_seconds

SMALL, CRITICAL = 0.02, 0.20
"""Findings that save less than SMALL are listed in a line; those that surely save CRITICAL are critical (XProf's and
TraceML's limit).

XProf's lowest limit is 3 %. The figure of such a saving may be a third too low, and it must still be found.
"""

OWN_CODE = "R51"
"""The rule for own functions that take the time of a program without GPU work."""

FINDINGS, FINE, UNKNOWN = "findings", "fine", "not enough evidence"
"""The verdicts."""

_OPTION = re.compile(r"--[a-z-]+(?: [\w.]+)?")
_MOST_IDLE = 6  # causes in the line of idle time
_MOST_PARTS = 3
_NS_PER_S = 1e9
_NARROWEST = 40
_DEEPEST = 6  # most columns of indentation of further lines of an entry


@dataclass(frozen=True)
class Finding:
    """One cause that costs time. Shares are of the time of the steps.

    Attributes:
        id: of the rule, as "R09".
        title: the fault, in words.
        saving: of its fix after the findings before it; None if not known.
        interval: lower and upper end of `saving`; None with too few steps.
        alone: saving of only this fix; None as above.
        share: the time that it is about.
        severity: critical (saves 20 % or more, surely), warn or info (less than 2 %, or no fault).
        where: places in the program, most time first.
        evidence: figures by name; "" for one without a name.
        advice: the change to make.
        verify: how to check that it helped.
        parts: findings within its time.
        key: its name in any recording of the program, as "R09-1a2b3c4d"; see `finding_key`.
        query: SQL for the rows behind the evidence, which `gpuscope sql` answers from the recording.
    """

    id: str
    title: str
    saving: float | None
    interval: tuple[float, float] | None
    alone: float | None
    share: float
    severity: str
    where: tuple[Where, ...]
    evidence: dict[str, str]
    advice: str
    verify: str
    parts: tuple[Finding, ...] = ()
    key: str = ""
    query: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "id": self.id,
            "key": self.key,
            "title": self.title,
            "severity": self.severity,
            "saving": self.saving,
            "interval": list(self.interval) if self.interval else None,
            "is_bound": self.saving is None,
            "alone": self.alone,
            "share": self.share,
            "where": [
                {name: getattr(each, name) for name in ("file", "line", "function", "region", "kernel")}
                for each in self.where
            ],
            "evidence": self.facts(),
            "query": self.query,
            "advice": self.advice,
            "verify": self.verify,
            "parts": [each.to_dict() for each in self.parts],
        }

    def facts(self) -> list[str]:
        """The evidence, one text per figure."""
        return [f"{name} {value}".lstrip() for name, value in self.evidence.items()]

    def worth(self) -> str:
        """Its saving, in words."""
        value = self.alone if self.saving is None else self.saving
        if value is None:
            return f"{percent(self.share)} of the time" if self.share else "no time yet"
        around = ""
        if self.interval is not None:
            half = 50 * (self.interval[1] - self.interval[0])
            around = f" +- {half:.0f}" if half >= 1 else f" +- {half:.1f}"
        return f"saves {percent(value)}{around}"


def finding_key(rule: str, where: Sequence[Where], source: str = "", number: int = 0) -> str:
    """The rule's id and a hash of the function and the text of the first place's line.

    A line that moved keeps its key. The name of the file, without its folder, stands for an unknown text, the region or
    the kernel for an unknown file.

    Args:
        rule: id of the rule.
        where: the places of the finding.
        source: text of the line; spaces do not matter.
        number: of earlier findings in the diagnosis with the same key.
    """
    first = where[0] if where else Where()
    parts = [first.region or first.kernel or ""]
    if first.file is not None:
        parts = [first.function or "", " ".join(source.split()) or os.path.basename(first.file)]
    text = "\n".join([*parts, *([str(number)] if number else [])])
    return f"{rule}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


@dataclass(frozen=True, repr=False, eq=False)
class Diagnosis(Result):
    """The causes that the steps of a recording lose time to; printing it shows the page.

    Attributes:
        verdict: "findings", "fine" or "not enough evidence".
        findings: by saving together with those before them, the largest first.
        small: findings that save less than 2 %.
        doubts: why the evidence is thin, a sentence each.
        unseen: omitted checks, and the option that records their data.
        summary: the reason of the verdict, a sentence.
        breakdown: of the steps; None if the recording has none.
        program: its name.
        left_out: number of excluded steps: warm-up, and cut ones.
        idle_by_counters: idle time by the GPUs' front ends, if hardware counters were sampled.
        blind: ids of the rules without their data in the recording.
        conditions: what the machine or a module's mode does to the figures, a sentence each.
        host_times: without GPU work, shares of the time by name, the largest first.
        recording: hash of the content of the recording.
        unseen_by: for each of `unseen`, the ids of the omitted rules, or the name of the omitted part.
    """

    verdict: str
    findings: tuple[Finding, ...]
    small: tuple[Finding, ...]
    doubts: tuple[str, ...]
    unseen: tuple[str, ...]
    summary: str
    breakdown: StepBreakdown | None
    program: str = ""
    left_out: int = 0
    idle_by_counters: tuple[IdleByCounters, ...] = ()
    blind: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    host_times: tuple[tuple[str, float], ...] = ()
    recording: str = ""
    unseen_by: tuple[str, ...] = ()

    @property
    def abstentions(self) -> tuple[Abstention, ...]:
        """The doubts and the omitted checks, with their reasons."""
        checks = itertools.zip_longest(self.unseen_by, self.unseen, fillvalue="")
        doubts = [Abstention("verdict", each) for each in self.doubts or (self.summary,) * (self.verdict == UNKNOWN)]
        return (*doubts, *(Abstention(what or "checks", why) for what, why in checks))

    def __iter__(self) -> Iterator[Finding]:
        """The findings, each followed by its parts, and the small ones."""
        for finding in (*self.findings, *self.small):
            yield finding
            yield from finding.parts

    def matches(self, wanted: Sequence[str]) -> bool:
        """Whether any finding has a `wanted` id or severity; R49 is "fine", R50 is thin evidence."""
        there = {"R49"} if self.verdict == FINE else set()
        there |= {"R50"} if self.doubts or self.verdict == UNKNOWN else set()
        for finding in self:
            there |= {finding.id, finding.severity}
        if "critical" in there:
            there.add("warn")
        return not there.isdisjoint(wanted)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; shares are of the time of the steps, times are in seconds."""
        return {
            **heading("diagnosis"),
            "recording": self.recording or None,
            "abstained": abstained(self.abstentions),
            "verdict": self.verdict,
            "summary": self.summary,
            "program": self.program,
            "findings": [each.to_dict() for each in self.findings],
            "small": [each.to_dict() for each in self.small],
            "doubts": list(self.doubts),
            "unseen": list(self.unseen),
            "conditions": list(self.conditions),
            "host_times": dict(self.host_times),
            "left_out": self.left_out,
            "steps": self.breakdown.to_dict() if self.breakdown else None,
            "idle_by_counters": [each.to_dict() for each in self.idle_by_counters],
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per finding."""
        rows: list[Mapping[str, Any]] = []
        for finding in (*self.findings, *self.small):
            row = finding.to_dict()
            row["low"], row["high"] = row.pop("interval") or (None, None)
            row["where"] = next((f"{each['file']}:{each['line']}" for each in row["where"] if each["file"]), None)
            row["evidence"] = "; ".join(row["evidence"])
            rows.append(row)
        return rows

    def page(self, width: int = 100) -> str:
        """The page, in lines of at most `width` columns, at least 40."""
        width = max(width, _NARROWEST)
        blocks = [self._head(width)]
        for number, finding in enumerate(self.findings, 1):
            blocks.append(_entry(number, finding, width))
        tail = []
        if self.small:
            small = ", ".join(f"{each.id} {each.title} {_small(each)}" for each in self.small)
            tail += _wrapped("small things: ", small, width)
        for condition in self.conditions:
            tail += _wrapped("note: ", condition, width)
        for doubt in self.doubts:
            tail += _wrapped("doubt: ", doubt, width)
        options = dict.fromkeys(itertools.chain(*map(_OPTION.findall, self.unseen)))
        if options:
            tail += _wrapped("not checked: add ", ", ".join(options), width)
        for text in self.unseen:
            if not _OPTION.search(text):
                tail += _wrapped("not checked: ", text, width)
        if self.findings and self.findings[0].verify:
            tail += _wrapped("verify: ", self.findings[0].verify, width)
        blocks.append(tail)
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def __str__(self) -> str:
        return self.page()

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict}; {', '.join(each.id for each in self.findings) or 'no findings'}>"

    def _head(self, width: int) -> list[str]:
        """The verdict, the time of a step or of the run, and its parts."""
        verdict = "" if self.verdict == FINDINGS else f"{self.verdict}: "
        name = os.path.basename(self.program) if self.program.endswith(".py") else self.program
        lines = _wrapped(f"{name or 'program'}: ", verdict + self.summary, width)
        found = self.breakdown
        if found is None:
            return lines
        lines += _wrapped("", _step_line(found, self.left_out), width)
        for device in found.devices:
            lines += _device_lines(device, found, width)
            for each in self.idle_by_counters:
                if each.device == device.device:
                    lines += _wrapped("idle by counters: ", _counted(each), width)
        if not found.devices:
            times = ", ".join(f"{name} {percent(share)}" for name, share in self.host_times)
            lines += _wrapped("no GPU work; time: " if times else "no GPU work", times, width)
        return lines


def _step_line(found: StepBreakdown, left_out: int) -> str:
    durations = found.steps.durations_ns / _NS_PER_S
    count, mean = len(durations), found.wall_ns / max(len(durations), 1) / _NS_PER_S
    if found.steps.source == WHOLE_RUN:
        return f"run {format_seconds(mean * count)}; no steps found: call gpuscope.step() once per iteration"
    p50, p95 = (format_seconds(float(np.quantile(durations, q))) for q in (0.5, 0.95))
    rate = f"{format_digits(1 / mean)} a second, " if mean else ""
    excluded = f" ({left_out} excluded: warm-up and the last)" if left_out else ""
    steps = f"{count:,} step{'s' * (count != 1)}{excluded}"
    return f"{format_seconds(mean)} a step (p50 {p50}, p95 {p95}), {rate}{steps}: {found.steps.source}"


def percent(share: float) -> str:
    """A share in percent, with a decimal below 10 %: "31 %", "4.2 %"."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


def _small(finding: Finding) -> str:
    value = finding.saving if finding.saving is not None else finding.share
    return f"({percent(value)})"


def _device_lines(device: DeviceBreakdown, found: StepBreakdown, width: int) -> list[str]:
    sums: dict[str, int] = {}
    for part in device.parts:
        kind = {"memcpy": "exposed copies", "memset": "fills", IDLE: "idle"}.get(part.kind, "compute")
        kind = "exposed communication" if part.name == "communication" else kind
        sums[kind] = sums.get(kind, 0) + part.exclusive_ns
    wall = max(found.wall_ns, 1)
    busy = " + ".join(f"{name} {percent(time / wall)}" for name, time in sums.items() if time * 1000 >= wall)
    name = f"GPU {device.device}{f' {device.name}' if device.name else ''}: "
    lines = _wrapped(name, busy or "idle 100 %", width)
    idle = [part for part in device.parts if part.kind == IDLE]
    shown = [part for part in idle[:_MOST_IDLE] if part.exclusive_ns * 200 >= wall]
    if shown:
        rest = device.idle_ns - sum(part.exclusive_ns for part in shown)
        causes = [f"{part.name} {percent(part.exclusive_ns / wall)}" for part in shown]
        causes += [f"other {percent(rest / wall)}"] if rest * 1000 >= wall else []
        lines += _wrapped("idle: ", ", ".join(causes), width)
    return lines


def _counted(found: IdleByCounters) -> str:
    """Idle time by the front end, with the shares of the causes in brackets."""
    if not found.is_enough:
        samples = "1 whole sample is" if found.samples == 1 else f"{found.samples} whole samples are"
        return f"{samples} in it, too few to tell; a shorter interval helps"
    sampled = percent(min(found.sampled_ns / max(found.idle_ns, 1), 1.0))
    return (
        f"nothing was queued {percent(found.nothing_queued)} (causes: the host {percent(found.host_by_causes)}), "
        f"queued work held back {percent(found.held_back)} (causes: {percent(found.device_by_causes)}), "
        f"engine active {percent(found.engine_active)}; {sampled} of it is in whole samples, "
        f"{found.agreement_points:.1f} points apart"
    )


def _entry(number: int, finding: Finding, width: int) -> list[str]:
    mark = {"critical": "CRITICAL", "warn": "warn", "info": "info"}[finding.severity]
    lines = _wrapped(f"{number} {mark} {finding.id} ", f"{finding.worth()}: {finding.title}", width)
    body = []
    if finding.where:
        body.append(("at ", "; ".join(dict.fromkeys(map(_place, finding.where)))))
    if finding.evidence:
        body.append(("", ", ".join(finding.facts())))
    body.append(("-> ", finding.advice))
    body += [
        ("of it ", f"{each.id} {each.title}{_at(each)}: {percent(each.alone or each.share)}; {each.advice}")
        for each in finding.parts[:_MOST_PARTS]
    ]
    for head, text in body:
        lines += ["  " + line for line in _wrapped(head, text, width - 2)]
    return lines


def _place(where: Where) -> str:
    return f"{where} ({where.function})" if where.file is not None and where.function else str(where)


def _at(finding: Finding) -> str:
    return f" at {finding.where[0]}" if finding.where and str(finding.where[0]) else ""


def _wrapped(head: str, text: str, width: int) -> list[str]:
    return wrapped(head + text, width, min(len(head), _DEEPEST))
