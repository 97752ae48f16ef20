# SPDX-License-Identifier: Apache-2.0
"""What the tensors that live now are for, by asking the garbage collector for models and optimizers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from gpuscope.memory.classification.categories import GRADIENT, OPTIMIZER_STATE, PARAMETER


def live_categories() -> dict[int, int]:
    """Category by address of each storage of a parameter, a module's buffer, a gradient or an optimizer's state.

    Addresses are those that the allocator handed out. Empty when PyTorch is not imported. Looks at every object that
    Python's garbage collector knows, which takes 10 ms or so for a large program.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn") or not hasattr(torch, "optim"):
        return {}
    found: dict[int, int] = {}
    # What a piece is most of all stands last: a parameter may be part of an optimizer's state.
    parts: dict[int, list[Any]] = {OPTIMIZER_STATE: [], GRADIENT: [], PARAMETER: []}
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance() would ask proxies for their class, which may run anything
        if issubclass(kind, torch.nn.Parameter):
            parts[PARAMETER].append(thing)
            parts[GRADIENT].append(_gradient(thing))
        elif issubclass(kind, torch.nn.Module):
            buffers = _attribute(thing, "_buffers")
            parts[PARAMETER].extend(buffers.values() if isinstance(buffers, dict) else ())
        elif issubclass(kind, torch.optim.Optimizer):
            parts[OPTIMIZER_STATE].extend(_tensors(_attribute(thing, "state"), torch.Tensor))
            for group in _attribute(thing, "param_groups") or ():
                for parameter in group.get("params", ()) if isinstance(group, dict) else ():
                    parts[PARAMETER].append(parameter)
                    parts[GRADIENT].append(_gradient(parameter))
    for category, tensors in parts.items():
        for address in _addresses(tensors, torch.Tensor):
            found[address] = category
    return found


def _gradient(tensor: Any) -> Any:
    return _attribute(tensor, "grad") if _attribute(tensor, "is_leaf") else None  # others warn when they are asked


def _attribute(thing: Any, name: str) -> Any:
    try:
        return getattr(thing, name, None)
    except Exception:  # a half-built object, or a property of a subclass
        return None


def _tensors(state: Any, kind: type, depth: int = 4) -> Iterator[Any]:
    """The tensors in dicts and lists of dicts and lists."""
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


def _addresses(tensors: Iterable[Any], kind: type) -> Iterator[int]:
    for tensor in tensors:
        if not isinstance(tensor, kind):
            continue
        try:
            address = int(tensor.untyped_storage().data_ptr())  # type: ignore[attr-defined]
        except Exception:  # a tensor without memory of its own: on "meta", fake, sparse, or in a trace
            continue
        if address:
            yield address
