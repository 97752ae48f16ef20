# SPDX-License-Identifier: Apache-2.0
"""What samples may be."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuscope.errors import InvalidArgument


def checked(samples: ArrayLike, name: str = "samples") -> NDArray[np.float64]:
    """The samples as a flat array of finite numbers, at least one of them.

    Raises:
        InvalidArgument: empty, of more than one dimension, not numbers, or not all finite.
    """
    try:
        values = np.asarray(samples, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} are not numbers; accepted is a sequence of numbers") from None
    if values.ndim != 1:
        raise InvalidArgument(f"{name} have {values.ndim} dimensions; accepted is one")
    if not len(values):
        raise InvalidArgument(f"{name} are empty; accepted is at least one number")
    if not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise InvalidArgument(f"{name} hold {bad} of {len(values)} that are not finite; accepted are finite numbers")
    return values


def checked_confidence(confidence: float) -> float:
    """The confidence.

    Raises:
        InvalidArgument: not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise InvalidArgument(f"confidence is {confidence}; accepted are fractions above 0 and below 1")
    return float(confidence)


def checked_tick(tick: float) -> float:
    """The tick.

    Raises:
        InvalidArgument: negative or not finite.
    """
    if not (np.isfinite(tick) and tick >= 0):
        raise InvalidArgument(f"tick is {tick}; accepted is the clock's resolution, 0 or above")
    return float(tick)
