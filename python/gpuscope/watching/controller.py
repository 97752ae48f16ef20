# SPDX-License-Identifier: Apache-2.0
"""Chooses the steps that are recorded, so that the measured cost of recording stays under a budget.

A window of k successive steps begins at each multiple of a period N. A window depends on the number of the step only,
and N is k times a power of two. So the windows of a rank with a longer period are among those of the other ranks, and
ranks need no messages to record the same steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np

from gpuscope.stats.location import quantile
from gpuscope.stats.ratio import Ratio, paired_ratio

WINDOW = 25
"""Steps of a window."""

SHORT_WINDOW = 5
"""Steps of a window if longer ones cost too much even at the longest period."""

REQUESTS = 100
"""Requests of a window."""

_LONGEST = 1 << 9  # windows that the longest period has room for
_ASSUMED_COST = 0.32  # of a step, before it is measured: twice that of a training step on an H100
_KEPT = 64  # windows that are compared
_ROOM = 0.8  # of the budget: the period is only halved if the cost stays below
_P99 = 0.99
_MOST_INSIDE, _MOST_OUTSIDE = 4096, 8192  # requests that are compared


class Place(Enum):
    """Where a step is: outside of windows, inside, the first after recording began or ended, or not to be compared."""

    OUTSIDE = 0
    FIRST_INSIDE = 1
    INSIDE = 2
    FIRST_OUTSIDE = 3
    APART = 4


@dataclass(frozen=True)
class Cost:
    """What recording costs, with 95 % intervals. An end without enough windows is infinite.

    Attributes:
        step: extra time of a step in a window, as a share of a step outside. For requests: of their p99.
        step_low: lower end.
        step_high: upper end.
        job: extra time of the whole program, as a share, at the present period. It contains the first step after each
            switch.
        job_low: lower end.
        job_high: upper end.
        switch: extra time of the two steps after the switches of a window, in steps; 0 for requests.
        windows: number of windows compared.
    """

    step: float
    step_low: float
    step_high: float
    job: float
    job_low: float
    job_high: float
    switch: float
    windows: int


class Controller(Protocol):
    """Chooses windows from the times of steps or requests. One thread at a time.

    Attributes:
        size: k, steps of a window.
        period: N, steps from the begin of a window to the next; 0 without windows.
        off: why there are no windows; empty if there are.
        extra: time of all compared windows that recording took, in steps.
    """

    size: int
    period: int
    off: str
    extra: float

    def add(self, times: Sequence[tuple[float, Place]]) -> None:
        """Takes the next steps in order: seconds, and the place."""

    def cost(self) -> Cost | None:
        """The cost at the present period; None before a window was compared."""


def begins_window(number: int, period: int) -> bool:
    """Whether a window begins with this step. The first steps of a program are no example of the others."""
    return period > 0 and number > 0 and number % period == 0


@dataclass
class _Window:
    """Logarithms of the times of a window and of the steps before and after it."""

    before: float | None
    first: float
    inside: list[float] = field(default_factory=list)
    first_outside: float = math.nan
    after: list[float] = field(default_factory=list)


class _Period:
    """The period, and how it follows the cost."""

    def __init__(self, budget: float, size: int, unit: str) -> None:
        self.size = self._full_size = size
        self.off = ""
        self.extra = 0.0
        self._steps = 0
        self._budget = budget
        self._unit = unit
        self._longest = size * _LONGEST
        self.period = 0
        if budget <= 0:
            self.off = "the budget is 0: only the heartbeat is on"
        else:
            wanted = size * max(2.0, _ASSUMED_COST / budget)
            self.period = min(self._longest, size << math.ceil(math.log2(wanted / size)))

    def follow(self, now: Ratio, at_half: Ratio) -> None:
        """Adjusts the period, at most by a factor 2, to the program's time with windows over the time without."""
        high = now.high if math.isfinite(now.high) else now.value
        if high - 1 > self._budget:
            if self.period < self._longest:
                self.period *= 2
            elif self.size > SHORT_WINDOW and self._full_size == WINDOW:
                self.size = SHORT_WINDOW
            else:
                self.period = 0
                self.off = (
                    f"even {self.size} of {self._longest:,} {self._unit} cost {100 * (high - 1):.2g} %, more than the "
                    f"budget of {100 * self._budget:g} %: only the heartbeat is on"
                )
        elif at_half.high - 1 <= _ROOM * self._budget and self.extra <= self._budget * self._steps:
            if self.size < self._full_size:
                self.size = self._full_size
            elif self.period > 2 * self.size:
                self.period //= 2


class StepController(_Period):
    """Compares the steps of each window with their neighbours outside, by medians.

    The steps before and after a window count the same, so that a drift over all of them cancels.
    """

    def __init__(self, budget: float) -> None:
        super().__init__(budget, WINDOW, "steps")
        self._before: deque[float] = deque(maxlen=WINDOW - 1)
        self._open: _Window | None = None
        self._logs: deque[float] = deque(maxlen=_KEPT)  # of a step inside over one outside
        self._switches: deque[float] = deque(maxlen=_KEPT)
        self._is_first = True
        self._cost: Cost | None = None

    def add(self, times: Sequence[tuple[float, Place]]) -> None:
        """As `Controller.add`."""
        self._steps += len(times)
        if self._open is None and len(times) > WINDOW and all(place is Place.OUTSIDE for _, place in times):
            times = times[-WINDOW:]  # the others are no neighbours of a window
        for seconds, place in times:
            if place is Place.APART:
                continue
            value = math.log(max(seconds, 1e-9))
            if place is Place.FIRST_INSIDE:
                self._compare()
                before = float(np.median(self._before)) if len(self._before) >= SHORT_WINDOW - 1 else None
                self._open = _Window(before, value)
                self._before.clear()
            elif place is Place.OUTSIDE:
                self._before.append(value)
                if self._open is not None and not math.isnan(self._open.first_outside):
                    self._open.after.append(value)
                    if len(self._open.after) == WINDOW - 1:
                        self._compare()
            elif self._open is not None:
                if place is Place.INSIDE:
                    self._open.inside.append(value)
                else:
                    self._open.first_outside = value

    def cost(self) -> Cost | None:
        """As `Controller.cost`."""
        return self._cost

    def _compare(self) -> None:
        """Adds the open window, if it and its neighbours have enough steps."""
        window, self._open = self._open, None
        if window is None or math.isnan(window.first_outside):
            return
        sides = [] if window.before is None else [window.before]
        sides += [float(np.median(window.after))] if len(window.after) >= SHORT_WINDOW - 1 else []
        if len(sides) < 2 or len(window.inside) < SHORT_WINDOW - 1:
            return
        outside = sum(sides) / 2
        step = float(np.median(window.inside)) - outside
        switch = math.exp(window.first - outside) + math.exp(window.first_outside - outside) - 2
        self.extra += len(window.inside) * math.expm1(step) + switch
        is_first, self._is_first = self._is_first, False
        if is_first:  # it also loads libraries
            return
        self._logs.append(step)
        self._switches.append(switch)
        if self.period:
            smaller = (self.period // 2, self.size) if self.size == WINDOW else (self.period, WINDOW)
            self.follow(self._job(self.period, self.size), self._job(*smaller))
        job = self._job(self.period, self.size) if self.period else _NOTHING
        self._cost = _cost(paired_ratio(self._logs), job, float(np.median(self._switches)), len(self._logs))

    def _job(self, period: int, size: int) -> Ratio:
        """The time of a period with a window over that without, from the windows compared."""
        extra = (size - 1) * np.expm1(self._logs) + np.asarray(self._switches)
        return paired_ratio(np.log1p(np.maximum(extra / period, -0.5)))


class RequestController(_Period):
    """Compares the 99th percentile of requests inside of windows with that of requests outside."""

    def __init__(self, budget: float) -> None:
        super().__init__(budget, REQUESTS, "requests")
        self._inside: deque[float] = deque(maxlen=_MOST_INSIDE)
        self._outside: deque[float] = deque(maxlen=_MOST_OUTSIDE)
        self._compared = 0
        self._in_window = False
        self._cost: Cost | None = None

    def add(self, times: Sequence[tuple[float, Place]]) -> None:
        """As `Controller.add`. Requests during a switch are in neither group."""
        for seconds, place in times:
            if place is Place.INSIDE:
                self._inside.append(seconds)
                self._in_window = True
            elif place is Place.OUTSIDE:
                self._outside.append(seconds)
                if self._in_window:
                    self._in_window = False
                    self._compare()

    def cost(self) -> Cost | None:
        """As `Controller.cost`."""
        return self._cost

    def _compare(self) -> None:
        ratio = self._ratio()
        self._compared += 1
        if self.period:
            self.follow(*(_of_share(ratio, self.size / each) for each in (self.period, self.period / 2)))
        job = _of_share(ratio, self.size / self.period) if self.period else _NOTHING
        self._cost = _cost(ratio, job, 0.0, self._compared)

    @property
    def p99_s(self) -> tuple[float | None, float | None]:
        """The 99th percentiles inside and outside; None without a request."""
        inside, outside = (
            float(np.quantile(np.fromiter(each, np.float64), _P99)) if each else None
            for each in (self._inside, self._outside)
        )
        return inside, outside

    def _ratio(self) -> Ratio:
        """The ratio of both percentiles, with the interval of G. Y. Zou and A. Donner, as `stats.ratio_of_medians`."""
        above, below = quantile([*self._inside], _P99), quantile([*self._outside], _P99)
        value = above.value / below.value
        n = min(len(self._inside), len(self._outside))
        if above.low is None or above.high is None or below.low is None or below.high is None:
            return Ratio(value, 0.0, math.inf, n, 1.0)
        down = math.hypot(math.log(above.value / above.low), math.log(below.high / below.value))
        up = math.hypot(math.log(above.high / above.value), math.log(below.value / below.low))
        return Ratio(value, value * math.exp(-down), value * math.exp(up), n, 1.0)


def _of_share(ratio: Ratio, share: float) -> Ratio:
    """The ratio of all, if only a share of all has `ratio`."""
    value, low, high = (1 + share * (each - 1) for each in (ratio.value, ratio.low, ratio.high))
    return Ratio(value, low, high, ratio.n, ratio.p)


_NOTHING = Ratio(1.0, 1.0, 1.0, 0, 1.0)


def _cost(step: Ratio, job: Ratio, switch: float, windows: int) -> Cost:
    ends = (step.value - 1, step.low - 1, step.high - 1, job.value - 1, job.low - 1, job.high - 1)
    return Cost(*ends, switch, windows)
