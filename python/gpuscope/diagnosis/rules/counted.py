# SPDX-License-Identifier: Apache-2.0
"""What hardware counters say of kernels and of a GPU that others use too.

Of kernels that are shorter than five samples, half a millisecond by default, nothing is said.
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
from gpuscope.diagnosis.claims import Claim
from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.idle import IdleCause
from gpuscope.diagnosis.kernel_classes import KernelClass
from gpuscope.diagnosis.rules.rule import Cause, Rule, places
from gpuscope.diagnosis.steps import Array
from gpuscope.units import format_share

# Copies on the GPU reach nine tenths of the memory's peak (H100: 3.0 of 3.35 TB/s); bound by it is what reaches seven
# tenths of that, and less than half of the tensor cores (limits of Nsight Compute and XProf).
_MEMORY_BOUND, _TENSOR_BOUND = 65.0, 50.0
# Slow is what reaches less of each unit, has warps for less, and could fill the GPU (Nsight Compute's limit).
_SLOW = 60.0
_LARGE = 0.05
_MOST_KERNELS = 3
_WORKS = 5.0  # of the multiprocessors: with nothing to do they are at 0
_UNITS = (DRAM_READ, DRAM_WRITE, TENSOR_ACTIVE, INSTRUCTIONS, FMA_INSTRUCTIONS, FP64_ACTIVE)
_LIBRARIES = (KernelClass.TENSOR_PRODUCT, KernelClass.PRODUCT, KernelClass.ATTENTION, KernelClass.COMMUNICATION)


def _of_kernels(context: Context, *metrics: str) -> Array | None:
    """A row a metric, a column a kernel of the steps, in percent; nan where it was too short. None without a metric."""
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
        "kernels are as fast as the GPU's memory lets them",
        "read and write less: fuse what follows each other (torch.compile), narrower types, compute again what is "
        "cheap to compute",
        Claim(),
        where=places(*context.places_of(context.work_launch[work], duration)[:2]),
        evidence={"they move": f"{reached:.0f} % of what the memory could at most"},
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
            "a kernel uses neither the memory nor the units of the GPU: it waits for single reads, or for itself",
            "reads that follow each other, more of them at once, fewer barriers, more threads: "
            "gpuscope.measure_counters(fn) has the figures of one call",
            Claim(),
            where=places(line, Where(kernel=context.trace.kernel_names(short=True)[variant])),
            evidence={
                "it reaches": f"{float(reached[here].mean()):.0f} % of the busiest unit",
                "warps": f"{float(values[0][here].mean()):.0f} % of those that there is room for",
            },
            share=context.share_of(context.kernels[here]),
        )


def _shared_gpu(context: Context) -> Iterator[Cause]:
    """Another process's work runs where this one's is queued, or the GPU goes back and forth between the two."""
    counters = context.counters
    if counters is None or context.wall_ns == 0 or SM_ACTIVE not in counters.metrics:
        return
    assert context.device is not None
    device, first_ns, last_ns = context.device.device, int(context.steps.start_ns[0]), int(context.steps.end_ns[-1])
    switching = counters.mean(first_ns, last_ns, device).get(CONTEXT_SWITCHES, 0.0)
    switched = switching / 100 if switching == switching else 0.0
    # Samples that lie wholly in idle time of work that was queued.
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
        "leave the GPU to one process (nvidia-smi shows them), or share it by MPS or MIG",
        Claim(),
        evidence={
            "ran others' work while this one's was queued": format_share(others_ns / context.wall_ns),
            "went from one process to the other": format_share(switched),
        },
        share=min(others_ns / context.wall_ns + switched, 1.0),
    )


def _lacks_counters(context: Context) -> str | None:
    if context.device is None or len(context.trace.counter_samples):
        return None
    return "what kernels are bound by, and other processes on the GPU: counters='why', --counters why"


RULES = (
    Rule("R37", "kernels that memory bounds", _memory_bound, 0.20, _lacks_counters, is_note=True),
    Rule("R38", "slow kernels", _slow, 0.05, _lacks_counters),
    Rule("R45", "a GPU that others use too", _shared_gpu, 0.03, _lacks_counters),
)
