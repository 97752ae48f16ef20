# SPDX-License-Identifier: Apache-2.0
"""One timed block: two events on a stream, two readings of the host's clock, and the end event's host time."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from dataclasses import dataclass

from gpuscope import _core, streams
from gpuscope.devices import why_no_gpu
from gpuscope.errors import GpuscopeError
from gpuscope.threads import shared_lock

_ANCHOR_AGE_NS = 1_000_000_000  # until it is renewed
# How long to wait for a GPU to answer: while the program runs, and while it waits for the result anyway.
_SHORT_WAIT_NS = 200_000
_LONG_WAIT_NS = 20_000_000
_RETRY_NS = 100_000_000  # after a short wait that failed, so that they cost 0.2 % at most
# Drift between the clocks of a GPU and its host: crystals of 50 ppm on either side.
_DRIFT = 1e-4

_CAPTURING = "the stream was being captured into a CUDA graph, whose work does not run now"
_NO_ANCHOR = "the GPU's clock could not be compared with the host's: it did not answer in time"

_MOST_UNREAD = 1024


@dataclass(frozen=True)
class Anchor:
    """An event of a device, and when it happened."""

    event: _core.Event
    host_ns: int  # the event's time on the clock of time.perf_counter_ns()
    error_ns: int  # how far that may be wrong

    def place(self, event: _core.Event) -> tuple[int, int]:
        """Time of another event that the GPU has reached, and how far it may be wrong, both in ns."""
        milliseconds = self.event.elapsed_time(event)
        # The driver returns a float of 24 bits, in steps of about half a microsecond.
        error = self.error_ns + 500 + abs(milliseconds) * 1e6 * (_DRIFT + 2**-24)
        return self.host_ns + round(milliseconds * 1e6), round(error)


class _Anchors:
    """The latest anchor of each device. Any thread."""

    def __init__(self) -> None:
        self._lock = shared_lock()
        self._sources: dict[int, _core.HostAnchors] = {}
        self._latest: dict[int, Anchor] = {}
        self._failed_ns: dict[int, int] = {}  # when a device last did not answer

    def recent(self, device: int, wait_ns: int) -> Anchor | None:
        """An anchor of the last second; None when the GPU does not answer in `wait_ns`."""
        with self._lock:
            now_ns = _core.monotonic_ns()
            source = self._sources.get(device)
            if source is not None and source.was_reset():
                del self._sources[device]
                self._latest.pop(device, None)
            latest = self._latest.get(device)
            if latest is not None and now_ns - latest.host_ns < _ANCHOR_AGE_NS:
                return latest
            if wait_ns == _SHORT_WAIT_NS and now_ns - self._failed_ns.get(device, -_RETRY_NS) < _RETRY_NS:
                return None
            if device not in self._sources:
                self._sources[device] = _core.HostAnchors(device)
            taken = self._sources[device].take(wait_ns)
            if taken is None:
                self._failed_ns[device] = now_ns
                return None
            self._latest[device] = Anchor(*taken)
            return self._latest[device]


_anchors = _Anchors()


@dataclass(frozen=True)
class Times:
    """Times of one block, in seconds; None if not known, see `why`."""

    launch: float
    gpu: float | None
    wall: float | None
    wall_error: float | None
    why: str


class Measurement:
    """Begins at construction. `stop` ends it without waiting; `result` waits. One thread; after `stop` any."""

    def __init__(self, stream: object = None) -> None:
        resolved = streams.resolve(stream)
        self._handle = resolved.handle
        self._device = resolved.device
        self._start: _core.Event | None = None
        self._end: _core.Event | None = None
        self._anchor: Anchor | None = None
        self._result: Times | None = None
        self.launch = 0.0  # seconds on the host
        self._on_cpu = bool(why_no_gpu())
        self._why = why_no_gpu()
        if not self._on_cpu:
            self._start = self._mark()
        self._began_ns = _core.monotonic_ns()

    def stop(self) -> None:
        """Ends the block. Raises nothing: `Times.why` names a broken GPU."""
        self.launch = (_core.monotonic_ns() - self._began_ns) / 1e9
        if self._start is None:
            return
        self._end = self._mark()
        if self._end is not None:
            self._anchor = self._find_anchor(_SHORT_WAIT_NS)

    @property
    def ready(self) -> bool:
        """Whether `result` would not wait."""
        end = self._end
        if end is None or self._result is not None:
            return True
        try:
            return end.query()
        except GpuscopeError:
            return True

    def result(self) -> Times:
        """The block's times; waits for the end of its work on the GPU."""
        start, end, anchor = self._start, self._end, self._anchor  # another thread's `result` may clear them
        if self._result is None:
            self._result = self._read(start, end, anchor)
            self._start = self._end = self._anchor = None
        return self._result

    def _mark(self) -> _core.Event | None:
        try:
            event = _core.Event(self._device)
            if not event.record(self._handle, into_graphs=False):
                self._why = _CAPTURING
                return None
        except GpuscopeError as error:
            self._why = str(error)
            return None
        return event

    def _find_anchor(self, wait_ns: int) -> Anchor | None:
        try:
            return _anchors.recent(self._device, wait_ns)
        except GpuscopeError as error:
            self._why = str(error)
            return None

    def _read(self, start: _core.Event | None, end: _core.Event | None, anchor: Anchor | None) -> Times:
        launch = self.launch
        if self._on_cpu:
            return Times(launch, None, launch, 0.0, self._why)
        if start is None or end is None:
            return Times(launch, None, None, None, self._why)
        try:
            end.synchronize()
            gpu = start.elapsed_time(end) / 1e3
            anchor = anchor or self._find_anchor(_LONG_WAIT_NS)
            if anchor is None:
                return Times(launch, gpu, None, None, self._why or _NO_ANCHOR)
            end_ns, error_ns = anchor.place(end)
        except GpuscopeError as error:
            return Times(launch, None, None, None, str(error))
        return Times(launch, gpu, (end_ns - self._began_ns) / 1e9, error_ns / 1e9, "")


class Steps:
    """A region entered once per step of a coroutine call; its times are sums over the steps. One thread at a time."""

    def __init__(self, stream: object) -> None:
        self._stream = stream
        self._current: Measurement | None = None
        self._unread: deque[Measurement] = deque()
        why = why_no_gpu()
        self._read = Times(0.0, None if why else 0.0, 0.0, 0.0, why)
        self.launch = 0.0  # seconds on the host

    def __enter__(self) -> None:
        self._current = Measurement(self._stream)

    def __exit__(self, *exception: object) -> None:
        assert self._current is not None
        self._current.stop()
        self.launch += self._current.launch
        self._unread.append(self._current)
        self._current = None
        while self._unread and self._unread[0].ready:
            self._read = _added(self._read, self._unread[0].result())
            self._unread.popleft()
        if len(self._unread) > _MOST_UNREAD:
            self._unread.popleft()
            why = f"more than {_MOST_UNREAD} of a coroutine's steps waited for the GPU at once"
            self._read = dataclasses.replace(self._read, gpu=None, wall=None, wall_error=None, why=why)

    @property
    def ready(self) -> bool:
        """Whether `result` would not wait."""
        return all(step.ready for step in self._unread)

    def result(self) -> Times:
        """The sums; waits for the end of the steps' work on the GPU."""
        return functools.reduce(_added, (step.result() for step in self._unread), self._read)


def _added(sums: Times, times: Times) -> Times:
    return Times(
        launch=sums.launch + times.launch,
        gpu=_sum(sums.gpu, times.gpu),
        wall=_sum(sums.wall, times.wall),
        wall_error=_sum(sums.wall_error, times.wall_error),
        why=times.why or sums.why,
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
