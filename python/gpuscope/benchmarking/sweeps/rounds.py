# SPDX-License-Identifier: Apache-2.0
"""Measures many points in rounds: all of them in random order, then again those known worst.

Point after point would take a drift of the machine for an effect of the parameter; rounds in random order spread it
over all of them. Only one point's inputs exist at a time: they are made at the start of each visit and let go at its
end, so that a sweep needs the memory of its largest point, not of all; and every visit sees fresh addresses.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from math import ceil
from time import perf_counter

import numpy as np

from gpuscope.benchmarking.sampling.engine import Engine
from gpuscope.benchmarking.sampling.samples import Quantity
from gpuscope.benchmarking.sweeps.points import FEWEST_VISITS, Series
from gpuscope.errors import InvalidArgument, NotAvailable

HEADLINES: tuple[Quantity, ...] = ("kernel", "stream", "wall")
ROUNDS = 5  # about as many as the budget is laid out for
SHORTEST_VISIT, LONGEST_VISIT = 0.05, 1.0  # seconds
FEWEST_CALLS, MOST_CALLS = 3, 100  # between two looks at the clock
MOST_CALLS_OF_A_VISIT = 500


class Rounds:
    """The schedule; one object for one measurement.

    Args:
        target: half of the interval over the value at which a point is done.
        cold: see ``benchmark``.
        stream: where the functions put their work; None is the current stream.
        device: ordinal of the GPU; None is the stream's.
        progress: called with one line after each visit, as ``print``.

    Raises:
        InvalidArgument: the target is no fraction, or the stream or the device is not there.
        NotAvailable: a device was given, and there is none.
    """

    def __init__(
        self,
        target: float,
        *,
        cold: bool,
        stream: object = None,
        device: int | None = None,
        progress: Callable[[str], object] | None = None,
    ) -> None:
        if not 0 < target < 1:
            raise InvalidArgument(f"target is {target}; accepted are fractions above 0 and below 1")
        Engine([int], stream=stream, device=device, cold=cold).close()  # a bad stream or device is no point's failure
        self.target = target
        self.cold = cold
        self.stream = stream
        self.device = device
        self.progress = progress
        self.random = random.Random()

    def run(self, series: Sequence[Series], budget: float) -> str:
        """Measures until all points are known well enough or `budget` seconds are spent.

        The first round is always whole, so that each point has an answer.

        Returns:
            Why it stopped: "target", "budget", "interrupted" (by Ctrl-C), or "failed" where every point raised.

        Raises:
            InvalidArgument: the budget is not above 0.
        """
        if not budget > 0:
            raise InvalidArgument(f"budget is {budget}; accepted are seconds above 0")
        started = perf_counter()
        waiting = list(series)
        try:
            while waiting:
                left = budget - (perf_counter() - started)
                first = not any(each.visits for each in waiting)
                if left <= 0 and not first:
                    return "budget"
                seconds = min(max(left / (ROUNDS * len(waiting)), SHORTEST_VISIT), LONGEST_VISIT)
                for each in self.chosen(waiting):
                    if not first and perf_counter() - started >= budget:
                        return "budget"
                    self.visit(each, seconds)
                    self.report(each, series, perf_counter() - started)
                waiting = [each for each in series if not each.failed and not each.converged(self.target)]
        except KeyboardInterrupt:
            return "interrupted"
        return "failed" if all(each.estimate is None for each in series) else "target"

    def chosen(self, waiting: list[Series]) -> list[Series]:
        """The round's points in random order: those visited too seldom, else the half known worst."""
        fewest = min(each.visits for each in waiting)
        if fewest < FEWEST_VISITS:
            chosen = [each for each in waiting if each.visits == fewest]
        else:
            chosen = sorted(waiting, key=lambda each: each.spread, reverse=True)[: ceil(len(waiting) / 2)]
        self.random.shuffle(chosen)
        return chosen

    def visit(self, series: Series, seconds: float) -> None:
        """Makes the inputs of one point, measures for a while, lets them go."""
        try:
            self._measure(series, seconds)
        except Exception as error:
            series.fail(error)
        if series.failed:
            gc.collect()  # cycles through the traceback would hold the inputs that did not fit

    def _measure(self, series: Series, seconds: float) -> None:
        with Engine([series.make()], stream=self.stream, device=self.device, cold=self.cold) as engine:
            engine.prepare()
            headline: Quantity = next((name for name in HEADLINES if name not in engine.absent), "wall")
            quantity = series.quantity or headline
            if quantity in engine.absent:
                raise NotAvailable(f"{quantity} is not available: {engine.absent[quantity]}")
            warm = engine.warm_up(seconds)
            series.enter(engine, warm.steady)
            a_call = warm.seconds / max(warm.calls, 1)
            calls = int(min(max(seconds / 4 / max(a_call, 1e-9), FEWEST_CALLS), MOST_CALLS))
            ends = perf_counter() + seconds
            for _ in range(0, MOST_CALLS_OF_A_VISIT, calls):
                series.add(engine.sample(quantity, np.zeros(calls, dtype=np.uint32)), quantity)
                if perf_counter() >= ends:
                    break

    def report(self, visited: Series, series: Sequence[Series], spent: float) -> None:
        """One line on where the measurement stands."""
        if self.progress is None:
            return
        done = sum(each.failed or each.converged(self.target) for each in series)
        self.progress(
            f"{visited.title}{visited.point(self.target, '')} - {done} of {len(series)} points done, {spent:.1f} s"
        )
