# SPDX-License-Identifier: Apache-2.0
"""Sizes as people read them."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(size: float, *, signed: bool = False) -> str:
    """A number of bytes with a binary unit and three digits or so: "1.50 GiB", "-20.0 MiB", "512 B".

    Args:
        size: bytes.
        signed: whether a plus stands before what is above 0.
    """
    sign = "-" if size < 0 else "+" if signed and size > 0 else ""
    left = abs(float(size))
    if left < 1024:
        return f"{sign}{left:.0f} B"
    for unit in _UNITS:
        left /= 1024
        if left < 999.5 or unit == _UNITS[-1]:
            break
    digits = 2 if left < 9.995 else 1 if left < 99.95 else 0
    return f"{sign}{left:.{digits}f} {unit}"
