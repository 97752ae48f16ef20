# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers as a page contains them: differences, byte by byte, deflated, in base64.

Differences of sorted times are small and similar, so that their high bytes, next to each other, compress well. data.js
reads them by the browser's ``DecompressionStream("deflate")``.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.threads import thread_pool

Array = np.ndarray[Any, Any]

PLAIN, TIMES, STEPS = "plain", "times", "steps"
"""Plain numbers; numbers that grow within each lane; numbers that mostly change by a little either way."""

_LEVEL = 6  # of zlib: clearly smaller than 1, and hardly slower


@dataclass(frozen=True, eq=False)
class PageColumn:
    """Whole numbers from 0, below 2**48.

    Attributes:
        values: one a row.
        coding: PLAIN, TIMES or STEPS.
        firsts: rows at which a lane begins, for TIMES: these numbers are not differences.
    """

    values: Array
    coding: str = PLAIN
    firsts: Sequence[int] = ()


def encode(columns: dict[str, PageColumn]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The facts that a page needs to read each column, and each column's text."""
    workers = min(4, os.cpu_count() or 1)  # zlib has no GIL
    with thread_pool(workers) as pool:
        made = dict(zip(columns, pool.map(_packed, columns.values()), strict=True))
    facts = {name: {"rows": len(columns[name].values), "planes": made[name][0], "coding": columns[name].coding}
             for name in columns}  # fmt: skip
    return facts, {name: text for name, (_, text) in made.items()}


def _packed(column: PageColumn) -> tuple[int, str]:
    planes = list(_planes(_differences(column)))
    stream = zlib.compressobj(_LEVEL)
    parts = [stream.compress(plane) for plane in planes]
    return len(planes), base64.b64encode(b"".join([*parts, stream.flush()])).decode("ascii")


def _differences(column: PageColumn) -> Array:
    values = column.values.astype(np.int64)
    if column.coding == PLAIN or len(values) == 0:
        return values
    differences = np.diff(values, prepend=0)
    if column.coding == STEPS:
        return np.where(differences < 0, -2 * differences - 1, 2 * differences)
    firsts = np.asarray(column.firsts, np.int64)
    firsts = firsts[firsts < len(values)]
    differences[firsts] = values[firsts]
    return differences


def _planes(values: Array) -> Iterator[bytes]:
    """The lowest bytes of all rows, then the next; bytes that are 0 in all rows are left out."""
    most = int(values.max(initial=0))
    wide = values.astype("<u4" if most < 1 << 32 else "<u8")
    as_bytes = wide.view(np.uint8).reshape(len(wide), wide.itemsize)
    for plane in range(max(1, -(-most.bit_length() // 8))):
        yield np.ascontiguousarray(as_bytes[:, plane]).tobytes()
