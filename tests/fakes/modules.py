# SPDX-License-Identifier: Apache-2.0
"""What a test must not leave behind: stand-ins for modules, and changes to those that were imported before it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def modules_unchanged() -> Iterator[None]:
    """Fails if the block leaves anything in ``sys.modules`` but what it imported, and restores it."""
    before = dict(sys.modules)
    yield
    missing = object()
    found = []
    for name in {**before, **sys.modules}:
        old, new = before.get(name, missing), sys.modules.get(name, missing)
        if old is new:
            continue
        if new is missing:
            found.append(f"{name} was removed")
        elif old is not missing:
            found.append(f"{name} was replaced by {new!r}")
        elif not _is_imported(name, new):
            found.append(f"{name} is {new!r}")
            del sys.modules[name]
    sys.modules.update(before)
    assert not found, f"left in sys.modules: {'; '.join(sorted(found))}"


def _is_imported(name: str, module: object) -> bool:
    """Whether it is a module that an import finds now, or one that a foreign package which is such a module made."""
    if not isinstance(module, ModuleType):
        return False
    if name == "__mp_main__":  # as multiprocessing calls it, too, once it is imported
        return module is sys.modules["__main__"]
    package = name.partition(".")[0]
    if getattr(module.__spec__, "loader", None) is not None:
        file = getattr(module, "__file__", None)
        return file is None or not {str(folder) for folder in Path(file).parents}.isdisjoint(sys.path)
    if package == name:
        return name.startswith(("_cython_", "cython_runtime"))  # of compiled extensions, which share types in it
    return package != "gpuscope" and _is_imported(package, sys.modules.get(package))
