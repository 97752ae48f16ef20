# SPDX-License-Identifier: Apache-2.0
"""The result of a benchmark: samples, estimates and warnings; as text, JSON and a chart."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.arguments import check_positive
from gpuscope.benchmarking.kernel_times import Kernel
from gpuscope.benchmarking.roofline import Rate, verdict
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.figures import Figures, format_rows
from gpuscope.page.chart import Axis, Chart, Line, Mark, View
from gpuscope.paths import read_text
from gpuscope.results import Abstention, Result, abstained, heading, plain_fields
from gpuscope.targets import Target
from gpuscope.units import first_line, format_rough, format_seconds, format_share

SCHEMA = "gpuscope.benchmark"
VERSION = 1
_LARGEST_FILE = 1 << 30  # a million samples are some 100 MB

_PLAIN = ("name", "quantity", "absent", "converged", "stopped", "cold", "bytes", "flops", "environment", "seconds")
_STOPPED = {
    "precision": "converged",
    "target": "converged",  # in older files
    "budget": "NOT converged: the budget ran out",
    "processes": "NOT converged: processes differ by more",
    "interrupted": "NOT converged: interrupted",
    "error": "NOT converged: an error ended it",
}
_FIGURES = ("min", "p5", "p95", "max", "std")
# A chart shows the samples between these quantiles, and this share of their distance around them, as an outlier would
# flatten the others. Outliers are marked at the edge, and a button shows them.
_SHOWN, _MARGIN = (0.01, 0.99), 0.25
_BESIDE = ("stream", "launch", "wall", "marginal")
_LOOKS = {"samples": (7, "circle"), "throttled or shifted clock": (1, "diamond"), "invalid": (2, "cross")}


@dataclass(frozen=True, repr=False)
class Measured(Figures):
    """One quantity of a call.

    Attributes:
        quantity: kernel, span, stream, launch, wall or marginal.
        samples: seconds per call, in call order; nan if a call has no such time. If the result's `calls_per_sample` is
            above 1, each is a mean of so many calls, and `max` and the percentiles are of means.
        valid: the samples used for the estimate. Samples are excluded for lost records and gates that did not hold,
            never for their value.
        estimate: their centre with its interval.
    """

    quantity: str
    samples: NDArray[np.float64]
    valid: NDArray[np.bool_]
    estimate: stats.Estimate

    @property
    def _values(self) -> NDArray[np.float64]:
        return self.samples[self.valid]

    def __repr__(self) -> str:
        return f"<Measured: {self.quantity} {_interval(self.estimate)})>"


@dataclass(frozen=True)
class Processes:
    """The differences between fresh processes with the same measurement.

    Attributes:
        count: number of processes requested.
        estimates: the headline's estimate in each process that measured.
        start_seconds: time of each for the interpreter, imports and first calls; not part of the budget.
        failures: a line for each process that failed.
    """

    count: int
    estimates: tuple[stats.Estimate, ...]
    start_seconds: tuple[float, ...]
    failures: tuple[str, ...] = ()

    @property
    def spread(self) -> float | None:
        """The standard deviation of their times as a fraction of the mean; None for a single process."""
        values = np.array([estimate.value for estimate in self.estimates])
        return float(values.std(ddof=1) / values.mean()) if len(values) > 1 and values.mean() else None

    def __str__(self) -> str:
        if self.spread is None:
            return f"{len(self.estimates)} process of {self.count}, which says nothing of others"
        of_all = "" if len(self.estimates) == self.count else f" of {self.count}"
        return f"{len(self.estimates)} processes{of_all} differ by {format_share(self.spread)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the spread among them."""
        return {**plain_fields(self), "spread": self.spread}


@dataclass(frozen=True)
class BenchmarkResult(Figures, Result):
    """The result of `benchmark`, in seconds. ``print(result)`` shows one line, ``result.report()`` many.

    Attributes:
        name: of the function.
        quantity: the headline, which decided when to stop: kernel, else stream, else wall.
        quantities: the measured times, by name. ``kernel``: at least one of the call's kernels, copies or fills ran.
            ``span``: from the start of the first to the end of the last. ``stream``: between two events around the
            call. ``launch``: host time in the call. ``wall``: host time until the work was done. ``marginal``: one more
            call in an endless row.
        absent: why a quantity was not measured.
        kernels: count and time of each kernel, per call.
        converged: the headline's interval is as narrow as requested.
        stopped: "precision", "budget", "interrupted", "error", or "processes": the samples in each process reached the
            precision, but processes differ by more.
        warnings: one sentence each.
        cold: the L2 cache was cleared before each call.
        clock_hz: the SM clock at each of the headline's samples; nan if not known.
        throttled: the headline's samples that were taken throttled or with a shifted clock.
        bytes: moved by a call, as given.
        flops: done by a call, as given.
        rates: bytes and operations a second, and their shares of the device's peak.
        environment: the machine and its clocks.
        seconds: duration of the whole benchmark.
        value: the result of the function's first call; not saved.
        capped: the headline's samples during which the power limit lowered the clock.
        bursts: number of the headline's samples in each burst, in order; empty if not known.
        modes: values that the headline's samples gather around, ascending: one, or several with their shares.
        processes: the differences between the fresh processes; None if there were none.
        calls_per_sample: most calls behind one of the headline's samples: 1, or more for short calls on the CPU. `min`,
            `max`, `std` and the percentiles are then of means.
        processes_differ: standard deviation between fresh processes that the headline's interval includes, as a
            fraction; a usual value for GPUs. 0 on the host, or if `processes` measured it.
        conditions: of the measurement, with the mode of a module.
        target: whether the `target` is met; None without one.
    """

    name: str
    quantity: str
    quantities: dict[str, Measured]
    absent: dict[str, str]
    kernels: tuple[Kernel, ...]
    converged: bool
    stopped: str
    warnings: tuple[str, ...]
    cold: bool
    clock_hz: NDArray[np.float64]
    throttled: NDArray[np.bool_]
    bytes: float | None
    flops: float | None
    rates: tuple[Rate, ...]
    environment: dict[str, object]
    seconds: float
    value: object = field(default=None, compare=False, repr=False)
    capped: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    bursts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    modes: tuple[stats.Mode, ...] = ()
    processes: Processes | None = None
    calls_per_sample: int = 1
    processes_differ: float = 0.0
    conditions: Conditions = UNKNOWN
    target: Target | None = None

    @property
    def headline(self) -> Measured:
        """The quantity that decided when to stop."""
        return self.quantities[self.quantity]

    @property
    def on_gpu(self) -> bool:
        """Whether the function puts work on the GPU."""
        return bool(self.environment.get("on_gpu"))

    @property
    def estimate(self) -> stats.Estimate:
        """The headline's centre with its 95 % interval."""
        return self.headline.estimate

    @property
    def samples(self) -> NDArray[np.float64]:
        """The headline's valid samples, also tagged ones, in call order. All figures are of `samples`."""
        return self.headline.samples[self.headline.valid]

    @property
    def clean_samples(self) -> NDArray[np.float64]:
        """The valid samples without those taken throttled or with a shifted clock."""
        return self.headline.samples[self.headline.valid & ~self.throttled]

    @property
    def clean(self) -> stats.Estimate | None:
        """The estimate of `clean_samples`; None when there are none."""
        if not len(self.clean_samples):
            return None
        if not len(self.bursts):
            return stats.estimate(self.clean_samples)
        kept = np.add.reduceat(self.headline.valid & ~self.throttled, np.cumsum(self.bursts) - self.bursts, dtype=int)
        return stats.estimate(self.clean_samples, bursts=kept[kept > 0])

    @property
    def ci(self) -> tuple[float, float]:
        """The 95 % interval of `estimate`."""
        return self.estimate.low, self.estimate.high

    @property
    def scope(self) -> str:
        """The scope of the interval: "within this process" or, if several measured, "between processes".

        The first excludes differences between processes, as of memory placement; measure them with ``processes=5``. On
        a GPU "with 0.25 % between processes" means that the interval includes this much of them.
        """
        if self.processes is not None and len(self.processes.estimates) > 1:
            return "between processes"
        if self.processes_differ:
            return f"with {100 * self.processes_differ:.2g} % between processes"
        return "within this process"

    @property
    def n(self) -> int:
        """Number of `samples`."""
        return len(self.samples)

    def assert_bandwidth(self, fraction: float) -> None:
        """For tests: asserts that the bytes a second reach this fraction of the device's measured peak.

        Raises:
            AssertionError: the fast end of the interval is below it.
            InvalidArgument: `fraction` is no number above 0, `bytes` was not given, or the peak is not known.
        """
        fraction = check_positive("fraction", fraction)
        rate = next((rate for rate in self.rates if rate.kind == "bandwidth"), None)
        if rate is None or not rate.peak:
            raise InvalidArgument("bytes was not given to the benchmark, or the peak is not known: there is no rate")
        if rate.high < fraction * rate.peak:
            raise AssertionError(
                f"{self.name}: {rate.value / 1e12:.3g} TB/s are {rate.value / rate.peak:.1%} of the measured peak, "
                f"{fraction:.1%} were wanted"
            )

    def __str__(self) -> str:
        """One line, with the number of warnings."""
        estimate = self.estimate
        cache = ("cold" if self.cold else "hot") if self.on_gpu else "CPU"
        rows = format_rows(self.calls_per_sample)
        parts = [f"{self.name}: {self.quantity} {_interval(estimate, f' {self.scope}')}{rows}, {cache})"]
        if self.processes is not None:
            parts.append(str(self.processes))
        if self.conditions.mode:
            parts.append(f"{self.conditions.mode} mode, {'' if self.conditions.gradients else 'no '}gradients")
        if len(self.modes) > 1:
            parts.append(f"{len(self.modes)} modes: {format_modes(self.modes)}")
        beside = [name for name in _BESIDE if name in self.quantities and name != self.quantity]
        parts += [f"{name} {format_seconds(self.quantities[name].estimate.value)}" for name in beside]
        parts += map(str, self.rates)
        clock = self._clocks()
        if clock and self.on_gpu:
            parts.append(clock)
        parts.append("converged" if self.converged else _STOPPED[self.stopped])
        parts += [str(self.target)] if self.target is not None else []
        if self.warnings:
            parts.append(f"{len(self.warnings)} warning{'s' if len(self.warnings) > 1 else ''}, see report()")
        return " | ".join(parts)

    __repr__ = __str__

    def report(self) -> str:
        """Several lines: every quantity with its interval, the kernels, the rates and the warnings."""
        lines = [str(self)]
        for name, measured in self.quantities.items():
            left_out = len(measured.samples) - int(np.count_nonzero(measured.valid))
            lines.append(
                f"  {name:<9} {_interval(measured.estimate)}, {measured.estimate.method}"
                f"{f', {left_out} invalid' if left_out else ''})"
            )
            figures = ", ".join(f"{figure} {format_seconds(getattr(measured, figure), 4)}" for figure in _FIGURES)
            lines.append(f"  {'':<9} {figures}{format_rows(self.calls_per_sample)}")
        if self.processes is not None:
            times = [format_seconds(each.value, 4) for each in self.processes.estimates]
            lines.append(
                f"  processes {', '.join(times)}, {format_seconds(sum(self.processes.start_seconds))} to start"
            )
        for why in dict.fromkeys(self.absent.values()):
            names = [name for name, reason in self.absent.items() if reason == why]
            lines.append(f"  {', '.join(names):<9} not measured: {why}")
        if self.kernels:
            total = sum(kernel.seconds for kernel in self.kernels)
            lines.append("  a call's work on the GPU")
            for kernel in self.kernels:
                share = 100 * kernel.seconds / total if total else 0.0
                time = format_seconds(kernel.seconds, 4)
                lines.append(f"    {share:5.1f} %  {time:>9}  {kernel.count:6g} x  {kernel.name}")
        bound = verdict(self.rates)
        if bound:
            lines.append(f"  {bound}")
        clean = self.clean
        if clean is not None and clean.n < self.n:
            lines.append(f"  without the {self.n - clean.n} tagged samples: {_interval(clean)})")
        lines += [f"  {self.conditions.line}"] if self.conditions.line else []
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def _clocks(self) -> str:
        """The SM clock of the samples, and the shares with a lowered clock; empty if not known."""
        known = self.clock_hz[np.isfinite(self.clock_hz)]
        if not len(known):
            return ""
        text = f"SM {np.median(known) / 1e6:.0f} MHz"
        for tags, what in ((self.capped, "power-capped"), (self.throttled, "throttled or shifted")):
            if tags.any():
                text += f", {what} {format_share(tags.mean())}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Everything except `value` as plain values; None for nan and for missing interval ends."""
        quantities = {name: plain_fields(each, without=("quantity",)) for name, each in self.quantities.items()}
        others = plain_fields(self, without=("quantities", "value"))
        head = {**heading("benchmark"), "version": VERSION, "abstained": abstained(self.abstentions)}
        return {**head, **others, "scope": self.scope, "quantities": quantities}

    @property
    def abstentions(self) -> tuple[Abstention, ...]:
        """Quantities that were not measured, an interval that is wider than requested, and an uncertain target."""
        found = [Abstention(name, why) for name, why in self.absent.items()]
        if not self.converged:
            found.append(Abstention("interval", _STOPPED[self.stopped]))
        if self.target is not None and self.target.met is None:
            found.append(Abstention("target", self.target.why))
        return tuple(found)

    @staticmethod
    def from_json(source: str | os.PathLike[str]) -> BenchmarkResult:
        """Reads the text of `to_json`, or a file of it.

        Raises:
            InvalidArgument: it is damaged, something else, or of a newer version of gpuscope.
        """
        content = _content(source)
        if content.get("schema") != SCHEMA:
            raise InvalidArgument("source is no benchmark of gpuscope; accepted is what to_json() gave")
        version = content.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise InvalidArgument(f"source has version {version!r}; accepted are versions up to {VERSION}")
        try:
            result = BenchmarkResult(
                **{name: content[name] for name in _PLAIN},
                quantities={name: _read_measured(name, row) for name, row in content["quantities"].items()},
                kernels=tuple(Kernel(**row) for row in content["kernels"]),
                warnings=tuple(content["warnings"]),
                clock_hz=_array(content["clock_hz"]),
                throttled=np.array(content["throttled"], bool),
                capped=np.array(content["capped"], bool),
                rates=tuple(Rate(**row) for row in content["rates"]),
                bursts=np.array(content.get("bursts", []), np.int64),
                modes=tuple(stats.Mode(**row) for row in content.get("modes", ())),
                processes=_read_processes(content.get("processes")),
                calls_per_sample=int(content.get("calls_per_sample", 1)),
                processes_differ=float(content.get("processes_differ", 0.0)),
                conditions=Conditions.of(content.get("conditions", {})),
                target=Target(**content["target"]) if content.get("target") else None,
            )
            rows = len(result.headline.samples)
            for column in ("clock_hz", "throttled", "capped"):
                if getattr(result, column).shape not in ((rows,), (0,)):
                    raise ValueError(f"{column} does not have {rows} entries")
            if len(result.bursts) and (int(result.bursts.sum()) != rows or (result.bursts < 1).any()):
                raise ValueError(f"bursts do not add up to {rows} samples")
            result.report()  # raises for damaged values
            return result
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidArgument(f"source is a damaged benchmark ({type(error).__name__}: {error})") from error

    def plot(self) -> Chart:
        """Samples in call order and their distribution, one view per quantity; as a page, and in notebooks.

        Tagged samples are marked. Outliers are marked at the edge, and counted.
        """
        names = [self.quantity, *(name for name in self.quantities if name != self.quantity)]
        facts = {
            self.quantity: f"{_interval(self.estimate, f' {self.scope}')})",
            "GPU": str(self.environment.get("gpu") or "") if self.on_gpu else "",
            "clock": self._clocks() if self.on_gpu else "",
            "sampling": "converged" if self.converged else _STOPPED[self.stopped],
            "warnings": "; ".join(self.warnings),
        }
        return Chart(first_line(self.name), [_view(self, self.quantities[name]) for name in names], facts)


def format_modes(modes: Sequence[stats.Mode]) -> str:
    """Each with its share, as "10.1 us (90 %), 11.2 us (10 %)"."""
    return ", ".join(f"{format_seconds(mode.value, 4)} ({format_share(mode.share)})" for mode in modes)


def _interval(estimate: stats.Estimate, scope: str = "") -> str:
    half = 100 * estimate.relative_half_width
    width = f"+-{format_rough(half)} %" if math.isfinite(half) else "+-? %"
    confidence = f"{100 * estimate.confidence:g} %{scope}"
    return f"{format_seconds(estimate.value, 4)} {width} ({confidence}, n={estimate.n}, n_eff={estimate.n_eff:.0f}"


def _content(source: str | os.PathLike[str]) -> dict[str, Any]:
    if isinstance(source, str) and source.lstrip().startswith("{"):
        text = source
    else:
        try:
            text = read_text(source, _LARGEST_FILE)
        except GpuscopeError as error:
            raise InvalidArgument(f"source is {str(source)[:80]!r}, which cannot be read: {error}") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # nested a thousand deep
        raise InvalidArgument(f"source is no JSON ({error}); accepted is what to_json() gave") from error
    return content if isinstance(content, dict) else {}


def _read_estimate(row: dict[str, Any]) -> stats.Estimate:
    low = -math.inf if row["low"] is None else row["low"]
    high = math.inf if row["high"] is None else row["high"]
    return stats.Estimate(**{**row, "low": low, "high": high})


def _read_processes(row: dict[str, Any] | None) -> Processes | None:
    if row is None:
        return None
    estimates = tuple(_read_estimate(each) for each in row["estimates"])
    return Processes(row["count"], estimates, tuple(row["start_seconds"]), tuple(row["failures"]))


def _read_measured(name: str, row: dict[str, Any]) -> Measured:
    estimate, samples, valid = _read_estimate(row["estimate"]), _array(row["samples"]), np.array(row["valid"], bool)
    if samples.shape != valid.shape:
        raise ValueError(f"{name} has {len(samples)} samples and {len(valid)} marks")
    return Measured(name, samples, valid, estimate)


def _array(values: list[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _view(result: BenchmarkResult, measured: Measured) -> View:
    """Samples over calls and their distribution, tagged samples apart, and a line for the estimate."""
    tagged = np.zeros(len(measured.samples), bool)
    if measured.quantity == result.quantity:
        tagged |= result.throttled
    groups = (
        ("samples", measured.valid & ~tagged),
        ("throttled or shifted clock", measured.valid & tagged),
        ("invalid", ~measured.valid & np.isfinite(measured.samples)),
    )
    lines = []
    for name, rows in groups:
        if rows.any():
            slot, symbol = _LOOKS[name]
            calls, times = np.flatnonzero(rows).tolist(), measured.samples[rows].tolist()
            lines.append(Line(name, calls, times, slot, symbol, joined=False))
    estimate = measured.estimate
    label = format_seconds(estimate.value, 4).replace(" us", " µs")
    across = Mark("y", estimate.value, estimate.low, estimate.high, label, _LOOKS["samples"][0])
    y = Axis(f"{measured.quantity} time", "time", shown=_range(measured))
    text = f"{measured.quantity}: {_interval(estimate)})"
    return View(measured.quantity, Axis("call"), y, tuple(lines), (across,), text=text, bars=True)


def _range(measured: Measured) -> tuple[float, float]:
    """The range of times in a chart: most samples, and the interval."""
    estimate = measured.estimate
    ends = [end for end in (estimate.low, estimate.high) if math.isfinite(end)]
    low, high = (measured.quantile(q) for q in _SHOWN)
    low, high = min([low, *ends]), max([high, *ends])
    beside = _MARGIN * (high - low) or 0.01 * abs(high)
    return low - beside, high + beside
