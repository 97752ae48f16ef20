# SPDX-License-Identifier: Apache-2.0
"""The calls of torch.nn.Module as regions: ``ResNet.layer1.0.conv1``.

torch's global hooks see every module that is called in eager mode; what runs inside a compiled graph or a scripted
module belongs to the module that Python called. A path begins with the class of the outermost module and goes on with
the names under which each module holds the next; a module that the one around it does not hold goes by its class.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

from gpuscope import _core
from gpuscope.frameworks.observers import Note, Options
from gpuscope.late_imports import WhenImported

_COMPILED = "_orig_mod"  # under which torch.compile's wrapper holds a module
# What torch warns of at each call of a compiled module; the regions are right, and the program did not ask for hooks.
_EXPECTED_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"
_MOST_NAMES = 1 << 16  # programs that make modules for ever must not fill the memory


class _ModuleNames:
    """The names under which modules hold others, each looked up once; a cached name is checked, as modules change."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], str] = {}
        self._not_held: dict[tuple[int, int], tuple[weakref.ref[Any], weakref.ref[Any], int]] = {}

    def find(self, holder: Any, module: Any) -> str | None:
        """The name of `module` among the children of `holder`, else among its descendants: ``layers.0``; or None."""
        key = (id(holder), id(module))
        name = self._names.get(key)
        if name is not None and _follow(holder, name) is module:
            return name
        known = self._not_held.get(key)
        if known and known[2] == len(holder._modules) and known[0]() is holder and known[1]() is module:
            return None
        name = _search(holder, module)
        if len(self._names) + len(self._not_held) >= _MOST_NAMES:
            self._names.clear()
            self._not_held.clear()
        if name is not None:
            self._names[key] = name
        else:
            self._not_held[key] = (weakref.ref(holder), weakref.ref(module), len(holder._modules))
        return name


def _follow(holder: Any, name: str) -> Any:
    """What stands under a name now."""
    if "." not in name:
        return holder._modules.get(name)
    for part in name.split("."):
        holder = holder._modules.get(part)
        if holder is None:
            return None
    return holder


def _search(holder: Any, module: Any) -> str | None:
    """The shortest name, breadth first: a module may be held twice, and may hold one that holds it."""
    seen = {id(holder)}
    level: list[tuple[str, Any]] = [("", holder)]
    while level:
        below: list[tuple[str, Any]] = []
        for prefix, parent in level:
            name: str
            for name, child in parent._modules.items():
                if child is module:
                    return prefix + name
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    below.append((f"{prefix}{name}.", child))
        level = below
    return None


class _Call:
    """A module that is being called."""

    __slots__ = ("frame", "module", "path", "region")

    # Written out: what dataclasses and named tuples write has no file of this package, and would be in recordings.
    def __init__(self, module: Any, path: str, region: AbstractContextManager[Any], frame: FrameType) -> None:
        self.module = module
        self.path = path
        self.region = region
        self.frame = frame


class _Thread:
    """The calls that one thread is in, outermost first."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


class _TorchModules:
    """Opens a region when a module is called and closes it when the call ends, also by an exception."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._names = _ModuleNames()
        self._local = threading.local()
        self._threads: weakref.WeakSet[_Thread] = weakref.WeakSet()
        self._open = False
        self._import = WhenImported("torch", self._hook)
        self._before: Any = None  # torch's handles
        self._after: Any = None
        self._filter: Any = None

    def start(self) -> None:
        """A window begins; where torch is not there yet, modules are seen as soon as it is."""
        self._open = True
        self._import.watch()

    def stop(self) -> None:
        """It ends. Other threads may still be inside modules: the hook that closes their regions goes with the last."""
        self._open = False
        self._import.cancel()
        if self._before is not None:
            self._before.remove()
            self._before = None
        calls = self._thread().calls
        while calls:
            calls.pop().region.__exit__(None, None, None)
        self._remove_after_hook()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
            warnings._filters_mutated()  # type: ignore[attr-defined]

    def _hook(self) -> None:
        """On whatever thread imports torch, so that nothing may escape."""
        try:
            is_compiling = importlib.import_module("torch.compiler").is_compiling
            hooks = importlib.import_module("torch.nn.modules.module")
            warnings.filterwarnings("ignore", message=_EXPECTED_WARNING)
            self._filter = warnings.filters[0]
            self._before = hooks.register_module_forward_pre_hook(_quiet(is_compiling, self._enter, self._note))
            if self._after is None:
                leave = _quiet(is_compiling, self._leave, self._note)
                self._after = hooks.register_module_forward_hook(leave, always_call=True)
        except Exception as error:
            self._note(f"with_modules: modules could not be recorded: {error!r}")

    def _thread(self) -> _Thread:
        thread: _Thread | None = getattr(self._local, "thread", None)
        if thread is None:
            thread = self._local.thread = _Thread()
            self._threads.add(thread)
        return thread

    def _enter(self, module: Any) -> None:
        if not self._open:
            return
        frame = sys._getframe(2)  # torch's, which lives as long as the call
        calls = self._thread().calls
        path = self._path(module, calls, frame)
        inside = calls and calls[-1].path == path  # torch.compile's wrapper, which has the region
        region = nullcontext() if inside else _core.region_of_kind(path, _core.RegionKind.MODULE)
        calls.append(_Call(module, path, region, frame))
        region.__enter__()

    def _leave(self, module: Any) -> None:
        calls = self._thread().calls
        if any(call.module is module for call in calls):
            while True:
                call = calls.pop()  # those above it were left without torch saying so
                call.region.__exit__(None, None, None)
                if call.module is module:
                    break
        if not self._open:
            _drop_ended(calls, sys._getframe(1))
            self._remove_after_hook()

    def _remove_after_hook(self) -> None:
        if self._after is not None and not any(thread.calls for thread in list(self._threads)):
            self._after.remove()
            self._after = None

    def _path(self, module: Any, calls: list[_Call], frame: FrameType) -> str:
        name = self._name_in_caller(module, calls)
        if name is None and calls:
            _drop_ended(calls, frame)
            name = self._name_in_caller(module, calls)
        if not calls:
            return _class_name(module)
        around = calls[-1]
        if name is None:  # it calls itself, or is not held by it
            name = around.path.rpartition(".")[2] if around.module is module else _class_name(module)
        elif _COMPILED in name:
            name = ".".join(part for part in name.split(".") if part != _COMPILED)
        return sys.intern(f"{around.path}.{name}") if name else around.path

    def _name_in_caller(self, module: Any, calls: list[_Call]) -> str | None:
        return self._names.find(calls[-1].module, module) if calls else None


def _class_name(module: Any) -> str:
    name: str = type(module).__name__
    if name == "OptimizedModule":
        return _class_name(module._orig_mod)
    return str(module.original_name) if name == "RecursiveScriptModule" else name


def _drop_ended(calls: list[_Call], frame: FrameType) -> None:
    """Ends the calls that are not around `frame`: torch calls no hook after KeyboardInterrupt and its like."""
    while calls:
        here: FrameType | None = frame
        while here is not None and here is not calls[-1].frame:
            here = here.f_back
        if here is not None:
            return
        calls.pop().region.__exit__(None, None, None)


def _quiet(is_compiling: Callable[[], bool], record: Callable[[Any], None], note: Note) -> Callable[..., None]:
    """A hook that raises nothing, returns nothing and is nothing to a compiler that comes across it."""

    def hook(module: Any, *_: Any) -> None:
        if is_compiling():
            return
        try:
            record(module)
        except Exception as error:
            note(f"with_modules: a call of {type(module).__name__} could not be recorded: {error!r}")

    return hook


def observe(options: Options, note: Note) -> _TorchModules | None:
    """Records the calls of modules when they are asked for."""
    return _TorchModules(note) if options.with_modules else None
