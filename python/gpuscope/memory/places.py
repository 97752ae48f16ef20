# SPDX-License-Identifier: Apache-2.0
"""The line of the program itself at which something happened."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from gpuscope import _core
from gpuscope.memory.events import Frame

_INSTALLED = ("site-packages", "dist-packages")
_OWN = str(Path(__file__).resolve().parents[1]) + os.sep
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


def place_of(stack: int) -> str:
    """Where a stack of the core's lies in the program's own code, as "train.py:12 step"; empty for none."""
    ask = getattr(_core, "stack_frames", None)
    return "" if ask is None or not stack else own_place(Frame(*frame) for frame in ask(stack))


def own_place(frames: Iterable[Frame]) -> str:
    """The innermost frame outside installed packages, the standard library and gpuscope; empty for none.

    Args:
        frames: innermost first.
    """
    for frame in frames:
        if _is_own(frame.file):
            return f"{Path(frame.file).name}:{frame.line} {frame.function}"
    return ""


def _is_own(file: str) -> bool:
    if file.startswith((_OWN, "<frozen")) or any(part in _INSTALLED for part in Path(file).parts):
        return False
    return not file.startswith(_STANDARD)
