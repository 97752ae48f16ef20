# SPDX-License-Identifier: Apache-2.0
"""Measures points in rounds of random order, each in several visits."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.arguments import Quantity, Suspended, check_budget, check_fraction, check_progress
from gpuscope.benchmarking import visits
from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.result import format_modes
from gpuscope.benchmarking.samples import Samples
from gpuscope.benchmarking.stopping import Budget
from gpuscope.conditions import Conditions
from gpuscope.errors import NotAvailable
from gpuscope.figures import Figures, format_estimate
from gpuscope.results import plain_fields, plain_values
from gpuscope.streams import resolve
from gpuscope.text import LONGEST_INTEGER, brief, shown
from gpuscope.units import first_line

FEWEST_VISITS = 6  # to estimate their spread; the budget is planned for this many
NOTEWORTHY_SHARE = 0.01  # of throttled or invalid calls

# Seconds, without the making of inputs.
SHORTEST_VISIT, LONGEST_VISIT = 0.05, 1.0
WARM_UP = 0.5  # of that, at most
LONGEST_SAMPLING = 0.2  # more visits are better than longer ones
MOST_SAMPLES = 100  # between two checks of the time
MOST_SAMPLES_OF_A_VISIT = 500

FIGURES = ("min", "p5", "p95", "max", "std")


@dataclass(frozen=True, eq=False, repr=False)
class SweepPoint(Figures):
    """The result of one point of a sweep.

    Attributes:
        parameters: the value of each axis.
        estimate: centre and confidence interval in seconds; None if nothing was measured.
        quantity: kernel, span, stream, launch or wall; None if nothing was measured.
        samples: seconds of each valid call, in the order called; of very short calls the means of rows.
        converged: the interval is as narrow as requested.
        warnings: one sentence each.
        error: why the point could not be measured, as "OutOfMemoryError: ..."; None if it was.
        visits: seconds of each visit, the centre of its samples. The estimate is their mean.
        calls: number of calls in the samples.
        calls_per_sample: most calls behind one sample.
    """

    parameters: Mapping[str, object]
    estimate: stats.Estimate | None
    quantity: str | None
    samples: NDArray[np.float64]
    converged: bool
    warnings: tuple[str, ...]
    error: str | None
    visits: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    calls: int = 0
    calls_per_sample: int = 1

    @property
    def name(self) -> str:
        """The parameters as "n=1024, dtype=float16"."""
        return ", ".join(f"{axis}={value}" for axis, value in self.plain_parameters.items())

    @property
    def plain_parameters(self) -> dict[str, Any]:
        """The parameters as JSON values, or their texts."""
        return {axis: _plain(value) for axis, value in self.parameters.items()}

    @shown
    def __str__(self) -> str:
        if self.estimate is None:
            return f"{self.name}: {self.error}"
        count = len(self.visits)
        calls = f"{self.calls} calls in {count} visit{'' if count == 1 else 's'}"
        return f"{self.name}: {self.quantity} {format_estimate(self.estimate)}, {calls}"

    def __repr__(self) -> str:
        return f"<SweepPoint: {first_line(str(self))}>"

    def row(self) -> dict[str, Any]:
        """The columns of a frame; an axis takes precedence over a column of its name."""
        found = self.to_dict()
        columns = {"seconds": found["value"], **{name: found[name] for name in ("low", "high", *FIGURES)}}
        columns |= {"visits": len(self.visits), "calls": self.calls}
        columns |= {name: found[name] for name in ("quantity", "converged", "error")}
        return {**found["parameters"], **columns, **found["parameters"]}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: seconds, None if not known, other parameters as texts."""
        figures = ("value", "low", "high", "method", "confidence")
        return {
            **plain_fields(self, without=("estimate",)),
            "parameters": self.plain_parameters,
            **{name: plain_values(getattr(self.estimate, name, None)) for name in figures},
            **{name: plain_values(getattr(self, name)) for name in FIGURES},
            "n": len(self.samples),
        }


class Series:
    """Gathers the samples of one point over several visits, unless it failed.

    `make` creates the inputs and returns the callable to time; progress lines begin with `title`.
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
        self.overhead = 0.0  # seconds of a visit beyond its budget
        self._seconds: list[NDArray[np.float64]] = []  # of each visit
        self._centres: list[float] = []
        self._taken = self._throttled = self._invalid = self._calls = 0
        self._calls_per_sample = 1
        self._steady = True
        self._tick = 0.0

    def add(self, parts: Sequence[Samples], quantity: Quantity, tick: float, steady: bool) -> None:
        """Adds the samples of one visit, also of an interrupted one."""
        self.visits += 1
        self.quantity = quantity
        self._steady &= steady
        self._tick = tick
        if not parts:
            return
        seconds = np.concatenate([part.times(quantity) for part in parts])
        usable = seconds[np.isfinite(seconds)]
        self._taken += len(seconds)
        self._calls += sum(part.calls_of(quantity) for part in parts)
        self._calls_per_sample = max(self._calls_per_sample, *(part.calls_per_sample for part in parts))
        self._invalid += len(seconds) - len(usable)
        self._throttled += sum(int(part.throttled.sum()) for part in parts)
        if len(usable):
            self._seconds.append(usable)
            self._centres.append(stats.estimate(usable, tick=tick).value)

    def fail(self, error: BaseException) -> None:
        """Notes an error of the point; earlier samples are kept."""
        self.failed = True
        self.error = f"{type(error).__name__}: {error}".strip().rstrip(":")

    @property
    def samples(self) -> NDArray[np.float64]:
        """Seconds of each valid call."""
        return np.concatenate(self._seconds) if self._seconds else np.empty(0)

    @property
    def centres(self) -> NDArray[np.float64]:
        """Seconds of each visit that had a valid call."""
        return np.array(self._centres)

    @property
    def estimate(self) -> stats.Estimate | None:
        """The estimate from all visits; None without visits."""
        return visits.estimate(self._centres, sum(map(len, self._seconds)), self._tick) if self._centres else None

    @property
    def spread(self) -> float:
        """Half the interval over the value."""
        measured = self.estimate
        return measured.relative_half_width if measured else float("inf")

    def converged(self, precision: float) -> bool:
        """Whether the interval is narrow enough, over enough visits."""
        return len(self._centres) >= FEWEST_VISITS and self.spread <= precision

    def point(self, precision: float, otherwise: str) -> SweepPoint:
        """The result; `otherwise` is the reason if the point was not visited."""
        measured = self.estimate
        why = self.error or ("none of its calls could be used" if self._taken else otherwise)
        return SweepPoint(
            parameters=self.parameters,
            estimate=measured,
            quantity=self.quantity if measured else None,
            samples=self.samples,
            converged=self.converged(precision),
            warnings=tuple(self._warnings(measured)),
            error=None if measured else why,
            visits=self.centres,
            calls=self._calls,
            calls_per_sample=self._calls_per_sample,
        )

    def _warnings(self, measured: stats.Estimate | None) -> list[str]:
        found: list[str] = []
        if measured is None:
            return found
        if self.error:
            found.append(f"measured in {self.visits} visits, then stopped: {self.error}")
        if not self._steady:
            found.append("not steady after the warm-up")
        for count, what in ((self._throttled, "ran with a throttled clock"), (self._invalid, "could not be used")):
            if count > NOTEWORTHY_SHARE * self._taken:
                found.append(f"{count / self._taken:.0%} of the calls {what}")
        # Differences between visits are no modes of the calls.
        alike = [measured.value / centre * each for each, centre in zip(self._seconds, self._centres, strict=True)]
        modes = stats.modes(np.concatenate(alike), tick=self._tick)
        if len(modes) > 1:
            found.append(f"times have {len(modes)} modes: {format_modes(modes)}")
        return found


def _plain(value: object) -> Any:
    """A JSON value, or the text of the value; "float16" for torch.float16."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
        return brief(value)
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
        precision: float,
        *,
        cold: bool,
        stream: object = None,
        device: int | None = None,
        progress: Callable[[str], object] | None = None,
    ) -> None:
        self.precision = check_fraction("precision", precision)
        check_progress(progress)
        Engine([int], stream=stream, device=device, cold=cold).close()  # raises now for a bad stream or device
        self.cold = cold
        self.stream = stream
        self.device = device
        self.progress = progress
        self.random = random.Random()
        self.on_gpu = False  # a function put work on the GPU

    def conditions(self) -> Conditions:
        """The conditions of the points."""
        return Conditions.now(resolve(self.stream, self.device).device if self.on_gpu else None)

    def run(self, series: Sequence[Series], budget: float) -> str:
        """Measures until all points reach the precision or the budget is spent.

        The first round is always complete. Returns why it stopped: "precision", "budget", "interrupted" (by Ctrl-C), or
        "failed" if every point raised.
        """
        spent = Budget(check_budget(budget))
        try:
            while waiting := self._waiting(series):
                fewest = min(each.visits for each in waiting)
                share = spent.left / max(FEWEST_VISITS - fewest, 1) / len(waiting)
                # A single visit says little, so a first visit leaves as much time for a second one.
                most = spent.left / (2 - fewest) / len(waiting) if fewest < 2 else LONGEST_VISIT
                seconds = {each: self._seconds(each, share, most) for each in waiting}
                fitting = [each for each in waiting if self._fits(each, seconds[each], spent)]
                if not fitting:
                    return "budget"
                for each in self.chosen(fitting):
                    if not self._fits(each, seconds[each], spent):
                        continue
                    self.visit(each, seconds[each])
                    if self.progress is not None:
                        done = sum(other.failed or other.converged(self.precision) for other in series)
                        state = f"{done} of {len(series)} points done, {spent.spent:.1f} s"
                        self.progress(f"{each.title}{each.point(self.precision, '')} - {state}")
        except KeyboardInterrupt:
            return "interrupted"
        return "failed" if all(each.failed for each in series) else "precision"

    def _waiting(self, series: Sequence[Series]) -> list[Series]:
        return [each for each in series if not each.failed and not each.converged(self.precision)]

    @staticmethod
    def _seconds(each: Series, share: float, most: float) -> float:
        """Seconds of a visit without its overhead, given its share of the budget."""
        wanted = min(max(share - each.overhead, SHORTEST_VISIT), LONGEST_VISIT)
        return min(wanted, max(most - each.overhead, 0.0))

    @staticmethod
    def _fits(each: Series, seconds: float, spent: Budget) -> bool:
        """Whether a visit ends within the budget; always True for the first."""
        return not each.visits or each.overhead + seconds <= spent.left

    def chosen(self, waiting: list[Series]) -> list[Series]:
        """The round's points, shuffled: the least visited, later the half with the widest intervals."""
        fewest = min(each.visits for each in waiting)
        if fewest < FEWEST_VISITS:
            chosen = [each for each in waiting if each.visits == fewest]
        else:
            chosen = sorted(waiting, key=lambda each: each.spread, reverse=True)[: ceil(len(waiting) / 2)]
        self.random.shuffle(chosen)
        return chosen

    def visit(self, series: Series, seconds: float) -> None:
        """Creates the inputs of one point, measures for `seconds`, and releases the inputs."""
        spent = Budget(seconds)
        try:
            self._measure(series, seconds)
        except Suspended:  # whatever the parameters
            raise
        except Exception as error:
            series.fail(error)
        series.overhead = max(spent.spent - seconds, 0.0)
        if series.failed:
            gc.collect()  # cycles through the traceback hold the inputs that did not fit

    def _measure(self, series: Series, seconds: float) -> None:
        with Engine([series.make()], stream=self.stream, device=self.device, cold=self.cold) as engine:
            engine.prepare()
            self.on_gpu |= engine.on_gpu
            quantity = series.quantity or engine.headline
            if quantity in engine.absent:
                raise NotAvailable(f"{quantity} is not available: {engine.absent[quantity]}")
            spent = Budget(seconds)
            warm = engine.warm_up(WARM_UP * seconds)
            spent = Budget(min(spent.left, LONGEST_SAMPLING))
            count = int(min(max(spent.left / 4 / max(warm.sample_seconds, 1e-9), 1), MOST_SAMPLES))
            parts: list[Samples] = []
            try:
                while not parts or (spent.left and len(parts) * count < MOST_SAMPLES_OF_A_VISIT):
                    parts.append(engine.sample(quantity, np.zeros(count, dtype=np.uint32), spent.left))
            finally:
                series.add(parts, quantity, engine.tick_of(quantity), warm.steady)
