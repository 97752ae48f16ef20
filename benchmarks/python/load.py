# SPDX-License-Identifier: Apache-2.0
"""What a recording holds of programs that launch from many threads at once, and what ending it takes meanwhile.

Every line must have lost none, kept none of what was launched after the end, and be complete. ``--only stop,burst``
runs those whose names begin so; ring and aggregate mode take ``--seconds`` each, with ``--threads`` that launch: CUPTI
needs a core for its own worker, too.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import measure

BURST_THREADS, BURST_LAUNCHES = 64, 2500
SHORT_THREADS, AT_A_TIME = 10_000, 64
BUSY_THREADS = 16
STOPPED_THREADS, STOPS = 8, 10
TEN_MILLION = 10_000_000
CYCLES = 10_000
MODES_SECONDS = 30.0
BUSY_SECONDS = 60.0
LONG_KERNEL_SECONDS = 10.0
CHUNK = 200  # launches of one call, without the GIL
MAX_BYTES = 16 << 30
THREADS = ("decode_cpu_ns", "decode_lag_max_ns", "flush_cpu_ns", "flush_max_ns")


@dataclass
class Line:
    """One line of the table: launches that the program counted, kernels recorded, and what the audit says."""

    name: str
    launched: int = 0
    recorded: int = 0
    lost: int = 0
    refused: int = 0
    after: int = 0
    stop_ms: float = 0.0
    grown_mb: float = 0.0
    complete: bool = True
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return (
            f"{self.name:<34} {self.launched:>11,} {self.recorded:>11,} {self.lost:>6,} {self.refused:>7,} "
            f"{self.after:>6,} {self.stop_ms:>8.1f} {self.grown_mb:>8.1f}"
            f"  {'yes' if self.complete else 'NO'} {self.note}"
        )


HEADER = (
    f"{'':<34} {'launched':>11} {'recorded':>11} {'lost':>6} {'refused':>7} {'after':>6} {'stop ms':>8} {'grown MB':>8}"
    "  complete"
)


class Gpu:
    """Kernels, and streams to launch them on."""

    def __init__(self) -> None:
        from gpuscope import _core

        self.kernels = _core.Kernels()
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._check(self._cuda.cuCtxSetCurrent(context))
        self.streams = [self._stream() for _ in range(BURST_THREADS)]

    def _stream(self) -> int:
        handle = ctypes.c_void_p()
        self._check(self._cuda.cuStreamCreate(ctypes.byref(handle), 1))
        assert handle.value
        return handle.value

    def launch(self, thread: int, count: int, nanoseconds: int = 1) -> None:
        self.kernels.spin(nanoseconds, stream=self.streams[thread % len(self.streams)], count=count)

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise RuntimeError(f"the driver answered {code}")


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def profiler(**options: Any) -> Any:
    import gpuscope

    return gpuscope.profile(activities=[gpuscope.ProfilerActivity.CUDA], max_bytes=MAX_BYTES, **options)


def judged(name: str, prof: Any, launched: int | None, stop_ms: float, **more: Any) -> Line:
    audit = prof.audit()
    launched = audit.launches if launched is None else launched
    recorded = audit.kernels - audit.unattributed  # those were launched before
    return Line(
        name,
        launched=launched,
        recorded=recorded,
        lost=max(launched, audit.launches) - recorded,
        refused=audit.pool_exhausted + audit.refused,
        after=kept_after_the_end(prof.trace),
        stop_ms=round(stop_ms, 2),
        complete=audit.complete,
        note="; ".join(audit.reasons),
        **more,
    )


def kept_after_the_end(trace: Any) -> int:
    """Calls that the recording has though they began after it ended."""
    return int((trace.api.start_ns >= int(trace.info["session.stop_ns"])).sum())


def timed_ms(action: Callable[[], Any]) -> float:
    began = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - began) / 1e6


def burst(gpu: Gpu) -> Line:
    barrier = threading.Barrier(BURST_THREADS)

    def work(number: int) -> None:
        barrier.wait()
        gpu.launch(number, BURST_LAUNCHES)

    prof = profiler()
    prof.start()
    in_threads(BURST_THREADS, work)
    stop_ms = timed_ms(prof.stop)
    return judged(f"burst: {BURST_THREADS} threads together", prof, BURST_THREADS * BURST_LAUNCHES, stop_ms)


def short_threads(gpu: Gpu, threads: int) -> Line:
    before = measure.resident_bytes()
    prof = profiler()
    prof.start()
    for _ in range(threads // AT_A_TIME):
        in_threads(AT_A_TIME, lambda number: gpu.launch(number, 1))
    stop_ms = timed_ms(prof.stop)
    grown = round((measure.resident_bytes() - before) / 1e6, 1)
    launched = threads // AT_A_TIME * AT_A_TIME
    return judged(f"short: {launched:,} threads of one launch", prof, launched, stop_ms, grown_mb=grown)


def busy(gpu: Gpu, name: str, threads: int, seconds: float, launches: int | None = None, **options: Any) -> Line:
    """So many threads launch as fast as they can: for so long, or so many launches in all."""
    counts = [0] * threads
    began = time.monotonic()
    until = began + seconds

    def work(number: int) -> None:
        while counts[number] < launches // threads if launches else time.monotonic() < until:
            gpu.launch(number, CHUNK)
            counts[number] += CHUNK

    resident: list[int] = []
    prof = profiler(**options)
    prof.start()
    with sampled(resident):
        in_threads(threads, work)
    took = time.monotonic() - began
    stop_ms = timed_ms(prof.stop)
    third = max(1, len(resident) // 3)
    grown = (statistics.median(resident[-third:]) - statistics.median(resident[third : 2 * third] or resident)) / 1e6
    line = judged(name, prof, sum(counts), stop_ms, grown_mb=round(grown, 1))
    info = prof.trace.info
    line.detail = {
        "launches a second": round(sum(counts) / took),
        "resident MB": [size >> 20 for size in resident],
        **{name: int(info[f"audit.{name}"]) for name in THREADS},
    }
    del prof
    gc.collect()
    return line


@contextmanager
def sampled(resident: list[int]) -> Iterator[None]:
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.5):
            resident.append(measure.resident_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        resident.append(measure.resident_bytes())


@contextmanager
def launching(gpu: Gpu, threads: int, nanoseconds: int, pause_s: float) -> Iterator[list[int]]:
    """Threads that never stop, and how many launches each has made."""
    counts = [0] * threads
    done = threading.Event()

    def work(number: int) -> None:
        chunk = 1 if pause_s else 20
        while not done.is_set():
            gpu.launch(number, chunk, nanoseconds)
            counts[number] += chunk
            if pause_s:
                time.sleep(pause_s)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        time.sleep(0.3)
        yield counts
    finally:
        done.set()
        for worker in workers:
            worker.join()
        gpu.kernels.synchronize()


def stop_while_launching(gpu: Gpu, name: str, nanoseconds: int, pause_s: float, stops: int) -> Line:
    """The worst of several: every launch that was made before must be there, with its kernel."""
    lines = []
    with launching(gpu, STOPPED_THREADS, nanoseconds, pause_s) as counts:
        for _ in range(stops):
            prof = profiler()
            prof.start()
            began = sum(counts)
            time.sleep(0.2)
            ended = sum(counts)
            stop_ms = timed_ms(prof.stop)
            line = judged(name, prof, None, stop_ms)
            line.lost += max(0, ended - began - STOPPED_THREADS * 20 - line.launched)
            lines.append(line)
    return worst(lines)


def windows_while_launching(gpu: Gpu, name: str, wait: int, stops: int) -> Line:
    """Of a schedule whose cycles follow one another, or with steps that wait in between."""
    import gpuscope

    lines: list[Line] = []
    spent: list[float] = []
    with launching(gpu, STOPPED_THREADS, 1, 0.001):
        prof = profiler(
            schedule=gpuscope.schedule(wait=wait, warmup=1, active=1, repeat=stops),
            on_trace_ready=lambda p: lines.append(judged(name, p, None, 0.0)),
        )
        prof.start()
        for _ in range((wait + 2) * stops):
            time.sleep(0.1)
            spent.append(timed_ms(prof.step))
        prof.stop()
    for line, ms in zip(lines, spent[wait + 1 :: wait + 2], strict=True):
        line.stop_ms = round(ms, 2)
    return worst(lines)


def worst(lines: list[Line]) -> Line:
    """All as one: counts added up, the longest stop."""
    total = Line(f"{lines[0].name} ({len(lines)} times)")
    total.detail["stop ms"] = [line.stop_ms for line in lines]
    for line in lines:
        total.launched += line.launched
        total.recorded += line.recorded
        total.lost += line.lost
        total.refused += line.refused
        total.after += line.after
        total.stop_ms = max(total.stop_ms, line.stop_ms)
        total.complete &= line.complete
        total.note = total.note or line.note
    return total


def start_stop(gpu: Gpu, cycles: int) -> Line:
    launched = recorded = 0
    complete = True
    before = 0
    longest = 0.0
    for cycle in range(cycles):
        if cycle == cycles // 5:
            gc.collect()
            before = measure.resident_bytes()
        prof = profiler()
        prof.start()
        gpu.launch(0, 1)
        longest = max(longest, timed_ms(prof.stop))
        audit = prof.audit()
        launched, recorded, complete = launched + 1, recorded + audit.kernels, complete and audit.complete
    grown = round((measure.resident_bytes() - before) / 1e6, 1)
    return Line(
        f"cycles: {cycles:,} start and stop",
        launched=launched,
        recorded=recorded,
        lost=launched - recorded,
        stop_ms=round(longest, 2),
        grown_mb=grown,
        complete=complete,
    )


def long_kernel(gpu: Gpu, seconds: float) -> Line:
    prof = profiler()
    prof.start()
    gpu.launch(0, 1, int(seconds * 1e9))
    gpu.launch(0, 2)
    stop_ms = timed_ms(lambda: prof.stop(timeout=0.2))
    line = judged(f"long: a kernel of {seconds:.0f} s, stop(0.2)", prof, 3, stop_ms)
    gpu.kernels.synchronize()
    return line


def scenes(gpu: Gpu, quick: bool, seconds: float, threads: int) -> dict[str, Callable[[], Line]]:
    share = 0.1 if quick else 1.0
    modes_s = seconds * share * 2 if quick else seconds
    stops = 3 if quick else STOPS
    return {
        "burst": lambda: burst(gpu),
        "short": lambda: short_threads(gpu, int(SHORT_THREADS * share)),
        "stop tiny": lambda: stop_while_launching(gpu, "stop: 8 threads, 1 us kernels", 1, 0.0, stops),
        "stop slow": lambda: stop_while_launching(gpu, "stop: 8 threads, 10 us kernels", 10_000, 0.0, stops),
        "stop server": lambda: stop_while_launching(gpu, "stop: 8 threads, one a ms of 0.8", 800_000, 0.001, stops),
        "stop long": lambda: stop_while_launching(gpu, "stop: 8 threads, 20 ms kernels", 20_000_000, 0.021, stops),
        "windows": lambda: windows_while_launching(gpu, "windows of a schedule", 0, stops),
        "windows, waits": lambda: windows_while_launching(gpu, "windows of a schedule that waits", 1, stops),
        "long": lambda: long_kernel(gpu, 2.0 if quick else LONG_KERNEL_SECONDS),
        "cycles": lambda: start_stop(gpu, int(CYCLES * share)),
        "minute": lambda: busy(gpu, "16 threads for a minute", BUSY_THREADS, BUSY_SECONDS * share),
        "ten": lambda: busy(gpu, "10^7 launches of 16 threads", BUSY_THREADS, 0.0, int(TEN_MILLION * share)),
        "ring": lambda: busy(gpu, "ring of 1 s", threads, modes_s, mode="ring", ring_seconds=1.0),
        "aggregate": lambda: busy(gpu, "aggregate", threads, modes_s, mode="aggregate"),
    }


def main() -> None:
    options = measure.arguments(__doc__, only="", seconds=MODES_SECONDS, threads=BUSY_THREADS)
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {"load_lost": {"skipped": why}}})
        return
    gpu = Gpu()
    gpu.launch(0, 1000)
    gpu.kernels.synchronize()
    with profiler() as first:  # the first audit of a process imports what it needs
        pass
    judged("", first, None, 0.0)
    wanted = tuple(filter(None, options.only.split(",")))
    lines = []
    print(HEADER)
    for name, scene in scenes(gpu, options.quick, options.seconds, options.threads).items():
        if not wanted or name.startswith(wanted):
            lines.append(scene())
            gpu.kernels.synchronize()
            print(lines[-1].text(), flush=True)
    bad = sum(bool(line.lost or line.after or not line.complete) for line in lines)
    measure.answer({"rows": {"load_lost": {"value": bad, "detail": [asdict(line) for line in lines]}}})


if __name__ == "__main__":
    main()
