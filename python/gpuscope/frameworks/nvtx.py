# SPDX-License-Identifier: Apache-2.0
"""Ranges and marks that libraries make through NVTX: torch, NCCL, XLA, CuPy, RAPIDS and whatever else uses it.

A library looks for its tool once, at its first NVTX call, in the variable NVTX_INJECTION64_PATH; from then on its
ranges go there or nowhere. So the variable is set as soon as a profiler is made, and kept when the window is over: a
library that makes its first call between two windows would otherwise be lost to the second one. While nobody listens, a
range costs a library a few ns.

The variable is of this process alone: it is not in ``os.environ``, forked children begin without it, and what Python
starts by other means than fork is given an environment that lacks it.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuscope import _core

if TYPE_CHECKING:
    from gpuscope.frameworks.observers import Note, Options

_VARIABLE = "NVTX_INJECTION64_PATH"
# The argument of _posixsubprocess.fork_exec and of os.posix_spawn; None for the process's own.
_OF_FORK_EXEC, _OF_POSIX_SPAWN = 5, 2


def observe(options: Options, note: Note) -> _InjectionObserver | None:
    """Lets libraries find us from now on, when annotations of libraries are asked for."""
    if not options.operators:
        return None
    return _InjectionObserver(note)


class _InjectionObserver:
    """Offers this process as the tool of every library that makes its first NVTX call from now on."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._offer()

    def start(self) -> None:
        self._offer()
        if _nccl_was_before_us():
            self._note(
                "NVTX ranges of NCCL are missing: it began before the profiler was made; make the profiler before "
                "init_process_group, or start the program with gpuscope run"
            )

    def stop(self) -> None:
        """It ends; nothing changes, for the next window."""

    def _offer(self) -> None:
        taken = os.environ.get(_VARIABLE)
        path = _core.own_file()
        if taken and taken != path:
            self._note(f"NVTX ranges of libraries go to another tool: {_VARIABLE} is {taken}")
        elif path and not taken:
            _keep_from_children()
            _core.offer_nvtx()


@functools.cache
def _keep_from_children() -> None:
    """Wraps those of Python's functions that hand the process's own environment to another program without a fork."""
    start: Any = importlib.import_module("_posixsubprocess")
    entries = _core.environment_of_children
    start.fork_exec = _with_environment(start.fork_exec, _OF_FORK_EXEC, entries)  # where multiprocessing finds it
    subprocess: Any = sys.modules.get("subprocess")
    if hasattr(subprocess, "_fork_exec"):  # from Python 3.11 on it has taken it already
        subprocess._fork_exec = start.fork_exec
    wrapped = {name: _without_variable(getattr(os, name)) for name in ("system", "execv")}
    if sys.version_info >= (3, 13):  # before, they must be given an environment
        for name in ("posix_spawn", "posix_spawnp"):
            wrapped[name] = _with_environment(getattr(os, name), _OF_POSIX_SPAWN, _variables)
    for name, function in wrapped.items():
        for module in ("os", "posix"):  # the latter is where pickle looks for it
            setattr(sys.modules[module], name, function)


def _with_environment(function: Callable[..., Any], at: int, make: Callable[[], object]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if len(args) > at and args[at] is None:
            args = (*args[:at], make(), *args[at + 1 :])
        return function(*args, **named)

    return call


def _variables() -> dict[bytes, bytes]:
    entries = (entry.partition(b"=") for entry in _core.environment_of_children())
    return {name: value for name, equals, value in entries if name and equals}


def _without_variable(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        offered = _core.withdraw_nvtx()
        try:
            return function(*args, **named)
        finally:
            if offered:
                _core.offer_nvtx()

    return call


def _nccl_was_before_us() -> bool:
    """Whether torch uses NCCL already and NCCL has not found us: its first NVTX call is within its initialisation."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized() or "nccl" not in distributed.get_backend():
            return False
    except (AttributeError, RuntimeError, ValueError):  # torch built without it, or half imported
        return False
    return not any("nccl" in os.path.basename(library) for library in _core.nvtx_libraries())
