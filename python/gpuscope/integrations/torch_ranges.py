# SPDX-License-Identifier: Apache-2.0
"""What torch's allocators do, and its operators where need be, by torch's own operator ranges."""

from __future__ import annotations

from gpuscope._core import TorchRanges
from gpuscope.integrations.watch import Say, Wanted
from gpuscope.memory.reports import torch_probe, torch_switch


class TorchRangesWatch:
    """Switches torch's operator ranges on for a window, on the thread that opens it and those that work for it."""

    def __init__(self, wanted: Wanted, operators: bool, say: Say) -> None:
        self._wanted = wanted
        self._operators = operators
        self._what = "torch's operators" if operators else "torch's allocations"
        self._say = say
        self._use: torch_switch.Use | None = None

    def open(self) -> None:
        """Begins, when torch has been imported."""
        why = torch_switch.why_not()
        if why:
            self._say(f"{self._what} are not recorded: {why}")
            return
        wanted = self._wanted
        if wanted.profile_memory and not torch_probe.memory_arrives():
            self._say("torch's allocations are not recorded: this version of torch reports them in another way")
        need = torch_switch.Need(self._operators, self._operators and wanted.record_shapes, wanted.profile_memory)
        self._want()
        try:
            self._use = torch_switch.Use(need, self._stepped_aside, self._want)
        except BaseException:
            TorchRanges.want()
            raise

    def close(self) -> None:
        """Ends."""
        if self._use is None:
            return
        TorchRanges.want()
        use, self._use = self._use, None
        if not use.end():
            self._say("torch's ranges stay on in the thread that began the window, as another one ended it")

    def _want(self) -> None:
        wanted = self._wanted
        TorchRanges.want(ranges=self._operators, operands=wanted.with_flops, memory=wanted.profile_memory)

    def _stepped_aside(self) -> None:
        TorchRanges.want()
        self._say(f"{self._what} are missing where torch.profiler ran inside the window")
