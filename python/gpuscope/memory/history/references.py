# SPDX-License-Identifier: Apache-2.0
"""Finds chains of references from a program's names to objects."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sys
import types
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuscope import _core
from gpuscope.memory.history.call_stacks import is_gpuscope, is_program

NAMELESS = "no name leads to it"
LONGEST_SEARCH = 2.0  # seconds of CPU time: the load of the machine makes no difference
_MOST_LEVELS = 30  # a nested module needs three: the module, its __dict__ and its dict of modules
_MOST_AT_ONCE = 12  # each search goes through every object of the process
_MOST_A_LEVEL = 36
# By id, because a metaclass of the program may override comparison and hash.
_ENDS = frozenset(
    map(
        id,
        (
            types.FunctionType,
            types.GeneratorType,
            types.CoroutineType,
            types.AsyncGeneratorType,
            type,
            functools._lru_cache_wrapper,
        ),
    )
)

_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function's frame, whose f_locals is a copy before Python 3.13
_LONGEST_KEY = 30
_SEQUENCES: tuple[type, ...] = (list, tuple, set, frozenset, deque)
CONTAINERS: tuple[type, ...] = (*_SEQUENCES, dict)


class Link(NamedTuple):
    """One object of the chain from a name to another object.

    Attributes:
        id: of the object.
        step: source text that leads here from the previous link: "losses", ".history", "['loss']".
        where: for the first link, the kind of its name.
        kind: name of its type.
        entries: number of entries; None if it is no container.
    """

    id: int
    step: str
    where: str
    kind: str
    entries: int | None


Chain = tuple[Link, ...]  # from the name to the object


class References:
    """Searches the referrers of objects level by level until it reaches a name.

    Args:
        names: the current names.
        hidden: ids of objects that are not the program's.
        keepers: references that the collector does not know: the keeper by the id of the kept object.

    Attributes:
        stopped: whether a search was stopped after LONGEST_SEARCH.
    """

    def __init__(self, names: Names, hidden: set[int], keepers: Mapping[int, Any]) -> None:
        self._names = names
        self._keepers = keepers
        self._hidden = hidden | names.live
        self._known: dict[int, Any] = {}  # visited objects
        self._child: dict[int, dict[int, int]] = {}  # by target: the next object of the chain, by id
        self._leads: dict[int, set[int]] = {}  # the targets that an object leads to
        self._above: dict[int, list[int]] = {}  # referrers of an object
        self._hidden |= {*map(id, (self, self.__dict__, keepers, self._known, self._child, self._leads, self._above))}
        self._end_ns = _core.thread_cpu_ns() + round(LONGEST_SEARCH * 1e9)
        self.stopped = False

    def chains_to(self, things: Sequence[Any]) -> dict[int, Chain]:
        """A shortest chain to each object that a name leads to, by the object's id."""
        found: dict[int, Chain] = {}
        level = {id(thing): thing for thing in things}
        most = max(_MOST_A_LEVEL, len(level))
        self._known, self._above = dict(level), {}
        self._leads = {key: {key} for key in level}
        self._child = {key: {} for key in level}
        self._hidden |= {*map(id, (things, level, self._known, self._above, self._leads, self._child))}
        for _ in range(_MOST_LEVELS):
            made_again = self._made_again()
            for key, thing in self._known.items():
                if self._leads[key] - found.keys() and _code_of(thing) not in made_again:
                    self._end(key, found)
            open_ = [thing for key, thing in level.items() if self._leads[key] - found.keys()]
            if not open_ or self.stopped:
                break
            self._hidden.add(id(open_))
            level = self._parents(open_[:most])
        for target in self._child.keys() - found.keys():
            self._nameless(target, found)
        return found

    def _made_again(self) -> set[Any]:
        """The code of functions that exist several times: the list of callbacks is the holder, not one callback."""
        counts = Counter(code for thing in self._known.values() if (code := _code_of(thing)) is not None)
        return {code for code, count in counts.items() if count > 1}

    def _parents(self, level: list[Any]) -> dict[int, Any]:
        following: dict[int, Any] = {}
        self._hidden |= {id(level), id(following)}
        for thing in level:
            if id(thing) in self._keepers:
                self._link(self._keepers[id(thing)], {id(thing)}, following)
        for start in range(0, len(level), _MOST_AT_ONCE):
            if _core.thread_cpu_ns() > self._end_ns:
                self.stopped = True
                break
            batch = tuple(level[start : start + _MOST_AT_ONCE])
            referrers = gc.get_referrers(*batch)
            ids = {id(thing) for thing in batch}
            self._hidden |= {id(batch), id(referrers)}
            for parent in referrers:
                if id(parent) not in self._hidden and type(parent) is not types.ModuleType:
                    self._link(parent, {id(child) for child in gc.get_referents(parent)} & ids, following)
            del parent
        return following

    def _link(self, parent: Any, children: set[int], following: dict[int, Any]) -> None:
        me = id(parent)
        if me not in self._known and children - {me}:
            self._known[me] = following[me] = parent
            self._leads[me] = set()
        for child in children - {me}:
            self._above.setdefault(child, []).append(me)
            self._lead(me, child, self._leads[child])

    def _lead(self, parent: int, child: int, targets: set[int]) -> None:
        """Adds the targets of a child to its parent and to all known referrers of the parent."""
        waiting = [(parent, child, frozenset(targets))]
        while waiting:
            parent, child, targets_now = waiting.pop()
            new = targets_now - self._leads[parent] - {parent}
            for target in new:
                self._child[target][parent] = child
            self._leads[parent] |= new
            if new:
                waiting.extend((above, parent, new) for above in self._above.get(parent, ()))

    def _end(self, key: int, found: dict[int, Chain]) -> None:
        name = None if key in self._keepers else self._name(key)
        if name is None:
            return
        for target in self._leads[key] - found.keys():
            found[target] = self._chain(key, target, *name)

    def _name(self, key: int) -> tuple[str, str] | None:
        thing = self._known[key]
        if id(type(thing)) in _ENDS or issubclass(type(thing), type):
            return _own_name(thing), _kind_of_end(thing)
        if key in self._names.variables:
            return self._names.variables[key]
        if key in self._names.modules:
            return self._names.modules[key], ""
        return None

    def _nameless(self, target: int, found: dict[int, Chain]) -> None:
        """Ends a chain without a name at the farthest object of a class, else of a container, to show its type."""
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
        # An object's __dict__ and a closure's cells are not shown as steps.
        if type(parent) is dict and at > 0 and _owns(things[at - 1], parent):
            return f".{key_text(parent, child)}"
        if type(child) is dict and _owns(parent, child):
            return ""
        if issubclass(type(parent), BaseException) and type(child) is types.FrameType:
            return ".__traceback__.tb_frame"
        if type(parent) is types.FrameType:
            name = next((name for name, value in locals_of(parent) if value is child), "?")
            return f".f_locals['{name}']"
        ends = id(type(parent)) in _ENDS or (at and id(type(things[at - 1])) in _ENDS)
        if ends or type(parent) is types.CellType:
            return ""
        return step_text(parent, child)


def _owns(owner: Any, space: dict[Any, Any]) -> bool:
    if issubclass(type(owner), type):
        return True
    try:
        return object.__getattribute__(owner, "__dict__") is space
    except Exception:
        return False


def _code_of(thing: Any) -> Any:
    return thing.__code__ if type(thing) is types.FunctionType else None


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
    """The current names of modules and of the calling thread's running functions.

    Attributes:
        modules: name by the id of a module's dict.
        variables: (name, kind of name) by the id of a value of the program's own variables. A module's global wins over
            locals, then the outermost function, as the likeliest owner.
        live: ids of the running frames.
        untracked: values of the calling thread's functions that the collector does not track.
    """

    def __init__(self) -> None:
        self.modules: dict[int, str] = {}
        self.variables: dict[int, tuple[str, str]] = {}
        self.live = _running()
        self.untracked: list[Any] = []
        self._of_functions()
        self._of_modules()

    def _of_functions(self) -> None:
        frame: types.FrameType | None = sys._getframe(0)
        while frame is not None:
            file, code = frame.f_code.co_filename, frame.f_code
            if not is_gpuscope(file) and code.co_flags & _OPTIMIZED:
                where = f"a local of {code.co_name}() ({os.path.basename(file)}:{frame.f_lineno})"
                for name, value in locals_of(frame):
                    if name.isidentifier():
                        self.variables[id(value)] = name, where
                    if not gc.is_tracked(value):
                        self.untracked.append(value)
            frame = frame.f_back

    def _of_modules(self) -> None:
        for name, space in _module_spaces():
            if id(space) in self.modules:
                continue  # an alias of __main__, which is first
            self.modules[id(space)] = name
            file = space.get("__file__")
            if isinstance(file, str) and is_program(file):
                for variable, value in list(space.items()):
                    self.variables[id(value)] = (f"{name}.{variable}" if name else variable, "")


def _running() -> set[int]:
    """Ids of the frames of all threads."""
    found = set()
    frames = list(sys._current_frames().values())
    while frames:  # empties the list: a cycle with our own frame would keep its callers' variables alive
        frame: types.FrameType | None = frames.pop()
        while frame is not None:
            found.add(id(frame))
            frame = frame.f_back
    return found


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


def locals_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Names and values of a frame's variables, without extending their lifetime."""
    space = frame.f_locals
    found = list(space.items())
    # Before Python 3.13 the frame keeps this copy, and so its values. Three references are the frame's, ours and the
    # call's. With more, the program itself called locals().
    if type(space) is dict and sys.gettrace() is None and sys.getrefcount(space) <= 3:
        space.clear()
    return found


def step_text(parent: Any, child: Any) -> str:
    """Source text that leads from an object to its referent: ".name", "['key']" or "[...]"; "" if unknown."""
    kind = type(parent)
    if issubclass(kind, dict):
        return _index_text(_key(parent, child))
    if issubclass(kind, _SEQUENCES):
        return "[...]"
    name = attribute(parent, child)
    return f".{name}" if name else ""


def attribute(owner: Any, value: Any) -> str:
    """The name of the attribute with a value, in an object's dict or slots. Runs no code of the program."""
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
    """The key of an object in a namespace; "?" if it is no longer there."""
    key = _key(space, child)
    return key if isinstance(key, str) else "?"


def _key(space: dict[Any, Any], child: Any) -> Any:
    try:
        return next((key for key, value in dict.items(space) if value is child), None)
    except RuntimeError:
        return None  # another thread changed it


def _index_text(key: Any) -> str:
    if type(key) is not str and type(key) is not int:
        return "[...]"
    text = repr(key)
    return f"[{text}]" if len(text) <= _LONGEST_KEY else "[...]"


def entries(container: Any) -> int | None:
    """Number of entries of a Python container or a subclass; None for other objects."""
    base = next((base for base in CONTAINERS if issubclass(type(container), base)), None)
    return None if base is None else int(base.__len__(container))  # type: ignore[attr-defined]
