# SPDX-License-Identifier: Apache-2.0
"""Where out-of-memory errors are seen: Python's hooks for uncaught errors, and torch's observer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpuscope.late_imports import WhenImported
from gpuscope.memory.failures import delivery


class Hook:
    """In front of an excepthook, which is always called after."""

    def __init__(self, module: ModuleType, name: str = "excepthook") -> None:
        self._module = module
        self._name = name
        self._previous: Callable[..., Any] = getattr(module, name)
        setattr(module, name, self)

    def remove(self) -> None:
        """Puts the previous one back, unless another has taken the place since; that one goes on calling it."""
        if getattr(self._module, self._name) is self:
            setattr(self._module, self._name, self._previous)

    def __call__(self, *args: Any) -> None:
        """sys.excepthook is given class, error and traceback; threading.excepthook one object with the three."""
        delivery.from_error(args[1] if len(args) > 1 else args[0].exc_value)
        self._previous(*args)


class Hooks:
    """All of them, from `hold` until as many times `release`. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._hooks: list[Hook] = []
        self._waiting: WhenImported | None = None
        self._attached = False  # for good: torch cannot let go of an observer

    def hold(self) -> None:
        """Installs them."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._hooks = [Hook(sys), Hook(threading)]
                self._waiting = WhenImported("torch", self._when_torch_is_there)

    def release(self) -> None:
        """Removes them with the last who held them."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for hook in self._hooks:
                    hook.remove()
                self._hooks = []
                if self._waiting is not None:
                    self._waiting.cancel()

    def _when_torch_is_there(self) -> None:
        # Attaching initializes CUDA, which forbids a later fork: so not before torch does that by itself.
        try:
            if not self._attached:
                sys.modules["torch"].cuda._lazy_call(self._attach)
                self._attached = True
        except Exception:  # inside an import of the user's: its errors only
            return

    def _attach(self) -> None:
        try:
            sys.modules["torch"]._C._cuda_attach_out_of_memory_observer(delivery.from_torch)
        except Exception:  # an allocator or a build without observers; its errors are seen when they pass
            return


hooks = Hooks()
