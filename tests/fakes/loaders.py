# SPDX-License-Identifier: Apache-2.0
"""Loaders whose batches take a time on a clock that only they and the steps move, and marks on a stream that is not."""

from __future__ import annotations

from gpuscope.streams import Stream


class Clock:
    def __init__(self):
        self.now = 10.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


class Loader:
    """`count` batches; the first takes `start` more than `seconds`. Begins anew as often as it is asked."""

    def __init__(self, clock, batches, seconds=0.01, start=0.0):
        self.clock = clock
        self.batches = batches
        self.seconds = seconds
        self.start = start

    def __iter__(self):
        self.clock.spend(self.start)
        for batch in self.batches:
            self.clock.spend(self.seconds)
            yield batch


class Marks:
    """A stream that runs behind the clock: what it is given, it works off in order."""

    def __init__(self, clock):
        self.clock = clock
        self.free = 0.0
        self.stream = Stream(0, 0, "default")

    def give(self, seconds):
        """Work for the stream; the host goes on at once."""
        self.free = max(self.free, self.clock.now) + seconds

    def mark(self, again=None):
        self.free = max(self.free, self.clock.now)
        return self.free

    def passed(self, mark):
        return mark <= self.clock.now

    def seconds(self, begin, end):
        return end - begin

    def synchronize(self):
        self.clock.now = max(self.clock.now, self.free)
