# SPDX-License-Identifier: Apache-2.0
"""Where two measured curves cross, and how sure that is.

Between the measured sizes the logarithm of a time is taken as linear in the logarithm of the size, as for any power
law. The curves cross where the logarithm of their ratio is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats

RESAMPLES = 2000
CONFIDENCE = 0.95
# That no size of a whole range is called decided by chance: with 0.95 a size, equals would seem to differ somewhere in
# a fifth of the ranges of five.
SURE = 0.99
SHORTEST = 1e-9  # seconds; a clock that saw less saw nothing

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Crossing:
    """A size at which the two are equally fast.

    Attributes:
        value: the size.
        low: where its 95 % interval begins, within the measured sizes around it.
        high: where it ends.
        between: the measured sizes around it at which one of the two is clearly faster.
        gpu_faster: "above" it or "below" it.
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
    """Which of two is faster over a range of sizes.

    Attributes:
        kind: "one" crossing, "several", "everywhere" (the GPU is faster), "never" (it is not), "undecided" (no
            difference can be told), or "unknown" (too few sizes were measured on both).
        crossings: from the smallest.
        range: the smallest and the largest size measured on both.
    """

    kind: str
    crossings: tuple[Crossing, ...]
    range: tuple[float, float] | None

    def __str__(self) -> str:
        if self.range is None:
            return "not known: no two sizes were measured on both"
        smallest, largest = map(size_text, self.range)
        within = f"between {smallest} and {largest}"
        if self.kind == "everywhere":
            return f"the GPU is faster everywhere {within}; they cross below {smallest}, if at all"
        if self.kind == "never":
            return f"the GPU is never faster {within}; they cross above {largest}, if at all"
        if self.kind == "undecided":
            return f"no difference can be told {within}"
        if self.kind == "one":
            return f"the GPU is faster {self.crossings[0]}"
        places = ", ".join(map(str, self.crossings))
        return f"{len(self.crossings)} crossings {within}: the GPU is faster {places}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "kind": self.kind,
            "text": str(self),
            "range": list(self.range) if self.range else None,
            "crossings": [
                {
                    "value": crossing.value,
                    "low": crossing.low,
                    "high": crossing.high,
                    "between": list(crossing.between),
                    "gpu_faster": crossing.gpu_faster,
                }
                for crossing in self.crossings
            ],
        }


def answer(sizes: Sequence[float], cpu: Sequence[Array], gpu: Sequence[Array], seed: int = 0) -> Answer:
    """Compares two curves.

    A crossing lies between two sizes at which one of the two is faster beyond doubt, so that noise between equals does
    not make many of one. Its interval is the central 95 % of where resampled curves cross.

    Args:
        sizes: ascending.
        cpu: seconds of each call at each size.
        gpu: the same of the other.
        seed: of the resampling; the same samples give the same interval.
    """
    if len(sizes) < 2:
        return Answer("unknown", (), None)
    span = (float(sizes[0]), float(sizes[-1]))
    at = np.log(np.asarray(sizes, dtype=np.float64))
    cpu, gpu = ([np.maximum(each, SHORTEST) for each in curve] for curve in (cpu, gpu))
    ratios = np.array([np.log(np.median(c) / np.median(g)) for c, g in zip(cpu, gpu, strict=True)])
    generator = np.random.default_rng(seed)
    resampled = np.column_stack(
        [
            np.log(_resampled_medians(c, generator) / _resampled_medians(g, generator))
            for c, g in zip(cpu, gpu, strict=True)
        ]
    )
    doubt = 100 * (1 - SURE) / 2 / len(sizes)
    low, high = np.percentile(resampled, [doubt, 100 - doubt], axis=0)
    signs = np.where(low > 0, 1, np.where(high < 0, -1, 0))
    decided = np.flatnonzero(signs)
    if not len(decided):
        return Answer("undecided", (), span)
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
        return Answer("one" if len(crossings) == 1 else "several", tuple(crossings), span)
    return Answer("everywhere" if signs[decided[0]] > 0 else "never", (), span)


def roots(at: Array, ratios: Array, rising: bool) -> Array:
    """Where piecewise-linear curves are 0; the middle one of several places, an end when there is none.

    Args:
        at: logarithms of the sizes, ascending.
        ratios: logarithms of the ratios there, a row for each curve.
        rising: the curves begin below 0 and end above.
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
    """A size as "1,024"; below 100 with the digits that matter."""
    return f"{size:,.0f}" if size >= 100 or float(size).is_integer() else f"{size:.3g}"


def _resampled_medians(samples: Array, generator: np.random.Generator) -> Array:
    """Medians of samples drawn with replacement, without drawing them.

    The median of n draws lies at a quantile of the samples that follows a beta distribution with both parameters
    (n + 1) / 2 (J. S. Maritz and R. G. Jarrett, A note on estimating the variance of the sample median, JASA 73, 1978).
    With the number of independent samples as n, what the samples repeat of each other counts once.
    """
    half = (len(samples) / stats.autocorrelation_time(samples) + 1) / 2
    return np.quantile(samples, generator.beta(half, half, RESAMPLES))
