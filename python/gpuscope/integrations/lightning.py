# SPDX-License-Identifier: Apache-2.0
"""A profiler for Lightning's Trainer: ``Trainer(profiler=GpuscopeProfiler("train.gscope"))``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpuscope.errors import NotAvailable
from gpuscope.integrations.windows import Handler, begin, finish, some_steps
from gpuscope.profiler import ProfilerAction, profile
from gpuscope.recording import Analyses
from gpuscope.regions import record_function

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# The action that is a step of each stage. For a fit it is the whole processing of a batch.
_STEPS = {"fit": ("run_training_batch",)}
_OTHER_STEPS = (".validation_step", ".test_step", ".predict_step")


def _base() -> Any:
    """Lightning's class, of the imported package or else of the first installed one."""
    for package in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(f"{package}.profilers").Profiler
        except ImportError:
            continue
    raise NotAvailable("GpuscopeProfiler is not available: Lightning is not installed; pip install lightning")


class GpuscopeProfiler(_base()):  # type: ignore[misc]
    """Records some steps of each fit, validation, test or prediction, with Lightning's actions as regions.

    At the end, the table is written to Lightning's log, or to the file of `dirpath` and `filename`.

    Args:
        path: a .gscope, .html, .json, .json.gz or .pftrace file for the recording. With several processes, the name
            contains the rank. None writes none.
        dirpath: folder of the text, as in Lightning's profilers.
        filename: name of the text file, as in Lightning's profilers.
        schedule: the recorded steps; default ten, after two.
        on_trace_ready: called with each recording, after it was written.
        options: more arguments of ``gpuscope.profile``, as ``with_stack=True``.

    Attributes:
        profiler: of the latest run, with the results; None before the first.

    Raises:
        InvalidArgument: an argument is not accepted.
        GpuscopeError: the file cannot be written.
    """

    _is_recording = False

    def __init__(
        self,
        path: str | os.PathLike[str] | None = "training.gscope",
        *,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[Analyses], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dirpath=dirpath, filename=filename)
        self._options = {
            "schedule": schedule or some_steps(),
            "on_trace_ready": Handler(path, on_trace_ready),
            **options,
        }
        profile(**self._options)  # raises for wrong options
        self._regions: list[tuple[str, record_function]] = []
        self._text = ""
        self.profiler: profile | None = None

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Begins to record at the begin of a run."""
        super().setup(stage, local_rank, log_dir)
        self._end()
        self.profiler = begin(self._options)
        self._is_recording = True

    def start(self, action_name: str) -> None:
        """Enters the region of an action."""
        region = record_function(action_name)
        self._regions.append((action_name, region))
        region.__enter__()

    def stop(self, action_name: str) -> None:
        """Leaves the region of an action, and inner regions that are still open."""
        if not any(name == action_name for name, _ in self._regions):
            return
        while self._regions:
            name, region = self._regions.pop()
            region.__exit__(None, None, None)
            if name == action_name:
                break
        steps = _STEPS.get(str(getattr(self._stage, "value", self._stage)), _OTHER_STEPS)
        if self.profiler is not None and action_name.endswith(steps):
            self.profiler.step()

    @contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """`start` and `stop` around a block. An error from the outermost block ends the recording."""
        try:
            with super().profile(action_name):
                yield action_name
        except BaseException:
            if not self._regions:
                self._end()
            raise

    def summary(self) -> str:
        """Ends the recording, and returns its table."""
        self._end()
        return f"{self._text}\n" if self._text else ""

    def teardown(self, stage: str | None) -> None:
        """Ends the recording at the end of a run, also after an error."""
        self._end()
        super().teardown(stage)

    def _end(self) -> None:
        if self._is_recording and self.profiler is not None:
            self._is_recording = False
            self._text = finish(self.profiler)
