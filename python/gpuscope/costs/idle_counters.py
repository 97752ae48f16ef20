# SPDX-License-Identifier: Apache-2.0
"""Idle time of a GPU by counters of its front end, to compare with the causes of idle time.

A sample that overlaps the edge of a gap contains work. So only the whole samples in gaps are used, with the causes over
the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.counters.names import ENGINE_ACTIVE, NOTHING_QUEUED, WAITS_AT_SEMAPHORE
from gpuscope.counters.timelines import Timeline, timelines
from gpuscope.steps.breakdown import DeviceBreakdown, StepBreakdown
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.steps import Array
from gpuscope.trace import Trace

_HOST = range(IdleCause.LAUNCH_CALL + 1)
"""Causes before the host had queued work: they come first in a gap."""

_FEWEST = 10
"""Fewer samples do not give a share to within some points."""


@dataclass(frozen=True)
class IdleByCounters:
    """The part of one GPU's idle time in whole samples. Shares are of that time, from 0 to 1.

    Attributes:
        device: CUDA's number of it.
        samples: number of whole samples in gaps.
        sampled_ns: their time.
        idle_ns: all of its idle time in the steps.
        nothing_queued: the front end's queue was empty: the GPU waited for the host.
        held_back: the next entry of the queue waited for a dependency.
        engine_active: the engine that runs kernels had work, as of another process.
        host_by_causes: share of the host's causes.
        device_by_causes: share of the device's causes: queued work was held back.
    """

    device: int
    samples: int
    sampled_ns: int
    idle_ns: int
    nothing_queued: float
    held_back: float
    engine_active: float
    host_by_causes: float
    device_by_causes: float

    @property
    def agreement_points(self) -> float:
        """Difference between both shares of the host, in percentage points."""
        return 100 * abs(self.nothing_queued - self.host_by_causes)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough samples to compare."""
        return self.samples >= _FEWEST

    def to_dict(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        return {
            "device": self.device,
            "samples": self.samples,
            "sampled_s": self.sampled_ns / 1e9,
            "idle_s": self.idle_ns / 1e9,
            "nothing_queued": self.nothing_queued,
            "held_back": self.held_back,
            "engine_active": self.engine_active,
            "host_by_causes": self.host_by_causes,
            "device_by_causes": self.device_by_causes,
            "agreement_points": self.agreement_points,
        }


def idle_by_counters(trace: Trace, breakdown: StepBreakdown) -> tuple[IdleByCounters, ...]:
    """The idle time in whole samples of each GPU with such samples; empty if the front end was not sampled."""
    names = [trace.string(name) for name in trace.counters.name.tolist()]
    wanted = (NOTHING_QUEUED, WAITS_AT_SEMAPHORE, ENGINE_ACTIVE)
    if not len(trace.counter_samples) or not set(wanted) <= set(names):
        return ()
    sampled = timelines(trace, [names.index(name) for name in wanted])
    found = []
    for device in breakdown.devices:
        if device.device in sampled:
            found += _of_device(device, sampled[device.device])
    return tuple(found)


def _of_device(device: DeviceBreakdown, timeline: Timeline) -> list[IdleByCounters]:
    pieces = device.pieces
    first, after = timeline.whole(pieces.start_ns, pieces.end_ns)
    held = np.flatnonzero((after > first) & (pieces.launch >= 0))  # others have no known time of queueing
    if not len(held):
        return []
    # From the first sample of the gap to the end of the last; time of missing samples between them is not covered.
    starts, ends = timeline.start_ns[first[held]], timeline.end_ns[after[held] - 1]
    covered, sums, weights = timeline.sums(starts, ends)
    sampled_ns = float(covered.sum())
    if sampled_ns <= 0 or not weights.sum(axis=0).all():
        return []
    nothing_queued, held_back, active = (sums.sum(axis=0) / weights.sum(axis=0) / 100).tolist()
    host_ns = pieces.cause_ns[_HOST.start : _HOST.stop, held].sum(axis=0)
    until: Array = pieces.start_ns[held] + host_ns
    by_host = float(np.maximum(np.minimum(ends, until) - starts, 0).sum() / (ends - starts).sum())
    idle_ns, samples = device.idle_ns, int((after[held] - first[held]).sum())
    shares = (nothing_queued, held_back, active, by_host, 1 - by_host)
    return [IdleByCounters(device.device, samples, round(sampled_ns), idle_ns, *shares)]
