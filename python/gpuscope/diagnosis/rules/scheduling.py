# SPDX-License-Identifier: Apache-2.0
"""The launching thread is runnable, but waits: others have the CPU, the GIL or a lock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.own_code import waits_for_threads
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import Cause, Rule, count_of, needs, places
from gpuscope.spans import union
from gpuscope.steps.host_waits import NOT_KNOWN, Spans, cpu_waits, lock_waits
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.steps import WHOLE_RUN, Array
from gpuscope.units import format_digits, format_seconds

_FEWEST_STEPS = 3
_CONDITION = 0.01  # least share of waits for a CPU to report
_SOME_CPU = 0.3
_ONE_CPU = 1.1  # CPUs that a program with one computing thread uses
_RECORDED = "recorded"
_NO_SAMPLES = "waits for CPUs, locks and worker processes: python_samples=True, --python-samples 1ms"
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
    """The program's own threads and processes have the CPUs that one of its threads waits for."""
    pieces = _pieces(context, IdleCause.CPU_WAIT)
    used, others = _used_cpus(context), _others_cpus(context)
    if len(pieces) == 0 or (others is not None and used[0] <= max(_ONE_CPU, others)):
        return
    evidence = {"the program used": f"{format_digits(used[0])} CPUs, {count_of(used[1], 'process', 'processes')}"}
    yield _waiting(
        context,
        IdleCause.CPU_WAIT,
        pieces,
        f"{_thread(context)} waits for a CPU: the program runs more threads than there are CPUs",
        "fewer threads: OMP_NUM_THREADS and MKL_NUM_THREADS = cores / (workers + 1), torch.set_num_threads, fewer "
        "workers",
        evidence if used[1] else {},
    )


def _used_cpus(context: Context) -> tuple[float, int]:
    """The number of CPUs that the program kept busy in the steps, and of its processes there; 0 if unknown."""
    usages = context.trace.process_usages
    rows = np.flatnonzero(_in_steps(context, usages.start_ns))
    return float(usages.cpu_ns[rows].sum()) / max(context.wall_ns, 1), len(np.unique(usages.process[rows]))


def _others_cpus(context: Context) -> float | None:
    """The number of CPUs that other processes kept busy; None if unknown."""
    used, processes = _used_cpus(context)
    try:
        busy = float(context.trace.info["machine.cpus_busy"])
    except (KeyError, ValueError):
        return None
    return max(busy - used, 0.0) if processes and math.isfinite(busy) else None


def machine_condition(context: Context) -> str | None:
    """A sentence if other processes have the CPUs that the program waits for: changing the program does not help.

    That is the case if they use more CPUs than the program, or the program uses at most one.
    """
    waited_ns = int(context.pieces.cause_ns[IdleCause.CPU_WAIT].sum())
    used, others, count = _used_cpus(context)[0], _others_cpus(context), context.trace.info.get("machine.cpus", "?")
    if others is None or others < _SOME_CPU or used > max(_ONE_CPU, others):
        return None
    if waited_ns < _CONDITION * context.wall_ns:
        return None
    a_step = "" if context.steps.source == WHOLE_RUN else " per step"
    waited = format_seconds(waited_ns / len(context.steps) / 1e9)
    theirs = f"other processes use {format_digits(others)} of {count} CPUs"
    return f"{theirs}: {_thread(context)} waited {waited}{a_step} for a CPU"


def _lock(context: Context) -> Iterator[Cause]:
    pieces = _pieces(context, IdleCause.LOCK)
    if len(pieces) == 0:
        return
    idle, trace = context.pieces, context.trace
    threads = context.threads_of(pieces)
    others = set(np.unique(trace.python_samples.thread).tolist()) - threads
    spans = idle.start_ns[pieces], idle.end_ns[pieces]
    if context.device is None and waits_for_threads(context, union(*lock_waits(trace, context.main_thread))):
        return  # it only waits for them: `host_time` counts their work
    ran = context.sampled_places(others, *spans, "cpu_ns")[:1]
    waited = context.sampled_places(threads, *spans)[:1]
    found = [where for where, _ in (*ran, *waited)]
    yield _waiting(
        context,
        IdleCause.LOCK,
        pieces,
        f"{_thread(context)} waits for the GIL or a lock, while another Python thread runs",
        "do that work in another process, or in calls that release the GIL; hold locks for shorter",
        {words: str(where) for words, where in zip(("meanwhile ran", "at"), found, strict=False) if where},
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
    waited = format_seconds(spent / len(context.steps) / 1e9)
    waited += " per step" if context.steps.source != WHOLE_RUN else ""
    return Cause(
        title,
        advice,
        Edit(host_spans=spans),
        where,
        {f"{_thread(context)} waited": waited, **evidence},
        is_rare=True,
    )


def _thread(context: Context) -> str:
    """Name of the thread that launches; without a GPU, of the thread that runs the steps."""
    return "the launching thread" if context.device else "the main thread"


def _spans(context: Context, cause: IdleCause, pieces: Array) -> Array:
    """The waits of the threads that launch after these pieces: rows of thread, start and end."""

    def waits(thread: int) -> Spans:
        if cause == IdleCause.LOCK:
            return lock_waits(context.trace, thread)
        limited, others = cpu_waits(context.trace, thread)
        return limited if cause == IdleCause.CPU_LIMIT else others

    rows = [np.zeros((0, 3), np.int64)]
    for thread in sorted(context.threads_of(pieces)):
        starts, ends = union(*waits(thread))
        rows.append(np.stack([np.full(len(starts), thread), starts, ends], axis=1))
    return np.concatenate(rows)


def _pieces(context: Context, cause: IdleCause) -> Array:
    """The pieces with this cause; none in fewer than three steps, as a wait may be chance."""
    waited = context.pieces.cause_ns[cause] > 0
    are_enough = len(context.steps) >= _FEWEST_STEPS or context.steps.source == WHOLE_RUN
    found: Array = np.flatnonzero(waited & are_enough)
    return found


def _in_steps(context: Context, starts: Array) -> Array:
    inside: Array = (starts >= context.steps.start_ns[0]) & (starts < context.steps.end_ns[-1])
    return inside


def needs_host(*sources: str) -> Callable[[Context], str | None]:
    """For `Rule.needs`: a sentence on the first of these sources (in ``info``) that was not recorded."""

    def missing(context: Context) -> str | None:
        for source in sources:
            said = context.trace.info.get(f"host.{source}")
            if said is None:
                return _NO_SAMPLES
            if said != _RECORDED:
                return f"{_MEANING[source]}: {said}"
        return None

    return missing


_LIMIT = needs_host("control_group_usages.throttled_ns", "thread_waits")
_SAMPLES = needs(
    _NO_SAMPLES,
    lambda context: len(context.trace.python_samples) or "samples.interval_ns" in context.trace.info,
)

RULES = (
    Rule("R07", "a CPU limit that stops the program", _cpu_limit, 0.03, _LIMIT),
    Rule("R08", "more threads than CPUs", _cpu_wait, 0.03, needs_host("thread_waits")),
    Rule("R25", "the GIL and locks", _lock, 0.01, _SAMPLES),
)
