# SPDX-License-Identifier: Apache-2.0
"""How long a function takes over the product of some parameters' values, measured in rounds of random order."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.samples import Quantity, Samples
from gpuscope.benchmarking.stopping import check_budget, check_fraction, check_quantity
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.results import (
    Figures,
    Result,
    format_estimate,
    format_half_width,
    import_pandas,
    plain_fields,
    plain_values,
)
from gpuscope.text import shown
from gpuscope.units import align_columns, format_seconds

if TYPE_CHECKING:
    import pandas as pd

FEWEST_VISITS = 2  # one visit sees one state of the machine
NOTEWORTHY_SHARE = 0.01  # of throttled or invalid calls

ROUNDS = 5  # about as many as the budget is laid out for
SHORTEST_VISIT, LONGEST_VISIT = 0.05, 1.0  # seconds
FEWEST_CALLS, MOST_CALLS = 3, 100  # between two looks at the clock
MOST_CALLS_OF_A_VISIT = 500

SCHEMA = 1

_STOPPED = {
    "target": "all points reached the target",
    "budget": "the budget was spent",
    "interrupted": "interrupted",
    "failed": "no point could be measured",
}


@dataclass(frozen=True, eq=False)
class SweepPoint(Figures):
    """The result of one point of a sweep.

    Attributes:
        parameters: the value of each axis.
        estimate: centre and confidence interval in seconds; None where nothing was measured.
        quantity: what was measured: kernel, span, stream, launch or wall; None where nothing was.
        samples: seconds of each valid call, in the order called.
        converged: the interval is as narrow as was asked for.
        warnings: what a reader should know, a sentence each.
        error: why the point could not be measured, as "OutOfMemoryError: ..."; None where it could.
    """

    parameters: Mapping[str, object]
    estimate: stats.Estimate | None
    quantity: str | None
    samples: NDArray[np.float64]
    converged: bool
    warnings: tuple[str, ...]
    error: str | None

    @property
    def name(self) -> str:
        """The parameters as "n=1024, dtype=float16"."""
        return ", ".join(f"{axis}={_plain(value)}" for axis, value in self.parameters.items())

    @shown
    def __str__(self) -> str:
        if self.estimate is None:
            return f"{self.name}: {self.error}"
        return f"{self.name}: {self.quantity} {format_estimate(self.estimate)}, {self.estimate.n} calls"

    def row(self) -> dict[str, Any]:
        """The columns of a frame; an axis keeps its name, also when a column has it."""
        found = self.to_dict()
        figures = {"value": "seconds", "low": "low", "high": "high", "n": "calls"}
        others = ("quantity", "converged", "error")
        columns = {column: found[name] for name, column in figures.items()} | {name: found[name] for name in others}
        return {**found["parameters"], **columns, **found["parameters"]}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: seconds, None for what is not known, odd parameters as texts."""
        figures = ("value", "low", "high", "method", "confidence")
        return {
            **plain_fields(self, without=("estimate",)),
            "parameters": {axis: _plain(value) for axis, value in self.parameters.items()},
            **{name: plain_values(getattr(self.estimate, name, None)) for name in figures},
            "n": len(self.samples),
        }


class Series:
    """Gathers the samples of one point over several visits, unless it failed.

    `make` makes the inputs and returns the callable to time; progress lines begin with `title`.
    """

    def __init__(
        self,
        parameters: Mapping[str, object],
        make: Callable[[], Callable[[], object]],
        quantity: Quantity | None,
        title: str = "",
    ) -> None:
        self.title = title
        self.parameters = parameters
        self.make = make
        self.quantity = quantity
        self.error: str | None = None
        self.failed = False
        self.visits = 0
        self._seconds: list[NDArray[np.float64]] = []
        self._calls = self._throttled = self._invalid = 0
        self._steady = True
        self._tick = 0.0
        self._estimate: stats.Estimate | None = None

    def enter(self, engine: Engine, steady: bool) -> None:
        """A visit begins."""
        self.visits += 1
        self._tick = engine.tick
        self._steady &= steady

    def add(self, samples: Samples, quantity: Quantity) -> None:
        """One batch of calls."""
        self.quantity = quantity
        seconds = samples.times(quantity)
        usable = np.isfinite(seconds)
        self._seconds.append(seconds[usable])
        self._calls += len(seconds)
        self._invalid += int(len(seconds) - usable.sum())
        self._throttled += int(samples.throttled.sum())
        self._estimate = None

    def fail(self, error: BaseException) -> None:
        """The point raised; what it gave before is kept."""
        self.failed = True
        self.error = f"{type(error).__name__}: {error}".strip().rstrip(":")

    @property
    def samples(self) -> NDArray[np.float64]:
        """Seconds of each valid call."""
        return np.concatenate(self._seconds) if self._seconds else np.empty(0)

    @property
    def estimate(self) -> stats.Estimate | None:
        """Of all that has been gathered; None of nothing."""
        if self._estimate is None and any(map(len, self._seconds)):
            self._estimate = stats.estimate(self.samples, tick=self._tick)
        return self._estimate

    @property
    def spread(self) -> float:
        """Half the interval over the value."""
        return self.estimate.relative_half_width if self.estimate else float("inf")

    def converged(self, target: float) -> bool:
        """Whether the interval is narrow enough, over more than one visit."""
        return self.visits >= FEWEST_VISITS and self.spread <= target

    def point(self, target: float, otherwise: str) -> SweepPoint:
        """The result; `otherwise` says why there is nothing if the point was not reached."""
        measured = self.estimate
        error = None if measured else self.error or otherwise
        return SweepPoint(
            parameters=self.parameters,
            estimate=measured,
            quantity=self.quantity if measured else None,
            samples=self.samples,
            converged=self.converged(target),
            warnings=tuple(self._warnings(measured)),
            error=error,
        )

    def _warnings(self, measured: stats.Estimate | None) -> list[str]:
        found: list[str] = []
        if not self._calls or measured is None:
            return found
        if self.error:
            found.append(f"measured in {self.visits} visits, then stopped: {self.error}")
        if not self._steady:
            found.append("not steady after the warm-up")
        for count, what in ((self._throttled, "ran with a throttled clock"), (self._invalid, "could not be used")):
            if count > NOTEWORTHY_SHARE * self._calls:
                found.append(f"{count / self._calls:.0%} of the calls {what}")
        modes = stats.modes(self.samples, tick=self._tick)
        if len(modes) > 1:
            values = ", ".join(f"{format_seconds(mode.value, 4)} ({mode.share:.0%})" for mode in modes)
            found.append(f"times have {len(modes)} modes: {values}")
        return found


def _plain(value: object) -> Any:
    """A value that JSON knows, or its text; "float16" of torch.float16."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, type):
        return value.__name__
    text = str(value)
    return text.removeprefix("torch.")


class Rounds:
    """The schedule of one measurement, with the options of `sweep`."""

    def __init__(
        self,
        target: float,
        *,
        cold: bool,
        stream: object = None,
        device: int | None = None,
        progress: Callable[[str], object] | None = None,
    ) -> None:
        check_fraction("target", target)
        Engine([int], stream=stream, device=device, cold=cold).close()  # a bad stream or device is no point's failure
        self.target = target
        self.cold = cold
        self.stream = stream
        self.device = device
        self.progress = progress
        self.random = random.Random()

    def run(self, series: Sequence[Series], budget: float) -> str:
        """Measures until all points reach the target or `budget` seconds are spent; the first round is always whole.

        Returns why it stopped: "target", "budget", "interrupted" (by Ctrl-C), or "failed" where every point raised.
        """
        check_budget(budget)
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
                    if self.progress is not None:
                        done = sum(other.failed or other.converged(self.target) for other in series)
                        state = f"{done} of {len(series)} points done, {perf_counter() - started:.1f} s"
                        self.progress(f"{each.title}{each.point(self.target, '')} - {state}")
                waiting = [each for each in series if not each.failed and not each.converged(self.target)]
        except KeyboardInterrupt:
            return "interrupted"
        return "failed" if all(each.estimate is None for each in series) else "target"

    def chosen(self, waiting: list[Series]) -> list[Series]:
        """The round's points in random order: those visited too seldom, else the half with the widest intervals."""
        fewest = min(each.visits for each in waiting)
        if fewest < FEWEST_VISITS:
            chosen = [each for each in waiting if each.visits == fewest]
        else:
            chosen = sorted(waiting, key=lambda each: each.spread, reverse=True)[: ceil(len(waiting) / 2)]
        self.random.shuffle(chosen)
        return chosen

    def visit(self, series: Series, seconds: float) -> None:
        """Makes the inputs of one point, measures for a while, releases them."""
        try:
            self._measure(series, seconds)
        except Exception as error:
            series.fail(error)
        if series.failed:
            gc.collect()  # cycles through the traceback would hold the inputs that did not fit

    def _measure(self, series: Series, seconds: float) -> None:
        with Engine([series.make()], stream=self.stream, device=self.device, cold=self.cold) as engine:
            engine.prepare()
            quantity = series.quantity or engine.headline
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


@dataclass(frozen=True, eq=False)
class Sweep(Result):
    """The points of a sweep, in the order of the product of their axes.

    Iterates over its points. ``sweep[1024]`` is the point of that value on a single axis, ``sweep[1024, "float16"]``
    of two axes, in the order they were given.

    Attributes:
        axes: names of the axes, and the values of each.
        points: one for each combination.
        stopped: "target", "budget", "interrupted" or "failed".
        target: the relative half width of the interval that was asked for.
    """

    axes: Mapping[str, tuple[object, ...]]
    points: tuple[SweepPoint, ...]
    stopped: str
    target: float

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[SweepPoint]:
        return iter(self.points)

    def __getitem__(self, values: object) -> SweepPoint:
        wanted = values if isinstance(values, tuple) and len(self.axes) > 1 else (values,)
        for point in self.points:
            if tuple(point.parameters.values()) == wanted:
                return point
        raise KeyError(values)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What concerns more than one point."""
        quantities = sorted({point.quantity for point in self.points if point.quantity})
        if len(quantities) > 1:
            return (f"the points are not alike: {' and '.join(quantities)} time were measured; give quantity=",)
        return ()

    def where(self, **parameters: object) -> Sweep:
        """The points with these values, as ``where(dtype="float16")``.

        Raises:
            InvalidArgument: there is no such axis.
        """
        for axis in parameters:
            if axis not in self.axes:
                raise InvalidArgument(f"{axis} is no axis of this sweep; accepted are {', '.join(self.axes)}")
        kept = tuple(p for p in self.points if all(p.parameters[axis] == parameters[axis] for axis in parameters))
        axes = {axis: (parameters[axis],) if axis in parameters else values for axis, values in self.axes.items()}
        return Sweep(axes, kept, self.stopped, self.target)

    def best(self) -> SweepPoint:
        """The fastest point.

        Raises:
            NotAvailable: no point could be measured.
        """
        measured = [point for point in self.points if point.estimate is not None]
        if not measured:
            raise NotAvailable(f"best is not available: no point was measured; the first: {self.points[0]}")
        return min(measured, key=lambda point: point.estimate.value if point.estimate else 0.0)

    def table(self) -> str:
        """One line a point: parameters, time, half the 95 % interval, calls, and what to know of it."""
        rows, remarks = [(*self.axes, "quantity", "time", "interval", "calls")], [""]
        for point in self.points:
            values = map(str, point.to_dict()["parameters"].values())
            if point.estimate is None:
                rows.append((*values, "-", "-", "-", "0"))
                remarks.append(point.error or "")
            else:
                time, spread = format_seconds(point.estimate.value, 4), format_half_width(point.estimate)
                rows.append((*values, point.quantity or "", time, spread, str(point.estimate.n)))
                remarks.append("; ".join(point.warnings))
        remarks.insert(1, "")  # of the rule
        lines = align_columns(rows, rule=True)
        return "\n".join(f"{line}  {remark}".rstrip() for line, remark in zip(lines, remarks, strict=True))

    def __str__(self) -> str:
        done = sum(point.converged for point in self.points)
        failed = sum(point.estimate is None for point in self.points)
        verdict = f"{_STOPPED[self.stopped]}: {done} of {len(self.points)} points within +-{100 * self.target:g} %"
        lines = [self.table(), verdict + (f", {failed} not measured" if failed else "")]
        return "\n".join([*lines, *self.warnings])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""
        found = plain_fields(self)
        points = [point["parameters"] for point in found["points"]]
        axes = {axis: list(dict.fromkeys(parameters[axis] for parameters in points)) for axis in self.axes}
        return {"schema": SCHEMA, **found, "axes": axes, "warnings": list(self.warnings)}

    def to_pandas(self) -> pd.DataFrame:
        """One row a point: its axes, seconds, low, high, calls, quantity, converged and error; needs pandas."""
        return import_pandas().DataFrame([point.row() for point in self.points])


def sweep(
    function: Callable[..., Any],
    *,
    quantity: Quantity | None = None,
    cold: bool = True,
    target: float = 0.02,
    budget: float = 10.0,
    stream: object = None,
    device: int | None = None,
    progress: Callable[[str], object] | None = None,
    **axes: Iterable[object],
) -> Sweep:
    """Times a function at each combination of the axes' values: ``sweep(make, n=[1024, 4096], dtype=["float16"])``.

    `function` is called as ``function(n=1024, dtype="float16")``. Does it return a callable, that is what is timed, so
    that the making of inputs is not; else the function itself is, with these arguments. One call finds out.

    The points are measured in rounds of random order, so that a drift of the machine is not taken for an effect of a
    parameter; after two rounds the budget goes to the points whose intervals are widest. One point's inputs exist
    at a time: they are made for each visit, and released after it. A point that raises is kept with its error's
    text. Ctrl-C ends the sweep and keeps what there is.

    Args:
        function: see above. An axis cannot have the name of one of the arguments below.
        quantity: "kernel", "span", "stream", "launch" or "wall"; by default the first of kernel, stream and wall that
            can be measured.
        cold: whether the GPU's L2 cache is flushed before each call.
        target: half of the 95 % interval over the value at which a point is done.
        budget: seconds for all points together, including the making of inputs; the first round is finished anyway.
        stream: where the function puts its work, in any form that ``streams.resolve`` knows.
        device: ordinal of the GPU.
        progress: called with one line after each visit; ``print`` will do.
        axes: the values of each parameter.

    Raises:
        InvalidArgument: there are no axes, one has no values, or another argument is out of range.
    """
    check_quantity(quantity)
    values = checked_axes(axes)
    combinations = [dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())]
    series = [Series(parameters, partial(prepared, function, parameters), quantity) for parameters in combinations]
    rounds = Rounds(target, cold=cold, stream=stream, device=device, progress=progress)
    stopped = rounds.run(series, budget)
    points = tuple(each.point(target, "not measured: interrupted") for each in series)
    return Sweep(values, points, stopped, target)


def prepared(function: Callable[..., Any], parameters: Mapping[str, object]) -> Callable[[], object]:
    """What to time at one point: what the function returns when that is callable, else the function itself."""
    made = function(**parameters)
    return made if callable(made) else partial(function, **parameters)


def checked_axes(axes: Mapping[str, Iterable[object]]) -> dict[str, tuple[object, ...]]:
    """The values of each axis; raises InvalidArgument for none, or for one that is not a list of values."""
    if not axes:
        raise InvalidArgument("axes are missing; accepted is at least one list of values, as n=[256, 1024]")
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise InvalidArgument(f"{name} is {values!r}; accepted is a list of values, as {name}=[{values!r}]")
    found = {name: tuple(values) for name, values in axes.items()}
    for name, values in found.items():
        if not values:
            raise InvalidArgument(f"{name} is empty; accepted is at least one value")
    return found
