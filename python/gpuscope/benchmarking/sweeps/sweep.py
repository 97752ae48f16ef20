# SPDX-License-Identifier: Apache-2.0
"""How long a function takes over the product of some parameters' values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gpuscope.benchmarking.sampling.samples import Quantity
from gpuscope.benchmarking.sweeps.points import Series, SweepPoint, spread_text
from gpuscope.benchmarking.sweeps.rounds import Rounds
from gpuscope.benchmarking.text import seconds as time_text
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.results import json_text

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1

_STOPPED = {
    "target": "all points reached the target",
    "budget": "the budget was spent",
    "interrupted": "interrupted",
    "failed": "no point could be measured",
}


@dataclass(frozen=True, eq=False)
class Sweep:
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
        rows = [(*self.axes, "quantity", "time", "interval", "calls", "")]
        for point in self.points:
            values = map(str, point.to_dict()["parameters"].values())
            if point.estimate is None:
                rows.append((*values, "-", "-", "-", "0", point.error or ""))
            else:
                time, spread = time_text(point.estimate.value), spread_text(point.estimate)
                remarks = "; ".join(point.warnings)
                rows.append((*values, point.quantity or "", time, spread, str(point.estimate.n), remarks))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        lines = [
            "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
            for row in rows
        ]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def __str__(self) -> str:
        done = sum(point.converged for point in self.points)
        failed = sum(point.estimate is None for point in self.points)
        verdict = f"{_STOPPED[self.stopped]}: {done} of {len(self.points)} points within +-{100 * self.target:g} %"
        lines = [self.table(), verdict + (f", {failed} not measured" if failed else "")]
        return "\n".join([*lines, *self.warnings])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""
        points = [point.to_dict() for point in self.points]
        return {
            "schema": SCHEMA,
            "axes": {axis: list(dict.fromkeys(point["parameters"][axis] for point in points)) for axis in self.axes},
            "target": self.target,
            "stopped": self.stopped,
            "warnings": list(self.warnings),
            "points": points,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The text of ``to_dict``; also written to `path` when one is given."""
        return json_text(self.to_dict(), path)

    def to_pandas(self) -> pd.DataFrame:
        """One row a point: a column for each axis, then seconds, low, high, calls, quantity, converged and error.

        Raises:
            NotAvailable: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise NotAvailable("to_pandas is not available: pandas is not installed; pip install pandas") from None
        columns = {"value": "seconds", "low": "low", "high": "high", "n": "calls", "quantity": "quantity"}
        columns |= {"converged": "converged", "error": "error"}
        rows = [point.to_dict() for point in self.points]
        axes = {axis: [row["parameters"][axis] for row in rows] for axis in self.axes}
        figures = {column: [row[name] for row in rows] for name, column in columns.items()}
        return pd.DataFrame({**axes, **figures, **axes})  # an axis keeps its name, whatever it is


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
    at a time: they are made anew for each visit, and let go after it. A point that raises is kept with its error's
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
    if quantity is not None and quantity not in get_args(Quantity):
        raise InvalidArgument(f"quantity is {quantity!r}; accepted are {', '.join(get_args(Quantity))}")
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
    """The values of each axis.

    Raises:
        InvalidArgument: none, or one that is not a list of values.
    """
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
