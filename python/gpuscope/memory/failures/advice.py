# SPDX-License-Identifier: Apache-2.0
"""What the figures of an out-of-memory error say about its cause, and what would help."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpuscope.memory.events import HOST
from gpuscope.memory.failures.report import OutOfMemory
from gpuscope.memory.sizes import size_text

_NOTEWORTHY = 0.05  # of the device: less in other hands explains nothing
_LARGE_LINE = 0.1  # of what lives


def verdict(report: OutOfMemory) -> str:
    """Whether memory was there, in pieces that are too small; "" when not."""
    pool = report.pool
    if pool is None or report.asked is None or pool.reserved - pool.allocated < report.asked:
        return ""
    cached = f"{size_text(pool.reserved - pool.allocated)} cached by {report.library} are not in use"
    if pool.largest_free is None:
        return f"fragmentation: {cached}, but no free block among them has {size_text(report.asked)}"
    if pool.largest_free >= report.asked:
        return ""
    return f"fragmentation: {cached}, but the largest free block is {size_text(pool.largest_free)}"


def advice(report: OutOfMemory) -> tuple[str, ...]:
    """What would help, most promising first; only what a figure of the report speaks for."""
    found = (rule(report) for rule in _RULES)
    return tuple(text for text in found if text)


def _too_large(report: OutOfMemory) -> str:
    if report.asked is None or report.total is None or report.asked <= report.total:
        return ""
    what = "this host" if report.device == HOST else "this GPU"
    return (
        f"{size_text(report.asked)} in one piece is more than all of {what} ({size_text(report.total)}): look at the "
        "shapes on that line, two of which may have been broadcast against each other"
    )


def _own_limit(report: OutOfMemory) -> str:
    if report.allowed is None or report.asked is None or report.free is None or report.free < report.asked:
        return ""
    return (
        f"the GPU has {size_text(report.free)} free; torch itself is limited to {size_text(report.allowed)}: raise "
        "torch.cuda.set_per_process_memory_fraction()"
    )


def _fragmentation(report: OutOfMemory) -> str:
    if not report.verdict:
        return ""
    if report.library == "torch":
        settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
        if "expandable_segments:True" in settings:
            return "sizes that vary less from step to step, or torch.cuda.empty_cache() between phases, fragment less"
        return "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the program starts: it fragments far less"
    if report.library == "cupy":
        return "cupy.get_default_memory_pool().free_all_blocks() gives the cached blocks back before the next large one"
    return ""


def _other_processes(report: OutOfMemory) -> str:
    others = report.others
    if others is None or not report.total or others < _NOTEWORTHY * report.total:
        return ""
    return (
        f"other processes hold {size_text(others)} of this GPU, this one {size_text(report.process or 0)}: nvidia-smi "
        "names them; end them, or choose another GPU by CUDA_VISIBLE_DEVICES"
    )


def _other_libraries(report: OutOfMemory) -> str:
    ways = {
        "torch": "torch.cuda.empty_cache() gives it back",
        "cupy": "cupy.get_default_memory_pool().free_all_blocks() gives it back",
        "jax": "XLA_PYTHON_CLIENT_PREALLOCATE=false before the start keeps it from taking that in advance",
    }
    for pool in sorted(report.pools, key=lambda each: each.allocated - each.reserved):
        cached = pool.reserved - pool.allocated
        wanted = report.asked if report.asked is not None else _NOTEWORTHY * (report.total or 0)
        if pool.library != report.library and pool.library in ways and cached and cached >= wanted:
            return f"{pool.library} holds {size_text(cached)} that it does not use: {ways[pool.library]}"
    return ""


def _leak(report: OutOfMemory) -> str:
    alive = sum(line.bytes for line in report.largest)
    for line in report.largest:
        if line.growing and line.where and line.bytes >= _LARGE_LINE * alive:
            return (
                f"{line.count} pieces from {line.where} live, {size_text(line.bytes)}, made all through the run: what "
                "keeps them, as a list of losses that are not detached? find_leaks() tells"
            )
    return ""


def _smaller_batch(report: OutOfMemory) -> str:
    held = report.process if report.process is not None else sum(pool.allocated for pool in report.pools) or None
    if report.device == HOST or held is None or report.total is None or report.asked is None or report.verdict:
        return ""
    if report.asked > report.total or held < report.total / 2:
        return ""
    return (
        f"the program itself holds {size_text(held)} of {size_text(report.total)}: a smaller batch needs less, and "
        "find_max_batch_size() finds the largest that fits"
    )


_RULES: tuple[Callable[[Any], str], ...] = (
    _too_large,
    _own_limit,
    _fragmentation,
    _other_processes,
    _other_libraries,
    _leak,
    _smaller_batch,
)
