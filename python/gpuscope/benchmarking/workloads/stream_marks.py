# SPDX-License-Identifier: Apache-2.0
"""Marks on a GPU's stream, and the times between them."""

from __future__ import annotations

import sys
from typing import Any

from gpuscope import _core, streams
from gpuscope.streams import Stream


class StreamMarks:
    """Takes the time on one stream by CUDA events.

    Args:
        stream: the stream whose work is timed.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def mark(self, again: _core.Event | None = None) -> _core.Event:
        """A point in the stream, behind all that it has been given; `again` is a mark no longer needed."""
        event = again or _core.Event(self.stream.device)
        event.record(self.stream.handle)
        return event

    def passed(self, mark: _core.Event) -> bool:
        """Whether the stream has come to the mark; does not wait."""
        return bool(mark.query())

    def seconds(self, begin: _core.Event, end: _core.Event) -> float:
        """Between two marks that the stream has passed."""
        return begin.elapsed_time(end) / 1000

    def synchronize(self) -> None:
        """Waits for all work on the device, whatever its stream."""
        _core.synchronize(self.stream.device)


def marks_of_device(device: str, ordinal: int | None, stream: object = None) -> StreamMarks | None:
    """Marks for a model on a device of torch, as "cuda"; None when that is no GPU."""
    return StreamMarks(streams.resolve(stream, ordinal)) if device == "cuda" else None


def marks_of_process(stream: object = None, device: int | None = None) -> StreamMarks | None:
    """Marks for any callable; None when this process has used no GPU, and neither stream nor device is given."""
    if stream is None and device is None and not _uses_a_gpu():
        return None
    return StreamMarks(streams.resolve(stream, device)) if _core.environment()["devices"] else None


def _uses_a_gpu() -> bool:
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return True
    return any(name in sys.modules for name in ("cupy", "jax", "numba.cuda", "cuda.bindings", "tensorflow"))
