# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own trace format."""

from __future__ import annotations

import os

from gpuscope import _core
from gpuscope.paths import check_writable, replacing

PERFETTO_SUFFIXES = (".pftrace", ".perfetto-trace")

_TRACE_PACKET = 1  # Trace.packet
_COMPRESSED_PACKETS = 50  # TracePacket.compressed_packets


def export_perfetto(store: _core.Store, path: str | os.PathLike[str]) -> None:
    """Write a recording as a Perfetto trace; times in it are ns since the Unix epoch.

    Args:
        store: the recording.
        path: ``.pftrace`` or ``.perfetto-trace``.

    Raises:
        InvalidArgument: another suffix, or a recording of ``mode="aggregate"``, which has no events.
        GpuscopeError: the file cannot be written.
    """
    from gpuscope.exporters.pieces import OrderedPool  # brings in thread pools, which importing gpuscope spares

    checked = check_writable(path, PERFETTO_SUFFIXES)
    with replacing(checked) as file, OrderedPool(_compress, file.write) as pool:
        _core.write_perfetto(store, pool)


def _compress(packets: bytes) -> bytes:
    """Turn packets into one packet that holds them compressed, as the tracing service does on request."""
    import zlib

    from gpuscope.exporters.pieces import LEVEL

    return _field(_TRACE_PACKET, _field(_COMPRESSED_PACKETS, zlib.compress(packets, LEVEL)))


def _field(number: int, value: bytes) -> bytes:
    length_delimited = 2
    return _varint(number << 3 | length_delimited) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)
