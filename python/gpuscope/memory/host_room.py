# SPDX-License-Identifier: Apache-2.0
"""How much memory the host has left for this process, before it swaps or the process is killed."""

from __future__ import annotations

from pathlib import Path

from gpuscope.memory.kernel_files import figures

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


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    found = figures(root / "proc/meminfo")
    return found.get("MemAvailable"), found.get("MemTotal")


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
        return int(limit), used - figures(folder / "memory.stat").get(cache_name, 0)
    return None, None
