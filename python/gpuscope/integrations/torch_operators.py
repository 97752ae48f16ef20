# SPDX-License-Identifier: Apache-2.0
"""torch's operators: by its callbacks, or by its text ranges where this version's callbacks cannot be used."""

from __future__ import annotations

import sys

from gpuscope._core import TorchCallbacks
from gpuscope.integrations import torch_layout
from gpuscope.integrations.torch_ranges import TorchRangesWatch
from gpuscope.integrations.watch import Say, Wanted, Watch
from gpuscope.late_imports import WhenImported


def watch(wanted: Wanted, say: Say) -> Watch | None:
    """The source of torch's operators and allocations; None when neither is wanted."""
    return TorchOperators(wanted, say) if wanted.operators or wanted.profile_memory else None


class TorchOperators:
    """Has torch tell of every operator of every thread while a window is open.

    An operator cost 0.13 to 0.19 us more with torch 2.11 on a Xeon beside an H200, 0.41 to 0.44 us with shapes and
    types and 0.6 to 0.7 us with those of the results, which counting operations needs.
    """

    def __init__(self, wanted: Wanted, say: Say) -> None:
        self._wanted = wanted
        self._say = say
        self._waiting: WhenImported | None = None
        self._by_callbacks = False
        self._told_torch = False
        self._ranges: TorchRangesWatch | None = None

    def open(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._waiting = WhenImported("torch", self._begin)

    def close(self) -> None:
        """Ends."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._by_callbacks:
            TorchCallbacks.stop()
            self._by_callbacks = False
            if self._told_torch:
                sys.modules["torch.autograd.profiler"]._run_on_profiler_stop()
        if self._ranges is not None:
            self._ranges.close()

    def _begin(self) -> None:
        wanted = self._wanted
        shortfall = torch_layout.shortfall()
        if shortfall is not None and wanted.operators:
            self._say(f"torch's operators are recorded at a higher cost, without types: {shortfall}")
        operators_by_ranges = wanted.operators and shortfall is not None
        if operators_by_ranges or wanted.profile_memory:
            self._ranges = self._ranges or TorchRangesWatch(wanted, operators_by_ranges, self._say)
            self._ranges.open()
        if wanted.operators and shortfall is None:
            known = TorchCallbacks.known()
            if wanted.record_shapes and not known["shapes"]:
                self._say("shapes of operators' inputs are not recorded: this version of torch keeps them elsewhere")
            TorchCallbacks.start(shapes=wanted.record_shapes, results=wanted.with_flops)
            self._by_callbacks = True
            # Compiled code names its kernels while somebody profiles.
            profiler = sys.modules["torch.autograd.profiler"]
            self._told_torch = not profiler._is_profiler_enabled
            if self._told_torch:
                profiler._run_on_profiler_start()
