# SPDX-License-Identifier: Apache-2.0
"""The launching thread would go on, and does not run: others have the CPU, the GIL or a lock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.diagnosis.claims import late_claim
from gpuscope.diagnosis.context import Context, Where, joined
from gpuscope.diagnosis.host_waits import NOT_KNOWN, Spans, cpu_waits, lock_waits
from gpuscope.diagnosis.idle import IdleCause
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import Cause, Rule, count_of, places
from gpuscope.diagnosis.steps import Array
from gpuscope.units import format_digits, format_seconds

_FEWEST_STEPS = 3
_RECORDED = "recorded"
_MEANING = {
    "thread_waits": "waits for a CPU",
    "process_usages": "what worker processes do",
    "control_group_usages.throttled_ns": "a CPU limit of the container",
    "control_group_usages.io_wait_ns": "waits for storage",
}


def _cpu_limit(context: Context) -> Iterator[Cause]:
    pieces = _pieces(context, IdleCause.CPU_LIMIT)
    if len(pieces) == 0:
        return
    groups = context.trace.control_group_usages
    rows = np.flatnonzero(_in_steps(context, groups.start_ns) & (groups.throttled_ns != NOT_KNOWN))
    periods = int(np.maximum(groups.throttled_periods[rows], 0).sum())
    yield _waiting(
        context,
        IdleCause.CPU_LIMIT,
        pieces,
        "the container's CPU limit stops the program",
        "raise the limit (cpu.max, docker --cpus, resources.limits.cpu), or run fewer threads: OMP_NUM_THREADS and "
        "num_workers together no more than the limit",
        {"throttled": f"in {count_of(periods, 'period')} of the limit"},
    )


def _cpu_wait(context: Context) -> Iterator[Cause]:
    pieces = _pieces(context, IdleCause.CPU_WAIT)
    if len(pieces) == 0:
        return
    usages = context.trace.process_usages
    rows = np.flatnonzero(_in_steps(context, usages.start_ns))
    evidence = {}
    if len(rows):
        cores = float(usages.cpu_ns[rows].sum()) / max(context.wall_ns, 1)
        count = len(np.unique(usages.process[rows]))
        processes = "1 process" if count == 1 else f"{count} processes"
        evidence["the program used"] = f"{format_digits(cores)} cores, {processes}"
    yield _waiting(
        context,
        IdleCause.CPU_WAIT,
        pieces,
        f"more threads want to run than there are CPUs, and {_thread(context)} waits",
        "fewer threads: OMP_NUM_THREADS and MKL_NUM_THREADS = cores / (workers + 1), torch.set_num_threads, fewer "
        "workers, or nothing else on these cores (taskset)",
        evidence,
    )


def _lock(context: Context) -> Iterator[Cause]:
    pieces = _pieces(context, IdleCause.LOCK)
    if len(pieces) == 0:
        return
    idle, trace = context.pieces, context.trace
    threads = context.threads_of(pieces)
    others = set(np.unique(trace.python_samples.thread).tolist()) - threads
    spans = idle.start_ns[pieces], idle.end_ns[pieces]
    ran = context.sampled_places(others, *spans, "cpu_ns")[:1]
    waited = context.sampled_places(threads, *spans)[:1]
    found = [where for where, _ in (*ran, *waited)]
    yield _waiting(
        context,
        IdleCause.LOCK,
        pieces,
        f"{_thread(context)} waits for the GIL or a lock, while another Python thread runs",
        "do that work in another process, or in calls that release the GIL; hold locks for shorter",
        {words: str(where) for words, where in zip(("while there ran", "at"), found, strict=False) if where},
        places(*found),
    )


def _waiting(
    context: Context,
    cause: IdleCause,
    pieces: Array,
    title: str,
    advice: str,
    evidence: dict[str, str],
    where: tuple[Where, ...] = (),
) -> Cause:
    """The launching thread waits in these pieces."""
    spent, spans = float(context.pieces.cause_ns[cause, pieces].sum()), _spans(context, cause, pieces)
    waited = f"{format_seconds(spent / len(context.steps) / 1e9)} a step"
    return Cause(
        title,
        advice,
        late_claim(context, cause, pieces, spans),
        Edit(host_spans=spans),
        where,
        {f"{_thread(context)} waited": waited, **evidence},
        is_rare=True,
    )


def _thread(context: Context) -> str:
    """What launches; without a GPU, what takes the steps."""
    return "the launching thread" if context.device else "the thread that takes the steps"


def _spans(context: Context, cause: IdleCause, pieces: Array) -> Array:
    """When the threads that launch after these pieces waited so: rows of a thread, a start and an end."""

    def waits(thread: int) -> Spans:
        if cause == IdleCause.LOCK:
            return lock_waits(context.trace, thread)
        limited, others = cpu_waits(context.trace, thread)
        return limited if cause == IdleCause.CPU_LIMIT else others

    rows = [np.zeros((0, 3), np.int64)]
    for thread in sorted(context.threads_of(pieces)):
        starts, ends = joined(*waits(thread))
        rows.append(np.stack([np.full(len(starts), thread), starts, ends], axis=1))
    return np.concatenate(rows)


def _pieces(context: Context, cause: IdleCause) -> Array:
    """Those with this cause; of a step or two none, which may have waited once by chance."""
    waited = context.pieces.cause_ns[cause] > 0
    found: Array = np.flatnonzero(waited & (len(context.steps) >= _FEWEST_STEPS))
    return found


def _in_steps(context: Context, starts: Array) -> Array:
    inside: Array = (starts >= context.steps.start_ns[0]) & (starts < context.steps.end_ns[-1])
    return inside


def lacks(context: Context, *sources: str) -> str | None:
    """What is not known without these sources, as ``info`` has them, and why; None where all were recorded."""
    for source in sources:
        said = context.trace.info.get(f"host.{source}")
        if said is None:
            return "waits for CPUs, locks and worker processes: python_samples=True, --python-samples 1ms"
        if said != _RECORDED:
            return f"{_MEANING[source]}: {said}"
    return None


def _lacks_limit(context: Context) -> str | None:
    return lacks(context, "control_group_usages.throttled_ns", "thread_waits")


def _lacks_waits(context: Context) -> str | None:
    return lacks(context, "thread_waits")


def _lacks_samples(context: Context) -> str | None:
    return None if len(context.trace.python_samples) else lacks(context, "python_samples")


RULES = (
    Rule("R07", "a CPU limit that stops the program", _cpu_limit, 0.03, _lacks_limit),
    Rule("R08", "more threads than CPUs", _cpu_wait, 0.03, _lacks_waits),
    Rule("R25", "the GIL and locks", _lock, 0.01, _lacks_samples),
)
