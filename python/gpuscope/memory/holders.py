# SPDX-License-Identifier: Apache-2.0
"""Who keeps memory alive: the references from a named variable to the tensors in that memory."""

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
from gpuscope.memory import references
from gpuscope.memory.growth import Growth
from gpuscope.memory.references import NAMELESS, Chain, Link, Names, References
from gpuscope.text import shown

_SAMPLES = 4  # allocations of one place that are followed
_SHARING = 3  # tensors of each: views, and what they are views of; and operations that saved it
_MOST_PLACES = 8

MOST_OBJECTS = 3_000_000  # about a second
_UNTRACKED = (dict, tuple)  # that the collector may pass over
_AT_ONCE = 10_000  # objects whose references are listed together: some MB
_MOST_FRAMES = 1_000  # of a traceback, as Python's limit of recursion
_WITHOUT_MEMORY = "torch._subclasses."  # stand-ins of torch.compile's, which warn when they are asked for addresses
_OF_MODULES = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")  # where torch.nn.Module keeps its attributes
Address = Callable[[Any], tuple[int, ...]]


@dataclass(frozen=True)
class Holder:
    """What keeps allocations of memory alive.

    Attributes:
        name: as the program calls it: ``"train.losses"``, ``"Trainer.history"``, ``"losses"``.
        where: what kind of name that is: ``"a local of main() (train.py:12)"``; "" for a module's global.
        kind: its type: ``"list"``.
        entries: how many entries it has; None when it is no container.
        keeps_graphs: the tensors in it, or it itself, keep their autograd graphs, with all that those saved.
        operations: of the graph, where one tensor's graph spans the steps; 0 otherwise.
        saved_by: the operation of the graph that has saved the memory: ``"MulBackward0"``; "" where it is not by one
            that it is held.
        error: type of the exception whose traceback leads to it: ``"ValueError"``; "" where none does.
        others: names of what else holds allocations of the same place: ``("heads",)``.
    """

    name: str
    where: str
    kind: str
    entries: int | None
    keeps_graphs: bool
    operations: int = 0
    saved_by: str = field(default="", compare=False)  # what one holder keeps is one leak
    error: str = ""
    others: tuple[str, ...] = field(default=(), compare=False)

    @shown
    def __str__(self) -> str:
        what = f"a {self.kind} of {self.entries:,}" if self.entries is not None else f"a {self.kind}"
        others = f", and others: {', '.join(self.others)}" if self.others else ""
        return f"{self.name}: {what}{f', {self.where}' if self.where else ''}{others}"

    @property
    def advice(self) -> str:
        """What to change; "" where that depends on what the program wants."""
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
    """The holder of each growth's allocations, and remarks on what was not looked at.

    The arrays of NumPy and CuPy and PyTorch's tensors, NumPy's arrays over these, the containers, objects, closures,
    tracebacks and local variables of the calling thread that lead to them, and what operations of autograd saved are
    followed. What an operation written in C++ keeps to itself is not seen: PyTorch's allocations that no tensor is
    found to have, while tensors that keep their autograd graphs grow in number elsewhere, or one graph spans the steps,
    are put down to that.

    Nothing is kept alive by it, and no code of the program runs, hooks on saved tensors included. Some three seconds at
    most: of the process's objects the first 3,000,000 are looked at, of the graphs the last 100,000 operations, and the
    search for names ends after two seconds; what was left out is remarked.
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
    # Where saved tensors cannot be read, one that only an operation has is found without a name that leads to it.
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
    """What has some of the large allocations, the older ones: a step's variables still hold the newest as well."""
    sizes = growth.sizes_bytes or (0,) * len(growth.addresses)
    found = [
        (size, tensors.at.get(address, [])[:_SHARING] + graphs.at.get(address, [])[:_SHARING])
        for address, size in zip(growth.addresses, sizes, strict=True)
        if address in tensors.at or address in graphs.at
    ]
    largest = max((size for size, _ in found), default=0)
    held = [things for size, things in found if 2 * size >= largest]
    older = held[: max(1, len(held) * 3 // 4)]
    # Prime to 6: of lists that one line fills by turns, two or three, each has its share.
    return older[:: next(every for every in itertools.count(-(-len(older) // _SAMPLES)) if math.gcd(every, 6) == 1)]


def _chains(sample: Sequence[Sequence[object]], found: Mapping[int, Chain], graphs: Graphs) -> list[Chain]:
    """One chain of references to each block, from a named variable if there is one."""
    found_chains = ([chain for thing in group if (chain := _chain(thing, found, graphs))] for group in sample)
    return [min(chains, key=lambda chain: chain[0].where == NAMELESS) for chains in found_chains if chains]


def _chain(thing: object, found: Mapping[int, Chain], graphs: Graphs) -> Chain:
    """The chain to a tensor, or to an operation by way of the tensor that it was reached from; empty for none."""
    chain = found.get(id(graphs.reached(thing)), ())
    if not chain or chain[-1].id == id(thing):
        return chain
    return (*chain, Link(id(thing), "", "", type(thing).__name__, None))


def _with_graph(sample: Sequence[Sequence[object]]) -> bool:
    return any(graph_of(thing) is not None for group in sample for thing in group)


def _holder(chains: Sequence[Chain], keeps_graphs: bool, graphs: Graphs, tensors: Tensors) -> Holder | None:
    """Who holds most of the samples, with the names of the others."""
    roots = Counter(chain[0].id for chain in chains)
    shared = ([chain for chain in chains if chain[0].id == root] for root, _ in roots.most_common())
    found = [_holder_of(one, keeps_graphs, graphs, tensors) for one in shared]
    if not found:
        return None
    others = {one.name for one in found if one.where != NAMELESS} - {found[0].name}
    return replace(found[0], others=tuple(sorted(others)))


def _holder_of(shared: Sequence[Chain], keeps_graphs: bool, graphs: Graphs, tensors: Tensors) -> Holder:
    """What grows is where chains from one name part: a list of dicts, not one of the dicts."""
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
    """A submodule as programs write it: ".encoder", or "[0]" of a torch.nn.Sequential."""
    return f"[{found[1]}]" if found[1].isdigit() else f".{found[1]}"


def _spanning_graph(tensors: Tensors, search: References, steps: int) -> Holder | None:
    """The tensor whose graph spans the steps, where one does: a sum of losses, a state that is handed on."""
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
    """The tensors and arrays among the objects that Python's collector knows of; it keeps them alive.

    To be used within `untouched_by_programs`.

    Args:
        wanted: addresses of memory.
        arrays: sizes in bytes of what NumPy has handed out there.
        names: the names right now.

    Attributes:
        at: those whose memory begins at a wanted address, by that address.
        roots: tensors that hold an autograd graph, and operations of one, that Python's objects or a variable of the
            calling thread refer to; others live in a graph.
        errors: ids of exceptions with tracebacks.
        keepers: by the id of a frame that has ended the exception whose traceback keeps it; by that of a tensor the
            array of NumPy over its memory, of which the collector does not know what it refers to.
        capped: whether there were too many objects to look at them all.
    """

    def __init__(self, wanted: Collection[int], arrays: Collection[int], names: Names) -> None:
        self.at: dict[int, list[Any]] = {}
        self.errors: set[int] = set()
        self.keepers: dict[int, Any] = {}
        self._readers = _readers()
        # By the id of the type, which some metaclasses make unhashable; kept with it, so that the id stays its own.
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
        """Where the memory of a tensor or array begins; empty for others and without memory: sparse, fake, freed."""
        read = self._reader(type(thing))
        try:
            return () if read is None else read(thing)
        except Exception:
            return ()

    def graph_at(self, key: int) -> Any:
        """The tensor of an id that is a root; None where it is none."""
        return next((root for root in self.roots if id(root) == key), None)

    def _reader(self, kind: type) -> Address | None:
        if id(kind) not in self._by_type:
            self._by_type[id(kind)] = kind, _reader_of(kind, self._readers)
        return self._by_type[id(kind)][1]

    def _take_arrays(self, things: Iterable[Any], take: Callable[[Any], bool], keeper: Any = None) -> bool:
        """Takes NumPy's arrays, which the collector knows only as what others refer to; whether one was taken.

        Nor does it know of dicts and tuples that have nothing else: `keeper` is the one with those things.
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
        """Takes an array, and says so, that has wanted memory or is over a tensor that has."""
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
            if frame is not None:  # what has called the first
                self._keep(frame, error, names)
                frame = frame.f_back

    def _keep(self, frame: types.FrameType, error: BaseException, names: Names) -> None:
        if id(frame) not in names.live:
            self.keepers.setdefault(id(frame), error)


def _trace(error: BaseException) -> types.TracebackType | None:
    found = BaseException.__dict__["__traceback__"].__get__(error)
    return found if isinstance(found, types.TracebackType) else None


def _referred_to(objects: Sequence[Any], keys: KeysView[int], names: Names) -> Iterator[int]:
    """The ids among `keys` of what the objects or the program's variables refer to."""
    found = (keys & names.variables.keys()) | (keys & map(id, _referents(objects if keys else ())))
    return (key for key in keys if key in found)


# A function of its own: a cell with the objects, in a function that has asked for these, would be among them.
def _referents(objects: Sequence[Any]) -> Iterator[Any]:
    """What objects refer to."""
    for start in range(0, len(objects), _AT_ONCE):
        yield from gc.get_referents(*objects[start : start + _AT_ONCE])


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
