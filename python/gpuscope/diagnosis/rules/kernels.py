# SPDX-License-Identifier: Apache-2.0
"""Launch configurations of kernels: grids, blocks, registers and local memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.diagnosis.context import Context, Where
from gpuscope.diagnosis.rules.rule import LEAST_OF_KERNELS, SHORTEST_KERNEL_NS, Cause, Rule, kernel_edit, places
from gpuscope.steps.kernel_classes import KernelClass
from gpuscope.steps.steps import Array
from gpuscope.units import format_digits, format_seconds

_LARGE = 0.05  # of the time: smaller kernels get no finding of their own
_TAIL = 0.2  # the smallest loss worth a change (Nsight Compute's rule)
_MOST_WAVES = 4
# Persistent kernels have as many blocks as fit in clusters, which do not cover all multiprocessors (H100: 120 of 132).
_FILLED = 0.9
_WARP = 32
_SHORT_NAME = 60

# Limits of a multiprocessor by compute capability: threads, blocks, bytes of shared memory (CUDA C++ programming
# guide, technical specifications per compute capability). All have 65,536 registers.
_LIMITS = (
    ((12, 0), (1536, 24, 100 << 10)),
    ((10, 0), (2048, 32, 228 << 10)),
    ((9, 0), (2048, 32, 228 << 10)),
    ((8, 9), (1536, 24, 100 << 10)),
    ((8, 6), (1536, 16, 100 << 10)),
    ((8, 0), (2048, 32, 164 << 10)),
    ((7, 5), (1024, 16, 64 << 10)),
    ((7, 0), (2048, 32, 96 << 10)),
)
_REGISTERS = 65_536
_SHARED_OF_SYSTEM = 1 << 10  # reserved bytes per block, from capability 8.0


def _product(context: Context, what: str) -> Array:
    variants = context.trace.variants
    found: Array = np.prod([variants[f"{what}_{axis}"].astype(np.float64) for axis in "xyz"], axis=0)
    return found


def _beside_none(context: Context) -> Array:
    """Whether each kernel ran alone for at least half of its time."""
    rows = context.kernels
    order = np.argsort(context.start_ns[rows], kind="stable")
    starts = context.start_ns[rows][order]
    ends = starts + context.duration_ns[rows][order]
    until = np.maximum.accumulate(ends)
    before = np.append(starts[:1], until[:-1])  # end of the kernels that began earlier
    after = np.append(starts[1:], until[-1:])
    shared = np.clip(np.minimum(before, ends) - starts, 0, None) + np.clip(ends - np.maximum(after, starts), 0, None)
    shared[-1:] = np.clip(np.minimum(before[-1:], ends[-1:]) - starts[-1:], 0, None)
    found = np.empty(len(rows), bool)
    found[order] = 2 * shared <= ends - starts
    return found


def _small_grids(context: Context) -> Iterator[Cause]:
    if len(context.kernels) == 0 or context.multiprocessors == 0 or len(context.trace.variants) == 0:
        return
    fills = np.minimum(1.0, _product(context, "grid") / context.multiprocessors)
    fills[fills >= _FILLED] = 1.0
    if (fills == 1).all():
        return
    assert context.device is not None
    fill = fills[context.kernel_variant]
    duration = context.duration_ns[context.kernels].astype(np.float64)
    # Communication has one block per channel: more work at once adds no blocks.
    duration[context.device.work.classes[context.kernels] == int(KernelClass.COMMUNICATION)] = 0
    saved = np.clip(np.minimum(duration * (1 - fill), duration - SHORTEST_KERNEL_NS), 0, None) * _beside_none(context)
    chosen = saved > 0
    if not chosen.any():
        return
    work, saved = context.kernels[chosen], saved[chosen]
    mean_fill = float((fill * duration).sum() / duration.sum())
    names = _largest(context, context.kernel_variant[chosen], saved)
    blocks = _product(context, "grid")[[variant for variant, _ in names]]
    yield Cause(
        "grids are too small to fill the GPU",
        "run more work at once: a larger batch, more streams, split-K, several requests together",
        kernel_edit(context, work, 1 - saved / duration[chosen]),
        (*_line(context, work, saved), *(Where(kernel=name) for _, name in names)),
        {
            "kernels fill": f"{100 * mean_fill:.0f} % of {context.multiprocessors} multiprocessors",
            "blocks": ", ".join(f"{count:.0f}" for count in blocks.tolist()),
        },
    )


def _tails(context: Context) -> Iterator[Cause]:
    limits = next((values for capability, values in _LIMITS if context.capability >= capability), None)
    if len(context.kernels) == 0 or context.multiprocessors == 0 or limits is None or len(context.trace.variants) == 0:
        return
    variants, (threads, blocks, shared) = context.trace.variants, limits
    block = np.maximum(_product(context, "block"), 1)
    warps = np.ceil(block / _WARP)
    asked = variants.static_shared_bytes.astype(np.float64) + variants.dynamic_shared_bytes + _SHARED_OF_SYSTEM
    # Registers are allocated per warp, 256 at a time (the guide's occupancy calculator).
    registers = warps * np.ceil(np.maximum(variants.registers, 1) * _WARP / 256) * 256
    resident = np.minimum.reduce(
        [np.full(len(block), float(blocks)), threads // (warps * _WARP), shared // asked, _REGISTERS // registers]
    )
    resident = np.maximum(resident, 1)
    waves = _product(context, "grid") / resident / context.multiprocessors
    lost = np.where((waves > 1) & (waves < _MOST_WAVES), 1 - waves / np.ceil(waves), 0.0)
    # This is the loss if a block takes as long alone as with others. If the multiprocessor limits the blocks, the last
    # blocks share it with fewer others and end sooner. The estimate is the mean of both.
    last = np.maximum(waves - np.floor(waves), 1 / resident)
    lost = (lost + np.where(lost > 0, 1 - waves / (np.floor(waves) + last), 0.0)) / 2
    for variant, rows in _large(context, lost >= _TAIL):
        yield Cause(
            "tail effect: a kernel's last wave fills only part of the GPU",
            "choose tiles or a batch that fill whole waves, or use a persistent kernel",
            kernel_edit(context, rows, np.full(len(rows), 1 - lost[variant])),
            _places(context, variant, rows),
            {"waves": format_digits(float(waves[variant]))},
        )


def _odd_blocks(context: Context) -> Iterator[Cause]:
    if len(context.kernels) == 0 or len(context.trace.variants) == 0:
        return
    block = np.maximum(_product(context, "block"), 1)
    lost = 1 - block / (np.ceil(block / _WARP) * _WARP)
    lost[_product(context, "grid") <= 1] = 0  # a single block is latency-bound
    for variant, rows in _large(context, lost > 0):
        yield Cause(
            "the block size is not a multiple of 32",
            "use blocks of 128 or 256 threads",
            kernel_edit(context, rows, np.full(len(rows), 1 - lost[variant])),
            _places(context, variant, rows),
            {"threads": f"{block[variant]:.0f}"},
        )


def _spills(context: Context) -> Iterator[Cause]:
    if len(context.kernels) == 0 or len(context.trace.variants) == 0:
        return
    local = context.trace.variants.local_bytes
    for variant, rows in _large(context, local > 0):
        yield Cause(
            "a kernel uses local memory: registers spill, or arrays are indexed at run time",
            "set launch bounds, keep fewer values live, use smaller tiles, or constant indices",
            where=_places(context, variant, rows),
            evidence={
                "local memory": f"{int(local[variant])} B per thread",
                "": f"{int(context.trace.variants.registers[variant])} registers",
                "each takes": format_seconds(float(np.median(context.duration_ns[rows])) / 1e9),
            },
            share=context.share_of(rows),
        )


def _large(context: Context, meant: Array) -> Iterator[tuple[int, Array]]:
    """The chosen variants with at least 5 % of the time, and their kernels."""
    totals = context.once(_times_of_variants)
    for variant in np.flatnonzero(meant & (totals >= _LARGE * context.wall_ns)).tolist():
        yield variant, context.kernels[context.kernel_variant == variant]


def _times_of_variants(context: Context) -> Array:
    return np.bincount(context.kernel_variant, context.duration_ns[context.kernels], len(context.trace.variants))


def _largest(context: Context, variants: Array, weights: Array) -> list[tuple[int, str]]:
    totals = np.bincount(variants, weights)
    best = [at for at in np.argsort(-totals, kind="stable")[:2].tolist() if totals[at] > 0]
    return [(variant, _short(context, variant)) for variant in best]


def _places(context: Context, variant: int, work: Array) -> tuple[Where, ...]:
    """The line that launched most of this work, if known, and the kernel."""
    return (*_line(context, work, context.duration_ns[work]), Where(kernel=_short(context, variant)))


def _line(context: Context, work: Array, weights: Array) -> tuple[Where, ...]:
    return places(context.places_of(context.work_launch[work], weights)[0])


def _short(context: Context, variant: int) -> str:
    name = context.trace.kernel_names(short=True)[variant]
    return name if len(name) <= _SHORT_NAME else f"{name[: _SHORT_NAME - 3]}..."


RULES = (
    Rule("R29", "grids smaller than the GPU", _small_grids, LEAST_OF_KERNELS),
    Rule("R30", "tail effect", _tails, 0.01),
    Rule("R31", "local memory", _spills, 0.05),
    Rule("R32", "block sizes that are not a multiple of a warp", _odd_blocks, 0.01),
)
