# SPDX-License-Identifier: Apache-2.0
"""Reads what a shared library asks the loader for: enough of ELF (64 bit, little endian) to list DT_NEEDED."""

from __future__ import annotations

import struct
from pathlib import Path

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_NEEDED, DT_STRTAB = 0, 1, 5


def needed_libraries(path: Path) -> list[str]:
    """The names of the libraries that the file links.

    Raises:
        ValueError: the file is no 64-bit little-endian ELF, or links nothing dynamically.
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    (headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    # type, flags, offset, address, physical address, bytes in the file, bytes in memory, alignment
    segments = [struct.unpack_from("<IIQQQQQQ", data, headers + index * size) for index in range(count)]
    dynamic = next((segment for segment in segments if segment[0] == PT_DYNAMIC), None)
    if dynamic is None:
        raise ValueError(f"{path} has no dynamic section")
    entries = []
    for offset in range(dynamic[2], dynamic[2] + dynamic[5], 16):
        tag, value = struct.unpack_from("<qQ", data, offset)
        if tag == DT_NULL:
            break
        entries.append((tag, value))
    address = next(value for tag, value in entries if tag == DT_STRTAB)
    load = next(s for s in segments if s[0] == PT_LOAD and s[3] <= address < s[3] + s[5])
    strings = load[2] + address - load[3]
    names = [strings + value for tag, value in entries if tag == DT_NEEDED]
    return [data[start : data.index(b"\0", start)].decode() for start in names]
