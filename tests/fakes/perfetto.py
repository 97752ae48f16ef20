# SPDX-License-Identifier: Apache-2.0
"""The bytes of Perfetto traces."""

from __future__ import annotations

import contextlib
import zlib


def unpacked(trace: bytes) -> bytes:
    """The compressed packets of a trace, one behind the other."""
    texts = []
    for at in (at for at, byte in enumerate(trace) if byte == 0x78):  # zlib's first byte
        with contextlib.suppress(zlib.error):
            texts.append(zlib.decompressobj().decompress(trace[at:]))
    return b"".join(texts)
