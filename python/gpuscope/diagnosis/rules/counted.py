# SPDX-License-Identifier: Apache-2.0
"""Findings from hardware counters: memory-bound and slow kernels, other processes on the GPU.

Kernels shorter than five samples, half a millisecond by default, are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.counters.names import (
    CONTEXT_SWITCHES,
    DRAM_READ,
    DRAM_WRITE,
    FMA_INSTRUCTIONS,
    FP64_ACTIVE,
    INSTRUCTIONS,
    SM_ACTIVE,
    TENSOR_ACTIVE,
    WARPS_ACTIVE,
)
from gpuscope.counters.timelines import timelines
from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.rules.rule import SPECIAL, Cause, Rule, needs, places
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.kernel_classes import KernelClass
from gpuscope.steps.steps import Array
from gpuscope.units import format_share

# Copies on the GPU reach nine tenths of the peak memory bandwidth (H100: 3.0 of 3.35 TB/s). A memory-bound kernel
# reaches seven tenths of that, and less than half of the tensor cores (limits of Nsight Compute and XProf).
_MEMORY_BOUND, _TENSOR_BOUND = 65.0, 50.0
# A slow kernel has a grid that fills the GPU, and is below this limit of Nsight Compute in each unit and in warps.
_SLOW = 60.0
_LARGE = 0.05
_MOST_KERNELS = 3
_WORKS = 5.0  # percent of the multiprocessors; idle ones are at 0
_UNITS = (DRAM_READ, DRAM_WRITE, TENSOR_ACTIVE, INSTRUCTIONS, FMA_INSTRUCTIONS, FP64_ACTIVE)
_LIBRARIES = (KernelClass.TENSOR_PRODUCT, KernelClass.PRODUCT, KernelClass.ATTENTION, KernelClass.COMMUNICATION)


def _of_kernels(context: Context, *metrics: str) -> Array | None:
    """Metrics of the kernels of the steps in percent, of shape (metrics, kernels); None if a metric is missing.

    Kernels that are too short have nan.
    """
    counters = context.counters
    if counters is None or len(context.kernels) == 0 or not set(metrics) <= set(counters.metrics):
        return None
    assert context.device is not None
    columns = [counters.metrics.index(metric) for metric in metrics]
    found: Array = counters.kernel_values()[context.device.work.rows[context.kernels]][:, columns].T
    return found


def _memory_bound(context: Context) -> Iterator[Cause]:
    values = _of_kernels(context, DRAM_READ, DRAM_WRITE, TENSOR_ACTIVE)
    if values is None or context.wall_ns == 0:
        return
    memory = values[0] + values[1]
    chosen = (memory >= _MEMORY_BOUND) & (values[2] < _TENSOR_BOUND)
    work = context.kernels[chosen]
    if len(work) == 0:
        return
    duration = context.duration_ns[work].astype(np.float64)
    reached = float((memory[chosen] * duration).sum() / duration.sum())
    yield Cause(
        "kernels are memory-bound",
        "read and write less: fuse consecutive kernels (torch.compile), use narrower types, in-place operations and "
        "smaller intermediates, recompute cheap values; in own kernels, use tiles",
        where=places(*context.places_of(context.work_launch[work], duration)[:2]),
        evidence={"they reach": f"{reached:.0f} % of the peak memory bandwidth"},
        share=context.share_of(work),
    )


def _slow(context: Context) -> Iterator[Cause]:
    counters = context.counters
    known = [metric for metric in _UNITS if counters is not None and metric in counters.metrics]
    values = _of_kernels(context, WARPS_ACTIVE, *known)
    if values is None or {DRAM_READ, DRAM_WRITE, INSTRUCTIONS} - set(known) or context.multiprocessors == 0:
        return
    assert context.device is not None
    memory = values[1 + known.index(DRAM_READ)] + values[1 + known.index(DRAM_WRITE)]
    reached = np.maximum(values[1:].max(axis=0), memory)
    variants = context.trace.variants
    blocks = np.prod([variants[f"grid_{axis}"].astype(np.float64) for axis in "xyz"], axis=0)[context.kernel_variant]
    chosen = (reached < _SLOW) & (values[0] < _SLOW) & (blocks >= context.multiprocessors)
    chosen &= ~np.isin(context.device.work.classes[context.kernels], list(map(int, _LIBRARIES)))
    duration = np.where(chosen, context.duration_ns[context.kernels], 0).astype(np.float64)
    totals = np.bincount(context.kernel_variant, duration, len(variants))
    for variant in np.argsort(-totals, kind="stable")[:_MOST_KERNELS].tolist():
        if totals[variant] < _LARGE * context.wall_ns or totals[variant] == 0:
            break
        here = chosen & (context.kernel_variant == variant)
        line = context.places_of(context.work_launch[context.kernels[here]], duration[here])[0]
        yield Cause(
            "a kernel is latency-bound: it uses neither the memory bandwidth nor the compute units",
            "coalesce reads, issue more at once, use fewer barriers or more threads; "
            "gpuscope.measure_counters(fn) measures one call",
            where=places(line, Where(kernel=context.trace.kernel_names(short=True)[variant])),
            evidence={
                "it reaches": f"{float(reached[here].mean()):.0f} % of the busiest unit",
                "occupancy": f"{float(values[0][here].mean()):.0f} %",
            },
            share=context.share_of(context.kernels[here]),
        )


def _shared_gpu(context: Context) -> Iterator[Cause]:
    """Another process runs on the GPU while work of this one is queued, or the GPU switches between processes."""
    counters = context.counters
    if counters is None or context.wall_ns == 0 or SM_ACTIVE not in counters.metrics:
        return
    assert context.device is not None
    device, first_ns, last_ns = context.device.device, int(context.steps.start_ns[0]), int(context.steps.end_ns[-1])
    switching = counters.mean(first_ns, last_ns, device).get(CONTEXT_SWITCHES, 0.0)
    switched = switching / 100 if switching == switching else 0.0
    # Samples that are completely inside idle time with queued work.
    pieces, timeline = context.pieces, timelines(context.trace, [counters.metrics.index(SM_ACTIVE)])[device]
    held = np.flatnonzero(2 * pieces.cause_ns[IdleCause.DEVICE_WAIT] > pieces.end_ns - pieces.start_ns)
    first, after = timeline.whole(pieces.start_ns[held], pieces.end_ns[held])
    inside = np.zeros(len(timeline.start_ns) + 1, np.int64)
    np.add.at(inside, first[after > first], 1)
    np.add.at(inside, after[after > first], -1)
    others = (np.cumsum(inside)[:-1] > 0) & (timeline.rates[:, 0] >= _WORKS)
    others_ns = float((timeline.end_ns - timeline.start_ns)[others].sum())
    if others_ns == 0 and switched == 0:
        return
    yield Cause(
        "another process uses the GPU at the same time",
        "run one process on the GPU (nvidia-smi lists them), or share it with MPS or MIG",
        evidence={
            "ran other processes while this one's work was queued": format_share(others_ns / context.wall_ns),
            "switched between processes": format_share(switched),
        },
        share=min(others_ns / context.wall_ns + switched, 1.0),
    )


_COUNTERS = needs(
    "memory-bound kernels, other processes on the GPU: counters='why', --counters why",
    lambda context: context.device is None or len(context.trace.counter_samples),
)


RULES = (
    Rule("R37", "memory-bound kernels", _memory_bound, 0.20, _COUNTERS, is_note=True),
    Rule("R38", "latency-bound kernels", _slow, 0.05, _COUNTERS),
    Rule("R45", "other processes on the GPU", _shared_gpu, 0.03, _COUNTERS, weight=SPECIAL),
)
