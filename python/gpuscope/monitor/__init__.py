# SPDX-License-Identifier: Apache-2.0
"""The state of GPUs, used by any program, and the types of the results.

Each name of ``__init__.pyi`` is imported from its module when it is first used.
"""

from __future__ import annotations

from gpuscope.late_imports import import_of_stub, public_names


def __getattr__(name: str) -> object:
    return import_of_stub(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)
