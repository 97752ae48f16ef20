# SPDX-License-Identifier: Apache-2.0
"""Which line of the program, and which library, a piece of memory belongs to, from its call stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gpuscope.memory.events import Frame

_PACKAGES = ("/site-packages/", "/dist-packages/")
_STANDARD = tuple(f"{folder.rstrip('/')}/" for folder in {os.path.dirname(os.__file__), sys.prefix + "/lib/python"})
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/"
_ALLOCATORS = {"torch", "cupy", "rmm", "jax", "jaxlib"}  # every allocation passes through one of them

YOUR_CODE = "your code"
NO_STACK = "no call stack"


def program_line(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame that belongs to the program, not to a library; the innermost one where there is none.

    None for an empty stack.
    """
    return next((frame for frame in frames if not _package(frame.file)), frames[0] if frames else None)


def line_text(frame: Frame | None) -> str:
    """As "train.py:12 step"; "no call stack" for None."""
    return f"{os.path.basename(frame.file)}:{frame.line} {frame.function}" if frame else NO_STACK


def library(frames: Sequence[Frame]) -> str:
    """The library that asked for the memory: the innermost package that is no framework with an allocator of its own.

    "your code" for what is in no package; "no call stack" for an empty stack.
    """
    if not frames:
        return NO_STACK
    for frame in frames:
        package = _package(frame.file)
        if package not in _ALLOCATORS and package != "python":
            return package or YOUR_CODE
    return _package(frames[-1].file)


def _package(file: str) -> str:
    """The installed package that a file belongs to, "python" for the standard library, "" for the program's own."""
    path = file.replace("\\", "/")
    for folder in _PACKAGES:
        _, found, rest = path.rpartition(folder)
        if found:
            return rest.partition("/")[0].removesuffix(".py")
    if path.startswith(_OWN):
        return "gpuscope"
    if path.startswith("<") or path.startswith(_STANDARD) or "/lib/python3" in path:
        return "python"
    return ""
