# SPDX-License-Identifier: Apache-2.0
"""Which size to try next: the search for the largest that fits, apart from what a try is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_GUESSES = 2  # from far off, and once more from near
_NEARBY = 32  # a guess is taken to be wrong by one part in this
_EXACT = 2  # or, where it fits, by less than twice this


class Search:
    """Finds the largest number that fits, given that each one below a fitting one fits too.

    Doubles, or jumps to where a prediction says, then closes in from both sides: of the order of log(answer) tries,
    whatever the predictions. Numbers count multiples of a unit.

    Attributes:
        fits: the largest known to fit; 0 before one is.
        fails: the smallest known not to; None before one is.
    """

    def __init__(self, start: int, limit: int | None = None, growth: int = 16) -> None:
        """`growth`: how many times the largest known to fit a prediction may be."""
        self.fits = 0
        self.fails: int | None = None
        self._start = start if limit is None else min(start, limit)
        self._limit = limit
        self._growth = growth
        self._guesses = 0
        self._guessed = 0
        self._step = 0

    def add(self, number: int, fits: bool) -> None:
        """One has been tried."""
        if fits and number == self._guessed:
            self._step = 1  # as good a prediction may be exact
        if fits:
            self.fits = max(self.fits, number)
        else:
            self.fails = number if self.fails is None else min(self.fails, number)

    def next(self, predicted: int | None = None) -> int | None:
        """The number to try next; None when the answer is known.

        Args:
            predicted: the largest that is thought to fit.
        """
        if self.fits == self._limit or (self.fails is not None and self.fails - self.fits <= 1):
            return None
        if not self.fits:
            return self._start if self.fails is None else self.fails // 2
        number = self._guess(predicted) or (self._upwards(predicted) if self.fails is None else self._between())
        return number if self._limit is None else min(number, self._limit)

    def _guess(self, predicted: int | None) -> int | None:
        if predicted is None or predicted <= self.fits or self._guesses == _GUESSES:
            return None
        if predicted > self._growth * self.fits:
            return self._growth * self.fits if self.fails is None else None
        if self.fails is not None and predicted >= self.fails:
            return None
        self._guesses += 1
        self._guessed = predicted
        self._step = max(1, predicted // _NEARBY)
        return predicted

    def _upwards(self, predicted: int | None) -> int:
        if predicted is None or predicted > self.fits:
            return 2 * self.fits if not self._step else self.fits + self._doubled()
        self._step = self._step or max(1, self.fits // _NEARBY)
        return self.fits + self._doubled()

    def _between(self) -> int:
        assert self.fails is not None
        middle = (self.fits + self.fails) // 2
        return max(middle, self.fails - self._doubled()) if self._step else middle

    def _doubled(self) -> int:
        # A prediction that is off by more than this was no good one: libraries change their ways from size to size.
        step = self._step
        self._step = 2 * step if step != _EXACT else max(2 * step, self.fits // _NEARBY)
        return step


def line(points: Iterable[tuple[int, int]]) -> tuple[float, float] | None:
    """Bytes at size 0, and bytes a sample, by least squares through (size, bytes); None of fewer than two sizes."""
    sizes, peaks = np.array(list(points), dtype=np.float64).reshape(-1, 2).T
    if len(np.unique(sizes)) < 2:
        return None
    centred = sizes - sizes.mean()
    slope = float((centred * (peaks - peaks.mean())).sum() / (centred**2).sum())
    return float(peaks.mean() - slope * sizes.mean()), slope
