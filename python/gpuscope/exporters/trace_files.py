# SPDX-License-Identifier: Apache-2.0
"""Recordings as files: Chrome JSON, Perfetto's packets, and gpuscope's own .gscope."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpuscope import _core
from gpuscope.exporters.protobuf import message
from gpuscope.paths import check_writable, find_suffix, replacing
from gpuscope.threads import thread_pool

if TYPE_CHECKING:
    from concurrent.futures import Future

_PERFETTO_SUFFIXES = (".pftrace", ".perfetto-trace")
_GSCOPE_SUFFIXES = (".gscope",)

_LEVEL = 1  # of zlib: on traces much faster than 6, and hardly larger
_MOST_WORKERS = 8
_TRACE_PACKET = 1  # Trace.packet, a field of Perfetto's
_COMPRESSED_PACKETS = 50  # TracePacket.compressed_packets


def export_chrome_trace(store: _core.Store, path: str | os.PathLike[str]) -> None:
    """Write a recording as a Chrome trace; times in it are us since ``baseTimeNanoseconds``.

    That base changes every 91 days. It is the same in all processes and in torch.profiler's files, so that traces of
    several ranks align in one view.

    Names, categories and arguments are those of torch.profiler's files. Driver calls have the runtime's names
    (``cudaLaunchKernel``); their own name is the argument ``driver call``. Their times are those of the driver call,
    which is shorter than the runtime call around it.

    Args:
        store: the recording.
        path: any name; one that ends with ``.gz`` is compressed, to about a tenth of the size.

    Raises:
        InvalidArgument: a recording of ``mode="aggregate"``, which has no events.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path)
    with replacing(checked) as file:
        if find_suffix(checked, (".gz",)):
            with _gzip(file.write) as stream:
                _core.write_chrome(store, stream)
        else:
            _core.write_chrome(store, file.write)


def export_perfetto(store: _core.Store, path: str | os.PathLike[str]) -> None:
    """Write a recording as a Perfetto trace; times in it are ns since the Unix epoch.

    Args:
        store: the recording.
        path: ``.pftrace`` or ``.perfetto-trace``.

    Raises:
        InvalidArgument: another suffix, or a recording of ``mode="aggregate"``, which has no events.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, _PERFETTO_SUFFIXES)
    with replacing(checked) as file:
        write_perfetto(store, file.write)


def write_perfetto(store: _core.Store, write: Callable[[bytes], object]) -> None:
    """Hands a recording to `write` as a Perfetto trace, compressed packet by packet."""
    with _in_order(_compressed_packet, write) as stream:
        _core.write_perfetto(store, stream)


def save(store: _core.Store, path: str | os.PathLike[str]) -> None:
    """Save a recording; a file of that name is replaced in one step, or kept whole.

    Raises:
        InvalidArgument: the suffix is not ``.gscope``.
        GpuscopeError: the file cannot be written.
    """
    with replacing(check_writable(path, _GSCOPE_SUFFIXES)) as file:
        _core.write_gscope(store, file.write)


@contextlib.contextmanager
def _in_order(work: Callable[[bytes], bytes], write: Callable[[bytes], object]) -> Iterator[Callable[[bytes], None]]:
    """A function that takes chunks: threads call `work` on them, and `write` gets the results in the same order.

    zlib works without the GIL, so that chunks are compressed while the next ones are written.
    """
    count = min(_MOST_WORKERS, os.cpu_count() or 1)
    pending: deque[Future[bytes]] = deque()

    def drain(most_pending: int) -> None:
        while len(pending) > most_pending:
            write(pending.popleft().result())

    with thread_pool(count) as pool:

        def take(chunk: bytes) -> None:
            pending.append(pool.submit(work, chunk))
            drain(2 * count)  # waits when the threads are far behind

        yield take
        drain(0)


@contextlib.contextmanager
def _gzip(write: Callable[[bytes], object]) -> Iterator[Callable[[bytes], None]]:
    """A function that takes chunks of one gzip member (RFC 1952).

    Deflate blocks that begin and end on bytes can be joined.
    """
    crc = size = 0
    write(b"\x1f\x8b\x08" + bytes(5) + b"\x04\xff")  # deflate, no time, fastest, unknown system
    with _in_order(_deflate, write) as compress:

        def take(chunk: bytes) -> None:
            nonlocal crc, size
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            compress(chunk)

        yield take
    write(b"\x03\x00" + struct.pack("<II", crc, size & 0xFFFFFFFF))  # an empty last block


def _deflate(chunk: bytes) -> bytes:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(chunk) + stream.flush(zlib.Z_SYNC_FLUSH)


def _compressed_packet(packets: bytes) -> bytes:
    """Turn packets into one packet that holds them compressed, as the tracing service does on request."""
    return message(_TRACE_PACKET, message(_COMPRESSED_PACKETS, zlib.compress(packets, _LEVEL)))
