# SPDX-License-Identifier: Apache-2.0
"""NumPy: reports of array memory, and access to arrays. Does not import NumPy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator
from typing import Any

from gpuscope import _core

# NumPy 2 also has the old name, but warns of it.
_MODULES = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")


class NumpyReports:
    """Makes NumPy report allocations and releases of arrays, on all threads.

    A handler that the program has set in the calling context (PyDataMem_SetHandler) is still called.

    Attributes:
        why: why there are no reports; "" if there are.
    """

    def __init__(self) -> None:
        modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
        self._table: Any = next((getattr(module, "_ARRAY_API", None) for module in modules), None)
        self.why = "it has no table of functions" if self._table is None else _core.watch_numpy(self._table)
        self._begun = not self.why

    def end(self) -> None:
        """Ends the reports. On another thread, the program's handler stays wrapped, but no longer reports."""
        if self._begun:
            self._begun = False
            _core.unwatch_numpy(self._table)


@contextlib.contextmanager
def unreported() -> Iterator[None]:
    """Excludes allocations of the calling thread from the reports, for gpuscope's own arrays."""
    before = _core.leave_out_numpy(True)
    try:
        yield
    finally:
        _core.leave_out_numpy(before)


def array_type() -> type | None:
    """numpy.ndarray, or None if NumPy is not imported."""
    found = getattr(sys.modules.get("numpy"), "ndarray", None)
    return found if isinstance(found, type) else None


def origin(array: Any) -> Any:
    """The owner of an array's memory: `array` itself, another array, or another object."""
    kind = array_type()
    while kind is not None and issubclass(type(array), kind):
        base = kind.base.__get__(array)  # type: ignore[attr-defined]
        if base is None:
            break
        array = base
    return array


def address_of(array: Any, sizes: Collection[int]) -> int | None:
    """First address of an array's memory if its size in bytes is in `sizes`; None otherwise."""
    kind = array_type()
    if kind is None or not issubclass(type(array), kind) or kind.nbytes.__get__(array) not in sizes:  # type: ignore[attr-defined]
        return None
    return int(kind.__array_interface__.__get__(array)["data"][0])  # type: ignore[attr-defined]
