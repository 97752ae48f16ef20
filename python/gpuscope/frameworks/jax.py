# SPDX-License-Identifier: Apache-2.0
"""JAX's own annotations as ranges: TraceAnnotation, StepTraceAnnotation and annotate_function.

These go to XLA's own profiler, not to NVTX, on every platform. What XLA tells NVTX itself on GPUs (modules and thunks,
in the domain "TSL", as soon as a tool is attached) arrives without this.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from gpuscope._core import region_of_kind
from gpuscope.late_imports import WhenImported

if TYPE_CHECKING:
    from gpuscope._core import record_function
    from gpuscope.frameworks.observers import Note, Options

_RANGE = 2
_REGION = "_gpuscope_region"
_METHODS = ("__init__", "__enter__", "__exit__")


def observe(options: Options, note: Note) -> AnnotationObserver | None:
    """Records JAX's annotations when annotations of libraries are asked for."""
    return AnnotationObserver() if options.operators else None


class AnnotationObserver:
    """While open, annotations that are made and entered are ranges as well."""

    def __init__(self) -> None:
        self._import: WhenImported | None = None
        self._hooked: Any = None
        self._own: dict[str, Any] = {}

    def start(self) -> None:
        """A window begins."""
        self._import = WhenImported("jax.profiler", self._hook)

    def stop(self) -> None:
        """It ends: the class is as JAX made it."""
        if self._import is not None:
            self._import.cancel()
            self._import = None
        annotation, self._hooked = self._hooked, None
        for name in _METHODS if annotation is not None else ():
            if name in self._own:
                setattr(annotation, name, self._own[name])
            else:
                delattr(annotation, name)

    def _hook(self) -> None:
        annotation = getattr(sys.modules.get("jax.profiler"), "TraceAnnotation", None)
        if annotation is None:
            return
        self._own = {name: vars(annotation)[name] for name in _METHODS if name in vars(annotation)}
        originals = {name: getattr(annotation, name) for name in _METHODS}

        @functools.wraps(originals["__init__"])
        def init(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
            originals["__init__"](self, name, *args, **kwargs)
            vars(self)[_REGION] = _region(name, kwargs)

        @functools.wraps(originals["__enter__"])
        def enter(self: Any, *args: Any) -> Any:
            entered = originals["__enter__"](self, *args)
            region = vars(self).get(_REGION)
            if region is not None:
                region.__enter__()
            return entered

        @functools.wraps(originals["__exit__"])
        def leave(self: Any, *args: Any) -> Any:
            region = vars(self).get(_REGION)
            if region is not None:
                region.__exit__(*args)
            return originals["__exit__"](self, *args)

        for name, hook in zip(_METHODS, (init, enter, leave), strict=True):
            setattr(annotation, name, hook)
        self._hooked = annotation


def _region(name: object, attributes: dict[str, Any]) -> record_function | None:
    if not isinstance(name, str):
        return None
    step = attributes.get("step_num")
    return region_of_kind(name if step is None else f"{name} {step}", _RANGE)
