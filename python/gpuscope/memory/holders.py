# SPDX-License-Identifier: Apache-2.0
"""Who keeps memory alive: the references from a named variable to the tensors in that memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import statistics
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuscope.memory.call_stacks import is_gpuscope, is_program
from gpuscope.memory.growth import Growth

_SAMPLES = 4  # allocations of one place that are followed
_SHARING = 3  # tensors of each: views, and what they are views of
_MOST_NODES = 20_000
_MOST_PLACES = 8

MOST_OBJECTS = 3_000_000  # about half a second
_MOST_GRAPHS = 1_000
_WITHOUT_MEMORY = "torch._subclasses."  # stand-ins of torch.compile's, which warn when they are asked for addresses
Address = Callable[[Any], tuple[int, ...]]

NAMELESS = "no name leads to it"
_MOST_LEVELS = 7
_MOST_AT_ONCE = 12  # each search goes through every object of the process
_MOST_A_LEVEL = 36
_ENDS: tuple[type, ...] = (
    types.FunctionType,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
    type,
    functools._lru_cache_wrapper,
)

_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function's frame, whose f_locals is a copy before Python 3.13
_LONGEST_KEY = 30
_SEQUENCES: tuple[type, ...] = (list, tuple, set, frozenset, deque)
CONTAINERS: tuple[type, ...] = (*_SEQUENCES, dict)


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
    for, while tensors that keep their autograd graphs grow in number elsewhere, or one graph spans the steps, are put
    down to that. Nothing is kept alive by it, and no code of the program runs.
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
    """Tensors of some of the allocations, the older ones: a step's variables still hold the newest as well."""
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


class Link(NamedTuple):
    """One object of the chain from a name to a tensor.

    Attributes:
        id: of the object.
        step: what one writes to get here from the link before: "losses", ".history", "['loss']".
        where: of the first link, what kind of name it is.
        kind: its type's name.
        entries: how many it has; None when it is no container.
    """

    id: int
    step: str
    where: str
    kind: str
    entries: int | None


Chain = tuple[Link, ...]  # from the name to the tensor


def chains_to(things: Sequence[Any], names: Names, hidden: set[int]) -> dict[int, Chain]:
    """A shortest chain to each object that a name leads to, by its id. Ids in `hidden` are not the program's."""
    search = _Search(names, hidden | {id(things)})
    return search.chains(things)


class _Search:
    def __init__(self, names: Names, hidden: set[int]) -> None:
        self._names = names
        self._hidden = hidden | names.ours
        self._known: dict[int, Any] = {}  # objects that were met
        self._child: dict[int, dict[int, int]] = {}  # by target: the next object of the chain, by id
        self._hidden |= {id(self._known), id(self._child), id(self.__dict__), id(self)}

    def chains(self, things: Sequence[Any]) -> dict[int, Chain]:
        found: dict[int, Chain] = {}
        level = {id(thing): thing for thing in things}
        self._known.update(level)
        # Which targets an object leads to.
        leads = {key: {key} for key in level}
        self._child = {key: {} for key in level}
        self._hidden |= {id(level), id(self._child)}
        for _ in range(_MOST_LEVELS):
            for key in list(level):
                self._end(key, leads[key], found)
            open_ = {key: thing for key, thing in level.items() if leads[key] - found.keys()}
            if not open_:
                break
            level = self._parents(dict(list(open_.items())[:_MOST_A_LEVEL]), leads)
        for target in set(self._child) - found.keys():
            self._nameless(target, found)
        return found

    def _parents(self, level: dict[int, Any], leads: dict[int, set[int]]) -> dict[int, Any]:
        following: dict[int, Any] = {}
        targets = list(level.values())
        self._hidden |= {id(level), id(targets), id(following), id(leads)}
        for start in range(0, len(targets), _MOST_AT_ONCE):
            batch = tuple(targets[start : start + _MOST_AT_ONCE])
            referrers = gc.get_referrers(*batch)
            ids = {id(thing) for thing in batch}
            self._hidden |= {id(batch), id(referrers)}
            for parent in referrers:
                self._meet(parent, ids, leads, following)
            del parent
        return following

    def _meet(self, parent: Any, ids: set[int], leads: dict[int, set[int]], following: dict[int, Any]) -> None:
        me = id(parent)
        if me in self._hidden or type(parent) in {types.FrameType, types.ModuleType}:
            return
        new = me not in self._known
        children = {id(child) for child in gc.get_referents(parent)} & ids
        for child in children - {me}:
            for target in leads[child]:
                if target != me and me not in self._child[target]:
                    self._child[target][me] = child
                    leads.setdefault(me, set()).add(target)
        if new and me in leads:
            self._known[me] = following[me] = parent

    def _end(self, key: int, targets: set[int], found: dict[int, Chain]) -> None:
        name = self._name(key)
        if name is None:
            return
        for target in targets - found.keys():
            found[target] = self._chain(key, target, *name)

    def _name(self, key: int) -> tuple[str, str] | None:
        thing = self._known[key]
        if type(thing) in _ENDS or issubclass(type(thing), type):
            return _own_name(thing), _kind_of_end(thing)
        if key in self._names.variables:
            return self._names.variables[key]
        if key in self._names.modules:
            return self._names.modules[key], ""
        return None

    def _nameless(self, target: int, found: dict[int, Chain]) -> None:
        """No name was reached: the farthest object of a class, or else a container, shows at least its type."""
        above = list(self._child[target])
        top = next((key for key in reversed(above) if not _is_plain(self._known[key])), above[-1] if above else None)
        if top is not None:
            found[target] = self._chain(top, target, type(self._known[top]).__name__, NAMELESS)

    def _chain(self, start: int, target: int, name: str, where: str) -> Chain:
        keys = [start]
        while keys[-1] != target:
            keys.append(self._child[target][keys[-1]])
        things = [self._known[key] for key in keys]
        links = [Link(start, name, where, type(things[0]).__name__, entries(things[0]))]
        for at, (parent, child) in enumerate(itertools.pairwise(things)):
            step = self._step(things, at, parent, child)
            links.append(Link(id(child), step, "", type(child).__name__, entries(child)))
        if start in self._names.modules and len(links) > 1:  # module and variable are one name
            first = links[1]
            links[:2] = [first._replace(step=f"{name}.{first.step}" if name else first.step)]
        return tuple(links)

    def _step(self, things: list[Any], at: int, parent: Any, child: Any) -> str:
        if id(parent) in self._names.modules:
            return key_text(parent, child)
        # An object's dict is no step of its own, nor are a closure's cells.
        if type(parent) is dict and at > 0 and _owns(things[at - 1], parent):
            return f".{key_text(parent, child)}"
        if type(child) is dict and _owns(parent, child):
            return ""
        if type(parent) in _ENDS or type(parent) is types.CellType or (at and type(things[at - 1]) in _ENDS):
            return ""
        return step_text(parent, child)


def _owns(owner: Any, space: dict[Any, Any]) -> bool:
    if issubclass(type(owner), type):
        return True
    try:
        return object.__getattribute__(owner, "__dict__") is space
    except Exception:
        return False


def _is_plain(thing: Any) -> bool:
    return type(thing).__module__ == "builtins"


def _own_name(thing: Any) -> str:
    inner = thing
    if type(thing) is functools._lru_cache_wrapper:
        inner = thing.__wrapped__
    if issubclass(type(inner), type):
        return str(type.__dict__["__qualname__"].__get__(inner))
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def _kind_of_end(thing: Any) -> str:
    if issubclass(type(thing), type):
        return "an attribute of that class"
    if type(thing) is functools._lru_cache_wrapper:
        return "the lru_cache of that function"
    if type(thing) is types.FunctionType:
        return "in a closure or a default argument of that function"
    return "a local of that generator"


class Names:
    """The names that lead to objects right now: those of modules, and of the calling thread's live functions.

    Attributes:
        modules: name by the id of a module's dict.
        variables: (name, whose) by the id of a value that the program's own variables have. Of several names, that of
            a module's global wins, and then that of the outermost function, which is the likeliest to own it.
        ours: ids of our own frames.
    """

    def __init__(self) -> None:
        self.modules: dict[int, str] = {}
        self.variables: dict[int, tuple[str, str]] = {}
        self.ours: set[int] = set()
        self._of_functions()
        self._of_modules()

    def _of_functions(self) -> None:
        frame: types.FrameType | None = sys._getframe(0)
        while frame is not None:
            file, code = frame.f_code.co_filename, frame.f_code
            if is_gpuscope(file):
                self.ours.add(id(frame))
            elif code.co_flags & _OPTIMIZED:
                where = f"a local of {code.co_name}() ({os.path.basename(file)}:{frame.f_lineno})"
                self.variables.update(
                    (id(value), (name, where)) for name, value in _locals(frame) if name.isidentifier()
                )
            frame = frame.f_back

    def _of_modules(self) -> None:
        for name, space in _module_spaces():
            if id(space) in self.modules:
                continue  # __main__ is the first, and may have aliases
            self.modules[id(space)] = name
            file = space.get("__file__")
            if isinstance(file, str) and is_program(file):
                for variable, value in list(space.items()):
                    self.variables[id(value)] = (f"{name}.{variable}" if name else variable, "")


def _module_spaces() -> list[tuple[str, dict[str, Any]]]:
    spaces = []
    for name, module in sorted(sys.modules.items(), key=lambda entry: entry[0] != "__main__"):
        if issubclass(type(module), types.ModuleType):
            spaces.append((_module_name(name), types.ModuleType.__getattribute__(module, "__dict__")))
    return spaces


def _module_name(name: str) -> str:
    if name != "__main__":
        return name
    file = vars(sys.modules["__main__"]).get("__file__")
    return os.path.splitext(os.path.basename(file))[0] if isinstance(file, str) else ""


def _locals(frame: types.FrameType) -> list[tuple[str, Any]]:
    space = frame.f_locals
    found = list(space.items())
    # Before Python 3.13 the frame keeps this copy, and so would what it holds be kept. Three references are the
    # frame's, ours and the call's: with more the program itself asked for locals().
    if type(space) is dict and sys.gettrace() is None and sys.getrefcount(space) <= 3:
        space.clear()
    return found


def step_text(parent: Any, child: Any) -> str:
    """How one gets from an object to one it refers to: ".name", "['key']" or "[...]"; "" where that is not known."""
    kind = type(parent)
    if issubclass(kind, dict):
        return _index_text(_key(parent, child))
    if issubclass(kind, _SEQUENCES):
        return "[...]"
    name = attribute(parent, child)
    return f".{name}" if name else ""


def attribute(owner: Any, value: Any) -> str:
    """The attribute of an object, in its dict or its slots, that is a value; no code of the program runs."""
    try:
        key = _key(object.__getattribute__(owner, "__dict__"), value)
        if isinstance(key, str):
            return key
    except Exception:
        pass  # no dict
    for kind in type(owner).__mro__:
        for name, slot in list(vars(kind).items()):
            if type(slot) is types.MemberDescriptorType and _slot(slot, owner) is value:
                return name
    return ""


def _slot(slot: types.MemberDescriptorType, owner: Any) -> Any:
    try:
        return slot.__get__(owner)
    except AttributeError:
        return None  # not set


def key_text(space: dict[Any, Any], child: Any) -> str:
    """The key of a namespace under which an object lies; "?" when it has left."""
    key = _key(space, child)
    return key if isinstance(key, str) else "?"


def _key(space: dict[Any, Any], child: Any) -> Any:
    try:
        return next((key for key, value in dict.items(space) if value is child), None)
    except RuntimeError:
        return None  # another thread changed it


def _index_text(key: Any) -> str:
    if type(key) not in {str, int}:
        return "[...]"
    text = repr(key)
    return f"[{text}]" if len(text) <= _LONGEST_KEY else "[...]"


def entries(container: Any) -> int | None:
    """How many entries one of Python's containers has, subclasses too; None for other objects."""
    base = next((base for base in CONTAINERS if issubclass(type(container), base)), None)
    return None if base is None else int(base.__len__(container))  # type: ignore[attr-defined]
