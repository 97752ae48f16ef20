# SPDX-License-Identifier: Apache-2.0
"""Reads Python stacks as text, of faulthandler and of `py-spy dump`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os.path import basename

_FAULTHANDLER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-fA-F]+)(?: \[.*?\])? \(most recent call first\)")
_FAULTHANDLER_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_PY_SPY = re.compile(r"Thread (?:0x)?([0-9a-fA-F]+) \(([a-z+]+)\)")
_PY_SPY_FRAME = re.compile(r"    (.+) \((.+):(\d+)\)")
_MOST_THREADS, _MOST_FRAMES = 4096, 256
_LIBRARY = re.compile(r"/(?:lib/python[\d.]+|site-packages|dist-packages)/|^<")
_GPUSCOPE = re.compile(r"/gpuscope/(?:watching|profiler|cli)/")  # it dumps the stack, or runs the program
_LOADER = re.compile(r"torch/utils/data/(?:dataloader|_utils/)|tensorflow/python/data/|/dataloaders?\.py$")


@dataclass(frozen=True)
class PythonFrame:
    """A call: file, line and function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{basename(self.file)}:{self.line} in {self.function}"


@dataclass(frozen=True)
class PythonThread:
    """A thread's frames, innermost first; `has_gil` only if the text says so."""

    has_gil: bool
    frames: tuple[PythonFrame, ...]

    @property
    def place(self) -> PythonFrame | None:
        """The innermost frame of the program's own code, else the innermost one outside of gpuscope."""
        others = [frame for frame in self.frames if not _GPUSCOPE.search(frame.file)]
        own = (frame for frame in others if not _LIBRARY.search(frame.file))
        return next(own, others[0] if others else None)

    @property
    def waits_for_loader(self) -> bool:
        """Whether a data loader is among the frames."""
        return any(_LOADER.search(frame.file) for frame in self.frames)


def read_stacks(text: str) -> list[PythonThread]:
    """The threads of a text, the main thread first; empty if it has none."""
    found: list[tuple[bool, list[PythonFrame]]] = []
    is_py_spy = False
    for line in text.splitlines():
        if len(found) > _MOST_THREADS:
            break
        if _FAULTHANDLER.match(line):
            found.append((False, []))
        elif match := _PY_SPY.match(line):
            is_py_spy = True
            found.append(("gil" in match[2].split("+"), []))
        elif found and len(found[-1][1]) < _MOST_FRAMES:
            if match := _FAULTHANDLER_FRAME.match(line):
                found[-1][1].append(PythonFrame(match[1], int(match[2][:9]), match[3]))
            elif match := _PY_SPY_FRAME.match(line):
                found[-1][1].append(PythonFrame(match[2], int(match[3][:9]), match[1]))
    threads = [PythonThread(has_gil, tuple(frames)) for has_gil, frames in found]
    return threads if is_py_spy else threads[::-1]  # faulthandler begins with the newest thread
