# SPDX-License-Identifier: Apache-2.0
"""Peak memory of a stage, without waiting for the GPU.

The peak comes from torch's reports of allocations to gpuscope. Without them, torch's own peak counter is reset when a
stage begins, and its value is kept for the open stages. The program's `torch.cuda.max_memory_allocated` is then the
peak since the last stage began.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import NamedTuple

from gpuscope import _core
from gpuscope.devices import HOST, ordinal_or_host, why_no_gpu
from gpuscope.frameworks import torch_memory
from gpuscope.memory import allocators
from gpuscope.memory.host import highest_resident_bytes, resident_bytes
from gpuscope.threads import shared_lock
from gpuscope.units import first_line

_lock = shared_lock()
_open: dict[int, list[PeakWatch]] = {}  # by device

# Libraries with their own pool. torch is read directly, which is much faster.
_OTHERS = ("cupy", "rmm", "jax")


class PeakWatch:
    """Watches one device's memory until `end`, callable on any thread. Made by `watch` and `follow`."""

    def __init__(self, device: int, span: Span | None, reports: _Reports | None = None) -> None:
        self._device = device
        self._span = span
        self._reports = reports

    def until(self, before: MemoryReading, after: MemoryReading) -> Peak:
        """The peak from `before`, read when the watch began, to `after`, read now. The watch continues."""
        with _lock:
            highest, whole = (self._reports.highest(), self._reports.whole) if self._reports else (None, False)
            return peak_between(before, after, self._span, highest, whole=whole)

    def end(self) -> None:
        """Ends the watch. Call `until` before."""
        with _lock:
            if self in _open.get(self._device, ()):
                _open[self._device].remove(self)
            reports, self._reports = self._reports, None
        if reports is not None:
            reports.end()

    def fold(self, now: Usage) -> None:
        """Keeps the value of torch's counter, which has just been reset. Call under the lock."""
        self._span = self._span or Span(0, fresh=False)  # None if torch had not used the GPU at the begin
        self._span.fold(now)
        self._span.restarted(now.allocated_bytes)


def watch(device: int) -> PeakWatch:
    """Begins to watch a device or HOST, by torch's reports or by resetting torch's counter.

    The peak is then known even if it is below an earlier peak.
    """
    reports = _reports(device)
    now = None if device == HOST else _quietly_read(device)
    with _lock:
        span = None
        if now is not None:
            restarted = reports is None and _restart(device, now)
            span = Span(now.allocated_bytes if restarted else now.peak_bytes or 0, fresh=restarted)
        return _opened(PeakWatch(device, span, reports))


def follow(reading: MemoryReading) -> PeakWatch:
    """Begins to watch at a reading, and only reads torch's counter. Only a new maximum gives an exact peak."""
    floor = next((usage.peak_bytes or 0 for usage in reading.usages if usage.library == "torch"), None)
    with _lock:
        return _opened(PeakWatch(reading.device, None if floor is None else Span(floor, fresh=False)))


def reset_peak(device: object = None) -> None:
    """Resets torch's peak counter of a device, as torch.cuda.reset_peak_memory_stats does.

    Open stages keep their peak. CuPy counts no peaks, and JAX's cannot be reset.

    Args:
        device: None for the current GPU, an ordinal, ``"cuda:1"`` or a ``torch.device``. No effect on the host.

    Raises:
        InvalidArgument: `device` is no device.
        NotAvailable: this process has GPUs, but not this one.
    """
    ordinal = ordinal_or_host(device)
    now = None if ordinal == HOST else _quietly_read(ordinal)
    if now is not None:
        with _lock:
            _restart(ordinal, now)


def _opened(watch: PeakWatch) -> PeakWatch:
    _open.setdefault(watch._device, []).append(watch)
    return watch


def _restart(device: int, now: Usage) -> bool:
    """Resets torch's peak counter, and keeps its value for the open watches. Call under the lock."""
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
    except Exception:  # an allocator without counters
        return None


class _Reports:
    """The highest use that torch reports until `end`."""

    def __init__(self, peak: _core.PeakMemory) -> None:
        self._peak = peak
        self._thread = threading.get_ident()
        self._source = torch_memory.acquired_reports()
        self._pauses = self._source.pauses if self._source is not None else 0

    def highest(self) -> int:
        """The peak in bytes; 0 before the first report."""
        return self._peak.bytes or 0

    @property
    def whole(self) -> bool:
        """Whether the reports had no pause, as torch.profiler causes."""
        return self._source is None or self._source.pauses == self._pauses

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self._peak.close()
        # Reports are counted per thread. On another thread, this would end another stage's reports.
        if self._thread == threading.get_ident():
            with contextlib.suppress(Exception):
                torch_memory.release_reports()


def _reports(device: int) -> _Reports | None:
    if device == HOST or "torch" not in sys.modules:
        return None
    try:
        if torch_memory.acquire_reports():
            return None
    except Exception:
        return None
    try:
        return _Reports(_core.PeakMemory(device))
    except Exception:
        torch_memory.release_reports()
        return None


class Peak(NamedTuple):
    """The highest use between two readings, in bytes.

    Attributes:
        bytes: the highest known use. With several libraries, the sum of their peaks.
        at_most_bytes: upper bound of the peak; equals `bytes` if the peak is known, None without a bound.
    """

    bytes: int
    at_most_bytes: int | None


class Span:
    """The peak of a time span by torch's counter, which was `floor` at the begin, and was reset then if `fresh`."""

    def __init__(self, floor: int, *, fresh: bool) -> None:
        self._floor = floor
        self._fresh = fresh
        self._low = 0
        self._high: int | None = 0

    def fold(self, now: Usage) -> None:
        """Updates the bounds with the counter's current value."""
        counted = now.peak_bytes or 0
        if counted < self._floor:  # the program reset it
            low, high = counted, None
        elif self._fresh or counted > self._floor:  # a new peak, inside this span
            low, high = counted, counted
        else:
            low, high = now.allocated_bytes, counted
        self._low = max(self._low, low)
        self._high = None if high is None or self._high is None else max(self._high, high)

    def restarted(self, floor: int) -> None:
        """The counter was reset, after `fold`."""
        self._floor, self._fresh = floor, True

    def peak(self, start: Usage, end: Usage, reported: int | None, whole: bool) -> Peak:
        """The peak by the counter and by torch's reports (None without; `whole` if they had no pause)."""
        low = max(self._low, start.allocated_bytes, end.allocated_bytes, reported or 0)
        if reported is not None and whole:
            return Peak(low, low)
        return Peak(low, None if self._high is None else max(self._high, low))


def peak_between(
    before: MemoryReading,
    after: MemoryReading,
    span: Span | None = None,
    reported: int | None = None,
    *,
    whole: bool = True,
) -> Peak:
    """The peak between two readings of a device.

    Args:
        before: the first reading.
        after: the second reading.
        span: torch's counter; None if torch had not used the GPU at `before`.
        reported: the peak of torch's reports; None without reports.
        whole: whether the reports had no pause.
    """
    first = {usage.library: usage for usage in before.usages}
    last = {usage.library: usage for usage in after.usages}
    peaks = []
    for library in first | last:
        start = first.get(library, Usage(library, 0, 0, 0))
        end = last.get(library, start._replace(allocated_bytes=0))
        if library == "torch":
            span = span or Span(start.peak_bytes or 0, fresh=False)
            span.fold(end)
            peaks.append(span.peak(start, end, reported, whole))
        else:
            peaks.append(_of_others(start, end))
    bounds = [peak.at_most_bytes for peak in peaks if peak.at_most_bytes is not None]
    all_bounded = len(bounds) == len(peaks)
    all_read = before.device == HOST or not (before.why or after.why)
    return Peak(sum(peak.bytes for peak in peaks), sum(bounds) if all_bounded and all_read else None)


def peak_until(now: MemoryReading) -> Peak:
    """The peak since the program began, or since it reset the counters itself."""
    return peak_between(now._replace(usages=()), now)


def _of_others(start: Usage, end: Usage) -> Peak:
    """The peak of a library whose counter is missing or cannot be reset."""
    low = max(start.allocated_bytes, end.allocated_bytes)
    if end.peak_bytes is None:
        return Peak(low, 0 if not low and not end.reserved_bytes else None)
    if end.peak_bytes > (start.peak_bytes or 0):
        return Peak(end.peak_bytes, end.peak_bytes)
    return Peak(low, max(low, end.peak_bytes))


class Usage(NamedTuple):
    """One library's memory on a device.

    Attributes:
        library: "torch", "cupy", ...; "host" for the process's resident memory.
        allocated_bytes: in use by the program.
        reserved_bytes: held by the library's allocator; None without one.
        peak_bytes: the library's own peak of `allocated_bytes`; None if it does not count it.
    """

    library: str
    allocated_bytes: int
    reserved_bytes: int | None
    peak_bytes: int | None


class MemoryReading(NamedTuple):
    """The memory of a device.

    Attributes:
        device: ordinal of the GPU; HOST if the host's resident memory is read instead.
        usages: one per library with memory there.
        resident_bytes: resident memory of the process on the host.
        why: reasons of failed reads; "" if none failed.
        events: number of events of the memory history; None if none is recorded.
    """

    device: int
    usages: tuple[Usage, ...]
    resident_bytes: int
    why: str = ""
    events: int | None = None

    @property
    def allocated_bytes(self) -> int:
        """In use by the program."""
        return sum(usage.allocated_bytes for usage in self.usages)

    @property
    def reserved_bytes(self) -> int | None:
        """Held by the allocators; None on the host."""
        if self.device == HOST:
            return None
        return sum(usage.reserved_bytes or 0 for usage in self.usages)


def read(device: int) -> MemoryReading:
    """The current memory of a GPU or of HOST. Never raises."""
    resident = resident_bytes()
    history = _core.memory_history()
    events = history["recorded"] if history["recording"] else None
    if device == HOST:
        highest = max(resident, highest_resident_bytes())
        return MemoryReading(HOST, (Usage("host", resident, None, highest),), resident, why_no_gpu(), events)
    usages: tuple[Usage, ...] = ()
    whys = []
    for library, ask in (("torch", _read_torch), ("other libraries", _read_others)):
        try:
            usages += ask(device)
        except Exception as error:  # an allocator without counters, as torch's pluggable ones
            whys.append(f"memory of {library} is not known: {first_line(str(error) or type(error).__name__)}")
    return MemoryReading(device, usages, resident, "; ".join(whys), events)


def read_torch(device: int) -> Usage | None:
    """The counters of torch's caching allocator; None if torch has not used the GPU yet."""
    stats = torch_memory.counters(device)
    if stats is None:
        return None
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return Usage("torch", allocated["current"], reserved["current"], allocated["peak"])


def _read_torch(device: int) -> tuple[Usage, ...]:
    usage = read_torch(device)
    return () if usage is None else (usage,)


def _read_others(device: int) -> tuple[Usage, ...]:
    if not any(name in sys.modules for name in _OTHERS):
        return ()
    return tuple(
        Usage(pool.library, pool.allocated_bytes, pool.reserved_bytes, pool.peak_allocated_bytes)
        for pool in allocators.pools(device, detail=False)
        if pool.library != "torch" and pool.reserved_bytes
    )
