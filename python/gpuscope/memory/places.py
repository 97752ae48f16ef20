# SPDX-License-Identifier: Apache-2.0
"""Which line of a call stack is the program's own."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuscope import _core
from gpuscope.memory.events import Frame

NO_STACK = "no call stack"
NO_PYTHON_STACK = "a place without a Python stack"

_GPUSCOPE = str(Path(__file__).resolve().parents[1]) + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")
_SOURCE = (".py", ".pyw", ".pyx")
# What was typed or made of a text; a notebook's cell may also be a file of this suffix in a folder of its own.
_TYPED = ("<stdin>", "<string>", "<console>", "<input>", "<ipython-input", "<python-input", "<command-", "<doctest ")
_ELSEWHERE = re.compile(r"/lib/python3\.\d+t?/")  # the standard library of the machine that wrote a snapshot


def own_frame(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the program's own code; None without one.

    Args:
        stack: innermost frame first.
    """
    return next((frame for frame in stack if is_own(frame.file)), None)


def program_line(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the program's own code; without one the innermost of Python, else that of C++.

    None for a stack without frames other than gpuscope's.

    Args:
        stack: innermost frame first.
    """
    theirs = [frame for frame in stack if not is_ours(frame.file)]
    python = (frame for frame in theirs if is_python(frame.file))
    return own_frame(theirs) or next(python, theirs[0] if theirs else None)


def line_text(line: Frame | None, missing: str = NO_STACK) -> str:
    """A line as "train.py:12 step", the file without its folders; `missing` for None."""
    if line is None:
        return missing
    return f"{os.path.basename(line.file) or line.file}:{line.line} {line.function}"


def own_line_of(stack: int) -> str:
    """The program's own line of a stack of the core's, by its number, as `line_text`; empty for none."""
    return line_text(own_frame(Frame(*frame) for frame in _core.stack_frames(stack)), "") if stack else ""


def without_ours(stack: Iterable[Frame]) -> tuple[Frame, ...]:
    """A stack without gpuscope's own frames."""
    return tuple(frame for frame in stack if not is_ours(frame.file))


@functools.lru_cache(maxsize=4096)
def is_ours(file: str) -> bool:
    """Whether a file is gpuscope's."""
    return file.startswith(_GPUSCOPE)


@functools.lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Whether a file is the program's own: Python that is not installed; notebooks' cells and what was typed count."""
    if is_ours(file) or is_standard(file) or any(part in file for part in _INSTALLED):
        return False
    return file.startswith(_TYPED) if file.startswith("<") else is_python(file)


@functools.lru_cache(maxsize=4096)
def is_standard(file: str) -> bool:
    """Whether a file is of Python's standard library, frozen modules among it."""
    if any(part in file for part in _INSTALLED):
        return False
    return file.startswith(("<frozen ", *_standard_library())) or _ELSEWHERE.search(file) is not None


@functools.lru_cache(maxsize=4096)
def is_python(file: str) -> bool:
    """Whether a file has Python's code, and not the C++ that PyTorch's own stacks may show too."""
    name = os.path.basename(file)
    if "." in name or "/include/" in file:
        return name.endswith(_SOURCE) or file.startswith("<")
    # Scripts that are commands have no suffix; the interpreter stands for its own code.
    return name not in ("", "??", "python", "python3")


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return tuple({path + os.sep for path in paths if path})


def cached_lines(frames: Callable[[int], tuple[Frame, ...]]) -> Callable[[int], Frame | None]:
    """`program_line` by number of a stack, each looked up once; a lookup that fails gives None."""

    @functools.cache
    def line(stack: int) -> Frame | None:
        return program_line(frames_of(frames, stack))

    return line


def frames_of(frames: Callable[[int], tuple[Frame, ...]], stack: int) -> tuple[Frame, ...]:
    """A stack's frames; () for none, and where the lookup fails."""
    if not stack:
        return ()
    try:
        return tuple(frames(stack))
    except Exception:
        return ()
