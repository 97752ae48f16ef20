# SPDX-License-Identifier: Apache-2.0
"""Measures the peaks of a GPU, and compares the bytes and operations a second of a call with them.

The peaks are measured, as those of data sheets are not reached (Hoefler and Belli, "Scientific benchmarking of
parallel computing systems", SC 2015, rule 11). Each is measured once per process and device.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np

from gpuscope import _core, stats, streams
from gpuscope.arguments import check_positive
from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.frameworks import cupy, torch
from gpuscope.threads import shared_lock
from gpuscope.units import first_line, format_rate

Kind = Literal["bandwidth", "float32", "float16", "bfloat16", "tf32"]

REPEATS = 15
WARMUPS = 3  # further repetitions before them

# Sizes of copies in L2 caches; the two largest that fit in memory are used. Smaller copies would be partly cached.
CACHES = (16, 8, 4)
SHARE_OF_MEMORY = 4  # at most a quarter of the free memory

FMA_ROUNDS = 1 << 12
FMA_SECONDS = 1e-3  # a launch of this length hides its own beginning and end
MOST_FMA_ROUNDS = 1 << 24

MATRIX = 8192
MATRIX_FLOPS = 2 * MATRIX**3

# Dense float16 operations per multiprocessor and clock with float32 sums, by compute capability, from NVIDIA's
# architecture papers. From 8.0 on bfloat16 has as many, and TensorFloat-32 half of them.
_TENSOR_FLOPS_A_CLOCK = {"7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 512, "8.9": 1024, "9.0": 4096, "10.0": 8192}

_lock = shared_lock()
_measured: dict[tuple[int, str], Peak] = {}

# Factor on the measured peak above its own uncertainty.
IMPOSSIBLE = 1.05

# Below this share of both peaks neither is the bound: the rule of Nsight Compute's section "speed of light".
BUSY = 0.6

_SAME = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "tfloat32": "tf32"}


@dataclass(frozen=True)
class Peak:
    """One upper bound."""

    kind: str  # "bandwidth" or the type of number
    unit: str  # "B/s" or "FLOP/s"
    measured: float | None  # by a kernel made for it; None when it could not be measured
    theoretical: float | None  # width times clock; None when unknown
    reason: str = ""  # why `measured` is None


def peak(kind: Kind, device: int = 0) -> Peak:
    """One of a device's peaks, measured once; those of the tensor cores need torch or CuPy in the process.

    Raises:
        NotAvailable: there is no such GPU.
    """
    with _lock:
        found = _measured.get((device, kind))
        if found is None:
            found = _measure(kind, device)
            # Failures are not kept, as a framework may be imported later.
            if found.measured is not None:
                _measured[device, kind] = found
        return found


def _measure(kind: Kind, device: int) -> Peak:
    limits = _core.device_limits(device)
    unit = "B/s" if kind == "bandwidth" else "FLOP/s"
    theoretical = theoretical_limit(kind, limits)
    try:
        stream = streams.current(device).handle
        sampler = _core.Sampler(device, stream)
        if kind == "bandwidth":
            value = _bandwidth(sampler, stream, device, int(limits["l2_bytes"]))
        elif kind == "float32":
            value = _float32(sampler, stream, device)
        else:
            value = _tensor_cores(kind, sampler, device)
    except (GpuscopeError, RuntimeError, MemoryError) as error:
        return Peak(kind, unit, None, theoretical, first_line(str(error)) or type(error).__name__)
    return Peak(kind, unit, value, theoretical)


def theoretical_limit(kind: str, limits: dict[str, Any]) -> float | None:
    """Width times highest clock of `_core.device_limits()`; None if the width is not known."""
    if kind in ("bandwidth", "float32"):
        limit = limits.get("memory_bandwidth" if kind == "bandwidth" else "fp32_flops")
        return float(limit) if limit else None
    capability = str(limits.get("capability"))
    width, clock = _TENSOR_FLOPS_A_CLOCK.get(capability), limits.get("sm_hz_max")
    if width is None or not clock or (kind != "float16" and int(capability.partition(".")[0]) < 8):
        return None
    return float(width * limits["multiprocessors"] * clock / (2 if kind == "tf32" else 1))


def seconds(sampler: _core.Sampler, function: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median time of a call on the sampler's stream."""
    function()  # a first call may allocate or load and so wait for the GPU, which would block behind a closed gate
    sampler.synchronize()
    order = np.zeros(WARMUPS + repeats, dtype=np.uint32)
    chunk = sampler.sample([function], order, gate=True, flush=False)
    return float(np.median(chunk["stream_s"][WARMUPS:]))


def _bandwidth(sampler: _core.Sampler, stream: int, device: int, l2_bytes: int) -> float:
    """The best of copies and fills of two sizes. A copy reads and writes each byte, a fill writes it."""
    most = _free_bytes(device) // SHARE_OF_MEMORY
    unit = max(l2_bytes, 16 << 20) // 16 * 16
    sizes = [caches * unit for caches in CACHES if 2 * caches * unit <= most]  # a copy's two halves
    if not sizes:
        needed, free = 2 * CACHES[-1] * unit * SHARE_OF_MEMORY >> 20, most * SHARE_OF_MEMORY >> 20
        raise NotAvailable(f"the bandwidth: it takes {needed} MiB of free memory, and there are {free}")
    kernels = _core.Kernels(device)
    found = []
    for size in sizes[:2]:
        found.append(2 * size / seconds(sampler, functools.partial(kernels.copy, size, stream)))
        found.append(size / seconds(sampler, functools.partial(kernels.fill, size, stream)))
    return max(found)


def _float32(sampler: _core.Sampler, stream: int, device: int) -> float:
    kernels = _core.Kernels(device)
    rounds = FMA_ROUNDS
    taken = seconds(sampler, functools.partial(kernels.fma, rounds, stream), 3)
    while taken < FMA_SECONDS and rounds < MOST_FMA_ROUNDS:
        rounds = min(MOST_FMA_ROUNDS, max(2 * rounds, int(rounds * FMA_SECONDS / max(taken, 1e-6))))
        taken = seconds(sampler, functools.partial(kernels.fma, rounds, stream), 3)
    return float(kernels.fma_flops(rounds)) / seconds(sampler, functools.partial(kernels.fma, rounds, stream))


def _tensor_cores(kind: Kind, sampler: _core.Sampler, device: int) -> float:
    if _free_bytes(device) // SHARE_OF_MEMORY < 3 * 4 * MATRIX**2:
        raise NotAvailable(f"the {kind} rate: its matrices take over a quarter of the free memory")
    if torch.initialized():
        with torch.matrix_product(kind, MATRIX, device) as product:
            return MATRIX_FLOPS / seconds(sampler, product)
    if "cupy" in sys.modules and kind == "float16":
        return MATRIX_FLOPS / seconds(sampler, cupy.matrix_product(MATRIX, device))
    raise NotAvailable(f"the {kind} rate: it takes a matrix product of torch, which has not used the GPU here")


def _free_bytes(device: int) -> int:
    """Free memory if a framework knows it, else the device's total."""
    if used := torch.initialized():
        return int(used.cuda.mem_get_info(device)[0])
    if "cupy" in sys.modules:
        with sys.modules["cupy"].cuda.Device(device) as current:
            return int(current.mem_info[0])
    return int(_core.environment()["devices"][device]["memory_bytes"])


@dataclass(frozen=True)
class Rate:
    """Work a second, compared with the device's peak.

    Attributes:
        kind: "bandwidth" or "compute".
        value: work over the estimated time; `low` and `high` are over the ends of its interval.
        unit: "B/s" or "FLOP/s".
        percent_of_peak: of the measured peak; None without one.
        peak: the measured peak, in the same unit; None when it could not be measured.
        limit: the theoretical limit; None when unknown.
        alarm: why the rate cannot be true, not even at the slow end of its interval; empty when it can.
        reason: why there is no peak; empty when there is one.
    """

    kind: Literal["bandwidth", "compute"]
    value: float
    low: float
    high: float
    unit: str
    percent_of_peak: float | None
    peak: float | None
    limit: float | None
    alarm: str
    reason: str

    def __str__(self) -> str:
        text = format_rate(self.value, self.unit.removesuffix("/s"))
        return text if self.percent_of_peak is None else f"{text} = {self.percent_of_peak:.0f} % of measured peak"


def rates(
    estimate: stats.Estimate,
    bytes: float | None = None,  # noqa: A002 - the name users give it by
    flops: float | None = None,
    dtype: object = "float32",
    device: int = 0,
    cold: bool = True,
) -> tuple[Rate, ...]:
    """The rates of a call that takes the estimated seconds; none without bytes and flops.

    A rate is work over time and never a mean of rates (Hoefler and Belli, SC 2015, rule 3). `dtype` is the number type
    of the operations, as "bfloat16" or torch.bfloat16; "tf32" for TensorFloat-32.
    """
    found = []
    if bytes is not None:
        check_positive("bytes", bytes)
        found.append(_rate("bandwidth", estimate, bytes, _peak("bandwidth", device), cold))
    if flops is not None:
        check_positive("flops", flops)
        found.append(_rate("compute", estimate, flops, _peak(_type_name(dtype), device), cold))
    return tuple(found)


def rate_at(rate: Rate, estimate: stats.Estimate, bytes: float | None, flops: float | None) -> Rate:  # noqa: A002
    """The rate of the same work in another time."""
    work = bytes if rate.kind == "bandwidth" else flops
    assert work is not None
    value, low, high = _per_second(work, estimate)
    percent = None if rate.peak is None else 100 * value / rate.peak
    return replace(rate, value=value, low=low, high=high, percent_of_peak=percent)


def _per_second(work: float, estimate: stats.Estimate) -> tuple[float, float, float]:
    value, low, high = (work / time if time > 0 else math.inf for time in (estimate.value, estimate.high, estimate.low))
    return value, low, high


def verdict(found: tuple[Rate, ...]) -> str:
    """One of "memory-bound", "compute-bound" and "latency-bound", by the roofline; empty unless both peaks are known.

    Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
    """
    shares = {rate.kind: rate.percent_of_peak for rate in found}
    memory, compute = shares.get("bandwidth"), shares.get("compute")
    if memory is None or compute is None:
        return ""
    if max(memory, compute) < 100 * BUSY:
        return "latency-bound"
    return "memory-bound" if memory >= compute else "compute-bound"


def _type_name(dtype: object) -> str:
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    name = name.rpartition(".")[2].lower()
    return _SAME.get(name, name)


def _peak(kind: str, device: int) -> Peak:
    if kind not in get_args(Kind):
        return Peak(kind, "FLOP/s", None, None, f"no peak is measured for {kind}")
    try:
        return peak(cast("Kind", kind), device)
    except GpuscopeError as error:
        return Peak(kind, "B/s" if kind == "bandwidth" else "FLOP/s", None, None, str(error))


def _rate(kind: Literal["bandwidth", "compute"], estimate: stats.Estimate, work: float, peak: Peak, cold: bool) -> Rate:
    value, low, high = _per_second(work, estimate)
    return Rate(
        kind=kind,
        value=value,
        low=low,
        high=high,
        unit=peak.unit,
        percent_of_peak=None if peak.measured is None else 100 * value / peak.measured,
        peak=peak.measured,
        limit=peak.theoretical,
        alarm=_alarm(kind, low, peak, cold),
        reason=peak.reason,
    )


def _alarm(kind: str, low: float, peak: Peak, cold: bool) -> str:
    over_peak = peak.measured is not None and low > IMPOSSIBLE * peak.measured
    over_limit = peak.theoretical is not None and low > peak.theoretical
    if not over_peak and not over_limit:
        return ""
    if kind == "compute":
        precision = ", or TensorFloat-32 was used" if peak.kind == "float32" else ""
        return f"more than the device can compute: the operation count is wrong, or work was skipped{precision}"
    causes = ["the byte count is wrong", "work was skipped"]
    causes.insert(len(causes) if cold else 0, "the data stayed in the cache")
    return f"more than the memory can deliver: {', '.join(causes[:-1])}, or {causes[-1]}"
