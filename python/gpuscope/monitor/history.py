# SPDX-License-Identifier: Apache-2.0
"""The samples of the last minutes, and what they say of a moment."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gpuscope import _core
from gpuscope.beside import cached_property
from gpuscope.monitor.counters import HOST_COUNTERS, Grown, Growth, growth, throttled
from gpuscope.monitor.sample import GpuSample
from gpuscope.monitor.snapshot import GpuState

NO_GPU = -1  # the number of what a machine without one has: its host
MINUTE_S = 60.0
LATELY_S = 2.5  # counters that are read once a second have two readings in two seconds and a bit
_KEPT_S = 600.0
_MOST = 40_000  # samples of all GPUs together; some 4 KB each
_MOST_MISSED = 10  # intervals without a sample of a GPU, after which it is no longer taken to be as it was
_LEAST_MISSED_NS = 2_000_000_000


class History:
    """Samples in the order of their GPUs and times, the latest ten minutes or 40,000 of them.

    Args:
        kept_s: seconds that are kept; None for all, of a recording.
    """

    def __init__(self, kept_s: float | None = _KEPT_S) -> None:
        self._kept_ns = None if kept_s is None else int(kept_s * 1e9)
        self._samples: dict[int, deque[GpuSample]] = {}

    def append(self, samples: Iterable[GpuSample]) -> None:
        """Adds newer ones."""
        for sample in samples:
            index = NO_GPU if sample.gpu is None else sample.gpu.index
            self._samples.setdefault(index, deque()).append(sample)
        if self._kept_ns is None:
            return
        most = _MOST // max(1, len(self._samples))
        for kept in self._samples.values():
            while len(kept) > most or kept[-1].time_ns - kept[0].time_ns > self._kept_ns:
                kept.popleft()

    @property
    def gpus(self) -> list[int]:
        """Numbers of GPUs, in order; `NO_GPU` alone where there is none."""
        return sorted(self._samples)

    @property
    def begin_ns(self) -> int | None:
        """Time of the oldest moment at which those GPUs had been read that were there."""
        if not self._samples:
            return None
        first = min(self._samples.values(), key=lambda kept: kept[0].time_ns)
        next_ns = first[1].time_ns if len(first) > 1 else math.inf
        begun = (kept[0].time_ns for kept in self._samples.values())
        return max((time_ns for time_ns in begun if time_ns < next_ns), default=first[0].time_ns)

    @property
    def end_ns(self) -> int | None:
        """Time of the newest sample."""
        return max((kept[-1].time_ns for kept in self._samples.values()), default=None)

    def window(self, gpu: int, seconds: float, end_ns: int | None = None) -> list[GpuSample]:
        """Samples of a GPU in the seconds up to a moment, and the one before them."""
        kept = self._samples.get(gpu, deque())
        if end_ns is None and kept:
            end_ns = kept[-1].time_ns
        if end_ns is None:
            return []
        found: list[GpuSample] = []
        for sample in reversed(kept):
            if sample.time_ns > end_ns:
                continue
            found.append(sample)
            if sample.time_ns < end_ns - seconds * 1e9:
                break
        return found[::-1]

    def step(self, moment_ns: int | None, steps: int) -> int | None:
        """The time so many steps from a moment (None: the newest); from one reading of the GPUs to the next."""
        end_ns = self.end_ns
        if end_ns is None:
            return None
        read = sorted(
            (sample.time_ns, gpu)
            for gpu, kept in self._samples.items()
            for sample in kept
            if sample.time_ns <= end_ns  # where the clock was set back, later ones are older
        )
        # They are read in their order: where a number does not grow, another round begins.
        times = [time_ns for (time_ns, gpu), (_, after) in pairwise([*read, (0, NO_GPU)]) if after <= gpu]
        at = len(times) - 1 if moment_ns is None else bisect_right(times, moment_ns) - 1
        return times[min(max(at + steps, 0), len(times) - 1)]


@dataclass(frozen=True)
class Moment:
    """A GPU at a moment, with what happened before it.

    Attributes:
        sample: the latest one.
        samples: of the last minute or so, the latest one included.
        lately: those of the last two seconds and a bit.
    """

    sample: GpuSample
    samples: Sequence[GpuSample]
    lately: Sequence[GpuSample]

    @cached_property
    def latest(self) -> Growth | None:
        """What grew lately; None after one sample."""
        if len(self.lately) < 2 or self.lately[-1].time_ns <= self.lately[0].time_ns:
            return None
        return growth(self.lately)

    @property
    def gpu(self) -> GpuState | None:
        """Its state; None of a machine without a GPU."""
        return self.sample.gpu

    def series(self, name: str) -> list[float | None]:
        """A figure of the GPU at each sample, or of the host where there is none: of its counters, growth a second."""
        if self.gpu is not None:
            return [None if sample.gpu is None else getattr(sample.gpu, name) for sample in self.samples]
        if name not in HOST_COUNTERS:
            return [getattr(sample.host, name) for sample in self.samples]
        rates: dict[int, float] = {}
        read = {sample.host_time_ns: getattr(sample.host, name) for sample in self.samples}
        for (begin_ns, before), (end_ns, after) in pairwise(read.items()):
            if None not in (before, after) and after >= before and end_ns > begin_ns:
                rates[end_ns] = (after - before) / (end_ns - begin_ns) * 1e9
        first_ns = self.samples[0].host_time_ns  # since which there is no growth
        return [rates.get(sample.host_time_ns) for sample in self.samples if sample.host_time_ns != first_ns]

    @property
    def throttled_share(self) -> float | None:
        """Share of the last minute in which clocks were held back by the reason that did most; None: not known."""
        shares = self.throttled_shares
        return max(shares.values(), default=0.0) if shares is not None else None

    @cached_property
    def throttled_shares(self) -> dict[str, float] | None:
        """That share by reason, the largest first."""
        # Several samples have the same readings.
        readings = {(sample.slow_time_ns, sample.rare_time_ns): sample for sample in reversed(self.samples)}
        shares = {name: grown.per_second for name, grown in throttled([*reversed(readings.values())]).items()}
        return dict(sorted(shares.items(), key=lambda pair: -pair[1])) or None

    @property
    def pcie_bytes_per_s(self) -> tuple[float | None, float | None]:
        """Bytes a second from the host and to it: of the performance counters, else of the counters of bytes."""
        rates: list[float | None] = []
        for name in ("pcie_received", "pcie_sent"):
            rate = None if self.gpu is None else getattr(self.gpu, f"{name}_bytes_per_s")
            if rate is None and self.latest is not None:
                grown: Grown | None = getattr(self.latest, f"{name}_bytes")
                rate = None if grown is None else grown.per_second
            rates.append(rate)
        return rates[0], rates[1]

    def host_rate(self, name: str) -> float | None:
        """What a counter of the host grew by in a second, lately."""
        grown = None if self.latest is None else self.latest.host.get(name)
        return None if grown is None else grown.per_second

    @property
    def machine_cpu_ratio(self) -> float | None:
        """Share of the machine's CPU time that was used, lately."""
        rate, cpus = self.host_rate("machine_cpu_s"), self.sample.host.machine_cpus
        return None if rate is None or not cpus else min(1.0, rate / cpus)


def moment(
    history: History, gpu: int, end_ns: int | None = None, *, seconds: float = MINUTE_S, lately_s: float = LATELY_S
) -> Moment | None:
    """A GPU at a moment (None: now); None where nothing is known of it yet."""
    samples = history.window(gpu, seconds, end_ns)
    if not samples:
        return None
    lately = history.window(gpu, lately_s, end_ns)
    return Moment(samples[-1] if end_ns is None else _at(history, gpu, samples[-1], end_ns), samples, lately)


def _at(history: History, gpu: int, sample: GpuSample, moment_ns: int) -> GpuSample:
    """The latest sample before a moment; as of a GPU that is lost where its next one should have been long since."""
    interval_ns = sample.time_ns - history.window(gpu, 0.0, sample.time_ns)[0].time_ns  # to the one before
    missed_ns = moment_ns - sample.time_ns
    is_read = interval_ns == 0 or missed_ns <= max(_MOST_MISSED * interval_ns, _LEAST_MISSED_NS)
    if is_read or sample.gpu is None or "all" in sample.gpu.why:
        return sample
    nothing: dict[str, Any] = dict.fromkeys(_core.GPU_FIGURES)
    why = {"all": f"it was not read for {missed_ns / 1e9:.0f} s"}
    return replace(sample, gpu=replace(sample.gpu, **nothing, why=why))
