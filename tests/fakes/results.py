# SPDX-License-Identifier: Apache-2.0
"""Results that were not measured."""

from __future__ import annotations

from fakes.steps import steps_store
from gpuscope import timing
from gpuscope.costs.roofline import RooflinePoint
from gpuscope.recording import Recording

POINT = RooflinePoint("gemm", "kernel", 3, 0.1, 1e12, "counters", 2e14, "bfloat16", 0.5, 0.4, 0.3, "latency-bound")


def recording() -> Recording:
    return Recording(steps_store())


def timings() -> timing.Timings:
    timing.reset_timings()
    with timing.timed("part"):
        pass
    return timing.timings()
