# SPDX-License-Identifier: Apache-2.0
"""Under which name a torch.nn.Module holds another."""

from __future__ import annotations

import weakref
from typing import Any

_MOST = 1 << 16  # programs that make modules for ever must not fill the memory


class ModuleNames:
    """Looks names up once and remembers them; what it remembers is checked, as modules change and die."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], str] = {}
        self._strangers: dict[tuple[int, int], tuple[weakref.ref[Any], weakref.ref[Any], int]] = {}

    def find(self, holder: Any, module: Any) -> str | None:
        """The name of `module` among the children of `holder`, else among its descendants: ``layers.0``; or None."""
        key = (id(holder), id(module))
        name = self._names.get(key)
        if name is not None and _follow(holder, name) is module:
            return name
        known = self._strangers.get(key)
        if known and known[2] == len(holder._modules) and known[0]() is holder and known[1]() is module:
            return None
        name = _search(holder, module)
        if len(self._names) + len(self._strangers) >= _MOST:
            self._names.clear()
            self._strangers.clear()
        if name is not None:
            self._names[key] = name
        else:
            self._strangers[key] = (weakref.ref(holder), weakref.ref(module), len(holder._modules))
        return name


def _follow(holder: Any, name: str) -> Any:
    """What stands under a name now."""
    if "." not in name:
        return holder._modules.get(name)
    for part in name.split("."):
        holder = holder._modules.get(part)
        if holder is None:
            return None
    return holder


def _search(holder: Any, module: Any) -> str | None:
    """The shortest name, breadth first: a module may be held twice, and may hold one that holds it."""
    seen = {id(holder)}
    level: list[tuple[str, Any]] = [("", holder)]
    while level:
        below: list[tuple[str, Any]] = []
        for prefix, parent in level:
            name: str
            for name, child in parent._modules.items():
                if child is module:
                    return prefix + name
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    below.append((f"{prefix}{name}.", child))
        level = below
    return None
