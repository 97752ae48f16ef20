# SPDX-License-Identifier: Apache-2.0
"""What a program calls its objects: globals of modules, locals of the functions that run, attributes, keys."""

from __future__ import annotations

import os
import sys
import types
from collections import deque
from typing import Any

from gpuscope.memory.places import is_ours, is_own

_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function's frame, whose f_locals is a copy before Python 3.13
_LONGEST_KEY = 30
_SEQUENCES: tuple[type, ...] = (list, tuple, set, frozenset, deque)
CONTAINERS: tuple[type, ...] = (*_SEQUENCES, dict)


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
            if is_ours(file):
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
            if isinstance(file, str) and is_own(file):
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
    """How one gets from an object to one it refers to: ".name", "['key']" or "[...]"; "" where that is not told."""
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
