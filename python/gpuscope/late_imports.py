# SPDX-License-Identifier: Apache-2.0
"""Imports a package's names on first use, and calls a function after a module was imported."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, cast

_MOST_IMPORTS = 1000  # consecutive imports that a fork waits for


@functools.cache
def modules_of_stub(package: str) -> dict[str, str]:
    """The names that a package's stub imports, one a line, and their modules."""
    loader: Any = sys.modules[package].__loader__
    stub: bytes = loader.get_data(f"{sys.modules[package].__file__}i")
    lines = (line.split() for line in stub.decode().splitlines() if line.startswith("from "))
    return {name: module for _, module, _, _, _, name in lines}


def public_names(package: str) -> list[str]:
    """The names of a package's stub that are neither modules nor private: its ``__all__`` and ``dir``."""
    modules = modules_of_stub(package)
    return sorted(name for name in modules if modules[name] != package and (name[0] != "_" or name.endswith("__")))


def import_of_stub(package: str, name: str) -> object:
    """The ``__getattr__`` of a package whose stub says where its names come from: each is imported on first use."""
    modules = modules_of_stub(package)
    if name == "__all__":
        return public_names(package)
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if modules[name] == package:
        return importlib.import_module(f"{package}.{name}")
    value: object = getattr(importlib.import_module(modules[name]), name)
    setattr(sys.modules[package], name, value)
    return value


def _finish_imports() -> None:
    # A module that another thread is importing stays locked in the child. Importing it here waits until it is complete.
    locks: Iterable[str] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", ())
    for _ in range(_MOST_IMPORTS):  # the other thread may start the next import
        if not (names := [name for name in list(locks) if name.startswith("gpuscope.")]):
            break
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


os.register_at_fork(before=_finish_imports)


# importlib.abc's base classes are left out: importing them takes 19 modules.
class WhenImported:
    """Calls `then` once `module` has been imported: in `watch`, or on the thread that imports it, until `cancel`."""

    def __init__(self, module: str, then: Callable[[], None]) -> None:
        self._module = module
        self._then = then
        self._searching = False

    def watch(self) -> WhenImported:
        """Starts watching. Returns itself."""
        if self._module in sys.modules:
            self._then()
        else:
            sys.meta_path.insert(0, self)
        return self

    def cancel(self) -> None:
        """Stops watching, whether or not the module was imported."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Part of Python's import protocol."""
        if fullname != self._module or self._searching:
            return None
        self._searching = True
        try:
            import importlib.util

            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Loader(spec.loader, self))
        return spec

    def imported(self) -> None:
        """Called after the module has been executed."""
        if self in sys.meta_path:
            self.cancel()
            self._then()


class _Loader:
    """Runs the module's own loader, and then the call."""

    def __init__(self, loader: Any, waiting: WhenImported) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._waiting.imported()
