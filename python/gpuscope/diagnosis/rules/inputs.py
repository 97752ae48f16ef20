# SPDX-License-Identifier: Apache-2.0
"""The program waits for data."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gpuscope.diagnosis.claims import Claim
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.idle import IdleCause, causes_of_paths
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import Cause, Rule, places
from gpuscope.diagnosis.steps import Array
from gpuscope.units import format_seconds

_MOST_WORKERS = 32


def _in_own_thread(context: Context) -> Iterator[Cause]:
    rows = _waits(context)
    inside = context.paths_inside(lambda name: "_SingleProcessDataLoader" in name)
    here = inside[context.path_of_regions(rows)]
    if not here.any():
        return
    waits, spent_ns = rows[here], int(context.trace.regions.duration_ns[rows[here]].sum())
    rest_ns = max(context.wall_ns - spent_ns, 1)
    workers = min(max(math.ceil(spent_ns / rest_ns), 2), _MOST_WORKERS)
    yield _cause(
        context,
        waits,
        "input-bound: the DataLoader works in the training thread",
        f"DataLoader(num_workers={workers}, persistent_workers=True, pin_memory=True), or fewer where cores are few",
    )


def _waiting(context: Context) -> Iterator[Cause]:
    rows = _waits(context)
    inside = context.paths_inside(lambda name: "_SingleProcessDataLoader" in name)
    there = ~inside[context.path_of_regions(rows)]
    if not there.any():
        return
    yield _cause(
        context,
        rows[there],
        "input-bound: the program waits for data",
        "load in more workers or threads, prefetch, cache what is decoded; gpuscope.benchmark_dataloader(loader) says "
        "how many workers pay",
    )


def _waits(context: Context) -> Array:
    """The rows of ``trace.regions`` in the steps in which data is waited for, the outermost of each."""
    regions, causes = context.trace.regions, causes_of_paths(context.trace)
    waiting = causes[np.minimum(regions.path, len(causes) - 1)] == IdleCause.DATA_WAIT
    first_ns, last_ns = context.steps.start_ns[0], context.steps.end_ns[-1]
    inside = (regions.start_ns < last_ns) & (regions.start_ns + regions.duration_ns > first_ns)
    found = np.flatnonzero(waiting & inside)
    parents = regions.parent[found]
    nested = np.append(waiting, False)[np.minimum(parents, len(regions))]
    outermost: Array = found[~nested]
    return outermost


def _cause(context: Context, waits: Array, title: str, advice: str) -> Cause:
    trace, pieces = context.trace, context.pieces
    starts = trace.regions.start_ns[waits]
    ends = starts + trace.regions.duration_ns[waits]
    # Of pieces in which data is waited for, those that overlap one of these waits.
    order = np.argsort(starts, kind="stable")
    until = np.maximum.accumulate(ends[order])
    at = np.searchsorted(starts[order], pieces.end_ns, side="left") - 1
    hit = (at >= 0) & (until[np.maximum(at, 0)] > pieces.start_ns)
    found = np.flatnonzero(hit & (pieces.cause_ns[IdleCause.DATA_WAIT] > 0))
    spans = np.stack([trace.regions.thread[waits].astype(np.int64), starts, ends], axis=1)
    longest = int(waits[np.argmax(trace.regions.duration_ns[waits])])
    mean = float(trace.regions.duration_ns[waits].sum()) / len(context.steps) / 1e9
    evidence = {
        "the wait takes": f"{format_seconds(mean)} a step",
        "in": trace.string(int(trace.paths.name[trace.regions.path[longest]])),
    }
    where = places(context.where_of_region(longest))
    return Cause(title, advice, Claim(found, (IdleCause.DATA_WAIT,)), Edit(host_spans=spans), where, evidence)


RULES = (
    Rule("R01", "the program waits for data", _waiting, 0.03),
    Rule("R02", "the data loader works in the training thread", _in_own_thread, 0.03),
)
