# SPDX-License-Identifier: Apache-2.0
"""Switching torch's own profiler on and off on the calling thread, and whether this torch lets us."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

from gpuscope._core import TorchRanges

_PROBE_BYTES = 12_345_664  # the size that a probe counts


def torch_profiles() -> bool:
    """Whether a profiler of torch's is on, on this thread, be it ours."""
    autograd = sys.modules.get("torch.autograd")
    enabled: Callable[[], bool] | None = getattr(autograd, "_profiler_enabled", None)
    return enabled is not None and enabled()


@cache
def shortfall() -> str:
    """Why this torch's ranges cannot be had; "" when they can. Tried once, with one small operator."""
    import torch

    if not TorchRanges.install():
        return "this version of torch has no place for a tool's ranges"
    try:
        pushes, pops, _ = _probe(lambda: torch.empty(0))
    except Exception as error:
        return f"this version of torch does not switch its ranges on ({error})"
    if pushes < 1 or pops != pushes:
        return "this version of torch hands its ranges over in another way"
    memory_arrives()  # tried now, as it can be tried only while torch's profiler is off
    return ""


@cache
def memory_arrives() -> bool:
    """Whether reports of allocations come as expected: tried once, with one tensor on the host, never touched."""
    import torch

    return _probe(lambda: torch.empty(_PROBE_BYTES, dtype=torch.uint8), memory=True)[2] == 1


def _probe(work: Callable[[], object], memory: bool = False) -> tuple[int, int, int]:
    TorchRanges.take_counts()
    TorchRanges.probe(True)
    try:
        enable(record_shapes=False, told=False)
        try:
            if memory:
                TorchRanges.watch_memory(keep_ranges=True)
            work()
        finally:
            disable(told=False)
    finally:
        TorchRanges.probe(False)
    pushes, pops, reports = TorchRanges.take_counts()
    return pushes, pops, reports


def enable(record_shapes: bool, told: bool) -> None:
    """Switches it on; `told`: torch's Python code is to know, which then names its own ranges."""
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
    from torch.autograd import _enable_profiler, profiler

    config = ProfilerConfig(ProfilerState.NVTX, record_shapes, False, False, False, False, _ExperimentalConfig())
    _enable_profiler(config, set())
    if told:
        profiler._run_on_profiler_start()


def disable(told: bool) -> None:
    """Switches it off."""
    from torch.autograd import _disable_profiler, profiler

    _disable_profiler()
    if told:
        profiler._run_on_profiler_stop()
