# SPDX-License-Identifier: Apache-2.0
"""Samples of hardware counters in order of time, and their means over spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuscope.trace import Trace

_CHUNK = 1 << 14  # spans at a time, so that lookups stay in the cache

Array = np.ndarray[Any, Any]


class Timeline:
    """Samples of one device. The mean over a span takes two lookups, however many samples it covers.

    A counter without a value in a sample, as a hit rate without lookups, counts as not sampled there.
    """

    def __init__(self, start_ns: Array, end_ns: Array, rates: Array) -> None:
        order = np.argsort(start_ns, kind="stable")
        self.start_ns, self.rates = start_ns[order], rates[order]
        # Samples follow each other; one that ends after the next has begun is cut.
        following = np.append(self.start_ns[1:], np.iinfo(np.int64).max)
        self.end_ns: Array = np.minimum(end_ns[order], following)
        self._lengths = (self.end_ns - self.start_ns).astype(np.float64)
        known = ~np.isnan(self.rates)
        self._partly = np.flatnonzero(~known.all(axis=0))  # counters
        # Columns: a 1, the counters, and whether each counter of `_partly` has a value.
        ones = np.ones((len(self.start_ns), 1))
        self._values = np.hstack((ones, np.where(known, self.rates, 0.0), known[:, self._partly]))
        areas = self._values * self._lengths[:, None]
        self._before = np.cumsum(areas, axis=0) - areas

    def sums(self, start_ns: Array, end_ns: Array) -> tuple[Array, Array, Array]:
        """Sampled ns of each span; values times ns and ns with a value of each span and counter."""
        counters = self.rates.shape[1]
        found = np.zeros((len(start_ns), self._values.shape[1]))
        if len(self.start_ns):
            for first in range(0, len(start_ns), _CHUNK):
                at = slice(first, first + _CHUNK)
                found[at] = self._until(end_ns[at]) - self._until(start_ns[at])
        covered = found[:, 0]
        weights: Array = np.broadcast_to(covered[:, None], (len(start_ns), counters))
        if len(self._partly):
            weights = weights.copy()
            weights[:, self._partly] = found[:, 1 + counters :]
        return covered, found[:, 1 : 1 + counters], weights

    def _until(self, time_ns: Array) -> Array:
        """The values times ns, summed from the first sample to each moment."""
        sample = np.maximum(np.searchsorted(self.start_ns, time_ns, side="right") - 1, 0)
        inside = np.clip(time_ns - self.start_ns[sample], 0.0, self._lengths[sample])
        until: Array = self._before[sample] + self._values[sample] * inside[:, None]
        return until

    def inside(self, start_ns: Array, end_ns: Array) -> Array:
        """Number of samples wholly inside each span."""
        first, last = self.whole(start_ns, end_ns)
        counts: Array = np.maximum(last - first, 0)
        return counts

    def whole(self, start_ns: Array, end_ns: Array) -> tuple[Array, Array]:
        """First sample wholly inside each span, and one after the last; not above the first if there is none."""
        first = np.searchsorted(self.start_ns, start_ns, side="left")
        return first, np.searchsorted(self.end_ns, end_ns, side="right")


def timelines(trace: Trace, counters: Sequence[int]) -> dict[int, Timeline]:
    """The samples of each device for these rows of ``trace.counters``; sums are per second, missing values nan."""
    samples, rows = trace.counter_samples, trace.counter_values
    values = np.full((len(samples), len(counters)), np.nan)
    for column, counter in enumerate(counters):
        at = np.flatnonzero(rows.counter == counter)
        values[rows.sample[at], column] = rows.value[at]
        if trace.string(int(trace.counters.name[counter])).endswith(".sum"):
            values[:, column] *= 1e9 / np.maximum(samples.duration_ns, 1)
    end_ns = samples.start_ns + samples.duration_ns
    of = {int(device): samples.device == device for device in np.unique(samples.device)}
    return {device: Timeline(samples.start_ns[at], end_ns[at], values[at]) for device, at in of.items()}
