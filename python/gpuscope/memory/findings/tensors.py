# SPDX-License-Identifier: Apache-2.0
"""Which Python objects stand for pieces of memory: tensors of PyTorch and arrays of CuPy."""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

MOST_OBJECTS = 3_000_000  # about half a second
_MOST_GRAPHS = 1_000
_WITHOUT_MEMORY = "torch._subclasses."  # stand-ins of torch.compile's, which warn when they are asked for addresses

Address = Callable[[Any], tuple[int, ...]]


class Tensors:
    """The tensors and arrays among the objects that Python's collector knows of; let go of it soon.

    To be used within `untouched_by_programs`.

    Attributes:
        at: those whose memory begins at a wanted address, by that address.
        with_graph: tensors that hold an autograd graph, the first thousand.
        capped: whether there were too many objects to look at them all.
    """

    def __init__(self, wanted: Collection[int]) -> None:
        self.at: dict[int, list[Any]] = {}
        self.with_graph: list[Any] = []
        readers = _readers()
        objects = gc.get_objects() if readers else []
        self.capped = len(objects) > MOST_OBJECTS
        del objects[MOST_OBJECTS:]
        by_type: dict[type, Address | None] = {}
        for thing in objects:
            kind = type(thing)
            if kind not in by_type:
                by_type[kind] = _reader_of(kind, readers)
            read = by_type[kind]
            if read is not None:
                self._take(thing, read, wanted)

    def _take(self, thing: Any, read: Address, wanted: Collection[int]) -> None:
        try:
            addresses = read(thing)
            if len(self.with_graph) < _MOST_GRAPHS and graph_of(thing) is not None:
                self.with_graph.append(thing)
        except Exception:
            return  # without memory of its own: sparse, fake, or freed
        for address in addresses:
            if address in wanted:
                self.at.setdefault(address, []).append(thing)


def graph_of(tensor: Any) -> Any:
    """The autograd node that made a tensor; None for leaves and for what is no tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(type(tensor), torch.Tensor):
        return None
    try:
        return torch.Tensor.grad_fn.__get__(tensor)
    except Exception:
        return None  # views of what was changed since


def graph_extent(tensor: Any, most: int) -> tuple[int, int]:
    """How many operations a tensor's graph keeps, and how often it uses the program's parameters, by their median.

    A graph of one step uses a parameter once or so, one that spans steps once for each of them.

    Args:
        tensor: where the graph ends.
        most: operations at which the walk ends.
    """
    start = graph_of(tensor)
    if start is None:
        return 0, 0
    seen, waiting = {start}, [start]
    uses: Counter[Any] = Counter()
    while waiting and len(seen) < most:
        for node, _ in waiting.pop().next_functions:
            if node is None:
                continue
            if not node.next_functions:  # a leaf's
                uses[node] += 1
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen), statistics.median_low(uses.values()) if uses else 0


@contextlib.contextmanager
def untouched_by_programs() -> Iterator[None]:
    """Reads of tensors in here do not reach the ``__torch_function__`` of a program's own tensors."""
    torch = sys.modules.get("torch")
    quiet = getattr(getattr(torch, "_C", None), "DisableTorchFunction", None)
    with contextlib.nullcontext() if quiet is None else quiet():
        yield


def _readers() -> list[tuple[type, Address]]:
    readers: list[tuple[type, Address]] = []
    for name, kind, read in (("torch", "Tensor", _of_torch), ("cupy", "ndarray", _of_cupy)):
        found = getattr(sys.modules.get(name), kind, None)
        if isinstance(found, type):
            readers.append((found, read))
    return readers


def _reader_of(kind: type, readers: Sequence[tuple[type, Address]]) -> Address | None:
    read = next((read for base, read in readers if issubclass(kind, base)), None)
    return None if read is not None and str(kind.__module__).startswith(_WITHOUT_MEMORY) else read


def _of_torch(tensor: Any) -> tuple[int, ...]:
    return (int(sys.modules["torch"].Tensor.untyped_storage(tensor).data_ptr()),)


def _of_cupy(array: Any) -> tuple[int, ...]:
    data = sys.modules["cupy"].ndarray.data.__get__(array)
    return int(data.ptr), int(data.mem.ptr)
