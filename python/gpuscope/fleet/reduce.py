# SPDX-License-Identifier: Apache-2.0
"""One recording as the small tables of a fleet: its ranks, steps, kernels, collectives and the pieces between them.

A recording with a rank is that rank, whatever GPUs it used. A recording without one, as an export of Nsight Systems
with several GPUs, has a rank for each GPU. Times are on the recording's own clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpuscope._core import Flag, divide_time
from gpuscope.analysis.completeness import audit, is_of_another_tool
from gpuscope.errors import NotAvailable
from gpuscope.fleet.collectives import Collective, content_hash, find_collectives, find_gloo
from gpuscope.fleet.devices import find_devices
from gpuscope.fleet.reasons import find_reasons
from gpuscope.fleet.tables import SCHEMA, Array, Columns, join
from gpuscope.steps.kernel_classes import KernelClass, kernel_class
from gpuscope.steps.steps import Steps, as_passed, distinct, find_steps, whole_run
from gpuscope.trace import Table, Trace, number_of

COMPUTE, COMMUNICATION, COPY = range(3)
"""Classes of work. Of work that runs at once, the lowest counts."""
_IDLE = 3

_DAY_NS = 10**18  # times from 2001 on are times of day; those of traces without a time of day are smaller


class GpuWork:
    """The work of one rank: starts and ends in ns and the class of each, table by table.

    Args:
        trace: the recording.
        device: CUDA's number of the GPU; None for the work of all GPUs.
    """

    def __init__(self, trace: Trace, device: int | None) -> None:
        names = trace.kernel_names()
        is_communication = [kernel_class(name) == KernelClass.COMMUNICATION for name in names]
        of_variant = np.array([*is_communication, False], np.uint8)  # the last: a variant that a file lacks
        self.kernels = self._rows(trace, trace.kernels, device)
        self.variant = np.minimum(trace.kernels.variant[self.kernels], len(names)).astype(np.intp)
        classes = of_variant[self.variant]
        tables = [(trace.kernels, self.kernels, classes)]
        for table, kind in ((trace.graph_launches, COMPUTE), (trace.memcpy, COPY), (trace.memset, COPY)):
            rows = self._rows(trace, table, device)
            tables.append((table, rows, np.full(len(table.start_ns[rows]), kind, np.uint8)))
        self.spans: list[tuple[Array, Array, Array]] = []
        for table, rows, kinds in tables:
            start_ns = table.start_ns[rows]
            self.spans.append((start_ns, start_ns + table.duration_ns[rows], kinds))
        everything = np.arange(len(trace.kernels))
        self.communication = everything[self.kernels][classes == COMMUNICATION]

    @staticmethod
    def _rows(trace: Trace, table: Table, device: int | None) -> Array | slice:
        if device is None:
            return slice(None)
        devices = np.append(trace.tracks.device, 0)
        return np.flatnonzero(devices[np.minimum(table.track, len(trace.tracks))] == device)

    def add_communication(self, found: Sequence[Collective]) -> None:
        """Adds the collectives of a rank without a GPU."""
        starts, ends = (np.array([getattr(each, name) for each in found], np.int64) for name in ("start_ns", "end_ns"))
        self.spans.append((starts, ends, np.full(len(found), COMMUNICATION, np.uint8)))

    def divide(self, *windows: tuple[Array, Array]) -> list[Columns]:
        """The time of windows by what ran, for several lists of windows at once.

        ``compute_ns``, ``exposed_ns``, ``copy_ns`` and ``idle_ns`` add up to each window. ``communication_ns`` is the
        time in which communication ran, whatever else did.

        Args:
            windows: starts and ends of each list, in any order.
        """
        edges = np.unique(np.concatenate([each for pair in windows for each in pair]))
        alone, covered = divide_time(edges[:-1], edges[1:], self.spans, _IDLE, covered=True)
        rows = {
            "compute_ns": alone[COMPUTE],
            "communication_ns": covered[COMMUNICATION],
            "exposed_ns": alone[COMMUNICATION],
            "copy_ns": alone[COPY],
            "idle_ns": alone[_IDLE],
        }
        sums = {name: np.append(0, np.cumsum(row)) for name, row in rows.items()}
        places = [(np.searchsorted(edges, starts), np.searchsorted(edges, ends)) for starts, ends in windows]
        return [{name: until[last] - until[first] for name, until in sums.items()} for first, last in places]


def reduce(trace: Trace, source: str = "") -> dict[str, Columns]:
    """The fleet's tables of one recording.

    The communicators of collectives come from NCCL's calls, from the arguments in traces of torch.profiler, or from
    the order of kernels; the column `source` says which (``fleet/collectives.py``). `bytes` is the message of one rank
    as NCCL counts it: the input of an all_gather, the output of a reduce_scatter. `size` is -1 if it is unknown.

    A recording without repeating steps has one step for each recorded window, the whole of it. A segment lasts from
    the release of the collectives before it, or the step's start, to the arrival of the next one, or the step's end. It
    leaves out work that runs while a collective does. A step has one segment more than collectives; some may be empty.

    Args:
        trace: a recording with events, of gpuscope or of another tool.
        source: path of the recording's file, for the table `rank`.

    Returns:
        The columns of `SCHEMA`, by table.

    Raises:
        NotAvailable: the recording has only sums, as mode "aggregate" makes them.
    """
    if trace.info.get("session.mode") == "aggregate":
        raise NotAvailable(
            'the recording has only sums, of mode "aggregate"; record the ranks with mode "full" or "ring"'
        )
    steps = _steps(trace)
    parts: list[dict[str, Columns]] = []
    ranks = _ranks(trace)
    for number, device in ranks:
        work = GpuWork(trace, device)
        found = find_collectives(trace, work.communication)
        if device is None and (of_gloo := find_gloo(trace)):
            if not any(len(starts) for starts, _, _ in work.spans):
                work.add_communication(of_gloo)
            found = sorted([*found, *of_gloo], key=lambda each: each.start_ns)
        main = _main_device(trace) if device is None else device
        step_of = steps.at(work.spans[0][0]) if len(steps) else np.full(len(work.variant), -1)
        tables = {
            "rank": _rank_table(trace, work, steps, step_of, device, main, len(ranks)),
            **_windows(trace, work, steps, found, main),
            "kernel_stat": _kernel_table(trace, work),
            "anchor": _anchor_table(trace),
            "device": find_devices(trace, device),
        }
        tables["rank"]["source"] = np.array([source], object)
        if len(ranks) > 1 and not tables["rank"]["host"][0]:  # they share a clock
            tables["rank"]["host"][0] = f"process {Path(source).name}"
        tables["step"]["launches"] = _launches(trace, work, steps, step_of)
        for columns in tables.values():
            columns["rank"] = np.full(len(next(iter(columns.values()))), number)
        parts.append(tables)
    return join(parts)


def _steps(trace: Trace) -> Steps:
    """The steps as the GPU passes them; the whole of each window if nothing repeats."""
    try:
        steps = find_steps(trace)
        return as_passed(trace, steps) if steps.repeat else whole_run(trace)
    except NotAvailable:  # no time passed
        return Steps(np.zeros(0, np.int64), np.zeros(0, np.int64), "")


def _ranks(trace: Trace) -> list[tuple[int, int | None]]:
    """The rank numbers of a recording, each with its GPU; None: all GPUs."""
    known = np.append(trace.tracks.device, 0)
    tables = (trace.kernels, trace.graph_launches, trace.memcpy, trace.memset)
    tracks = [distinct(np.minimum(table.track, len(known) - 1), len(known)) for table in tables]
    devices = np.unique(known[np.concatenate(tracks)]).tolist()
    if len(devices) < 2 or "process.rank" in trace.info:
        return [(number_of(trace.info, "process.rank"), None)]
    return list(enumerate(devices))


# -- the tables ------------------------------------------------------------------------------------------------------
def _rank_table(
    trace: Trace, work: GpuWork, steps: Steps, step_of: Array, device: int | None, main: int | None, ranks: int
) -> Columns:
    info, checked = trace.info, audit(trace)
    known = checked.recorded_ns > 0 and not checked.overhead_source.startswith("not recorded")
    local = number_of(info, "process.local_rank") if "process.local_rank" in info else -1
    size = number_of(info, "process.world_size") if "process.world_size" in info else ranks
    row = {
        "world_size": size,
        "local_rank": local if device is None else device,
        "host": info.get("process.host", ""),
        "process": -1 if device is not None and is_of_another_tool(trace) else number_of(info, "process.id"),
        "device": _device_name(trace, main),
        "role": _role(trace, work, steps, step_of),
        "start_ns": number_of(info, "session.start_ns"),
        "end_ns": number_of(info, "session.stop_ns"),
        "steps": len(steps),
        "complete": checked.complete,
        "verdict": checked.verdict,
        "overhead": checked.overhead_percent / 100 if known else np.nan,
    }
    return {name: np.array([value], SCHEMA["rank"][name][0]) for name, value in row.items()}


def _main_device(trace: Trace) -> int | None:
    """CUDA's number of the GPU with most time in kernels; None without kernels."""
    known = np.append(trace.tracks.device, 0)
    tracks = np.minimum(trace.kernels.track, len(known) - 1)
    used = distinct(tracks, len(known))
    if len(np.unique(known[used])) < 2:
        return int(known[used[0]]) if len(used) else None
    return int(known[np.bincount(tracks, trace.kernels.duration_ns).argmax()])


def _device_name(trace: Trace, device: int | None) -> str:
    """The unique id of a GPU, else its number and the product's name; "" for none."""
    if device is None:
        return ""
    rows = np.flatnonzero(trace.devices.ordinal == device)
    texts = [trace.string(int(trace.devices[name][rows[0]])) for name in ("uuid", "name")] if len(rows) else ["", ""]
    return texts[0] or f"GPU {device} {texts[1]}".rstrip()


def _role(trace: Trace, work: GpuWork, steps: Steps, step_of: Array) -> int:
    """A hash of the kernels with their number per step, rounded: equal for ranks that run the same program."""
    names = trace.kernel_names()
    counts = np.bincount(work.variant, minlength=len(names) + 1)
    counts -= np.bincount(work.variant[step_of < 0], minlength=len(names) + 1)
    of_name: Counter[str] = Counter()
    for name, count in zip(names, counts.tolist(), strict=False):
        of_name[name] += count
    per_step = ((name, round(count / max(len(steps), 1))) for name, count in sorted(of_name.items()))
    return content_hash(repr([each for each in per_step if each[1] > 0]))


def _launches(trace: Trace, work: GpuWork, steps: Steps, step_of: Array) -> Array:
    """Launches of kernels and graphs whose work began in each step; the kernels of a graph's replay are one launch."""
    in_graph = np.flatnonzero(trace.kernels.flags[work.kernels] & Flag.IN_GRAPH)
    first = np.unique(trace.kernels.correlation[work.kernels][in_graph], return_index=True)[1]
    graphs = steps.at(work.spans[1][0]) if len(work.spans[1][0]) and len(steps) else step_of[:0]

    def counted(at: Array) -> Array:
        return np.bincount(at + 1, minlength=len(steps) + 1)[1:]

    return counted(step_of) - counted(np.delete(step_of[in_graph], first)) + counted(graphs)


def _kernel_table(trace: Trace, work: GpuWork) -> Columns:
    names = [*trace.kernel_names(), "?"]  # the last: a variant that a file lacks
    start_ns, end_ns, _ = work.spans[0]
    duration_ns = end_ns - start_ns
    count = np.bincount(work.variant, minlength=len(names))
    least, most, total = np.full(len(names), np.iinfo(np.int64).max), *np.zeros((2, len(names)), np.int64)
    np.minimum.at(least, work.variant, duration_ns)
    np.maximum.at(most, work.variant, duration_ns)
    np.add.at(total, work.variant, duration_ns)
    of_name: dict[str, list[int]] = {}
    for row in np.flatnonzero(count).tolist():
        of_name.setdefault(names[row], []).append(row)
    return {
        "kernel": np.array([content_hash(name) for name in of_name], np.int64),
        "name": np.array(list(of_name), object),
        "count": np.array([count[rows].sum() for rows in of_name.values()], np.int64),
        "total_ns": np.array([total[rows].sum() for rows in of_name.values()], np.int64),
        "min_ns": np.array([least[rows].min() for rows in of_name.values()], np.int64),
        "max_ns": np.array([most[rows].max() for rows in of_name.values()], np.int64),
    }


def _windows(
    trace: Trace, work: GpuWork, steps: Steps, found: Sequence[Collective], device: int | None
) -> dict[str, Columns]:
    """The tables of what ran in steps, before collectives, and between them."""
    numbers = np.arange(len(steps)) if steps.numbers is None else steps.numbers
    own = ("communicator", "size", "sequence", "kind", "bytes", "called_ns", "start_ns", "end_ns", "source")
    columns = {name: np.array([getattr(each, name) for each in found], SCHEMA["collective"][name][0]) for name in own}
    arrival, release = columns["start_ns"], columns["end_ns"]
    at = steps.at(arrival) if len(steps) and len(found) else np.full(len(found), -1)
    before = _before(steps, at, arrival, release, number_of(trace.info, "session.start_ns"))
    step, begins, stops = _pieces(steps, at, arrival, release)
    of_steps, of_gaps, of_pieces = work.divide((steps.start_ns, steps.end_ns), (before, arrival), (begins, stops))
    return {
        "step": {"step": numbers, "start_ns": steps.start_ns, "duration_ns": steps.durations_ns, **of_steps},
        "collective": {
            **columns,
            "step": np.where(at >= 0, np.append(numbers, -1)[at], -1),
            "before_compute_ns": of_gaps["compute_ns"],
            "before_idle_ns": of_gaps["idle_ns"],
        },
        "segment": {
            "step": numbers[step],
            "position": np.arange(len(step)) - np.searchsorted(step, step),
            "compute_ns": of_pieces["compute_ns"],
            "copy_ns": of_pieces["copy_ns"],
            "host_ns": of_pieces["idle_ns"],
        },
        "reason": find_reasons(
            trace, device, steps.thread or 0, (before, arrival), of_gaps["idle_ns"], of_gaps["compute_ns"]
        ),
    }


def _before(steps: Steps, at: Array, arrival: Array, release: Array, begin_ns: int) -> Array:
    """The release before each arrival, at most the arrival.

    It is not before the first of the steps that follow each other: between windows, nothing was recorded.
    """
    first = np.append(True, steps.start_ns[1:] != steps.end_ns[:-1])[: len(steps)]
    begins = np.maximum.accumulate(np.where(first, steps.start_ns, 0))
    begin = np.where(at >= 0, np.append(begins, 0)[at], begin_ns)
    released = np.append(0, np.maximum.accumulate(release))[:-1]
    found: Array = np.minimum(np.maximum(released, begin), arrival)
    return found


def _pieces(steps: Steps, at: Array, arrival: Array, release: Array) -> tuple[Array, Array, Array]:
    """Step, start and end of the pieces of steps: each ends with an arrival, the last one with the step."""
    none = np.iinfo(np.int64).min
    stops = np.concatenate([steps.end_ns, arrival])
    released = np.concatenate([np.full(len(steps), none), release])
    step = np.concatenate([np.arange(len(steps)), at])
    order = np.argsort(stops, kind="stable")  # at equal times a step ends first: the collective is in the next one
    stops, step = stops[order], step[order]
    released = np.append(none, np.maximum.accumulate(released[order]))[:-1]
    inside = step >= 0
    stops, step, released = stops[inside], step[inside], released[inside]
    return step, np.clip(released, np.minimum(steps.start_ns[step], stops), stops), stops


def _anchor_table(trace: Trace) -> Columns:
    """The recording's clock and the time of day at some moments; no row if its times are not times of day."""
    anchors, start = trace.anchors, number_of(trace.info, "session.start_ns")
    if len(anchors):
        return {"time_ns": anchors.start_ns, "realtime_ns": anchors.realtime_ns}
    found = np.array([start] if start > _DAY_NS else [], np.int64)
    return {"time_ns": found, "realtime_ns": found}
