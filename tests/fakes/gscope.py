# SPDX-License-Identifier: Apache-2.0
"""A second, independent writer of the .gscope format: makes Stores in tests, and damaged or unusual files.

>>> store = make_store(
...     {
...         "path": {"name": ["step"], "parent": [NONE]},
...         "thread": {"system_id": [1]},
...         "region": {"start_ns": [100], "duration_ns": [50], "path": [0]},
...     }
... )

A column of names (``name``, ``uuid``, and ``key``/``value`` of info) may hold text in place of string ids. Columns left
out read as 0, or as NONE for region, parent, path and histogram; ``path.depth`` is worked out from ``path.parent``.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope import _core

NONE = 0xFFFFFFFF
MAGIC = b"\x89GSCOPE\n"
STRINGS, TABLE, END = 1, 2, 3

Tables = Mapping[str, Mapping[str, Sequence[Any]]]


COLUMNS = {table.name: {column.name: np.dtype(column.dtype) for column in table.columns} for table in _core.schema()}


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def file_header(major: int = 1, minor: int = 0) -> bytes:
    head = MAGIC + struct.pack("<HH", major, minor)
    return head + struct.pack("<I", crc32c(head))


def block(kind: int, rows: int, directory: bytes = b"", payload: bytes = b"") -> bytes:
    directory, payload = pad(directory), pad(payload)
    body = directory + payload
    head = b"GBLK" + struct.pack("<HHIIQI", kind, 1, rows, len(directory), len(payload), crc32c(body))
    return head + struct.pack("<I", crc32c(head)) + body


def strings_block(strings: Sequence[str]) -> bytes:
    texts = [text.encode() for text in strings]
    lengths = struct.pack(f"<{len(texts)}I", *map(len, texts))
    return block(STRINGS, len(texts), payload=lengths + b"".join(texts))


def table_block(table: str, columns: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    directory = bytes([len(table)]) + table.encode()
    payload = b""
    for name, values in columns.items():
        directory += bytes([values.dtype.itemsize, len(name)]) + name.encode()
        payload += pad(values.tobytes())
    rows = {len(values) for values in columns.values()}
    assert len(rows) == 1, f"the columns of {table} differ in length: {rows}"
    return block(TABLE, rows.pop(), directory, payload)


def gscope_bytes(
    tables: Tables, strings: Sequence[str] = (), info: Mapping[str, str] | None = None, end: bool = True
) -> bytes:
    """A whole file. ``strings`` get the ids 0, 1, ... in order; id 0 must be ""."""
    known = list(strings) or [""]
    assert known[0] == "", 'string 0 is ""'

    def intern(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        if text not in known:
            known.append(text)
        return known.index(text)

    filled: dict[str, dict[str, Sequence[Any]]] = {name: dict(columns) for name, columns in tables.items()}
    if info:
        filled["info"] = {"key": list(info), "value": list(info.values())}
    if "path" in filled and "depth" not in filled["path"]:
        depths: list[int] = []
        for parent in filled["path"].get("parent", [NONE] * len(filled["path"]["name"])):
            depths.append(0 if parent == NONE else depths[parent] + 1)
        filled["path"]["depth"] = depths
    blocks = b""
    for table, columns in filled.items():
        if columns and len(next(iter(columns.values()))):
            arrays = {
                name: np.array([intern(value) for value in values], dtype=COLUMNS[table][name])
                for name, values in columns.items()
            }
            blocks += table_block(table, arrays)
    return file_header() + strings_block(known) + blocks + (block(END, 0) if end else b"")


def make_store(tables: Tables, strings: Sequence[str] = (), info: Mapping[str, str] | None = None) -> Any:
    """A Store with these tables, opened by the product's own reader."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.gscope"
        path.write_bytes(gscope_bytes(tables, strings, info))
        return _core.read_gscope(str(path))
