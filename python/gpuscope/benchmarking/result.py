# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found: every sample, the estimates made of them, and what a reader should know."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking.sampling.kernel_times import Kernel
from gpuscope.errors import InvalidArgument

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from gpuscope.benchmarking.rates import Rate


@dataclass(frozen=True)
class Measured:
    """One quantity of a call.

    Attributes:
        quantity: kernel, span, stream, launch, wall or marginal.
        samples: seconds, one a call, in the order of the calls; nan where a call has no such time.
        valid: the samples that the estimate is made of. Samples are left out for lost records and gates that did not
            hold, never for their value.
        estimate: their centre with its interval.
    """

    quantity: str
    samples: NDArray[np.float64]
    valid: NDArray[np.bool_]
    estimate: stats.Estimate


@dataclass(frozen=True)
class BenchmarkResult:
    """The result of `benchmark`; times are seconds. ``print(result)`` says it in a line, ``result.report()`` in many.

    Attributes:
        name: of the function.
        quantity: the headline, which decided when to stop: kernel, else stream, else wall.
        quantities: what was measured, by name. ``kernel``: at least one of the call's kernels, copies or fills ran.
            ``span``: from the first one's start to the last one's end. ``stream``: between two events around the call.
            ``launch``: the host's time in the call. ``wall``: until the work was done, seen from the host.
            ``marginal``: one more call in an endless row of them.
        absent: why a quantity was not measured.
        kernels: what ran, per call.
        converged: the headline's interval is as narrow as was asked for.
        stopped: "target", "budget" or "interrupted".
        warnings: what a reader should know, a sentence each.
        cold: the L2 cache was cleared before each call.
        clock_hz: the SM clock at each of the headline's samples; nan where it is not known.
        throttled: the headline's samples that were taken throttled or with a shifted clock.
        bytes: moved by a call, as given.
        flops: done by a call, as given.
        rates: bytes and operations a second, against what the device reaches.
        environment: where it was measured.
        seconds: what the benchmark took, everything included.
        value: what the function returned when it was first called; not saved.
        capped: the headline's samples during which the power limit held the clock down.
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
    bytes: int | None
    flops: int | None
    rates: tuple[Rate, ...]
    environment: dict[str, object]
    seconds: float
    value: object = field(default=None, compare=False, repr=False)
    capped: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

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
        """The headline's valid samples, tagged ones among them, in the order of the calls."""
        return self.headline.samples[self.headline.valid]

    @property
    def clean_samples(self) -> NDArray[np.float64]:
        """The valid samples without those taken throttled or with a shifted clock."""
        return self.headline.samples[self.headline.valid & ~self.throttled]

    @property
    def clean(self) -> stats.Estimate | None:
        """The estimate of `clean_samples`; None when there are none."""
        return stats.estimate(self.clean_samples) if len(self.clean_samples) else None

    @property
    def median(self) -> float:
        """The headline's estimate: the median, or near the clock's tick a trimmed mean, which a tick does not bias."""
        return self.estimate.value

    @property
    def ci(self) -> tuple[float, float]:
        """The 95 % interval of `median`."""
        return self.estimate.low, self.estimate.high

    @property
    def mean(self) -> float:
        """The arithmetic mean of `samples`."""
        return float(self.samples.mean())

    @property
    def minimum(self) -> float:
        """The shortest of `samples`. Clocks boost, so that it is no bound of what the function costs."""
        return float(self.samples.min())

    @property
    def n(self) -> int:
        """How many `samples` there are."""
        return len(self.samples)

    def quantile(self, q: float) -> float:
        """The time that a share `q` of `samples` does not exceed.

        Raises:
            InvalidArgument: `q` is not between 0 and 1.
        """
        if not isinstance(q, (int, float)) or not 0 <= q <= 1:
            raise InvalidArgument(f"q is {q!r}; accepted are fractions from 0 to 1")
        return float(np.quantile(self.samples, q))

    def assert_bandwidth(self, fraction: float) -> None:
        """For tests: the bytes a second reach this fraction of the device's measured peak.

        Raises:
            AssertionError: they do not, even at the fast end of the interval.
            InvalidArgument: the benchmark was not told `bytes`, or the peak is not known.
        """
        rate = next((rate for rate in self.rates if rate.kind == "bandwidth"), None)
        if rate is None or not rate.peak:
            raise InvalidArgument("bytes was not given to the benchmark, or the peak is not known: there is no rate")
        if rate.high < fraction * rate.peak:
            raise AssertionError(
                f"{self.name}: {rate.value / 1e12:.3g} TB/s are {rate.value / rate.peak:.1%} of the measured peak, "
                f"{fraction:.1%} were wanted"
            )

    def __str__(self) -> str:
        from gpuscope.benchmarking.text import line

        return line(self)

    __repr__ = __str__

    def report(self) -> str:
        """Several lines: every quantity with its interval, the kernels, the rates and the warnings."""
        from gpuscope.benchmarking.text import report

        return report(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything but `value` as what JSON can hold, raw samples included."""
        from gpuscope.benchmarking.saved import to_dict

        return to_dict(self)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The same as text, written to `path` when that is given.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        from gpuscope.benchmarking.saved import to_json

        return to_json(self, path)

    @staticmethod
    def from_json(source: str | os.PathLike[str]) -> BenchmarkResult:
        """Reads what `to_json` gave: the text itself or the path of a file of it.

        Raises:
            InvalidArgument: it is damaged, something else, or of a newer version of gpuscope.
        """
        from gpuscope.benchmarking.saved import from_json

        return from_json(source)

    def plot(self) -> go.Figure:
        """Samples over time beside their distribution, tagged ones marked; a button chooses the quantity.

        Raises:
            NotAvailable: Plotly is not installed.
        """
        from gpuscope.benchmarking.chart import figure

        return figure(self)
