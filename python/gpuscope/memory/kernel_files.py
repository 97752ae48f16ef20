# SPDX-License-Identifier: Apache-2.0
"""The figures in files that Linux writes: /proc/meminfo, /proc/self/status, a control group's memory.stat."""

from __future__ import annotations

from pathlib import Path


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
