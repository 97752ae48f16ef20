# SPDX-License-Identifier: Apache-2.0
"""What torch.profiler's `profile` keeps as its attribute `profiler`, and scripts reach into."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from gpuscope.errors import NotAvailable
from gpuscope.recording import Results

if TYPE_CHECKING:
    from gpuscope.analysis import EventList, FunctionEvent, FunctionEventAvg
    from gpuscope.trace import Trace


class Inner(Results):
    """The results of a profiler under the names of torch.autograd.profiler.profile."""

    def __init__(self, results: Results, trace_id: str | None) -> None:
        self._results = results
        self.trace_id = trace_id

    @property
    def trace(self) -> Trace:
        """The events as columns."""
        return self._results.trace

    @property
    def function_events(self) -> EventList[FunctionEvent]:
        """Every event by itself, in order of time."""
        return self.events()

    @property
    def self_cpu_time_total(self) -> float:
        """The self CPU times of the recording summed, in us."""
        return self.key_averages().self_cpu_time_total

    def total_average(self) -> FunctionEventAvg:
        """All rows of `key_averages` as one."""
        return self.key_averages().total_average()

    @property
    def kineto_results(self) -> NoReturn:
        """Raises NotAvailable: Kineto took no part."""
        raise NotAvailable(
            "kineto_results is not available: gpuscope records without Kineto; prof.tree() and prof.trace tell the same"
        )
