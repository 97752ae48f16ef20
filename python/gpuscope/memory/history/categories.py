# SPDX-License-Identifier: Apache-2.0
"""Memory of a PyTorch program by category: parameters, activations, gradients and so on.

The categories are those of torch.profiler's memory timeline, which follows data through operators. Here they follow
from the call stacks of allocation and release, and from the tensors alive at the end. Memory without a rule is UNKNOWN,
and so are a framework's segments, whose allocations are classified instead.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope.devices import HOST
from gpuscope.frameworks import torch_memory
from gpuscope.memory.history.events import SOURCES, AtEnd, Frame, Lifetimes, MemoryEvents, Storage, is_segment

# In the order of torch.profiler._memory_profiler, then UNKNOWN and our own: the pools of CUDA graphs, memory that
# libraries take from the driver, and memory that they take from torch and keep, as cuBLAS does.
CATEGORIES = (
    *("PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT", "AUTOGRAD_DETAIL"),
    *("UNKNOWN", "GRAPH_POOL", "LIBRARY", "WORKSPACE"),
)
PARAMETER, OPTIMIZER_STATE, INPUT, TEMPORARY, ACTIVATION, GRADIENT, AUTOGRAD_DETAIL = range(7)
UNKNOWN, GRAPH_POOL, LIBRARY, WORKSPACE = range(7, 11)
_TORCH, _DRIVER, _OTHER = (SOURCES.index(name) for name in ("torch", "driver", "other"))

WITHOUT_PYTHON = "backward (autograd's thread, no Python stack)"
"""Shown instead of a line for events of `backward_without_stack`."""
_CALL = {"__call__", "_wrapped_call_impl", "_call_impl", "_slow_forward", "inner"}
_MOVE = {"_apply", "to", "cuda", "to_empty", "half", "float", "double", "bfloat16", "load_state_dict"}
_MAKE = {"__init__", "reset_parameters"}


class Phase(enum.IntEnum):
    """A phase of a training step.

    UNKNOWN: no stack. OUTSIDE: code around the model. SETUP: creates or moves a module. FORWARD: of a module.
    BACKWARD: autograd. OPTIMIZER: its step.
    """

    UNKNOWN = 0
    OUTSIDE = 1
    SETUP = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5


def category_text(name: str) -> str:
    """The displayed name of one of CATEGORIES: "optimizer state"."""
    return "libraries" if name == "LIBRARY" else name.replace("_", " ").lower()


def categorize(events: MemoryEvents, lifetimes: Lifetimes | None = None) -> NDArray[np.uint8]:
    """The category of each allocation, an index into CATEGORIES; default of all allocations in `events`.

    Memory alive at the end has the category of its tensor, from ``events.at_end``. Without that, parameters outside
    modules are unknown, and workspaces that libraries keep count as activations or gradients.
    """
    lifetimes = events.lifetimes() if lifetimes is None else lifetimes
    phases = event_phases(events)
    found = by_phase(lifetimes, phases)
    found[lifetimes.source != _TORCH] = UNKNOWN
    found[(lifetimes.source == _DRIVER) & ~is_segment(events, lifetimes)] = LIBRARY
    found[lifetimes.source == _OTHER] = LIBRARY
    at_end = events.at_end()
    for first, end in at_end.graph_pools:
        found[(lifetimes.address >= np.uint64(first)) & (lifetimes.address < np.uint64(end))] = GRAPH_POOL
    if at_end.tensors is None:
        return found
    last_backward = int(np.flatnonzero(phases == Phase.BACKWARD).max(initial=-1))
    for row in np.flatnonzero(lifetimes.alive).tolist():
        storage = at_end.tensors.get(int(lifetimes.address[row]))
        if storage is not None:
            found[row] = found[row] if storage.category is None else storage.category
        elif found[row] == GRADIENT or (found[row] == ACTIVATION and lifetimes.born[row] < last_backward):
            # No tensor uses it, and a backward would have freed it if autograd held it: cuBLAS's memory, for example.
            found[row] = WORKSPACE
    return found


def by_phase(
    lifetimes: Lifetimes, phases: NDArray[np.uint8], operators: NDArray[np.int64] | None = None
) -> NDArray[np.uint8]:
    """The category of each allocation, by the phases in which it was allocated, alive and freed.

    `phases`: the `Phase` of each event. `operators`: the number of its autograd operator, below 0 for none. With
    operators, memory that one operator of a backward takes and frees is TEMPORARY. Without them, it is AUTOGRAD_DETAIL
    like the gradients that pass between operators, which are nearly all of it.
    """
    if not len(lifetimes):
        return np.zeros(0, dtype=np.uint8)
    born, alive = lifetimes.born, lifetimes.alive
    died = np.where(alive, len(phases), lifetimes.died)
    at_birth = phases[born]
    at_death = np.where(alive, 0, phases[np.minimum(died, len(phases) - 1)])

    forward, backward, optimizer = (
        _between(phases == phase, born + 1, died) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    )
    died_in_backward, died_in_optimizer = at_death == Phase.BACKWARD, at_death == Phase.OPTIMIZER
    rounds = _rounds(phases)
    many_rounds = rounds[died] - rounds[born] > 1
    ended = np.flatnonzero((phases == Phase.BACKWARD) | (phases == Phase.OPTIMIZER))
    place = np.searchsorted(ended, born)
    next_end = np.concatenate((ended, [len(phases)]))[place]
    last_end = np.concatenate(([0], ended))[place]
    feeds_a_forward = _between(phases == Phase.FORWARD, born + 1, np.minimum(died, next_end))
    follows_a_forward = _between(phases == Phase.FORWARD, last_end, born)

    # The first matching rule of a list decides.
    rules: dict[int, tuple[tuple[NDArray[np.bool_], int], ...]] = {
        Phase.FORWARD: (
            (died_in_backward | backward, ACTIVATION),
            (~alive, TEMPORARY),
            (alive, ACTIVATION),  # for its backward or the model's caller
        ),
        Phase.BACKWARD: (
            (died_in_backward & ~optimizer, AUTOGRAD_DETAIL),
            (np.ones_like(alive), GRADIENT),
        ),
        Phase.OPTIMIZER: (
            (alive | forward | backward, OPTIMIZER_STATE),
            (~alive, TEMPORARY),
        ),
        Phase.SETUP: (
            (alive | many_rounds, PARAMETER),
            (~alive & ~forward & ~backward & ~optimizer, TEMPORARY),
        ),
        Phase.OUTSIDE: (
            # Memory taken after a forward belongs to the model: a loss, or code between two modules. Before a forward
            # it may be a batch. Without any forward, the model has no modules.
            ((died_in_backward | backward) & follows_a_forward & ~many_rounds, ACTIVATION),
            (died_in_backward & ~feeds_a_forward & ~many_rounds, ACTIVATION),
            (~alive & ~(forward | backward | optimizer | died_in_backward | died_in_optimizer), TEMPORARY),
            (feeds_a_forward & ~many_rounds, INPUT),
        ),
    }
    found = np.full(len(lifetimes), UNKNOWN, dtype=np.uint8)
    for phase, choices in rules.items():
        here = at_birth == phase
        found[here] = np.select([fits[here] for fits, _ in choices], [name for _, name in choices], UNKNOWN)
    if operators is not None:
        same = operators[born] == operators[np.minimum(died, len(phases) - 1)]
        found[(found == AUTOGRAD_DETAIL) & same & (operators[born] >= 0)] = TEMPORARY
    return found


def _between(happens: NDArray[np.bool_], first: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether `happens` is true in any row from `first` to before `end`."""
    sums = np.concatenate(([0], np.cumsum(happens)))
    return np.asarray(sums[np.maximum(first, end)] > sums[first])


def _rounds(phases: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The number of training rounds whose backward began before each row, and at the end. An optimizer ends a round."""
    rows = np.flatnonzero((phases == Phase.BACKWARD) | (phases == Phase.OPTIMIZER))
    begins = np.zeros(len(phases) + 1, dtype=np.int64)
    is_backward = (phases[rows] == Phase.BACKWARD).astype(np.int8)
    begins[rows[np.diff(is_backward, prepend=0) == 1] + 1] = 1
    return np.asarray(np.cumsum(begins))


def phase_of(frames: Sequence[Frame]) -> int:
    """The phase of a call stack, from the innermost frame that shows one.

    So a forward recomputed within a backward (checkpointing) is a forward.
    """
    for frame in frames:
        _, found, file = frame.file.replace("\\", "/").rpartition("/torch/")
        if not found:
            continue
        function = frame.function.rpartition(".")[2]
        if (file == "_tensor.py" and function == "backward") or file in ("autograd/__init__.py", "autograd/graph.py"):
            return Phase.BACKWARD
        if file == "autograd/function.py" and function == "apply" and "BackwardCFunction" in frame.function:
            return Phase.BACKWARD
        if file.startswith("optim/") and (function in ("step", "zero_grad") or file == "optim/optimizer.py"):
            return Phase.OPTIMIZER if function != "__init__" else Phase.SETUP
        if file == "nn/modules/module.py" and function in _CALL:
            return Phase.FORWARD
        if (file == "nn/modules/module.py" and function in _MOVE) or (file.startswith("nn/") and function in _MAKE):
            return Phase.SETUP
    return Phase.OUTSIDE if frames else Phase.UNKNOWN


def event_phases(events: MemoryEvents) -> NDArray[np.uint8]:
    """The phase of each event, shape (events,).

    Autograd's threads run no Python. So if other threads have stacks, the events without one on a thread that allocates
    without stacks are BACKWARD. Snapshot files have no threads: an allocation without a stack is BACKWARD if no release
    has a stack. Other events without a stack have the phase of their neighbours on the thread.
    """
    stacks, rows = np.unique(events.stack, return_inverse=True)
    by_stack = np.array([phase_of(events.frames(int(stack))) for stack in stacks], dtype=np.uint8)
    phases = by_stack[rows.reshape(-1)] if len(stacks) else np.zeros(0, dtype=np.uint8)
    known = phases != Phase.UNKNOWN
    if not known.any():
        return phases
    taken = events.bytes > 0
    for thread in np.unique(events.thread):
        own = (events.thread == thread) & ~known
        if thread == 0 and not (known & ~taken).any():
            phases[own & taken] = Phase.BACKWARD
        elif (own & taken).any() and (known & (events.thread != thread)).any():
            phases[own] = Phase.BACKWARD
    return between_neighbours(phases, events.thread)


def backward_without_stack(events: MemoryEvents) -> NDArray[np.bool_]:
    """Whether each event is of a backward and has no call stack, as on autograd's threads. Shape (events,)."""
    bare = np.asarray(events.stack == 0)
    return bare & (event_phases(events) == Phase.BACKWARD) if bare.any() else bare


def between_neighbours(phases: NDArray[np.uint8], threads: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Fills unknown phases: with the phase of both neighbours on the thread if these agree, else OUTSIDE.

    On a thread without known phases they stay UNKNOWN.
    """
    completed = phases.copy()
    for thread in np.unique(threads):
        rows = np.flatnonzero(threads == thread)
        own = phases[rows]
        known = np.flatnonzero(own != Phase.UNKNOWN)
        gaps = np.flatnonzero(own == Phase.UNKNOWN)
        if not len(known):
            continue
        place = np.searchsorted(known, gaps)
        before = np.where(place > 0, own[known[place - 1]], Phase.OUTSIDE)
        after = np.where(place < len(known), own[known[np.minimum(place, len(known) - 1)]], Phase.OUTSIDE)
        completed[rows[gaps]] = np.where(before == after, before, Phase.OUTSIDE)
    return completed


def known_at_end() -> AtEnd:
    """PyTorch's memory now, for the end of a history: the storage of every tensor, and private pools.

    Modules' buffers count as parameters. Gradients and optimizer states are found through their owners. Addresses are
    those from the allocator. Visits every object of Python's garbage collector; empty if PyTorch is not imported.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn") or not hasattr(torch, "optim"):
        return AtEnd()
    pools: tuple[tuple[int, int], ...] = ()
    with contextlib.suppress(Exception):  # the allocator has no segments
        pools = torch_memory.private_pools()
    return AtEnd(_live_storages(torch), pools)


def _live_storages(torch: Any) -> dict[int, Storage]:
    # Later ones overwrite earlier ones: a parameter may be part of an optimizer's state.
    parts: dict[int | None, list[Any]] = {None: [], OPTIMIZER_STATE: [], GRADIENT: [], PARAMETER: []}
    bases = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    wanted: dict[type, bool] = {}
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance() reads a proxy's __class__, which may run any code
        if kind not in wanted:
            wanted[kind] = issubclass(kind, bases)
        if not wanted[kind]:
            continue
        if issubclass(kind, torch.Tensor):
            parts[PARAMETER if issubclass(kind, torch.nn.Parameter) else None].append(thing)
            parts[GRADIENT].append(_gradient(thing))
        elif issubclass(kind, torch.nn.Module):
            buffers = _attribute(thing, "_buffers")
            parts[PARAMETER].extend(buffers.values() if isinstance(buffers, dict) else ())
        else:
            parts[OPTIMIZER_STATE].extend(_tensors(_attribute(thing, "state"), torch.Tensor))
            for group in _attribute(thing, "param_groups") or ():
                for parameter in group.get("params", ()) if isinstance(group, dict) else ():
                    parts[PARAMETER].append(parameter)
                    parts[GRADIENT].append(_gradient(parameter))
    found: dict[int, Storage] = {}
    for category, tensors in parts.items():
        for address, size, device in _memory_of(tensors, torch.Tensor):
            found[address] = Storage(category, size, device)
    return found


def _gradient(tensor: Any) -> Any:
    return _attribute(tensor, "grad") if _attribute(tensor, "is_leaf") else None  # reading .grad of other tensors warns


def _attribute(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:  # a half-built object, or a property of a subclass
        return None


def _tensors(state: Any, kind: type, depth: int = 4) -> Iterator[Any]:
    """The tensors in nested dicts and lists."""
    if isinstance(state, kind):
        yield state
    elif depth:
        items: Iterable[Any] = ()
        if isinstance(state, dict):
            items = state.values()
        elif isinstance(state, (list, tuple)):
            items = state
        for item in list(items):
            yield from _tensors(item, kind, depth - 1)


def _memory_of(tensors: Iterable[Any], kind: type) -> Iterator[tuple[int, int, int]]:
    """Address, bytes and device of each storage."""
    for tensor in tensors:
        if not isinstance(tensor, kind):
            continue
        try:
            storage = tensor.untyped_storage()  # type: ignore[attr-defined]
            address, size, device = int(storage.data_ptr()), int(storage.nbytes()), storage.device
        except Exception:  # a tensor without own memory: on "meta", fake, sparse, or in a trace
            continue
        if address:
            yield address, size, HOST if device.type == "cpu" else int(device.index or 0)
