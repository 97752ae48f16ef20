# SPDX-License-Identifier: Apache-2.0
"""Where the steps of a program begin and end, by its own marks or by repeated work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import Flag, FunctionKind
from gpuscope.analysis.rows import ANNOTATIONS, STEP
from gpuscope.errors import NotAvailable
from gpuscope.spans import count_before
from gpuscope.trace import NONE, Table, Trace, moments_of, number_of, numbers_of

REPEATS = 5
"""Least number of turns of a region, a function or a sequence of kernels to count as steps."""
WINDOW_NS = 100_000_000
"""The length of windows if no kernels repeat; longer if there were more than `MOST_WINDOWS`."""
MOST_WINDOWS = 100_000
WHOLE_RUN = "the whole run"
"""The source of the one step of a recording without GPU work and without repetitions."""
# Regions of PyTorch that come once a step.
_OF_TORCH = {
    "Optimizer.step#": "training steps, from one optimizer.step() to the next",
    "enumerate(DataLoader)#": "from one batch of the DataLoader to the next",
}
START_UP = 3
"""Number of steps at the beginning that are warm-up. The last step may be cut."""
LEAST_LEFT = 5

_SAMPLE = 1 << 16
"""A sample whose median is within 0.4 % of the ranks, at two standard errors."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a recording, in order and without overlap. Times in ns on the host's clock.

    Attributes:
        start_ns: start of each.
        end_ns: end of each: the start of the next; of the last in a window, the end of its region or last kernel.
        source: how they were found, in words.
        thread: row of ``trace.threads`` of the thread that takes them; None if unknown.
        numbers: number of each in the recording; None if it is its place, counted from 0.
    """

    start_ns: Array
    end_ns: Array
    source: str
    thread: int | None = None
    numbers: Array | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, moments: Array) -> Array:
        """The step of each moment; -1 outside."""
        found: Array
        if (moments[1:] >= moments[:-1]).all():  # then looking up each step takes less than each moment
            edges = np.stack([self.start_ns, self.end_ns], axis=1).reshape(-1)
            before = count_before(moments, edges, equal=False)
            steps = np.full(len(edges) + 1, -1)
            steps[1::2] = np.arange(len(self))
            found = np.repeat(steps, np.diff(before, prepend=0, append=len(moments)))
            return found
        found = count_before(self.start_ns, moments, equal=True)
        found -= 1
        found[moments >= self.end_ns[found]] = -1
        return found

    @property
    def repeat(self) -> bool:
        """Whether they are repetitions; otherwise they are the whole run, or windows of it."""
        return self.source != WHOLE_RUN and not self.source.startswith("windows")

    @property
    def durations_ns(self) -> Array:
        """Duration of each."""
        durations: Array = self.end_ns - self.start_ns
        return durations


def distinct(rows: Array, count: int) -> Array:
    """The distinct `rows` of a table of `count`, in order: np.unique() without sorting or hashing."""
    seen = np.zeros(count, bool)
    seen[rows] = True
    return np.flatnonzero(seen)


def usual(values: Array) -> int:
    """The median, for a limit; of a sample if there are many, as NumPy is slow for many equal values."""
    return int(np.median(values[sample_of(len(values))])) if len(values) else 0


def sample_of(count: int) -> Array | slice:
    """Which of `count` values `usual` needs, so that the others need not be computed."""
    return np.random.default_rng(0).integers(0, count, _SAMPLE) if count > _SAMPLE else slice(None)


def is_one_of(kinds: Array, wanted: Iterable[int]) -> Array:
    """np.isin() for few wanted values: comparing bytes, as in columns of kinds, is faster than looking each up."""
    found = np.zeros(len(kinds), bool)
    for each in wanted:
        found |= kinds == int(each)
    return found


def calls_of(trace: Trace, correlation: Array) -> Array:
    """The row of ``trace.api`` of each correlation number, the first if there are several; -1 without."""
    return _core.find_rows(trace.api.correlation, correlation)


def launched_ns(trace: Trace, table: Table) -> Array:
    """Start of the call that launched each row of a table of GPU work; the row's own start without one."""
    if len(trace.api) == 0:
        return table.start_ns
    calls = calls_of(trace, table.correlation)
    began: Array = trace.api.start_ns[calls]
    np.copyto(began, table.start_ns, where=calls < 0)
    return began


def find_steps(trace: Trace) -> Steps:
    """The steps that ``prof.step()`` marked, or else the turns of work that repeats.

    The first way that finds steps is used:

    * the outermost region, named by the program or a library, with most of the time and at least 5 turns;
    * the Python function that one call of its caller calls as often, for half of the recording (with stacks);
    * the period of the first GPU's sequence of kernels;
    * windows of 100 ms.

    Operators of a framework and modules are not steps, as one step has many.

    Raises:
        NotAvailable: the recording has only totals, or no time passed in it.
    """
    if trace.info.get("session.mode") == "aggregate":
        raise NotAvailable('steps are not known: aggregate mode keeps totals alone; record with mode="full" or "ring"')
    ways = (_marked, _noted, _repeated_region, _repeated_function, _repeated_kernels, _windows)
    found = next(filter(None, (way(trace) for way in ways)), None)
    if found is None:
        raise NotAvailable("steps are not known: no time passed in the recording; record a few steps")
    return found


def whole_run(trace: Trace, pieces: int = 1) -> Steps:
    """The recorded time in about `pieces` pieces of about the same length; each window has at least one."""
    recorded = _recorded(trace)
    recorded = recorded[recorded[:, 0] < recorded[:, 1]]
    lasted = np.diff(recorded)[:, 0]
    counts = np.maximum(lasted // max(int(lasted.sum()) // pieces, 1), 1)
    firsts, number = np.repeat(recorded[:, 0], counts), np.concatenate([np.arange(count) for count in [0, *counts]])
    starts = firsts + np.repeat(lasted // counts, counts) * number
    ends = np.append(starts, 0)[1:]
    ends[np.cumsum(counts) - 1] = recorded[:, 1]
    return Steps(starts, ends, WHOLE_RUN)


def steady_steps(steps: Steps) -> tuple[Steps, int]:
    """The steps without warm-up and the last, at least 5 if there are as many; and the number of excluded ones."""
    count = len(steps)
    last = int(count > LEAST_LEFT)
    first = max(min(START_UP, count - last - LEAST_LEFT), 0)
    if first + last == 0:
        return steps, 0
    kept = slice(first, count - last)
    numbers = np.arange(count) if steps.numbers is None else steps.numbers
    left = replace(steps, start_ns=steps.start_ns[kept], end_ns=steps.end_ns[kept], numbers=numbers[kept])
    return left, first + last


def as_passed(trace: Trace, steps: Steps) -> Steps:
    """The steps as the program passes them: a step is over when the host has left it and its work is done.

    A host that does not wait leaves a step long before the GPU begins it. The GPU's work while the host is in a step is
    then that of other steps, in a short recording only of the first. If the host waits for the GPU in each step, the
    steps do not change.
    """
    edges = np.unique(np.concatenate([steps.start_ns, steps.end_ns]))
    done = np.full(len(edges) + 1, np.iinfo(np.int64).min)  # by number of edges up to the launch
    for table in (trace.kernels, trace.graph_launches, trace.memcpy, trace.memset):
        if len(table):
            launched = count_before(edges, launched_ns(trace, table), equal=True)
            np.maximum.at(done, launched, table.start_ns + table.duration_ns)
    done = np.maximum.accumulate(done)

    def passed(moments: Array) -> Array:
        found: Array = np.maximum(moments, done[np.searchsorted(edges, moments)])
        return found

    found = replace(steps, start_ns=passed(steps.start_ns), end_ns=passed(steps.end_ns))
    # Work that never ends, as a persistent kernel, has no steps.
    return found if np.median(found.durations_ns) > 0 else steps


def _marked(trace: Trace) -> Steps | None:
    names = [trace.string(name) for name in trace.paths.name.tolist()]
    marks = np.array([name.startswith(STEP) for name in names] + [False])
    rows = np.flatnonzero(marks[np.minimum(trace.regions.path, len(names))])
    steps = _turns(trace, trace.regions, rows, f"{STEP}N")
    if steps is None:
        return None
    first = rows[np.unique(trace.regions.start_ns[rows], return_index=True)[1]]
    numbers = [names[path].removeprefix(STEP) for path in trace.regions.path[first].tolist()]
    if not all(number.isdecimal() and len(number) < 19 for number in numbers):  # fit 64 bits
        return steps
    return replace(steps, numbers=np.array(list(map(int, numbers))))


def _noted(trace: Trace) -> Steps | None:
    """Steps of a profiler without a schedule, which are no regions."""
    edges = _noted_moments(trace)
    known = np.unique(edges)
    steps = _within_windows(trace, known)
    if len(steps) == 0:
        return None
    taken = number_of(trace.info, "session.steps")
    is_cut = taken > len(_within_windows(trace, edges))
    source = f"the latest {len(steps):,} of {taken:,} calls of step()" if is_cut else "step()"
    return Steps(known[steps], known[steps + 1], source, _noted_thread(trace))


def profiler_spans(trace: Trace) -> Array:
    """The profiler's own time between such steps: thread, start and end in ns, as `Edit.host_spans`."""
    edges, costs, thread = _noted_moments(trace), numbers_of(trace.info, "session.step_costs_ns"), _noted_thread(trace)
    if thread is None or len(costs) != len(edges):
        return np.zeros((0, 3), np.int64)
    least = np.append(edges[:1], edges[:-1])  # not before the previous step
    starts = np.maximum(edges - np.minimum(np.array(costs, np.float64), edges).astype(np.int64), least)
    spans: Array = np.stack([np.full(len(edges), thread), starts, edges], axis=1)[edges > starts]
    return spans


def _noted_moments(trace: Trace) -> Array:
    """The recorded moments of step(), in order; empty without."""
    edges = moments_of(trace.info, "session.step_edges_ns")
    return np.array([] if len(edges) < 2 or edges[-1] >= 1 << 63 else edges, np.int64)


def _noted_thread(trace: Trace) -> int | None:
    system_id = number_of(trace.info, "session.step_thread")
    threads: list[int] = trace.threads.system_id.tolist()
    return threads.index(system_id) if system_id in threads else None


def _recorded(trace: Trace) -> Array:
    """Start and end in ns of each recorded window, in order; 0 if unknown."""
    moments = moments_of(trace.info, "session.windows_ns")
    if len(moments) < 2 or len(moments) % 2 or moments[-1] >= 1 << 63:
        moments = [number_of(trace.info, f"session.{end}_ns") for end in ("start", "stop")]
    return np.array(moments, np.int64).reshape(-1, 2)


def _window_of(trace: Trace, moments: Array) -> Array:
    """The row of `_recorded` of each moment, which is in one of them."""
    return np.searchsorted(_recorded(trace)[1:, 0], moments, side="right")


def _within_windows(trace: Trace, edges: Array) -> Array:
    """Which of some moments, in order, are in one window with the next."""
    windows = _window_of(trace, edges)
    return np.flatnonzero(windows[1:] == windows[:-1])


def _ends(trace: Trace, starts: Array, begun_ns: Array, ended_ns: Array) -> Array:
    """Ends of steps: the start of the next; of the last in a window, the end of the last region or kernel in it."""
    latest = np.full(len(_recorded(trace)), np.iinfo(np.int64).min)
    np.maximum.at(latest, _window_of(trace, begun_ns), ended_ns)
    ends = np.append(starts[1:], np.iinfo(np.int64).max)
    last = np.setdiff1d(np.arange(len(starts)), _within_windows(trace, starts))
    ends[last] = np.clip(latest[_window_of(trace, starts[last])], starts[last], ends[last])
    return ends


def _repeated_region(trace: Trace) -> Steps | None:
    regions = trace.regions
    kinds = np.append(trace.paths.kind, -1).astype(np.int64)
    named = np.isin(kinds[np.minimum(regions.path, len(kinds) - 1)], list(map(int, ANNOTATIONS)))
    outermost = np.flatnonzero(named & (regions.parent == NONE) & ((regions.flags & Flag.ASYNC) == 0))
    keys = regions.path[outermost].astype(np.int64) << 16 | regions.thread[outermost]
    best, most_ns = None, 0
    for key in np.unique(keys):
        rows = outermost[keys == key]
        total_ns = int(regions.duration_ns[rows].sum())
        if len(rows) >= REPEATS and total_ns > most_ns and int(key >> 16) < len(trace.paths):
            best, most_ns = rows, total_ns
    if best is None:
        return None
    name = trace.string(int(trace.paths.name[regions.path[best[0]]]))
    source = next((words for start, words in _OF_TORCH.items() if name.startswith(start)), f'the region "{name}"')
    return _turns(trace, regions, best, source)


def _repeated_function(trace: Trace) -> Steps | None:
    functions = trace.python_functions
    rows = np.flatnonzero(functions.kind == int(FunctionKind.PYTHON))
    if len(rows) == 0 or trace.info.get("metadata.with_stack") == '"operators"':  # only waiting functions were recorded
        return None
    keys = np.stack([functions[name][rows].astype(np.int64) for name in ("parent", "name", "thread")], axis=1)
    _, first, group, count = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    total_ns = np.bincount(group, functions.duration_ns[rows])
    total_ns[count < REPEATS] = 0
    best = int(total_ns.argmax())
    if total_ns[best] == 0 or total_ns[best] < np.diff(_recorded(trace)).sum() / 2:
        return None
    name = trace.string(int(functions.name[rows[first[best]]]))
    return _turns(trace, functions, rows[group == best], f"calls of {name}")


def _turns(trace: Trace, regions: Table, rows: Array, source: str) -> Steps | None:
    """Steps from the start of each region, or call, in `rows` to that of the next."""
    begun_ns = regions.start_ns[rows]
    starts = np.unique(begun_ns)
    if len(starts) == 0:
        return None
    threads = np.unique(regions.thread[rows])
    ends = _ends(trace, starts, begun_ns, begun_ns + regions.duration_ns[rows])
    return Steps(starts, ends, source, int(threads[0]) if len(threads) == 1 else None)


def _repeated_kernels(trace: Trace) -> Steps | None:
    kernels, tracks = trace.kernels, trace.tracks
    if len(kernels) == 0 or len(tracks) == 0:
        return None
    device = tracks.device[np.minimum(kernels.track, len(tracks) - 1)]
    rows = np.flatnonzero(device == device.min())
    rows = rows[np.argsort(kernels.start_ns[rows], kind="stable")]
    variants = np.minimum(kernels.variant[rows], max(len(trace.variants) - 1, 0))
    names = trace.variants.name[variants] if len(trace.variants) else variants
    begin, period = _core.find_repetition(names, REPEATS)
    if period == 0:
        return None
    firsts = rows[begin::period]
    starts, threads = _launched(trace, firsts)
    starts = np.unique(starts)
    ends = _ends(trace, starts, kernels.start_ns[rows], kernels.start_ns[rows] + kernels.duration_ns[rows])
    source = "every kernel that repeats" if period == 1 else f"every {period:,} kernels that repeat"
    known = np.unique(threads[threads >= 0])
    thread = int(known[0]) if len(known) == 1 else None
    return Steps(starts, ends, source, thread)


def _launched(trace: Trace, kernels: Array) -> tuple[Array, Array]:
    """Start and thread of the call that launched each kernel in `kernels`; its own start and -1 without one."""
    starts, threads = trace.kernels.start_ns[kernels].copy(), np.full(len(kernels), -1)
    calls = calls_of(trace, trace.kernels.correlation[kernels])
    known = calls >= 0
    starts[known] = trace.api.start_ns[calls[known]]
    threads[known] = trace.api.thread[calls[known]]
    return starts, threads


def _windows(trace: Trace) -> Steps | None:
    run = whole_run(trace)
    recorded = np.stack([run.start_ns, run.end_ns], axis=1)
    if len(recorded) == 0:
        return None
    if not any(map(len, (trace.kernels, trace.graph_launches, trace.memcpy, trace.memset))):
        return run
    length_ns = max(WINDOW_NS, -(-int(np.diff(recorded).sum()) // MOST_WINDOWS))
    starts = [np.arange(first_ns, last_ns, length_ns, dtype=np.int64) for first_ns, last_ns in recorded.tolist()]
    ends = [np.append(each[1:], last_ns) for each, last_ns in zip(starts, recorded[:, 1], strict=True)]
    source = f"windows of {length_ns / 1e6:g} ms, as nothing repeats"
    return Steps(np.concatenate(starts), np.concatenate(ends), source)
