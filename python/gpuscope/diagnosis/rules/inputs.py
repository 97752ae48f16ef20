# SPDX-License-Identifier: Apache-2.0
"""The program waits for data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.own_code import functions_in
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.rule import LEAST, SPECIAL, Cause, Rule, host_edit, places
from gpuscope.diagnosis.rules.scheduling import needs_host
from gpuscope.spans import covered_ns, in_turn, union
from gpuscope.steps.host_waits import NOT_KNOWN, stacks_in
from gpuscope.steps.idle import IdleCause, causes_of_paths
from gpuscope.steps.steps import Array
from gpuscope.trace import number_of
from gpuscope.units import format_bytes, format_seconds, format_share

_MOST_WORKERS = 32
# Shares of time: CPU time of workers that are the limit, and of workers that are not; waits of workers for a CPU; CPU
# time of a thread that is the limit; CPU time of workers that did nothing.
_WORKS, _RESTS, _WAITS, _BUSY, _IDLE = 0.8, 0.4, 0.25, 0.8, 0.01
# Workers wait for storage if it stalled tasks of the container for this share of the time, or if the workers read this
# many bytes per second.
_STALLED, _READS = 0.1, 1 << 20
# The first step of an epoch takes this many times the median; processes are sampled ten times a second.
_STALLS, _SEEN_WITHIN_NS, _FEWEST_STEPS = 3, 200_000_000, 5


def loaded_by_thread_ns(context: Context) -> int:
    """Idle time while the training thread loads data itself, without its waits for workers."""
    rows = context.once(_waits)
    own = _pieces_of(context, rows[_is_own(context, rows)])
    others = _pieces_of(context, _waits_for_workers(context))
    return int(context.pieces.cause_ns[IdleCause.DATA_WAIT, np.setdiff1d(own, others)].sum())


def _in_own_thread(context: Context) -> Iterator[Cause]:
    rows = context.once(_waits)
    waits = rows[_is_own(context, rows)]
    if len(waits) == 0:
        return
    spent_ns = _spent_ns(context, waits)
    rest_ns = max(context.wall_ns - spent_ns, 1)
    cpus = number_of(context.trace.info, "machine.cpus")
    workers = min(max(math.ceil(spent_ns / rest_ns), 2), cpus or _MOST_WORKERS)
    pinned = ", pin_memory=True" if context.device is not None else ""
    yield _cause(
        context,
        waits,
        "input-bound: the training thread loads the data itself",
        f"DataLoader(num_workers={workers}, persistent_workers=True{pinned})"
        + ("" if cpus else ", or fewer if cores are few")
        + "; keep a small dataset in memory",
    )


def _waiting(context: Context) -> Iterator[Cause]:
    rows = _waits_for_workers(context)
    if len(rows) == 0 or _computes(context, rows):
        return
    yield _cause(
        context,
        rows,
        "input-bound: the program waits for data",
        "use more workers or threads, up to one per CPU; prefetch (prefetch_factor=4), cache decoded data; "
        "gpuscope.benchmark_dataloader(loader) finds the best number of workers",
    )


def _computes(context: Context, rows: Array) -> bool:
    """Without GPU work: whether the program itself computes in these regions; its own lines are the better finding."""
    if context.device is not None:
        return False
    starts = context.trace.regions.start_ns[rows]
    spans = union(starts, starts + context.trace.regions.duration_ns[rows])
    seen, on_cpu = (
        sum(stacks_in(context.trace, [context.main_thread], *spans, column).values())
        for column in ("duration_ns", "cpu_ns")
    )
    return 2 * on_cpu > seen


def _few_workers(context: Context) -> Iterator[Cause]:
    rows, workers = _waits_for_workers(context), _workers(context)
    if len(rows) == 0 or workers is None or workers.cpu_share < _WORKS:
        return
    spent_ns = _spent_ns(context, rows)
    rest_ns = max(context.wall_ns - spent_ns, 1)
    enough = min(math.ceil(workers.count * context.wall_ns / rest_ns), _MOST_WORKERS)
    yield _of_workers(
        context,
        rows,
        workers,
        "input-bound: too few worker processes, which are always busy",
        f"num_workers={max(enough, workers.count + 1)} if there are enough cores "
        "(gpuscope.benchmark_dataloader(loader) measures it), or less work per sample: cache decoded samples"
        + _on_gpu(context),
    )


def _storage(context: Context) -> Iterator[Cause]:
    rows, workers = _waits_for_workers(context), _workers(context)
    if len(rows) == 0 or workers is None or workers.cpu_share >= _RESTS or not workers.waits_for_storage:
        return
    yield _of_workers(
        context,
        rows,
        workers,
        "input-bound: the worker processes wait for storage",
        "copy the data to a local SSD or memory, read shards instead of small files, raise prefetch_factor",
    )


def _one_thread(context: Context) -> Iterator[Cause]:
    rows, workers = _waits_for_workers(context), _workers(context)
    if len(rows) == 0 or workers is None or workers.cpu_share >= _RESTS or workers.waits_for_storage:
        return
    trace = context.trace
    starts, ends = in_turn(trace.regions.start_ns[rows], (trace.regions.start_ns + trace.regions.duration_ns)[rows])
    waited_ns = int((ends - starts).sum())
    for thread in np.unique(trace.python_samples.thread).tolist():
        at = context.sampled_places([thread], starts, ends, "cpu_ns")
        on_cpu_ns = sum(time for _, time in at)
        if on_cpu_ns < _BUSY * waited_ns or on_cpu_ns == 0:
            continue
        found = _of_workers(
            context,
            rows,
            workers,
            "input-bound: one thread prepares the batches of all worker processes",
            "collate in the workers (collate_fn runs there if num_workers > 0), use arrays instead of lists, and "
            "pin_memory=False if batches are many small tensors",
        )
        yield replace(
            found,
            where=(at[0][0], *found.where),
            evidence={**found.evidence, "the thread is busy": format_share(on_cpu_ns / waited_ns)},
        )
        return


def _workers_wait(context: Context) -> Iterator[Cause]:
    rows, workers = _waits_for_workers(context), _workers(context)
    if len(rows) == 0 or workers is None or workers.wait_share is None or workers.wait_share < _WAITS:
        return
    found = _of_workers(
        context,
        rows,
        workers,
        "input-bound: the worker processes wait for a CPU",
        "use fewer workers, one thread per worker (torch.set_num_threads(1), OMP_NUM_THREADS=1), or more cores"
        + _on_gpu(context),
    )
    yield replace(found, evidence={**found.evidence, "they wait for a CPU": format_share(workers.wait_share)})


def _new_workers(context: Context) -> Iterator[Cause]:
    """Slow steps that wait for new worker processes."""
    rows, trace, steps = _waits_for_workers(context), context.trace, context.steps
    usages = trace.process_usages
    children = np.flatnonzero(usages.process != number_of(trace.info, "process.id"))
    if len(rows) == 0 or len(children) == 0 or len(steps) < _FEWEST_STEPS:
        return
    _, place = np.unique(usages.process[children], return_inverse=True)
    begun_ns = np.full(int(place.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun_ns, place.reshape(-1), usages.start_ns[children])
    # Workers that were there from the start did not begin in a step. Others are seen a moment after they begin.
    begun_ns = np.sort(begun_ns[begun_ns > usages.start_ns.min() + _SEEN_WITHIN_NS])
    # Workers begin in a step of the host, which may be before its GPU work. Their first batch is late.
    since_ns, until_ns = context.host_steps.start_ns, context.host_steps.end_ns + _SEEN_WITHIN_NS
    came = np.searchsorted(begun_ns, until_ns, side="right") > np.searchsorted(begun_ns, since_ns, side="left")
    slow = np.flatnonzero(_runs_of(steps.durations_ns > _STALLS * np.median(steps.durations_ns), came))
    regions = trace.regions
    step = context.host_steps.at(regions.start_ns[rows])
    here = rows[np.isin(step, slow)]
    if len(here) == 0:
        return
    found = _cause(
        context,
        here,
        "input-bound: each epoch starts new worker processes",
        "use DataLoader(persistent_workers=True) and one loader for all epochs, or longer epochs",
    )
    # The gap that waits for data also contains the start of the workers.
    gaps = _pieces_of(context, here)
    begun = host_edit(
        context, gaps[np.isin(context.pieces.step[gaps], slow)], (IdleCause.DATA_WAIT, IdleCause.HOST_CODE)
    )
    found = replace(found, edit=Edit(host_spans=np.concatenate([found.edit.host_spans, begun.host_spans])))
    waited = float(regions.duration_ns[here].sum()) / len(slow) / 1e9
    evidence = {"slow steps": f"{len(slow)} of {len(steps)}", "each waits": format_seconds(waited)}
    yield replace(found, evidence={**found.evidence, **evidence}, is_rare=True)


def _runs_of(marked: Array, begins: Array) -> Array:
    """Whether each entry is in a run of marked entries that contains one of `begins`."""
    run = np.cumsum(np.append(True, marked[1:] != marked[:-1]))
    found: Array = marked & (np.bincount(run, begins & marked)[run] > 0)
    return found


@dataclass(frozen=True)
class _Workers:
    """The processes that the program started, during the recording.

    Attributes:
        count: number of active processes.
        cpu_share: share of their time on a CPU.
        wait_share: share of their time waiting for a CPU; None if not known.
        read_bytes_per_s: reads from storage, of all together; None if not known.
        waits_for_storage: whether they read from storage, or tasks of the container waited for it.
    """

    count: int
    cpu_share: float
    wait_share: float | None
    read_bytes_per_s: float | None
    waits_for_storage: bool


def _workers(context: Context) -> _Workers | None:
    """The workers in the steps; None if there are none."""
    trace, steps = context.trace, context.steps
    usages = trace.process_usages
    first_ns, last_ns = steps.start_ns[0], steps.end_ns[-1]

    def inside(starts: Array, lasted: Array) -> Array:
        chosen: Array = (starts < last_ns) & (starts + lasted > first_ns)
        return chosen

    children = usages.process != number_of(trace.info, "process.id")
    rows = np.flatnonzero(inside(usages.start_ns, usages.duration_ns) & children & (usages.duration_ns > 0))
    if len(rows) == 0:
        return None
    ids, place = np.unique(usages.process[rows], return_inverse=True)
    place = place.reshape(-1)

    def by_process(column: Array) -> Array:
        totals: Array = np.bincount(place, np.maximum(column, 0), len(ids))
        return totals

    cpu, lasted = by_process(usages.cpu_ns[rows]), by_process(usages.duration_ns[rows])
    read = by_process(usages.read_bytes[rows])
    active = (cpu > _IDLE * lasted) | (read > 0)
    if not active.any():
        active[:] = True
    known_wait, known_read = (bool((column[rows] != NOT_KNOWN).all()) for column in (usages.wait_ns, usages.read_bytes))
    total = float(lasted[active].sum())
    span = float(lasted[active].max())
    reads = float(read[active].sum()) / span * 1e9 if known_read else None
    groups = trace.control_group_usages
    pressed = np.flatnonzero(inside(groups.start_ns, groups.duration_ns) & (groups.io_wait_ns != NOT_KNOWN))
    stalled = float(groups.io_wait_ns[pressed].sum()) / max(float(groups.duration_ns[pressed].sum()), 1.0)
    return _Workers(
        int(active.sum()),
        float(cpu[active].sum()) / total,
        float(by_process(usages.wait_ns[rows])[active].sum()) / total if known_wait else None,
        reads,
        stalled > _STALLED or (reads is not None and reads > _READS),
    )


def _on_gpu(context: Context) -> str:
    """Advice to take work from the workers, if there is a GPU for it."""
    return ", or augment batches on the GPU (kornia, torchvision.transforms.v2)" if context.device is not None else ""


def _of_workers(context: Context, waits: Array, workers: _Workers, title: str, advice: str) -> Cause:
    found = _cause(context, waits, title, advice)
    evidence = {"workers": f"{workers.count}, on a CPU {format_share(workers.cpu_share)} of their time"}
    if workers.read_bytes_per_s:
        evidence["they read"] = f"{format_bytes(workers.read_bytes_per_s)}/s"
    return replace(found, evidence={**found.evidence, **evidence})


def _waits_for_workers(context: Context) -> Array:
    rows = context.once(_waits)
    found: Array = rows[~_is_own(context, rows)]
    return found


def _is_own(context: Context, waits: Array) -> Array:
    """Whether the thread that waits for the data loads it itself."""
    inside = context.paths_inside(lambda name: "_SingleProcessDataLoader" in name)
    own: Array = inside[context.path_of_regions(waits)]
    return own


def _waits(context: Context) -> Array:
    """Rows of ``trace.regions`` of the outermost waits for data in the steps."""
    regions, causes = context.trace.regions, causes_of_paths(context.trace)
    if not (causes == IdleCause.DATA_WAIT).any():
        return np.zeros(0, np.int64)
    waiting = causes[np.minimum(regions.path, len(causes) - 1)] == IdleCause.DATA_WAIT
    first_ns, last_ns = context.steps.start_ns[0], context.steps.end_ns[-1]
    inside = (regions.start_ns < last_ns) & (regions.start_ns + regions.duration_ns > first_ns)
    found = np.flatnonzero(waiting & inside)
    parents = regions.parent[found]
    nested = np.append(waiting, False)[np.minimum(parents, len(regions))]
    outermost: Array = found[~nested]
    return outermost


def _spent_ns(context: Context, waits: Array) -> int:
    """Time of the waits in steps of the host, which may be ahead of the GPU's steps."""
    regions = context.trace.regions
    inside = context.host_steps.at(regions.start_ns[waits]) >= 0
    return int(regions.duration_ns[waits[inside] if inside.any() else waits].sum())


def _pieces_of(context: Context, waits: Array) -> Array:
    """The idle pieces with a wait for data that overlap these waits."""
    regions, pieces = context.trace.regions, context.pieces
    if len(waits) == 0:
        return waits
    spans = union(regions.start_ns[waits], regions.start_ns[waits] + regions.duration_ns[waits])
    waited_ns = covered_ns(*spans, pieces.start_ns, pieces.end_ns)
    return np.flatnonzero((waited_ns > 0) & (pieces.cause_ns[IdleCause.DATA_WAIT] > 0))


def _cause(context: Context, waits: Array, title: str, advice: str) -> Cause:
    trace = context.trace
    starts = trace.regions.start_ns[waits]
    ends = starts + trace.regions.duration_ns[waits]
    spans = np.stack([trace.regions.thread[waits].astype(np.int64), starts, ends], axis=1)
    longest = int(waits[np.argmax(trace.regions.duration_ns[waits])])
    mean = _spent_ns(context, waits) / len(context.steps) / 1e9
    evidence = {
        "the wait takes": f"{format_seconds(mean)} a step",
        "in": trace.string(int(trace.paths.name[trace.regions.path[longest]])),
    }
    around = context.where_of_region(longest)
    threads = set(np.unique(trace.regions.thread[waits]).tolist())
    own = functions_in(context, threads, union(starts, ends), (ends - starts).sum() / 2)[:1]
    where = tuple(dict.fromkeys(places(*(function.where for function in own), around)))
    return Cause(title, advice, Edit(host_spans=spans), where, evidence)


_PROCESSES = needs_host("process_usages")
_STORAGE_WAITS = needs_host("process_usages", "control_group_usages.io_wait_ns")

RULES = (
    Rule("R01", "the program waits for data", _waiting, LEAST),
    Rule("R02", "data loading in the training thread", _in_own_thread, LEAST),
    Rule("R03", "too few workers", _few_workers, LEAST, _PROCESSES, weight=SPECIAL),
    Rule("R04", "workers that wait for storage", _storage, LEAST, _STORAGE_WAITS, weight=SPECIAL),
    Rule("R05", "epochs that start new workers", _new_workers, LEAST, _PROCESSES, weight=SPECIAL),
    Rule("R06", "one thread that prepares all batches", _one_thread, LEAST, _PROCESSES, weight=SPECIAL),
    Rule("R08", "workers that wait for a CPU", _workers_wait, LEAST, _PROCESSES, weight=SPECIAL),
)
