# SPDX-License-Identifier: Apache-2.0
"""Ranges and marks that libraries make through NVTX: torch, NCCL, XLA, CuPy, RAPIDS and whatever else uses it.

A library looks for its tool once, at its first NVTX call, in the variable NVTX_INJECTION64_PATH; from then on its
ranges go there or nowhere. So the variable is set as soon as a profiler is made, and kept when the window is over: a
library that makes its first call between two windows would otherwise be lost to the second one. While nobody listens, a
range costs a library a few ns. Child processes inherit the variable: a Python one loads the extension module at its
first NVTX call, without the package; in any other that fails, and NVTX stays off as it would have been.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpuscope import _core

if TYPE_CHECKING:
    from gpuscope.frameworks.observers import Note, Options

_VARIABLE = "NVTX_INJECTION64_PATH"


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
            os.environ[_VARIABLE] = path


def _nccl_was_before_us() -> bool:
    """Whether torch uses NCCL already and NCCL has not found us: its first NVTX call is within its initialisation."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized() or "nccl" not in distributed.get_backend():
            return False
    except (AttributeError, RuntimeError, ValueError):  # torch built without it, or half imported
        return False
    return not any("nccl" in os.path.basename(library) for library in _core.nvtx_libraries())
