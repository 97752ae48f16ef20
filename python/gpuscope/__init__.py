# SPDX-License-Identifier: Apache-2.0
"""GPU profiling and benchmarking.

Each name of ``__init__.pyi`` is imported from its module when it is first used, so that importing the package costs
next to nothing.

PYTEST_DONT_REWRITE: nothing here is a test of the program that pytest runs.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    from gpuscope.late_imports import import_of_stub

    return import_of_stub(__name__, name)


def __dir__() -> list[str]:
    from gpuscope.late_imports import public_names

    return public_names(__name__)
