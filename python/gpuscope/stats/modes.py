# SPDX-License-Identifier: Apache-2.0
"""Whether samples gather around one value or around several, as in two states of a clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.stats.samples import checked, checked_tick

FEWEST_SAMPLES = 30
SMALLEST_SHARE = 0.05
GRID = 512
# A valley parts two modes when it is less dense than this share of the lower peak, by so many standard errors.
DEPTH = 0.7
ERRORS = 3.0


@dataclass(frozen=True)
class Mode:
    """A value that samples gather around.

    Attributes:
        value: median of the samples of this mode, in the samples' unit.
        share: of all samples.
    """

    value: float
    share: float


def modes(samples: ArrayLike, *, tick: float = 0.0) -> tuple[Mode, ...]:
    """The values that samples gather around, from the smallest; one when there is only one.

    Peaks of a kernel density; two are one when the valley between them is not clearly less dense than both, in counts.

    Args:
        samples: in any order.
        tick: resolution of the clock, in the samples' unit: steps of it are not modes.

    Raises:
        InvalidArgument: the samples are empty or not finite, or the tick is negative.
    """
    values = np.sort(checked(samples))
    tick = checked_tick(tick)
    borders = _borders(values, tick) if len(values) >= FEWEST_SAMPLES else []
    ends = [0, *borders, len(values)]
    return tuple(
        Mode(float(np.median(values[begin:end])), (end - begin) / len(values))
        for begin, end in itertools.pairwise(ends)
    )


def _borders(values: NDArray[np.float64], tick: float) -> list[int]:
    """The indices at which the sorted values part into modes."""
    n = len(values)
    low, high = values[int(0.01 * n)], values[-1 - int(0.01 * n)]
    quartiles = values[(3 * n) // 4] - values[n // 4]
    spread = min(float(values.std()), quartiles / 1.34) or float(values.std())
    width = max(0.9 * spread * n**-0.2, 0.8 * tick)
    if width <= 0:
        return []
    grid = np.linspace(low - 3 * width, high + 3 * width, GRID)
    step = grid[1] - grid[0]
    width = max(width, step)
    counts = np.histogram(values, bins=GRID, range=(grid[0] - step / 2, grid[-1] + step / 2))[0]
    reach = np.arange(-int(4 * width / step) - 1, int(4 * width / step) + 2)
    kernel = np.exp(-0.5 * (reach * step / width) ** 2)
    # As counts in a window as wide as the kernel's own noise says, so that the noise of it is that of counts.
    window = 2 * np.sqrt(np.pi) * width / step
    density = np.convolve(counts, kernel / kernel.sum(), "same") * window
    inner = density[1:-1]
    peaks = [int(i) for i in np.flatnonzero((inner > density[:-2]) & (inner >= density[2:])) + 1]
    while len(peaks) > 1:
        valleys = [a + int(np.argmin(density[a : b + 1])) for a, b in itertools.pairwise(peaks)]
        ends = [0, *(int(np.searchsorted(values, grid[valley])) for valley in valleys), n]
        clear = [
            _clearness(density[valley], min(density[a], density[b]))
            for a, b, valley in zip(peaks[:-1], peaks[1:], valleys, strict=True)
        ]
        small = [i for i in range(len(peaks)) if ends[i + 1] - ends[i] < SMALLEST_SHARE * n]
        if small:
            del peaks[min(small, key=lambda i: ends[i + 1] - ends[i])]
            continue
        weakest = int(np.argmin(clear))
        if clear[weakest] >= ERRORS:
            return ends[1:-1]
        del peaks[weakest if density[peaks[weakest]] < density[peaks[weakest + 1]] else weakest + 1]
    return []


def _clearness(valley: float, peak: float) -> float:
    """By how many standard errors of the counts the valley lies below DEPTH of the lower peak."""
    return float((DEPTH * peak - valley) / np.sqrt(DEPTH**2 * peak + valley + 1))
