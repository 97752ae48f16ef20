# SPDX-License-Identifier: Apache-2.0
"""Which part of a training step an allocation of PyTorch was made in, from the call stack and the thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.events import Frame, MemoryEvents

UNKNOWN, OUTSIDE, SETUP, FORWARD, BACKWARD, OPTIMIZER = range(6)
"""Phases: no stack is known; code around the model; a module being made or moved; its forward; autograd; a step."""

_CALL = {"__call__", "_wrapped_call_impl", "_call_impl", "_slow_forward", "inner"}
_MOVE = {"_apply", "to", "cuda", "to_empty", "half", "float", "double", "bfloat16", "load_state_dict"}
_MAKE = {"__init__", "reset_parameters"}


def phase_of(frames: Sequence[Frame]) -> int:
    """The phase that a call stack tells; the innermost frame that tells one counts.

    A forward that is computed again within a backward (checkpointing) is a forward therefore.
    """
    for frame in frames:
        _, found, file = frame.file.replace("\\", "/").rpartition("/torch/")
        if not found:
            continue
        function = frame.function.rpartition(".")[2]
        if (file == "_tensor.py" and function == "backward") or file in ("autograd/__init__.py", "autograd/graph.py"):
            return BACKWARD
        if file == "autograd/function.py" and function == "apply" and "BackwardCFunction" in frame.function:
            return BACKWARD
        if file.startswith("optim/") and (function in ("step", "zero_grad") or file == "optim/optimizer.py"):
            return OPTIMIZER if function != "__init__" else SETUP
        if file == "nn/modules/module.py" and function in _CALL:
            return FORWARD
        if (file == "nn/modules/module.py" and function in _MOVE) or (file.startswith("nn/") and function in _MAKE):
            return SETUP
    return OUTSIDE if frames else UNKNOWN


def event_phases(events: MemoryEvents) -> NDArray[np.uint8]:
    """The phase of each event, shape (events,).

    Autograd computes backward on threads of its own, which run no Python: an event without a stack on a thread that
    has none at all is BACKWARD, as long as other threads have stacks. Elsewhere an event without a stack, as a release
    may be, belongs to what its thread did before. Files of snapshots tell no threads; there no stack means BACKWARD.
    """
    stacks, rows = np.unique(events.stack, return_inverse=True)
    by_stack = np.array([phase_of(events.frames(int(stack))) for stack in stacks], dtype=np.uint8)
    phases = by_stack[rows.reshape(-1)] if len(stacks) else np.zeros(0, dtype=np.uint8)
    known = phases != UNKNOWN
    if not known.any():
        return phases
    for thread in np.unique(events.thread):
        own = events.thread == thread
        if thread == 0:
            phases[own & ~known & (events.bytes > 0)] = BACKWARD
        elif not (own & known).any():
            phases[own] = BACKWARD
    return _filled(phases, events.thread)


def _filled(phases: NDArray[np.uint8], threads: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Unknown ones take the phase of what came before on their thread."""
    order = np.argsort(threads, kind="stable")
    sorted_phases, sorted_threads = phases[order], threads[order]
    first = np.flatnonzero(np.diff(sorted_threads.astype(np.int64), prepend=-1) != 0)
    start_of_thread = np.zeros(len(order), dtype=np.int64)
    start_of_thread[first] = first
    start_of_thread = np.maximum.accumulate(start_of_thread)
    last = np.where(sorted_phases != UNKNOWN, np.arange(len(order)), 0)
    last = np.maximum(np.maximum.accumulate(last), start_of_thread)
    filled = np.empty_like(phases)
    filled[order] = sorted_phases[last]
    return filled
