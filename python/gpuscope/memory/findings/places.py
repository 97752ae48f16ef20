# SPDX-License-Identifier: Apache-2.0
"""Which line of a call stack is the program's own."""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

from gpuscope.memory.events import Frame

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of(stack: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame of the program's own code, neither installed nor Python's own.

    Where every frame is installed, the innermost that is not gpuscope's. None for a stack without frames.
    """
    theirs = [frame for frame in stack if not is_ours(frame.file)]
    return next((frame for frame in theirs if is_own(frame.file)), theirs[0] if theirs else None)


def without_ours(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """A stack without gpuscope's own frames."""
    return tuple(frame for frame in stack if not is_ours(frame.file))


@functools.lru_cache(maxsize=4096)
def is_ours(file: str) -> bool:
    """Whether a file is gpuscope's."""
    return file.startswith(_OURS)


@functools.lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Whether a file is the program's own: notebooks' cells and what was typed count, installed packages do not."""
    if file.startswith("<frozen ") or is_ours(file):
        return False
    return not any(part in file for part in _INSTALLED) and not file.startswith(_standard_library())


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return tuple({path + os.sep for path in paths if path})


def cached_places(frames: Callable[[int], tuple[Frame, ...]]) -> Callable[[int], Frame | None]:
    """`place_of` by number of a stack, each looked up once; a lookup that fails gives None."""

    @functools.cache
    def place(stack: int) -> Frame | None:
        return place_of(frames_of(frames, stack))

    return place


def frames_of(frames: Callable[[int], tuple[Frame, ...]], stack: int) -> tuple[Frame, ...]:
    """A stack's frames; () for none, and where the lookup fails."""
    if not stack:
        return ()
    try:
        return tuple(frames(stack))
    except Exception:
        return ()


def line_text(place: Frame | None) -> str:
    """A place as "train.py:12 step"; the file without its folders."""
    if place is None:
        return "a place without a Python stack"
    return f"{os.path.basename(place.file) or place.file}:{place.line} {place.function}"
