# SPDX-License-Identifier: Apache-2.0
"""Measures a function at all combinations of parameter values, in rounds of random order."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, get_args

from gpuscope import stats
from gpuscope.arguments import Quantity, check_choice, check_done, check_function
from gpuscope.benchmarking import visits
from gpuscope.benchmarking.charts import view_of_points
from gpuscope.benchmarking.engine import function_name
from gpuscope.benchmarking.rounds import FIGURES, Rounds, Series, SweepPoint
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.figures import format_half_width
from gpuscope.page.chart import Chart
from gpuscope.results import Result, import_pandas, kept_on_error, plain_fields, plain_values
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

# Nominal errors of calling a point slower than an equal one. Stopping at narrow intervals raises them several times: of
# two equal points, one is called fastest in at most 1 % of sweeps (benchmarks/python/simulated.py).
ONE_OF_TWO, ANY = 0.001, 0.05

SCHEMA = 1

MOST_POINTS = 10_000
WIDTH = 120  # columns of a table, where the axes allow
_MOST_NAMED = 8

_STOPPED = {
    "precision": "all points reached the precision",
    "budget": "the budget was spent",
    "interrupted": "interrupted",
    "error": "an error ended the measurement",
    "failed": "every point failed",
}


def _all_same(values: tuple[object, ...], wanted: tuple[object, ...]) -> bool:
    return len(values) == len(wanted) and all(map(_same, values, wanted))


def _same(value: object, wanted: object) -> bool:
    try:
        return value is wanted or bool(value == wanted)
    except Exception:  # arrays have no single answer
        return False


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Result):
    """The points of a sweep, in the order of the product of their axes.

    Iterates over its points. ``sweep[1024]`` is the point of that value on a single axis, ``sweep[1024, "float16"]``
    of two axes, in the given order.

    Attributes:
        axes: names of the axes, and the values of each.
        points: one for each combination.
        stopped: "precision", "budget", "interrupted", "error" or "failed".
        precision: the requested relative half width of the interval.
        conditions: of all points.
    """

    axes: Mapping[str, tuple[object, ...]]
    points: tuple[SweepPoint, ...]
    stopped: str
    precision: float
    conditions: Conditions = UNKNOWN

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[SweepPoint]:
        return iter(self.points)

    def __getitem__(self, values: object) -> SweepPoint:
        wanted = values if isinstance(values, tuple) and len(self.axes) > 1 else (values,)
        for point in self.points:
            if _all_same(tuple(point.parameters.values()), wanted):
                return point
        raise KeyError(values)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about several points."""
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
        wanted = tuple(parameters.values())
        kept = tuple(p for p in self.points if _all_same(tuple(p.parameters[axis] for axis in parameters), wanted))
        axes = {axis: (parameters[axis],) if axis in parameters else values for axis, values in self.axes.items()}
        return Sweep(axes, kept, self.stopped, self.precision, self.conditions)

    @property
    def _measured(self) -> list[SweepPoint]:
        measured = [point for point in self.points if point.estimate is not None]
        return sorted(measured, key=lambda point: point.estimate.value if point.estimate else 0.0)

    def best(self) -> SweepPoint:
        """The point of the shortest time; `fastest` has all points that may be as fast.

        Raises:
            NotAvailable: no point could be measured.
        """
        if not self._measured:
            first = f"; the first: {self.points[0]}" if self.points else ""
            raise NotAvailable(f"best is not available: no point was measured{first}")
        return self._measured[0]

    def _against_best(self) -> list[stats.Ratio]:
        """Each measured point's time over the shortest, at a simultaneous confidence."""
        measured = self._measured
        confidence = 1 - 2 * min(ONE_OF_TWO, ANY / max(len(measured), 1))
        return [visits.ratio(point.visits, measured[0].visits, confidence) for point in measured]

    @property
    def fastest(self) -> tuple[SweepPoint, ...]:
        """The points that may be the fastest, ascending by time.

        Points that are certainly slower than the best, by the spread of their visits, are excluded. At most 1 % of
        sweeps name a single point that is no faster than others; at most 5 % exclude one of the fastest.
        """
        pairs = zip(self._measured, self._against_best(), strict=True)
        return tuple(point for place, (point, ratio) in enumerate(pairs) if not place or ratio.low <= 1)

    @property
    def fastest_within(self) -> float:
        """The fraction by which points in `fastest` may be slower; infinite for too few visits."""
        ties = [ratio for ratio in self._against_best()[1:] if ratio.low <= 1]
        return max((ratio.high for ratio in ties), default=1.0) - 1

    def table(self) -> str:
        """One line per point: parameters, time, half the 95 % interval, figures, error or warnings."""
        for figures in (FIGURES, ("p5", "p95"), ()):
            rows = [self._row(point, figures) for point in (None, *self.points)]
            lines = [line.rstrip() for line in align_columns(rows, rule=True)]
            if max(map(len, lines)) <= WIDTH:
                break
        for place in range(len(self.points), 0, -1):
            point, line = self.points[place - 1], place + 1  # below the headings and their rule
            remark = " ".join((point.error or "; ".join(point.warnings)).split())
            if len(lines[line]) + 2 + len(remark) <= WIDTH:
                lines[line] = f"{lines[line]}  {remark}".rstrip()
            else:
                lines[line + 1 : line + 1] = textwrap.wrap(remark, WIDTH, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(lines)

    def _row(self, point: SweepPoint | None, figures: Sequence[str]) -> tuple[str, ...]:
        """The cells of one point; the headings for None."""
        if point is None:
            return (*self.axes, "quantity", "time", "interval", *figures, "visits", "calls")
        values = tuple(map(str, point.plain_parameters.values()))
        if point.estimate is None:
            return (*values, "-", *[""] * (4 + len(figures)))
        times = [format_seconds(getattr(point, name)) for name in figures]
        time, spread = format_seconds(point.estimate.value, 4), format_half_width(point.estimate)
        return (*values, point.quantity or "", time, spread, *times, str(len(point.visits)), str(point.calls))

    def _fastest_line(self) -> list[str]:
        if len(self._measured) < 2:
            return []
        fastest, within = self.fastest, self.fastest_within
        names = "; ".join(point.name for point in fastest[:_MOST_NAMED])
        if len(fastest) > _MOST_NAMED:
            names += f"; and {len(fastest) - _MOST_NAMED} more"
        if len(fastest) == 1:
            return [f"fastest: {names}"]
        if not isfinite(within):
            return [f"fastest cannot be told, as some were visited once: {names}"]
        if within > 1:
            return [f"fastest cannot be told, as times differ too much from visit to visit: {names}"]
        return [f"fastest within {100 * within:.2g} %, not told apart: {names}"]

    def _verdict(self) -> str:
        done = sum(point.converged for point in self.points)
        failed = sum(point.estimate is None for point in self.points)
        stopped = _STOPPED[self.stopped]
        if self.stopped == "precision" and done < len(self.points):
            stopped = "all points that did not fail reached the precision"
        verdict = f"{stopped}: {done} of {len(self.points)} points within +-{100 * self.precision:g} %"
        return verdict + (f", {failed} not measured" if failed else "")

    def __str__(self) -> str:
        lines = [self.table(), *self._fastest_line(), self._verdict(), self.conditions.line, *self.warnings]
        return "\n".join(filter(None, lines))

    def __repr__(self) -> str:
        return f"<Sweep of {', '.join(self.axes)}: {'; '.join([self._verdict(), *self._fastest_line()])}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""
        found = plain_fields(self)
        points = [point["parameters"] for point in found["points"]]
        axes = {axis: list(dict.fromkeys(parameters[axis] for parameters in points)) for axis in self.axes}
        return {
            "schema": SCHEMA,
            **found,
            "axes": axes,
            "warnings": list(self.warnings),
            "fastest": [point.plain_parameters for point in self.fastest],
            "fastest_within": plain_values(self.fastest_within),
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per point: axes, seconds, low, high, figures of its calls and state; needs pandas."""
        return import_pandas().DataFrame([point.row() for point in self.points])

    def plot(self) -> Chart:
        """Time over the numeric axis with most values, with 95 % intervals.

        One line per combination of the other axes, without failed points. It is a page, and shown in notebooks. An axis
        is logarithmic if its values differ by 8 times or more.
        """
        text = "; ".join([*self._fastest_line(), self._verdict(), *self.warnings])
        return Chart(f"Sweep of {', '.join(self.axes)}", [view_of_points(self.axes, self.points, text)])


def sweep(
    function: Callable[..., Any],
    *,
    quantity: Quantity | None = None,
    cold: bool = True,
    precision: float = 0.02,
    budget: float = 10.0,
    stream: object = None,
    device: int | None = None,
    progress: Callable[[str], object] | None = None,
    **axes: Iterable[object],
) -> Sweep:
    """Times a function at each combination of the axes' values: ``sweep(make, n=[1024, 4096], dtype=["float16"])``.

    `function` is called as ``function(n=1024, dtype="float16")``. If it returns a callable, that is timed, else the
    function itself. Points are visited in rounds of random order; intervals are from the differences between visits.
    Only the inputs of one point exist at a time. A point that raises is kept with its error. Ctrl-C ends the sweep and
    keeps the results so far.

    Args:
        function: see above. An axis cannot have the name of a parameter below.
        quantity: None takes the first of kernel, stream and wall that can be measured.
        cold: flush the GPU's L2 cache before each call.
        precision: half of the 95 % interval over the value at which a point is done.
        budget: seconds for all points with their inputs; the first round is always finished.
        stream: the stream of the function's work, of any framework; None is the current stream.
        device: ordinal of the GPU.
        progress: called with one line after each visit, as ``print``.
        axes: the values of each parameter, in any order; equal values are measured once.

    Raises:
        InvalidArgument: there are no axes, one has no values, or another argument is out of range.
        Exception: raised by `progress`; its attribute ``measured`` has the result until then.
    """
    check_maker("function", function)
    check_choice("quantity", quantity, (*get_args(Quantity), None))
    values = checked_axes(axes)
    count = prod(map(len, values.values()))
    if count > MOST_POINTS:
        raise InvalidArgument(f"the axes have {count:,} combinations; accepted are up to {MOST_POINTS:,}")
    combinations = [dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())]
    series = [Series(parameters, partial(prepared, function, parameters), quantity) for parameters in combinations]
    rounds = Rounds(precision, cold=cold, stream=stream, device=device, progress=progress)

    def result(stopped: str) -> Sweep:
        points = tuple(each.point(rounds.precision, not_measured(stopped)) for each in series)
        return Sweep(values, points, stopped, rounds.precision, rounds.conditions())

    with kept_on_error(partial(result, "error")):
        return result(rounds.run(series, budget))


def not_measured(stopped: str) -> str:
    """Why a point was never visited."""
    return f"not measured: {'an error ended the measurement' if stopped == 'error' else 'interrupted'}"


def prepared(function: Callable[..., Any], parameters: Mapping[str, object]) -> Callable[[], object]:
    """The callable to time at one point: the function's result if callable, else the function itself."""
    made: object = check_done(function_name(function), function(**parameters))
    if not callable(made):
        return partial(function, **parameters)
    check_function("what was made", made, "a function called without arguments")
    return made


def check_maker(name: str, function: object) -> None:
    """Raises InvalidArgument unless `function` is a function to call."""
    check_function(name, function, "a function of the values of the axes")


def checked_axes(axes: Mapping[str, Iterable[object]]) -> dict[str, tuple[object, ...]]:
    """The different values of each axis; raises InvalidArgument for none, or for one that is not a list of values."""
    if not axes:
        raise InvalidArgument("axes are missing; accepted is at least one list of values, as n=[256, 1024]")
    for name, values in axes.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            given = brief(values)
            raise InvalidArgument(f"{name} is {given}; accepted is a list of values, as {name}=[{given}]")
    found = {name: tuple(_distinct(itertools.islice(values, MOST_POINTS + 1))) for name, values in axes.items()}
    for name, chosen in found.items():
        if not chosen:
            raise InvalidArgument(f"{name} is empty; accepted is at least one value")
        if len(chosen) > MOST_POINTS:
            raise InvalidArgument(f"{name} has more than {MOST_POINTS:,} values; accepted are so many")
    return found


def _distinct(values: Iterable[object]) -> Iterator[object]:
    """Each value once; 1 and True are different, and values without a hash are all kept."""
    seen: set[tuple[type, object]] = set()
    for value in values:
        try:
            known = (type(value), value) in seen
            seen.add((type(value), value))
        except TypeError:
            known = False
        if not known:
            yield value
