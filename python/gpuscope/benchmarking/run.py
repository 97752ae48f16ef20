# SPDX-License-Identifier: Apache-2.0
"""One benchmark under way: its passes in their order, and when it ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking.marginal import marginal
from gpuscope.benchmarking.result import Measured
from gpuscope.benchmarking.sampling.budget import Budget, Progress, judge, next_batch, settled
from gpuscope.benchmarking.sampling.engine import CPU_TICK, Engine
from gpuscope.benchmarking.sampling.facts import Facts
from gpuscope.benchmarking.sampling.samples import Quantity, Samples, joined
from gpuscope.benchmarking.sampling.warm_up import WarmUp
from gpuscope.errors import GpuscopeError, NotAvailable

# Parts of the budget: the headline has what the others leave.
_WARM_UP, _SIDE, _SLOPE = 0.25, 0.05, 0.02
_SIDE_SAMPLES = 64
_ENOUGH_VALID = 0.5
# Of functions that launch more, or take longer, no graphs of many calls are made.
_MOST_CAPTURED = 64
_LONGEST_CAPTURED = 5e-3


class Run:
    """One benchmark under way: what has been sampled so far, kept when it is interrupted."""

    def __init__(self, engine: Engine, spent: Budget, target: float) -> None:
        self.engine, self.spent, self.target = engine, spent, target
        self.parts: dict[Quantity, list[Samples]] = {}
        self.slope: Measured | None = None
        self.absent: dict[str, str] = {}
        self.warm_up = WarmUp(False, 0.0, 0)
        self.progress: Progress | None = None
        self.stopped = "budget"
        self._instead: Quantity | None = None

    @property
    def headline(self) -> Quantity:
        """The quantity that decides: the first that is to be had of kernel, stream and wall."""
        if self._instead is not None:
            return self._instead
        choices: tuple[Quantity, ...] = ("kernel", "stream")
        return next((choice for choice in choices if choice not in self.engine.absent), "wall")

    @property
    def samples(self) -> Samples:
        """The headline's pass."""
        return joined(self.parts[self.headline])

    def measure(self, captured: Callable[[], object] | None) -> None:
        """Takes all quantities, those first that CUPTI would disturb.

        Args:
            captured: what marginal time is taken of; None for none.
        """
        try:
            self.engine.prepare()
            self.warm_up = self.engine.warm_up(self.spent.share(_WARM_UP).seconds)
            for quantity in ("stream", "launch", "wall"):
                self._aside(quantity)
            self._slope(captured)
            self._sample_headline()
        except KeyboardInterrupt:
            self.stopped = "interrupted"
            if self.progress is None and not self._fall_back():
                raise

    def _aside(self, quantity: Quantity) -> None:
        has_stream_pass = quantity == "launch" and "stream" not in self.engine.absent
        if quantity in self.engine.absent or quantity == self.headline or has_stream_pass:
            return
        share, taken = self.spent.share(_SIDE), 0
        while not taken or (taken < _SIDE_SAMPLES and share.left):
            order = np.zeros(self.engine.chunk, np.uint32)
            self.parts.setdefault(quantity, []).append(self.engine.sample(quantity, order))
            taken += len(order)
            if quantity in self.engine.absent:  # the gate does not hold
                return

    def _slope(self, function: Callable[[], object] | None) -> None:
        engine, facts = self.engine, self.engine.facts[0]
        if not facts.uses_gpu or engine.sampler is None:
            return
        why = "a graph's replay was measured" if function is None else _why_no_slope(facts)
        if function is None or why:
            self.absent["marginal"] = why
            return
        seconds = self.spent.share(_SLOPE).seconds
        try:
            slope = marginal(function, engine.sampler, engine.stream, target=self.target, budget=seconds)
        except GpuscopeError as error:
            self.absent["marginal"] = str(error)
            return
        self.slope = Measured("marginal", slope.samples, np.ones(len(slope.samples), bool), slope.estimate)

    def _sample_headline(self) -> None:
        cost = self.warm_up.seconds / max(1, self.warm_up.calls)
        while True:
            quantity = self.headline
            count = next_batch(self.progress, self.target, cost, self.spent.left)
            began = self.spent.spent
            part = self.engine.sample(quantity, np.zeros(count, np.uint32))
            cost = (self.spent.spent - began) / count
            if quantity in self.engine.absent:  # a gate that did not hold: go on with another headline
                self.progress = None
                continue
            self.parts.setdefault(quantity, []).append(part)
            times = self._times(quantity)
            if len(times):
                self.progress = judge(times, self.engine.tick, self.target)
                if self.progress.converged:
                    self.stopped = "target"
                    return
            if not self.spent.left:
                break
        valid = joined(self.parts[quantity]).valid
        if self.progress is None or valid.mean() < _ENOUGH_VALID:
            why = f"{np.count_nonzero(~valid)} of {len(valid)} samples lack records of CUPTI"
            if self._fall_back():
                self.engine.absent |= dict.fromkeys(("kernel", "span"), why)
            elif self.progress is None:
                raise NotAvailable(f"{quantity} time cannot be measured: {why}")

    def _fall_back(self) -> bool:
        """Makes a quantity the headline that was sampled beside it; False when there is none."""
        choices: tuple[Quantity, ...] = ("stream", "wall")
        for quantity in choices:
            if quantity in self.parts and quantity not in self.engine.absent and len(self._times(quantity)):
                self._instead = quantity
                self.progress = judge(self._times(quantity), self.engine.tick, self.target)
                return True
        return False

    def _times(self, quantity: Quantity) -> NDArray[np.float64]:
        return self.measured(quantity, joined(self.parts[quantity]))[0]

    def quantities(self) -> dict[str, Measured]:
        """Everything that was sampled, the headline first."""
        order: tuple[Quantity, ...] = (self.headline, *self.parts)
        found: dict[str, Measured] = {}
        for key in dict.fromkeys(order):
            samples = joined(self.parts[key])
            for quantity in samples.seconds:
                times, valid = self.measured(quantity, samples)
                if quantity in found or quantity in self.engine.absent or not len(times):
                    continue
                tick = self.engine.tick if quantity in ("kernel", "span", "stream") else CPU_TICK
                estimate = settled(times, tick) if quantity == self.headline else stats.estimate(times, tick=tick)
                found[quantity] = Measured(quantity, samples.seconds[quantity], valid, estimate)
        if self.slope is not None:
            found["marginal"] = self.slope
        return found

    @staticmethod
    def measured(quantity: Quantity, samples: Samples) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The valid times of a pass, and which rows they are."""
        times = samples.seconds[quantity]
        valid = samples.valid & np.isfinite(times)
        return times[valid], valid


def _why_no_slope(facts: Facts) -> str:
    """Why a function cannot be captured into graphs of many calls; empty when it may be tried."""
    if facts.synchronizes:
        return "the function waits for the GPU inside, which cannot be captured"
    if facts.allocates:
        return "the function allocates GPU memory, which cannot be captured"
    if facts.other_streams:
        return "the function has work done on other streams than the one timed"
    if facts.launches > _MOST_CAPTURED:
        return f"the function launches more than {_MOST_CAPTURED} times a call"
    if facts.call_seconds > _LONGEST_CAPTURED:
        return f"a call takes longer than {_LONGEST_CAPTURED * 1e3:g} ms: single calls tell as much"
    return ""
