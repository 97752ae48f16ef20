# SPDX-License-Identifier: Apache-2.0
"""Where the steps of a program begin and end, as it says itself or as its work repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import Flag
from gpuscope.analysis.rows import STEP
from gpuscope.errors import NotAvailable
from gpuscope.trace import NONE, Trace, number_of

REPEATS = 5
"""So often must a region or a sequence of kernels come for its turns to count as steps."""
WINDOW_NS = 100_000_000
"""The length of windows where nothing repeats; longer where there were more than `MOST_WINDOWS`."""
MOST_WINDOWS = 100_000

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a recording, in order; none reaches into the next. Times in ns on the host's clock.

    Attributes:
        start_ns: where each begins.
        end_ns: and ends: where the next begins, for the last where its region or its last kernel does.
        source: how they were found, as words.
        thread: row of ``trace.threads`` of the thread that takes them; None where that is not known.
    """

    start_ns: Array
    end_ns: Array
    source: str
    thread: int | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def durations_ns(self) -> Array:
        """How long each takes."""
        durations: Array = self.end_ns - self.start_ns
        return durations


def find_steps(trace: Trace) -> Steps:
    """The steps that ``prof.step()`` marked, or else what repeats.

    That is the outermost region that takes most of the time and comes at least 5 times; without one the period of the
    first GPU's sequence of kernels; and windows of 100 ms where nothing repeats.

    Raises:
        NotAvailable: the recording keeps totals alone, or no time passed in it.
    """
    if trace.info.get("session.mode") == "aggregate":
        raise NotAvailable('steps are not known: aggregate mode keeps totals alone; record with mode="full" or "ring"')
    found = _marked(trace) or _repeated_region(trace) or _repeated_kernels(trace) or _windows(trace)
    if found is None:
        raise NotAvailable("steps are not known: no time passed in the recording; record a few steps")
    return found


def _marked(trace: Trace) -> Steps | None:
    names = [trace.string(name) for name in trace.paths.name.tolist()]
    marks = np.array([name.startswith(STEP) for name in names] + [False])
    rows = np.flatnonzero(marks[np.minimum(trace.regions.path, len(names))])
    return _turns(trace, rows, f"{STEP}N")


def _repeated_region(trace: Trace) -> Steps | None:
    regions = trace.regions
    outermost = np.flatnonzero((regions.parent == NONE) & ((regions.flags & Flag.ASYNC) == 0))
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
    return _turns(trace, best, f'the region "{name}"')


def _turns(trace: Trace, rows: Array, source: str) -> Steps | None:
    """From the beginning of each of these regions to that of the next."""
    regions = trace.regions
    rows = rows[np.argsort(regions.start_ns[rows], kind="stable")]
    starts = np.unique(regions.start_ns[rows])
    if len(starts) == 0:
        return None
    last_ns = int((regions.start_ns[rows] + regions.duration_ns[rows]).max())
    threads = np.unique(regions.thread[rows])
    ends = np.append(starts[1:], max(last_ns, int(starts[-1])))
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
    ended_ns = int((kernels.start_ns[rows] + kernels.duration_ns[rows]).max())
    starts = np.unique(starts)
    each = "kernel" if period == 1 else f"{period:,} kernels"
    known = np.unique(threads[threads >= 0])
    thread = int(known[0]) if len(known) == 1 else None
    return Steps(starts, np.append(starts[1:], max(ended_ns, int(starts[-1]))), f"every {each} that repeat", thread)


def _launched(trace: Trace, kernels: Array) -> tuple[Array, Array]:
    """When the calls began that launched these kernels, and on which thread; the kernels' own start and -1 without."""
    starts, threads = trace.kernels.start_ns[kernels].copy(), np.full(len(kernels), -1)
    api = trace.api
    if len(api) == 0:
        return starts, threads
    order = np.argsort(api.correlation, kind="stable")
    wanted = trace.kernels.correlation[kernels]
    at = np.minimum(np.searchsorted(api.correlation[order], wanted), len(order) - 1)
    calls = order[at]
    known = api.correlation[calls] == wanted
    starts[known] = api.start_ns[calls[known]]
    threads[known] = api.thread[calls[known]]
    return starts, threads


def _windows(trace: Trace) -> Steps | None:
    first_ns, last_ns = (number_of(trace.info, f"session.{end}_ns") for end in ("start", "stop"))
    if not 0 <= first_ns < last_ns < 1 << 63:  # a damaged file may say anything
        return None
    length_ns = max(WINDOW_NS, -(-(last_ns - first_ns) // MOST_WINDOWS))
    starts = np.arange(first_ns, last_ns, length_ns, dtype=np.int64)
    source = f"windows of {length_ns / 1e6:g} ms, as nothing repeats"
    return Steps(starts, np.append(starts[1:], last_ns), source)
