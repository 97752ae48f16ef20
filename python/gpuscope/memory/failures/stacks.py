# SPDX-License-Identifier: Apache-2.0
"""Call stacks as frames, and the line of the program in them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType

from gpuscope.memory.events import Frame

DEEPEST = 64
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", "<frozen ")


def of_error(error: BaseException) -> tuple[Frame, ...]:
    """Where an error was raised, and how the program came there; innermost frame first."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    frames = [_frame(each.tb_frame, each.tb_lineno) for each in reversed(entries)]
    outer = entries[0].tb_frame.f_back if entries else None
    return tuple(_without_own([*frames, *_outwards(outer)]))[:DEEPEST]


def of_caller() -> tuple[Frame, ...]:
    """Where the calling thread is, gpuscope left out; innermost frame first."""
    return tuple(_without_own(_outwards(sys._getframe(1))))[:DEEPEST]


def of_main_thread() -> tuple[Frame, ...]:
    """Where the main thread is; innermost frame first."""
    found = sys._current_frames().get(threading.main_thread().ident or 0)
    return tuple(_without_own(_outwards(found)))[:DEEPEST]


def where(frames: Iterable[Frame]) -> str:
    """The innermost line of the program itself, as "train.py:12 step"; of a library where there is none other."""
    known = list(frames)
    if not known:
        return ""
    chosen = next((frame for frame in known if not any(part in frame.file for part in _INSTALLED)), known[0])
    return f"{os.path.basename(chosen.file)}:{chosen.line} {chosen.function}"


def _outwards(frame: FrameType | None) -> Iterator[Frame]:
    while frame is not None:
        yield _frame(frame, frame.f_lineno)
        frame = frame.f_back


def _frame(frame: FrameType, line: int | None) -> Frame:
    code = frame.f_code
    return Frame(getattr(code, "co_qualname", code.co_name), code.co_filename, line or 0)


def _without_own(frames: Iterable[Frame]) -> Iterator[Frame]:
    return (frame for frame in frames if not frame.file.startswith(_OWN))
