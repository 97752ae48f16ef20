# SPDX-License-Identifier: Apache-2.0
"""Seconds as people read them."""

from __future__ import annotations

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def scaled(seconds: float | None) -> str:
    """Three digits in the unit that suits, as ``"1.23 ms"``; ``"-"`` for None."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    # From 999.5 up, three digits would read 1000 of the smaller unit.
    size, unit = next((pair for pair in _UNITS if abs(seconds) >= 0.9995 * pair[0]), _UNITS[-1])
    value = seconds / size
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"
