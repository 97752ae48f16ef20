# SPDX-License-Identifier: Apache-2.0
"""What CuPy's memory pool hands out and takes back, for the memory history."""

from __future__ import annotations

import sys
import threading
from typing import Any

from gpuscope import _core
from gpuscope.memory.events import SOURCES

_CUPY = SOURCES.index("cupy")


class CupyReports:
    """A hook in CuPy's pool, on the thread that makes this; CuPy has been imported."""

    def __init__(self) -> None:
        self._hook = _hook_class()()
        self._thread = threading.get_ident()
        self._hook.__enter__()

    def end(self) -> None:
        """Ends it. From another thread the hook can be silenced alone."""
        self._hook.silent = True
        if threading.get_ident() == self._thread:
            self._hook.__exit__(None, None, None)


def _hook_class() -> Any:
    base: Any = sys.modules["cupy"].cuda.MemoryHook

    class Hook(base):  # type: ignore[misc]
        """Tells the core."""

        silent = False

        def __init__(self) -> None:
            # CuPy keeps a thread's hooks by name.
            self.name = f"gpuscope memory history {id(self):x}"

        def malloc_postprocess(self, **what: Any) -> None:
            if what["mem_ptr"]:  # not when there was no memory
                self._tell(what, what["mem_size"])

        def free_postprocess(self, **what: Any) -> None:
            self._tell(what, -what["mem_size"])

        def _tell(self, what: dict[str, Any], size: int) -> None:
            if not self.silent:
                _core.record_memory(_CUPY, what["device_id"], what["mem_ptr"], size)

    return Hook
