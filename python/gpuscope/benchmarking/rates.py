# SPDX-License-Identifier: Apache-2.0
"""Bytes and operations a second, against what the device reaches; which of the two is the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

from gpuscope import errors, stats
from gpuscope.benchmarking import peaks

# Over the measured peak by more than the measurement's own uncertainty.
IMPOSSIBLE = 1.05

# Below this part of both peaks neither is the bound: the rule of Nsight Compute's section "speed of light".
BUSY = 0.6

_SAME = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "tfloat32": "tf32"}


@dataclass(frozen=True)
class Rate:
    """Work a second, and how it compares with what the device can do.

    Attributes:
        kind: "bandwidth" or "compute".
        value: work over the centre of the time's interval; low and high are work over its other two ends, in the
            unit "B/s" or "FLOP/s".
        percent_of_peak: of the measured peak; None without one.
        peak: the measured peak, in the same unit; None when it could not be measured.
        limit: the theoretical limit; None when unknown.
        alarm: why the rate cannot be true; empty when it can.
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


def rates(
    estimate: stats.Estimate,
    bytes: float | None = None,  # noqa: A002 - the name users give it by
    flops: float | None = None,
    dtype: object = "float32",
    device: int = 0,
    cold: bool = True,
) -> tuple[Rate, ...]:
    """The rates of a call that takes the estimated seconds; none without bytes and flops.

    A rate is work over time and never a mean of rates (Hoefler and Belli, SC 2015, rule 3).

    Args:
        estimate: seconds a call.
        bytes: read and written by a call.
        flops: floating-point operations of a call.
        dtype: what the operations are in, as "bfloat16" or torch.bfloat16; "tf32" for TensorFloat-32.
        device: whose peaks to compare with.
        cold: whether the cache was emptied before each call.

    Raises:
        InvalidArgument: bytes or flops is not above 0.
    """
    found = []
    if bytes is not None:
        _check("bytes", bytes)
        found.append(_rate("bandwidth", estimate, bytes, _peak("bandwidth", device), cold))
    if flops is not None:
        _check("flops", flops)
        found.append(_rate("compute", estimate, flops, _peak(_type_name(dtype), device), cold))
    return tuple(found)


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


def _check(name: str, work: float) -> None:
    if not (work > 0 and math.isfinite(work)):
        raise errors.InvalidArgument(f"{name} is {work!r}; accepted are numbers above 0")


def _type_name(dtype: object) -> str:
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    name = name.rpartition(".")[2].lower()
    return _SAME.get(name, name)


def _peak(kind: str, device: int) -> peaks.Peak:
    if kind not in get_args(peaks.Kind):
        return peaks.Peak(kind, "FLOP/s", None, None, f"no peak is measured for {kind}")
    try:
        return peaks.peak(cast("peaks.Kind", kind), device)
    except errors.GpuscopeError as error:
        return peaks.Peak(kind, "B/s" if kind == "bandwidth" else "FLOP/s", None, None, str(error))


def _rate(
    kind: Literal["bandwidth", "compute"], estimate: stats.Estimate, work: float, peak: peaks.Peak, cold: bool
) -> Rate:
    value, low, high = (work / time if time > 0 else math.inf for time in (estimate.value, estimate.high, estimate.low))
    return Rate(
        kind=kind,
        value=value,
        low=low,
        high=high,
        unit=peak.unit,
        percent_of_peak=None if peak.measured is None else 100 * value / peak.measured,
        peak=peak.measured,
        limit=peak.theoretical,
        alarm=_alarm(kind, value, peak, cold),
        reason=peak.reason,
    )


def _alarm(kind: str, value: float, peak: peaks.Peak, cold: bool) -> str:
    over_peak = peak.measured is not None and value > IMPOSSIBLE * peak.measured
    over_limit = peak.theoretical is not None and value > peak.theoretical
    if not over_peak and not over_limit:
        return ""
    if kind == "compute":
        precision = ", or TensorFloat-32 was used" if peak.kind == "float32" else ""
        return f"more than the device can compute: the operation count is wrong, or work was skipped{precision}"
    causes = ["the byte count is wrong", "work was skipped"]
    causes.insert(len(causes) if cold else 0, "the data stayed in the cache")
    return f"more than the memory can deliver: {', '.join(causes[:-1])}, or {causes[-1]}"
