# SPDX-License-Identifier: Apache-2.0
"""Which line of a call stack is the program's own."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from gpuscope import _core
from gpuscope.memory.history.events import Frame

NO_STACK = "no call stack"
NO_PYTHON_STACK = "a place without a Python stack"
_GPUSCOPE = str(Path(__file__).resolve().parents[2]) + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")
_SOURCE = (".py", ".pyw", ".pyx")
# File names of code that was typed or compiled from a string. A notebook's cell may also be a real file.
_TYPED = ("<stdin>", "<string>", "<console>", "<input>", "<ipython-input", "<python-input", "<command-", "<doctest ")
_TIMED = "<timed "  # by IPython's %%time
# The standard library on the machine that wrote a snapshot: on Unix, or on Windows below a folder of Python or Conda.
_ELSEWHERE = re.compile(r"/lib(64)?/python3\.\d+t?/|\A[A-Z]:/.*(python|conda|/envs/)[^/]*/lib/", re.IGNORECASE)
# Files of torch.compile: a letter and a hash, in a folder named by the first two characters of the hash
# (torch._inductor.codecache).
_COMPILED = re.compile(r"/([a-z2-7]{2})/[a-z]\1[a-z2-7]{20,}\.py\Z")

_FRAMEWORKS = {"torch", "torchvision", "numpy", "cupy", "jax", "triton"}
_SCRIPTS = {
    "test.py",
    "code.py",
    "profile.py",
    "trace.py",
}  # also standard modules, but more often names of programs

DEEPEST = 64

YOUR_CODE = "your code"
CPP_CODE = "C++ code"
_PACKAGES = ("/site-packages/", "/dist-packages/")
_ALLOCATORS = {"torch", "cupy", "numpy", "rmm", "jax", "jaxlib"}  # every allocation passes through one of them


def program_frame(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the program's own code, or None. Stacks begin with the innermost frame."""
    return next((frame for frame in stack if is_program(frame.file)), None)


def program_line(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the program's own code, else of Python, else of C++.

    None if all frames are gpuscope's.
    """
    theirs = [frame for frame in stack if not is_gpuscope(frame.file)]
    python = (frame for frame in theirs if is_python(frame.file))
    return program_frame(theirs) or next(python, theirs[0] if theirs else None)


def line_text(line: Frame | None, missing: str = NO_STACK) -> str:
    """A line as "train.py:12 step", without folders; `missing` for None."""
    if line is None:
        return missing
    return f"{os.path.basename(unix_path(line.file)) or line.file}:{line.line} {line.function}"


def program_line_text(stack: int) -> str:
    """`line_text` of the program's own line in a stack of the core, given its number; "" for none."""
    return line_text(program_frame(Frame(*frame) for frame in _core.stack_frames(stack)), "") if stack else ""


def without_gpuscope(stack: Iterable[Frame]) -> tuple[Frame, ...]:
    """A stack without gpuscope's own frames."""
    return tuple(frame for frame in stack if not is_gpuscope(frame.file))


def unix_path(file: str) -> str:
    """A path with forward slashes. Snapshots may come from Windows."""
    return file.replace("\\", "/")


@functools.lru_cache(maxsize=4096)
def is_gpuscope(file: str) -> bool:
    """Whether a file is gpuscope's."""
    return file.startswith(_GPUSCOPE)


@functools.lru_cache(maxsize=4096)
def is_program(file: str) -> bool:
    """Whether a file is the program's own: Python that is not installed, notebook cells and typed code included.

    A relative path, as profilers write it, is classified by its first part: the imported module. Files that
    torch.compile generated are not the program's own.
    """
    file = unix_path(file)
    if is_gpuscope(file) or is_standard(file) or any(part in file for part in _INSTALLED) or _COMPILED.search(file):
        return False
    module = file.split("/", 1)[0].removesuffix(".py")
    if module in _FRAMEWORKS or (module in sys.stdlib_module_names and file not in _SCRIPTS):
        return False
    return file.startswith((*_TYPED, _TIMED)) if file.startswith("<") else is_python(file)


@functools.lru_cache(maxsize=4096)
def is_standard(file: str) -> bool:
    """Whether a file belongs to Python's standard library, including frozen modules."""
    file = unix_path(file)
    if any(part in file for part in _INSTALLED):
        return False
    return file.startswith(("<frozen ", *_standard_library())) or _ELSEWHERE.search(file) is not None


@functools.lru_cache(maxsize=4096)
def is_python(file: str) -> bool:
    """Whether a file contains Python code. PyTorch's own stacks may contain C++ frames too."""
    file = unix_path(file)
    name = os.path.basename(file)
    if "." in name or "/include/" in file:
        return name.endswith(_SOURCE) or file.startswith("<")
    # Commands are scripts without a suffix. The interpreter's name stands for its C code.
    return name not in ("", "??", "python", "python3")


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return tuple({path + os.sep for path in paths if path})


def cached_lines(frames: Callable[[int], tuple[Frame, ...]]) -> Callable[[int], Frame | None]:
    """`program_line` by stack number, cached; None if the lookup fails."""

    @functools.cache
    def line(stack: int) -> Frame | None:
        return program_line(frames_of(frames, stack))

    return line


def frames_of(frames: Callable[[int], tuple[Frame, ...]], stack: int) -> tuple[Frame, ...]:
    """A stack's frames; () for none or if the lookup fails."""
    if not stack:
        return ()
    try:
        return tuple(frames(stack))
    except Exception:
        return ()


def stack_of_error(error: BaseException) -> tuple[Frame, ...]:
    """The stack at which an error was raised, innermost frame first."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    frames = [_frame(each.tb_frame, each.tb_lineno) for each in reversed(entries)]
    outer = entries[0].tb_frame.f_back if entries else None
    return without_gpuscope([*frames, *_outwards(outer)])[:DEEPEST]


def stack_of_caller() -> tuple[Frame, ...]:
    """The stack of the calling thread without gpuscope's frames, innermost frame first."""
    return without_gpuscope(_outwards(sys._getframe(1)))[:DEEPEST]


def stack_of_main_thread() -> tuple[Frame, ...]:
    """The stack of the main thread without gpuscope's frames, innermost frame first."""
    found = sys._current_frames().get(threading.main_thread().ident or 0)
    return without_gpuscope(_outwards(found))[:DEEPEST]


def _outwards(frame: FrameType | None) -> Iterator[Frame]:
    while frame is not None:
        yield _frame(frame, frame.f_lineno)
        frame = frame.f_back


def _frame(frame: FrameType, line: int | None) -> Frame:
    code = frame.f_code
    return Frame(getattr(code, "co_qualname", code.co_name), code.co_filename, line or 0)


def library_of(frames: Sequence[Frame]) -> str:
    """The library that asked for the memory: the innermost package that is no framework with its own allocator.

    "your code" for the program's own files, "no call stack" for an empty stack, "C++ code" if all frames are C++.
    C++ frames are otherwise ignored.
    """
    if not frames:
        return NO_STACK
    packages = [_package(frame.file) for frame in frames if is_python(frame.file)]
    for package in packages:
        if package not in _ALLOCATORS and package != "python":
            return package or YOUR_CODE
    return packages[-1] if packages else CPP_CODE


def _package(file: str) -> str:
    """The installed package of a file, "python" for the standard library, "" for the program's own files."""
    path = unix_path(file)
    for folder in _PACKAGES:
        _, found, rest = path.rpartition(folder)
        if found:
            return rest.partition("/")[0].removesuffix(".py")
    if is_gpuscope(file):
        return "gpuscope"
    if _COMPILED.search(path):
        return "torch"
    return "python" if path.startswith("<") or is_standard(file) else ""
