# SPDX-License-Identifier: Apache-2.0
"""What a comparison of two functions found."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.benchmarking.sampling.kernel_times import Kernel
from gpuscope.benchmarking.verdict import CONFIDENCE, Verdict
from gpuscope.results import json_text
from gpuscope.stats import Ratio

SCHEMA = "gpuscope.comparison"
VERSION = 1


@dataclass(frozen=True)
class Growth:
    """How one kernel's time differs between two functions.

    Attributes:
        name: of the kernel, copy or fill.
        before: seconds per call of the first function; 0 when it does not run there.
        after: seconds per call of the second.
    """

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`, on the ratio of b's time over a's. ``print(result)`` says it in one line.

    Attributes:
        verdict: "slower" or "faster": b's time lies outside of the margin, all of the interval. "same": inside of it.
            "inconclusive": the interval is too wide to say.
        ratio: b over a, with its interval of 95 % over all looks at the data.
        margin: ratios this close to 1 count as no difference, as a fraction; at least what was asked for.
        null: the same function a over a, measured in the same turns. It is 1 but for noise.
        quantity: kernel, stream or wall, as in `BenchmarkResult`.
        a: seconds of each valid call of a, in the order called.
        b: those of b.
        blocks: how many turns the ratio rests on.
        names: of a and b.
        kernels: what ran in a call of a, and of b; empty without CUPTI.
        warnings: what a reader should know, a sentence each.
        stopped: "verdict", "target", "budget" or "interrupted".
        seconds: what the comparison took, everything included.
        advice: what would settle it, when it is inconclusive.
    """

    verdict: Verdict
    ratio: Ratio
    margin: float
    null: Ratio
    quantity: str
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    blocks: int
    names: tuple[str, str]
    kernels: tuple[tuple[Kernel, ...], ...]
    warnings: tuple[str, ...]
    stopped: str
    seconds: float
    advice: str = ""

    @property
    def culprit(self) -> Growth | None:
        """The kernel whose time per call grew most from a to b; None when none grew, or without CUPTI."""
        if len(self.kernels) != 2:
            return None
        before, after = ({kernel.name: kernel.seconds for kernel in side} for side in self.kernels)
        grown = [Growth(name, before.get(name, 0.0), seconds) for name, seconds in after.items()]
        most = max(grown, key=lambda one: one.after - one.before, default=None)
        return most if most is not None and most.after > most.before else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types; None stands for the ends of an interval that has none."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "verdict": self.verdict,
            "ratio": _ratio(self.ratio),
            "margin": self.margin,
            "null": _ratio(self.null),
            "quantity": self.quantity,
            "a": self.a.tolist(),
            "b": self.b.tolist(),
            "blocks": self.blocks,
            "names": list(self.names),
            "kernels": [[asdict(kernel) for kernel in side] for side in self.kernels],
            "culprit": None if self.culprit is None else asdict(self.culprit),
            "warnings": list(self.warnings),
            "stopped": self.stopped,
            "seconds": self.seconds,
            "advice": self.advice,
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The result as text, written to `path` too when it is given.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        return json_text(self.to_dict(), path)

    def __bool__(self) -> bool:
        raise TypeError("a Comparison is neither true nor false; read its verdict")

    def __str__(self) -> str:
        a, b = self.names
        ratio = self.ratio
        value, low, high = ratio.value, ratio.low, ratio.high
        if self.verdict == "faster":
            value, low, high = 1 / value, 1 / high, 1 / low if low else math.inf
        facts = (
            f"({100 * CONFIDENCE:g} %: {_short(low)} to {_short(high)}, {self.quantity} time, "
            f"{self.blocks} block{'' if self.blocks == 1 else 's'}, margin {100 * self.margin:.3g} %)"
        )
        if self.verdict == "slower" and self.culprit is not None and sum(map(len, self.kernels)) > 2:
            grown = self.culprit.after - self.culprit.before
            facts += f", most of it in {self.culprit.name}: +{1e6 * grown:.3g} us"
        if self.verdict in ("faster", "slower"):
            return f"{b} is {_short(value)}x {self.verdict} than {a} {facts}"
        if self.verdict == "same":
            return f"{b} is as fast as {a}: ratio {_short(value)} {facts}"
        advice = f"; {self.advice}" if self.advice else ""
        return f"{b} against {a} is inconclusive: ratio {_short(value)} {facts}{advice}"


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def _ratio(ratio: Ratio) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in asdict(ratio).items()}
