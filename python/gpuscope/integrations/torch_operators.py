# SPDX-License-Identifier: Apache-2.0
"""torch's operators and what its allocators do, by torch's own operator ranges."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from gpuscope._core import TorchRanges
from gpuscope.integrations.late_imports import WhenImported
from gpuscope.integrations.watch import Say, Wanted, Watch

# The names under which torch.autograd.profiler calls torch's own profiler.
_ENABLE = "_enable_profiler"
_DISABLE = "_disable_profiler"

_NO_GRAPH_TASK = -1
_leftovers: set[int] = set()  # threads that ended a window from within a backward pass

_PROBE_BYTES = 12_345_664  # the size that a probe counts


def watch(wanted: Wanted, say: Say) -> Watch | None:
    """The source of torch's operators; None when neither operators nor memory are wanted."""
    return TorchOperators(wanted, say) if wanted.operators or wanted.profile_memory else None


class TorchOperators:
    """Switches torch's operator ranges on for a window, on the thread that opens it and those that work for it.

    torch takes one profiler a thread: where torch.profiler runs already its own is left alone, and where it is started
    inside a window ours steps aside until it ends.
    """

    def __init__(self, wanted: Wanted, say: Say) -> None:
        self._wanted = wanted
        self._say = say
        self._waiting: WhenImported | None = None
        self._thread: int | None = None  # the one on which torch's ranges are on
        self._replaced: dict[str, Any] = {}
        self._aside = 0

    def open(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._waiting = WhenImported("torch", self._begin)

    def close(self) -> None:
        """Ends."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._thread is not None:
            self._switch_off()
        self._give_back()

    def _begin(self) -> None:
        _end_leftover()
        if torch_profiler_runs():
            self._say("torch's operators are not recorded: torch.profiler runs on this thread already")
            return
        shortfall = _shortfall()
        if shortfall is not None:
            self._say(f"torch's operators are not recorded: {shortfall}")
            return
        if self._wanted.profile_memory and not _memory_arrives():
            self._say("torch's allocations are not recorded: this version of torch reports them in another way")
        self._switch_on()
        self._step_aside_for_torch_profiler()

    # -- on and off --------------------------------------------------------------------------------------------------

    def _switch_on(self) -> None:
        wanted = self._wanted
        TorchRanges.want(ranges=wanted.operators, operands=wanted.with_flops, memory=wanted.profile_memory)
        _enable(wanted.record_shapes)
        self._thread = threading.get_ident()
        if wanted.profile_memory and _memory_arrives():
            TorchRanges.watch_memory()

    def _switch_off(self) -> None:
        TorchRanges.want()
        thread, self._thread = self._thread, None
        if thread != threading.get_ident():
            self._say("torch's operator ranges stay on in the thread that began the window, as another one ended it")
            return
        task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", lambda: _NO_GRAPH_TASK)
        if task() != _NO_GRAPH_TASK:
            _leftovers.add(thread)
        _disable()

    # -- torch.profiler inside a window ------------------------------------------------------------------------------

    def _step_aside_for_torch_profiler(self) -> None:
        profiler = sys.modules["torch.autograd.profiler"]
        enable, disable = getattr(profiler, _ENABLE), getattr(profiler, _DISABLE)

        def enable_theirs(*args: Any, **kwargs: Any) -> Any:
            _end_leftover()
            if self._thread == threading.get_ident() and not self._aside:
                self._switch_off()
                self._aside = threading.get_ident()
                self._say("torch's operators are missing where torch.profiler ran inside the window")
            try:
                return enable(*args, **kwargs)
            except BaseException:
                self._return()
                raise

        def disable_theirs(*args: Any, **kwargs: Any) -> Any:
            try:
                return disable(*args, **kwargs)
            finally:
                self._return()

        self._replaced = {_ENABLE: (enable, enable_theirs), _DISABLE: (disable, disable_theirs)}
        for name, (_, ours) in self._replaced.items():
            setattr(profiler, name, ours)

    def _return(self) -> None:
        if self._aside == threading.get_ident():
            self._aside = 0
            if self._replaced:
                self._switch_on()

    def _give_back(self) -> None:
        if _leftovers:
            return  # a profiler of torch's that starts next has to end them first
        profiler = sys.modules.get("torch.autograd.profiler")
        for name, (theirs, ours) in self._replaced.items():
            if getattr(profiler, name, None) is ours:
                setattr(profiler, name, theirs)
        self._replaced = {}
        self._aside = 0


def _end_leftover() -> None:
    """Ends ranges that autograd brought back: it restores what was on when a backward pass began, at its end."""
    if threading.get_ident() in _leftovers:
        _leftovers.discard(threading.get_ident())
        if torch_profiler_runs():
            _disable()


def torch_profiler_runs() -> bool:
    """Whether a profiler of torch's is on, on this thread."""
    autograd = sys.modules.get("torch.autograd")
    enabled: Callable[[], bool] | None = getattr(autograd, "_profiler_enabled", None)
    return enabled is not None and enabled()


@cache
def _shortfall() -> str | None:
    """Why this torch's ranges cannot be had; None when they can. Tried once, with one small operator."""
    import torch

    if not TorchRanges.install():
        return "this version of torch has no place for a tool's ranges"
    try:
        pushes, pops, _ = _probe(lambda: torch.empty(0))
    except Exception as error:
        return f"this version of torch does not switch its ranges on ({error})"
    if pushes < 1 or pops != pushes:
        return "this version of torch hands its ranges over in another way"
    return None


@cache
def _memory_arrives() -> bool:
    """Whether reports of allocations come as expected: tried once, with one tensor on the host, never touched."""
    import torch

    return _probe(lambda: torch.empty(_PROBE_BYTES, dtype=torch.uint8), memory=True)[2] == 1


def _probe(work: Callable[[], object], memory: bool = False) -> tuple[int, int, int]:
    TorchRanges.take_counts()
    TorchRanges.want(probe=True)
    try:
        _enable(False)
        try:
            if memory:
                TorchRanges.watch_memory()
            work()
        finally:
            _disable()
    finally:
        TorchRanges.want()
    pushes, pops, reports = TorchRanges.take_counts()
    return pushes, pops, reports


def _enable(record_shapes: bool) -> None:
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
    from torch.autograd import _enable_profiler, profiler

    config = ProfilerConfig(ProfilerState.NVTX, record_shapes, False, False, False, False, _ExperimentalConfig())
    _enable_profiler(config, set())
    profiler._run_on_profiler_start()


def _disable() -> None:
    from torch.autograd import _disable_profiler, profiler

    _disable_profiler()
    profiler._run_on_profiler_stop()
