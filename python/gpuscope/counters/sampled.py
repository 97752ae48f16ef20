# SPDX-License-Identifier: Apache-2.0
"""Sampled hardware counters: their timeline, and their means over kernels and regions, by overlap in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import plots
from gpuscope.counters.short_kernels import ShortKernels, solve_short_kernels
from gpuscope.counters.timelines import Timeline, timelines
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.results import Result
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.threads import cached_property
from gpuscope.trace import NONE, Trace, number_of
from gpuscope.units import format_time

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes

LEAST_SAMPLES = 5
"""Fewest samples wholly inside a kernel for values of its own; two more overlap its edges."""

_ROWS = 12

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CounterValues:
    """Means of the counters over some GPU work.

    Attributes:
        name: of the region or kernel.
        count: number of kernels.
        time_ns: their total duration.
        covered_ns: sampled part of it.
        values: mean of each counter, in the order of `SampledCounters.metrics`; nan if nothing was sampled.
    """

    name: str
    count: int
    time_ns: int
    covered_ns: int
    values: tuple[float, ...]


def _divided(sums: Array, weights: Array) -> Array:
    """The means; nan if nothing was sampled. Weights are ns, so less than a half is rounding."""
    some = weights > 0.5
    means: Array = np.where(some, sums / np.where(some, weights, 1.0), np.nan)
    return means


class SampledCounters(Result):
    """The sampled hardware counters of a recording: over time, by kernel and by region.

    A sample counts all work on its GPU, including other processes. Kernels that run at the same time share its values.
    A metric that ends in ``.sum`` is given per second.

    Attributes:
        metrics: names of the counters, in the order of all values.
        units: unit of each metric.
        devices: CUDA's numbers of the sampled GPUs.
        left_out: requested metrics that this chip lacks or has no room for.
        why: why there are no samples, or why sampling ended early; "" otherwise.
        overflows: how often samples were lost because they came faster than they were read.
        interval_ns: requested length of samples, and the final one, which is longer after a loss, up to 1 ms; (0, 0) if
            not recorded.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        info = trace.info
        counters = trace.counters
        self.metrics = [trace.string(name) for name in counters.name]
        units = [trace.string(unit) for unit in counters.unit]
        self.units = [
            f"{unit}/s" if metric.endswith(".sum") else unit for metric, unit in zip(self.metrics, units, strict=True)
        ]
        self.left_out = info.get("counters.left_out", "").split()
        self.why = info.get("counters.why", "")
        self.overflows = number_of(info, "audit.counter_overflows")
        asked = number_of(info, "counters.interval_ns")
        self.interval_ns = (asked, number_of(info, "audit.counter_interval_ns") or asked)
        self.devices = sorted(map(int, np.unique(trace.counter_samples.device)))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._trace.counter_samples)

    @cached_property
    def _timelines(self) -> dict[int, Timeline]:
        return timelines(self._trace, range(len(self.metrics)))

    def timeline(self, metric: str, device: int | None = None) -> tuple[Array, Array]:
        """Start of each sample of a device, in ns, and the metric's value in it.

        Raises:
            InvalidArgument: the metric was not sampled, or the device was not.
            NotAvailable: there are no samples.
        """
        if metric not in self.metrics:
            raise InvalidArgument(f"metric is {brief(metric)}; sampled were {', '.join(self.metrics) or 'none'}")
        if not self.devices:
            raise NotAvailable(str(self))
        wanted = self.devices[0] if device is None else device
        if wanted not in self._timelines:
            raise InvalidArgument(f"device is {brief(device)}; sampled were {', '.join(map(str, self.devices))}")
        timeline = self._timelines[wanted]
        return timeline.start_ns, timeline.rates[:, self.metrics.index(metric)]

    @cached_property
    def _of_kernels(self) -> tuple[Array, Array, Array, Array]:
        """`Timeline.sums` of each kernel, and the number of samples inside."""
        trace = self._trace
        kernels = trace.kernels
        start_ns, end_ns = kernels.start_ns, kernels.start_ns + kernels.duration_ns
        devices = trace.tracks.device[kernels.track] if len(kernels) else np.zeros(0, np.uint32)
        covered, inside = np.zeros(len(kernels)), np.zeros(len(kernels), np.int64)
        sums, weights = (np.zeros((len(kernels), len(self.metrics))) for _ in range(2))
        for device, timeline in self._timelines.items():
            at = np.flatnonzero(devices == device)
            covered[at], sums[at], weights[at] = timeline.sums(start_ns[at], end_ns[at])
            inside[at] = timeline.inside(start_ns[at], end_ns[at])
        return covered, sums, weights, inside

    def kernel_values(self) -> Array:
        """Each kernel's own means, (rows of ``trace.kernels``, counters); nan with fewer than 5 samples inside it."""
        _, sums, weights, inside = self._of_kernels
        return np.where((inside >= LEAST_SAMPLES)[:, None], _divided(sums, weights), np.nan)

    def regions(self) -> list[CounterValues]:
        """Means over the kernels launched in each region or inside it, by call path, the longest first.

        Samples are weighted by their overlap with the kernels. A sample that is longer than a kernel contains other
        work too, so regions of short kernels resemble the work next to them.
        """
        trace = self._trace
        if not self.metrics or not len(trace.kernels) or not len(trace.regions):
            return []
        parents, names = trace.paths.parent, trace.paths.name
        region = trace.kernels.region
        path = np.where(region == NONE, NONE, trace.regions.path[np.where(region == NONE, 0, region)])
        own = self._totals(path, len(parents))
        for row in range(len(parents) - 1, -1, -1):  # a path's parent stands before it
            if parents[row] != NONE:
                for column in own:
                    column[parents[row]] += column[row]
        spelled: list[str] = []
        for name, parent in zip(names, parents, strict=True):
            spelled.append(f"{spelled[parent]}/{trace.string(name)}" if parent != NONE else trace.string(name))
        return self._listed(spelled, own)

    def kernels(self) -> list[CounterValues]:
        """Means by kernel name, weighted likewise, over kernels with at least 5 samples inside each.

        Kernels that are too short for `kernel_values` are left out; see `short_kernels`.
        """
        trace = self._trace
        names = trace.kernel_names(short=True)
        distinct = {name: row for row, name in enumerate(dict.fromkeys(names))}
        group_of = np.array([distinct[name] for name in names], dtype=np.int64)
        groups = group_of[trace.kernels.variant] if len(trace.kernels) else np.zeros(0, np.int64)
        own = self._of_kernels[3] >= LEAST_SAMPLES
        return self._listed(list(distinct), self._totals(np.where(own, groups, NONE), len(distinct)))

    def short_kernels(self, device: int | None = None) -> ShortKernels:
        """Means by name for kernels that are shorter than samples, solved for by least squares.

        Kernels that always run in the same proportion cannot be separated and have no value.

        Args:
            device: CUDA's number of the GPU, default the first sampled one.
        """
        wanted = device if device is not None else self.devices[0] if self.devices else 0
        return solve_short_kernels(self._trace, self.metrics, self._timelines.get(wanted), wanted)

    def _totals(self, group: Array, groups: int) -> tuple[Array, Array, Array, Array, Array]:
        """Count, ns and sampled ns of each group; values times ns and ns with a value of each group and counter."""
        covered, sums, weights, _ = self._of_kernels
        at = group != NONE
        chosen = group[at].astype(np.int64)

        def total(values: Array) -> Array:
            return np.bincount(chosen, values[at], minlength=groups)[:groups]

        def totals(columns: Array) -> Array:
            return np.column_stack([total(column) for column in columns.T]) if columns.shape[1] else columns[:groups]

        durations = self._trace.kernels.duration_ns
        return total(np.ones(len(group))), total(durations), total(covered), totals(sums), totals(weights)

    @staticmethod
    def _listed(names: list[str], totals: tuple[Array, Array, Array, Array, Array]) -> list[CounterValues]:
        count, time_ns, covered_ns, sums, weights = totals
        means = _divided(sums, weights)
        rows = np.flatnonzero(count)
        return [
            CounterValues(
                names[row], int(count[row]), int(time_ns[row]), round(covered_ns[row]), tuple(means[row].tolist())
            )
            for row in rows[np.argsort(-time_ns[rows], kind="stable")]
        ]

    def mean(
        self, start_ns: int | None = None, end_ns: int | None = None, device: int | None = None
    ) -> dict[str, float]:
        """Each counter's mean over a span of time, by default the whole recording; nan if nothing was sampled."""
        wanted = device if device is not None else self.devices[0] if self.devices else 0
        timeline = self._timelines.get(wanted)
        if timeline is None:
            return dict.fromkeys(self.metrics, float("nan"))
        begin = timeline.start_ns[:1] if start_ns is None else np.array([start_ns])
        end = timeline.end_ns[-1:] if end_ns is None else np.array([end_ns])
        _, sums, weights = timeline.sums(begin, end)
        return dict(zip(self.metrics, _divided(sums, weights)[0].tolist(), strict=True))

    def plot(self, metrics: Sequence[str] | None = None, device: int | None = None) -> list[Axes]:
        """Plots each counter over time, one below the other; outliers are marked at the edge and counted.

        Args:
            metrics: names of `metrics`; None takes all.
            device: CUDA's number of the GPU; None takes the first sampled one.

        Raises:
            NotAvailable: Matplotlib is not installed, or nothing was sampled.
            InvalidArgument: a metric was not sampled, or the device was not.
        """
        if not len(self):
            raise NotAvailable(str(self))
        lines = {metric: self.timeline(metric, device) for metric in (self.metrics if metrics is None else metrics)}
        if not lines:
            raise InvalidArgument(f"metrics is {brief(metrics)}; sampled were {', '.join(self.metrics)}")
        drawn = plots.axes_below_each_other(len(lines))
        begin = self._trace.counter_samples.start_ns.min()
        for ax, (metric, (start_ns, values)) in zip(drawn, lines.items(), strict=True):
            across = "time (s)" if ax is drawn[-1] else ""
            unit = self.units[self.metrics.index(metric)]
            plots.curves({"": ((start_ns - begin) / 1e9, values)}, across=across, up=unit, ax=ax, title=metric)
        return drawn

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""

        def plain(values: Any) -> list[float | None]:
            return [None if value != value else value for value in values]

        def listed(rows: list[CounterValues]) -> list[dict[str, Any]]:
            return [
                {
                    "name": row.name,
                    "count": row.count,
                    "seconds": row.time_ns / 1e9,
                    "sampled_seconds": row.covered_ns / 1e9,
                    "values": plain(row.values),
                }
                for row in rows
            ]

        return {
            "metrics": self.metrics,
            "units": self.units,
            "devices": self.devices,
            "samples": len(self),
            "overflows": self.overflows,
            "interval_seconds": [each / 1e9 for each in self.interval_ns],
            "left_out": self.left_out,
            "why": self.why,
            "means": {str(device): plain(self.mean(device=device).values()) for device in self.devices},
            "regions": listed(self.regions()),
            "kernels": listed(self.kernels()),
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per region and kernel, one column per metric."""
        facts = self.to_dict()
        return [
            {"name": row["name"], "kind": kind, **{key: row[key] for key in ("count", "seconds", "sampled_seconds")}}
            | dict(zip(self.metrics, row["values"], strict=True))
            for kind, rows in (("region", facts["regions"]), ("kernel", facts["kernels"]))
            for row in rows
        ]

    def __str__(self) -> str:
        if not len(self):
            unknown = "no sample was complete" if self.metrics else "profile(counters=...) was not asked for them"
            return f"no hardware counters were sampled: {self.why or unknown}"
        devices = ", ".join(map(str, self.devices))
        lines = [f"{len(self):,} samples of {len(self.metrics)} hardware counters, device {devices}"]
        tops = self.regions()[:4]
        header = ["counter", "unit", "all", *(brief_path(row.name) for row in tops)]
        rows = [header]
        means = self.mean()
        for index, metric in enumerate(self.metrics):
            figures = (means[metric], *(row.values[index] for row in tops))
            rows.append([metric, self.units[index], *(f"{value:,.4g}" if value == value else "-" for value in figures)])
        lines += align_columns(rows, left=2, rule=True)
        named = [row for row in self.kernels() if row.covered_ns][:_ROWS]
        if named:
            lines += ["", f"kernels with at least {LEAST_SAMPLES} samples inside each: "]
            lines += [f"  {format_time(row.time_ns / 1e3)} in {row.count}  {row.name}" for row in named]
        if self.left_out:
            lines += [
                "",
                f"left out, as one pass has no room for them or this GPU lacks them: {', '.join(self.left_out)}",
            ]
        if self.overflows:
            times = f"{self.overflows} time{'' if self.overflows == 1 else 's'}"
            asked, last = self.interval_ns
            grown = f"; they are {last / 1e3:g} us long since, not {asked / 1e3:g}" if last > asked else ""
            lost = f"samples were lost {times}, as they came faster than they were read{grown}"
            lines += ["", f"{lost}: a longer counter_interval_us or fewer metrics help"]
        if self.why:
            lines += ["", f"sampling ended early: {self.why}"]
        return "\n".join(lines)


def brief_path(path: str) -> str:
    """The last two names of a path."""
    return "/".join(path.split("/")[-2:])


def sampled_counters(trace: Trace) -> SampledCounters:
    """The sampled hardware counters of a recording.

    Raises:
        NotAvailable: the recording has only totals (``mode="aggregate"``).
    """
    if trace.info.get("session.mode") == "aggregate":
        raise NotAvailable("counters() needs the events of a recording; mode='aggregate' keeps none")
    return SampledCounters(trace)
