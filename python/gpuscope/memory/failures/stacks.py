# SPDX-License-Identifier: Apache-2.0
"""Call stacks as frames."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

from gpuscope.memory.events import Frame
from gpuscope.memory.places import without_ours

DEEPEST = 64


def of_error(error: BaseException) -> tuple[Frame, ...]:
    """Where an error was raised, and how the program came there; innermost frame first."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    frames = [_frame(each.tb_frame, each.tb_lineno) for each in reversed(entries)]
    outer = entries[0].tb_frame.f_back if entries else None
    return without_ours([*frames, *_outwards(outer)])[:DEEPEST]


def of_caller() -> tuple[Frame, ...]:
    """Where the calling thread is, gpuscope left out; innermost frame first."""
    return without_ours(_outwards(sys._getframe(1)))[:DEEPEST]


def of_main_thread() -> tuple[Frame, ...]:
    """Where the main thread is; innermost frame first."""
    found = sys._current_frames().get(threading.main_thread().ident or 0)
    return without_ours(_outwards(found))[:DEEPEST]


def _outwards(frame: FrameType | None) -> Iterator[Frame]:
    while frame is not None:
        yield _frame(frame, frame.f_lineno)
        frame = frame.f_back


def _frame(frame: FrameType, line: int | None) -> Frame:
    code = frame.f_code
    return Frame(getattr(code, "co_qualname", code.co_name), code.co_filename, line or 0)
