# SPDX-License-Identifier: Apache-2.0
"""NumPy: its reports of the memory of arrays, and the arrays themselves. Does not import it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator
from typing import Any

from gpuscope import _core

# NumPy 2 has the old name too, and warns of it.
_MODULES = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")


class NumpyReports:
    """Has NumPy report what it hands out for arrays, on all threads, and what it takes back.

    The calling context's own handler, where the program has set one with PyDataMem_SetHandler, is called through.

    Attributes:
        why: why it does not, "" when it does.
    """

    def __init__(self) -> None:
        modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
        self._table: Any = next((getattr(module, "_ARRAY_API", None) for module in modules), None)
        self.why = "it has no table of functions" if self._table is None else _core.watch_numpy(self._table)
        self._begun = not self.why

    def end(self) -> None:
        """Ends it. On another thread, a handler of the program's stays wrapped, and no longer reports."""
        if self._begun:
            self._begun = False
            _core.unwatch_numpy(self._table)


@contextlib.contextmanager
def unreported() -> Iterator[None]:
    """What the calling thread takes meanwhile is not reported: our own, to look at the program's."""
    before = _core.leave_out_numpy(True)
    try:
        yield
    finally:
        _core.leave_out_numpy(before)


def array_type() -> type | None:
    """numpy.ndarray, where NumPy has been imported."""
    found = getattr(sys.modules.get("numpy"), "ndarray", None)
    return found if isinstance(found, type) else None


def origin(array: Any) -> Any:
    """What has the memory that an array shows: an array, `array` itself if it shares none, or another object."""
    kind = array_type()
    while kind is not None and issubclass(type(array), kind):
        base = kind.base.__get__(array)  # type: ignore[attr-defined]
        if base is None:
            break
        array = base
    return array


def address_of(array: Any, sizes: Collection[int]) -> int | None:
    """Where the memory of an array of one of these sizes in bytes begins; None for others."""
    kind = array_type()
    if kind is None or not issubclass(type(array), kind) or kind.nbytes.__get__(array) not in sizes:  # type: ignore[attr-defined]
        return None
    return int(kind.__array_interface__.__get__(array)["data"][0])  # type: ignore[attr-defined]
