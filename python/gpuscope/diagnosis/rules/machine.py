# SPDX-License-Identifier: Apache-2.0
"""The machine as a whole: memory, several GPUs, uneven steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.analysis.completeness import is_of_another_tool
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.replay import Edit
from gpuscope.diagnosis.rules.launches import launched_at_once, of_launches
from gpuscope.diagnosis.rules.rule import LEAST, SPECIAL, Cause, Rule, count_of, host_edit, needs, places
from gpuscope.steps.breakdown import IDLE
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.kernel_classes import KernelClass
from gpuscope.trace import number_of
from gpuscope.units import format_bytes, format_seconds, format_share

_HALF = 0.5
_FULL = 0.9  # the limit of PyTorch's TensorBoard plugin
_UNEVEN = 1.3
_STARTS_UP = 3  # times the median step
_FEWEST_SLOW = 2  # a single slow step may wait for work queued before it
_MOST_SLOW = 3  # that are named
_FEWEST_STEPS = 10  # for a meaningful 95th percentile


def _peak_share(context: Context) -> float | None:
    """Peak share of the GPU's memory that was reserved; None if it was not recorded."""
    trace = context.trace
    if context.device is None:
        return None
    held = trace.memory.reserved_bytes[trace.memory.ordinal == context.device.device]
    rows = np.flatnonzero(trace.devices.ordinal == context.device.device)
    total = int(trace.devices.memory_bytes[rows[0]]) if len(rows) else 0
    return float(held.max()) / total if len(held) and total else None


def _small_batch(context: Context) -> Iterator[Cause]:
    peak = _peak_share(context)
    if peak is None or peak > _HALF or len(context.kernels) == 0 or context.multiprocessors == 0:
        return
    assert context.device is not None
    variants = context.trace.variants
    blocks = np.prod([variants[f"grid_{axis}"].astype(np.float64) for axis in "xyz"], axis=0)
    fill = np.minimum(1.0, blocks / context.multiprocessors)[context.kernel_variant]
    duration = context.duration_ns[context.kernels]
    if float((fill * duration).sum()) > _HALF * context.wall_ns:
        return
    launches = np.flatnonzero(context.launches & (context.call_step >= 0))
    yield Cause(
        "the batch is too small for the GPU",
        "use a larger batch: gpuscope.find_max_batch_size(model, shape) finds the largest",
        Edit(
            host_spans=launched_at_once(context, of_launches(context), launches),
            kernels=context.device.work.rows[context.kernels],
            kernel_factors=fill,
        ),
        where=(),
        evidence={
            "peak memory": format_share(peak),
            "GPU filled": format_share(float((fill * duration).sum()) / max(context.wall_ns, 1)),
        },
    )


def _full_memory(context: Context) -> Iterator[Cause]:
    peak, failed = _peak_share(context), len(context.trace.failed_allocations)
    if (peak is None or peak < _FULL) and failed == 0:
        return
    evidence = {"peak": f"{format_share(peak)} of the GPU's memory"} if peak is not None else {}
    if failed:
        asked = int(context.trace.failed_allocations.bytes.max())
        evidence["failed"] = f"{count_of(failed, 'allocation')}, of up to {format_bytes(asked)}"
    yield Cause(
        "the GPU's memory is nearly full",
        "use activation checkpointing, mixed precision, or a smaller batch with gradient accumulation; where memory is "
        "fragmented (gpuscope.fragmentation()): PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        evidence=evidence,
        share=0.0,
    )


def _of_job(context: Context, what: str) -> str:
    """Where the answer for all ranks is; "" for a program of one process."""
    is_alone = number_of(context.trace.info, "process.world_size") <= 1
    return "" if is_alone else f"; gpuscope fleet, on the recordings of all ranks, {what}"


def _communication(context: Context) -> Iterator[Cause]:
    if context.device is None:
        return
    work = context.kernels_of_class(KernelClass.COMMUNICATION)
    if len(work) == 0:
        return
    exposed = context.exposed_ns(work)
    duration = context.duration_ns[work]
    where = places(*context.places_of(context.work_launch[work], duration)[:2])
    yield Cause(
        "communication does not overlap with compute",
        "overlap it with the backward pass (DDP's buckets, FSDP's prefetch), send less, or check the topology"
        + _of_job(context, "separates its transfers from waits for late ranks"),
        Edit(
            kernels=context.device.work.rows[work],
            kernel_factors=1 - exposed / np.maximum(duration, 1),
        ),
        where,
        {"overlapped": format_share(1 - float(exposed.sum()) / max(float(duration.sum()), 1))},
    )


def _unused_gpus(context: Context) -> Iterator[Cause]:
    devices = context.breakdown.devices
    # Other tools list all GPUs of the machine, with other numbers than the work has.
    if not devices or context.wall_ns == 0 or is_of_another_tool(context.trace):
        return
    busy = {each.device: 1 - each.idle_ns / context.wall_ns for each in devices}
    known = {int(number) for number in context.trace.devices.ordinal}
    # Other ranks of a job use the GPUs that this process does not use.
    is_alone = number_of(context.trace.info, "process.world_size") <= 1
    unused = sorted(known - set(busy)) if is_alone else []
    most = max(busy.values())
    lazy = [number for number, share in sorted(busy.items()) if share < _HALF * most]
    if not unused and not lazy:
        return
    evidence = {f"GPU {number}": "no work" for number in unused}
    evidence |= {f"GPU {number}": f"busy {format_share(busy[number])}" for number in busy}
    yield Cause(
        "a GPU has little or nothing to do",
        "start one process per GPU (torchrun --nproc-per-node), or leave it to others; check why it is idle"
        + _of_job(context, "compares it with the GPUs of the other ranks"),
        evidence=evidence,
        share=(len(unused) + sum(1 - busy[number] / most for number in lazy)) / len(known | set(busy)),
    )


def _uneven(context: Context) -> Iterator[Cause]:
    durations = context.steps.durations_ns.astype(np.float64)
    if len(durations) < _FEWEST_STEPS or context.device is None:
        return
    usual, slow = np.quantile(durations, (0.5, 0.95))
    chosen = durations > _UNEVEN * usual
    if slow <= _UNEVEN * usual or not chosen.any():
        return
    parts = context.device.parts
    growth = [float(part.per_step_ns[chosen].mean() - np.median(part.per_step_ns)) for part in parts]
    part = parts[int(np.argmax(growth))]
    extra = float((durations[chosen] - usual).sum())
    edit, pieces = None, context.pieces
    cause = next((each for each in IdleCause if each.label == part.name), None)
    if part.kind == IDLE and cause is not None:
        rows = np.flatnonzero(chosen[pieces.step] & (pieces.cause_ns[cause] > 0))
        edit = host_edit(context, rows, (cause,))
    first = np.flatnonzero(chosen)[:_MOST_SLOW]
    numbers = first if context.steps.numbers is None else context.steps.numbers[first]
    yield Cause(
        f"uneven steps: the extra time is {part.name}",
        f"look at step{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers.tolist()))}, counted from 0; what else "
        "ran then?",
        edit or Edit(),
        evidence={
            "p50": format_seconds(float(usual) / 1e9),
            "p95": format_seconds(float(slow) / 1e9),
            "slow steps": f"{int(chosen.sum())} of {len(durations)}",
            part.name: f"{format_seconds(max(growth) / 1e9)} more in slow steps",
        },
        share=None if edit is not None else extra / max(context.wall_ns, 1),
        is_rare=True,
    )


def _start_up(context: Context) -> Iterator[Cause]:
    durations = context.steps.durations_ns.astype(np.float64)
    if len(durations) < _FEWEST_STEPS:
        return
    usual = float(np.median(durations))
    first = int(np.argmax(durations <= _STARTS_UP * usual))  # number of steps before the first usual one
    if first < _FEWEST_SLOW:
        return
    overheads = context.trace.overheads
    inside = (overheads.start_ns >= context.steps.start_ns[0]) & (overheads.start_ns < context.steps.end_ns[first - 1])
    evidence = {
        "they take": f"{format_seconds(float(durations[:first].mean()) / 1e9)} each",
        "later steps": format_seconds(usual / 1e9),
    }
    if inside.any():
        evidence["loading code in the driver"] = format_seconds(float(overheads.duration_ns[inside].sum()) / 1e9)
    yield Cause(
        f"the first {first} steps are warm-up, which blurs the other findings",
        "record later steps: profile(schedule=gpuscope.schedule(wait=..., warmup=..., active=...))",
        evidence=evidence,
        share=float((durations[:first] - usual).sum()) / max(context.wall_ns, 1),
        is_rare=True,
    )


_MEMORY = needs(
    "memory and batch size: profile_memory=True, --profile-memory",
    lambda context: len(context.trace.memory) or context.device is None,
)

RULES = (
    Rule("R28", "warm-up steps in the recording", _start_up, 0.01),
    Rule("R41", "a batch that is too small", _small_batch, 0.05, _MEMORY, weight=SPECIAL),
    Rule("R42", "memory that is nearly full", _full_memory, 0.0),
    Rule("R46", "communication that does not overlap", _communication, LEAST),
    Rule("R47", "GPUs without work", _unused_gpus, 0.05),
    Rule("R48", "uneven steps", _uneven, 0.03),
)
