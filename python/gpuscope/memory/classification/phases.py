# SPDX-License-Identifier: Apache-2.0
"""Which part of a training step an allocation of PyTorch was made in, from the call stack and the thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuscope.memory.events import Frame, MemoryEvents

UNKNOWN, OUTSIDE, SETUP, FORWARD, BACKWARD, OPTIMIZER = range(6)
"""Phases: no stack is known; code around the model; a module being made or moved; its forward; autograd; a step."""

WITHOUT_PYTHON = "backward (autograd's thread, no Python stack)"
"""In place of a line, for what `backward_without_stack` finds."""

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

    Autograd computes backward on threads of its own, which run no Python of the program: where other threads have
    stacks, an event without one is BACKWARD on a thread that allocates without. Files of snapshots tell no threads;
    there no stack means BACKWARD, if releases have stacks at all. Other releases without a stack belong to what their
    thread does before and after them.
    """
    stacks, rows = np.unique(events.stack, return_inverse=True)
    by_stack = np.array([phase_of(events.frames(int(stack))) for stack in stacks], dtype=np.uint8)
    phases = by_stack[rows.reshape(-1)] if len(stacks) else np.zeros(0, dtype=np.uint8)
    known = phases != UNKNOWN
    if not known.any():
        return phases
    taken = events.bytes > 0
    for thread in np.unique(events.thread):
        own = (events.thread == thread) & ~known
        if thread == 0 and not (known & ~taken).any():
            phases[own & taken] = BACKWARD
        elif (own & taken).any() and (known & (events.thread != thread)).any():
            phases[own] = BACKWARD
    return between_neighbours(phases, events.thread)


def backward_without_stack(events: MemoryEvents) -> NDArray[np.bool_]:
    """Whether each event is of a backward and without a call stack, as on autograd's own threads. Shape (events,)."""
    bare = np.asarray(events.stack == 0)
    return bare & (event_phases(events) == BACKWARD) if bare.any() else bare


def between_neighbours(phases: NDArray[np.uint8], threads: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The phases without unknown ones: each is that of its thread's neighbours where both agree, else OUTSIDE.

    Those of a thread of which nothing is known stay UNKNOWN.
    """
    completed = phases.copy()
    for thread in np.unique(threads):
        rows = np.flatnonzero(threads == thread)
        own = phases[rows]
        known = np.flatnonzero(own != UNKNOWN)
        gaps = np.flatnonzero(own == UNKNOWN)
        if not len(known):
            continue
        place = np.searchsorted(known, gaps)
        before = np.where(place > 0, own[known[place - 1]], OUTSIDE)
        after = np.where(place < len(known), own[known[np.minimum(place, len(known) - 1)]], OUTSIDE)
        completed[rows[gaps]] = np.where(before == after, before, OUTSIDE)
    return completed
