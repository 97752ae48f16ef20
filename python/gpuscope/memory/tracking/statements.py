# SPDX-License-Identifier: Apache-2.0
"""The statements of `track_memory` as a chain: each one ends the stage that the one before it began."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from gpuscope.memory.tracking.peak_bounds import Peak, peak_until
from gpuscope.memory.tracking.peaks import PeakWatch, follow

if TYPE_CHECKING:
    from gpuscope.memory.tracking.reading import Reading

_lock = threading.RLock()
_latest: dict[int, Link] = {}  # by device


class Link(NamedTuple):
    """A statement's reading, and the watch that began with it."""

    reading: Reading
    watch: PeakWatch


def latest(device: int) -> Link | None:
    """The statement before one that is made now."""
    return _latest.get(device)


def end_stage(before: Link | None, now: Reading) -> Peak:
    """The peak since the statement before; the next stage begins at `now`.

    Args:
        before: what `latest` said when `now` was read.
        now: the statement's reading.
    """
    with _lock:
        peak = peak_until(now) if before is None else before.watch.until(before.reading, now)
        # Otherwise another statement was made and counted since this one was.
        if before is _latest.get(now.device):
            if before is not None:
                before.watch.end()
            _latest[now.device] = Link(now, follow(now))
    return peak


def forget() -> None:
    """The next statement of each device is a first one."""
    with _lock:
        links = list(_latest.values())
        _latest.clear()
    for link in links:
        link.watch.end()
