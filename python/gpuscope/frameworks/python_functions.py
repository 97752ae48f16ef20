# SPDX-License-Identifier: Apache-2.0
"""Calls of Python functions and garbage collections: the ``python_function`` events of torch.profiler's traces."""

from __future__ import annotations

import gc
import os
import re
import site
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from gpuscope._core import PythonFunctions
from gpuscope.frameworks.observers import Note, ObserverOptions
from gpuscope.frameworks.torch_modules import TorchModules, are_called

FILES = re.compile(
    r"^<(built-in )?(method|function) '?(open|print|write|writelines|read|readinto|readline|readlines|flush|fsync|recv"
    r"|recv_into|send|sendall|dump|load)\b|torch/serialization\.py\(\d+\): _?(save|load)$|safetensors.*\b(save|load)_"
)
"""Names of functions that read or write files and sockets."""

# Functions that wait for the GPU, in addition to the driver call that they make.
_WAITS = re.compile(r"\b(synchronize|block_until_ready)\b")
_MONITORS = sys.version_info >= (3, 12)  # sys.monitoring reports the calls of all threads
_MEASURED_EVENTS = 200
_TAKEN = "with_stack: Python functions are not recorded: {}; the stacks of operators are"
_LOST = "with_stack: calls of Python functions are missing, as another profiler (cProfile, coverage) took Python's hook"
_WHO = (
    "other tools use the tool ids 3 and 4 of sys.monitoring"
    if _MONITORS
    else "another profiler (cProfile, coverage, torch.profiler) uses Python's profile hook"
)


class _PythonFunctions:
    """Makes the core log calls, of running threads and of new ones."""

    def __init__(self, note: Note, options: ObserverOptions) -> None:
        self._note = note
        self._garbage = options.garbage
        self._every = options.python_functions
        self._sees_gpu = options.sees_gpu
        self._started = False
        self._thread = 0
        self._modules = TorchModules(note) if options.with_modules and are_called(options) else None

    def start(self) -> Callable[[], None] | None:
        """Called before a window opens. Returns the function that begins the log, so that running frames are known."""
        if not self._every and not self._sees_gpu():  # nothing waits for a GPU
            gc.callbacks.append(PythonFunctions.on_garbage)
            PythonFunctions.start([], None, _is_wait, calls=False)
            self._started = True
            return None
        if not _is_taken():
            PythonFunctions.measure(_call_nothing, _resume_nothing, _call_built_in, _MEASURED_EVENTS)
        code = _module_call() if self._every else None
        if self._modules is not None and (code is None or _is_taken()):
            self._modules.start()  # by hooks, once torch is imported
        failed = self._modules.failed if self._modules is not None and code is not None else None
        if not _MONITORS and threading._profile_hook is None:  # before the window: samples would see this call
            threading.setprofile(PythonFunctions.join_thread)
        calls = (_prefixes(), code, None if self._every else _is_wait, True, failed)
        return lambda: self._log(*calls)

    def _log(self, *calls: Any) -> None:
        self._started = True
        self._thread = threading.get_ident()
        if self._garbage:
            gc.callbacks.append(PythonFunctions.on_garbage)
        if _is_taken() or not PythonFunctions.start(*calls):
            self._note(_TAKEN.format(_WHO))
            self._end()
            if self._modules is not None and not self._modules.is_open:
                self._modules.start()

    def stop(self) -> None:
        """Ends the log, before the window closes."""
        if self._modules is not None:
            self._modules.stop()
        if not self._started:
            self._remove()
        elif not self._end() and threading.get_ident() == self._thread:
            self._note(_LOST)

    def _end(self) -> bool:
        """Ends the log, and returns whether this thread was logged until now."""
        kept = PythonFunctions.stop()
        self._remove()
        self._started = False
        return kept

    def _remove(self) -> None:
        if threading._profile_hook is PythonFunctions.join_thread:
            threading.setprofile(None)
        if PythonFunctions.on_garbage in gc.callbacks:
            gc.callbacks.remove(PythonFunctions.on_garbage)


def _is_taken() -> bool:
    """Whether another profiler uses the profile hook of this thread."""
    return not _MONITORS and sys.getprofile() is not None


def _nothing() -> None:
    pass


# Each of the following functions has _MEASURED_EVENTS events: begins and ends.


def _call_nothing() -> None:
    for _ in range(_MEASURED_EVENTS // 2):
        _nothing()


def _yield_nothing() -> Iterator[None]:
    for _ in range(_MEASURED_EVENTS // 2):
        yield


def _resume_nothing() -> None:
    for _ in _yield_nothing():
        pass


def _call_built_in() -> None:
    for _ in range(_MEASURED_EVENTS // 2):
        id(None)


def _prefixes() -> list[str]:
    """Folders of imports, which torch.profiler removes from file names."""
    folders = [*sys.path, *site.getsitepackages(), site.getuserbase(), site.getusersitepackages()]
    return sorted({os.path.join(os.path.abspath(folder), "") for folder in folders if isinstance(folder, str)})


def _is_wait(name: str) -> bool:
    """Whether a function with this name waits for a file, a socket or the GPU."""
    return bool(FILES.search(name) or _WAITS.search(name))


def _module_call() -> CodeType | None:
    """The code that each call of a torch.nn.Module runs first; None if torch is not imported."""
    module = getattr(sys.modules.get("torch.nn.modules.module"), "Module", None)
    code: CodeType | None = getattr(vars(module).get("__call__"), "__code__", None) if module is not None else None
    return code


def observe(options: ObserverOptions, note: Note) -> _PythonFunctions | None:
    """An observer of function calls, if stacks and operators are requested."""
    if not options.with_stack or not options.operators:
        return None
    return _PythonFunctions(note, options)
