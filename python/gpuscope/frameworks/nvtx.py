# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges and marks of libraries: torch, NCCL, XLA, CuPy, RAPIDS and others.

A library reads NVTX_INJECTION64_PATH once, at its first NVTX call, and keeps that tool. The variable is therefore set
when a profiler is made, and stays set between windows, so that no first call is missed.

The variable is private to this process. It is not in ``os.environ``, and child processes do not inherit it.
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
    from gpuscope.frameworks.observers import Note, ObserverOptions

_VARIABLE = "NVTX_INJECTION64_PATH"
# Index of the environment argument of _posixsubprocess.fork_exec and os.posix_spawn; None is the process's own.
_OF_FORK_EXEC, _OF_POSIX_SPAWN = 5, 2


def observe(options: ObserverOptions, note: Note) -> _InjectionObserver | None:
    """An observer that libraries find from now on, if annotations of libraries are requested."""
    if not options.operators:
        return None
    return _InjectionObserver(note)


class _InjectionObserver:
    """Offers gpuscope as the tool for the first NVTX call of each library."""

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
        """Does nothing: the offer stays for the next window."""

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
    """Wraps Python's functions that pass the process's environment to another program without a fork."""
    start: Any = importlib.import_module("_posixsubprocess")
    entries = _core.environment_of_children
    start.fork_exec = _with_environment(start.fork_exec, _OF_FORK_EXEC, entries)  # used by multiprocessing
    subprocess: Any = sys.modules.get("subprocess")
    if hasattr(subprocess, "_fork_exec"):  # from Python 3.11 it has its own reference
        subprocess._fork_exec = start.fork_exec
    wrapped = {name: _without_variable(getattr(os, name)) for name in ("system", "execv")}
    if sys.version_info >= (3, 13):  # earlier, their environment argument is required
        for name in ("posix_spawn", "posix_spawnp"):
            wrapped[name] = _with_environment(getattr(os, name), _OF_POSIX_SPAWN, _variables)
    for name, function in wrapped.items():
        for module in ("os", "posix"):  # pickle looks in posix
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
    """Whether torch uses NCCL already without our tool: NCCL's first NVTX call is in its initialisation."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized() or "nccl" not in distributed.get_backend():
            return False
    except (AttributeError, RuntimeError, ValueError):  # torch without distributed, or partly imported
        return False
    return not any("nccl" in os.path.basename(library) for library in _core.nvtx_libraries())
