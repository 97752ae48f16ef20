# SPDX-License-Identifier: Apache-2.0
"""NumPy that passes for a GPU, and processors with little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuscope.benchmarking.backends import Backend


class FakeBackend(Backend):
    """NumPy under any processor's name.

    Args:
        processor: "cpu" or "gpu".
        free: bytes of memory that it says can be had.
        functions: what to do for some operations instead of NumPy's work.
    """

    def __init__(
        self, processor: Any = "cpu", free: int = 1 << 40, functions: dict[str, Callable[..., Any]] | None = None
    ) -> None:
        super().__init__(np, processor, f"Fake {processor.upper()}")
        self._free, self._functions = free, functions or {}
        self.taken = self.given = 0

    def take(self, host: Any) -> Any:
        self.taken += 1
        return host

    def give(self, value: Any) -> Any:
        self.given += 1
        return value

    def function(self, operation: str) -> Callable[..., Any]:
        return self._functions.get(operation) or super().function(operation)

    def free_bytes(self) -> int:
        return self._free
