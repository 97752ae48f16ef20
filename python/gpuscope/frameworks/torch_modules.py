# SPDX-License-Identifier: Apache-2.0
"""Calls of torch.nn.Module as regions: ``ResNet.layer1.0.conv1``.

torch's global hooks see every module called in eager mode. Work inside a compiled graph or a scripted module is
attributed to the module that Python called. A path is the class of the outermost module and the attribute names below
it. A module that is no attribute of the surrounding one appears by its class.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

from gpuscope import _core
from gpuscope.frameworks.observers import Note, ObserverOptions
from gpuscope.late_imports import WhenImported

# torch's warning at each call of a compiled module. The regions are right, and the hooks are not the program's.
_EXPECTED_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"


class TorchModules:
    """Opens a region for each call of a module, by torch's hooks. An exception in the call closes it too.

    Attributes:
        is_open: whether the hooks are installed, or will be when torch is imported.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self.is_open = False
        self._import = WhenImported("torch", self._hook)
        self._before: Any = None  # torch's handles
        self._after: Any = None
        self._filter: Any = None

    def start(self) -> None:
        """Installs the hooks, now or when torch is imported."""
        self.is_open = True
        self._import.watch()

    def stop(self) -> None:
        """Removes the hooks. The one that closes regions stays until other threads have left their modules."""
        self.is_open = False
        self._import.cancel()
        if self._before is not None:
            self._before.remove()
            self._before = None
        _core.leave_modules()
        self._remove_after_hook()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
            warnings._filters_mutated()  # type: ignore[attr-defined]

    def _hook(self) -> None:
        """Runs on the thread that imports torch, so it must not raise."""
        try:
            compiler = importlib.import_module("torch.compiler")
            is_compiling = getattr(compiler, "is_dynamo_compiling", compiler.is_compiling)  # the cheaper one
            hooks = importlib.import_module("torch.nn.modules.module")
            warnings.filterwarnings("ignore", message=_EXPECTED_WARNING)
            self._filter = warnings.filters[0]
            before, after = self._before_call(is_compiling), self._after_call(is_compiling)
            with contextlib.suppress(ImportError, AttributeError):  # else an active torch.compile compiles them
                skip = importlib.import_module("torch._C._dynamo.eval_frame").skip_code
                skip(before.__code__)
                skip(after.__code__)
            self._before = hooks.register_module_forward_pre_hook(before)
            if self._after is None:
                self._after = hooks.register_module_forward_hook(after, always_call=True)
        except Exception as error:
            self._note(f"with_modules: modules could not be recorded: {error!r}")

    # Compilers trace these Python functions, and must see no effect. The hooks never raise, and return None.

    def _before_call(self, is_compiling: Callable[[], bool]) -> FunctionType:
        def before(module: Any, *_: Any) -> None:
            if is_compiling() or not self.is_open:
                return
            try:
                _core.enter_module(module)
            except Exception as error:
                self.failed(module, error)

        assert isinstance(before, FunctionType)
        return before

    def _after_call(self, is_compiling: Callable[[], bool]) -> FunctionType:
        def after(module: Any, *_: Any) -> None:
            if is_compiling():
                return
            try:
                _core.leave_module(module)
                if not self.is_open:
                    _core.leave_ended_modules()
                    self._remove_after_hook()
            except Exception as error:
                self.failed(module, error)

        assert isinstance(after, FunctionType)
        return after

    def failed(self, module: Any, error: Exception) -> None:
        """Notes a failed recording of a module's call."""
        self._note(f"with_modules: a call of {type(module).__name__} could not be recorded: {error!r}")

    def _remove_after_hook(self) -> None:
        if self._after is not None and _core.open_modules() == 0:
            self._after.remove()
            self._after = None


def are_called(options: ObserverOptions) -> bool:
    """Whether modules come from the recorded calls of Python functions instead of hooks."""
    return options.with_stack and options.operators and options.python_functions


def observe(options: ObserverOptions, note: Note) -> TorchModules | None:
    """An observer of module calls, if they are requested and do not come from function calls."""
    return TorchModules(note) if options.with_modules and not are_called(options) else None
