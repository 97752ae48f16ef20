# SPDX-License-Identifier: Apache-2.0
"""Who keeps memory alive: the references from a named variable to the tensors in that memory."""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope.memory.growth import Growth
from gpuscope.memory.referrers import NAMELESS, Chain, Names, chains_to

_SAMPLES = 4  # pieces of one place that are followed
_SHARING = 3  # tensors of each: views, and what they are views of
_MOST_NODES = 20_000
_MOST_PLACES = 8

MOST_OBJECTS = 3_000_000  # about half a second
_MOST_GRAPHS = 1_000
_WITHOUT_MEMORY = "torch._subclasses."  # stand-ins of torch.compile's, which warn when they are asked for addresses
Address = Callable[[Any], tuple[int, ...]]


@dataclass(frozen=True)
class Holder:
    """What keeps pieces of memory alive.

    Attributes:
        name: as the program calls it: ``"train.losses"``, ``"Trainer.history"``, ``"losses"``.
        where: what kind of name that is: ``"a local of main() (train.py:12)"``; "" for a module's global.
        kind: its type: ``"list"``.
        entries: how many entries it has; None when it is no container.
        keeps_graphs: the tensors in it, or it itself, keep their autograd graphs, with all that those saved.
        operations: of the graph, where one tensor's graph spans the steps; 0 otherwise.
    """

    name: str
    where: str
    kind: str
    entries: int | None
    keeps_graphs: bool
    operations: int = 0

    def __str__(self) -> str:
        what = f"a {self.kind} of {self.entries:,}" if self.entries is not None else f"a {self.kind}"
        return f"{self.name}: {what}{f', {self.where}' if self.where else ''}"

    @property
    def advice(self) -> str:
        """What to change; "" where that depends on what the program wants."""
        if not self.keeps_graphs:
            return ""
        if self.operations:
            return f"the autograd graph of `{self.name}` spans the steps: use .item() or .detach() in between"
        return f"tensors in {self.kind} `{self.name}` keep their autograd graphs: use .item() or .detach()"


def find_holders(growths: Sequence[Growth]) -> tuple[tuple[Holder | None, ...], tuple[str, ...]]:
    """The holder of each growth's allocations, and remarks on what was not looked at.

    Only what Python's collector knows is seen: CuPy's arrays and PyTorch's tensors, and the containers, objects,
    closures and local variables of the calling thread that lead to them. PyTorch's allocations that no tensor stands
    for, while tensors that keep their autograd graphs grow in number elsewhere, or one graph spans the steps, are put down to
    that.     Nothing is kept alive by it, and no code of the program runs.
    """
    with untouched_by_programs():
        return _find_holders(growths)


def _find_holders(growths: Sequence[Growth]) -> tuple[tuple[Holder | None, ...], tuple[str, ...]]:
    tensors = Tensors({address for growth in growths for address in growth.addresses})
    samples = [_sample(tensors, growth.addresses) for growth in growths[:_MOST_PLACES]]
    samples += [[] for _ in growths[_MOST_PLACES:]]
    names = Names()
    alternatives = [group for sample in samples for group in sample]
    hidden = {id(samples), id(tensors.with_graph), id(tensors.at), id(alternatives)}
    hidden |= {*map(id, samples), *map(id, alternatives), *map(id, tensors.at.values())}
    found = chains_to([thing for group in alternatives for thing in group], names, hidden)
    holders = [_holder(_chains(sample, found), _with_graph(sample)) for sample in samples]
    unexplained = [row for row, growth in enumerate(growths) if holders[row] is None and growth.source == "torch"]
    if unexplained:
        shared = next((holder for holder in holders if holder is not None and holder.keeps_graphs), None)
        shared = shared or _spanning_graph(tensors, names, hidden, growths[unexplained[0]].grew)
        for row in unexplained:
            holders[row] = shared
    remarks = ("there were too many Python objects to look at them all for who holds the memory",)
    return tuple(holders), remarks if tensors.capped else ()


def _sample(tensors: Tensors, addresses: Sequence[int]) -> list[list[object]]:
    """Tensors of some of the pieces, the older ones: a step's variables still hold the newest as well."""
    held = [tensors.at[address][:_SHARING] for address in addresses if address in tensors.at]
    older = held[: max(1, len(held) * 3 // 4)]
    return older[:: max(1, -(-len(older) // _SAMPLES))]


def _chains(sample: Sequence[Sequence[object]], found: Mapping[int, Chain]) -> list[Chain]:
    """One chain of references to each block, from a named variable if there is one."""
    found_chains = ([found[id(thing)] for thing in group if id(thing) in found] for group in sample)
    return [min(chains, key=lambda chain: chain[0].where == NAMELESS) for chains in found_chains if chains]


def _with_graph(sample: Sequence[Sequence[object]]) -> bool:
    return any(graph_of(thing) is not None for group in sample for thing in group)


def _holder(chains: Sequence[Chain], keeps_graphs: bool) -> Holder | None:
    if not chains:
        return None
    # What grows is where the chains to all samples part: a list of dicts, not one of the dicts.
    root = Counter(chain[0].id for chain in chains).most_common(1)[0][0]
    shared = [chain for chain in chains if chain[0].id == root]
    depth = 0
    while depth + 2 < min(map(len, shared)) and len({chain[depth + 1].id for chain in shared}) == 1:
        depth += 1
    chain = shared[0]
    if len(shared) == 1:  # nothing to compare with: the outermost container
        depth = next((at for at, link in enumerate(chain[:-1]) if link.entries is not None), 0)
    link = chain[depth]
    name = "".join(link.step for link in chain[: depth + 1])
    return Holder(name, chain[0].where, link.kind, link.entries, keeps_graphs)


def _spanning_graph(tensors: Tensors, names: Names, hidden: set[int], steps: int) -> Holder | None:
    """The tensor whose graph spans the steps, where one does: a sum of losses, a state that is handed on."""
    best, most = None, 0
    for tensor in tensors.with_graph:
        operations, uses = graph_extent(tensor, _MOST_NODES)
        if uses >= steps and operations > most:
            best, most = tensor, operations
    chain = None if best is None else chains_to([best], names, hidden).get(id(best))
    if chain is None:
        return None
    name = "".join(link.step for link in chain)
    return Holder(name, chain[0].where, chain[-1].kind, None, True, most)


class Tensors:
    """The tensors and arrays among the objects that Python's collector knows of; it keeps them alive.

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
    """How many operations a tensor's graph keeps, up to `most`, and the median of how often it uses a parameter.

    A graph of one step uses a parameter once or so, one that spans steps once for each of them.
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
