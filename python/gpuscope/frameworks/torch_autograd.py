# SPDX-License-Identifier: Apache-2.0
"""PyTorch's autograd graphs: their operations, and the memory saved for backward.

Nothing here runs the program's code or its hooks on saved tensors, or unpacks anything.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

MOST_OPERATIONS = 100_000  # about a second


def graph_of(thing: Any) -> Any:
    """The operation that made a tensor, or an operation itself; None for leaves and other objects."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if not issubclass(type(thing), torch.Tensor):
        return thing if is_operation(type(thing)) else None
    try:
        return torch.Tensor.grad_fn.__get__(thing)
    except Exception:
        return None  # a view of a tensor that was modified since


def is_operation(kind: type) -> bool:
    """Whether objects of a type are operations of a graph. C++ operations have no common base class."""
    found = next((vars(base)["next_functions"] for base in kind.__mro__ if "next_functions" in vars(base)), None)
    return type(found) is types.GetSetDescriptorType


@contextlib.contextmanager
def untouched_by_programs() -> Iterator[None]:
    """Within it, reading tensors does not call the ``__torch_function__`` of the program's tensor classes."""
    torch = sys.modules.get("torch")
    quiet = getattr(getattr(torch, "_C", None), "DisableTorchFunction", None)
    with contextlib.nullcontext() if quiet is None else quiet():
        yield


class Graphs:
    """The operations in the graphs of some tensors, newest first. Keeps the operations alive.

    Use it within `untouched_by_programs`.

    Attributes:
        operations: by id.
        at: operations with saved memory at a wanted address, by address.
        keepers: keeper by the id of the kept object. An operation's keeper is the root that reached it first. The
            keeper of data that the program's hooks packed, and of the hooks, is the operation.
        capped: whether there were more than MOST_OPERATIONS.
        shows_saved: whether this version of PyTorch can read saved memory without unpacking it.
    """

    def __init__(
        self, roots: Sequence[Any], wanted: Collection[int], addresses: Callable[[Any], Sequence[int]]
    ) -> None:
        self.operations: dict[int, Any] = {}
        self.at: dict[int, list[Any]] = {}
        self.keepers: dict[int, Any] = {}
        self.capped = False
        self.shows_saved = _shows_saved()
        self._names: dict[type, tuple[str, ...]] = {}
        self._wanted, self._addresses = wanted, addresses
        waiting = deque((graph_of(root), root) for root in roots)
        while waiting:
            operation, root = waiting.popleft()
            if operation is None or id(operation) in self.operations:
                continue
            if len(self.operations) == MOST_OPERATIONS:
                self.capped = True
                break
            self.operations[id(operation)] = operation
            if operation is not root:
                self.keepers[id(operation)] = root
            if self.shows_saved:
                self._read(operation)
            waiting.extend((before, root) for before, _ in operation.next_functions)

    def reached(self, operation: Any) -> Any:
        """The root, a tensor or an operation, that reached an operation first."""
        return self.keepers.get(id(operation), operation)

    def _read(self, operation: Any) -> None:
        for saved in self._saved(operation):
            data = saved.data
            if saved.unpack_hook is not None:
                self.keepers.setdefault(id(saved.unpack_hook), operation)
                self.keepers.setdefault(id(data), operation)
            for address in self._addresses(data):
                if address in self._wanted:
                    self.at.setdefault(address, []).append(operation)

    def _saved(self, operation: Any) -> Iterator[Any]:
        kind = type(operation)
        if kind not in self._names:
            self._names[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
        for name in self._names[kind]:
            try:
                found = getattr(operation, name)
            except RuntimeError:  # freed by a backward pass
                continue
            yield from found if type(found) is tuple else (found,)


def _shows_saved() -> bool:
    autograd = getattr(getattr(sys.modules.get("torch"), "_C", None), "_autograd", None)
    kind = getattr(autograd, "SavedTensor", None)
    return hasattr(kind, "data") and hasattr(kind, "unpack_hook")
