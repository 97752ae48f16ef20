# SPDX-License-Identifier: Apache-2.0
"""Fields of messages as Protocol Buffers write them (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _BYTES = 0, 2  # wire types


def number(field: int, value: int) -> bytes:
    """An integer that is not negative."""
    return _varint(field << 3 | _VARINT) + _varint(value)


def message(field: int, value: bytes) -> bytes:
    """Bytes, a text in UTF-8, or another message."""
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def packed(field: int, values: Iterable[int]) -> bytes:
    """Integers that are not negative."""
    return message(field, b"".join(map(_varint, values)))


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)
