# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of a recording: rules are asked, what they find is ranked by what it saves, and a verdict is given."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope.analysis.completeness import audit
from gpuscope.beside import Workers, for_each
from gpuscope.diagnosis.breakdown import IDLE, break_down
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.findings import CRITICAL, FINDINGS, FINE, OWN_CODE, SMALL, UNKNOWN, Diagnosis, Finding, percent
from gpuscope.diagnosis.idle import IdleCause
from gpuscope.diagnosis.idle_counters import idle_by_counters
from gpuscope.diagnosis.own_code import FEWEST_SAMPLES, MUCH, HostTime, host_time
from gpuscope.diagnosis.replay import Replay, Saving, make_replay
from gpuscope.diagnosis.rules import RULES, Cause, Rule
from gpuscope.diagnosis.rules.inputs import loaded_by_thread_ns
from gpuscope.diagnosis.rules.rule import count_of
from gpuscope.diagnosis.rules.scheduling import machine_condition
from gpuscope.diagnosis.steps import LEAST_LEFT, START_UP, WHOLE_RUN, as_passed, find_steps, steady_steps
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.trace import Trace, number_of, program_name
from gpuscope.units import format_seconds

SEVERITIES = ("critical", "warn", "info")
_VERDICTS = ("R49", "R50")

_FEWEST = 3
_OWN_COST = 0.05
_SPECIAL = 1.5  # own code comes before another cause unless it takes two thirds or less
_MOST_FINDINGS = 8
_MOST_PACKAGES = 3
_MUCH_IDLE = 0.15
# Of the time of the steps, waits of the host for others than the GPU, which are longer where nothing is recorded.
_MUCH_PACED = 0.01
_ELSEWHERE = [IdleCause.DATA_WAIT, IdleCause.CPU_LIMIT, IdleCause.CPU_WAIT, IdleCause.LOCK]
# A file, or a batch that the thread loads itself, takes as long whenever it is begun; a socket has something to be read
# when others send it.
_RECEIVES = re.compile(r"\brecv(_into)?\b")
_NOTHING = 0.005  # what saves less is not worth a word
_VERIFY = "record again after the change and compare: gpuscope diff before.gscope after.gscope"


def known_findings() -> tuple[str, ...]:
    """What `Diagnosis.matches` may be asked for: severities, and ids of rules and verdicts."""
    return (*SEVERITIES, *sorted({rule.id for rule in RULES} | set(_VERDICTS)))


def check_wanted(wanted: Sequence[str]) -> tuple[str, ...]:
    """Ids and severities as they are written here; raises InvalidArgument for one that there is not."""
    known = known_findings()
    by_lower = {name.lower(): name for name in known}
    found = []
    for name in wanted:
        if re.fullmatch(r"[Rr]\d", name):
            name = f"R0{name[1]}"
        if name.lower() not in by_lower:
            close = [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, n=3)]
            near = f"did you mean {' or '.join(close)}?" if close else f"accepted are {', '.join(known)}"
            raise InvalidArgument(f"fail_on contains {name!r}; {near}")
        found.append(by_lower[name.lower()])
    return tuple(found)


def diagnose(trace: Trace) -> Diagnosis:
    """What the steps of a recording lose their time to, in words, with what a fix would save.

    Findings are ranked by what removing them saves together with those before them, so that no time counts twice; one
    whose time lies in another's is listed under that. Left out are the first three steps and the last, where at least
    five others remain. Where a recording cannot tell, the verdict is "not enough evidence", and says what would.
    """
    program = program_name(trace.info)
    try:
        steps = find_steps(trace)
    except NotAvailable as error:
        return Diagnosis(UNKNOWN, (), (), (str(error),), (), "the recording has no steps", None, program)
    kept, left_out = steady_steps(steps)
    with Workers(1) as beside:
        making = beside.begin(make_replay, trace, kept)
        context = Context(trace, kept, break_down(trace, as_passed(trace, kept)))
        found, unseen, blind = _ask(context)
        is_paced = _is_paced(context)
        replay = making()
        if not is_paced:
            replay.leave_out_recording()
        findings, small = _ranked(context, found, replay)
    host = context.once(host_time) if context.device is None else None
    host = host if host is not None and (host.functions or len(trace.python_samples)) else None
    doubts = _doubts(context, host)
    if replay.reason is not None and context.device is not None and findings:
        doubts = (*doubts, f"no saving is known: {replay.reason}")
    faults = [each for each in findings if each.severity != "info" or each.id == OWN_CODE]
    if not faults and (unexplained := _unexplained(context)):
        doubts = (*doubts, unexplained)
    verdict = FINDINGS if faults else UNKNOWN if doubts else FINE
    summary = _summary(context, host, faults, verdict)
    counted = idle_by_counters(trace, context.breakdown)
    conditions = tuple(filter(None, [machine_condition(context)]))
    return Diagnosis(
        verdict,
        findings,
        small,
        doubts,
        unseen,
        summary,
        context.breakdown,
        program,
        left_out,
        counted,
        blind,
        conditions,
        _times_of(host) if host is not None else (),
    )


def _is_paced(context: Context) -> bool:
    """Whether the host waits for what does not come sooner where nothing records it."""
    trace = context.trace
    names = map(trace.string, np.unique(trace.python_functions.name).tolist())
    paced_ns = sum(int(context.pieces.cause_ns[cause].sum()) for cause in _ELSEWHERE)
    if any(map(_RECEIVES.search, names)):
        paced_ns += int(context.pieces.cause_ns[IdleCause.FILES].sum())
    else:
        paced_ns -= loaded_by_thread_ns(context)
    return paced_ns >= _MUCH_PACED * context.wall_ns


def _ask(context: Context) -> tuple[list[tuple[Rule, Cause]], tuple[str, ...], tuple[str, ...]]:
    """What the rules find, what was not looked at, and the ids of the rules that could not look."""
    # More threads gained nothing on a machine of 16 cores: parts of each rule hold the GIL.
    causes = for_each(lambda rule: list(rule.find(context)), RULES)
    found = [(rule, cause) for rule, several in zip(RULES, causes, strict=True) for cause in several]
    needs = [(rule.id, need) for rule in RULES if (need := rule.needs(context)) is not None]
    unseen = list(dict.fromkeys(need for _, need in needs))
    if why := context.trace.info.get("counters.why"):
        unseen.append(f"hardware counters: {why}")
    if len(context.breakdown.devices) > 1 and context.device is not None:
        others = [str(each.device) for each in context.breakdown.devices if each is not context.device]
        unseen.append(
            f"GPU {', '.join(others)}: causes and lines are those of GPU {context.device.device}, the busiest"
        )
    return found, tuple(unseen), tuple(dict.fromkeys(rule for rule, _ in needs))


@dataclass
class _Candidate:
    """A cause, and what its edit saves."""

    rule: Rule
    cause: Cause
    alone: Saving
    together: Saving  # with the findings before it
    before: float = 0.0  # what those save
    parts: list[Finding] = field(default_factory=list)

    @property
    def more(self) -> float:
        """What it saves after those findings."""
        return self.together.value - self.before

    @property
    def weight(self) -> float:
        """What it is ranked by."""
        return self.more * self.rule.weight


class _Prices:
    """What edits save together; asked for the same ones again, the recording is not run again."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._told: dict[tuple[int, ...], Saving] = {}

    def of(self, candidates: Sequence[_Candidate], cause: Cause) -> Saving:
        """Of these and another, which live as long as this."""
        edits = [*(each.cause.edit for each in candidates), cause.edit]
        key = tuple(map(id, edits))
        if key not in self._told:
            saving = self._replay.saving(edits)
            assert saving is not None
            self._told[key] = saving
        return self._told[key]


def _ranked(
    context: Context, found: Sequence[tuple[Rule, Cause]], replay: Replay
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The findings by what they save after those before them, then those without a saving; and the small ones.

    Without an accepted model no saving is known. Of a long recording only some steps are replayed, which say nothing of
    what is rare.
    """
    prices = _Prices(replay)
    candidates: list[_Candidate] = []
    shares: list[tuple[Rule, Cause, float]] = []
    for rule, cause in found:
        if cause.share is not None:
            shares.append((rule, cause, cause.share))
        elif replay.reason is not None or (cause.is_rare and not replay.is_whole):
            shares.append((rule, cause, replay.share(cause.edit)))
        else:
            alone = prices.of((), cause)
            candidates.append(_Candidate(rule, cause, alone, alone))
    kept, rest = _chosen(candidates, prices)
    small: list[Finding] = []
    for each in rest:
        if not _is_sure(each):
            continue
        if each.alone.value < SMALL or not kept:
            small += [_finding(each)] * (each.more >= _NOTHING)
            continue
        # Its time is that of the finding with which it saves the least more.
        owner = max(kept, key=lambda other: other.alone.value - prices.of([other], each.cause).value)
        if each.rule.weight >= 1 or each.cause.where[:1] != owner.cause.where[:1]:
            owner.parts.append(_finding(each))
    findings = [_finding(each) for each in kept]
    shares.sort(key=lambda each: -each[2] * each[0].weight)
    for rule, cause, share in shares:
        if share >= rule.limit:
            (findings if share >= SMALL or share == 0 else small).append(_share_finding(rule, cause, share))
    if context.device is None:  # own code comes before causes that could save little more than it takes

        def weight(finding: Finding) -> float:
            return finding.share * _SPECIAL if finding.id == OWN_CODE else finding.saving or finding.share

        findings.sort(key=weight, reverse=True)
    return tuple(findings[:_MOST_FINDINGS]), (*findings[_MOST_FINDINGS:], *small)


def _chosen(candidates: Sequence[_Candidate], prices: _Prices) -> tuple[list[_Candidate], list[_Candidate]]:
    """The candidates that save something after the ones before them, and the others.

    What is left of a saving mostly shrinks: the first with a figure that is up to date is the best of the rest. Where
    too little is left for a finding, another cause holds the program up as well: it is asked for again at the end. The
    weights decide between causes of the same time; those that are left are in the order of their savings.
    """
    waiting = sorted(candidates, key=lambda each: -each.weight)
    kept: list[_Candidate] = []
    postponed: list[_Candidate] = []
    while waiting:
        first = waiting.pop(0)
        _price(first, kept, prices)
        if first.more < SMALL:
            postponed.append(first)
        elif waiting and first.weight < waiting[0].weight:
            at = next((i for i, each in enumerate(waiting) if each.weight <= first.weight), len(waiting))
            waiting.insert(at, first)
        elif _is_sure(first):
            kept.append(first)
    rest: list[_Candidate] = []
    for each in postponed:
        _price(each, kept, prices)
        (kept if each.more >= SMALL and _is_sure(each) else rest).append(each)
    kept.sort(key=lambda each: -min(each.alone.value, each.more))
    for place, each in enumerate(kept):
        _price(each, kept[:place], prices)
    return kept, rest


def _price(candidate: _Candidate, kept: Sequence[_Candidate], prices: _Prices) -> None:
    candidate.together = prices.of(kept, candidate.cause)
    candidate.before = kept[-1].together.value if kept else 0.0


def _is_sure(candidate: _Candidate) -> bool:
    """Whether it surely saves as much as the rule's limit. What is rare is seen in single steps.

    Single steps that were held up make the interval of the mean wide, and not that of the median.
    """
    alone, limit = candidate.alone, candidate.rule.limit
    if candidate.cause.is_rare:
        return alone.value >= limit
    if alone.value < SMALL <= candidate.more:  # what others before it hide
        return candidate.together.low - candidate.before >= limit
    return max(alone.low, alone.usual) >= limit


def _finding(candidate: _Candidate) -> Finding:
    """The finding of a candidate, with what it saves after the findings before it."""
    rule, cause, saving = candidate.rule, candidate.cause, candidate.together
    value, low, high = (max(each - candidate.before, 0.0) for each in (saving.value, saving.low, saving.high))
    severity = "critical" if low >= CRITICAL else "warn" if value >= SMALL else "info"
    alone = candidate.alone.value
    what = (cause.where, cause.evidence, cause.advice, _VERIFY)
    parts = tuple(candidate.parts)
    return Finding(rule.id, cause.title, value, (low, high), alone, alone, severity, *what, parts)


def _share_finding(rule: Rule, cause: Cause, share: float) -> Finding:
    severity = "warn" if (share >= SMALL or share == 0) and not rule.is_note else "info"
    what = (cause.where, cause.evidence, cause.advice, _VERIFY)
    return Finding(rule.id, cause.title, None, None, None, share, severity, *what)


def _doubts(context: Context, host: HostTime | None) -> tuple[str, ...]:
    """Why the evidence is thin."""
    trace, found = context.trace, []
    checked = audit(trace)
    if not checked.complete:
        found.append(checked.verdict)
    begun_ns, ended_ns = (number_of(trace.info, f"session.{end}_ns") for end in ("start", "stop"))
    cost = number_of(trace.info, "audit.overhead_ns") / max(ended_ns - begun_ns, 1)
    felt = cost
    if cost > _OWN_COST and context.device is not None:
        # Where the host is ahead of the GPU all the same, nothing is slower for it.
        awaited_ns = int(context.pieces.cause_ns[: IdleCause.BACK_TO_BACK].sum())
        felt = min(cost, awaited_ns / max(context.wall_ns, 1))
    if felt > _OWN_COST:
        less = len(trace.details) or len(trace.call_stacks)
        found.append(
            f"recording took {percent(cost)} of the time, which slowed the host down"
            + ("; without with_stack and record_shapes it takes less, but names fewer lines" if less else "")
        )
    count, source = len(context.steps), context.steps.source
    if source.startswith("windows"):
        found.append("no steps were found: call gpuscope.step() once per iteration")
    elif count < _FEWEST and source != WHOLE_RUN:
        few = "one step" if count == 1 else f"{count} steps"
        found.append(f"{few} cannot show what is usual; record {START_UP + LEAST_LEFT + 1} or more")
    taken = int(trace.python_samples["count"].sum())
    if context.device is None and "samples.interval_ns" in trace.info and taken < FEWEST_SAMPLES:
        found.append(f"the run was too short: it has {count_of(taken, 'sample')} of Python")
    elif context.device is None and host is None:
        reason = trace.info.get("session.tier_reason", "")
        why = f"no GPU work was recorded{f' ({reason})' if reason else ''}"
        found.append(f"{why}, and no samples of Python: record with python_samples=True")
    return tuple(found)


def _unexplained(context: Context) -> str | None:
    """A GPU that does little is not fine, also where no rule says why."""
    if context.device is None or context.wall_ns == 0:
        return None
    idle = context.device.idle_ns / context.wall_ns
    causes = [part for part in context.device.parts if part.kind == IDLE]
    known = sum(part.exclusive_ns for part in causes if part.name == IdleCause.BACK_TO_BACK.label) / context.wall_ns
    if idle - known < _MUCH_IDLE:
        return None
    most = max(causes, key=lambda part: part.exclusive_ns).name
    return f"the GPU is idle {percent(idle)} of the time, and no rule says why; most of it is {most}"


def _times_of(host: HostTime) -> tuple[tuple[str, float], ...]:
    """Where the time of a program without GPU work goes, the largest first; shares."""
    wall_ns = max(host.wall_ns, 1)
    found = [(each.name, each.listed_ns) for each in host.functions]
    packages = [f"{name} {format_seconds(time / 1e9)}" for name, time in host.imports if time >= _NOTHING * wall_ns]
    of_what = f" ({', '.join(packages[:_MOST_PACKAGES])})" if packages else ""
    found.append((f"imports{of_what}", sum(time for _, time in host.imports)))
    found.append(("event loop with nothing to do", host.idle_ns))
    found.sort(key=lambda each: -each[1])
    found.append(("other", wall_ns - sum(time for _, time in found)))
    return tuple((name, time / wall_ns) for name, time in found if time >= _NOTHING * wall_ns)


def _host_summary(context: Context, host: HostTime | None, own: Sequence[Finding]) -> str:
    """Of a program without GPU work."""
    unit = "run" if context.steps.source == WHOLE_RUN else "time of the steps"
    if own:
        return f"{percent(own[0].share)} of the {unit} is spent in {own[0].title.partition(': ')[0]}"
    if host is None:
        return "it is not known where the time went"
    share, most = max(((share, name) for name, share in _times_of(host)), default=(0.0, ""))
    return f"no function of the program takes {percent(MUCH)} of the {unit}" + (
        f"; {most}: {percent(share)}" if most else ""
    )


def _summary(context: Context, host: HostTime | None, findings: Sequence[Finding], verdict: str) -> str:
    wall = max(context.wall_ns, 1)
    if context.device is None:
        own = [each for each in findings if each.id == OWN_CODE]
        return _after(context, findings) if findings and findings[0] not in own else _host_summary(context, host, own)
    if findings:
        return _after(context, findings)
    idle = context.device.idle_ns / wall
    parts = [part for part in context.device.parts if part.kind != IDLE]
    if not parts:
        return "the GPU did nothing in these steps"
    largest = max(parts, key=lambda part: part.exclusive_ns)
    pauses = {part.name: part.exclusive_ns for part in context.device.parts if part.kind == IDLE}
    queued = pauses.pop(IdleCause.BACK_TO_BACK.label, 0) / wall  # of kernel after kernel, which nobody waits for
    none = f"no cause takes {100 * SMALL:g} % of it"
    if queued >= SMALL:
        none = f"besides what lies between queued work ({percent(queued)}) {none}"
    most = max(pauses, key=lambda name: pauses[name], default="")
    if pauses.get(most, 0) >= SMALL * wall:
        none = f"no rule has a finding in the rest, most of which is {most} ({percent(pauses[most] / wall)})"
    words = (
        f"the GPU works {percent(1 - idle)} of the time, and {none}; the limit is "
        f"{largest.name} ({percent(largest.exclusive_ns / wall)})"
    )
    return words if verdict == FINE else f"{words}, as far as this recording tells"


def _after(context: Context, findings: Sequence[Finding]) -> str:
    saved = min(sum(each.saving or 0.0 for each in findings), 1.0)
    step = context.wall_ns / max(len(context.steps), 1) / 1e9
    known = [each for each in findings if each.saving]
    if not known:
        return f"{len(findings)} found; a recording does not show what they cost"
    least = format_seconds(step * (1 - saved))
    what = "this" if len(known) == 1 else "all of these"
    unit = "the run" if context.steps.source == WHOLE_RUN else "a step"
    return f"fixing {what} would cut {unit} from {format_seconds(step)} to {least}"
