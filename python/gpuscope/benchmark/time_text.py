# SPDX-License-Identifier: Apache-2.0
"""Seconds as people write them."""

from __future__ import annotations

import math

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """Four significant digits with a unit, as "12.34 us"."""
    if not math.isfinite(seconds):
        return str(seconds)
    scale, unit = next((step for step in _UNITS if abs(seconds) >= step[0] * 0.99995), _UNITS[-1])
    value = seconds / scale
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{min(max(digits, 0), 3)}f} {unit}"
