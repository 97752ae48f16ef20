# SPDX-License-Identifier: Apache-2.0
"""One timed block: two events on a stream and two readings of the host's clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpuscope import _core, streams
from gpuscope.errors import GpuscopeError
from gpuscope.timing.hardware import Anchor, recent_anchor, why_no_gpu

_CAPTURING = "the stream was being captured into a CUDA graph, whose work does not run now"
_NO_ANCHOR = "the GPU's clock could not be compared with the host's: it did not answer in time"


@dataclass(frozen=True)
class Times:
    """What one block took, in seconds; None where `why` says that it is not known."""

    launch: float
    gpu: float | None
    wall: float | None
    wall_error: float | None
    why: str


class Measurement:
    """Begins when made. `stop` ends it without waiting; `result` waits. One thread at a time."""

    def __init__(self, stream: object = None) -> None:
        resolved = streams.resolve(stream)
        self._handle = resolved.handle
        self._device = resolved.device
        self._start: _core.Event | None = None
        self._end: _core.Event | None = None
        self._anchor: Anchor | None = None
        self._result: Times | None = None
        self._launch_ns = 0
        self._on_cpu = bool(why_no_gpu())
        self._why = why_no_gpu()
        if not self._on_cpu:
            self._start = self._mark()
        self._began_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """Ends the block. Raises nothing: a broken GPU is told of by `Times.why`."""
        self._launch_ns = time.perf_counter_ns() - self._began_ns
        if self._start is None:
            return
        self._end = self._mark()
        if self._end is not None:
            self._anchor = self._find_anchor()

    @property
    def launch(self) -> float:
        """Seconds that the block took on the host."""
        return self._launch_ns / 1e9

    @property
    def ready(self) -> bool:
        """Whether `result` would not wait."""
        if self._end is None or self._result is not None:
            return True
        try:
            return self._end.query()
        except GpuscopeError:
            return True

    def result(self) -> Times:
        """What the block took; waits for the end of its work on the GPU."""
        if self._result is None:
            self._result = self._read()
            self._start = self._end = self._anchor = None
        return self._result

    def _mark(self) -> _core.Event | None:
        try:
            event = _core.Event(self._device)
            if event.would_be_captured(self._handle):
                self._why = _CAPTURING
                return None
            event.record(self._handle)
        except GpuscopeError as error:
            self._why = str(error)
            return None
        return event

    def _find_anchor(self) -> Anchor | None:
        try:
            return recent_anchor(self._device)
        except GpuscopeError as error:
            self._why = str(error)
            return None

    def _read(self) -> Times:
        launch = self.launch
        if self._on_cpu:
            return Times(launch, None, launch, 0.0, self._why)
        if self._start is None or self._end is None:
            return Times(launch, None, None, None, self._why)
        try:
            self._end.synchronize()
            gpu = self._start.elapsed_time(self._end) / 1e3
            anchor = self._anchor or self._find_anchor()
            if anchor is None:
                return Times(launch, gpu, None, None, self._why or _NO_ANCHOR)
            end_ns, error_ns = anchor.place(self._end)
        except GpuscopeError as error:
            return Times(launch, None, None, None, str(error))
        return Times(launch, gpu, (end_ns - self._began_ns) / 1e9, error_ns / 1e9, "")
