# SPDX-License-Identifier: Apache-2.0
"""A callback for the Trainer of transformers: ``Trainer(..., callbacks=[GpuscopeCallback("train.gscope")])``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpuscope.errors import NotAvailable
from gpuscope.integrations.windows import Handler, begin, some_steps
from gpuscope.profiler import ProfilerAction, profile
from gpuscope.recording import Analyses
from gpuscope.regions import record_function

try:
    from transformers import TrainerCallback
except ImportError:
    raise NotAvailable(
        "GpuscopeCallback is not available: transformers is not installed; pip install transformers"
    ) from None


class GpuscopeCallback(TrainerCallback):  # type: ignore[misc]
    """Records some steps of a training in each process, with steps and the optimizer as regions.

    Args:
        path: a .gscope, .html, .json, .json.gz or .pftrace file for the recording. With several processes, the name
            contains the rank. None writes none.
        schedule: the recorded steps; default ten, after two.
        on_trace_ready: called with each recording, after it was written.
        options: more arguments of ``gpuscope.profile``, as ``with_stack=True``.

    Attributes:
        profiler: of the latest training, with the results; None before the first.

    Raises:
        InvalidArgument: an argument is not accepted.
        GpuscopeError: the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = "training.gscope",
        *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[Analyses], Any] | None = None,
        **options: Any,
    ) -> None:
        self._options = {
            "schedule": schedule or some_steps(),
            "on_trace_ready": Handler(path, on_trace_ready),
            **options,
        }
        profile(**self._options)  # raises for wrong options
        self._regions: list[record_function] = []
        self.profiler: profile | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins to record."""
        self._leave()  # regions of a training that failed
        self.profiler = begin(self._options)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Enters the region of a step."""
        self._enter("training_step")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Enters the region of the optimizer."""
        self._enter("optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leaves the region of the optimizer."""
        if len(self._regions) > 1:
            self._regions.pop().__exit__(None, None, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leaves the region of the step, and counts the step."""
        self._leave()
        if self.profiler is not None:
            self.profiler.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the recording, and writes unwritten steps."""
        self._leave()
        if self.profiler is not None:
            self.profiler.stop()

    def _enter(self, name: str) -> None:
        self._regions.append(record_function(name))
        self._regions[-1].__enter__()

    def _leave(self) -> None:
        while self._regions:
            self._regions.pop().__exit__(None, None, None)
