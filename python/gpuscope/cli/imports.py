# SPDX-License-Identifier: Apache-2.0
"""What gpuscope imports in the process of a program, whose folder is the first to be searched."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_OWN = tuple(sys.path[1:])  # without the first folder, whose place the program's takes


@contextlib.contextmanager
def own_imports() -> Iterator[None]:
    """While open, gpuscope imports as if the program had no folder: a random.py there is the program's alone.

    The program's folders remain behind, as its threads may go on.
    """
    of_program = sys.path
    sys.path = [*_OWN, *of_program]
    try:
        yield
    finally:
        sys.path = of_program
