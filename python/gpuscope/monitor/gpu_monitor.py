# SPDX-License-Identifier: Apache-2.0
"""GPUs watched in the background, into a file."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from gpuscope import _core
from gpuscope.arguments import as_float
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument
from gpuscope.monitor.log import GpuSample, Log
from gpuscope.monitor.snapshot import gpu_state
from gpuscope.text import brief

SHORTEST, LONGEST = 0.01, 3600.0  # seconds between samples
_WRITE_SECONDS = 1.0  # between two writes: what a killed process loses at most
_MOST_UNWRITTEN = 100_000  # samples that are kept while the file cannot be written


@dataclass(frozen=True)
class MonitorCost:
    """What watching took.

    Attributes:
        rounds: how often all GPUs were read.
        skipped: rounds that were due while another took too long.
        dropped: samples that were lost, as nobody took them in time or as the file could not be written.
        cpu_s: CPU time of the sampling threads.
        longest_s: the longest round.
    """

    rounds: int = 0
    skipped: int = 0
    dropped: int = 0
    cpu_s: float = 0.0
    longest_s: float = 0.0


class GPUMonitor:
    """Samples every GPU of the machine in the background and appends to a file.

    ``with GPUMonitor("gpu.csv", interval=1.0): train()``, or ``start()`` and ``stop()``. Two threads of the core read
    NVML without Python's GIL: use, memory, power, clocks and temperature at each interval, and what takes milliseconds
    (energy, seconds of throttling, links, errors) once a second. A file that exists is appended to. On a machine
    without a GPU the log has this process alone, and `why` says so.

    The first seven columns of a ``.csv`` are those of scripts around nvidia-smi: timestamp (ISO 8601 with zone),
    gpu_idx, util_pct, mem_used_mb, mem_total_mb (MiB), temp_c, power_w; after them every figure of `GpuState` has its
    own by name, empty where it is not known. A ``.jsonl`` has an object for each sample of a GPU, without what is not
    known, and the reasons for that where they are new.

    A file that cannot be written while the monitor runs, as on a full disk, is warned of once and tried again at each
    write; the samples wait. One thread at a time may start and stop; a forked child samples nothing.

    Args:
        log_path: the file, whose name ends with .csv, .jsonl or .ndjson; None for none: `take` has the samples then.
        interval: seconds between samples, 0.01 to 3600.

    Attributes:
        log_path: as given.
        interval: seconds.
        why: why there is no GPU; empty where there is one, and before the first `start`.
        error: why the file could not be written at the latest try; empty when it could.

    Raises:
        InvalidArgument: the interval or the file's suffix is none of these, or the file has other columns.
        GpuscopeError: the file cannot be written.
    """

    def __init__(self, log_path: str | os.PathLike[str] | None = "gpu_metrics.csv", interval: float = 1.0) -> None:
        self.interval = as_float(interval)
        if not SHORTEST <= self.interval <= LONGEST:
            raise InvalidArgument(f"interval is {brief(interval)}; accepted are {SHORTEST} to {LONGEST:.0f} seconds")
        self.log_path = log_path
        self.why = ""
        self.error = ""
        self._log = None if log_path is None else Log(log_path)
        self._sampler: _core.GpuSampler | None = None
        self._writer: threading.Thread | None = None
        self._ends = threading.Event()
        self._waiting: list[GpuSample] = []
        self._lost = 0
        self._cost = MonitorCost()

    def start(self) -> None:
        """Begins to sample; does nothing where it does already."""
        if self._sampler is not None:
            return
        self._sampler = _core.GpuSampler(round(self.interval * 1e9))
        self.why = self._sampler.why
        self._ends.clear()
        if self._log is not None:
            self._writer = threading.Thread(target=self._write_on, name="gpuscope-monitor", daemon=True)
            self._writer.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends sampling and writes what is left; does nothing where it has ended."""
        sampler = self._sampler
        if sampler is None:
            return
        atexit.unregister(self.stop)
        sampler.stop()
        self._ends.set()
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        self._collect(sampler)
        self._cost = self.cost
        self._sampler = None

    @property
    def running(self) -> bool:
        """Whether it samples."""
        return self._sampler is not None

    @property
    def cost(self) -> MonitorCost:
        """What sampling has taken since it began, or took when it ended."""
        if self._sampler is None:
            return self._cost
        facts: dict[str, Any] = self._sampler.cost()
        dropped = facts["dropped"] + self._lost
        return MonitorCost(facts["rounds"], facts["skipped"], dropped, facts["cpu_ns"] / 1e9, facts["longest_ns"] / 1e9)

    def take(self) -> list[GpuSample]:
        """Samples since the last call, oldest first; of a monitor with a file those that are not written yet."""
        if self._sampler is not None:
            self._waiting += _samples(self._sampler)
        taken, self._waiting = self._waiting, []
        return taken

    def __enter__(self) -> GPUMonitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<GPUMonitor: {state}, each {self.interval:g} s, {self.log_path or 'no file'}>"

    def _write_on(self) -> None:
        sampler = self._sampler
        assert sampler is not None
        while not self._ends.wait(max(self.interval, _WRITE_SECONDS)):
            self._collect(sampler)

    def _collect(self, sampler: _core.GpuSampler) -> None:
        """Writes what came, and what could not be written before."""
        self._waiting += _samples(sampler)
        if self._log is None or not self._waiting:
            return
        try:
            self._log.append(self._waiting)
        except GpuscopeError as error:
            if not self.error:
                warnings.warn(f"GPUMonitor goes on, but {error}", GpuscopeWarning, stacklevel=2)
            self.error = str(error)
            self._lost += max(0, len(self._waiting) - _MOST_UNWRITTEN)
            self._waiting = self._waiting[-_MOST_UNWRITTEN:]
        else:
            self.error, self._waiting = "", []


def _samples(sampler: _core.GpuSampler) -> list[GpuSample]:
    return [
        GpuSample(
            time_ns=facts["time_ns"],
            took_s=facts["took_ns"] / 1e9,
            gpu=None if facts["gpu"] is None else gpu_state(facts["gpu"], names_processes=False),
            process_cpu_s=facts["process_cpu_s"],
            process_resident_bytes=facts["resident_bytes"],
        )
        for facts in sampler.take()
    ]
