# SPDX-License-Identifier: Apache-2.0
"""A benchmark engine whose functions return the seconds that they take, on a clock that only they move."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.samples import Samples
from gpuscope.errors import InvalidArgument

OVERHEAD = 1e-3  # seconds that opening an engine takes


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Engines:
    """Stands for the class Engine; remembers what was opened.

    Attributes:
        absent: quantities that cannot be measured, and why.
        open: engines that have not been closed.
        calls: calls timed.
    """

    def __init__(self, clock):
        self.clock = clock
        self.absent = {}
        self.steady = True
        self.throttled = False
        self.open = 0
        self.calls = 0
        self.interrupt_after = float("inf")

    def __call__(self, functions, *, stream=None, device=None, cold=True):
        if device == 9:
            raise InvalidArgument("device is 9; accepted is 0")
        self.open += 1
        return _Engine(self, *functions)


class _Engine:
    tick = 1e-9

    headline = Engine.headline

    def __init__(self, engines, function):
        self.on_gpu = False
        self.engines = engines
        self.function = function
        self.absent = engines.absent

    def tick_of(self, quantity):
        return self.tick

    def prepare(self):
        self.engines.clock.now += OVERHEAD

    def warm_up(self, seconds):
        taken = self.function()
        self.engines.clock.now += taken
        return SimpleNamespace(steady=self.engines.steady, seconds=taken, samples=1, sample_seconds=taken)

    def sample(self, quantity, order, seconds=float("inf")):
        end = self.engines.clock.now + seconds
        taken = []
        while len(taken) < len(order) and (not taken or self.engines.clock.now < end):
            taken.append(self.function())
            self.engines.clock.now += taken[-1]
        n, seconds = len(taken), np.array(taken)
        order = order[:n]
        self.engines.calls += n
        if self.engines.calls >= self.engines.interrupt_after:
            raise KeyboardInterrupt
        throttled, valid = np.full(n, self.engines.throttled), np.ones(n, dtype=bool)
        return Samples(order, {quantity: seconds}, np.full(n, np.nan), throttled, valid)

    def close(self):
        self.engines.open -= 1

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
