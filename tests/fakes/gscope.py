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
from typing import Any, NamedTuple

import numpy as np

from gpuscope import _core

NONE = 0xFFFFFFFF
MAGIC = b"\x89GSCOPE\n"
STRINGS, TABLE, CONTENTS = 1, 2, 3
MAJOR = 2
MINOR = 1

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


def file_header(major: int = MAJOR, minor: int = MINOR) -> bytes:
    head = MAGIC + struct.pack("<HH", major, minor)
    return head + struct.pack("<I", crc32c(head))


class Block(NamedTuple):
    """One block but for its number in the file, which `file_of` gives it."""

    kind: int
    rows: int
    directory: bytes = b""
    payload: bytes = b""
    first_row: int = 0
    name: str = ""

    def numbered(self, number: int, major: int = MAJOR) -> bytes:
        directory, payload = pad(self.directory), pad(self.payload)
        body = directory + payload
        sizes = (number, self.first_row, self.rows, len(directory), len(payload))
        head = b"GBLK" + struct.pack("<HHIIIIQI", self.kind, major, *sizes, crc32c(body))
        return head + struct.pack("<I", crc32c(head)) + body


def strings_block(strings: Sequence[str], first_row: int = 0) -> Block:
    texts = [text.encode() for text in strings]
    lengths = struct.pack(f"<{len(texts)}I", *map(len, texts))
    return Block(STRINGS, len(texts), payload=lengths + b"".join(texts), first_row=first_row, name="string")


def table_block(table: str, columns: Mapping[str, np.ndarray[Any, Any]], first_row: int = 0) -> Block:
    directory = bytes([len(table)]) + table.encode()
    payload = b""
    for name, values in columns.items():
        directory += bytes([values.dtype.itemsize, len(name)]) + name.encode()
        payload += pad(values.tobytes())
    rows = {len(values) for values in columns.values()}
    assert len(rows) == 1, f"the columns of {table} differ in length: {rows}"
    return Block(TABLE, rows.pop(), directory, payload, first_row, table)


def contents_block(rows: Mapping[str, int]) -> Block:
    names = b"".join(bytes([len(name)]) + name.encode() for name in rows)
    return Block(CONTENTS, len(rows), names, struct.pack(f"<{len(rows)}Q", *rows.values()))


def contents_of(blocks: Sequence[Block]) -> Block:
    """What these blocks hold, in the product's order of tables."""
    rows = {name: sum(block.rows for block in blocks if block.name == name) for name in ("string", *COLUMNS)}
    rows |= {block.name: block.rows for block in blocks if block.name and block.name not in rows}
    return contents_block({name: count for name, count in rows.items() if count})


def numbered_blocks(blocks: Sequence[Block], end: bool = True) -> list[bytes]:
    """These blocks between their contents."""
    contents = contents_of(blocks)
    return [block.numbered(number) for number, block in enumerate([contents, *blocks, *([contents] if end else [])])]


def file_of(*blocks: Block, minor: int = MINOR, end: bool = True) -> bytes:
    """A whole file of these blocks; without its end when that is asked for."""
    return file_header(minor=minor) + b"".join(numbered_blocks(blocks, end))


def gscope_bytes(
    tables: Tables, strings: Sequence[str] = (), info: Mapping[str, str] | None = None, end: bool = True
) -> bytes:
    """A whole file. ``strings`` get the ids 0, 1, ... in order; id 0 must be ""."""
    return file_of(*gscope_blocks(tables, strings, info), end=end)


def gscope_blocks(tables: Tables, strings: Sequence[str] = (), info: Mapping[str, str] | None = None) -> list[Block]:
    """The blocks of a file, strings first, then one a table."""
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
    blocks: list[Block] = []
    for table, columns in filled.items():
        if columns and len(next(iter(columns.values()))):
            arrays = {
                name: np.array([intern(value) for value in values], dtype=COLUMNS[table][name])
                for name, values in columns.items()
            }
            blocks.append(table_block(table, arrays))
    return [strings_block(known), *blocks]


def make_store(tables: Tables, strings: Sequence[str] = (), info: Mapping[str, str] | None = None) -> Any:
    """A Store with these tables, opened by the product's own reader."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.gscope"
        path.write_bytes(gscope_bytes(tables, strings, info))
        return _core.read_gscope(str(path))
