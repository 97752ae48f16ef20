# SPDX-License-Identifier: Apache-2.0
"""Says why a job hangs: which rank misses which collective, where that rank is, and who waits for it."""

from __future__ import annotations

import itertools
import os
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuscope.arguments import check_positive
from gpuscope.results import Result, plain_fields
from gpuscope.tables import align_columns
from gpuscope.text import shorten
from gpuscope.units import format_seconds
from gpuscope.watching.black_box import BlackBoxContent, BoxThread, RankCall
from gpuscope.watching.evidence import DEAD, ELSEWHERE, RUNNING, STOPPED, JobEvidence, RankEvidence, gather
from gpuscope.watching.ras import RasReport, parse_ras, query_ras
from gpuscope.watching.triggers import TERMINATED

AFTER_S = 10.0
"""A shorter wait is no hang."""

_SLOW_STEPS = 10  # median steps without a new one
_LATE_BEAT_S = 3.0  # beats come each second
_EQUAL_SIZES = re.compile(r"all_?reduce|reduce_?scatter|all_?gather|broadcast|reduce", re.IGNORECASE)
_LOADS = re.compile(r"data.?loader|(next|load|fetch|get).?batch|batch.?load", re.IGNORECASE)
_MOST_LISTED, _MOST_FINDINGS, _MOST_ROWS, _MOST_NOTES = 8, 4, 10, 3
_WIDEST = 400
_MOST_RANKS = 1 << 20
_NO_LINE = "ask for its stack: `gpuscope dump PID` where it listens, or `py-spy dump --pid PID > stacks_rank0.txt`."


@dataclass(frozen=True)
class HangCause:
    """Why a job does not continue.

    Attributes:
        kind: "dead", "ended", "stopped", "gil", "loader", "late", "mismatch", "order", "stuck", "no steps", "behind" or
            "silent".
        ranks: those that the others wait for, or that differ.
        waiting: ranks that wait for them.
        seconds: length of the wait; None if unknown.
        sentence: the answer.
        details: further facts, a sentence each.
        advice: what to do.
    """

    kind: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float | None
    sentence: str
    details: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class HangRank:
    """A rank of the job, as far as known; None for what is not.

    Attributes:
        rank: its number; a process without a rank has its negative pid.
        pid: of its process.
        state: "running", "stopped", "dead", or "on HOST" where another machine knows it.
        step: the last step begun.
        region: the innermost open region of the thread that runs steps.
        place: the program's Python line.
        collective: the last one entered, as "all_reduce 3 of dp".
        waits: whether it is still inside that collective.
    """

    rank: int
    pid: int | None
    state: str | None
    step: int | None
    region: str | None
    place: str | None
    collective: str | None
    waits: bool


@dataclass(frozen=True, repr=False)
class HangReport(Result):
    """The causes of a hang, the most certain first; without one, no hang was seen.

    Attributes:
        causes: see HangCause.
        ranks: all ranks with evidence.
        notes: files that could not be used, and what is not known.
    """

    causes: tuple[HangCause, ...]
    ranks: tuple[HangRank, ...]
    notes: tuple[str, ...]

    @property
    def is_hang(self) -> bool:
        """Whether a cause was found."""
        return bool(self.causes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: `is_hang`, and the attributes."""
        return {"is_hang": self.is_hang, **plain_fields(self)}

    def __str__(self) -> str:
        """The answer first, at most 40 lines."""
        lines = []
        for cause in self.causes[:_MOST_FINDINGS]:
            lines += [cause.sentence, *(f"  {detail}" for detail in cause.details[:3])]
            lines += [f"  To do: {cause.advice}"] if cause.advice else []
        if len(self.causes) > _MOST_FINDINGS:
            lines.append(f"{len(self.causes) - _MOST_FINDINGS} more causes: see --json")
        if not self.causes:
            lines.append("No hang seen.")
        if self.ranks:
            lines += ["", *self._table()]
        lines += [f"Note: {note}" for note in self.notes[:_MOST_NOTES]]
        if len(self.notes) > _MOST_NOTES:
            lines.append(f"{len(self.notes) - _MOST_NOTES} more notes: see --json")
        return "\n".join(shorten(line, _WIDEST) for line in lines)

    def _table(self) -> list[str]:
        named = {rank for cause in self.causes for rank in cause.ranks}
        order = sorted(self.ranks, key=lambda each: (each.rank not in named, each.rank))
        rows: list[tuple[str, ...]] = [("rank", "process", "state", "step", "region", "line", "last collective")]
        for each in order[:_MOST_ROWS]:
            last = f"{each.collective}{' (waits)' if each.waits else ''}" if each.collective else None
            cells = (each.pid, each.state, each.step, each.region, each.place, last)
            rank = str(each.rank) if each.rank >= 0 else "-"
            rows.append((rank, *(shorten("-" if cell is None else str(cell), 40) for cell in cells)))
        more = [f"... {len(order) - _MOST_ROWS} more ranks"] if len(order) > _MOST_ROWS else []
        return [*align_columns(rows, left=(2, 4, 5, 6), rule=True), *more]


def find_hang(folder: str | os.PathLike[str], after_s: float = AFTER_S) -> HangReport:
    """Says why a job hangs, from the files below a folder.

    Args:
        folder: contains black boxes, dumps of PyTorch's Flight Recorder, Python stacks, texts of NCCL's RAS.
        after_s: a shorter wait is no hang, in s.

    Raises:
        InvalidArgument: the folder cannot be trusted or has none of these files; or `after_s` is not above 0.
    """
    after_s = check_positive("after_s", after_s, "seconds")
    return _judged(gather(folder), after_s)


def find_hang_by_ras(host: str, port: int, after_s: float = AFTER_S, timeout_s: float = 15.0) -> HangReport:
    """Asks NCCL's RAS twice, `after_s` apart: ranks that are behind both times, by the same numbers, hang.

    Raises:
        NotAvailable: no RAS service answers.
    """
    source = f"{host}:{port}"
    first = parse_ras(query_ras(host, port, timeout_s), source)
    if first.behind:
        time.sleep(after_s)
        second = parse_ras(query_ras(host, port, timeout_s), source)
        first = replace(second, behind=tuple(each for each in second.behind if each in first.behind))
    return _judged(JobEvidence(ras=[first]), after_s)


def _judged(job: JobEvidence, after_s: float) -> HangReport:
    judge = _Judge(job, after_s)
    causes = [*judge.collectives(), *judge.alone(), *(cause for report in job.ras for cause in _ras_causes(report))]
    notes = [*job.notes, *(f"NCCL: {each}" for report in job.ras for each in report.unclear)]
    killed = [each.name for each in judge.ranks if each.box is not None and not each.box.is_closed]
    if judge.is_over and killed and not causes:
        names = shorten(", ".join(killed), _MOST_NAMES)
        notes.insert(0, f"the job is over; killed without an orderly end: {names}; they made steps until then")
    return HangReport(tuple(causes), tuple(judge.row(each) for each in judge.ranks), tuple(notes))


@dataclass(frozen=True)
class _Wait:
    """A collective that does not end: the ranks inside, and the ranks that have not entered it."""

    communicator: str
    number: int
    calls: dict[int, RankCall]  # by rank, of all that entered it
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    seconds: float | None

    @property
    def what(self) -> str:
        kind = next((self.calls[rank].kind for rank in self.waiting), "collective")
        return f"{kind} {self.number} of {self.communicator}"


_MOST_NAMES = 100  # columns


def _was_terminated(box: BlackBoxContent) -> bool:
    """Whether a signal ended the process, which may have stood still before."""
    return bool(box.triggers) and box.triggers[-1][0].startswith(f"{TERMINATED}:")


class _Judge:
    def __init__(self, job: JobEvidence, after_s: float) -> None:
        self.ranks = [job.ranks[rank] for rank in sorted(job.ranks)]
        self._of, self._after_s = job.ranks, after_s
        self._named: set[int] = set()
        self.is_over = all(each.state == DEAD for each in self.ranks if each.box is not None)
        lasts = [each.box.last_ns for each in self.ranks if each.box is not None]
        lasts += [each.dumped_ns for each in self.ranks if each.dumped_ns is not None]
        # A job that is over stood still until its last sign of life.
        self._now_ns = max(lasts, default=0) if self.is_over else time.time_ns()
        self._waits = list(self._find_waits())
        self._inside = {rank for wait in self._waits for rank in wait.waiting}

    # -- collectives --------------------------------------------------------------------------------------------------

    def _find_waits(self) -> Iterator[_Wait]:
        groups: dict[tuple[bool, str], dict[int, list[RankCall]]] = {}
        for each in self.ranks:
            for is_dump, calls in ((True, each.dumped), (False, each.entered)):
                for call in calls:
                    groups.setdefault((is_dump, call.communicator), {}).setdefault(each.rank, []).append(call)
        for (_, communicator), calls_of in groups.items():
            if (wait := self._wait(communicator, calls_of)) is not None:
                yield wait

    def _wait(self, communicator: str, calls_of: dict[int, list[RankCall]]) -> _Wait | None:
        still = {rank: [call for call in calls if not call.is_done] for rank, calls in calls_of.items()}
        # A rank that has ended waits for nothing.
        still = {rank: calls for rank, calls in still.items() if calls and not self._is_gone(rank)}
        if not still:
            return None
        number = min(call.number for calls in still.values() for call in calls)
        at = {rank: call for rank, calls in calls_of.items() for call in calls if call.number == number}
        waiting = tuple(sorted(rank for rank, calls in still.items() if any(c.number == number for c in calls)))
        since = [call.since_ns for rank in waiting if (call := at[rank]).since_ns is not None]
        dumped = [ns for rank in waiting if at[rank].place and (ns := self._of[rank].dumped_ns)]
        now_ns = max(dumped) if dumped else self._now_ns
        seconds = max(0.0, (now_ns - min(since)) / 1e9) if since else None
        if seconds is not None and seconds < self._after_s:
            return None
        entered = {rank: max(call.number for call in calls) for rank, calls in calls_of.items()}
        members = self._members(calls_of)
        missing = tuple(rank for rank in members if entered.get(rank, -1) < number)
        return _Wait(communicator, number, at, waiting, missing, seconds)

    def _is_gone(self, rank: int) -> bool:
        """Whether the process died before the others: their beats, or their processes, go on."""
        each = self._of[rank]
        if each.state != DEAD or each.box is None:
            return False
        last_s = (self._now_ns - each.box.beat_ns) / 1e9 if each.box.beat_ns else 0.0
        return last_s > _LATE_BEAT_S or any(other.state in (RUNNING, STOPPED) for other in self.ranks)

    def _members(self, calls_of: dict[int, list[RankCall]]) -> Sequence[int]:
        calls = [call for calls in calls_of.values() for call in calls]
        stated = next((call.members for call in calls if call.members), None)
        if stated is not None:
            return stated
        size = max(call.ranks for call in calls)
        if len(calls_of) < size <= _MOST_RANKS:  # ranks without any call of the communicator
            others = [each.rank for each in self.ranks if each.rank >= 0]
            return range(size) if size >= len(others) else sorted(calls_of)
        return sorted(calls_of)

    def collectives(self) -> list[HangCause]:
        """Causes of collectives that do not end, those of the longest wait first."""
        causes: list[HangCause] = []
        for wait in sorted(self._waits, key=lambda wait: (-len(self._guilty(wait)), -(wait.seconds or 0))):
            if (cause := self._mismatch(wait)) is not None:
                causes.append(cause)
                continue
            if fresh := [rank for rank in self._guilty(wait) if rank not in self._named]:
                causes.append(self._missing(wait, fresh))
                self._named.update(fresh)
            elif wait.missing:
                causes += self._order(wait)
            elif not self._named.issuperset(wait.waiting):
                causes.append(self._stuck(wait))
        return causes

    def _guilty(self, wait: _Wait) -> list[int]:
        """The missing ranks that wait for no other."""
        return [rank for rank in wait.missing if rank not in self._inside]

    def _chain(self, wait: _Wait) -> list[_Wait]:
        """The collectives in which the missing ranks wait, and so on; the first is `wait`."""
        chain = [wait]
        for each in chain:
            chain += [next_ for next_ in self._waits if set(next_.waiting) & set(each.missing) and next_ not in chain]
        return chain

    def _mismatch(self, wait: _Wait) -> HangCause | None:
        kinds = _together((call.kind, rank) for rank, call in wait.calls.items())
        sizes = _together((call.size, rank) for rank, call in wait.calls.items() if call.size)
        differs = kinds if len(kinds) > 1 else sizes if len(sizes) > 1 else None
        if (
            differs is None
            or self._named.issuperset(wait.calls)
            or (differs is sizes and not all(map(_EQUAL_SIZES.search, kinds)))
        ):
            return None
        common = max(differs, key=lambda value: (len(differs[value]), -min(differs[value])))
        odd = sorted(rank for value, ranks in differs.items() if value != common for rank in ranks)
        self._named.update(wait.calls)
        parts = [f"{_ranks(ranks)} {_call(ranks, value, differs is sizes)}" for value, ranks in differs.items()]
        places = [
            f"{self._of[ranks[0]].name}: {where}" for ranks in differs.values() if (where := self._where(ranks[0]))
        ]
        return HangCause(
            "mismatch",
            tuple(odd),
            tuple(sorted(set(wait.calls) - set(odd))),
            wait.seconds,
            f"Ranks call different collectives as number {wait.number} of {wait.communicator}: {'; '.join(parts)}.",
            tuple(places),
            "look for a branch, a batch or a loop that is not the same on all ranks.",
        )

    def _missing(self, wait: _Wait, guilty: list[int]) -> HangCause:
        kind, state, advice = self._reason(guilty[0])
        other = [rank for rank in guilty if self._reason(rank)[0] != kind]
        for_s = f" for {format_seconds(wait.seconds)}" if wait.seconds is not None else ""
        waits = f"{_ranks(wait.waiting)} {'waits' if len(wait.waiting) == 1 else 'wait'} inside{for_s}"
        details = [f"{_first_upper(_ranks(other))}: {self._reason(other[0])[1]}"] if other else []
        return HangCause(
            kind,
            tuple(guilty),
            wait.waiting,
            wait.seconds,
            f"{_first_upper(_ranks(guilty))} {'misses' if len(guilty) == 1 else 'miss'} {wait.what}: {waits}.",
            (f"{_first_upper(self._name(guilty[0]))} {state}", *details),
            advice,
        )

    def _order(self, wait: _Wait) -> Iterator[HangCause]:
        """The ranks that a collective lacks wait in another one, and that one lacks ranks of the first."""
        chain = self._chain(wait)
        together = {rank for each in chain for rank in each.waiting}
        if self._named >= together or any(self._guilty(each) for each in chain):
            return
        self._named |= together
        parts = [f"{_ranks(each.waiting)} in {each.what}" for each in chain]
        yield HangCause(
            "order",
            tuple(sorted(together)),
            tuple(sorted(together)),
            wait.seconds,
            f"Ranks wait for each other, each in another communicator: {'; '.join(parts)}.",
            tuple(f"{self._name(each.waiting[0])}: {self._where(each.waiting[0])}" for each in chain),
            "call the communicators in the same order on all ranks.",
        )

    def _stuck(self, wait: _Wait) -> HangCause:
        is_only = len(wait.calls) == 1
        are = "is" if len(wait.waiting) == 1 else "are"
        size = max(call.ranks for call in wait.calls.values())
        is_all = len(wait.waiting) == len(wait.calls) >= size and not is_only
        detail = "The ranks call the same kind with the same sizes."
        if is_only or len(wait.calls) < size:
            detail = f"Of {size:,} ranks, {len(wait.calls):,} have entered it." if size else "No other rank is known."
        who = "All ranks are" if is_all else f"{_first_upper(_ranks(wait.waiting))} {are}"
        return HangCause(
            "stuck",
            wait.waiting,
            wait.waiting,
            wait.seconds,
            f"{who} inside {wait.what}, and it does not end.",
            (detail,),
            "look at the network and at the GPUs: gpuscope monitor, NCCL_DEBUG=WARN, Xid errors.",
        )

    # -- single ranks -------------------------------------------------------------------------------------------------

    def alone(self) -> Iterator[HangCause]:
        """Causes in ranks that no collective has named."""
        if (cause := self._ended_early()) is not None:
            yield cause
        for each in self.ranks:
            if each.rank in self._named or each.rank in self._inside or each.box is None:
                continue
            kind, state, advice = self._reason(each.rank)
            if kind == "late" or (kind == "loader" and self._idle_s(each) is None):
                idle_s = self._idle_s(each)
                if idle_s is None:
                    continue
                kind, state = "no steps", f"has begun no step for {format_seconds(idle_s)}. It {state}"
            elif kind == "ended":
                continue
            yield HangCause(
                kind, (each.rank,), (), self._idle_s(each), f"{_first_upper(each.name)} {state}", (), advice
            )

    def _ended_early(self) -> HangCause | None:
        """Ranks that have ended in order, while all others begin no step: these may wait for them."""
        others = [each for each in self.ranks if each.box is not None and not self._is_gone(each.rank)]
        idle = [idle_s for each in others if (idle_s := self._idle_s(each)) is not None]
        gone = [each.rank for each in self.ranks if each.rank not in self._named and self._is_gone(each.rank)]
        ended = [rank for rank in gone if self._reason(rank)[0] == "ended"]
        if not ended or not idle or len(idle) < len(others):
            return None
        self._named.update(ended)
        _, state, advice = self._reason(ended[0])
        names = _first_upper(_ranks(ended))
        have = "has" if len(ended) == 1 else "have"
        waiting = tuple(each.rank for each in others)
        return HangCause(
            "ended",
            tuple(ended),
            waiting,
            min(idle),
            f"{names} {have} ended in order, and {_ranks(waiting)} then began no step for {format_seconds(min(idle))}.",
            (f"{_first_upper(self._name(ended[0]))} {state}",),
            advice,
        )

    def _idle_s(self, each: RankEvidence) -> float | None:
        """The time since the last step, if it is too long."""
        steps = each.box.steps if each.box is not None else ()
        begun = [step.begun_ns for step in steps if step.begun_ns is not None]
        if not begun or each.box is None or not (each.state == RUNNING or self.is_over):
            return None
        if each.box.is_closed and not (self.is_over and _was_terminated(each.box)):
            return None
        gaps = [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(begun)]
        last = max(steps[-1].ended_ns or 0, begun[-1])
        idle_s = (self._now_ns - last) / 1e9
        return idle_s if idle_s > max(self._after_s, _SLOW_STEPS * statistics.median(gaps or [0.0])) else None

    def _reason(self, rank: int) -> tuple[str, str, str]:
        """Why a rank does not come: the kind of cause, the rest of a sentence, and advice."""
        each = self._of.get(rank)
        if each is None:
            return "silent", "has no black box and no dump.", "look whether its process was started."
        box, where = each.box, self._where(rank)
        place = f"is {where}." if where else "is at an unknown place."
        if box is not None and self._is_gone(rank):
            after = f" after step {box.steps[-1].number}" if box.steps else ""
            last = f" Its last trigger: {box.triggers[-1][0]}." if box.triggers else ""
            if box.is_closed:
                return (
                    "ended",
                    f"has ended{after} (process {box.pid}).{last}",
                    "look at its output and its exit status.",
                )
            return (
                "dead",
                f"is dead{after}: process {box.pid} does not exist. It was {where or 'at an unknown place'}.{last}",
                "look at its output, and for the OOM killer in dmesg.",
            )
        if box is not None and each.state == STOPPED:
            return "stopped", f"is stopped by a signal: process {box.pid} is in state T.", f"kill -CONT {box.pid}"
        beat_s = (self._now_ns - box.beat_ns) / 1e9 if box is not None and box.beat_ns else 0.0
        by_text = next((thread for thread in each.threads if thread.has_gil), None)
        if each.state == RUNNING and box is not None and (beat_s > max(_LATE_BEAT_S, self._after_s / 2)):
            holder = _busy_thread(box.pid)
            region = _innermost(box.threads, holder)
            held = f"A thread holds the GIL: no Python code has run for {format_seconds(beat_s)}."
            inside = f" Thread {holder} is the suspect{f', in region {region!r}' if region else ''}." if holder else ""
            at = by_text.place if by_text is not None else each.threads[0].place if each.threads else None
            line = f" Its line: {at}." if at else ""
            return "gil", f"stands still. {held}{inside}{line}", "release the GIL in that call, or make it shorter."
        if any(thread.waits_for_loader for thread in each.threads[:1]) or _LOADS.search(self._region(each) or ""):
            advice = "look at the loader's workers and at the storage; num_workers=0 shows errors of a worker."
            return "loader", f"waits for its data loader. It {place}", advice
        advice = "look at this line: what does it wait for?" if self._place(each) else _NO_LINE
        return "late", place, advice

    def _name(self, rank: int) -> str:
        return self._of[rank].name if rank in self._of else f"rank {rank}"

    def _region(self, each: RankEvidence) -> str | None:
        return _innermost(each.box.threads, each.box.pid) if each.box is not None else None

    def _where(self, rank: int) -> str:
        """Region, its age, and Python line of a rank; empty if unknown."""
        each = self._of.get(rank)
        if each is None:
            return ""
        parts = []
        threads = each.box.threads if each.box is not None else ()
        main = next((thread for thread in threads if each.box and thread.id == each.box.pid), None)
        if thread := main or next(iter(threads), None):
            region = thread.regions[-1]
            age_s = (self._now_ns - region.began_ns) / 1e9
            parts.append(f"in region {region.name!r} for {format_seconds(max(0.0, age_s))}")
        if place := self._place(each):
            parts.append(f"at {place}")
        elif each.dumped:
            last = each.dumped[-1]
            parts.append(f"somewhere after {last.kind} {last.number} of {last.communicator}, called at {last.place}")
        return ", ".join(parts)

    def _place(self, each: RankEvidence) -> str | None:
        if each.threads and each.threads[0].place is not None:
            return str(each.threads[0].place)
        return next((call.place for call in reversed(each.dumped) if call.place and not call.is_done), None)

    def row(self, each: RankEvidence) -> HangRank:
        """The row of a rank."""
        calls = each.dumped or each.entered
        last = next((call for call in calls if not call.is_done), calls[-1] if calls else None)
        box = each.box
        return HangRank(
            rank=each.rank,
            pid=box.pid if box is not None else None,
            state=f"on {box.host}" if box is not None and each.state == ELSEWHERE else each.state,
            step=box.steps[-1].number if box is not None and box.steps else None,
            region=self._region(each),
            place=self._place(each),
            collective=f"{last.kind} {last.number} of {last.communicator}" if last is not None else None,
            waits=last is not None and not last.is_done,
        )


def _ras_causes(report: RasReport) -> Iterator[HangCause]:
    where = "; ".join(f"{_ranks(ranks)} of {name}" for name, ranks in report.missing)
    for process in report.silent[:_MOST_LISTED]:
        is_dead = process.startswith("dead ")
        state = "is dead" if is_dead else "does not answer"
        yield HangCause(
            "dead" if is_dead else "silent",
            tuple(rank for _, ranks in report.missing for rank in ranks) if len(report.silent) == 1 else (),
            (),
            None,
            f"{_first_upper(process.removeprefix('dead '))} {state}, as NCCL reports.",
            (f"NCCL misses {where}.",) if where else (),
            "look whether it is stopped (state T), dead, or its node unreachable.",
        )
    for each in report.behind[:_MOST_LISTED]:
        listed = f": {_ranks(each.ranks)}" if each.ranks else ""
        yield HangCause(
            "behind",
            each.ranks,
            (),
            None,
            f"{each.count} of the ranks of {each.communicator} {'is' if each.count == 1 else 'are'} behind in "
            f"{each.operation}: {each.launched:,} launched, the others {each.most:,}{listed}.",
            ("A busy job shows this for a moment; a job that hangs shows the same numbers again.",),
            "look at the Python stacks of these ranks.",
        )
    for error in report.errors[:_MOST_LISTED]:
        yield HangCause("stuck", (), (), None, f"NCCL reports an error: {error}.")


def _innermost(threads: Iterable[BoxThread], thread: int | None) -> str | None:
    """The innermost region of a thread, or of the first one with regions."""
    by_id = {each.id: each.regions[-1].name for each in threads}
    return by_id.get(thread or 0, next(iter(by_id.values()), None))


def _busy_thread(pid: int) -> int | None:
    """The thread that may hold the GIL: one that runs, else the only one that does not wait for a lock."""
    states: dict[int, str] = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            folder = Path(f"/proc/{pid}/task/{task}")
            is_running = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "R"
            states[int(task)] = "runs" if is_running else (folder / "wchan").read_text(errors="replace")
    except (OSError, IndexError, ValueError):
        return None
    running = [task for task, state in states.items() if state == "runs"]
    others = running or [task for task, state in states.items() if state not in ("", "0") and "futex" not in state]
    return others[0] if len(others) == 1 else None


def _together(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for value, rank in pairs:
        found.setdefault(value, []).append(rank)
    return found


def _call(ranks: Sequence[int], value: str, is_size: bool) -> str:
    verb = "calls" if len(ranks) == 1 else "call"
    return f"{verb} it with {shorten(value, 60)}" if is_size else f"{verb} {shorten(value, 40)}"


def _ranks(ranks: Sequence[int]) -> str:
    """As "rank 3" or "ranks 0, 1 and 5 more"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}" if ranks[0] >= 0 else f"process {-ranks[0]}"
    listed = [str(abs(rank)) for rank in ranks[:_MOST_LISTED]]
    more = len(ranks) - len(listed)
    last = f"{more} more" if more else listed.pop()
    return f"ranks {', '.join(listed)} and {last}"


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]
