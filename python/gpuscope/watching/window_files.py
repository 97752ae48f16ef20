# SPDX-License-Identifier: Apache-2.0
"""The recordings of a watch's windows: written on the watcher's thread, and deleted when there are too many."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError
from gpuscope.profiler.facade import profile
from gpuscope.results import json_text
from gpuscope.units import first_line

_MOST_WAITING = 4
_PPROF_S = 60.0


class WindowFiles:
    """Writes ``window-00000400.gscope``. Any thread adds windows, the watcher's thread writes them.

    Args:
        folder: of the files.
        keep_bytes: most bytes to keep.
        keep_age_s: seconds to keep a file.
        lose: called with what was lost, and why if it is known.
        pprof: folder for the first window of each minute as a profile of pprof; None for none. The same limits hold.

    Attributes:
        written: number of windows.
        steps: in them.
    """

    def __init__(
        self,
        folder: Path,
        keep_bytes: int,
        keep_age_s: float,
        lose: Callable[..., object],
        pprof: Path | None = None,
    ) -> None:
        self._folder = folder
        self._pprof = pprof
        self._pprof_due_s = 0.0
        self._keep_bytes = keep_bytes
        self._keep_age_s = keep_age_s
        self._lose = lose
        self._waiting: deque[tuple[profile, Mapping[str, Any]]] = deque()
        self._kept: deque[tuple[Path, int, float]] = deque()  # path, size, time of the write
        self.written = self.steps = 0

    @property
    def waiting(self) -> bool:
        """Whether there is a window to write."""
        return bool(self._waiting)

    @property
    def paths(self) -> list[Path]:
        """The windows that are kept, the oldest first."""
        return [path for path, _, _ in self._kept if path.parent == self._folder]

    @property
    def bytes(self) -> int:
        """Their size."""
        return sum(size for _, size, _ in [*self._kept])

    def add(self, window: profile, facts: Mapping[str, Any]) -> None:
        """Takes a window that has ended, with its metadata ``watch``."""
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft()
            self._lose("windows that were not written in time")
        self._waiting.append((window, facts))

    def write(self) -> None:
        """Writes the windows, and deletes the oldest files beyond the limits."""
        while self._waiting:
            window, facts = self._waiting.popleft()
            path = self._folder / f"window-{facts['first_step']:08d}.gscope"
            weight = facts["represents_steps"] / max(facts["steps"], 1)
            try:
                window.add_metadata_json("watch", json_text({**facts, "weight": weight}))
                self._save(window, path)
            except Exception as error:  # the program must go on
                self._lose("windows that could not be written", first_line(error))
                continue
            try:
                self._export(window, path)
            except Exception as error:
                self._lose("profiles of pprof", first_line(error))
            self.written += 1
            self.steps += facts["steps"]
        now = time.monotonic()
        while self._kept and (self.bytes > self._keep_bytes or now - self._kept[0][2] > self._keep_age_s):
            self._delete_oldest()

    def forget(self) -> None:
        """Drops the windows that wait, in a forked child."""
        self._waiting.clear()

    def _save(self, window: profile, path: Path) -> None:
        try:
            window.save(path)
        except GpuscopeError:
            if not self._kept:
                raise
            self._delete_oldest()  # the disk may be full
            window.save(path)
        self._kept.append((path, path.stat().st_size, time.monotonic()))

    def _export(self, window: profile, path: Path) -> None:
        now = time.monotonic()
        if self._pprof is None or now < self._pprof_due_s:
            return
        self._pprof_due_s = now + _PPROF_S
        profile_path = self._pprof / f"{self._folder.stem}-{path.stem}.pb.gz"
        window.export_pprof(profile_path)
        self._kept.append((profile_path, profile_path.stat().st_size, now))

    def _delete_oldest(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._kept.popleft()[0])
