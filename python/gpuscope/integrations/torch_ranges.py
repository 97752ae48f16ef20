# SPDX-License-Identifier: Apache-2.0
"""What torch's allocators do, and its operators where need be, by torch's own operator ranges."""

from __future__ import annotations

from gpuscope._core import TorchRanges
from gpuscope.frameworks.observers import Note, Options
from gpuscope.memory.reports import torch_probe, torch_switch


class TorchRangesWatch:
    """Switches torch's operator ranges on for a window, on the thread that opens it and those that work for it."""

    def __init__(self, options: Options, operators: bool, note: Note) -> None:
        self._options = options
        self._operators = operators
        self._what = "torch's operators" if operators else "torch's allocations"
        self._note = note
        self._use: torch_switch.Use | None = None

    def start(self) -> None:
        """Begins, when torch has been imported."""
        why = torch_switch.why_not()
        if why:
            self._note(f"{self._what} are not recorded: {why}")
            return
        options = self._options
        if options.profile_memory and not torch_probe.memory_arrives():
            self._note("torch's allocations are not recorded: this version of torch reports them in another way")
        need = torch_switch.Need(self._operators, self._operators and options.record_shapes, options.profile_memory)
        self._want()
        try:
            self._use = torch_switch.Use(need, self._stepped_aside, self._want)
        except BaseException:
            TorchRanges.want()
            raise

    def stop(self) -> None:
        """Ends."""
        if self._use is None:
            return
        TorchRanges.want()
        use, self._use = self._use, None
        if not use.end():
            self._note("torch's ranges stay on in the thread that began the window, as another one ended it")

    def _want(self) -> None:
        options = self._options
        TorchRanges.want(ranges=self._operators, operands=options.with_flops, memory=options.profile_memory)

    def _stepped_aside(self) -> None:
        TorchRanges.want()
        self._note(f"{self._what} are missing where torch.profiler ran inside the window")
