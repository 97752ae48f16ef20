# SPDX-License-Identifier: Apache-2.0
"""Whether there is a GPU to time, and where its events lie on the host's clock."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass

from gpuscope import _core
from gpuscope.errors import GpuscopeError

_FRESH_SECONDS = 1.0
_TIMEOUT_NS = 200_000
# What the clocks of a GPU and its host may drift apart: crystals of 50 ppm on either side.
_DRIFT = 1e-4


@functools.cache
def why_no_gpu() -> str:
    """Why nothing can be timed on a GPU; empty when there is one. Makes no CUDA context."""
    try:
        _core.find_device(0)
    except GpuscopeError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Anchor:
    """An event of a device, and when it happened.

    Attributes:
        event: the event.
        host_ns: its time on the clock of ``time.perf_counter_ns()``.
        error_ns: how far that may be wrong.
    """

    event: _core.Event
    host_ns: int
    error_ns: int

    def place(self, event: _core.Event) -> tuple[int, int]:
        """Time of another event that the GPU has reached, and how far it may be wrong, both in ns."""
        milliseconds = self.event.elapsed_time(event)
        # The driver returns a float of 24 bits, in steps of about half a microsecond.
        error = self.error_ns + 500 + abs(milliseconds) * 1e6 * (_DRIFT + 2**-24)
        return self.host_ns + round(milliseconds * 1e6), round(error)


class _Anchors:
    """The latest anchor of each device. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[int, _core.HostAnchors] = {}
        self._latest: dict[int, Anchor] = {}

    def recent(self, device: int) -> Anchor | None:
        """An anchor of the last second; None when the GPU does not answer at once."""
        with self._lock:
            latest = self._latest.get(device)
            if latest is not None and time.perf_counter_ns() - latest.host_ns < _FRESH_SECONDS * 1e9:
                return latest
            if device not in self._sources:
                self._sources[device] = _core.HostAnchors(device)
            taken = self._sources[device].take(_TIMEOUT_NS)
            if taken is None:
                return None
            self._latest[device] = Anchor(*taken)
            return self._latest[device]


recent_anchor = _Anchors().recent
