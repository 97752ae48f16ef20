# SPDX-License-Identifier: Apache-2.0
"""torch's operators: by its callbacks, or by its text ranges where this version's callbacks cannot be used."""

from __future__ import annotations

import sys

from gpuscope._core import TorchCallbacks
from gpuscope.frameworks.observers import Note, Observer, Options
from gpuscope.integrations import torch_layout
from gpuscope.integrations.torch_ranges import TorchRangesWatch
from gpuscope.late_imports import WhenImported


def observe(options: Options, note: Note) -> Observer | None:
    """The source of torch's operators and allocations; None when neither is asked for."""
    return TorchOperators(options, note) if options.operators or options.profile_memory else None


class TorchOperators:
    """Has torch tell of every operator of every thread while a window is open.

    An operator cost 0.13 to 0.19 us more with torch 2.11 on a Xeon beside an H200, 0.41 to 0.44 us with shapes and
    types and 0.6 to 0.7 us with those of the results, which counting operations needs.
    """

    def __init__(self, options: Options, note: Note) -> None:
        self._options = options
        self._note = note
        self._waiting: WhenImported | None = None
        self._by_callbacks = False
        self._notified_torch = False
        self._ranges: TorchRangesWatch | None = None

    def start(self) -> None:
        """Begins; later, when torch is yet to be imported."""
        self._waiting = WhenImported("torch", self._begin)

    def stop(self) -> None:
        """Ends."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._by_callbacks:
            TorchCallbacks.stop()
            self._by_callbacks = False
            if self._notified_torch:
                sys.modules["torch.autograd.profiler"]._run_on_profiler_stop()
        if self._ranges is not None:
            self._ranges.stop()

    def _begin(self) -> None:
        options = self._options
        shortfall = torch_layout.shortfall()
        if shortfall is not None and options.operators:
            self._note(f"torch's operators are recorded at a higher cost, without types: {shortfall}")
        operators_by_ranges = options.operators and shortfall is not None
        if operators_by_ranges or options.profile_memory:
            self._ranges = self._ranges or TorchRangesWatch(options, operators_by_ranges, self._note)
            self._ranges.start()
        if options.operators and shortfall is None:
            known = TorchCallbacks.known()
            if options.record_shapes and not known["shapes"]:
                self._note("shapes of operators' inputs are not recorded: this version of torch keeps them elsewhere")
            TorchCallbacks.start(shapes=options.record_shapes, results=options.with_flops)
            self._by_callbacks = True
            # Compiled code names its kernels while somebody profiles.
            profiler = sys.modules["torch.autograd.profiler"]
            self._notified_torch = not profiler._is_profiler_enabled
            if self._notified_torch:
                profiler._run_on_profiler_start()
