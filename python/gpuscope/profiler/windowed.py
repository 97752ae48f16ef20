# SPDX-License-Identifier: Apache-2.0
"""What a profiler offers apart from steps: windows by hand, remarks on them, and their results."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from gpuscope.errors import GpuscopeWarning, NotAvailable
from gpuscope.profiler import options
from gpuscope.profiler.activities import parse_group
from gpuscope.profiler.annotations import Annotations
from gpuscope.profiler.inner import Inner
from gpuscope.profiler.schedules import ProfilerAction
from gpuscope.recording import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from gpuscope.profiler.collector import Collector
    from gpuscope.profiler.windows import Windows
    from gpuscope.trace import Trace


class Windowed(Results):
    """A profiler's windows, as `profile` makes them."""

    acc_events: bool
    custom_trace_id_callback: Callable[[], str] | None
    _collector: Collector
    _windows: Windows

    def __init__(self) -> None:
        self._annotations = Annotations()

    # -- windows -----------------------------------------------------------------------------------------------------

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        """Leaves activities out of the open window from now on, or records them again; the audit says for how long.

        Each window begins with all that the profiler was asked for; outside a window this does nothing.

        Args:
            enable: whether to record.
            activities: CUDA, for launches and the GPU work that they ask for; CPU, for regions, operators and marks,
                where what lies inside then belongs to the region around that was recorded.

        Raises:
            InvalidArgument: `enable` is neither true nor false, or an activity is unknown.
        """
        self._collector.switch(parse_group(activities), options.check_flags({"enable": enable})["enable"])

    def prepare_trace(self) -> None:
        """Begins to collect without recording, as a step of warm-up does; for scripts that do without `start`."""
        self._windows.begin(ProfilerAction.WARMUP, None)

    def start_trace(self) -> None:
        """Begins a window."""
        self._windows.begin(ProfilerAction.RECORD, self.custom_trace_id_callback)

    def stop_trace(self) -> None:
        """Ends the window and the collecting."""
        self._windows.end(last=True)

    # -- saying more about it ----------------------------------------------------------------------------------------

    def add_metadata(self, key: str, value: str) -> None:
        """Adds text to this profiler's recordings, latest and later ones."""
        self._annotations.add(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a JSON value, as text, to this profiler's recordings, latest and later ones."""
        self._annotations.add_json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Does what `add_metadata_json` does; torch.profiler tells the two apart."""
        self._annotations.add_json(key, value)

    def set_custom_trace_id_callback(self, callback: Callable[[], str] | None) -> None:
        """Replaces the function that makes the id of each window."""
        self.custom_trace_id_callback = callback

    def get_trace_id(self) -> str | None:
        """The id of the latest window begun, None before the first."""
        return self._windows.trace_id

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The events of the latest recorded window, or with `acc_events` of all, as columns.

        Raises:
            NotAvailable: there is none.
        """
        recording = self._windows.recording
        if recording is None:
            raise NotAvailable(self._why_nothing())
        return recording.trace

    @property
    def profiler(self) -> Inner | None:
        """The results under the names of torch.autograd.profiler.profile; None before the first window begins."""
        return Inner(self, self._windows.trace_id) if self._windows.trace_id is not None else None

    def export_chrome_trace(self, path: str | PathLike[str], use_python_export: bool = False) -> None:
        """Writes the latest window, as `Results.export_chrome_trace`; with `acc_events` too, as torch does."""
        if self.acc_events and self._windows.latest is not None:
            self._windows.latest.export_chrome_trace(path, use_python_export)
        else:
            super().export_chrome_trace(path, use_python_export)

    @abstractmethod
    def _why_nothing(self) -> str:
        """Why there is no recording, for `NotAvailable`."""

    def _note(self, sentence: str) -> None:
        """Puts a sentence into the audit's notes, once."""
        self._annotations.note(sentence)

    def _say(self, sentence: str, stacklevel: int = 3) -> None:
        """Puts it there and warns of it."""
        if self._annotations.note(sentence):
            warnings.warn(f"profile: {sentence}", GpuscopeWarning, stacklevel=stacklevel)
