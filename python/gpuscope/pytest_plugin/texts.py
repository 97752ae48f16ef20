# SPDX-License-Identifier: Apache-2.0
"""Changes as a reader wants them."""

from __future__ import annotations

import math


def change(ratio: float) -> str:
    """A ratio as a change, as ``+12.0%``."""
    return f"{100 * (ratio - 1):+.1f}%" if math.isfinite(ratio) else "+inf"
