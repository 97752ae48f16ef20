# SPDX-License-Identifier: Apache-2.0
"""Values of options as people write them: shares, times and sizes."""

from __future__ import annotations

import argparse
import math

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}


def share(text: str) -> float:
    """A fraction above 0 and below 1 from ``1%`` or ``0.01``."""
    number, percent, rest = text.strip().partition("%")
    value = _number(number) / (100 if percent else 1)
    if rest or not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and below 1, as 1% or 0.01")
    return value


def seconds(text: str) -> float:
    """Seconds above 0 from ``2s``, ``500ms``, ``1min`` or ``2``."""
    stripped = text.strip()
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if stripped.endswith(unit)), "")
    value = _number(stripped.removesuffix(unit)) * _UNITS[unit or "s"]
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0, as 2s, 500ms or 1min")
    return value


def names(text: str) -> list[str]:
    """What stands between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def sizes(text: str) -> list[int]:
    """``64:4096`` doubles from the first to the last; ``64,100,1000`` is itself."""
    first, colon, last = text.partition(":")
    numbers = [_integer(text, number) for number in ((first, last) if colon else first.split(","))]
    if not colon:
        return numbers
    if numbers[1] < numbers[0]:
        raise argparse.ArgumentTypeError(
            f"{text!r} ends before it begins; accepted is FIRST:LAST or a list with commas"
        )
    doubled = [numbers[0]]
    while doubled[-1] * 2 < numbers[1]:
        doubled.append(doubled[-1] * 2)
    return [*doubled, numbers[1]] if numbers[1] > numbers[0] else doubled


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _integer(whole: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{whole!r} contains {text!r}; accepted are integers of at least 1")
    return int(text)
