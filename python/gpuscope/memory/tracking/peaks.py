# SPDX-License-Identifier: Apache-2.0
"""The highest memory use inside a stage, without waiting for the GPU.

Where torch reports its allocations to gpuscope, the highest figure it reports is taken. Where it does not, torch's own
peak counter is restarted when a stage begins, and what it said until then is kept for the stages that are open; the
program's own `torch.cuda.max_memory_allocated` then tells of the time since the last stage began.
"""

from __future__ import annotations

import contextlib
import sys
import threading

from gpuscope import _core
from gpuscope.memory.events import HOST
from gpuscope.memory.ordinals import ordinal_of
from gpuscope.memory.reports import torch_reports
from gpuscope.memory.tracking.peak_bounds import Peak, Span, peak_between
from gpuscope.memory.tracking.reading import Reading, Usage, read_torch

_lock = threading.RLock()
_open: dict[int, list[PeakWatch]] = {}  # by device


class PeakWatch:
    """Watches one device's memory until `end`; made by `watch` and `follow`. Any thread may end it."""

    def __init__(self, device: int, span: Span | None, reports: _Reports | None = None) -> None:
        self._device = device
        self._span = span
        self._reports = reports

    def until(self, before: Reading, after: Reading) -> Peak:
        """The peak until now; the watch goes on.

        Args:
            before: what was read when it began.
            after: what was read now.
        """
        with _lock:
            return peak_between(before, after, self._span, self._reports.highest() if self._reports else None)

    def end(self) -> None:
        """Ends it; `until` has to be asked before."""
        with _lock:
            if self in _open.get(self._device, ()):
                _open[self._device].remove(self)
            reports, self._reports = self._reports, None
        if reports is not None:
            reports.end()

    def fold(self, now: Usage) -> None:
        """Keeps what torch's counter said: it has just been restarted. Under the lock."""
        self._span = self._span or Span(0, fresh=False)  # there is none when torch had not begun then
        self._span.fold(now)
        self._span.restarted(now.allocated)


def watch(device: int) -> PeakWatch:
    """Begins to watch a device, by torch's reports or else by restarting torch's counter.

    The peak is then known, however high the program's memory went before.

    Args:
        device: ordinal of the GPU, or HOST.
    """
    reports = _reports(device)
    now = None if device == HOST else _quietly_read(device)
    with _lock:
        span = None
        if now is not None:
            restarted = reports is None and _restart(device, now)
            span = Span(now.allocated if restarted else now.peak or 0, fresh=restarted)
        return _opened(PeakWatch(device, span, reports))


def follow(reading: Reading) -> PeakWatch:
    """Begins at a reading, and only reads torch's counter: the peak is known whenever it is a new one."""
    floor = next((usage.peak or 0 for usage in reading.usages if usage.library == "torch"), None)
    with _lock:
        return _opened(PeakWatch(reading.device, None if floor is None else Span(floor, fresh=False)))


def reset_peak(device: object = None) -> None:
    """Restarts the peak counters of a device: torch's, as torch.cuda.reset_peak_memory_stats does.

    Stages that are open keep the peak that they have seen. CuPy counts no peaks, and JAX's cannot be restarted.

    Args:
        device: None for the current GPU, an ordinal, ``"cuda:1"`` or a ``torch.device``. On the host nothing is done.

    Raises:
        InvalidArgument: `device` is no device.
        NotAvailable: this process has GPUs, but not this one.
    """
    ordinal = ordinal_of(device)
    now = None if ordinal == HOST else _quietly_read(ordinal)
    if now is not None:
        with _lock:
            _restart(ordinal, now)


def _opened(watch: PeakWatch) -> PeakWatch:
    _open.setdefault(watch._device, []).append(watch)
    return watch


def _restart(device: int, now: Usage) -> bool:
    """Restarts torch's peak counter, and keeps for the open watches what it said. Under the lock."""
    try:
        sys.modules["torch"].cuda.reset_peak_memory_stats(device)
    except Exception:
        return False
    for watch in _open.get(device, ()):
        watch.fold(now)
    return True


def _quietly_read(device: int) -> Usage | None:
    try:
        return read_torch(device)
    except Exception:  # an allocator that does not count
        return None


class _Reports:
    """The highest use that torch reports while this lives."""

    def __init__(self, peak: _core.PeakMemory) -> None:
        self._peak = peak
        self._thread = threading.get_ident()

    def highest(self) -> int:
        """Bytes; 0 before the first report."""
        return self._peak.bytes or 0

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self._peak.close()
        # They are counted by thread: on another one than they were acquired on, it would be another stage's that end.
        if self._thread == threading.get_ident():
            with contextlib.suppress(Exception):
                torch_reports.release()


def _reports(device: int) -> _Reports | None:
    if device == HOST or "torch" not in sys.modules:
        return None
    try:
        if torch_reports.acquire():
            return None
    except Exception:
        return None
    try:
        return _Reports(_core.PeakMemory(device))
    except Exception:
        torch_reports.release()
        return None
