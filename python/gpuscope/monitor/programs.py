# SPDX-License-Identifier: Apache-2.0
"""Status pages by which profiled programs report to monitors of the same user.

A page is a file of 1,024 bytes. The program writes it at steps, at most ten times a second, and removes it at its end.
The thread that decodes recordings writes the region, in a part of its own. No process maps the file, so truncation is
harmless. Readers accept a page if its checksum fits and its process lives. Other files in the folder are left alone.
"""

from __future__ import annotations

import functools
import math
import os
import re
import stat
import struct
import sys
import threading
import zlib
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuscope import _core
from gpuscope.text import one_line, shown

OPT_OUT = "GPUSCOPE_NO_STATUS_PAGE"
"""If this variable is set, a program reports nothing."""

_BYTES = 1024
_EVERY_S = 0.1
_RATE_S = 2.0  # window of the rate of steps

# Mark, count of writes (even), checksum of what follows; then the process, when it started, the
# time, the number of the step (-1: none yet) and the rate, and three texts.
_HEAD = struct.Struct("<8sII")
_BODY = struct.Struct("<QQqqd64s192s512s")
_REGION = struct.Struct("<I196s")  # checksum of what follows, and the name
_REGION_AT = _BYTES - _REGION.size
_MARK = b"gpuscop1"
# The namespace of the process's number: processes that share the folder may be in others.
_NAME = re.compile(r"(\d{1,20})-(\d{1,10})-(\d{1,20})\.status")


@dataclass(frozen=True)
class Program:
    """A profiled program.

    Attributes:
        pid: its process.
        name: the script or module, from the arguments.
        time_ns: time of the report, ns since the Unix epoch.
        step: number of its step; None before the first.
        steps_per_s: over the last two seconds; None before there are two steps.
        state: the profiler's activity.
        verdict: of the latest diagnosis, empty before one.
        region: the innermost region of its main thread, or else the region that another thread entered last, some 0.2 s
            ago. Empty without a region or recording.
    """

    pid: int
    name: str
    time_ns: int
    step: int | None
    steps_per_s: float | None
    state: str
    verdict: str
    region: str = ""

    @shown
    def __str__(self) -> str:
        """The program in a line."""
        step = "" if self.step is None else f"  step {self.step}"
        rate = "" if self.steps_per_s is None else f"  {self.steps_per_s:.3g} steps/s"
        region = f"  in {self.region}" if self.region else ""
        verdict = f"  verdict: {self.verdict}" if self.verdict else ""
        return f"{self.name} {self.pid}{step}{rate}{region}  {self.state}{verdict}"


def folder() -> Path:
    """The folder of this user's pages."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if own and os.path.isdir(own):
        return Path(own) / "gpuscope"
    return Path(f"/dev/shm/gpuscope-{os.geteuid()}")


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _namespace() -> int:
    """The namespace of process numbers; raises OSError if unknown."""
    return os.stat("/proc/self/ns/pid").st_ino


def _started(pid: int | str) -> int | None:
    """Start of a process in ticks since the machine started; None if it does not exist."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text[text.rindex(")") + 2 :].split()[19])
    return None


class StatusPage:
    """The page of this process. Methods never raise: without a page nothing is reported.

    The page must be closed before the process ends; readers remove the pages of killed processes. Any thread may write.
    The lock is reentrant: a signal handler may write while its thread writes, and then the outer write wins. It is only
    taken by `with`, as an interrupt cannot come in between.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = 0
        self._path: Path | None = None
        self._file = -1
        self._identity: os.stat_result | None = None  # of the file: the program may close every descriptor
        self._writes = 0
        self._due = 0.0
        self._points: deque[tuple[float, int]] = deque(maxlen=64)
        self._started = 0
        self._name = b""
        self._step = -1
        self._state = "not recording"
        self._verdict = ""

    def open(self, state: str) -> None:
        """Creates the page if there is none, and reports the profiler's activity."""
        self._state = state
        if OPT_OUT in os.environ:
            return
        if self._pid != os.getpid():  # no page yet, or the parent's
            with suppress(OSError, ValueError):
                self._make()
        self._write()

    def step(self, number: int, state: str) -> None:
        """Reports the begin of a step and the profiler's activity; most calls only look at the clock."""
        now = _core.monotonic_ns() / 1e9
        if now < self._due or self._identity is None:
            return
        self._step, self._state = number, state
        self._points.append((now, number))
        while len(self._points) > 2 and self._points[1][0] < now - _RATE_S:
            self._points.popleft()
        self._write(now)

    def say(self, state: str = "", verdict: str = "") -> None:
        """Reports the profiler's activity or a diagnosis's verdict."""
        self._state, self._verdict = state or self._state, verdict or self._verdict
        self._write()

    def close(self) -> None:
        """Removes the page."""
        if self._pid != os.getpid() or self._path is None:
            return
        path, self._path = self._path, None
        _core.hide_region()
        with self._lock:
            self._release()
        with suppress(OSError):
            path.unlink()
        self._pid = 0

    def _release(self) -> None:
        if self._is_there():
            os.close(self._file)
        self._identity = None

    def _is_there(self) -> bool:
        """Whether the descriptor is still the page's: the program may have closed it and opened another file."""
        with suppress(OSError):
            return self._identity is not None and os.path.samestat(os.fstat(self._file), self._identity)
        return False

    def _make(self) -> None:
        where, pid = folder(), os.getpid()
        started = _started("self")
        if started is None:
            return
        with suppress(FileExistsError):
            where.mkdir(mode=0o700)
        found = os.lstat(where)
        if not stat.S_ISDIR(found.st_mode) or not _is_ours(found):
            return
        path = where / f"{_namespace()}-{pid}-{started}.status"
        with suppress(FileNotFoundError):
            path.unlink()  # of a process of that number on another boot
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, _BYTES)
            _core.show_region(file, _REGION_AT)
        except BaseException:
            os.close(file)
            path.unlink()
            raise
        self._release()  # of a parent's
        self._file, self._identity, self._path, self._started = file, os.fstat(file), path, started
        self._name = (Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python").encode(errors="replace")
        self._step, self._verdict, self._lock = -1, "", threading.RLock()
        self._points.clear()
        self._pid = pid

    def _write(self, now: float | None = None) -> None:
        if self._pid != os.getpid():  # the lock may be held in a forked child
            return
        with self._lock, suppress(OSError):  # the file system may be full, where the file has been cut
            self._due = (_core.monotonic_ns() / 1e9 if now is None else now) + _EVERY_S
            first, last = (self._points[0], self._points[-1]) if self._points else ((0.0, 0), (0.0, 0))
            rate = (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else math.nan
            state, verdict = self._state.encode(errors="replace"), self._verdict.encode(errors="replace")
            facts = (self._pid, self._started, _core.realtime_ns(), self._step, rate, state, self._name, verdict)
            body = _BODY.pack(*facts)
            self._writes = (self._writes + 2) & 0xFFFFFFFF
            if self._is_there():
                os.pwrite(self._file, _HEAD.pack(_MARK, self._writes, zlib.crc32(body)) + body, 0)


status_page = StatusPage()


def programs(where: Path | None = None) -> list[Program]:
    """This user's programs that are profiled now, by process number; removes pages of ended processes.

    Pages of programs in other PID namespaces, such as other containers, are left alone. Never raises: any file that is
    not the page of a living process is left out.
    """
    where = folder() if where is None else where
    found: list[Program] = []
    with suppress(OSError):
        own = os.lstat(where)
        if not stat.S_ISDIR(own.st_mode) or not _is_ours(own):
            return []
        ours, started_of = f"{_namespace()}-", functools.cache(_started)
        matches = [match for match in map(_NAME.fullmatch, os.listdir(where)) if match and match[0].startswith(ours)]
        living = {*os.listdir("/proc")}  # after the names: a new process may be among them
        for match in matches:
            path, pid, started = where / match[0], match[2], match[3]
            if pid not in living or started != str(started_of(pid)):  # the process has ended
                _remove(path)
            elif (program := _read(path, int(pid), int(started))) is not None:
                found.append(program)
    return sorted(found, key=lambda program: program.pid)


def _remove(path: Path) -> None:
    with suppress(OSError):
        facts = os.lstat(path)
        if stat.S_ISREG(facts.st_mode) and _is_ours(facts):
            path.unlink()


def _read(path: Path, pid: int, started: int) -> Program | None:
    with suppress(OSError, ValueError, struct.error):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode) or not _is_ours(facts):
                return None
            for _ in range(3):  # it may be written while we read
                program = _parsed(os.pread(file, _BYTES, 0).ljust(_BYTES, b"\0"), pid, started)
                if program is not None:
                    return program
        finally:
            os.close(file)
    return None


def _parsed(data: bytes, pid: int, started: int) -> Program | None:
    """The program of a page; None if the page is damaged or half written."""
    mark, writes, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + _BODY.size]
    if mark != _MARK or writes % 2 or zlib.crc32(body) != checksum:
        return None
    its_pid, its_start, time_ns, step, rate, *texts = _BODY.unpack(body)
    if (its_pid, its_start) != (pid, started):
        return None
    state, name, verdict = (one_line(text.partition(b"\0")[0].decode(errors="replace")) for text in texts)
    is_rate = math.isfinite(rate) and rate >= 0
    steps_per_s = rate if is_rate else None
    return Program(pid, name, time_ns, step if step >= 0 else None, steps_per_s, state, verdict, _region(data))


def _region(data: bytes) -> str:
    """The region of a page; empty if half written."""
    checksum, text = _REGION.unpack_from(data, _REGION_AT)
    found = 2166136261
    for byte in text:
        found = (found ^ byte) * 16777619 & 0xFFFFFFFF
    return one_line(text.partition(b"\0")[0].decode(errors="replace")) if found == checksum else ""
