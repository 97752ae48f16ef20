# SPDX-License-Identifier: Apache-2.0
"""Reads a black box: the last steps, collectives and open regions of a process that runs, hangs or is dead.

The layout is that of cpp/gpuscope/base/black_box.h.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpuscope import _core
from gpuscope.errors import CorruptTrace, GpuscopeError, InvalidArgument
from gpuscope.paths import as_path

FILE_NAME = "black_box.bin"
"""In the folder of each process."""

_MAGIC, _VERSION, _BYTES = b"GSBLKBOX", 1, 1 << 20
_HEADER = struct.Struct("<8sIIIiQqQ40s72sI")
_CHANGING = struct.Struct("<IIQqQ")  # after the header's first 192 bytes
_MOMENTS = 256
_MOMENT = struct.Struct("<qqII")
_THREADS, _THREAD_BYTES, _MOST_THREADS, _LEVELS = 4096, 192, 256, 8
_THREAD, _LEVEL, _COUNTER = struct.Struct("<QIIQ"), struct.Struct("<qQ"), struct.Struct("<Q")
_ENTRY = struct.Struct("<QqIIQQIIQII")
_RINGS = (1024, 4096, 256)  # entries of steps, collectives, triggers
_NAMES = _THREADS + _MOST_THREADS * _THREAD_BYTES + sum(64 + entries * _ENTRY.size for entries in _RINGS)
_NAME = struct.Struct("<II")
_LONGEST_NAME = 1024
_BEGIN, _END = 1, 2
_TRIES, _PAUSE_S = 20, 0.001  # for a thread that changes its regions meanwhile


@dataclass(frozen=True)
class BoxStep:
    """A step; times in ns since 1970, None for what is not in the file."""

    number: int
    begun_ns: int | None
    ended_ns: int | None


@dataclass(frozen=True)
class RankCall:
    """A collective of one rank.

    Attributes:
        communicator: its name.
        number: of the communicator's collectives, the same on all ranks.
        kind: as "all_reduce".
        size: shapes and types, or bytes, as text; empty if unknown.
        since_ns: when it was entered; None if unknown.
        is_done: whether it has ended on this rank.
        place: the program's line that called it; None if unknown.
        members: ranks of the communicator; None if unknown.
        ranks: number of ranks of the communicator, 0 if unknown.
    """

    communicator: str
    number: int
    kind: str
    size: str
    since_ns: int | None
    is_done: bool
    place: str | None = None
    members: tuple[int, ...] | None = None
    ranks: int = 0


@dataclass(frozen=True)
class BoxRegion:
    """An open region and its beginning in ns since 1970."""

    name: str
    began_ns: int


@dataclass(frozen=True)
class BoxThread:
    """A thread with open regions.

    Attributes:
        id: the system's number.
        regions: the innermost eight, outermost first.
        depth: number of all open regions.
        is_torn: whether the thread died, or was read, during a change.
    """

    id: int
    regions: tuple[BoxRegion, ...]
    depth: int
    is_torn: bool


@dataclass(frozen=True)
class BlackBoxContent:
    """A black box; times in ns since 1970.

    Attributes:
        path: the file.
        pid: the process.
        rank: None if the program has none.
        host: name of its machine.
        boot: boot id of its machine.
        pid_namespace: inode of the namespace in which `pid` counts.
        start_ticks: start of the process, as in /proc/PID/stat.
        created_ns: when the file was made.
        is_closed: whether the program closed it.
        beat_ns: when a thread of Python last beat; None if none does.
        steps: the last steps, oldest first.
        collectives: the last collectives, in order of entering.
        threads: threads with open regions.
        triggers: name and time of the last triggers.
        notes: what is missing or damaged, a sentence each.
    """

    path: str
    pid: int
    rank: int | None
    host: str
    boot: str
    pid_namespace: int
    start_ticks: int
    created_ns: int
    is_closed: bool
    beat_ns: int | None
    steps: tuple[BoxStep, ...]
    collectives: tuple[RankCall, ...]
    threads: tuple[BoxThread, ...]
    triggers: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]

    @property
    def last_ns(self) -> int:
        """The time of the latest event."""
        times = [self.created_ns, self.beat_ns, *(at for _, at in self.triggers)]
        times += [at for step in self.steps for at in (step.begun_ns, step.ended_ns)]
        times += [call.since_ns for call in self.collectives]
        times += [region.began_ns for thread in self.threads for region in thread.regions]
        return max(at for at in times if at is not None)


def read_black_box(path: str | os.PathLike[str]) -> BlackBoxContent:
    """Reads a black box, also while its process writes it.

    Entries that a death has torn are left out, and `notes` says how many.

    Raises:
        InvalidArgument: there is no such file, or it is a link or no regular file.
        CorruptTrace: it is no black box, of another version, cut off, or its header is damaged.
        GpuscopeError: the system refuses to read it.
    """
    checked = as_path(path)
    try:
        descriptor = os.open(checked, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR):
            raise InvalidArgument(f"path is {str(checked)!r}; accepted is a regular file, and no link") from None
        raise GpuscopeError(f"cannot read {checked}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidArgument(f"path is {str(checked)!r}; accepted is a regular file, and no link")
        return _Reader(checked, descriptor).content()
    except OSError as error:
        raise GpuscopeError(f"cannot read {checked}: {error.strerror}") from error
    finally:
        os.close(descriptor)


class _Reader:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = str(path), descriptor
        self._data = b""
        while len(self._data) < _BYTES and (more := os.pread(descriptor, _BYTES, len(self._data))):
            self._data += more
        self._offset_ns = 0
        self._torn = 0

    def content(self) -> BlackBoxContent:
        if self._data[:8] != _MAGIC:
            raise CorruptTrace(f"{self._path}: no black box, or one that was never complete", self._path, 0)
        if len(self._data) < _BYTES:
            raise CorruptTrace(f"{self._path}: cut off at byte {len(self._data)}", self._path, len(self._data))
        _, version, _, pid, rank, start, created, namespace, boot, host, crc = _HEADER.unpack_from(self._data)
        if version != _VERSION:
            raise CorruptTrace(f"{self._path}: version {version}; {_VERSION} can be read", self._path, 8)
        if crc != _core.crc32c(self._data[8 : _HEADER.size - 4]):
            raise CorruptTrace(f"{self._path}: its header is damaged", self._path, 8)
        closed, names_lost, _, beat, threads_lost = _CHANGING.unpack_from(self._data, 192)
        self._offset_ns = self._find_offset()
        rings = list(self._rings())
        return BlackBoxContent(
            path=self._path,
            pid=pid,
            rank=rank if rank >= 0 else None,
            host=_text(host),
            boot=_text(boot),
            pid_namespace=namespace,
            start_ticks=start,
            created_ns=created + self._offset_ns,
            is_closed=closed != 0,
            beat_ns=beat + self._offset_ns if beat else None,
            steps=_steps(rings[0]),
            collectives=self._collectives(rings[1]),
            threads=tuple(self._threads()),
            triggers=tuple((self._name(entry[6]), entry[1]) for entry in rings[2]),
            notes=tuple(
                sentence
                for count, sentence in (
                    (self._torn, f"{self._torn:,} entries were not written to their end"),
                    (names_lost, f"{names_lost:,} names found no room"),
                    (threads_lost, f"{threads_lost:,} threads found no room"),
                )
                if count
            ),
        )

    def _find_offset(self) -> int:
        """The wall clock minus the file's clock, as last compared."""
        found = []
        for at in (_MOMENTS, _MOMENTS + _MOMENT.size):
            ns, realtime_ns, crc, _ = _MOMENT.unpack_from(self._data, at)
            if ns and crc == _core.crc32c(self._data[at : at + 16]):
                found.append((ns, realtime_ns - ns))
        return max(found)[1] if found else 0

    def _rings(self) -> Iterator[list[tuple[int, ...]]]:
        """The whole entries of each ring, oldest first."""
        at = _THREADS + _MOST_THREADS * _THREAD_BYTES
        for count in _RINGS:
            at += 64
            rows = []
            for place in range(count):
                data = self._data[at + place * _ENTRY.size : at + (place + 1) * _ENTRY.size]
                entry = _ENTRY.unpack(data)
                if entry[-1] == _core.crc32c(data[:-4]) and (entry[0] - 1) % count == place:
                    rows.append((entry[0], entry[1] + self._offset_ns, *entry[2:]))
                elif any(data):
                    self._torn += 1
            at += count * _ENTRY.size
            yield sorted(rows)

    def _collectives(self, rows: list[tuple[int, ...]]) -> tuple[RankCall, ...]:
        found: dict[tuple[int, int], RankCall] = {}
        for _, ns, event, _, number, size, name, kind, ranks, *_ in rows:
            old = found.pop((name, number), None)
            if event == _BEGIN or old is None:  # a number that comes again is a new collective
                since_ns = ns if event == _BEGIN else None
                text = f"{size} bytes" if size else ""
                old = RankCall(self._name(name), number, self._name(kind), text, since_ns, False, ranks=ranks)
            found[name, number] = replace(old, is_done=event == _END)
        return tuple(found.values())

    def _threads(self) -> Iterator[BoxThread]:
        for place in range(_MOST_THREADS):
            at = _THREADS + place * _THREAD_BYTES
            data, is_torn = self._data[at : at + _THREAD_BYTES], True
            for _ in range(_TRIES):
                begun, thread, count, depth = _THREAD.unpack_from(data)
                is_torn = begun != _COUNTER.unpack_from(data, _THREAD.size + _LEVELS * _LEVEL.size)[0]
                if not is_torn:
                    break
                time.sleep(_PAUSE_S)
                data = os.pread(self._descriptor, _THREAD_BYTES, at).ljust(_THREAD_BYTES, b"\0")
            levels = [
                _LEVEL.unpack_from(data, _THREAD.size + level * _LEVEL.size) for level in range(min(count, _LEVELS))
            ]
            regions = tuple(BoxRegion(self._name(name), ns + self._offset_ns) for ns, name in levels)
            if regions:
                yield BoxThread(thread, regions, max(depth, len(regions)), is_torn)

    def _name(self, number: int) -> str:
        if number == 0:
            return "(a name without room)"
        at = _NAMES + (number - 1) * _NAME.size
        if at + _NAME.size <= _BYTES:
            size, crc = _NAME.unpack_from(self._data, at)
            text = self._data[at + _NAME.size : at + _NAME.size + min(size, _LONGEST_NAME)]
            if len(text) == size and crc == _core.crc32c(text):
                return text.decode(errors="replace")
        return "(a damaged name)"


def _steps(rows: list[tuple[int, ...]]) -> tuple[BoxStep, ...]:
    times: dict[int, list[int | None]] = {}
    for row in rows:
        if row[2] == _BEGIN:
            times.pop(row[4], None)
        times.setdefault(row[4], [None, None])[row[2] == _END] = row[1]
    return tuple(BoxStep(number, *both) for number, both in times.items())


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="replace")
