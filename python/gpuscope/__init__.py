# SPDX-License-Identifier: Apache-2.0
"""GPU profiling and benchmarking.

Each name of ``__init__.pyi`` is imported from its module when it is first used, so that importing the package costs
next to nothing.

PYTEST_DONT_REWRITE: nothing here is a test of the program that pytest runs.
"""

from __future__ import annotations

import importlib

_MODULE_OF: dict[str, str] = {}  # of each public name, once one was asked for


def _module_of() -> dict[str, str]:
    if not _MODULE_OF:
        stub: bytes = __loader__.get_data(f"{__file__}i")
        lines = (line.split() for line in stub.decode().splitlines() if line.startswith("from "))
        _MODULE_OF.update({name: module for _, module, _, _, _, name in lines})
    return _MODULE_OF


def __getattr__(name: str) -> object:
    modules = _module_of()
    if name == "__all__":
        return sorted(public for public, module in modules.items() if module != __name__)
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if modules[name] == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    value: object = getattr(importlib.import_module(modules[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_module_of()})
