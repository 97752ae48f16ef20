# SPDX-License-Identifier: Apache-2.0
"""The calls of torch.nn.Module as regions: ``ResNet.layer1.0.conv1``.

torch's global hooks see every module that is called in eager mode; what runs inside a compiled graph or a scripted
module belongs to the module that Python called. A path begins with the class of the outermost module and goes on with
the names under which each module holds the next; a module that the one around it does not hold goes by its class.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

from gpuscope import _core
from gpuscope.frameworks.observers import Note, Options
from gpuscope.late_imports import WhenImported

# What torch warns of at each call of a compiled module; the regions are right, and the program did not ask for hooks.
_EXPECTED_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"


class TorchModules:
    """Opens a region when a module is called and closes it when the call ends, also by an exception: by torch's hooks.

    Attributes:
        is_open: whether the hooks are there, or will be as soon as torch is.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self.is_open = False
        self._import = WhenImported("torch", self._hook)
        self._before: Any = None  # torch's handles
        self._after: Any = None
        self._filter: Any = None

    def start(self) -> None:
        """A window begins; where torch is not there yet, modules are seen as soon as it is."""
        self.is_open = True
        self._import.watch()

    def stop(self) -> None:
        """It ends. Other threads may still be inside modules: the hook that closes their regions goes with the last."""
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
        """On whatever thread imports torch, so that nothing may escape."""
        try:
            compiler = importlib.import_module("torch.compiler")
            is_compiling = getattr(compiler, "is_dynamo_compiling", compiler.is_compiling)  # the cheaper one
            hooks = importlib.import_module("torch.nn.modules.module")
            warnings.filterwarnings("ignore", message=_EXPECTED_WARNING)
            self._filter = warnings.filters[0]
            before, after = self._before_call(is_compiling), self._after_call(is_compiling)
            with contextlib.suppress(ImportError, AttributeError):  # or torch.compile compiles them where it is active
                skip = importlib.import_module("torch._C._dynamo.eval_frame").skip_code
                skip(before.__code__)
                skip(after.__code__)
            self._before = hooks.register_module_forward_pre_hook(before)
            if self._after is None:
                self._after = hooks.register_module_forward_hook(after, always_call=True)
        except Exception as error:
            self._note(f"with_modules: modules could not be recorded: {error!r}")

    # Hooks are functions of Python, which a compiler follows: to it they do nothing. They raise and return nothing.

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
        """Notes it."""
        self._note(f"with_modules: a call of {type(module).__name__} could not be recorded: {error!r}")

    def _remove_after_hook(self) -> None:
        if self._after is not None and _core.open_modules() == 0:
            self._after.remove()
            self._after = None


def are_called(options: Options) -> bool:
    """Whether modules are read from the calls of Python functions, which are recorded anyway."""
    return options.with_stack and options.operators and options.python_functions


def observe(options: Options, note: Note) -> TorchModules | None:
    """Records the calls of modules when they are asked for."""
    return TorchModules(note) if options.with_modules and not are_called(options) else None
