# SPDX-License-Identifier: Apache-2.0
"""How much memory the host has left for this process, before it swaps or the process is killed."""

from __future__ import annotations

from pathlib import Path

_UNLIMITED = 1 << 60  # control groups of version 1 write a number of this order for none


def host_room(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Bytes that can still be taken without swapping, and bytes in all; None where the system does not tell.

    The least of /proc/meminfo's MemAvailable (proc(5)) and what the control group leaves, whose file cache counts as
    free, as the kernel drops it first.
    """
    free, total = _meminfo(root)
    limit, used = _group(root)
    if limit is not None and used is not None:
        left = max(0, limit - used)
        free = left if free is None else min(free, left)
        total = limit if total is None else min(total, limit)
    return free, total


def peak_resident(root: Path = Path("/")) -> int | None:
    """The most bytes this process had in the host's memory since `reset_peak`, or since it began."""
    return _status(root, "VmHWM")


def resident(root: Path = Path("/")) -> int | None:
    """Bytes this process has in the host's memory."""
    return _status(root, "VmRSS")


def reset_peak(root: Path = Path("/")) -> bool:
    """Lets `peak_resident` begin anew; False where the kernel does not allow it (proc(5), clear_refs)."""
    try:
        (root / "proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    figures = _figures(root / "proc/meminfo")
    return _kib(figures.get("MemAvailable:")), _kib(figures.get("MemTotal:"))


def _status(root: Path, name: str) -> int | None:
    return _kib(_figures(root / "proc/self/status").get(f"{name}:"))


def _group(root: Path) -> tuple[int | None, int | None]:
    """Limit and use of the control group that a container sees as its own, of version 2 or 1."""
    for folder, limit_name, used_name, cache_name in (
        (root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (folder / limit_name).read_text().strip()
            used = int((folder / used_name).read_text())
        except (OSError, ValueError):
            continue
        if not limit.isdigit() or int(limit) >= _UNLIMITED:
            return None, None
        cache = _figures(folder / "memory.stat").get(cache_name, "0")
        return int(limit), used - int(cache)
    return None, None


def _figures(path: Path) -> dict[str, str]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: words[1] for words in lines if len(words) > 1}


def _kib(text: str | None) -> int | None:
    return None if text is None else int(text) * 1024
