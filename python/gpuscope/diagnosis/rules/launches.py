# SPDX-License-Identifier: Apache-2.0
"""Launch-bound programs: the GPU waits for launches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gpuscope._core import CallKind, Flag
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import (
    LEAST,
    SHORTEST_KERNEL_NS,
    SPECIAL,
    UNSPECIFIC,
    Cause,
    Rule,
    kernel_edit,
    places,
)
from gpuscope.steps.idle import WAITING, IdleCause
from gpuscope.steps.kernel_classes import KernelClass
from gpuscope.steps.steps import Array, distinct, is_one_of
from gpuscope.units import format_digits, format_seconds

LAUNCHING = (IdleCause.FRAMEWORK, IdleCause.HOST_CODE, IdleCause.LAUNCH_CALL, IdleCause.LAUNCH_LATENCY)
"""Causes of the host's time between launches."""

_KERNELS_OF_AN_INTERVAL = 3  # kernels longer than this many launches keep the GPU busy
# Gap between dependent nodes of a graph on an H100: 0.4 us; between queued kernels: 1.1 us.
_BETWEEN_NODES_NS = 400
_LEAST_FACTOR = 0.01  # of a kernel's time: with 0 the kernel would not exist
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_MANY_TENSORS = re.compile(r"multi_tensor|fused_|_fused", re.IGNORECASE)
_FEWEST_OF_AN_OPTIMIZER = 40  # kernels a step
_CHAIN = 4
_WAITING = (CallKind.SYNC, CallKind.FREE)
_BREAKS = 0.1  # of the launches


def of_launches(context: Context) -> Array:
    """Idle pieces that end with a launch and are no longer than launching takes."""
    launches = np.append(context.launches, False)[context.pieces.launch]
    found: Array = np.flatnonzero(launches & ~context.long_pieces)
    return found


def launched_at_once(context: Context, pieces: Array, calls: Array) -> Array:
    """Host time that one launch of a graph saves, as `Edit.host_spans`.

    It is the time before the launches that end these idle pieces. The time before `calls` counts even if the GPU had
    work then: a host that is behind loses that time too.
    """
    api = context.trace.api
    pieces = pieces[context.in_replay(context.pieces.launch[pieces])]
    ending = context.pieces.launch[pieces]
    every = np.append(ending, calls[context.in_replay(calls)])
    previous, begins = context.call_before[every], api.start_ns[every]
    goes_on = (previous >= 0) & ~is_one_of(context.trace.call_kinds[previous], _WAITING)
    starts = np.where(goes_on, api.start_ns[previous] + api.duration_ns[previous], begins)
    # In longer gaps the program does other work than launching.
    starts = np.where(begins - starts > context.longest_launch_ns, begins, starts)
    waited = ~goes_on[: len(ending)]
    idle_ns = context.pieces.start_ns[pieces]
    starts[: len(ending)] = np.where(waited, np.minimum(idle_ns, begins[: len(ending)]), starts[: len(ending)])
    spans = np.stack([api.thread[every].astype(np.int64), starts, begins + api.duration_ns[every]], axis=1)
    found: Array = spans[spans[:, 2] > spans[:, 1]]
    return found


def _waited(context: Context, pieces: Array) -> Array:
    """How far ahead the host would be at each piece without its wait for the GPU before it."""
    found: Array = context.pieces.waited_ns[pieces] + context.pieces.sum_of(WAITING, pieces)
    return found


def _launch_bound(context: Context) -> Iterator[Cause]:
    interval_ns = context.launch_interval_ns
    if len(context.kernels) == 0 or interval_ns == 0:
        return
    kernel_ns = float(np.median(context.duration_ns[context.kernels]))
    launches = context.launches & (context.call_step >= 0)
    graphs = int(((context.trace.call_kinds == int(CallKind.GRAPH_LAUNCH)) & (context.call_step >= 0)).sum())
    count = int(launches.sum())
    # GPU time per launch, which may be a graph; of the whole recording, as the GPU may be far behind in a few steps.
    work_ns = kernel_ns * len(context.trace.kernels) / max(int(context.launches.sum()), 1)
    if work_ns >= _KERNELS_OF_AN_INTERVAL * interval_ns:
        return
    rows = of_launches(context)
    # The cost of a wait is not launch time: without the wait the host would be ahead.
    spent = context.pieces.sum_of(LAUNCHING, rows)
    weights = np.maximum(spent - _waited(context, rows), 0)
    where = places(*context.places_of(context.pieces.launch[rows], weights)[:2])
    evidence = {
        "": f"{format_digits(count / len(context.steps))} launches a step, one every {_time(interval_ns)} (p50)",
        "kernels take": f"{_time(kernel_ns)} (p50)",
    }
    if 2 * graphs > count:
        title = "launch-bound: the GPU waits for the next graph launch"
        advice = "put more work in a graph: several steps (lax.scan, a longer capture), or a larger batch"
    else:
        title = "launch-bound: the host launches slower than the GPU works"
        advice = 'use a CUDA graph (torch.compile(mode="reduce-overhead"), jax.jit, cupy graphs), or a larger batch'
        if context.has_single_launches:  # a graph launch instead of it saves nothing
            advice = "put more work in a launch: a CUDA graph of several steps, or a larger batch"
        drains = distinct(context.pieces.drain[context.pieces.heads], len(context.trace.api))
        waits = len(drains) / len(context.steps)
        if waits >= 1:
            place = context.places_of(drains, np.ones(len(drains)))[0]
            line = f" ({place})" if place is not None else ""
            advice += f"; first remove the {format_digits(waits)} waits a step{line}: a graph cannot contain waits"
    # Gaps between queued kernels only count if a graph helps.
    is_bound = weights.sum() >= LEAST * context.wall_ns
    if not is_bound and (tiny := _tiny_kernels(context, advice)) is not None:
        yield tiny
        return
    edit = Edit(host_spans=launched_at_once(context, rows, np.flatnonzero(launches)))
    if is_bound:
        short, between = _as_nodes(context, context.kernels, _KERNELS_OF_AN_INTERVAL * interval_ns)
        edit = replace(_sooner(context, short, between), host_spans=edit.host_spans)
    yield Cause(title, advice, edit, where, evidence)


def _tiny_kernels(context: Context, advice: str) -> Cause | None:
    """The saving of a graph if the host is ahead: for kernels at most twice as long as the gaps between them.

    Longer kernels are common in any program, and a graph saves less.
    """
    if not context.pieces.present[IdleCause.BACK_TO_BACK]:
        return None
    short, between = _as_nodes(context, context.kernels, math.inf)
    tiny = short[context.duration_ns[short] <= 2 * (between + _BETWEEN_NODES_NS)]
    tiny, between = _as_nodes(context, tiny, math.inf)
    if len(tiny) * between < LEAST * context.wall_ns or len(tiny) == 0:
        return None
    evidence = {
        "": f"{format_digits(len(tiny) / len(context.steps))} such kernels a step",
        "gaps take": f"{_time(between + _BETWEEN_NODES_NS)} (p50), in a graph {_time(_BETWEEN_NODES_NS)}",
        "kernels take": f"{_time(float(np.median(context.duration_ns[tiny])))} (p50)",
    }
    title = "launch-bound: kernels are about as short as the gaps between them"
    where = places(*context.places_of(context.work_launch[tiny], np.ones(len(tiny)))[:2])
    return Cause(title, advice, _sooner(context, tiny, between), where, evidence)


def _between(context: Context, rows: Array, kernels: Array, between: float) -> Array:
    """Time of each idle piece that is before these kernels and that a graph saves."""
    if not context.pieces.present[IdleCause.BACK_TO_BACK]:
        return np.zeros(len(rows))
    queued = context.pieces.cause_ns[IdleCause.BACK_TO_BACK, rows]
    found: Array = np.minimum(np.isin(context.pieces.next[rows], kernels) * queued, between)
    return found


def _sooner(context: Context, kernels: Array, between: float) -> Edit:
    """Each kernel begins sooner by `between`; a replay shortens the kernel by as much."""
    left = 1 - between / np.maximum(context.duration_ns[kernels], 1)
    return kernel_edit(context, kernels, np.maximum(left, _LEAST_FACTOR))


def _as_nodes(context: Context, kernels: Array, longest_ns: float) -> tuple[Array, float]:
    """Kernels up to a length that are launched one by one, and how much sooner each begins as a node of a graph."""
    alone = context.column("kernels", "flags", kernels) & int(Flag.IN_GRAPH) == 0
    short = kernels[alone & (context.duration_ns[kernels] < longest_ns)]
    pieces = context.pieces
    queued = pieces.having(IdleCause.BACK_TO_BACK)
    gaps = pieces.cause_ns[IdleCause.BACK_TO_BACK, queued[np.isin(pieces.next[queued], short)]]
    return short, max(float(np.median(gaps)) - _BETWEEN_NODES_NS, 0.0) if len(gaps) else 0.0


def _chains(context: Context) -> Iterator[Cause]:
    """Consecutive elementwise kernels with equal grids on a stream: one kernel could do the work of all."""
    rows = context.kernels
    if len(rows) < _CHAIN or len(context.trace.variants) == 0:
        return
    assert context.device is not None
    if np.count_nonzero(context.device.work.classes[rows] == int(KernelClass.ELEMENTWISE)) < _CHAIN:
        return
    tracks = context.column("kernels", "track", rows)
    order = np.lexsort((context.start_ns[rows], tracks))
    rows, tracks = rows[order], tracks[order]
    variants = context.trace.variants
    grids = np.stack([variants[f"grid_{axis}"][context.kernel_variant[order]] for axis in "xyz"], axis=1)
    plain = context.device.work.classes[rows] == int(KernelClass.ELEMENTWISE)
    plain &= ~context.work_inside(_OPTIMIZER_STEP.search, rows)
    goes_on = plain[1:] & plain[:-1] & (tracks[1:] == tracks[:-1]) & (grids[1:] == grids[:-1]).all(axis=1)
    goes_on &= context.work_step[rows[1:]] == context.work_step[rows[:-1]]
    chain = np.cumsum(np.append(True, ~goes_on)) - 1
    length = np.bincount(chain)[chain]
    chosen = plain & (length >= _CHAIN)
    if not chosen.any():
        return
    work = rows[chosen]
    saved = context.duration_ns[work] * (1 - 1 / length[chosen])
    where = places(*context.places_of(context.work_launch[work], saved)[:2])
    count = format_digits(chosen.sum() / len(context.steps))
    evidence = {
        "": f"{count} kernels a step in chains of {np.median(length[chosen]):.0f}",
        "each takes": f"{_time(float(np.median(context.duration_ns[work])))} (p50)",
    }
    yield Cause(
        "chains of small elementwise kernels",
        "fuse them: torch.compile, jax.jit, cupy.fuse, or one operator for all",
        kernel_edit(context, work, 1 / length[chosen]),
        where,
        evidence,
    )


def _optimizer(context: Context) -> Iterator[Cause]:
    rows = context.kernels
    if len(rows) == 0 or len(context.trace.variants) == 0:
        return
    inside = context.work_inside(_OPTIMIZER_STEP.search, rows)
    work = rows[inside]
    count = len(work) / len(context.steps)
    if count < _FEWEST_OF_AN_OPTIMIZER:
        return
    many = np.array([bool(_MANY_TENSORS.search(name)) for name in context.kernel_names])[context.kernel_variant]
    if 2 * many[inside].sum() > len(work):
        return
    assert context.device is not None
    before = np.flatnonzero(np.isin(context.pieces.next, work))
    calls = context.work_launch[work]
    where = places(*context.places_of(calls, np.ones(len(work)))[:1])
    # One kernel for many tensors does the same work, and has the fixed cost of a kernel once.
    duration = context.duration_ns[work].astype(np.float64)
    saved = np.minimum(duration, SHORTEST_KERNEL_NS)
    at_once = launched_at_once(context, before[context.pieces.launch[before] >= 0], np.unique(calls[calls >= 0]))
    yield Cause(
        "the optimizer updates one tensor at a time",
        "set foreach=True or fused=True in the optimizer",
        replace(kernel_edit(context, work, 1 - saved / np.maximum(duration, 1)), host_spans=at_once),
        where,
        {"": f"{format_digits(count)} kernels a step in Optimizer.step"},
    )


def _graph_breaks(context: Context) -> Iterator[Cause]:
    """Launches of single kernels in steps that also launch graphs."""
    kinds, steps, count = context.trace.call_kinds, context.call_step, len(context.steps)
    if not (kinds == int(CallKind.GRAPH_LAUNCH)).any():
        return
    inside = steps >= 0
    graphs = np.bincount(steps[inside & (kinds == int(CallKind.GRAPH_LAUNCH))], minlength=count)
    eager = np.flatnonzero(inside & (kinds == int(CallKind.LAUNCH)))
    eager = eager[graphs[steps[eager]] > 0]
    if len(eager) == 0 or len(eager) < _BREAKS * (len(eager) + graphs.sum()):
        return
    rows = of_launches(context)
    rows = rows[np.isin(context.pieces.launch[rows], eager)]
    where = places(*context.places_of(eager, np.ones(len(eager)))[:2])
    yield Cause(
        "kernels are launched one by one between graphs",
        "remove graph breaks (prints, .item(), data-dependent branches): TORCH_LOGS=graph_breaks lists them",
        Edit(host_spans=launched_at_once(context, rows, eager)),
        where,
        {"": f"{format_digits(len(eager) / count)} launches and {format_digits(graphs.sum() / count)} graphs a step"},
    )


def _gradients_filled(context: Context) -> Iterator[Cause]:
    if context.device is None:
        return
    work = np.flatnonzero(context.work_step >= 0)
    work = work[context.work_inside(_ZERO_GRAD.search, work)]
    if len(work) == 0:
        return
    calls = context.work_launch[work]
    where = places(*context.places_of(calls, np.ones(len(work)))[:1])
    yield Cause(
        "gradients are filled with zeros",
        "use zero_grad(set_to_none=True), PyTorch's default",
        Edit(removed_calls=distinct(calls[(calls >= 0) & context.in_replay(calls)], len(context.trace.api))),
        where,
        {"": f"{format_digits(len(work) / len(context.steps))} fills a step"},
    )


def _time(time_ns: float) -> str:
    return format_seconds(time_ns / 1e9)


RULES = (
    Rule("R19", "launch-bound", _launch_bound, LEAST, weight=UNSPECIFIC),
    Rule("R20", "chains of elementwise kernels", _chains, LEAST),
    Rule("R21", "an optimizer that updates one tensor at a time", _optimizer, 0.02, weight=SPECIAL),
    Rule("R22", "graph breaks", _graph_breaks, LEAST, weight=SPECIAL),
    Rule("R40", "gradients filled with zeros", _gradients_filled, 0.01, weight=SPECIAL),
)
