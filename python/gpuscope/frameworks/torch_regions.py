# SPDX-License-Identifier: Apache-2.0
"""The program's regions where torch itself listens: its own profilers, NVTX ranges and execution traces."""

from __future__ import annotations

import sys
from threading import Lock, get_ident
from typing import Any

from gpuscope._core import observe_regions
from gpuscope.late_imports import WhenImported


class _StandIns:
    """Has torch begin and end a region of its own with each of the program's, while it has callbacks.

    Our recordings have the program's own regions, and torch none unless somebody asks for them.
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, object, Any]] = []  # thread, region and torch's; any thread, with the GIL
        self._wanted = 0
        self._lock = Lock()

    def install(self) -> None:
        """Torch has been imported."""
        observe_regions(self._begin, self._end, self._wanted > 0)

    def want_in_recordings(self, wanted: bool) -> None:
        """Somebody wants them beside a recording of ours, or no longer does."""
        with self._lock:
            self._wanted += 1 if wanted else -1
            self.install()

    def _begin(self, region: Any) -> bool:
        enter = sys.modules["torch"].ops.profiler._record_function_enter_new
        args = region.args if isinstance(region.args, str) else None
        self._open.append((get_ident(), region, enter(region.name, args)))
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


stand_ins = _StandIns()
WhenImported("torch", stand_ins.install)
