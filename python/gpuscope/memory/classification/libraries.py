# SPDX-License-Identifier: Apache-2.0
"""Which library a piece of memory belongs to, from its call stack."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.memory.events import Frame
from gpuscope.memory.places import NO_STACK, is_ours, is_python, is_standard

YOUR_CODE = "your code"
CPP_CODE = "C++ code"

_PACKAGES = ("/site-packages/", "/dist-packages/")
_ALLOCATORS = {"torch", "cupy", "rmm", "jax", "jaxlib"}  # every allocation passes through one of them


def library(frames: Sequence[Frame]) -> str:
    """The library that asked for the memory: the innermost package that is no framework with an allocator of its own.

    "your code" for what is in no package; "no call stack" for an empty stack. Frames of C++ belong to no package: they
    are passed over, and "C++ code" where there are no others.
    """
    if not frames:
        return NO_STACK
    packages = [_package(frame.file) for frame in frames if is_python(frame.file)]
    for package in packages:
        if package not in _ALLOCATORS and package != "python":
            return package or YOUR_CODE
    return packages[-1] if packages else CPP_CODE


def _package(file: str) -> str:
    """The installed package that a file belongs to, "python" for the standard library, "" for the program's own."""
    path = file.replace("\\", "/")
    for folder in _PACKAGES:
        _, found, rest = path.rpartition(folder)
        if found:
            return rest.partition("/")[0].removesuffix(".py")
    if is_ours(file):
        return "gpuscope"
    return "python" if path.startswith("<") or is_standard(file) else ""
