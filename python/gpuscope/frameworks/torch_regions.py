# SPDX-License-Identifier: Apache-2.0
"""The program's regions where torch itself listens: its own profilers, NVTX ranges and execution traces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any

from gpuscope._core import observe_regions
from gpuscope.late_imports import WhenImported

_PROFILER = "torch.autograd.profiler"
_TRACES = "torch.profiler.profiler"


class _StandIns:
    """Has torch begin and end a region of its own with each of the program's, while a profiler or trace of its runs.

    Our recordings have the program's own regions, and torch none unless somebody asks for them.
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, object, Any]] = []  # thread, region and torch's; any thread, with the GIL
        self._wanted = 0
        self._traces = False
        self._lock = Lock()

    def install(self) -> None:
        """Torch has been imported: wraps by what it notifies its own code, and switches its execution trace."""
        for module, name, traces in (
            (_PROFILER, "_run_on_profiler_start", None),
            (_PROFILER, "_run_on_profiler_stop", None),
            (_TRACES, "_enable_execution_trace_observer", True),
            (_TRACES, "_disable_execution_trace_observer", False),
        ):
            original = getattr(sys.modules.get(module), name, None)
            if original is not None:
                setattr(sys.modules[module], name, self._followed(original, traces))
        self._update()

    def _followed(self, original: Callable[..., Any], traces: bool | None) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            done = original(*args, **named)
            with self._lock:
                self._traces = self._traces if traces is None else traces
                self._update()
            return done

        return call

    def _update(self) -> None:
        profiles: bool = getattr(sys.modules.get(_PROFILER), "_is_profiler_enabled", False)
        observe_regions(self._begin, self._end, self._wanted > 0, profiles or self._traces)

    def want_in_recordings(self, wanted: bool) -> None:
        """Somebody wants them beside a recording of ours, or no longer does."""
        with self._lock:
            self._wanted += 1 if wanted else -1
            self._update()

    def _begin(self, region: Any) -> bool:
        enter = sys.modules["torch"].ops.profiler._record_function_enter_new
        args = _as_utf8(region.args) if isinstance(region.args, str) else None
        self._open.append((get_ident(), region, enter(_as_utf8(region.name), args)))
        return True

    def _end(self, region: Any) -> bool:
        thread = get_ident()
        for at in reversed(range(len(self._open))):
            if self._open[at][:2] == (thread, region):
                record = self._open.pop(at)[2]
                torch = sys.modules["torch"]
                with torch._C.DisableTorchFunctionSubclass():
                    torch.ops.profiler._record_function_exit._RecordFunction(record)
                return True
        return False


def _as_utf8(text: str) -> str:
    """The text with "?" for lone surrogates, which torch refuses."""
    return text.encode("utf-8", "replace").decode()


stand_ins = _StandIns()
WhenImported("torch", stand_ins.install)
