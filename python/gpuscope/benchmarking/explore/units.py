# SPDX-License-Identifier: Apache-2.0
"""Figures as people read them."""

from __future__ import annotations

import math


def rate(value: float, unit: str) -> str:
    """``1.23 TFLOP/s``, ``4.56 M items/s``."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{digits(value / size)} {prefix}{' ' if unit == 'items' else ''}{unit}/s"
    return f"{digits(value)} {unit}/s"


def times(value: float) -> str:
    """``3.21x``."""
    return f"{digits(value)}x"


def digits(value: float) -> str:
    """Three digits that count, without an exponent."""
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value) + 1e-4))}f}"
