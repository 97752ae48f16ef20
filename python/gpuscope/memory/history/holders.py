# SPDX-License-Identifier: Apache-2.0
"""Finds the holders of memory: references from a named variable to tensors in that memory."""

from __future__ import annotations

import gc
import itertools
import math
import re
import statistics
import sys
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuscope.frameworks import numpy, torch_autograd
from gpuscope.frameworks.torch_autograd import Graphs, graph_of, is_operation, untouched_by_programs
from gpuscope.memory.history import references
from gpuscope.memory.history.growth import Growth
from gpuscope.memory.history.references import NAMELESS, Chain, Link, Names, References
from gpuscope.text import shown

_SAMPLES = 4  # allocations of one place that are followed
_SHARING = 3  # tensors per allocation (views and their bases), and operations that saved it
_MOST_PLACES = 8

MOST_OBJECTS = 3_000_000  # about a second
_UNTRACKED = (dict, tuple)  # types that the collector may not track
_AT_ONCE = 10_000  # objects whose references are listed together: some MB
_MOST_FRAMES = 1_000  # of a traceback, as Python's limit of recursion
_WITHOUT_MEMORY = "torch._subclasses."  # fake tensors of torch.compile, which warn when their address is read
_OF_MODULES = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")  # where torch.nn.Module keeps its attributes
Address = Callable[[Any], tuple[int, ...]]


@dataclass(frozen=True)
class Holder:
    """The object that keeps allocations alive.

    Attributes:
        name: as in the program: ``"train.losses"``, ``"Trainer.history"``, ``"losses"``.
        where: kind of the name: ``"a local of main() (train.py:12)"``; "" for a module's global.
        kind: type of the object: ``"list"``.
        entries: number of entries; None if it is no container.
        keeps_graphs: whether its tensors keep their autograd graphs and the saved tensors.
        operations: size of the graph, if one tensor's graph spans the steps; otherwise 0.
        saved_by: operation of the graph that saved the memory: ``"MulBackward0"``; "" for none.
        error: type of the exception whose traceback leads to the memory: ``"ValueError"``; "" for none.
        others: names of other holders of the same place: ``("heads",)``.
    """

    name: str
    where: str
    kind: str
    entries: int | None
    keeps_graphs: bool
    operations: int = 0
    saved_by: str = field(default="", compare=False)  # one leak per holder
    error: str = ""
    others: tuple[str, ...] = field(default=(), compare=False)

    @shown
    def __str__(self) -> str:
        what = f"a {self.kind} of {self.entries:,}" if self.entries is not None else f"a {self.kind}"
        others = f", and others: {', '.join(self.others)}" if self.others else ""
        return f"{self.name}: {what}{f', {self.where}' if self.where else ''}{others}"

    @property
    def advice(self) -> str:
        """The recommended change; "" if it depends on the program's intent."""
        if self.error:
            return (
                f"the traceback of a {self.error} keeps the variables of its functions: keep str(error), or clear them "
                "with traceback.clear_frames(error.__traceback__)"
            )
        if not self.keeps_graphs:
            return ""
        if self.operations:
            return f"the autograd graph of `{self.name}` spans the steps: use .item() or .detach() in between"
        return f"tensors in {self.kind} `{self.name}` keep their autograd graphs: use .item() or .detach()"


def find_holders(growths: Sequence[Growth]) -> tuple[tuple[Holder | None, ...], tuple[str, ...]]:
    """The holder of each growth's allocations, and remarks on the limits of the search.

    The search covers arrays of NumPy and CuPy, and PyTorch's tensors. It follows containers, objects, closures,
    tracebacks, local variables of the calling thread, and tensors saved by autograd. Memory that an operation in C++
    keeps is not visible. A PyTorch allocation without a tensor is attributed to a growing holder of autograd graphs,
    or to a graph that spans the steps.

    The search keeps nothing alive and runs no code of the program, not even hooks on saved tensors. It visits at most
    3,000,000 objects and the last 100,000 operations of graphs, and looks two seconds for names.
    """
    with untouched_by_programs():
        return _find_holders(growths)


def _find_holders(growths: Sequence[Growth]) -> tuple[tuple[Holder | None, ...], tuple[str, ...]]:
    wanted = {address for growth in growths for address in growth.addresses}
    arrays = {size for growth in growths if growth.source == "numpy" for size in growth.sizes_bytes}
    names = Names()
    tensors = Tensors(wanted, arrays, names)
    graphs = Graphs(tensors.roots, wanted, tensors.addresses)
    samples = [_sample(tensors, graphs, growth) for growth in growths]
    alternatives = [group for sample in samples for group in sample]
    things = [graphs.reached(thing) for sample in samples[:_MOST_PLACES] for group in sample for thing in group]
    keepers = {**tensors.keepers, **graphs.keepers}
    hidden = {
        *map(id, (samples, names.untracked, tensors.roots, tensors.at, tensors.keepers, graphs.operations, graphs.at))
    }
    hidden |= {id(graphs.keepers), id(things), id(alternatives), *map(id, samples), *map(id, alternatives)}
    hidden |= {*map(id, tensors.at.values()), *map(id, graphs.at.values())}
    search = References(names, hidden, keepers)
    found = search.chains_to(things)
    holders = [_holder(_chains(sample, found, graphs), _with_graph(sample), graphs, tensors) for sample in samples]
    # If saved tensors cannot be read, a tensor that only an operation holds has no chain from a name.
    unseen = [not sample or (not graphs.shows_saved and row < _MOST_PLACES) for row, sample in enumerate(samples)]
    unexplained = [
        row for row, growth in enumerate(growths) if unseen[row] and holders[row] is None and growth.source == "torch"
    ]
    if unexplained:
        shared = next((holder for holder in holders if holder is not None and holder.keeps_graphs), None)
        shared = shared or _spanning_graph(tensors, search, growths[unexplained[0]].grew)
        for row in unexplained:
            holders[row] = shared
    remarks = {
        "there were too many Python objects to look at them all for who holds the memory": tensors.capped,
        f"autograd's graphs were followed through {torch_autograd.MOST_OPERATIONS:,} operations only": graphs.capped,
        f"the search for who holds the memory was ended after {references.LONGEST_SEARCH:.0f} s": search.stopped,
        f"who holds the memory was looked up for the {_MOST_PLACES} places with most of it": any(
            sample and holder is None
            for sample, holder in zip(samples[_MOST_PLACES:], holders[_MOST_PLACES:], strict=True)
        ),
    }
    return tuple(holders), tuple(remark for remark, applies in remarks.items() if applies)


def _sample(tensors: Tensors, graphs: Graphs, growth: Growth) -> list[list[object]]:
    """Objects with some of the large, older allocations. A step's variables still hold the newest ones."""
    sizes = growth.sizes_bytes or (0,) * len(growth.addresses)
    found = [
        (size, tensors.at.get(address, [])[:_SHARING] + graphs.at.get(address, [])[:_SHARING])
        for address, size in zip(growth.addresses, sizes, strict=True)
        if address in tensors.at or address in graphs.at
    ]
    largest = max((size for size, _ in found), default=0)
    held = [things for size, things in found if 2 * size >= largest]
    older = held[: max(1, len(held) * 3 // 4)]
    # A stride prime to 6 samples each of two or three lists that one line fills in turn.
    return older[:: next(every for every in itertools.count(-(-len(older) // _SAMPLES)) if math.gcd(every, 6) == 1)]


def _chains(sample: Sequence[Sequence[object]], found: Mapping[int, Chain], graphs: Graphs) -> list[Chain]:
    """One chain of references per block, from a named variable if there is one."""
    found_chains = ([chain for thing in group if (chain := _chain(thing, found, graphs))] for group in sample)
    return [min(chains, key=lambda chain: chain[0].where == NAMELESS) for chains in found_chains if chains]


def _chain(thing: object, found: Mapping[int, Chain], graphs: Graphs) -> Chain:
    """The chain to a tensor, or to an operation through the tensor that leads to it; () for none."""
    chain = found.get(id(graphs.reached(thing)), ())
    if not chain or chain[-1].id == id(thing):
        return chain
    return (*chain, Link(id(thing), "", "", type(thing).__name__, None))


def _with_graph(sample: Sequence[Sequence[object]]) -> bool:
    return any(graph_of(thing) is not None for group in sample for thing in group)


def _holder(chains: Sequence[Chain], keeps_graphs: bool, graphs: Graphs, tensors: Tensors) -> Holder | None:
    """The holder of most samples, with the names of the others."""
    roots = Counter(chain[0].id for chain in chains)
    shared = ([chain for chain in chains if chain[0].id == root] for root, _ in roots.most_common())
    found = [_holder_of(one, keeps_graphs, graphs, tensors) for one in shared]
    if not found:
        return None
    others = {one.name for one in found if one.where != NAMELESS} - {found[0].name}
    return replace(found[0], others=tuple(sorted(others)))


def _holder_of(shared: Sequence[Chain], keeps_graphs: bool, graphs: Graphs, tensors: Tensors) -> Holder:
    """The holder where chains from one name diverge: a list of dicts, not one of its dicts."""
    depth = 0
    while depth + 2 < min(map(len, shared)) and len({chain[depth + 1].id for chain in shared}) == 1:
        depth += 1
    chain = shared[0]
    if len(shared) == 1:  # nothing to compare with: the outermost container that is no object's dict, or the tensor
        containers = (at for at, link in enumerate(chain[:-1]) if link.entries is not None and (link.step or not at))
        depth = next(containers, len(chain) - 1)
    link = chain[depth]
    graph = tensors.graph_at(link.id) if len(shared) > 1 else None
    saved_by = next((link.kind for link in chain if link.id in graphs.operations), "")
    return Holder(
        name=_OF_MODULES.sub(_attribute, "".join(link.step for link in chain[: depth + 1])),
        where=chain[0].where,
        kind=link.kind,
        entries=link.entries,
        keeps_graphs=keeps_graphs or bool(saved_by),
        operations=0 if graph is None else graph_extent(graph, torch_autograd.MOST_OPERATIONS)[0],
        saved_by=saved_by,
        error=next((link.kind for link in chain if link.id in tensors.errors), ""),
    )


def _attribute(found: re.Match[str]) -> str:
    """A submodule in the program's notation: ".encoder", or "[0]" of a torch.nn.Sequential."""
    return f"[{found[1]}]" if found[1].isdigit() else f".{found[1]}"


def _spanning_graph(tensors: Tensors, search: References, steps: int) -> Holder | None:
    """The tensor whose graph spans the steps, as a sum of losses or a recurrent state; None without one."""
    best, most, left = None, 0, torch_autograd.MOST_OPERATIONS
    for tensor in tensors.roots:
        operations, uses = graph_extent(tensor, left)
        left -= operations
        if uses >= steps and operations > most:
            best, most = tensor, operations
    chain = None if best is None else search.chains_to([best]).get(id(best))
    if chain is None:
        return None
    name = "".join(link.step for link in chain)
    return Holder(name, chain[0].where, chain[-1].kind, None, True, most)


class Tensors:
    """The tensors and arrays among the objects that Python's collector tracks. Keeps them alive.

    Use it within `untouched_by_programs`.

    Args:
        wanted: addresses of memory.
        arrays: sizes in bytes of NumPy's allocations at these addresses.
        names: the current names.

    Attributes:
        at: tensors and arrays whose memory begins at a wanted address, by address.
        roots: tensors with an autograd graph, and operations, that objects or variables of the calling thread refer
            to. Others are only part of a graph.
        errors: ids of exceptions with tracebacks.
        keepers: references that the collector does not know, by id of the kept object. An ended frame is kept by an
            exception's traceback, a tensor by NumPy's array over its memory.
        capped: whether there were too many objects to visit all.
    """

    def __init__(self, wanted: Collection[int], arrays: Collection[int], names: Names) -> None:
        self.at: dict[int, list[Any]] = {}
        self.errors: set[int] = set()
        self.keepers: dict[int, Any] = {}
        self._readers = _readers()
        # By id, as some metaclasses make types unhashable. The type is kept with it, so that the id stays unique.
        self._by_type: dict[int, tuple[type, Address | None]] = {}
        objects = gc.get_objects() if self._readers or arrays else []
        self.capped = len(objects) > MOST_OBJECTS
        del objects[MOST_OBJECTS:]
        of_interest: dict[int, bool] = {}
        graphs: dict[int, Any] = {}
        for thing in objects:
            kind = type(thing)
            if id(kind) not in of_interest:
                of_interest[id(kind)] = (
                    self._reader(kind) is not None or is_operation(kind) or issubclass(kind, BaseException)
                )
            if not of_interest[id(kind)]:
                continue
            if issubclass(kind, BaseException):
                self._take_error(thing, names)
            elif graph_of(thing) is not None:
                graphs[id(thing)] = thing
            for address in self.addresses(thing):
                if address in wanted:
                    self.at.setdefault(address, []).append(thing)
        self.roots = [graphs[key] for key in _referred_to(objects, graphs.keys(), names)]
        if self.at or arrays:
            self._take_arrays(itertools.chain(names.untracked, _referents(objects)), self._taker(wanted, arrays))

    def addresses(self, thing: Any) -> tuple[int, ...]:
        """First addresses of a tensor's or array's memory; () for other objects and without memory (sparse, fake)."""
        read = self._reader(type(thing))
        try:
            return () if read is None else read(thing)
        except Exception:
            return ()

    def graph_at(self, key: int) -> Any:
        """The root with an id; None without one."""
        return next((root for root in self.roots if id(root) == key), None)

    def _reader(self, kind: type) -> Address | None:
        if id(kind) not in self._by_type:
            self._by_type[id(kind)] = kind, _reader_of(kind, self._readers)
        return self._by_type[id(kind)][1]

    def _take_arrays(self, things: Iterable[Any], take: Callable[[Any], bool], keeper: Any = None) -> bool:
        """Takes NumPy's arrays, and returns whether one was taken.

        The collector does not track arrays, nor dicts and tuples of untracked objects. `keeper` is the container of
        `things`.
        """
        taken = False
        for thing in things:
            if type(thing) in _UNTRACKED:
                took = not gc.is_tracked(thing) and self._take_arrays(gc.get_referents(thing), take, thing)
            else:
                took = take(thing)
            if took and keeper is not None:
                self.keepers[id(thing)] = keeper
            taken = taken or took
        return taken

    def _taker(self, wanted: Collection[int], sizes: Collection[int]) -> Callable[[Any], bool]:
        """A function that takes an array if its memory, or that of the tensor below it, is wanted."""
        kind = numpy.array_type() or ()
        tensors = {id(thing) for things in self.at.values() for thing in things}

        def take(thing: Any) -> bool:
            if not issubclass(type(thing), kind):
                return False
            origin = numpy.origin(thing)
            if id(origin) in tensors:
                self.keepers[id(origin)] = thing
                return True
            at = numpy.address_of(origin, sizes)
            if at is None or at not in wanted:
                return False
            if not any(one is thing for one in self.at.get(at, ())):
                self.at.setdefault(at, []).append(thing)
            return True

        return take

    def _take_error(self, error: BaseException, names: Names) -> None:
        trace = _trace(error)
        if trace is None:
            return
        self.errors.add(id(error))
        frame = trace.tb_frame.f_back
        for _ in range(_MOST_FRAMES):
            if trace is not None:
                self._keep(trace.tb_frame, error, names)
                trace = trace.tb_next
            if frame is not None:  # the callers of the first frame
                self._keep(frame, error, names)
                frame = frame.f_back

    def _keep(self, frame: types.FrameType, error: BaseException, names: Names) -> None:
        if id(frame) not in names.live:
            self.keepers.setdefault(id(frame), error)


def _trace(error: BaseException) -> types.TracebackType | None:
    found = BaseException.__dict__["__traceback__"].__get__(error)
    return found if isinstance(found, types.TracebackType) else None


def _referred_to(objects: Sequence[Any], keys: KeysView[int], names: Names) -> Iterator[int]:
    """The ids of `keys` that objects or the program's variables refer to."""
    found = (keys & names.variables.keys()) | (keys & map(id, _referents(objects if keys else ())))
    return (key for key in keys if key in found)


# A separate function: a closure's cell with the objects would appear among its own results.
def _referents(objects: Sequence[Any]) -> Iterator[Any]:
    """The referents of objects."""
    for start in range(0, len(objects), _AT_ONCE):
        yield from gc.get_referents(*objects[start : start + _AT_ONCE])


def graph_extent(tensor: Any, most: int) -> tuple[int, int]:
    """Number of operations in a tensor's graph, up to `most`, and the median number of uses per parameter.

    A graph of one step uses a parameter about once. A graph that spans steps uses it once per step.
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
            if not node.next_functions:  # of a leaf
                uses[node] += 1
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen), statistics.median_low(uses.values()) if uses else 0


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
