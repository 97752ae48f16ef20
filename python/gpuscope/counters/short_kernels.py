# SPDX-License-Identifier: Apache-2.0
"""Counters of kernels that are shorter than a sample, by least squares over all samples.

A sample's value is the sum of its kernels' means, weighted by their shares of the sample. Many samples with different
shares give the equations for these means. The standard error shows whether the shares differ enough. No mean is
negative (Lawson and Hanson, "Solving least squares problems", 1974, chapter 23).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.counters.timelines import Timeline
from gpuscope.results import Result
from gpuscope.tables import align_columns
from gpuscope.trace import Trace
from gpuscope.units import format_share

LEAST_LAUNCHES = 50
"""Kernels with fewer launches are separated only by chance."""

LARGEST_ERROR = 0.2
"""A mean is reported if its standard error is at most this share of it, or of the counter's mean over all samples."""

_MOST_KERNELS = 24  # solved for, the longest ones; the others are one group
_SHOWN = 4
_CHUNK = 1 << 16  # samples at a time
_SINGULAR = 1e-9

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ShortKernel:
    """Solved means of the kernels of one name.

    Attributes:
        name: of the kernel.
        count: number of launches.
        time_ns: their total duration.
        values: mean of each counter, in the order of `SampledCounters.metrics`; nan if the samples do not determine it.
        errors: the standard error of each.
    """

    name: str
    count: int
    time_ns: int
    values: tuple[float, ...]
    errors: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class ShortKernels(Result):
    """The kernels of one GPU by name, solved for from all samples; printing it shows them.

    Attributes:
        device: CUDA's number of the GPU.
        metrics: names of the counters, in the order of all values.
        kernels: those with 50 launches or more, the longest first.
        residuals: of each counter, root mean square of the residuals over that of the samples; nan without a solution.
    """

    device: int
    metrics: tuple[str, ...]
    kernels: tuple[ShortKernel, ...]
    residuals: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""

        def plain(values: Sequence[float]) -> list[float | None]:
            return [value if np.isfinite(value) else None for value in values]

        return {
            "device": self.device,
            "metrics": list(self.metrics),
            "residuals": plain(self.residuals),
            "kernels": [
                {
                    "name": each.name,
                    "count": each.count,
                    "seconds": each.time_ns / 1e9,
                    "values": plain(each.values),
                    "errors": plain(each.errors),
                }
                for each in self.kernels
            ],
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per kernel, each metric with its standard error."""
        return [
            {key: row[key] for key in ("name", "count", "seconds")}
            | dict(zip(self.metrics, row["values"], strict=True))
            | dict(zip((f"{metric} error" for metric in self.metrics), row["errors"], strict=True))
            for row in self.to_dict()["kernels"]
        ]

    def __str__(self) -> str:
        if not self.kernels:
            return f"no kernel of GPU {self.device} has samples and {LEAST_LAUNCHES} launches"
        top = self.kernels[:_SHOWN]
        rows = [("counter", "residual", *(each.name for each in top))]
        for index, metric in enumerate(self.metrics):
            cells = [f"{each.values[index]:.4g} +- {each.errors[index]:.2g}" for each in top]
            known = [cell if np.isfinite(each.values[index]) else "-" for cell, each in zip(cells, top, strict=True)]
            residual = self.residuals[index]
            rows.append((metric, format_share(residual) if residual == residual else "-", *known))
        head = f"counters of GPU {self.device} by kernel, solved from all samples; - where they do not tell"
        return "\n".join([head, *align_columns(rows, left=1, rule=True)])


def solve_short_kernels(trace: Trace, metrics: Sequence[str], timeline: Timeline | None, device: int) -> ShortKernels:
    """Solves for the means of counters over the kernels of each name with 50 launches or more.

    Counters that are neither an amount nor a share of time, as hit rates, do not add up and have no value.

    Args:
        trace: the recording.
        metrics: the names of the counters.
        timeline: the samples of the GPU, one column per counter; None without samples.
        device: CUDA's number of the GPU.
    """
    groups = _Groups(trace, device)
    names = groups.names
    if timeline is None or not names:
        return ShortKernels(device, tuple(metrics), (), (float("nan"),) * len(metrics))
    adds_up = np.array([_adds_up(metric) for metric in metrics], bool)
    columns = np.flatnonzero(adds_up & ~np.isnan(timeline.rates).any(axis=0))
    gram, products, squares = groups.equations(timeline.start_ns, timeline.end_ns, timeline.rates[:, columns])
    spread = _spread(gram)
    values, errors = (np.full((len(names), len(metrics)), np.nan) for _ in range(2))
    residuals = np.full(len(metrics), np.nan)
    for at, column in enumerate(columns.tolist()):
        solution = solve_nonnegative(gram, products[:, at])
        left = max(float(squares[at] - 2 * solution @ products[:, at] + solution @ gram @ solution), 0.0)
        residuals[column] = (left / squares[at]) ** 0.5 if squares[at] > 0 else 0.0
        deviation = (left / max(len(timeline.start_ns) - len(gram), 1)) ** 0.5
        error = np.where(np.isfinite(spread), np.where(np.isfinite(spread), spread, 0.0) * deviation, np.inf)
        typical = float(timeline.rates[:, column].mean())
        told = error <= LARGEST_ERROR * np.maximum(solution, typical)
        values[:, column] = np.where(told, solution, np.nan)[: len(names)]
        errors[:, column] = error[: len(names)]
    kernels = [
        ShortKernel(name, int(count), int(time_ns), tuple(of_kernel), tuple(error_of_kernel))
        for name, count, time_ns, of_kernel, error_of_kernel in zip(
            names, groups.count, groups.time_ns, values.tolist(), errors.tolist(), strict=True
        )
        if count >= LEAST_LAUNCHES
    ]
    return ShortKernels(device, tuple(metrics), tuple(kernels), tuple(residuals.tolist()))


def _adds_up(metric: str) -> bool:
    return metric.endswith((".sum", ".per_second")) or "pct_of_peak_sustained_elapsed" in metric


class _Groups:
    """The kernels of a GPU by name, the longest first; one more group for the rest, and one for idle time."""

    def __init__(self, trace: Trace, device: int) -> None:
        kernels = trace.kernels
        here = np.flatnonzero(trace.tracks.device[kernels.track] == device)
        names = trace.kernel_names(short=True)
        distinct = {name: row for row, name in enumerate(dict.fromkeys(names))}
        of_variant = np.array([distinct[name] for name in names], np.int64)
        group = of_variant[kernels.variant[here]]
        start_ns, length = kernels.start_ns[here], kernels.duration_ns[here]
        time_ns = np.bincount(group, length, len(distinct))
        chosen = np.argsort(-time_ns, kind="stable")[:_MOST_KERNELS]
        chosen = chosen[time_ns[chosen] > 0]
        spelled = list(distinct)
        self.names = [spelled[row] for row in chosen.tolist()]
        self.count = np.bincount(group, minlength=len(distinct))[chosen]
        self.time_ns = time_ns[chosen]
        self._spans = [Spans(start_ns[group == row], length[group == row]) for row in chosen.tolist()]
        rest = ~np.isin(group, chosen)
        if rest.any():
            self._spans.append(Spans(start_ns[rest], length[rest]))

    def equations(self, starts: Array, ends: Array, rates: Array) -> tuple[Array, Array, Array]:
        """The normal equations: shares by shares, shares by values, and the squares of the values."""
        size = len(self._spans) + 1
        gram, products = np.zeros((size, size)), np.zeros((size, rates.shape[1]))
        for first in range(0, len(starts), _CHUNK):
            at = slice(first, first + _CHUNK)
            shares = np.empty((len(starts[at]), size))
            lengths = np.maximum(ends[at] - starts[at], 1)
            for column, spans in enumerate(self._spans):
                shares[:, column] = (spans.until(ends[at]) - spans.until(starts[at])) / lengths
            shares[:, -1] = np.maximum(1 - shares[:, :-1].sum(axis=1), 0)
            gram += shares.T @ shares
            products += shares.T @ rates[at]
        squares: Array = (rates**2).sum(axis=0)
        return gram, products, squares


class Spans:
    """Spans that may overlap, and their total time before a moment."""

    def __init__(self, start_ns: Array, length_ns: Array) -> None:
        self._base = int(start_ns.min())
        self._starts, self._ends = np.sort(start_ns - self._base), np.sort(start_ns + length_ns - self._base)
        self._sums = [np.append(0, np.cumsum(times)) for times in (self._starts, self._ends)]

    def until(self, times_ns: Array) -> Array:
        """Total ns of the spans before each moment."""
        times = times_ns - self._base
        begun, ended = (np.searchsorted(each, times) for each in (self._starts, self._ends))
        before: Array = (begun * times - self._sums[0][begun]) - (ended * times - self._sums[1][ended])
        return before


def solve_nonnegative(gram: Array, product: Array) -> Array:
    """The non-negative least squares solution by the normal equations."""
    size = len(product)
    solution, free = np.zeros(size), np.zeros(size, bool)
    least = 1e-10 * max(float(np.abs(product).max()), 1e-300)
    for _ in range(3 * size):
        gain = np.where(free, -np.inf, product - gram @ solution)
        if gain.max() <= least:
            break
        free[gain.argmax()] = True
        while free.any():
            rows = np.flatnonzero(free)
            tried = np.linalg.lstsq(gram[np.ix_(rows, rows)], product[rows], rcond=None)[0]
            if (tried > 0).all():
                solution[rows] = tried
                break
            # Move towards `tried` until the first entry reaches 0, and fix that entry at 0.
            before = solution[rows]
            steps = np.where(tried <= 0, before / np.maximum(before - tried, 1e-300), np.inf)
            solution[rows] = before + steps.min() * (tried - before)
            free[rows[steps <= steps.min()]] = False
            solution[~free] = 0.0
    return solution


def _spread(gram: Array) -> Array:
    """The standard error of each entry for residuals with a deviation of 1; inf if it is not determined."""
    width = np.sqrt(np.diag(gram))
    spread = np.full(len(gram), np.inf)
    rows = np.flatnonzero(width > 0)
    values, vectors = np.linalg.eigh(gram[np.ix_(rows, rows)] / np.outer(width[rows], width[rows]))
    is_told = values > _SINGULAR * values[-1]
    # Entries with a part in a singular direction are not determined.
    lost = (vectors[:, ~is_told] ** 2).sum(axis=1) > _SINGULAR**0.5
    spread[rows] = np.where(
        lost, np.inf, ((vectors[:, is_told] ** 2 / values[is_told]).sum(axis=1)) ** 0.5 / width[rows]
    )
    return spread
