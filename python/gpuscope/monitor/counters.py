# SPDX-License-Identifier: Apache-2.0
"""Growth of a GPU's counters between two moments, with bounds.

A reading is the counter's value at its latest tick. As counters only grow, the readings around a moment bound the value
at that moment. Nothing is assumed of the time between readings.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.monitor.sample import GpuSample
from gpuscope.monitor.snapshot import GpuState

# Measured on an H100: NVML's counters of energy and of seconds of throttling tick each 99.5 ms, its counters of bytes
# each 0.12 ms.
_TICK_NS = 99_500_000
_TICK_OF_BYTES_NS = 120_000
_WRAP = 1 << 32
_STUCK_NS = 1_500_000_000  # a board draws some watts at any time; its counter is read every two seconds
_S = 1e-9
_ANEW = "the counter was reset: the driver was reloaded, or it counts something else now"
_BACKWARDS = "the samples' clock goes backwards"
_OTHER_PROCESS = "the samples are of several processes with counters of their own"


@dataclass(frozen=True)
class Grown:
    """Growth of a counter.

    Attributes:
        value: estimate, with growth between two readings spread evenly.
        low: lower bound.
        high: upper bound; None if no later reading bounds it.
        seconds: between the moments, or between the counter's first and last reading if no moment was given.
    """

    value: float
    low: float
    high: float | None
    seconds: float

    @property
    def per_second(self) -> float:
        """The mean rate."""
        return self.value / self.seconds


@dataclass(frozen=True)
class Growth:
    """Growth of a GPU's counters, and of its host's, between two moments.

    Attributes:
        seconds: between the moments, or between the first and the last sample if none were given.
        energy_j: joules of the board.
        throttled_s: seconds of clock throttling, by reason.
        pcie_received_bytes: from the host, headers of packets included: some 8 to 9 % more than a copy's bytes.
        pcie_sent_bytes: to the host, headers of packets included.
        host: growth of each counter of `HostState`, and of ``process_cpu_s``, by name.
        why: reason of each figure that is None or missing, by name.
    """

    seconds: float
    energy_j: Grown | None = None
    throttled_s: Mapping[str, Grown] = field(default_factory=dict)
    pcie_received_bytes: Grown | None = None
    pcie_sent_bytes: Grown | None = None
    host: Mapping[str, Grown] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def mean_power_w(self) -> float | None:
        """The mean power of the board, from its energy."""
        return None if self.energy_j is None else self.energy_j.per_second


HOST_COUNTERS = (
    "machine_cpu_s",
    "process_wait_s",
    "process_read_bytes",
    "process_written_bytes",
    "process_major_faults",
    "process_preemptions",
    "cpu_throttled_s",
    "cpu_throttled_periods",
    "cpu_pressure_s",
    "memory_pressure_s",
    "memory_stalled_s",
    "io_pressure_s",
    "io_stalled_s",
)


class _Unknown(Exception):  # noqa: N818 - it is no error
    """Growth is unknown for this reason."""


@dataclass(frozen=True)
class _Track:
    """Readings of a counter in order: times and values."""

    times_ns: list[int]
    values: list[float]
    tick_ns: int

    def grown(self, begin_ns: int | None, end_ns: int | None) -> Grown:
        """Growth between two moments; None stands for the first or the last reading."""
        begin_ns = self.times_ns[0] if begin_ns is None else begin_ns
        end_ns = self.times_ns[-1] if end_ns is None else end_ns
        if end_ns <= begin_ns:
            raise _Unknown("there is only one reading of it")
        low_begin, begin, high_begin = self._at(begin_ns)
        low_end, end, high_end = self._at(end_ns)
        if high_begin is None:
            raise _Unknown("no reading follows its beginning")
        high = None if high_end is None else max(0.0, high_end - low_begin)
        low = max(0.0, low_end - high_begin)
        value = max(low, end - begin)
        return Grown(value if high is None else min(value, high), low, high, _S * (end_ns - begin_ns))

    def _at(self, moment_ns: int) -> tuple[float, float, float | None]:
        """The value at a moment: lower bound, estimate, upper bound."""
        before = bisect_right(self.times_ns, moment_ns) - 1
        if before < 0:
            raise _Unknown("no reading lies before its beginning")
        low = self.values[before]
        later = bisect_left(self.times_ns, moment_ns + self.tick_ns)
        high = self.values[later] if later < len(self.values) else None
        after = min(before + 1, len(self.values) - 1)
        span = self.times_ns[after] - self.times_ns[before]
        share = min(1.0, (moment_ns - self.times_ns[before]) / span) if span else 0.0
        return low, low + share * (self.values[after] - low), high


def growth(samples: Sequence[GpuSample], begin_ns: int | None = None, end_ns: int | None = None) -> Growth:
    """Growth of counters between two moments.

    Args:
        samples: of one GPU, or of a machine without one, oldest first: all samples between the moments, and preferably
            one before and one after.
        begin_ns: ns since the Unix epoch, on the samples' clock; None for the first reading of each counter.
        end_ns: likewise; None for the last reading.

    Raises:
        InvalidArgument: there are fewer than two samples, they are of several GPUs, or the end is not after the
            beginning.
    """
    if len(samples) < 2 or len({None if sample.gpu is None else sample.gpu.index for sample in samples}) > 1:
        raise InvalidArgument(f"samples are {len(samples)}; accepted are two or more of one GPU")
    first_ns = samples[0].time_ns if begin_ns is None else begin_ns
    last_ns = samples[-1].time_ns if end_ns is None else end_ns
    if last_ns <= first_ns:
        raise InvalidArgument(f"end_ns is {last_ns}; accepted are moments after begin_ns, {first_ns}")
    why: dict[str, str] = {}

    def tell(name: str, make: Callable[[], Grown]) -> Grown | None:
        try:
            return make()
        except _Unknown as reason:
            why[name] = str(reason)
            return None

    # A figure that is not read for each sample has the same reading in several samples.
    told = _distinct(samples, lambda sample: (sample.slow_time_ns, sample.rare_time_ns))
    of_host = _distinct(samples, lambda sample: sample.host_time_ns)
    host: dict[str, Grown] = {}
    crossed = {
        name: tell(name, lambda name=name: _bytes(samples, name, begin_ns, end_ns))  # type: ignore[misc]
        for name in ("pcie_received_bytes", "pcie_sent_bytes")
    }
    for name, seen in (("process_cpu_s", samples), *((name, of_host) for name in HOST_COUNTERS)):
        found = tell(name, lambda name=name, seen=seen: _host_track(seen, name).grown(begin_ns, end_ns))  # type: ignore[misc]
        if found is not None:
            host[name] = found
    return Growth(
        seconds=_S * (last_ns - first_ns),
        energy_j=tell("energy_j", lambda: _energy(told, begin_ns, end_ns)),
        throttled_s=throttled(told, begin_ns, end_ns, why),
        **crossed,
        host=host,
        why=why,
    )


def throttled(
    samples: Sequence[GpuSample],
    begin_ns: int | None = None,
    end_ns: int | None = None,
    why: dict[str, str] | None = None,
) -> dict[str, Grown]:
    """Seconds of clock throttling by reason; arguments as of `growth`, and a dict that receives reasons."""
    found: dict[str, Grown] = {}
    for reason in {name: None for sample in samples if sample.gpu for name in sample.gpu.throttled_s}:
        try:
            found[reason] = _throttled(samples, reason, begin_ns, end_ns)
        except _Unknown as unknown:
            if why is not None:
                why[f"throttled_s.{reason}"] = str(unknown)
    return found


def _energy(samples: Sequence[GpuSample], begin_ns: int | None, end_ns: int | None) -> Grown:
    track = _gpu_track(samples, "energy_total_j", lambda gpu: gpu.energy_total_j, is_rare=True)
    if track.values[0] == track.values[-1] and track.times_ns[-1] - track.times_ns[0] > _STUCK_NS:
        raise _Unknown("the counter of energy stands still, although the board works")
    return track.grown(begin_ns, end_ns)


def _throttled(samples: Sequence[GpuSample], reason: str, begin_ns: int | None, end_ns: int | None) -> Grown:
    is_rare = reason in _core.RARE_COUNTERS
    track = _gpu_track(samples, f"throttled_s.{reason}", lambda gpu: gpu.throttled_s.get(reason), is_rare=is_rare)
    found = track.grown(begin_ns, end_ns)
    # Throttled time is at most the elapsed time plus a tick.
    high = found.seconds if found.high is None else min(found.seconds, found.high)
    return Grown(min(found.value, high), min(found.low, high), high, found.seconds)


def _bytes(samples: Sequence[GpuSample], name: str, begin_ns: int | None, end_ns: int | None) -> Grown:
    """Growth of a 32-bit counter: known modulo 2**32, and exact only if it cannot wrap twice between readings."""
    times: list[int] = []
    values: list[float] = []
    last, took_s, grown = 0, 0.0, 0
    for sample in samples:
        value = None if sample.gpu is None else getattr(sample.gpu, name)
        if value is None:  # a gap in which the counter may have wrapped is found below
            continue
        if times:
            if sample.time_ns < times[-1]:
                raise _Unknown(_BACKWARDS)
            gap_s, wrap_s = _S * (sample.time_ns - times[-1]), _wrap_s(sample)
            if gap_s >= wrap_s:
                raise _Unknown(
                    f"the counter has 32 bits and may wrap each {1e3 * wrap_s:.0f} ms on this link; readings are up to "
                    f"{1e3 * gap_s:.0f} ms apart"
                )
            # A sample's counter was read while the sample was taken, and is at most a tick old.
            early_s = max(took_s, sample.took_s) + _S * _TICK_OF_BYTES_NS
            grown = (value - last) % _WRAP
            if grown > _WRAP * (gap_s + early_s) / wrap_s:  # more than the link carries
                if _WRAP - grown > _WRAP * early_s / wrap_s:
                    raise _Unknown(_ANEW)
                continue  # two processes read it at once
        values.append(values[-1] + grown if values else 0.0)
        times.append(sample.time_ns)
        last, took_s = value, sample.took_s
    if not times or samples[-1].gpu is None or "all" in samples[-1].gpu.why:
        raise _Unknown(_reason(samples, name))
    return _Track(times, values, _TICK_OF_BYTES_NS).grown(begin_ns, end_ns)


def _wrap_s(sample: GpuSample) -> float:
    """The shortest time in which a counter of bytes may wrap; an unknown link counts as the fastest."""
    gpu = sample.gpu
    assert gpu is not None
    generation, lanes = gpu.pcie_generation_max or 6, gpu.pcie_width_max or 16
    return _WRAP / (_core.link_bytes_per_s(generation, lanes) or _core.link_bytes_per_s(6, 16))


def _gpu_track(
    samples: Sequence[GpuSample], name: str, read: Callable[[GpuState], float | None], *, is_rare: bool
) -> _Track:
    def moment(sample: GpuSample) -> int:
        return (is_rare and sample.rare_time_ns) or sample.slow_time_ns

    readings = ((sample.time_ns, moment(sample), read(sample.gpu)) for sample in samples if sample.gpu is not None)
    track = _track(readings, _TICK_NS)
    if not track.times_ns:
        raise _Unknown(_reason(samples, name))
    return track


def _host_track(samples: Sequence[GpuSample], name: str) -> _Track:
    anew = _OTHER_PROCESS if name.startswith("process_") else _ANEW
    if name == "process_cpu_s":
        return _track(((sample.time_ns, sample.time_ns, sample.process_cpu_s) for sample in samples), 0, anew)
    readings = ((sample.time_ns, sample.host_time_ns, getattr(sample.host, name)) for sample in samples)
    track = _track(readings, 0, anew)
    if not track.times_ns:
        raise _Unknown((samples[-1].host.why or {}).get(name, "it is not in the log"))
    return track


def _distinct(samples: Sequence[GpuSample], key: Callable[[GpuSample], object]) -> list[GpuSample]:
    """The first sample of each key, in order."""
    found: dict[object, GpuSample] = {}
    for sample in samples:
        found.setdefault(key(sample), sample)
    return [*found.values()]


def _track(readings: Iterable[tuple[int, int, float | None]], tick_ns: int, anew: str = _ANEW) -> _Track:
    """The readings with different times, in order. Processes that share a log may report a reading twice.

    Args:
        readings: for each sample its time, the time of its reading, and the value.
        tick_ns: of the counter.
        anew: the reason if a value is less than the one before.
    """
    found: dict[int, float] = {}
    told_ns = 0
    for sample_ns, time_ns, value in readings:
        if sample_ns < told_ns:
            raise _Unknown(_BACKWARDS)
        told_ns = sample_ns
        if value is not None:
            found.setdefault(time_ns, value)
    times: list[int] = []
    values: list[float] = []
    for time_ns, value in sorted(found.items()):
        if values and value < values[-1]:
            if time_ns - times[-1] < tick_ns:  # two processes read it at once
                continue
            raise _Unknown(anew)
        times.append(time_ns)
        values.append(value)
    return _Track(times, values, tick_ns)


def _reason(samples: Sequence[GpuSample], name: str) -> str:
    for sample in reversed(samples):
        if sample.gpu is not None and (reason := sample.gpu.why.get(name) or sample.gpu.why.get("all")):
            return reason
    return "there is no reading of it"
