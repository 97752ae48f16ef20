# SPDX-License-Identifier: Apache-2.0
"""Steps of a loop that does not hold the profiler itself."""

from __future__ import annotations

from gpuscope.profiler import lifecycle


def step() -> None:
    """Says that the next step of the loop begins, to the profiler that runs; without one it does nothing.

    For programs profiled from outside, as by ``gpuscope run --schedule``: call it once at the end of every step.
    """
    for profiler in lifecycle.running():
        profiler.step()
