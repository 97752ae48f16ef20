# SPDX-License-Identifier: Apache-2.0
"""The target of a time or a rate, and whether a measurement meets it."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from gpuscope.errors import InvalidArgument
from gpuscope.text import brief
from gpuscope.units import format_digits, format_seconds, parse_seconds

_CHANGE = re.compile(r"([+-]) ?(\d+(?:\.\d+)?) ?%")
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?samples/s(?:ec)?")


@dataclass(frozen=True)
class Target:
    """A target, and whether a measurement meets it. ``print`` shows one line.

    Attributes:
        text: the target as given.
        kind: "time", "rate", or "faster" (relative to a baseline).
        value: the most seconds, the fewest samples a second, or the factor by which work per second has to grow.
        bound: the most seconds, or the fewest samples a second; None before the comparison.
        met: whether the whole 95 % interval meets the bound; None if uncertain.
        why: the interval, or why there is none.
        differences: which conditions differ from those of the baseline; empty if none are known to.
    """

    text: str
    kind: Literal["time", "rate", "faster"]
    value: float
    bound: float | None = None
    met: bool | None = None
    why: str = ""
    differences: str = ""

    @staticmethod
    def of(given: object, *, of_rates: bool = False, has_baseline: bool = True) -> Target:
        """Reads "20 ms", "+30 %" (more work a second), "-20 %" (less time), or "500 samples/s".

        The last needs `of_rates`.

        Raises:
            InvalidArgument: the text is no target, or is relative and there is no baseline.
        """
        text = given.strip() if isinstance(given, str) else ""
        change, rate, found = _CHANGE.fullmatch(text), _RATE.fullmatch(text), None
        if change:
            share = float(change[2]) / 100
            factor = 1 + share if change[1] == "+" else 1 / (1 - share) if share < 1 else 0.0
            found = Target(text, "faster", factor) if factor > 1 else None
        elif rate and of_rates and float(rate[1]):
            found = Target(text, "rate", float(rate[1]))
        with contextlib.suppress(InvalidArgument):
            found = found or Target(text, "time", parse_seconds(text))
        if found is None:
            rates = "'500 samples/s', " if of_rates else ""
            accepted = f"'20 ms' (at most), {rates}'+30 %' (speed) and '-20 %' (time)"
            raise InvalidArgument(f"target is {brief(given)}; accepted are {accepted}")
        if found.kind == "faster" and not has_baseline:
            raise InvalidArgument(
                f"baseline is missing; accepted with target={text!r} is an earlier result or its figure"
            )
        return found

    def judged(
        self,
        interval: tuple[float, float] | None,
        baseline: tuple[float, float, float] | None = None,
        *,
        rate: bool = False,
    ) -> Target:
        """Compares an interval, in seconds or (`rate`) samples a second, with the bound.

        The baseline is a value and its interval. The whole interval has to meet the whole scaled baseline interval.
        """
        factor = self.value if rate else 1 / self.value
        wanted = [each * factor for each in baseline] if self.kind == "faster" and baseline else [self.value] * 3
        if interval is None or not all(map(math.isfinite, (*interval, *wanted))):
            return replace(self, bound=wanted[0], why=self.why or "there is no 95 % interval")
        own, bounds = (sorted(-each if rate else each for each in ends) for ends in (interval, wanted[1:]))
        met = True if own[1] <= bounds[0] else False if own[0] > bounds[1] else None
        low, high, bound = (_samples(each) if rate else format_seconds(each) for each in (*interval, wanted[0]))
        if low.partition(" ")[2] == high.partition(" ")[2]:
            low = low.partition(" ")[0]
        relative = f"; {'at least' if rate else 'at most'} {bound}" if self.kind == "faster" else ""
        return replace(self, bound=wanted[0], met=met, why=f"{low} to {high}{relative}")

    def __str__(self) -> str:
        state = {True: "met", False: "not met", None: "not certain"}[self.met]
        after = f"; {self.differences}" if self.differences else ""
        return f"target {self.text}: {state} ({self.why}){after}"


def _samples(rate: float) -> str:
    """Three digits, without an exponent below 1e9: "380,000 samples/s"."""
    rounded = float(f"{rate:.3g}")
    return f"{format_digits(rounded) if rounded < 1e9 else f'{rounded:g}'} samples/s"
