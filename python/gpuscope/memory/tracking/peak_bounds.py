# SPDX-License-Identifier: Apache-2.0
"""What counters that only ever rise tell of the highest use between two readings."""

from __future__ import annotations

from typing import NamedTuple

from gpuscope.memory.events import HOST
from gpuscope.memory.tracking.reading import Reading, Usage


class Peak(NamedTuple):
    """The highest use between two readings, in bytes.

    Attributes:
        bytes: the highest that is known of. Where several libraries hold memory, the sum of each one's highest.
        at_most: it was not higher than this; equals `bytes` where the peak is known, None where no bound is.
    """

    bytes: int
    at_most: int | None


class Span:
    """What torch's peak counter says of a stretch of time.

    Args:
        floor: the counter when the time began.
        fresh: whether the counter was restarted then, so that all it says is of this time.
    """

    def __init__(self, floor: int, *, fresh: bool) -> None:
        self._floor = floor
        self._fresh = fresh
        self._low = 0
        self._high: int | None = 0

    def fold(self, now: Usage) -> None:
        """Takes up what the counter says now."""
        counted = now.peak or 0
        if counted < self._floor:  # the program restarted it
            low, high = counted, None
        elif self._fresh or counted > self._floor:  # a new peak, which lies in this time
            low, high = counted, counted
        else:
            low, high = now.allocated, counted
        self._low = max(self._low, low)
        self._high = None if high is None or self._high is None else max(self._high, high)

    def restarted(self, floor: int) -> None:
        """The counter was restarted, after `fold`."""
        self._floor, self._fresh = floor, True

    def peak(self, start: Usage, end: Usage, reported: int | None) -> Peak:
        """The peak of this time, by the counter and by torch's reports, None when there are none."""
        low = max(self._low, start.allocated, end.allocated)
        if reported is not None:
            low = max(low, reported)
            return Peak(low, low)
        return Peak(low, None if self._high is None else max(self._high, low))


def peak_between(before: Reading, after: Reading, span: Span | None = None, reported: int | None = None) -> Peak:
    """The peak between two readings of a device.

    Args:
        before: what was read when it began.
        after: what was read at its end.
        span: of torch's counter since `before`; None when torch had not begun to use the GPU then.
        reported: the highest that torch has reported since; None when it was not asked to.
    """
    first = {usage.library: usage for usage in before.usages}
    last = {usage.library: usage for usage in after.usages}
    peaks = []
    for library in first | last:
        start = first.get(library, Usage(library, 0, 0, 0))
        end = last.get(library, start._replace(allocated=0))
        if library == "torch":
            span = span or Span(start.peak or 0, fresh=False)
            span.fold(end)
            peaks.append(span.peak(start, end, reported))
        else:
            peaks.append(_of_others(start, end))
    bounds = [peak.at_most for peak in peaks if peak.at_most is not None]
    all_bounded = len(bounds) == len(peaks)
    all_read = before.device == HOST or not (before.why or after.why)
    return Peak(sum(peak.bytes for peak in peaks), sum(bounds) if all_bounded and all_read else None)


def peak_until(now: Reading) -> Peak:
    """The peak since the program began, or since it restarted the counters itself."""
    return peak_between(now._replace(usages=()), now)


def _of_others(start: Usage, end: Usage) -> Peak:
    """Of a library whose counter, if it has one, cannot be restarted."""
    low = max(start.allocated, end.allocated)
    if end.peak is None:
        return Peak(low, 0 if not low and not end.reserved else None)
    if end.peak > (start.peak or 0):
        return Peak(end.peak, end.peak)
    return Peak(low, max(low, end.peak))
