# SPDX-License-Identifier: Apache-2.0
"""What a GPU's own front end says of its idle time, beside the causes that were found for it.

Counters are sampled, and a sample that reaches over the edge of a gap has work in it. So only gaps that hold whole
samples are looked at, as far as those reach, and the causes over the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.counters.names import ENGINE_ACTIVE, NOTHING_QUEUED, WAITS_AT_SEMAPHORE
from gpuscope.counters.timelines import Timeline, timelines
from gpuscope.diagnosis.breakdown import DeviceBreakdown, StepBreakdown
from gpuscope.diagnosis.idle import IdleCause
from gpuscope.diagnosis.steps import Array
from gpuscope.trace import Trace

_HOST = range(IdleCause.LAUNCH_CALL + 1)
"""Causes in which the host had not queued anything yet: they come first in a gap."""

_FEWEST = 10
"""Fewer samples say nothing of a share within some points."""


@dataclass(frozen=True)
class IdleByCounters:
    """One GPU's idle time, as far as whole samples lie in it. Shares are of that time, from 0 to 1.

    Attributes:
        device: CUDA's number of it.
        samples: how many lie in gaps.
        sampled_ns: how long these are.
        idle_ns: all of its idle time in the steps.
        nothing_queued: the front end's queue was empty: the GPU waited for the host.
        held_back: what was next in the queue waited for what it depends on.
        engine_active: the engine that runs kernels had work all the same, as of another process.
        host_by_causes: what the causes of idle time charge to the host.
        device_by_causes: what they charge to the device: work that was queued and held back.
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
        """How far the two are apart on the host's share, in percentage points."""
        return 100 * abs(self.nothing_queued - self.host_by_causes)

    @property
    def is_enough(self) -> bool:
        """Whether there are samples enough to compare."""
        return self.samples >= _FEWEST

    def to_dict(self) -> dict[str, Any]:
        """Plain values; times in seconds."""
        return {
            "device": self.device,
            "samples": self.samples,
            "sampled": self.sampled_ns / 1e9,
            "idle": self.idle_ns / 1e9,
            "nothing_queued": self.nothing_queued,
            "held_back": self.held_back,
            "engine_active": self.engine_active,
            "host_by_causes": self.host_by_causes,
            "device_by_causes": self.device_by_causes,
            "agreement_points": self.agreement_points,
        }


def idle_by_counters(trace: Trace, breakdown: StepBreakdown) -> tuple[IdleByCounters, ...]:
    """For each GPU with samples of its front end in gaps what they say; none where it was not sampled."""
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
    held = np.flatnonzero((after > first) & (pieces.launch >= 0))  # of others nobody knows when they were queued
    if not len(held):
        return []
    # From the first of its samples to the end of the last; of what is missing between them nothing is known.
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
