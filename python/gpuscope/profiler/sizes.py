# SPDX-License-Identifier: Apache-2.0
"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from gpuscope.errors import InvalidArgument

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(argument: str, value: int | str, minimum: int = 1) -> int:
    """Reads a number of bytes: an integer, or text such as ``512MB`` (10**6 bytes each) or ``1.5 GiB`` (2**30).

    Args:
        argument: the name that a complaint gives the value.
        value: what the user gave.
        minimum: the fewest bytes accepted.

    Raises:
        InvalidArgument: the value is neither of these, or smaller than `minimum`.
    """
    size = _read(value)
    if size is None or size < minimum:
        raise InvalidArgument(
            f"{argument} is {value!r}; accepted are bytes as an integer or text like '512MB' or '1GiB', "
            f"at least {minimum}"
        )
    return size


def _read(value: object) -> int | None:
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        unit = _UNITS.get(match[2].upper()) if match else None
        return int(float(match[1]) * unit) if match and unit else None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value.__index__())
