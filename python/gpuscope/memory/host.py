# SPDX-License-Identifier: Apache-2.0
"""The memory of the host that this process uses."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuscope import _core
from gpuscope.errors import GpuscopeError
from gpuscope.frameworks import cupy, torch_memory
from gpuscope.memory.allocation_watch import watched_pinned

_PINNED_UNKNOWN = (
    "no library here tells it, and allocations are not watched: gpuscope.record_memory_history() has them watched"
)

_UNLIMITED = 1 << 60  # control groups of version 1 write a number of this order for none

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FIELDS = 7  # of /proc/self/statm, see proc(5)
_highest = 0  # resident bytes before the kernel's figure began anew
_file: tuple[int, int] | None = None  # process and descriptor: opening it anew takes ten times as long as reading it


@dataclass(frozen=True)
class HostMemory:
    """Bytes of the host's memory.

    Attributes:
        resident_bytes: in physical memory now.
        peak_resident_bytes: the most that ever was.
        pinned_bytes: page-locked for the GPU, as far as known; None where that is not known.
        pinned_why: what is not counted in `pinned`, or why it is None.
    """

    resident_bytes: int
    peak_resident_bytes: int
    pinned_bytes: int | None
    pinned_why: str = ""


def host_memory() -> HostMemory:
    """What this process uses now. Takes some 0.1 ms; starts nothing."""
    now, peak = _resident()
    pinned, why = _pinned()
    return HostMemory(now, peak, pinned, why)


def _resident() -> tuple[int, int]:
    peak = peak_resident()
    if peak is None:  # not every container's /proc has it
        peak = highest_resident_bytes()
    now = resident()
    now = peak if now is None else now
    return now, max(now, peak, _highest)


def _pinned() -> tuple[int | None, str]:
    try:
        held = torch_memory.pinned_bytes()
    except Exception:
        held = None
    seen = watched_pinned()
    if seen is not None:
        pinned, from_start = seen
        # Torch may have pinned before the watch began.
        return max(pinned, held or 0), "" if from_start else "without what was pinned before the watch began"
    if held is not None:
        others = ", CuPy's pinned pool among it" if cupy.imported() is not None else ""
        return held, f"torch's alone: what other libraries pinned is not known{others}"
    return (None, _PINNED_UNKNOWN) if _uses_gpu() else (0, "")


def _uses_gpu() -> bool:
    try:
        return bool(_core.devices_in_use())
    except GpuscopeError:
        return False


def available_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Bytes that can still be taken without swapping, and bytes in all; None where the system does not report it.

    The least of /proc/meminfo's MemAvailable (proc(5)) and what each control group of the process leaves, as those of a
    container or of a batch system's job. Their file cache counts as free, as the kernel drops it first.
    """
    free, total = _meminfo(root)
    for limit, used in _groups(root):
        left = max(0, limit - used)
        free = left if free is None else min(free, left)
        total = limit if total is None else min(total, limit)
    return free, total


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    found = figures(root / "proc/meminfo")
    return found.get("MemAvailable"), found.get("MemTotal")


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of the control group that the process is in and of those around it, of version 2 or 1."""
    own = _own_groups(root)
    for folder, controller, limit_name, used_name, cache_name in (
        ("sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        path = own.get(controller, PurePosixPath())
        for group in (path, *path.parents):
            place = root / folder / group
            try:
                limit = (place / limit_name).read_text().strip()
                used = int((place / used_name).read_text())
            except (OSError, ValueError):
                continue  # the root has none, and a container sees its own as the root
            if limit.isdigit() and int(limit) < _UNLIMITED:
                yield int(limit), used - figures(place / "memory.stat").get(cache_name, 0)


def _own_groups(root: Path) -> dict[str, PurePosixPath]:
    """The path of the process's group by controller, "" for version 2; see cgroups(7)."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return {}
    parts = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    paths = {name: PurePosixPath(path.lstrip("/")) for _, names, path in parts for name in names.split(",")}
    return {name: path for name, path in paths.items() if ".." not in path.parts}  # it lies outside what can be seen


def resident_bytes() -> int:
    """Resident memory now (VmRSS), in bytes; the highest until now where there is no /proc."""
    global _file
    process = os.getpid()
    for _ in range(2):
        try:
            if _file is None or _file[0] != process:  # a child's descriptor is still about its parent
                _file = (process, os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC))
            fields = os.pread(_file[1], 128, 0).split()
            if len(fields) == _FIELDS:
                return int(fields[1]) * _PAGE
        except (OSError, ValueError):
            pass
        _file = None  # the program has closed it, and perhaps opened a file of its own under its number
    return highest_resident_bytes()


def highest_resident_bytes() -> int:
    """The highest resident memory until now, in bytes; of the program that started this one where that was more."""
    return max(_highest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def resident(root: Path = Path("/")) -> int | None:
    """Resident memory now (VmRSS), in bytes, as the kernel reports it; None where it does not. Takes some 30 us."""
    return _status(root).get("VmRSS")


def peak_resident(root: Path = Path("/")) -> int | None:
    """The most since `reset_peak_resident` or the process's begin (VmHWM), in bytes; None where there is no figure."""
    return _status(root).get("VmHWM")


def reset_peak_resident(root: Path = Path("/")) -> bool:
    """Lets `peak_resident` begin anew; False where the kernel does not allow it (proc(5), clear_refs).

    `highest_resident_bytes`, whose figure the kernel resets with it, goes on.
    """
    global _highest
    _highest = max(_highest, peak_resident(root) or 0)
    try:
        (root / "proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(root: Path) -> dict[str, int]:
    return figures(root / "proc/self/status")


def figures(path: Path) -> dict[str, int]:
    """Whole numbers by name, those in kB as bytes; empty where there is no such file."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return {}
    return {
        words[0].removesuffix(":"): int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
        for words in lines
        if len(words) > 1 and words[1].isdigit()
    }
