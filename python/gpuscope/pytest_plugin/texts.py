# SPDX-License-Identifier: Apache-2.0
"""Times and changes as a reader wants them."""

from __future__ import annotations

import math

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def seconds(value: float) -> str:
    """With four digits and the unit that suits, as ``12.34 us``."""
    scale, unit = next((pair for pair in _UNITS if value >= pair[0]), _UNITS[-1])
    number = value / scale
    return f"{number:.{max(0, 3 - len(str(int(number))) + 1)}f} {unit}"


def change(ratio: float) -> str:
    """A ratio as a change, as ``+12.0%``."""
    return f"{100 * (ratio - 1):+.1f}%" if math.isfinite(ratio) else "+inf"
