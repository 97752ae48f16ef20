# SPDX-License-Identifier: Apache-2.0
"""The processes on GPUs, or the user's without a GPU, as a table to sort and select from, and as a tree."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuscope import _core
from gpuscope.monitor.history import NO_GPU
from gpuscope.monitor.panels import DIM, PLAIN, TITLE, Line, cut, percent
from gpuscope.monitor.snapshot import GpuProcess, local_process, named_process
from gpuscope.text import one_line

_GIB = 1 << 30
_USER_WIDTH = 8
LEAST_S = 0.5  # least time of a CPU share: CPU time has ticks of 10 ms
_LOOKS_S = 0.9  # between scans of a user's processes: 2 ms of CPU time for 100
_USES_CPU, _PYTHONS = 0.01, ("python", "pypy")  # CPUs; names of programs

ProcessKey = tuple[int, int, str]
ProcessIdentity = tuple[int, str]


@dataclass(frozen=True)
class ProcessRow:
    """A process on a GPU, or of the user.

    Attributes:
        gpu: the GPU's number; `NO_GPU` if it was not looked for on a GPU.
        process: NVML's data, with command and user if visible.
        cpu_ratio: CPUs that it keeps busy, 1 for each; None if not visible, or before the second scan.
        resident_bytes: host memory that it uses.
        age_s: seconds since its start.
        parent: the number of its parent process.
        began: its start, in ticks since the machine started; empty if not visible.
    """

    gpu: int
    process: GpuProcess
    cpu_ratio: float | None = None
    resident_bytes: int | None = None
    age_s: float | None = None
    parent: int | None = None
    began: str = ""

    @property
    def key(self) -> ProcessKey:
        """Identifies a row in any order: process numbers are reused."""
        return self.gpu, *self.identity

    @property
    def identity(self) -> ProcessIdentity:
        """Identifies a process, independent of its GPUs."""
        return self.process.pid, self.began


# Letter after `o`, title, sort key. Largest first, except names and numbers.
SORTS: tuple[tuple[str, str, Callable[[ProcessRow], tuple[float | str, ...]]], ...] = (
    ("n", "gpu", lambda row: (row.gpu, row.process.pid)),
    ("p", "pid", lambda row: (row.process.pid,)),
    ("u", "user", lambda row: (row.process.user or "~",)),
    ("g", "memory", lambda row: (-(row.process.memory_bytes or -1),)),
    ("c", "cpu", lambda row: (-_or_less(row.cpu_ratio),)),
    ("m", "host", lambda row: (-_or_less(row.resident_bytes),)),
    ("t", "time", lambda row: (-_or_less(row.age_s),)),
)


BY_CPU = 4  # index of the default order without a GPU


def _or_less(value: float | None) -> float:
    return -1.0 if value is None else float(value)


@dataclass(frozen=True)
class _Spent:
    """CPU seconds at a moment, and the share of the time before it."""

    at_s: float
    cpu_s: float
    ratio: float | None = None


def _next(before: _Spent | None, now_s: float, cpu_s: float) -> _Spent:
    if before is None:
        return _Spent(now_s, cpu_s)
    passed_s = now_s - before.at_s
    return before if passed_s < LEAST_S else _Spent(now_s, cpu_s, (cpu_s - before.cpu_s) / passed_s)


class ProcessReader:
    """Reads processes from /proc; CPU shares are means over half a second or more. For one thread."""

    def __init__(self) -> None:
        self._named: dict[tuple[int, str], GpuProcess] = {}  # by number and when it began
        self._spent: dict[tuple[int, str], _Spent] = {}
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._of_user: list[ProcessRow] = []
        self._looked_s = -_LOOKS_S

    def of_user(self, least_s: float = _LOOKS_S) -> list[ProcessRow]:
        """This user's processes that run Python or use a CPU, at most `least_s` old; without this process."""
        if (now := _core.monotonic_ns() / 1e9) - self._looked_s >= least_s:
            self._looked_s = now
            rows = self.rows((NO_GPU, GpuProcess(pid, None)) for pid in _others_of_user())
            self._of_user = [
                row for row in rows if _command(row.process).startswith(_PYTHONS) or (row.cpu_ratio or 0.0) >= _USES_CPU
            ]
        return self._of_user

    def busiest(self) -> str:
        """The one that uses most CPU, in a line; empty without one."""
        row = max(self.of_user(), key=lambda row: row.cpu_ratio or 0.0, default=None)
        if row is None or (row.cpu_ratio or 0.0) < _USES_CPU:
            return ""
        return f"{percent(row.cpu_ratio)} {row.process.pid} {_command(row.process)}"

    def rows(self, processes: Iterable[tuple[int, GpuProcess]]) -> list[ProcessRow]:
        """The processes of GPUs by GPU number, or of none, with the host's data on them."""
        found: list[ProcessRow] = []
        seen: dict[tuple[int, str], GpuProcess] = {}
        spent: dict[tuple[int, str], _Spent] = {}
        for gpu, process in processes:
            fields = _stat(process.pid)
            began = fields[19] if fields else ""
            key = (process.pid, began)
            look_up = local_process if gpu == NO_GPU else named_process
            named = seen.get(key) or self._named.get(key) or look_up(process.pid, None)
            seen[key] = named
            shown = GpuProcess(process.pid, process.memory_bytes, named.command, named.user)
            if not fields or named.command is None:  # another process may have that number here
                found.append(ProcessRow(gpu, shown))
                continue
            now, cpu_s = _core.monotonic_ns() / 1e9, (int(fields[11]) + int(fields[12])) / self._ticks
            spent[key] = _next(self._spent.get(key), now, cpu_s)
            found.append(
                ProcessRow(
                    gpu,
                    shown,
                    cpu_ratio=spent[key].ratio,
                    resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
                    age_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / self._ticks),
                    parent=int(fields[1]),
                    began=began,
                )
            )
        self._named, self._spent = seen, spent
        return found


def _others_of_user() -> list[int]:
    found, user, own = [], os.geteuid(), os.getpid()
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        with suppress(OSError):  # it has ended
            if pid != own and os.stat(f"/proc/{pid}").st_uid == user:
                found.append(pid)
    return found


def sorted_rows(rows: Sequence[ProcessRow], sort: int, *, reverse: bool = False) -> list[ProcessRow]:
    """The rows in the order of `SORTS[sort]`; equal rows by GPU and number."""
    natural = sorted(rows, key=SORTS[0][2])
    return sorted(natural, key=SORTS[sort][2], reverse=reverse)


def as_tree(rows: Sequence[ProcessRow]) -> list[tuple[int, ProcessRow]]:
    """Each process under its parent, if that is in the list, with its depth."""
    numbers = {row.process.pid for row in rows}
    children: dict[int | None, list[ProcessRow]] = {}
    for row in rows:
        has_parent = row.parent in numbers and row.parent != row.process.pid
        children.setdefault(row.parent if has_parent else None, []).append(row)
    found: list[tuple[int, ProcessRow]] = []
    placed: set[int] = set()

    def place(parent: int | None, depth: int) -> None:
        for row in children.get(parent, ()):
            found.append((depth, row))
            if row.process.pid not in placed:
                placed.add(row.process.pid)
                place(row.process.pid, depth + 1)

    place(None, 0)
    return found


def process_lines(
    rows: Sequence[tuple[int, ProcessRow]],
    width: int,
    *,
    sort: int = 0,
    reverse: bool = False,
    selected: int | None = None,
    tagged: frozenset[ProcessIdentity] = frozenset(),
) -> list[Line]:
    """A header and a line for each row; ``>`` marks the selected row, ``*`` tagged ones."""
    on_gpus = not rows or rows[0][1].gpu != NO_GPU
    title = SORTS[sort][1]
    arrow = "^" if reverse else "v"

    def head(name: str, columns: int) -> str:
        return f"{name + arrow if name == title else name:>{columns}}"

    gpu, memory = (f"{head('gpu', 4)} ", head("memory", 8)) if on_gpus else ("", "")
    header = (
        f"  {gpu}{head('pid', 8)} {head('user', 0):<{_USER_WIDTH + 1}}{memory}"
        f" {head('cpu', 6)} {head('host', 7)} {head('time', 8)}  command"
    )
    lines: list[Line] = [cut([(header, TITLE)], width)]
    for at, (depth, row) in enumerate(rows):
        process = row.process
        mark = (">" if at == selected else " ") + ("*" if row.identity in tagged else " ")
        memory = "-" if process.memory_bytes is None else f"{process.memory_bytes / _GIB:.2f}G"
        gpu, memory = (f"{row.gpu:>4} ", f"{memory:>8}") if on_gpus else ("", "")
        host = "-" if row.resident_bytes is None else f"{row.resident_bytes / _GIB:.2f}G"
        cpu = percent(row.cpu_ratio)
        user = one_line(process.user or "-")[:_USER_WIDTH]
        command = "  " * depth + _command(process)
        facts = (
            f"{mark}{gpu}{process.pid:>8} {user:<{_USER_WIDTH + 1}}{memory} {cpu:>6} {host:>7} {_age(row.age_s):>8}  "
        )
        style = "reverse" if at == selected else PLAIN
        lines.append(cut([(facts, style), (command, style or (PLAIN if process.command else DIM))], width))
    return lines


def environment_of(pid: int) -> list[str]:
    """The sorted environment with which a process started; a sentence if it cannot be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        return [f"the environment of {pid} cannot be read: {error.strerror}"]
    return sorted(one_line(each) for each in data.decode(errors="replace").split("\0") if each)


def runs(process: ProcessIdentity) -> bool:
    """Whether the process still exists, and its number is not another's."""
    pid, began = process
    return _stat(pid)[19:20] == [began]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/N/stat from the third on; none if it cannot be read."""
    with suppress(OSError, ValueError):
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read().decode(errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        return fields if len(fields) > 21 else []
    return []


def _command(process: GpuProcess) -> str:
    """The command without the program's folders, which say less than its arguments."""
    program, blank, arguments = (process.command or "not to be seen from here").partition(" ")
    return one_line(program.rpartition("/")[2] + blank + arguments)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24}d{hours % 24:02}h" if hours >= 100 else f"{hours}:{minutes:02}:{left:02}"
