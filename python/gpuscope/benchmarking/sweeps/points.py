# SPDX-License-Identifier: Apache-2.0
"""One point of a sweep: what was measured there, and how it is gathered visit by visit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking.text import seconds as time_text

if TYPE_CHECKING:
    from gpuscope.benchmarking.sampling.engine import Engine
    from gpuscope.benchmarking.sampling.samples import Quantity, Samples

FEWEST_VISITS = 2  # one visit sees one state of the machine
NOTEWORTHY_SHARE = 0.01  # of throttled or invalid calls


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """What one point of a sweep came to.

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

    def __str__(self) -> str:
        if self.estimate is None:
            return f"{self.name}: {self.error}"
        time = f"{time_text(self.estimate.value)} {spread_text(self.estimate)}"
        return f"{self.name}: {self.quantity} {time}, {self.estimate.n} calls"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: seconds, None for what is not known, odd parameters as texts."""
        centre = self.estimate
        return {
            "parameters": {axis: _plain(value) for axis, value in self.parameters.items()},
            "quantity": self.quantity,
            "value": centre.value if centre else None,
            "low": centre.low if centre and isfinite(centre.low) else None,
            "high": centre.high if centre and isfinite(centre.high) else None,
            "method": centre.method if centre else None,
            "confidence": centre.confidence if centre else None,
            "n": len(self.samples),
            "converged": self.converged,
            "samples": self.samples.tolist(),
            "warnings": list(self.warnings),
            "error": self.error,
        }


class Series:
    """Gathers the samples of one point over several visits.

    Attributes:
        title: what progress lines begin with, in front of the parameters.
        make: makes the inputs and returns the callable to time.
        failed: the point raised, and is not visited again.
        visits: times that the point was measured.
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
        self._remarks: dict[str, None] = {}

    def enter(self, engine: Engine, steady: bool) -> None:
        """A visit begins."""
        self.visits += 1
        self._tick = engine.tick
        self._steady &= steady

    def add(self, samples: Samples, quantity: Quantity) -> None:
        """One batch of calls."""
        self.quantity = quantity
        seconds = np.asarray(samples.seconds[quantity], dtype=np.float64)
        usable = samples.valid & np.isfinite(seconds)
        self._seconds.append(seconds[usable])
        self._calls += len(seconds)
        self._invalid += int(len(seconds) - usable.sum())
        self._throttled += int(samples.throttled.sum())
        self._estimate = None

    def fail(self, error: BaseException) -> None:
        """The point raised; what it gave before is kept."""
        self.failed = True
        self.error = f"{type(error).__name__}: {error}".strip().rstrip(":")

    def remark(self, text: str) -> None:
        """Adds a warning, once."""
        self._remarks[text] = None

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
        found = list(self._remarks)
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
            found.append("times gather around " + ", ".join(f"{time_text(m.value)} ({m.share:.0%})" for m in modes))
        return found


def spread_text(estimate: stats.Estimate) -> str:
    """Half of the interval in percent of the value, as "+-1.2 %"."""
    spread = estimate.relative_half_width
    return f"+-{100 * spread:.1f} %" if isfinite(spread) else "+-?"


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
