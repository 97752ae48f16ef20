# SPDX-License-Identifier: Apache-2.0
"""What is known of each rank of a job: its black box, its process, its collectives and its Python stacks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.errors import CorruptTrace, GpuscopeError, InvalidArgument
from gpuscope.paths import as_path
from gpuscope.watching.black_box import FILE_NAME, BlackBoxContent, RankCall, read_black_box
from gpuscope.watching.flight_recorder import is_flight_recorder, read_flight_recorder
from gpuscope.watching.ras import RasReport, is_ras, parse_ras
from gpuscope.watching.stacks import PythonThread, read_stacks

RUNNING, STOPPED, DEAD, ELSEWHERE = "running", "stopped", "dead", "on another machine"

_MOST_FILES = 100_000
_MOST_BYTES = 64 << 20
_DEEPEST = 6
_SNIFFED = 1 << 16
_RANK_IN_NAME = re.compile(r"rank[-_ ]?(\d{1,7})(?!.*rank)|(\d{1,7})$")


@dataclass
class RankEvidence:
    """What is known of a rank.

    Attributes:
        rank: its number; a process without a rank has its negative pid.
        box: None without a black box.
        state: of the process: RUNNING, STOPPED, DEAD, or ELSEWHERE where it cannot be known here; None without a box.
        entered: collectives of the black box, in order of entering.
        dumped: those of the Flight Recorder likewise.
        threads: Python stacks, the main thread first; empty without a text of them.
        dumped_ns: when the latest dump was written, in ns since 1970; None without dumps.
    """

    rank: int
    box: BlackBoxContent | None = None
    state: str | None = None
    entered: Sequence[RankCall] = ()
    dumped: Sequence[RankCall] = ()
    threads: Sequence[PythonThread] = ()
    dumped_ns: int | None = None
    _stacks_ns: int = 0

    @property
    def name(self) -> str:
        """The rank as a text."""
        return f"rank {self.rank}" if self.rank >= 0 else f"process {-self.rank}"


@dataclass
class JobEvidence:
    """All ranks by number, the reports of RAS, and a sentence for each file that could not be used.

    `folders` has the rank of each folder with a black box.
    """

    ranks: dict[int, RankEvidence] = field(default_factory=dict)
    ras: list[RasReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folders: dict[str, int] = field(default_factory=dict)

    def of(self, rank: int) -> RankEvidence:
        """The evidence of a rank, at first empty."""
        return self.ranks.setdefault(rank, RankEvidence(rank))


def gather(folder: str | os.PathLike[str]) -> JobEvidence:
    """Reads black boxes, dumps of the Flight Recorder, texts of RAS and Python stacks below a folder.

    Links are not followed. Files that are damaged, or that another user may have written, are left out and noted.

    Raises:
        InvalidArgument: it is no folder, another user's, writable by all without the sticky bit, or contains none of
            these files.
    """
    root = str(as_path(folder))
    try:
        if refusal := _distrust(os.lstat(root)):
            raise InvalidArgument(
                f"DIR is {root!r}, which {refusal}; accepted is a folder that only you and root write"
            )
    except OSError as error:
        raise InvalidArgument(f"DIR is {root!r}: {error.strerror}; accepted is a folder or HOST:28028") from None
    job = JobEvidence()
    paths = sorted(_files(root, job.notes), key=lambda path: path.name != FILE_NAME)  # black boxes name the ranks
    for path in paths:
        try:
            _read(path, job)
        except GpuscopeError as error:
            job.notes.append(str(error))
    if not job.ranks and not job.ras:
        why = f": {'; '.join(job.notes[:3])}" if job.notes else ""
        raise InvalidArgument(
            f"DIR is {root!r}, which has no readable black box, dump of the Flight Recorder, or stacks{why}"
        )
    return job


def _distrust(status: os.stat_result) -> str:
    """Why a folder's files are not to be believed; empty if they are."""
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX:
        return "all users can write"
    return ""


def _files(root: str, notes: list[str]) -> Iterator[Path]:
    seen, waiting = 0, [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            notes.append(f"cannot read {folder}: {error.strerror}")
            continue
        for entry in entries:
            seen += 1
            if seen > _MOST_FILES:
                notes.append(f"only the first {_MOST_FILES:,} files were read")
                return
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # it has gone
                continue
            if stat.S_ISDIR(status.st_mode) and depth < _DEEPEST:
                if refusal := _distrust(status):
                    notes.append(f"{entry.path} {refusal}")
                else:
                    waiting.append((entry.path, depth + 1))
            elif stat.S_ISREG(status.st_mode):
                if status.st_uid in (os.geteuid(), 0):
                    yield Path(entry.path)
                else:
                    notes.append(f"{entry.path} belongs to another user")
            elif entry.name == FILE_NAME:
                notes.append(f"{entry.path} is no regular file")


def _read(path: Path, job: JobEvidence) -> None:
    if path.name == FILE_NAME:
        _add_box(read_black_box(path), job)
        return
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            head = file.read(_SNIFFED) or b""  # None: it would block
            is_pickle, is_text = head[:1] in (b"\x80", b"{"), b"\0" not in head
            if not is_pickle and not is_text:
                return
            data = head + (file.read(_MOST_BYTES + 1 - len(head)) or b"")
    except OSError as error:
        job.notes.append(f"cannot read {path}: {error.strerror}")
        return
    if len(data) > _MOST_BYTES:
        if is_flight_recorder(data):
            job.notes.append(f"{path} has more than {_MOST_BYTES >> 20} MiB")
        return
    if is_pickle:
        if not is_flight_recorder(data):
            return
        if (rank := _rank_of(path, job)) is None:
            raise CorruptTrace(f"{path}: no rank is in its name, as nccl_trace_rank_3", str(path), 0)
        calls = read_flight_recorder(str(path), data)
        found = job.of(rank)
        if found.dumped_ns is None or status.st_mtime_ns > found.dumped_ns:
            found.dumped_ns, found.dumped = status.st_mtime_ns, calls
        return
    text = data.decode(errors="replace")
    if is_ras(text):
        job.ras.append(parse_ras(text, str(path)))
    elif (threads := read_stacks(text)) and (rank := _rank_of(path, job)) is not None:
        found = job.of(rank)
        if status.st_mtime_ns >= found._stacks_ns:
            found.threads, found._stacks_ns = threads, status.st_mtime_ns


def _add_box(box: BlackBoxContent, job: JobEvidence) -> None:
    job.notes += [f"{box.path}: {note}" for note in box.notes]
    rank = box.rank if box.rank is not None else -box.pid
    job.folders[os.path.dirname(box.path)] = rank
    old = job.of(rank).box
    if old is not None:
        job.notes.append(f"{job.of(rank).name} has several black boxes; the latest counts")
        if old.created_ns > box.created_ns:
            return
    job.ranks[rank] = RankEvidence(rank, box, process_state(box), box.collectives)


def process_state(box: BlackBoxContent) -> str:
    """The state of a black box's process, as far as this machine knows."""
    with contextlib.suppress(OSError):
        here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        if box.boot != here or box.pid_namespace != os.stat("/proc/self/ns/pid").st_ino:
            return ELSEWHERE
        try:
            fields = Path(f"/proc/{box.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return DEAD
        if fields[0] in "ZX" or int(fields[19]) != box.start_ticks:
            return DEAD
        return STOPPED if fields[0] in "Tt" else RUNNING
    return ELSEWHERE


def _rank_of(path: Path, job: JobEvidence) -> int | None:
    """The rank that a file is about: of the black box next to it, of a dump's why.json, or in its name."""
    if (known := job.folders.get(str(path.parent))) is not None:
        return known
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        why = path.parent / "why.json"
        if why.is_file() and not why.is_symlink() and why.stat().st_size < _MOST_BYTES:
            facts = json.loads(why.read_bytes())
            rank, pid = facts.get("rank"), facts.get("pid")
            if isinstance(pid, int) and -pid in job.ranks:  # a program without ranks
                return -pid
            if isinstance(rank, int) and 0 <= rank < 1 << 24:
                return rank
    for name in (path.name.partition(".")[0], path.parent.name.partition(".")[0]):
        if match := _RANK_IN_NAME.search(name):
            return int(match[1] or match[2])
    return None
