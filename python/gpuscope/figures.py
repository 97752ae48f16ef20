# SPDX-License-Identifier: Apache-2.0
"""The figures of samples that all results share, and estimates as text."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuscope import plots, stats
from gpuscope.arguments import as_float
from gpuscope.errors import InvalidArgument
from gpuscope.text import brief
from gpuscope.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray


class Figures:
    """Figures of the samples of a result: seconds, nan without samples.

    If a sample is the mean of several calls (``calls_per_sample`` above 1), all figures are of such means. `min`, `max`
    and the percentiles are not those of single calls, which vary more.
    """

    @property
    def _values(self) -> NDArray[np.float64]:
        values: NDArray[np.float64] = self.samples  # type: ignore[attr-defined]
        return values if len(values) else np.full(1, np.nan)

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return float(self._values.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the samples, as ``numpy.std``."""
        return float(self._values.std())

    @property
    def min(self) -> float:
        """Shortest sample. As clocks boost, it is not a lower bound of the cost."""
        return float(self._values.min())

    @property
    def max(self) -> float:
        """Longest sample."""
        return float(self._values.max())

    @property
    def median(self) -> float:
        """Median."""
        return self.quantile(0.5)

    @property
    def p5(self) -> float:
        """5th percentile."""
        return self.quantile(0.05)

    @property
    def p50(self) -> float:
        """Median."""
        return self.quantile(0.5)

    @property
    def p90(self) -> float:
        """90th percentile."""
        return self.quantile(0.9)

    @property
    def p95(self) -> float:
        """95th percentile."""
        return self.quantile(0.95)

    @property
    def p99(self) -> float:
        """99th percentile."""
        return self.quantile(0.99)

    def quantile(self, q: float) -> float:
        """The time that a share `q` of the samples does not exceed, interpolated as ``numpy.quantile`` does.

        Raises:
            InvalidArgument: `q` is not between 0 and 1.
        """
        share = as_float(q)
        if not 0 <= share <= 1:
            raise InvalidArgument(f"q is {brief(q)}; accepted are fractions from 0 to 1")
        return float(np.quantile(self._values, share))


class DrawnFigures(Figures):
    """`Figures` whose distribution can be drawn."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """The distribution of the samples, with a line at the median; outliers are counted in the label.

        Args:
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
            InvalidArgument: there are no samples.
        """
        return plots.distribution({"": self.samples}, ax=ax)  # type: ignore[attr-defined]


class Distribution(DrawnFigures):
    """Some times and their figures, in seconds.

    Args:
        samples: in the order they were taken, at least one.

    Attributes:
        samples: float64, seconds.
    """

    def __init__(self, samples: ArrayLike) -> None:
        self.samples: NDArray[np.float64] = np.asarray(samples, dtype=np.float64)
        if not self.samples.size:
            raise InvalidArgument("samples are empty; accepted is at least one")

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} samples, median {format_seconds(self.median)}>"

    def interval(self, q: float) -> stats.Quantile:
        """A quantile, 0 < q < 1, with its 95 % interval if there are enough samples."""
        return stats.quantile(self.samples, q)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in seconds, ready for JSON, with the samples."""
        return {
            "n": len(self),
            **{name: getattr(self, name) for name in ("mean", "std", "median", "min", "max")},
            "quantiles": [asdict(self.interval(q)) for q in (0.5, 0.9, 0.95, 0.99)],
            "samples": self.samples.tolist(),
        }


def format_estimate(estimate: stats.Estimate) -> str:
    """The value with half of its interval, as "12.34 us +-1.2 %"."""
    return f"{format_seconds(estimate.value, 4)} {format_half_width(estimate)}"


def format_half_width(estimate: stats.Estimate) -> str:
    """Half of the interval in percent of the value, as "+-1.2 %"."""
    spread = estimate.relative_half_width
    if not math.isfinite(spread):
        return "+-?"
    width = f"{100 * spread:.1f}"
    return f"+-{width} %" if width != "0.0" else f"+-{100 * spread:.1g} %"  # no interval reads as none


def format_rows(calls_per_sample: int) -> str:
    """The suffix of the number of samples, as ", 500 calls a sample"; empty if each is of one call."""
    return f", {calls_per_sample} calls a sample" if calls_per_sample > 1 else ""
