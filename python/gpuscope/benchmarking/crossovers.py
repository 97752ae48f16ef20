# SPDX-License-Identifier: Apache-2.0
"""Finds the size from which the GPU is faster than the CPU, with its interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf, sqrt
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuscope.arguments import as_float, check_budget
from gpuscope.benchmarking import visits
from gpuscope.benchmarking.charts import curve
from gpuscope.benchmarking.rounds import FEWEST_VISITS, SHORTEST_VISIT, Rounds, Series, SweepPoint
from gpuscope.benchmarking.stopping import Budget
from gpuscope.benchmarking.sweeps import check_maker, checked_axes, not_measured, prepared
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.errors import InvalidArgument
from gpuscope.figures import format_estimate
from gpuscope.page.chart import Axis, Chart, Mark, View
from gpuscope.results import Result, import_pandas, kept_on_error, plain_fields
from gpuscope.tables import align_columns
from gpuscope.text import brief
from gpuscope.units import first_line

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 2000
CONFIDENCE = 0.95
# Confidence over all sizes of a range. With 0.95 per size, equal curves would seem to differ in a fifth of the ranges
# of five sizes.
SURE = 0.99

Array = NDArray[np.float64]

SCHEMA = 1
FOR_THE_GRID = 0.6  # of the budget; the rest refines
REFINEMENTS = 8  # most sizes added for one answer
CLOSE_ENOUGH = 1.05  # ratio of the sizes around a crossing below which nothing is added

LOOKS = {"CPU": (7, "circle", "solid"), "GPU": (1, "square", "solid"), "GPU with transfers": (11, "diamond", "dash")}
"""Names of the sides, and how charts draw them."""

_TITLES = dict(zip(("cpu", "gpu", "transfers"), LOOKS, strict=True))


@dataclass(frozen=True)
class Crossing:
    """A size at which CPU and GPU are equally fast.

    Attributes:
        value: the size.
        low: begin of its 95 % interval, within `between`.
        high: end of that interval.
        between: the measured sizes around it at which one side is clearly faster.
        gpu_faster: "above" or "below" the size.
    """

    value: float
    low: float
    high: float
    between: tuple[float, float]
    gpu_faster: str

    def __str__(self) -> str:
        which = "from" if self.gpu_faster == "above" else "up to"
        return f"{which} {size_text(self.value)} (95 %: {size_text(self.low)} to {size_text(self.high)})"


@dataclass(frozen=True)
class Answer:
    """Whether CPU or GPU is faster over a range of sizes.

    Attributes:
        kind: "one" crossing; "several"; "everywhere": the GPU is faster at each size; "never": it is slower at each;
            "undecided": no crossing, and no certain difference at some sizes; "unknown": too few sizes were visited
            twice on both sides.
        crossings: ascending.
        range: the smallest and the largest size visited twice or more on both sides.
        sizes: number of sizes.
        faster: number of sizes at which the GPU is certainly faster.
        slower: number of sizes at which it is certainly slower.
    """

    kind: str
    crossings: tuple[Crossing, ...]
    range: tuple[float, float] | None
    sizes: int = 0
    faster: int = 0
    slower: int = 0

    def __str__(self) -> str:
        if self.range is None:
            return "not known: no two sizes were visited twice on both"
        smallest, largest = map(size_text, self.range)
        within = f"between {smallest} and {largest}"
        if self.kind == "everywhere":
            return f"the GPU is faster everywhere {within}; they cross below {smallest}, if at all"
        if self.kind == "never":
            return f"the GPU is never faster {within}; they cross above {largest}, if at all"
        if self.kind == "undecided":
            known = max(self.faster, self.slower)
            if known == 0:
                return f"no difference can be told {within}"
            which = "faster" if self.faster else "slower"
            return (
                f"the GPU is {which} at {known} of {self.sizes} sizes {within}; no difference can be told at the others"
            )
        if self.kind == "one":
            return f"the GPU is faster {self.crossings[0]}"
        places = ", ".join(map(str, self.crossings))
        return f"{len(self.crossings)} crossings {within}: the GPU is faster {places}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**plain_fields(self), "text": str(self)}

    def marks(self, side: str) -> list[Mark]:
        """The crossings on the axis of sizes of a chart, in the color of the side that is compared with the CPU."""
        slot, *_ = LOOKS[side]
        return [Mark("x", each.value, each.low, each.high, size_text(each.value), slot) for each in self.crossings]


def answer(sizes: Sequence[float], cpu: Sequence[Array], gpu: Sequence[Array], seed: int = 0) -> Answer:
    """Compares two curves, given the seconds of two or more visits to each of the ascending `sizes`.

    A crossing is between two sizes with certain, opposite differences, so that noise between equals does not make many
    of one. Its interval is the central 95 % of the crossings of curves resampled by the spread of the visits.
    """
    if len(sizes) < 2:
        return Answer("unknown", (), None)
    span = (float(sizes[0]), float(sizes[-1]))
    at = np.log(np.asarray(sizes, dtype=np.float64))
    levels = [visits.difference(visits.level(c), visits.level(g)) for c, g in zip(cpu, gpu, strict=True)]
    ratios = np.array([each.value for each in levels])
    doubt = np.array([each.half_width(1 - (1 - SURE) / len(sizes)) for each in levels])
    resampled = visits.draws(levels, RESAMPLES, np.random.default_rng(seed))
    signs = np.where(ratios > doubt, 1, np.where(ratios < -doubt, -1, 0))
    decided = np.flatnonzero(signs)
    counts = len(sizes), int((signs > 0).sum()), int((signs < 0).sum())
    tail = 100 * (1 - CONFIDENCE) / 2
    crossings = []
    for left, right in pairwise(decided.tolist()):
        if signs[left] == signs[right]:
            continue
        part = slice(left, right + 1)
        rising = bool(signs[right] > 0)
        places = roots(at[part], resampled[:, part], rising)
        lowest, highest = np.exp(np.percentile(places, [tail, 100 - tail]))
        crossings.append(
            Crossing(
                float(np.exp(roots(at[part], ratios[None, part], rising)[0])),
                float(lowest),
                float(highest),
                (float(sizes[left]), float(sizes[right])),
                "above" if rising else "below",
            )
        )
    if crossings:
        return Answer("one" if len(crossings) == 1 else "several", tuple(crossings), span, *counts)
    if len(decided) < len(sizes):
        return Answer("undecided", (), span, *counts)
    return Answer("everywhere" if signs[0] > 0 else "never", (), span, *counts)


def answer_of_visits(cpu: Mapping[float, Array], gpu: Mapping[float, Array]) -> Answer:
    """The answer over the sizes visited twice or more on both sides, given the seconds of each visit by size."""
    both = sorted(size for size in cpu.keys() & gpu.keys() if min(len(cpu[size]), len(gpu[size])) > 1)
    return answer(both, [cpu[size] for size in both], [gpu[size] for size in both])


def roots(at: Array, ratios: Array, rising: bool) -> Array:
    """Roots of piecewise-linear curves, one per row: the middle one of several, an end if there is none.

    `rising` curves begin below 0 and end above.
    """
    heights = ratios if rising else -ratios
    below = heights < 0
    turns = below[:, :-1] != below[:, 1:]
    count = turns.sum(axis=1)
    rows = np.arange(len(heights))
    left = np.argmax(np.cumsum(turns, axis=1) == (count // 2 + 1)[:, None], axis=1)
    left = np.where(count % 2 == 1, left, np.argmax(turns, axis=1))
    low, high = heights[rows, left], heights[rows, left + 1]
    share = low / np.where(low == high, 1.0, low - high)
    ends = np.where(below[:, 0], at[-1], at[0])
    places: Array = np.where(count > 0, at[left] + share * (at[left + 1] - at[left]), ends)
    return places


def size_text(size: float) -> str:
    """A size as "1,024"; below 100 with three digits."""
    return f"{size:,.0f}" if size >= 100 or float(size).is_integer() else f"{size:.3g}"


@dataclass(frozen=True, eq=False, repr=False)
class Crossover(Result):
    """The result of `crossover`. ``str(crossover)`` is the answers in words, then the figures.

    Attributes:
        axis: name of the size.
        without_transfers: the answer for only the computation.
        with_transfers: the answer for copying in, computing and copying out; None if not requested.
        curves: "cpu", "gpu" and, if requested, "transfers": points of wall time by ascending size.
        stopped: "precision", "budget", "interrupted", "error" or "failed".
        warnings: one sentence each.
        conditions: of all points.
    """

    axis: str
    without_transfers: Answer
    with_transfers: Answer | None
    curves: Mapping[str, tuple[SweepPoint, ...]]
    stopped: str
    warnings: tuple[str, ...]
    conditions: Conditions = UNKNOWN

    @property
    def value(self) -> float | None:
        """The size of the only crossing, without transfers; None for no or several crossings."""
        found = self.without_transfers.crossings
        return found[0].value if len(found) == 1 else None

    def __str__(self) -> str:
        remarks = list(self.warnings)
        unmeasured = self.without_transfers.range is None and any(p.error for ps in self.curves.values() for p in ps)
        lines = [remarks.pop(0)] if unmeasured else []  # the cause first
        lines += [f"{self.axis}, computation alone: {self.without_transfers}"]
        if self.with_transfers is not None:
            lines.append(f"{self.axis}, with transfers: {self.with_transfers}")
        return "\n".join(filter(None, [*lines, self.table(), self.conditions.line, *remarks]))

    def table(self) -> str:
        """One line per size: the time on each side, and the GPU's speed-up."""
        cells = {key: {p.parameters[self.axis]: p for p in points} for key, points in self.curves.items()}
        rows = [[self.axis, *(_TITLES[key] for key in cells), *(f"CPU / {_TITLES[key]}" for key in list(cells)[1:])]]
        for size, base in cells["cpu"].items():
            row = [size_text(float(cast(float, size)))]
            points = [column[size] for column in cells.values()]
            row += [format_estimate(point.estimate) if point.estimate else "-" for point in points]
            for point in points[1:]:
                both = base.estimate and point.estimate
                row.append(f"{base.estimate.value / point.estimate.value:.3g}x" if both else "-")  # type: ignore[union-attr]
            rows.append(row)
        return "\n".join(align_columns(rows, rule=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""
        return {"schema": SCHEMA, **plain_fields(self)}

    def to_pandas(self) -> pd.DataFrame:
        """One row per size and curve, with the columns of a sweep's points; needs pandas."""
        rows = [{"curve": key, **point.row()} for key, points in self.curves.items() for point in points]
        return import_pandas().DataFrame(rows)

    def plot(self) -> Chart:
        """Time over size on logarithmic axes, with intervals and the crossings, as a page and in notebooks."""
        view = _view(self)
        return Chart(view.name, [view])


def crossover(
    cpu_fn: Callable[..., Any],
    gpu_fn: Callable[..., Any],
    *,
    transfers: Callable[..., Any] | None = None,
    cold: bool = False,
    precision: float = 0.02,
    budget: float = 10.0,
    stream: object = None,
    device: int | None = None,
    progress: Callable[[str], object] | None = None,
    **axis: Iterable[float],
) -> Crossover:
    """Finds the size from which the GPU is faster: ``crossover(on_cpu, on_gpu, n=[64, 256, 1024])``.

    The functions are factories as in ``sweep``: ``on_gpu(n=64)`` creates the inputs on the GPU, and returns a callable
    to time. Wall time is compared, from a call until its work is done. The given sizes are visited in rounds of random
    order. Then further sizes are measured around each crossing, at geometric means; they are integers if all sizes are.
    The rest of the budget is for the points with the widest intervals. Intervals, Ctrl-C and errors are as in
    ``sweep``.

    Args:
        cpu_fn: factory of the computation on the CPU.
        gpu_fn: factory of the computation on the GPU, inputs and outputs in its memory.
        transfers: factory of a callable that copies in, computes and copies out.
        cold: flush the GPU's L2 cache before each call; the CPU's caches are never flushed.
        precision: half of the 95 % interval over the value at which a point is done.
        budget: seconds for everything.
        stream: the stream of the functions' work, in any form that ``streams.resolve`` takes.
        device: ordinal of the GPU.
        progress: called with one line after each visit of a point.
        axis: the sizes, at least two, in any order.

    Raises:
        InvalidArgument: there is not exactly one axis, its values are not at least two different numbers above 0, or
            another argument is out of range.
    """
    check_maker("cpu_fn", cpu_fn)
    check_maker("gpu_fn", gpu_fn)
    if transfers is not None:
        check_maker("transfers", transfers)
    budget = check_budget(budget)
    name, sizes = _checked_sizes(axis)
    makers = {"cpu": cpu_fn, "gpu": gpu_fn} | ({"transfers": transfers} if transfers is not None else {})
    search = _Search(name, makers, Rounds(precision, cold=cold, stream=stream, device=device, progress=progress))

    def result(stopped: str) -> Crossover:
        curves = search.curves(not_measured(stopped))
        return Crossover(
            axis=name,
            without_transfers=search.answer("gpu"),
            with_transfers=search.answer("transfers") if transfers is not None else None,
            curves=curves,
            stopped=stopped,
            warnings=tuple(_remarks(curves)),
            conditions=search.rounds.conditions(),
        )

    with kept_on_error(partial(result, "error")):
        return result(search.measure(sizes, budget))


class _Search:
    """The series of each curve and size, and the sizes to measure next."""

    def __init__(self, axis: str, makers: Mapping[str, Callable[..., Any]], rounds: Rounds) -> None:
        self.axis = axis
        self.makers = makers
        self.rounds = rounds
        self.series: dict[str, dict[float, Series]] = {key: {} for key in makers}

    def measure(self, sizes: Sequence[float], budget: float) -> str:
        """Measures given sizes, sizes around crossings, then the widest intervals; returns the end."""
        spent = Budget(budget)
        whole = all(isinstance(size, Integral) for size in sizes)
        try:
            stopped = self.rounds.run([each for size in sizes for each in self.add(size)], FOR_THE_GRID * budget)
            for _ in range(REFINEMENTS):
                sizes = self.between(whole) if stopped in ("precision", "budget") else []
                needed = sum(map(self.cost, sizes))
                if not sizes or needed > spent.left:
                    break
                stopped = self.rounds.run(
                    [each for size in sizes for each in self.add(size)], max(spent.left / 2, needed)
                )
            if spent.left and stopped in ("precision", "budget"):
                every = [each for series in self.series.values() for each in series.values()]
                stopped = self.rounds.run(every, spent.left)
        except KeyboardInterrupt:
            return "interrupted"
        return stopped

    def add(self, size: float) -> list[Series]:
        """Adds a size to each curve."""
        added = []
        for key, maker in self.makers.items():
            parameters = {self.axis: size}
            self.series[key][size] = Series(
                parameters, partial(prepared, maker, parameters), "wall", f"{_TITLES[key]}, "
            )
            added.append(self.series[key][size])
        return added

    def cost(self, size: float) -> float:
        """Seconds of enough visits to a new size on each curve, from the next larger size."""
        nearest = min(known for known in self.series["cpu"] if known > size)
        return FEWEST_VISITS * sum(SHORTEST_VISIT + series[nearest].overhead for series in self.series.values())

    def between(self, whole: bool) -> list[float]:
        """A new size within each crossing's bracket that is not narrow yet."""
        found: dict[float, None] = {}
        for key in list(self.makers)[1:]:
            for crossing in self.answer(key).crossings:
                known = sorted(self.series[key])
                below = max(size for size in known if size <= crossing.value)
                above = min((size for size in known if size > crossing.value), default=below)
                middle = sqrt(below) * sqrt(above)
                size: float = round(middle) if whole else middle
                if above / below > CLOSE_ENOUGH and below < size < above:
                    found[size] = None
        return list(found)

    def answer(self, key: str) -> Answer:
        """The answer for one curve and the CPU's, over sizes visited twice on both."""
        cpu, gpu = ({size: each.centres for size, each in self.series[side].items()} for side in ("cpu", key))
        return answer_of_visits(cpu, gpu)

    def curves(self, otherwise: str) -> dict[str, tuple[SweepPoint, ...]]:
        """The points by ascending size; `otherwise` is the reason for unvisited points."""
        precision = self.rounds.precision
        return {
            key: tuple(sizes[size].point(precision, otherwise) for size in sorted(sizes))
            for key, sizes in self.series.items()
        }


def _checked_sizes(axis: Mapping[str, Iterable[float]]) -> tuple[str, list[float]]:
    if len(axis) != 1:
        given = ", ".join(axis) or "none"
        raise InvalidArgument(f"axis is {given}; accepted is exactly one, as n=[64, 256, 1024]")
    ((name, values),) = checked_axes(axis).items()
    for value in values:
        if not 0 < as_float(value) < inf:
            raise InvalidArgument(f"{name} has {brief(value)}; accepted are numbers above 0")
    sizes = sorted({cast(float, value) for value in values})
    if len(sizes) < 2:
        raise InvalidArgument(f"{name} has one size, {sizes[0]}; accepted are at least two")
    return name, sizes


def _remarks(curves: Mapping[str, tuple[SweepPoint, ...]]) -> list[str]:
    found = []
    for key, points in curves.items():
        for error in dict.fromkeys(p.error for p in points if p.error):
            names = [p.name for p in points if p.error == error]
            where = "every size" if len(names) == len(points) else "; ".join(names)
            found.append(f"{_TITLES[key]}, {where}: {error}")
    found.sort(key=lambda text: ", every size: " not in text)
    for key, points in curves.items():
        for text in dict.fromkeys(text for p in points for text in p.warnings):
            found.append(f"{_TITLES[key]}, {'; '.join(p.name for p in points if text in p.warnings)}: {text}")
    return found


def _view(result: Crossover) -> View:
    lines = []
    for key, points in result.curves.items():
        known = [(as_float(p.parameters[result.axis]), p.estimate) for p in points if p.estimate is not None]
        lines.append(curve(_TITLES[key], LOOKS[_TITLES[key]], known))
    marks = result.without_transfers.marks("GPU")
    if result.with_transfers is not None:
        marks += result.with_transfers.marks("GPU with transfers")
    x = Axis(result.axis, "count", log=True)
    y = Axis("wall time", "time", log=True)
    return View(f"CPU and GPU over {result.axis}", x, y, tuple(lines), tuple(marks), text=first_line(str(result)))
