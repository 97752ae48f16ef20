# SPDX-License-Identifier: Apache-2.0
"""Host memory of this process."""

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

_PINNED_UNKNOWN = "no library here reports it, and allocations are not watched: call gpuscope.record_memory_history()"

_UNLIMITED = 1 << 60  # control groups of version 1 write a number of this order for "no limit"

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FIELDS = 7  # of /proc/self/statm, see proc(5)
_highest = 0  # peak of resident bytes before the last reset of the kernel's figure
_file: tuple[int, int] | None = None  # process and open descriptor: opening takes ten times as long as reading


@dataclass(frozen=True)
class HostMemory:
    """Bytes of the host's memory.

    Attributes:
        resident_bytes: in physical memory now.
        peak_resident_bytes: the maximum since the process began.
        pinned_bytes: page-locked for the GPU; None if unknown.
        pinned_why: limits of `pinned_bytes`, or why it is None.
    """

    resident_bytes: int
    peak_resident_bytes: int
    pinned_bytes: int | None
    pinned_why: str = ""


def host_memory() -> HostMemory:
    """Host memory that this process uses now."""
    now, peak = _resident()
    pinned, why = _pinned()
    return HostMemory(now, peak, pinned, why)


def _resident() -> tuple[int, int]:
    peak = peak_resident()
    if peak is None:  # missing from /proc in some containers
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
        return max(pinned, held or 0), "" if from_start else "without memory pinned before the watch began"
    if held is not None:
        others = ", including CuPy's pinned pool" if cupy.imported() is not None else ""
        return held, f"torch's only: pinned memory of other libraries is unknown{others}"
    return (None, _PINNED_UNKNOWN) if _uses_gpu() else (0, "")


def _uses_gpu() -> bool:
    try:
        return bool(_core.devices_in_use())
    except GpuscopeError:
        return False


def available_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Bytes available without swapping, and total bytes; None if the system does not report them.

    The minimum over /proc/meminfo (MemAvailable, proc(5)) and each control group of the process, as of a container or
    a batch job. File cache counts as free, because the kernel drops it first.
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
    """Limit and use of the process's control group and of its ancestors, of version 2 or 1."""
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
                continue  # the root group has no limit; a container's own group appears as the root
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
    return {name: path for name, path in paths.items() if ".." not in path.parts}  # ".." is outside the visible tree


def resident_bytes() -> int:
    """Resident memory now (VmRSS), in bytes; the peak if there is no /proc."""
    global _file
    process = os.getpid()
    for _ in range(2):
        try:
            if _file is None or _file[0] != process:  # an inherited descriptor still reports the parent
                _file = (process, os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC))
            fields = os.pread(_file[1], 128, 0).split()
            if len(fields) == _FIELDS:
                return int(fields[1]) * _PAGE
        except (OSError, ValueError):
            pass
        _file = None  # the program has closed the descriptor, and may have reused its number
    return highest_resident_bytes()


def highest_resident_bytes() -> int:
    """Peak of resident memory, in bytes. May be that of the program that started this one, if it was higher."""
    return max(_highest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def resident(root: Path = Path("/")) -> int | None:
    """Resident memory now (VmRSS), in bytes; None if the kernel does not report it."""
    return _status(root).get("VmRSS")


def peak_resident(root: Path = Path("/")) -> int | None:
    """Peak since `reset_peak_resident` or the process's begin (VmHWM), in bytes; None if not reported."""
    return _status(root).get("VmHWM")


def reset_peak_resident(root: Path = Path("/")) -> bool:
    """Resets `peak_resident`; False if the kernel does not allow it (proc(5), clear_refs).

    The kernel also resets the figure behind `highest_resident_bytes`; that function keeps the old peak.
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
    """Integers by name, kB converted to bytes; empty if there is no such file."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return {}
    return {
        words[0].removesuffix(":"): int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
        for words in lines
        if len(words) > 1 and words[1].isdigit()
    }
