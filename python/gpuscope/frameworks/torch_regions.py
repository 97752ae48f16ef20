# SPDX-License-Identifier: Apache-2.0
"""The program's regions in torch's own profilers, NVTX ranges and execution traces."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any

from gpuscope._core import observe_regions
from gpuscope.frameworks.torch_profiler import listeners


class _RegionsForTorch:
    """Opens a region of torch with each of the program's, while a profiler or trace of torch runs."""

    def __init__(self) -> None:
        self._open: list[tuple[int, object, Any]] = []  # thread, region and torch's; any thread, with the GIL
        self._wanted = False
        self._in_recordings = True

    def want(self, wanted: bool) -> None:
        """Sets whether a profiler or trace of torch runs."""
        self._wanted = wanted
        observe_regions(self._begin, self._end, wanted and self._in_recordings, wanted)

    def allow_in_recordings(self, allowed: bool) -> None:
        """Sets whether torch's regions also open during our recordings, which may then contain them twice."""
        self._in_recordings = allowed
        self.want(self._wanted)

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


regions_for_torch = _RegionsForTorch()
listeners.follow(regions_for_torch.want)
