# SPDX-License-Identifier: Apache-2.0
"""Samples GPUs in the background, into a file."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpuscope import _core
from gpuscope.arguments import as_float
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument, NotAvailable
from gpuscope.monitor.host import host_state
from gpuscope.monitor.log import Log
from gpuscope.monitor.sample import GpuSample, SamplingCost
from gpuscope.monitor.snapshot import gpu_state
from gpuscope.results import write_parquet
from gpuscope.text import brief
from gpuscope.threads import shared_lock, start_thread

if TYPE_CHECKING:  # both are optional
    import pandas as pd
    from matplotlib.axes import Axes

SHORTEST, LONGEST = 0.01, 3600.0  # seconds between samples
_WRITE_SECONDS = 1.0  # between two writes: the most that a killed process loses
_MOST_UNWRITTEN = 100_000  # samples that are kept while the file cannot be written
_MOST_UNTAKEN = 10_000  # samples that are kept for `take`
_HANGS = "a GPU does not answer: a call of NVML did not return within a second, and its thread was left behind"


@dataclass(frozen=True)
class MonitorCost:
    """The cost of sampling.

    Attributes:
        rounds: number of rounds; a round reads all GPUs.
        skipped: rounds that were due while another took too long.
        dropped: samples lost because they were not taken in time or the file could not be written.
        cpu_s: CPU time of the sampling thread.
        longest_s: the longest round.
        elapsed_s: seconds since sampling began.
        mean_s: mean time of a sample of one GPU.
        p99_s: 99th percentile of that time.
    """

    rounds: int = 0
    skipped: int = 0
    dropped: int = 0
    cpu_s: float = 0.0
    longest_s: float = 0.0
    elapsed_s: float = 0.0
    mean_s: float = 0.0
    p99_s: float = 0.0

    @property
    def cpu_ratio(self) -> float:
        """The sampling thread's share of one core."""
        return self.cpu_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def stated(self) -> SamplingCost:
        """The cost as logs contain it."""
        return SamplingCost(self.cpu_ratio, self.mean_s, self.p99_s, self.skipped)


class GPUMonitor:
    """Samples every GPU of the machine in the background and appends to a file.

    Use ``with GPUMonitor("gpu.csv", interval=1.0): train()``, or ``start()`` and ``stop()`` on one thread at a time.
    A thread of the core reads NVML without Python's GIL. Without a GPU the log has only this process and the host; the
    first `start` warns, and `why` says why.
    If the file cannot be written, a warning is issued once, and the samples wait for the next try. A .parquet or
    .gscope is written by `stop`, from a ``.part`` next to it. Columns and reading intervals:
    docs/howto/watch_a_run.md.

    Args:
        log_path: the file, ending with .csv, .jsonl, .ndjson, .gscope or .parquet (needs pyarrow). An existing file is
            appended to. None writes no file.
        interval: seconds between samples, 0.01 to 3600.

    Attributes:
        log_path: as given.
        interval: seconds.
        why: reason why there is no GPU; empty if there is one, and before the first `start`.
        error: reason why the latest write failed; empty if it succeeded.
        hangs: a sentence if a GPU did not answer at the end of sampling; else empty.

    Raises:
        InvalidArgument: the interval or the file's suffix is not accepted, or the file has other columns.
        NotAvailable: pyarrow is not installed, for a .parquet.
        GpuscopeError: the file cannot be written.
    """

    def __init__(self, log_path: str | os.PathLike[str] | None = "gpu_metrics.csv", interval: float = 1.0) -> None:
        self.interval = as_float(interval)
        if not SHORTEST <= self.interval <= LONGEST:
            raise InvalidArgument(f"interval is {brief(interval)}; accepted are {SHORTEST} to {LONGEST:.0f} seconds")
        self.log_path = log_path
        self.why = ""
        self.error = ""
        self.hangs = ""
        self._log = None if log_path is None else Log(log_path)
        self._sampler: _core.GpuSampler | None = None
        self._writer: threading.Thread | None = None
        self._process = 0  # the process that samples
        self._ends = threading.Event()
        self._lock = shared_lock()  # of the samples
        self._waiting: list[GpuSample] = []  # for the file
        self._untaken: deque[GpuSample] = deque(maxlen=_MOST_UNTAKEN)
        self._is_taken = self._log is None
        self._latest: dict[int, GpuSample] = {}  # by number of the GPU, -1 where there is none
        self._lost = 0
        self._cost = MonitorCost()

    def start(self) -> None:
        """Starts sampling, unless it runs already.

        Raises:
            NotAvailable: the system refuses another thread.
        """
        self._start()

    def _start(self) -> None:
        if self._is_parents():
            self._forget()
        if self._sampler is not None:
            return
        sampler = _core.GpuSampler(round(self.interval * 1e9))
        is_new, self.why = not self.why, sampler.why
        if self.why and is_new:
            text = f"GPUMonitor samples no GPU, only this process and the host: {self.why}"
            warnings.warn(text, GpuscopeWarning, stacklevel=3)  # the caller of `start` or `with`
        self._process, self._sampler = os.getpid(), sampler
        self.hangs = ""
        self._ends = threading.Event()
        if self._log is not None:
            writer = threading.Thread(target=self._write_on, args=(sampler,), name="gpuscope-monitor", daemon=True)
            try:
                start_thread(writer.start, "a monitor's log")
            except NotAvailable:
                self._sampler = None
                raise
            self._writer = writer
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends sampling and writes the remaining samples; does nothing if it has ended.

        Waits at most a second for a call of NVML that does not return.
        """
        if self._is_parents():
            self._forget()
        sampler = self._sampler
        if sampler is None:
            return
        atexit.unregister(self.stop)
        self.hangs = "" if sampler.stop() else _HANGS
        self._ends.set()
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        self._collect(sampler)
        self._cost = self.cost
        self._sampler = None
        if self._log is not None:
            unwritten = self.error if self._waiting else ""
            self._attempt(self._log.close)
            self.error = self.error or unwritten
        if self.hangs:
            warnings.warn(f"GPUMonitor has ended, but {self.hangs}", GpuscopeWarning, stacklevel=2)

    @property
    def running(self) -> bool:
        """Whether sampling runs."""
        return self._sampler is not None and not self._is_parents()

    @property
    def cost(self) -> MonitorCost:
        """The cost of sampling since it began, or until it ended."""
        sampler = self._sampler  # another thread may end it
        if sampler is None or self._is_parents():
            return self._cost
        facts: dict[str, Any] = sampler.cost()
        names = ("cpu", "longest", "elapsed", "mean", "p99")
        return MonitorCost(
            rounds=facts["rounds"],
            skipped=facts["skipped"],
            dropped=facts["dropped"] + self._lost,
            **{f"{name}_s": facts[f"{name}_ns"] / 1e9 for name in names},
        )

    def take(self) -> list[GpuSample]:
        """Samples since the last call, oldest first.

        The latest 10,000 are kept; with a file, only from the first call on. Taking samples does not affect the file.
        """
        self._is_taken = True
        self._gather()
        with self._lock:
            taken = [*self._untaken]
            self._untaken.clear()
        return taken

    def latest(self) -> list[GpuSample]:
        """The newest sample of each GPU, in their order; does not read the GPUs."""
        self._gather()
        with self._lock:
            return [
                self._latest[index] for index in sorted(self._latest, key=lambda index: -1 if index is None else index)
            ]

    def to_pandas(self) -> pd.DataFrame:
        """One row per sample of a GPU with the columns of a log, from the file, or from untaken samples without one.

        Raises:
            NotAvailable: pandas is not installed, or the file is a .gscope, which `gpuscope.load` opens.
            GpuscopeError: the file cannot be read.
        """
        from gpuscope.monitor.frames import frame_of_log, frame_of_samples

        self._gather()
        if self._log is None:
            with self._lock:
                return frame_of_samples([*self._untaken])
        if self._sampler is not None:
            self._collect(self._sampler)
        return frame_of_log(self._log.path)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_pandas` as a Parquet file.

        Raises:
            NotAvailable: pandas or pyarrow is not installed.
            GpuscopeError: the file cannot be written.
        """
        write_parquet(self.to_pandas(), path)

    def plot(self) -> list[Axes]:
        """Plots use, memory, power, clock and temperature over time, with a line for each GPU.

        Raises:
            NotAvailable: Matplotlib or pandas is not installed.
            InvalidArgument: nothing of a GPU was sampled.
        """
        from gpuscope.monitor.frames import plot_frame

        return plot_frame(self.to_pandas())

    def __enter__(self) -> GPUMonitor:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<GPUMonitor: {state}, each {self.interval:g} s, {self.log_path or 'no file'}>"

    def _is_parents(self) -> bool:
        """Whether this process is a forked child of the sampling process."""
        return self._sampler is not None and self._process != os.getpid()

    def _forget(self) -> None:
        """In a forked child: threads and waiting samples belong to the parent, and its lock may be held."""
        atexit.unregister(self.stop)
        self._sampler = self._writer = None
        self._waiting.clear()
        self._untaken.clear()

    def _write_on(self, sampler: _core.GpuSampler) -> None:
        while not self._ends.wait(_WRITE_SECONDS):  # also if samples are rarer
            with contextlib.suppress(GpuscopeWarning):  # a warning raised as an error would end the thread
                self._collect(sampler)

    def _gather(self) -> None:
        """Takes the samples from the sampler."""
        if self._is_parents():
            self._forget()
        with self._lock:
            sampler = self._sampler
            if sampler is None:
                return
            new = _samples(sampler, lambda: self.cost.stated)
            self._latest |= {-1 if sample.gpu is None else sample.gpu.index: sample for sample in new}
            if self._log is not None:
                self._waiting += new
            if self._is_taken:
                if self._log is None:
                    self._lost += max(0, len(self._untaken) + len(new) - _MOST_UNTAKEN)
                self._untaken += new

    def _collect(self, sampler: _core.GpuSampler) -> None:
        """Writes new samples, and samples that could not be written before."""
        self._gather()
        if self._log is None:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        written = False
        try:
            written = self._attempt(self._log.append, waiting)
        finally:  # the warning may be raised as an error
            if not written:
                self._put_back(waiting)

    def _put_back(self, unwritten: list[GpuSample]) -> None:
        with self._lock:
            self._waiting = unwritten + self._waiting
            self._lost += max(0, len(self._waiting) - _MOST_UNWRITTEN)
            self._waiting = self._waiting[-_MOST_UNWRITTEN:]

    def _attempt(self, write: Callable[..., None], *arguments: Any) -> bool:
        """Whether the write succeeded; warns of the first failure."""
        try:
            write(*arguments)
        except GpuscopeError as error:
            is_new, self.error = not self.error, str(error)
            if is_new:
                warnings.warn(f"GPUMonitor goes on, but {error}", GpuscopeWarning, stacklevel=4)
            return False
        self.error = ""
        return True


def _samples(sampler: _core.GpuSampler, stated: Callable[[], SamplingCost] | None = None) -> list[GpuSample]:
    taken = sampler.take()
    cost = stated() if taken and stated is not None else None
    return [
        GpuSample(
            time_ns=facts["time_ns"],
            took_s=facts["took_ns"] / 1e9,
            gpu=None if facts["gpu"] is None else gpu_state(facts["gpu"], names_processes=False),
            process_cpu_s=facts["process_cpu_s"],
            process_resident_bytes=facts["resident_bytes"],
            slow_time_ns=facts["slow_time_ns"],
            host=host_state(facts["host"]),
            host_time_ns=facts["host_time_ns"],
            cost=cost,
            rare_time_ns=facts["rare_time_ns"],
        )
        for facts in taken
    ]
