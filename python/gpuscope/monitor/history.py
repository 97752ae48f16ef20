# SPDX-License-Identifier: Apache-2.0
"""The samples of the last minutes, and the state and growth at a moment."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gpuscope import _core
from gpuscope.monitor.counters import HOST_COUNTERS, Grown, Growth, growth, throttled
from gpuscope.monitor.sample import GpuSample
from gpuscope.monitor.snapshot import GpuState
from gpuscope.threads import cached_property

NO_GPU = -1  # the host of a machine without a GPU
MINUTE_S = 60.0
LATELY_S = 2.5  # enough for two readings of a counter that is read once a second
_KEPT_S = 600.0
_MOST = 40_000  # samples of all GPUs together; some 4 KB each
_MOST_MISSED = 10  # intervals without a sample after which a GPU counts as lost
_LEAST_MISSED_NS = 2_000_000_000


class History:
    """Samples in the order of GPU and time: the latest ten minutes, at most 40,000.

    Args:
        kept_s: seconds to keep; None keeps all, for a recording.
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
        """Numbers of GPUs, in order; only `NO_GPU` without one."""
        return sorted(self._samples)

    @property
    def begin_ns(self) -> int | None:
        """The earliest time at which all GPUs present then had been read."""
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
        """The time a number of rounds from a moment (None: the newest)."""
        end_ns = self.end_ns
        if end_ns is None:
            return None
        read = sorted(
            (sample.time_ns, gpu)
            for gpu, kept in self._samples.items()
            for sample in kept
            if sample.time_ns <= end_ns  # if the clock was set back, later samples have earlier times
        )
        # GPUs are read in order: a number that does not grow begins another round.
        times = [time_ns for (time_ns, gpu), (_, after) in pairwise([*read, (0, NO_GPU)]) if after <= gpu]
        at = len(times) - 1 if moment_ns is None else bisect_right(times, moment_ns) - 1
        return times[min(max(at + steps, 0), len(times) - 1)]


@dataclass(frozen=True)
class Moment:
    """A GPU at a moment, with its recent samples.

    Attributes:
        sample: the latest sample.
        samples: samples of about the last minute, the latest included.
        lately: samples of the last 2.5 seconds.
    """

    sample: GpuSample
    samples: Sequence[GpuSample]
    lately: Sequence[GpuSample]

    @cached_property
    def latest(self) -> Growth | None:
        """Growth of counters over `lately`; None after one sample."""
        if len(self.lately) < 2 or self.lately[-1].time_ns <= self.lately[0].time_ns:
            return None
        return growth(self.lately)

    @property
    def gpu(self) -> GpuState | None:
        """The GPU's state; None without a GPU."""
        return self.sample.gpu

    def series(self, name: str) -> list[float | None]:
        """A figure of the GPU at each sample, or of the host without a GPU. For counters, growth per second."""
        if self.gpu is not None:
            return [None if sample.gpu is None else getattr(sample.gpu, name) for sample in self.samples]
        if name not in HOST_COUNTERS:
            return [getattr(sample.host, name) for sample in self.samples]
        rates: dict[int, float] = {}
        read = {sample.host_time_ns: getattr(sample.host, name) for sample in self.samples}
        for (begin_ns, before), (end_ns, after) in pairwise(read.items()):
            if None not in (before, after) and after >= before and end_ns > begin_ns:
                rates[end_ns] = (after - before) / (end_ns - begin_ns) * 1e9
        first_ns = self.samples[0].host_time_ns  # no growth is known before
        return [rates.get(sample.host_time_ns) for sample in self.samples if sample.host_time_ns != first_ns]

    @property
    def throttled_share(self) -> float | None:
        """Share of the last minute throttled by the most frequent reason; None: unknown."""
        shares = self.throttled_shares
        return max(shares.values(), default=0.0) if shares is not None else None

    @cached_property
    def throttled_shares(self) -> dict[str, float] | None:
        """Throttled share of the last minute by reason, the largest first."""
        # Several samples may repeat a reading.
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
        """Recent growth per second of a counter of the host."""
        grown = None if self.latest is None else self.latest.host.get(name)
        return None if grown is None else grown.per_second

    @property
    def machine_cpu_ratio(self) -> float | None:
        """Recent share of the machine's CPU time in use."""
        rate, cpus = self.host_rate("machine_cpu_s"), self.sample.host.machine_cpus
        return None if rate is None or not cpus else min(1.0, rate / cpus)


def moment(
    history: History, gpu: int, end_ns: int | None = None, *, seconds: float = MINUTE_S, lately_s: float = LATELY_S
) -> Moment | None:
    """A GPU at a moment (None: now); None if nothing of it is known yet."""
    samples = history.window(gpu, seconds, end_ns)
    if not samples:
        return None
    lately = history.window(gpu, lately_s, end_ns)
    return Moment(samples[-1] if end_ns is None else _at(history, gpu, samples[-1], end_ns), samples, lately)


def _at(history: History, gpu: int, sample: GpuSample, moment_ns: int) -> GpuSample:
    """The latest sample before a moment. If the next one is long overdue, the GPU counts as lost."""
    interval_ns = sample.time_ns - history.window(gpu, 0.0, sample.time_ns)[0].time_ns  # to the one before
    missed_ns = moment_ns - sample.time_ns
    is_read = interval_ns == 0 or missed_ns <= max(_MOST_MISSED * interval_ns, _LEAST_MISSED_NS)
    if is_read or sample.gpu is None or "all" in sample.gpu.why:
        return sample
    nothing: dict[str, Any] = dict.fromkeys(_core.GPU_FIGURES)
    why = {"all": f"it was not read for {missed_ns / 1e9:.0f} s"}
    return replace(sample, gpu=replace(sample.gpu, **nothing, why=why))
