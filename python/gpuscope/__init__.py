# SPDX-License-Identifier: Apache-2.0
"""GPU profiling and benchmarking.

Each name is imported from its module when it is first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuscope._core import __version__
    from gpuscope.analysis import DeviceType
    from gpuscope.environment import environment
    from gpuscope.errors import (
        CorruptTrace,
        CudaError,
        CuptiError,
        GpuscopeError,
        GpuscopeWarning,
        IncompleteCapture,
        InvalidArgument,
        LibraryError,
        NotAvailable,
        NvmlError,
    )
    from gpuscope.profiler import (
        ProfilerAction,
        ProfilerActivity,
        kineto_available,
        profile,
        schedule,
        step,
        supported_activities,
        tensorboard_trace_handler,
    )
    from gpuscope.profiler.execution_trace import ExecutionTraceObserver, itt
    from gpuscope.recording import Recording, load
    from gpuscope.regions import mark, record_function

__all__ = [
    "CorruptTrace",
    "CudaError",
    "CuptiError",
    "DeviceType",
    "ExecutionTraceObserver",
    "GpuscopeError",
    "GpuscopeWarning",
    "IncompleteCapture",
    "InvalidArgument",
    "LibraryError",
    "NotAvailable",
    "NvmlError",
    "ProfilerAction",
    "ProfilerActivity",
    "Recording",
    "__version__",
    "environment",
    "itt",
    "kineto_available",
    "load",
    "mark",
    "profile",
    "record_function",
    "schedule",
    "step",
    "supported_activities",
    "tensorboard_trace_handler",
]

_HOMES = {
    "_core": ("__version__",),
    "analysis": ("DeviceType",),
    "environment": ("environment",),
    "errors": (
        "CorruptTrace",
        "CudaError",
        "CuptiError",
        "GpuscopeError",
        "GpuscopeWarning",
        "IncompleteCapture",
        "InvalidArgument",
        "LibraryError",
        "NotAvailable",
        "NvmlError",
    ),
    "profiler": (
        "ProfilerAction",
        "ProfilerActivity",
        "kineto_available",
        "profile",
        "schedule",
        "step",
        "supported_activities",
        "tensorboard_trace_handler",
    ),
    "profiler.execution_trace": ("ExecutionTraceObserver", "itt"),
    "recording": ("Recording", "load"),
    "regions": ("mark", "record_function"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    # To import gpuscope.environment would put that module in the place of the function of the same name.
    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
