# SPDX-License-Identifier: Apache-2.0
"""Passes measured times to pytest-benchmark, by a clock that it uses as its timer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

MOST_ROUNDS = 5000  # more rounds cost time and do not improve pytest-benchmark's quartiles


class ReplayClock:
    """A timer for pytest-benchmark that shows `now`, in seconds, and counts its `reads`.

    Before a replay it is the host's clock, as a test may ask for both fixtures and use `benchmark`.
    """

    __name__ = "gpu_time"  # pytest-benchmark writes its timer's name into its files

    def __init__(self) -> None:
        self.now: float | None = None
        self.reads = 0

    def __call__(self) -> float:
        """The time it shows."""
        self.reads += 1
        if self.now is not None:
            return self.now
        from gpuscope import _core

        return _core.monotonic_ns() / 1e9

    def rewind(self) -> None:
        """Sets it back to 0, so that rounding errors do not add up over the rounds."""
        self.now = 0.0


CLOCK = pytest.StashKey[ReplayClock]()


def thinned(samples: Sequence[float], most: int) -> list[float]:
    """Every second, third ... of the samples, in their order, so that at most `most` are left."""
    return [float(sample) for sample in samples[:: -(-len(samples) // most) or 1]]


def replay(
    benchmark: Any, clock: ReplayClock, samples: Sequence[float], value: object, function: Callable[[], object]
) -> object:
    """Lets pytest-benchmark time a function that takes as long as the samples say.

    Each round takes one of the samples and returns `value`; cProfile runs `function` after the rounds.
    """
    coming = iter(thinned(samples, MOST_ROUNDS))
    rounds = len(thinned(samples, MOST_ROUNDS))

    def round_() -> object:
        sample = next(coming, None)
        if sample is None:
            return function()
        clock.now = sample
        return value

    result: object = benchmark.pedantic(round_, setup=clock.rewind, rounds=rounds, iterations=1)
    if not clock.reads:
        raise pytest.UsageError("gpu_benchmark's clock was not read: another plugin changed the marker benchmark")
    return result
