# SPDX-License-Identifier: Apache-2.0
"""Hardware counters of a GPU, sampled during a recording or measured exactly over a call.

Each name of ``__init__.pyi`` is imported from its module on first use.
"""

from __future__ import annotations

from gpuscope.late_imports import import_of_stub, public_names


def __getattr__(name: str) -> object:
    return import_of_stub(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)
