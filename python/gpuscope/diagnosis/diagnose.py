# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of a recording: runs the rules, ranks their findings by saving, and gives a verdict."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuscope.analysis.completeness import audit
from gpuscope.costs.idle_counters import idle_by_counters
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.evidence import evidence_query
from gpuscope.diagnosis.findings import (
    CRITICAL,
    FINDINGS,
    FINE,
    OWN_CODE,
    SMALL,
    UNKNOWN,
    Diagnosis,
    Finding,
    finding_key,
    percent,
)
from gpuscope.diagnosis.own_code import FEWEST_SAMPLES, MUCH, HostTime, host_time, source_lines
from gpuscope.diagnosis.replay import Replay, Saving
from gpuscope.diagnosis.rules import RULES, Cause, Rule
from gpuscope.diagnosis.rules.inputs import loaded_by_thread_ns
from gpuscope.diagnosis.rules.products import shortened_by
from gpuscope.diagnosis.rules.rule import count_of
from gpuscope.diagnosis.rules.scheduling import machine_condition
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.steps.breakdown import IDLE, break_down
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.steps import LEAST_LEFT, START_UP, WHOLE_RUN, as_passed, find_steps, steady_steps
from gpuscope.threads import thread_pool
from gpuscope.trace import NONE, Trace, number_of, program_name
from gpuscope.units import format_seconds

SEVERITIES = ("critical", "warn", "info")
_VERDICTS = ("R49", "R50")

_FEWEST = 3
_OWN_COST = 0.05
_SPECIAL = 1.5  # own code comes before another cause unless it takes two thirds or less
_SAME = 0.8  # of the time of a function: a cause that has as much explains it
_MOST_FINDINGS = 8
_MOST_PACKAGES = 3
_MUCH_IDLE = 0.15
# Share of the steps from which on waits of the host for others than the GPU matter: recording does not lengthen them.
_MUCH_PACED = 0.01
_ELSEWHERE = [IdleCause.DATA_WAIT, IdleCause.CPU_LIMIT, IdleCause.CPU_WAIT, IdleCause.LOCK]
# A file, or a batch that the thread loads itself, takes as long whenever it begins; a socket waits for its sender.
_RECEIVES = re.compile(r"\brecv(_into)?\b")
_NOTHING = 0.005  # smaller shares are not listed
_VERIFY = "record again after the change and compare: gpuscope diff before.gscope after.gscope"


def known_findings() -> tuple[str, ...]:
    """Arguments of `Diagnosis.matches`: severities, and ids of rules and verdicts."""
    return (*SEVERITIES, *sorted({rule.id for rule in RULES} | set(_VERDICTS)))


def check_wanted(wanted: Sequence[str]) -> tuple[str, ...]:
    """Ids and severities in their official spelling; raises InvalidArgument for an unknown one."""
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
    """Finds the causes that the steps of a recording lose time to, and how much each fix saves.

    Findings are ranked by their saving together with those before them, so that no time counts twice. A finding within
    the time of another one is listed under it. The first three steps and the last are excluded if at least five others
    remain. If a recording shows too little, the verdict is "not enough evidence", with the missing data.
    """
    program = program_name(trace.info)
    try:
        steps = find_steps(trace)
    except NotAvailable as error:
        why = "the recording has no steps"
        return Diagnosis(UNKNOWN, (), (), (str(error),), (), why, None, program, recording=trace.content_hash)
    kept, left_out = steady_steps(steps)
    with thread_pool(2) as pool:
        making = pool.submit(Replay, trace, kept)
        hashing = pool.submit(lambda: trace.content_hash)
        context = Context(trace, kept, break_down(trace, as_passed(trace, kept)))
        found, unseen, blind = _ask(context)
        is_paced = _is_paced(context)
        replay = making.result()
        if not is_paced:
            replay.leave_out_recording()
        findings, small = _keyed(context, *_ranked(context, found, replay))
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
    conditions = tuple(filter(None, [machine_condition(context), _mode_condition(context)]))
    return Diagnosis(
        verdict,
        findings,
        small,
        doubts,
        tuple(unseen),
        summary,
        context.breakdown,
        program,
        left_out,
        counted,
        blind,
        conditions,
        _times_of(host) if host is not None else (),
        hashing.result(),
        tuple(unseen.values()),
    )


def _mode_condition(context: Context) -> str | None:
    """A sentence if the program trains while its modules are in evaluation mode, as far as operators show it.

    Dropout without operators inside changed nothing. ``nn.BatchNorm`` counts batches with ``add_`` only in training.
    """
    names, regions = context.path_names, context.trace.regions
    if not any(name.startswith("autograd::engine::evaluate_function") for name in names):
        return None
    parents = {names[each] for each in context.path_parents if each != NONE}
    order = np.lexsort((regions.start_ns, regions.thread))
    named = np.array([*names, ""])[np.minimum(regions.path[order], len(names))]
    norms = np.flatnonzero(named == "aten::batch_norm")
    if len(norms) and not (named[np.maximum(norms - 1, 0)] == "aten::add_").any():
        return "the program trains with batch norm in eval mode: call model.train() unless it is frozen on purpose"
    if "aten::dropout" in names and "aten::dropout" not in parents:
        return "the program trains, but dropout does nothing: call model.train(), unless its p is 0"
    return None


def _is_paced(context: Context) -> bool:
    """Whether the host waits for data, CPUs, locks or sockets, which would not be ready sooner without recording."""
    trace = context.trace
    names = map(trace.string, np.unique(trace.python_functions.name).tolist())
    paced_ns = sum(int(context.pieces.cause_ns[cause].sum()) for cause in _ELSEWHERE)
    if any(map(_RECEIVES.search, names)):
        paced_ns += int(context.pieces.cause_ns[IdleCause.FILES].sum())
    else:
        paced_ns -= loaded_by_thread_ns(context)
    return paced_ns >= _MUCH_PACED * context.wall_ns


def _ask(context: Context) -> tuple[list[tuple[Rule, Cause]], dict[str, str], tuple[str, ...]]:
    """The causes that the rules find, the omitted checks with what they omit, and ids of the rules without data."""
    # More threads gained nothing on a machine of 16 cores: parts of each rule hold the GIL.
    with thread_pool(2) as pool:
        causes = list(pool.map(lambda rule: list(rule.find(context)), RULES))
    found = [(rule, cause) for rule, several in zip(RULES, causes, strict=True) for cause in several]
    needs = [(rule.id, need) for rule in RULES if (need := rule.needs(context)) is not None]
    unseen = {need: ", ".join(dict.fromkeys(rule for rule, each in needs if each == need)) for _, need in needs}
    if why := context.trace.info.get("counters.why"):
        unseen[f"hardware counters: {why}"] = "hardware counters"
    if len(context.breakdown.devices) > 1 and context.device is not None:
        others = [str(each.device) for each in context.breakdown.devices if each is not context.device]
        gpus = f"GPU {', '.join(others)}"
        unseen[f"{gpus}: causes and lines are those of GPU {context.device.device}, the busiest"] = gpus
    return found, unseen, tuple(dict.fromkeys(rule for rule, _ in needs))


@dataclass
class _Candidate:
    """A cause, and the saving of its edit."""

    rule: Rule
    cause: Cause
    alone: Saving
    together: Saving  # with the findings before it
    before: float = 0.0  # saving of those findings
    parts: list[Finding] = field(default_factory=list)

    @property
    def more(self) -> float:
        """Its saving after those findings."""
        return self.together.value - self.before

    @property
    def weight(self) -> float:
        """The value that it is ranked by."""
        return self.more * self.rule.weight


class _Prices:
    """Savings of sets of edits; the same set is replayed once."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._told: dict[tuple[int, ...], Saving] = {}

    def of(self, candidates: Sequence[_Candidate], cause: Cause) -> Saving:
        """The saving of all these causes; their edits must live as long as this."""
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
    """The findings by their saving after those before them, then those without a saving; and the small ones.

    Without an accepted model no saving is known. In a long recording only some steps are replayed, so rare causes have
    no saving either.
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
        # It is part of the finding to whose saving it adds the least.
        owner = max(kept, key=lambda other: other.alone.value - prices.of([other], each.cause).value)
        if each.rule.weight >= 1 or each.cause.where[:1] != owner.cause.where[:1]:
            owner.parts.append(_finding(each))
    findings = [_finding(each) for each in kept]
    shares.sort(key=lambda each: -each[2] * each[0].weight)
    for rule, cause, share in shares:
        if share >= rule.limit:
            (findings if share >= SMALL or share == 0 else small).append(_share_finding(rule, cause, share))
    if context.device is None:  # own code comes before causes that could save little more than its time

        def weight(finding: Finding) -> float:
            return finding.share * _SPECIAL if finding.id == OWN_CODE else finding.saving or finding.share

        findings.sort(key=weight, reverse=True)
        findings = [each for each in findings if not _is_named_by_another(each, findings)]
    return tuple(findings[:_MOST_FINDINGS]), (*findings[_MOST_FINDINGS:], *small)


def _keyed(context: Context, *lists: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """The lists, each finding and part with its key and its query.

    Findings of like lines are numbered by line, not by saving. Own code is named by its function: which of its lines
    has the most samples changes from run to run.
    """
    seen: Counter[str] = Counter()
    keys: dict[int, str] = {}

    def line(finding: Finding) -> int:
        return (finding.where[0].line or 0) if finding.where else 0

    def keyed(finding: Finding) -> Finding:
        query = evidence_query(finding.id, context, finding.where)
        return replace(finding, key=keys[id(finding)], query=query, parts=tuple(map(keyed, finding.parts)))

    everything = [each for several in lists for finding in several for each in (finding, *finding.parts)]
    for each in sorted(everything, key=line):
        lines = source_lines(context.trace, each.where[0].file or "") if line(each) else []
        source = next(iter(lines[line(each) - 1 :]), "")
        if each.id == OWN_CODE and each.where:
            source = each.where[0].function or source
        first = finding_key(each.id, each.where, source)
        keys[id(each)] = finding_key(each.id, each.where, source, seen[first])
        seen[first] += 1
    return [tuple(map(keyed, several)) for several in lists]


def _is_named_by_another(own: Finding, findings: Sequence[Finding]) -> bool:
    """Whether a cause with its own advice explains the time of a function of the program's own code."""
    if own.id != OWN_CODE:
        return False
    lines = {(where.file, where.line) for where in own.where[:1]}
    others = [each for each in findings if each.id != OWN_CODE]
    return any(
        max(each.saving or 0, each.share) >= _SAME * own.share
        and {(where.file, where.line) for where in each.where[:1]} == lines
        for each in others
    )


def _chosen(candidates: Sequence[_Candidate], prices: _Prices) -> tuple[list[_Candidate], list[_Candidate]]:
    """The candidates that save something after the ones before them, and the others.

    The remaining saving of a candidate mostly shrinks, so the first one with a current figure is the best of the rest.
    If it is too small, another cause may block the program as well, so the candidate is tried again at the end. Weights
    decide between causes of the same time; the chosen candidates are in the order of their savings.
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
    """Whether the saving surely reaches the rule's limit. For rare causes, which are in single steps, the mean counts.

    Single slow steps widen the interval of the mean, and not that of the median.
    """
    alone, limit = candidate.alone, candidate.rule.limit
    if candidate.cause.is_rare:
        return alone.value >= limit
    if alone.value < SMALL <= candidate.more:  # hidden by others before it
        return candidate.together.low - candidate.before >= limit
    return max(alone.low, alone.usual) >= limit


def _finding(candidate: _Candidate) -> Finding:
    """The finding of a candidate, with its saving after the findings before it."""
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
        # While the host is still ahead of the GPU, its overhead makes nothing slower.
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
    """The doubt if a GPU is idle for much of the time without a finding."""
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
    """Shares of the time of a program without GPU work, the largest first."""
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
    """The summary of a program without GPU work."""
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
    queued = pauses.pop(IdleCause.BACK_TO_BACK.label, 0) / wall  # pauses between queued kernels
    none = f"no cause takes {100 * SMALL:g} % of it"
    if queued >= SMALL:
        none = f"besides pauses between queued work ({percent(queued)}) {none}"
    most = max(pauses, key=lambda name: pauses[name], default="")
    if pauses.get(most, 0) >= SMALL * wall:
        none = f"no rule has a finding in the rest, most of which is {most} ({percent(pauses[most] / wall)})"
    words = (
        f"the GPU works {percent(1 - idle)} of the time, and {none}; the limit is "
        f"{largest.name} ({percent(largest.exclusive_ns / wall)})"
    )
    if verdict != FINE:
        return f"{words}; the evidence is thin"
    shorter = shortened_by(context, largest.name)
    return words + (f"; what shortens it: {shorter}" if shorter else "")


def _after(context: Context, findings: Sequence[Finding]) -> str:
    saved = min(sum(each.saving or 0.0 for each in findings), 1.0)
    step = context.wall_ns / max(len(context.steps), 1) / 1e9
    known = [each for each in findings if each.saving]
    if not known:
        return f"{len(findings)} found; a recording does not show their cost"
    least = format_seconds(step * (1 - saved))
    what = "this" if len(known) == 1 else "all of these"
    unit = "the run" if context.steps.source == WHOLE_RUN else "a step"
    return f"fixing {what} would cut {unit} from {format_seconds(step)} to {least}"
