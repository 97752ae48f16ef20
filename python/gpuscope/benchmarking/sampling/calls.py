# SPDX-License-Identifier: Apache-2.0
"""Functions that return before their work is even launched, as JAX's do, are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class Waiting:
    """A function together with waiting for what it returned, by ``block_until_ready``."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._value: object = None

    def __call__(self) -> object:
        """Calls the function and waits."""
        self.start()
        return self.finish()

    def start(self) -> None:
        """Calls the function."""
        self._value = self._function()

    def finish(self) -> object:
        """Waits for what the last call returned, and returns it."""
        value, self._value = self._value, None
        for array in _arrays(value):
            array.block_until_ready()
        return value


def returns_early(value: object) -> bool:
    """Whether what a function returned may still be waiting to be launched."""
    return any(True for _ in _arrays(value))


def _arrays(value: Any) -> Iterable[Any]:
    if hasattr(value, "block_until_ready"):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
