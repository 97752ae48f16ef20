# SPDX-License-Identifier: Apache-2.0
"""What a job of many ranks loses time to: its findings, and the verdict in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuscope.errors import NotAvailable
from gpuscope.fleet.breakdown import JobBreakdown, break_down
from gpuscope.fleet.clocks import Clock
from gpuscope.fleet.devices import DeviceSpread, find_spreads, spread_lines
from gpuscope.fleet.orders import SwappedOrder
from gpuscope.fleet.reasons import SYNCHRONIZATION, THROTTLED
from gpuscope.fleet.stragglers import Stragglers
from gpuscope.fleet.tables import Columns, content_hash
from gpuscope.fleet.waits import EARLIER, UNEXPLAINED, Waits
from gpuscope.results import Abstention, Result, abstained, heading, plain_fields
from gpuscope.steps.idle import IdleCause
from gpuscope.text import shorten
from gpuscope.units import format_seconds, format_share

_LEAST = 0.01  # of the GPU time, for a finding
_MUCH_EXPOSED = 0.1  # of a step
_MUCH_IDLE = 0.2
_LISTED = 8
_MOST_LINES = 40

KINDS = ("straggler", "node", "link", "late rank", "order", "ending", "roles", "communication", "idle", "missing")


@dataclass(frozen=True)
class JobFinding:
    """A cause of lost time.

    Attributes:
        kind: one of `KINDS`.
        sentence: what happens, where, and why.
        advice: what to look at or to change; "" for none.
        ranks: the ranks that it is about; empty for all.
        cost_s: GPU-seconds that it costs the job; None if unknown.
        share: of the GPU time of all steps; None if unknown.
    """

    kind: str
    sentence: str
    advice: str
    ranks: tuple[int, ...]
    cost_s: float | None
    share: float | None


@dataclass(frozen=True, repr=False)
class JobDiagnosis(Result):
    """The findings of a job; printing it shows the verdict first, on one screen.

    Attributes:
        seen: number of ranks with a recording.
        expected: number of ranks of the job.
        hosts: number of hosts.
        verdict: the answer in a sentence.
        findings: most GPU-seconds first.
        breakdown: the parts of a step; None without steps.
        waits: of collectives.
        stragglers: slow ranks, nodes and links.
        clock: the clocks of the hosts.
        devices: clock, power and memory of the GPUs, as far as they were recorded.
        notes: what could not be read or judged.
        abstentions: the same by part of the job, with the reason of each.
        recording: hash of the job's ranks and steps.
    """

    seen: int
    expected: int
    hosts: int
    verdict: str
    findings: tuple[JobFinding, ...]
    breakdown: JobBreakdown | None
    waits: Waits
    stragglers: Stragglers
    clock: Clock
    devices: tuple[DeviceSpread, ...]
    notes: tuple[str, ...]
    abstentions: tuple[Abstention, ...] = ()
    recording: str = ""

    @property
    def has_straggler(self) -> bool:
        """Whether a rank, a node or a link is slower than its equals, or arrives late."""
        return any(each.kind in ("straggler", "node", "link", "late rank") for each in self.findings)

    @property
    def is_judged(self) -> bool:
        """Whether the recordings have what slow ranks are known by: GPU work or collectives."""
        return bool(self.waits.count) or (self.breakdown is not None and self.breakdown.has_gpu_work)

    def to_dict(self) -> dict[str, Any]:
        """Seconds and shares; None where something is not known."""
        parts = {name: getattr(self, name) for name in ("breakdown", "waits", "stragglers", "clock")}
        return {
            **heading("job"),
            "recording": self.recording or None,
            "abstained": abstained(self.abstentions),
            **plain_fields(self, without=(*parts, "abstentions", "recording")),
            **{name: part.to_dict() if part is not None else None for name, part in parts.items()},
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per finding."""
        return [plain_fields(each) for each in self.findings]

    def __str__(self) -> str:
        title = f"{self.seen:,} of {self.expected:,} ranks on {self.hosts:,} host{'s' * (self.hosts != 1)}"
        lines = [title, self.verdict, *([""] if self.findings else [])]
        for number, finding in enumerate(self.findings[:_LISTED], 1):
            cost = ""
            if finding.cost_s is not None and finding.share is not None:
                cost = f" It costs {format_seconds(finding.cost_s)} of the ranks' time, {format_share(finding.share)}."
            lines.append(f"{number}. {finding.sentence}{cost}")
            if finding.advice:
                lines.append(f"   {finding.advice}")
        if len(self.findings) > _LISTED:
            lines.append(f"... and {len(self.findings) - _LISTED} more")
        if self.breakdown is not None:
            lines += ["", *str(self.breakdown).splitlines()]
        share = self.waits.wait_share
        if self.waits.count and share is not None:
            lines.append(f"{format_share(share)} of the time in {self.waits.count:,} collectives is waiting")
        worst = max((node.error_ns for node in self.clock.nodes), default=0.0)
        if len(self.clock.nodes) > 1:
            lines.append(f"clocks of {len(self.clock.nodes):,} hosts are aligned within {format_seconds(worst / 1e9)}")
        lines += spread_lines(self.devices)
        room = max(1, _MOST_LINES - len(lines))
        notes = [f"note: {shorten(each, 300)}" for each in self.notes]
        if len(notes) > room:
            notes = [*notes[: room - 1], f"note: {len(notes) - room + 1} more; --json has all"]
        return "\n".join([*lines, *notes])


def diagnose(
    tables: Mapping[str, Columns],
    expected: int,
    notes: Iterable[str],
    waits: Waits,
    stragglers: Stragglers,
    clock: Clock,
    swapped: Iterable[SwappedOrder] = (),
) -> JobDiagnosis:
    """Ranks what costs the job GPU time.

    Args:
        tables: rank, step and device, by name.
        expected: number of ranks of the job.
        notes: what could not be read.
        waits: of the collectives.
        stragglers: of the steps.
        clock: of the hosts.
        swapped: ranks with another order of communicators.
    """
    left_open = [Abstention("job", each) for each in notes]
    notes = [each.why for each in left_open]
    try:
        breakdown: JobBreakdown | None = break_down(tables["step"], expected)
    except NotAvailable as error:
        breakdown = None
        notes.append(str(error))
        left_open.append(Abstention("breakdown", str(error)))
    total_s = float(tables["step"]["duration_ns"].sum()) / 1e9
    seen = set(tables["rank"]["rank"].tolist())
    missing = sorted(set(range(expected)) - seen)
    findings = [
        *_of_slow(stragglers, waits, total_s),
        *_of_late(stragglers, waits, total_s),
        *_of_order(waits, swapped),
    ]
    findings += _of_job(missing, expected, breakdown, stragglers, waits, total_s)
    findings.sort(key=lambda each: -(each.cost_s if each.cost_s is not None else -1.0))
    if not clock.usable and clock.why:
        notes.append(f"clocks: {clock.why}")
        left_open.append(Abstention("clocks", clock.why))
    notes += [f"rank {rank}: {why}" for rank, why in list(clock.unaligned.items())[:_LISTED]]
    left_open += [Abstention(f"clock of rank {rank}", why) for rank, why in clock.unaligned.items()]
    notes += [f"not judged: {each}" for each in stragglers.notes]
    left_open += [Abstention("stragglers", each) for each in stragglers.notes]
    if not waits.count:
        left_open.append(Abstention("waits", "the recordings have no collectives"))
    rank = tables["rank"]
    for number, verdict, complete in zip(rank["rank"], rank["verdict"], rank["complete"], strict=True):
        if not complete:
            notes.append(f"rank {number}: {verdict}")
            left_open.append(Abstention(f"rank {number}", str(verdict)))
    return JobDiagnosis(
        seen=len(seen),
        expected=expected,
        hosts=len(set(tables["rank"]["host"].tolist())),
        verdict=_verdict(findings, waits, breakdown),
        findings=tuple(findings),
        breakdown=breakdown,
        waits=waits,
        stragglers=stragglers,
        clock=clock,
        devices=find_spreads(tables["device"]),
        notes=tuple(notes),
        abstentions=tuple(left_open),
        recording=content_hash(tables),
    )


def _share(cost_s: float, total_s: float) -> float | None:
    return cost_s / total_s if total_s > 0 else None


def _verdict(findings: Iterable[JobFinding], waits: Waits, breakdown: JobBreakdown | None) -> str:
    worst = next((each for each in findings if (each.share or 0.0) >= _LEAST), None)
    if worst is not None:
        return f"verdict: {worst.sentence}"
    if not waits.count:
        if breakdown is None:
            return "verdict: not known, the recordings have no steps and no collectives"
        if not breakdown.has_gpu_work:
            return "verdict: slow ranks are not known, as the recordings have neither GPU work nor collectives"
        return "verdict: not known who waits for whom, as the recordings have no collectives"
    return "verdict: no rank holds the others up"


def _of_slow(stragglers: Stragglers, waits: Waits, total_s: float) -> list[JobFinding]:
    causes = {each.rank: each for each in waits.late}
    found = []
    for slow in (*stragglers.nodes, *stragglers.stragglers, *stragglers.transients):
        where = f"rank {slow.rank}{f' ({slow.node})' if slow.node else ''}" if slow.rank is not None else slow.node
        when = f", steps {slow.first_step} to {slow.last_step}" if slow.basis == "own history" else ""
        late = causes.get(slow.rank) if slow.rank is not None else None
        why = f": {late.cause}" if late is not None and late.cause not in (UNEXPLAINED, "compute") else ""
        found.append(
            JobFinding(
                "node" if slow.rank is None else "straggler",
                f"{where} computes {100 * slow.slower:.1f} % longer than its equals{when}{why}.",
                "Look at its clocks, temperature and other processes; then exclude it and compare.",
                () if slow.rank is None else (slow.rank,),
                slow.cost_s,
                _share(slow.cost_s, total_s),
            )
        )
    for link in stragglers.links:
        found.append(JobFinding("link", f"{link}", "", (), None, None))
    for odd in stragglers.odd[:_LISTED]:
        sentence = f"rank {odd.rank} runs other kernels than most of {odd.members:,} ranks of its group."
        found.append(JobFinding("roles", sentence, "Compare its program and its input.", (odd.rank,), None, None))
    return found


_ADVICE = {
    "host idle": "Its GPU waits for its host: diagnose the recording of this rank.",
    "compute": "Its GPU computes longer before the collectives: compare its kernels with those of another rank.",
    **dict.fromkeys((UNEXPLAINED, EARLIER, "copy"), ""),
    IdleCause.DATA_WAIT.label: "Give this rank more workers of its loader, prefetching, or an equal share of the data.",
    IdleCause.GARBAGE.label: "gc.freeze() after the set-up, or gc.collect() on all ranks in the same step.",
    SYNCHRONIZATION: "Remove waits for the GPU, as .item() and synchronize(), that only this rank has.",
    THROTTLED: "Look at its temperature, power limit and cooling.",
}


_WHY = {
    "host idle": "as its GPU waits for its host",
    "compute": "as it computes longer",
    "copy": "as it copies longer",
    EARLIER: "as an earlier collective released it late",
    UNEXPLAINED: "for reasons that the recordings do not show",
}
# Before causes that begin with these words.
_LINKS = {"in": "as its host is", "stopped": "as its host is", "queued,": "as work is"}


def _of_late(stragglers: Stragglers, waits: Waits, total_s: float) -> list[JobFinding]:
    known = {each.rank for each in (*stragglers.stragglers, *stragglers.transients)}
    found = []
    for late in waits.late:
        share = _share(late.caused_s, total_s)
        if late.rank in known or share is None or share < _LEAST:
            continue
        where = f"rank {late.rank}{f' ({late.node})' if late.node else ''}"
        link = _LINKS.get(late.cause.split()[0], "because of")
        why = _WHY.get(late.cause, f"{link} {late.cause}")
        found.append(
            JobFinding(
                "late rank",
                f"{where} arrives last at {late.count:,} of {late.fences:,} collectives, by "
                f"{format_seconds(late.lead_s)}, {why}.",
                _ADVICE.get(late.cause, _ADVICE["host idle"]),
                (late.rank,),
                late.caused_s,
                share,
            )
        )
    return found


def _of_order(waits: Waits, swapped: Iterable[SwappedOrder]) -> list[JobFinding]:
    found = [
        JobFinding(
            "order",
            f"rank {each.rank} calls {each.call} where others call {each.usual}, first in step {each.step}.",
            "Collectives in another order can hang: make the order the same on all ranks.",
            (each.rank,),
            None,
            None,
        )
        for each in waits.orders[:_LISTED]
    ]
    for each in swapped:
        where = "most ranks have" if each.has_majority else "another rank has, and neither has a majority,"
        sentence = (
            f"rank {each.rank} calls {each.kinds[0]} of one communicator before {each.kinds[1]} of another, where "
            f"{where} the opposite order: {each.steps:,} steps from step {each.step} on."
        )
        advice = "Another order can hang: make it the same on all ranks."
        found.append(JobFinding("order", sentence, advice, (each.rank,), None, None))
    for ending in waits.endings[:_LISTED]:
        if not ending.recorded_only:
            found.append(
                JobFinding(
                    "ending",
                    f"rank {ending.rank} stops after call {ending.sequence} of a communicator, {ending.behind:,} calls "
                    "before the others.",
                    "Look for an error or an endless wait on this rank.",
                    (ending.rank,),
                    None,
                    None,
                )
            )
    return found


def _of_job(
    missing: list[int],
    expected: int,
    breakdown: JobBreakdown | None,
    stragglers: Stragglers,
    waits: Waits,
    total_s: float,
) -> Iterable[JobFinding]:
    if missing:
        names = ", ".join(map(str, missing[:_LISTED])) + (" and more" if len(missing) > _LISTED else "")
        have = "has" if len(missing) == 1 else "have"
        sentence = f"{len(missing):,} of {expected:,} ranks {have} no recording: {names}."
        yield JobFinding("missing", sentence, "", tuple(missing), None, None)
    if stragglers.imbalance is not None and stragglers.imbalance > 0.05:
        sentence = (
            f"{len(stragglers.roles)} roles compute unequally long: the largest "
            f"{100 * stragglers.imbalance:.0f} % over the mean."
        )
        yield JobFinding("roles", sentence, "Divide layers so that pipeline stages take equally long.", (), None, None)
    if breakdown is None:
        return
    waited = float(waits.wait_ns.sum()) / 1e9 / total_s
    transfer = breakdown.shares["exposed communication"] - waited  # what late ranks cost is theirs
    idle = breakdown.extremes["idle"][1]
    for kind, share, least, what, advice in (
        ("communication", transfer, _MUCH_EXPOSED, "Transfers beside no compute take", "Overlap them, or send less."),
        ("idle", idle, _MUCH_IDLE, "Every rank is idle for at least", "Diagnose the recording of a rank."),
    ):
        if least <= share < 1:  # 1: ranks without any GPU work or collective
            yield JobFinding(kind, f"{what} {format_share(share)} of a step.", advice, (), share * total_s, share)
