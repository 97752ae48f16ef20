# SPDX-License-Identifier: Apache-2.0
"""Parts of torch.profiler that need torch: its own objects if torch is installed, else an error with the reason."""

from __future__ import annotations

import importlib
import os
import re
from typing import Any, NoReturn, Protocol, cast

from gpuscope.errors import InvalidArgument, NotAvailable

ExecutionTraceObserver: type[Any]
RecordScope: Any
_ExperimentalConfig: type[Any]
itt: Any

_OF_TORCH = ("ExecutionTraceObserver", "RecordScope", "_ExperimentalConfig", "itt")

WITH_EFFECT = frozenset(
    {
        *("adjust_profiler_step", "capture_overload_names", "disable_external_correlation", "enable_cuda_sync_events"),
        *("profile_all_threads", "record_python_gc_info", "trace_only"),
        *("expose_kineto_event_metadata", "verbose"),  # as it is in any case
    }
)
"""Options of torch's ``_ExperimentalConfig`` that have an effect."""


class Observer(Protocol):
    """The type of `execution_trace_observer`: called when a window begins and ends, and when the profiler is left."""

    def start(self) -> None:
        """A window begins."""

    def stop(self) -> None:
        """It ends."""

    def cleanup(self) -> None:
        """No window follows."""


def observer_of(given: object) -> Observer | None:
    """Checks the argument `execution_trace_observer`; if None, returns the observer that the environment asks for."""
    if given is None:
        if os.environ.get("ENABLE_PYTORCH_EXECUTION_TRACE", "0") != "1":
            return None
        given = _of_torch("ExecutionTraceObserver").build_execution_trace_obs_from_env()
        return cast("Observer | None", given)
    missing = [name for name in ("start", "stop", "cleanup") if not callable(getattr(given, name, None))]
    if missing:
        raise InvalidArgument(
            f"execution_trace_observer is {given!r}, without {missing[0]}(); accepted are an ExecutionTraceObserver, "
            "any object with start(), stop() and cleanup(), or None"
        )
    return cast("Observer", given)


def options_of(config: Any) -> frozenset[str] | None:
    """The options that are set in torch's ``_ExperimentalConfig``; None for another object.

    The object has no attributes for them, but it can be pickled, in the order of its arguments.
    """
    try:
        values = zip(_names_in(config), config.__getstate__(), type(config)().__getstate__(), strict=True)
        return frozenset(name for name, given, default in values if given != default)
    except (AttributeError, TypeError, ValueError):  # another object, or an unknown version of torch
        return None


def leaves_out_threads(config: Any) -> bool:
    """Whether torch's ``_ExperimentalConfig`` could have ``profile_all_threads`` and has not."""
    options = options_of(config)
    return options is not None and "profile_all_threads" in set(_names_in(config)) - options


def _names_in(config: Any) -> list[str]:
    return re.findall(r"(\w+): [^=()]+ = ", type(config).__init__.__doc__.split("\n")[0])


def _of_torch(name: str) -> Any:
    try:
        return getattr(importlib.import_module("torch.profiler"), name)
    except ImportError:
        return _AbsentObserver if name == "ExecutionTraceObserver" else _absent_itt if name == "itt" else _Absent(name)


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _of_torch(name)


class _Absent:
    """Stands in for an object of torch.profiler, so that it can be imported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **named: Any) -> NoReturn:
        _refuse(self._name)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"{self._name}.{name}")


class _AbsentObserver:
    """Stands in for ExecutionTraceObserver."""

    def __init__(self) -> None:
        _refuse("ExecutionTraceObserver")

    @staticmethod
    def build_execution_trace_obs_from_env() -> None:
        """None, even if the environment asks for an observer."""


class _AbsentItt(_Absent):
    def is_available(self) -> bool:
        """Never."""
        return False


_absent_itt = _AbsentItt("itt")


def _refuse(name: str) -> NoReturn:
    raise NotAvailable(f"{name} is not available: it is PyTorch's own, and PyTorch is not installed; pip install torch")
