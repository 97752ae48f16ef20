# SPDX-License-Identifier: Apache-2.0
"""A list of events as files, in the forms that torch.profiler's lists have."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.analysis.event_list import DeviceType
from gpuscope.errors import GpuscopeError, InvalidArgument

if TYPE_CHECKING:
    from gpuscope.analysis.events import FunctionEvent

STACK_METRICS = ("self_cpu_time_total", "self_device_time_total", "self_cuda_time_total")


def write_chrome(events: Iterable[FunctionEvent], path: str | os.PathLike[str]) -> None:
    """See ``Events.export_chrome_trace``."""
    entries = (
        json.dumps(
            {
                "name": event.trace_name,
                "ph": "X",
                "ts": event.time_range.start,
                "dur": event.time_range.elapsed_us(),
                "tid": event.thread,
                "pid": "CPU functions",
                "args": {},
            }
        )
        for event in events
        if event.device_type == DeviceType.CPU
    )
    _write(path, f"[{', '.join(entries)}]")


def write_stacks(events: Iterable[FunctionEvent], path: str | os.PathLike[str], metric: str) -> None:
    """See ``Events.export_stacks``."""
    if metric not in STACK_METRICS:
        raise InvalidArgument(f"metric is {metric!r}; accepted are {', '.join(STACK_METRICS)}")
    separators = str.maketrans(" ;\t\n", "____")  # the format's own, which cannot be part of a name
    lines = []
    for event in events:
        time_us = int(getattr(event, metric))
        if time_us > 0 and (stack := event.stack):
            lines.append(f"{';'.join(frame.translate(separators) for frame in reversed(stack))} {time_us}\n")
    _write(path, "".join(lines))


def _write(path: str | os.PathLike[str], text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuscopeError(f"cannot write {path}: {error.strerror or error}") from error
