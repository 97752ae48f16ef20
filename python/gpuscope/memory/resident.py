# SPDX-License-Identifier: Apache-2.0
"""The resident memory of this process on the host."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from gpuscope.memory.kernel_files import figures

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FIELDS = 7  # of /proc/self/statm, see proc(5)
_file: tuple[int, int] | None = None  # process and descriptor: opening it anew takes ten times as long as reading it


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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident(root: Path = Path("/")) -> int | None:
    """Resident memory now (VmRSS), in bytes, as the kernel reports it; None where it does not. Takes some 30 us."""
    return _status(root).get("VmRSS")


def peak_resident(root: Path = Path("/")) -> int | None:
    """The most since `reset_peak` or since the process began (VmHWM), in bytes; None where the kernel does not tell."""
    return _status(root).get("VmHWM")


def reset_peak(root: Path = Path("/")) -> bool:
    """Lets `peak_resident` begin anew; False where the kernel does not allow it (proc(5), clear_refs)."""
    try:
        (root / "proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(root: Path) -> dict[str, int]:
    return figures(root / "proc/self/status")
