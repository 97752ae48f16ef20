# SPDX-License-Identifier: Apache-2.0
"""Where a process's memory goes, on the GPU and on the host, for all libraries.

Each name of ``__init__.pyi`` is imported from its module at first use.
"""

from __future__ import annotations

from gpuscope.late_imports import import_of_stub, public_names


def __getattr__(name: str) -> object:
    return import_of_stub(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)
