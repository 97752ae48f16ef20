# SPDX-License-Identifier: Apache-2.0
"""Common parts of the callbacks: the default schedule, and writing the recordings."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, GpuscopeWarning
from gpuscope.paths import check_writable
from gpuscope.profiler import Schedule, profile, schedule
from gpuscope.recording import Analyses
from gpuscope.trace import number_of

SUFFIXES = (".gscope", ".html", ".json", ".json.gz", ".pftrace")


def some_steps() -> Schedule:
    """Ten steps, once, after two of warm-up: enough for a diagnosis, with little memory."""
    return schedule(wait=1, warmup=1, active=10, repeat=1)


class Handler:
    """An ``on_trace_ready`` that writes each recording and passes it on. A failed write does not end the training.

    It can be pickled, as trainers are for spawned processes.

    Args:
        path: with a suffix of `SUFFIXES`. With several processes, the name contains the rank; from the second window
            on, it contains the window's number. None writes nothing.
        then: called with the recording.

    Raises:
        InvalidArgument: the path has another suffix.
        GpuscopeError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, then: Callable[[Analyses], Any] | None) -> None:
        if path is not None:
            check_writable(path, SUFFIXES)
        self._path = path
        self._then = then
        self._written = 0

    def __call__(self, recording: Analyses) -> None:
        """Writes a recording, and passes it on."""
        self._written += 1
        if self._path is not None:
            try:
                _write(recording, _numbered(Path(self._path), self._written, recording.trace.info))
            except GpuscopeError as error:
                warnings.warn(f"the recording could not be written: {error}", GpuscopeWarning, stacklevel=2)
        if self._then is not None:
            self._then(recording)


def _numbered(path: Path, window: int, info: Mapping[str, str]) -> Path:
    stem, dot, suffix = path.name.partition(".")
    if number_of(info, "process.world_size") > 1:
        stem += f"-rank{number_of(info, 'process.rank')}"
    return path.with_name(f"{stem}{f'-{window}' if window > 1 else ''}{dot}{suffix}")


def _write(recording: Analyses, path: Path) -> None:
    if path.name.endswith(".gscope"):
        recording.save(path)
    elif path.name.endswith(".html"):
        recording.report(path)
    elif path.name.endswith(".pftrace"):
        recording.export_perfetto(path)
    else:
        recording.export_chrome_trace(path)


_latest: weakref.ref[profile] | None = None


def begin(options: Mapping[str, Any]) -> profile:
    """Starts a recording. Ends that of a failed training first: callbacks get no event for a failure.

    Args:
        options: of ``gpuscope.profile``.
    """
    global _latest
    if _latest is not None and (left := _latest()) is not None:
        left.stop()
    profiler = profile(**options)
    profiler.start()
    _latest = weakref.ref(profiler)
    return profiler


def finish(profiler: profile) -> str:
    """Ends a recording, and returns its table, or why there is none."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", GpuscopeWarning)
        profiler.stop()
    why = "; ".join(str(each.message) for each in said)
    text = str(profiler)
    return text if not text.startswith("<") else f"nothing was recorded{f': {why}' if why else ''}"
