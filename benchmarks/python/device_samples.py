# SPDX-License-Identifier: Apache-2.0
"""What reading NVML ten times a second costs a program, and whether what is read is true.

Parts, each on its own with ``--only cost,launches``. ``cost``: a launch-bound loop alone, with the samples of a
recording, and with `GPUMonitor`, which reads performance counters and processes too. ``launches``: how long each single
launch of such a loop takes. ``cpu``: what the sampling thread takes of a core. ``agreement``: figures beside those of
nvidia-smi and pynvml of the same moment. ``sm_active``, ``tensor``, ``dram`` and ``pcie``: performance counters beside
kernels and copies of known duty. ``energy``: joules of regions beside the counter's growth. ``throttled``: for how much
of the time clocks were held back, beside the counter.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import gc
import itertools
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
from known_loads import MS, SECOND, Load, Loads, NotHere, Nvml, Played, SmClock, Watched, payload_limit
from workload import Workload, workloads

INTERVAL_S = 0.1
ROUND_S = 1.05  # with one reading of what is read once a second
COST_S, QUICK_COST_S = 20.0, 5.0
EVEN_S = 3.0  # utilization and power are means of up to a second
STEADY_S = 3.0  # after which nothing of the beginning is left
COST_CHUNK = 100  # launches, some 0.7 ms
READING_NS = 10 * MS  # before and after the middle of what takes long to read
AROUND_NS = 2 * MS  # with two chunks or more
WHILE_NS = 100 * MS
CPU_S, QUICK_CPU_S = (20.0, 40.0), (4.0, 6.0)  # of the beginning, and of what is measured
LATENCY_ROUNDS, QUICK_LATENCY_ROUNDS = 5, 2
CHUNK = 500  # launches, less than the driver queues
LATE_NS = 100_000
DUTIES = (0.25, 0.5, 0.75, 1.0)
PLAY_S, QUICK_PLAY_S = 4.0, 2.5  # some readings of performance counters, which are read once a second
WARM_S = 0.3
PAIR_NS = 50 * MS
TENSOR_FLOPS = {"9.0": 4096, "8.0": 2048}  # bfloat16 a cycle and multiprocessor, by the architectures' white papers
COPY_BYTES = 1 << 29
LINK_BYTES = 1 << 26
# Bytes around the data of a packet, by the PCI Express Base Specification: framing and sequence number 4, LCRC 4, and a
# header of 12 where the host completes a read of the GPU's, of 16 where the GPU writes to an address of 64 bits.
TO_GPU_BYTES, TO_HOST_BYTES = 20, 24
NO_REGION = 0xFFFFFFFF
SAMPLERS = ("gpuscope-nvml", "gpuscope-gpus")  # threads, as the kernel names them
PAIRS: dict[str, tuple[str, float, float]] = {
    # of nvidia-smi's query: our figure, its unit in ours, what may differ in its unit (power: a share)
    "utilization.gpu": ("busy_ratio", 0.01, 1),
    "memory.used": ("memory_used_bytes", 1 << 20, 1),
    "power.draw": ("power_w", 1, 0.02),
    "clocks.sm": ("sm_hz", 1e6, 0),
    "clocks.mem": ("memory_hz", 1e6, 0),
    "temperature.gpu": ("temperature_c", 1, 1),
    "power.limit": ("power_limit_w", 1, 0.0),
}

Rows = dict[str, measure.Row]


PARTS: dict[str, tuple[str, ...]] = {
    "cost": ("samples_cost", "monitor_cost"),
    "launches": ("launch_delay",),
    "cpu": ("samples_cpu", "monitor_cpu"),
    "agreement": ("agreement",),
    "sm_active": ("gpm_sm_active",),
    "tensor": ("gpm_tensor",),
    "dram": ("gpm_dram",),
    "pcie": ("gpm_pcie",),
    "energy": ("energy_second",),
    "throttled": ("throttled",),
}


@functools.cache
def loads() -> Loads:
    return Loads()


def of_first_gpu(samples: list[Any]) -> list[Any]:
    """Those of the GPU that CUDA calls the first."""
    return [sample for sample in samples if sample.gpu is not None and sample.gpu.uuid == loads().uuid]


# -- what it costs ---------------------------------------------------------------------------------------------------


Span = tuple[float, float]  # ns since the epoch


@contextlib.contextmanager
def sampled() -> Iterator[list[Span]]:
    """The samples of a recording, and nothing else of it; at the end: when they were read."""
    from gpuscope import _core

    spans: list[Span] = []
    session = _core.Session(cuda=False, device_interval_ns=round(INTERVAL_S * SECOND))
    session.open()
    store = None
    try:
        yield spans
    finally:
        store = session.stop()
    for table in ("device_sample", "device_counter"):
        spans += [(moment - READING_NS, moment + READING_NS) for moment in store.columns(table)["start_ns"].tolist()]
    if not spans:
        raise RuntimeError("the recording has no sample of a GPU")


@contextlib.contextmanager
def watched() -> Iterator[list[Span]]:
    """`GPUMonitor`, likewise."""
    import gpuscope as gs

    spans: list[Span] = []
    with gs.GPUMonitor(None, interval=INTERVAL_S) as monitor:
        yield spans
    samples = monitor.take()
    if not of_first_gpu(samples):
        raise RuntimeError("GPUMonitor took no sample of the GPU")
    for sample in samples:
        spans.append((sample.time_ns - sample.took_s * SECOND / 2, sample.time_ns + sample.took_s * SECOND / 2))
    for name in ("slow_time_ns", "rare_time_ns", "host_time_ns"):
        moments = {getattr(sample, name) for sample in samples}
        spans += [(moment - READING_NS, moment + READING_NS) for moment in moments]


MODES: dict[str, Callable[[], Any]] = {"nothing": contextlib.nullcontext, "samples": sampled, "monitor": watched}


def in_turns(rounds: int, measure_once: Callable[[], Any]) -> dict[str, list[Any]]:
    """What it gives under each mode, round by round; each round begins with another mode, the first is not kept."""
    names = list(MODES)
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            with MODES[name]():
                value = measure_once()
            if number > 0:
                found[name].append(value)
        progress(f"round {number}")
    return found


def chunks(workload: Workload, seconds: float) -> Any:
    """Moments between chunks of launches that the host waits for, ns since the epoch."""
    moments = [time.time_ns()]
    while moments[-1] - moments[0] < seconds * SECOND:
        workload.run(COST_CHUNK)
        moments.append(time.time_ns())
    return np.array(moments)


def merged(spans: Any) -> Any:
    """Begins and ends in turns of what these cover."""
    spans = spans[np.argsort(spans[:, 0])]
    ends = np.maximum.accumulate(spans[:, 1])
    is_first = np.append(True, spans[1:, 0] > ends[:-1])
    return np.column_stack([spans[is_first, 0], ends[np.append(is_first[1:], True)]]).reshape(-1)


def slowdown(moments: Any, spans: Any) -> tuple[float, list[float]]:
    """What share of its launches the loop misses in these spans, and in as much as `AROUND_NS` around each, beside as
    much of the rest of the same while of `WHILE_NS`: a host that becomes slower and faster does not matter. With the
    95 % interval over such whiles."""
    edges = merged(spans + np.array([-AROUND_NS, AROUND_NS]))
    cuts = np.unique(np.concatenate([edges, np.arange(moments[0], moments[-1], WHILE_NS), moments[-1:]]))
    cuts = cuts[(cuts >= moments[0]) & (cuts <= moments[-1])]
    is_read = np.searchsorted(edges, cuts[:-1], "right") % 2 == 1
    number = ((cuts[:-1] - moments[0]) // WHILE_NS).astype(np.int64)
    spent, launched = np.diff(cuts), np.diff(np.interp(cuts, moments, np.arange(len(moments))))

    def total(weights: Any) -> Any:
        return np.bincount(number, weights, int(number[-1]) + 1)

    rest_ns = total(spent * ~is_read)
    expected = total(spent * is_read) * total(launched * ~is_read) / np.maximum(rest_ns, 1)
    missed = np.where(rest_ns > WHILE_NS / 4, expected - total(launched * is_read), 0.0)
    drawn = np.random.default_rng(0).integers(0, len(missed), (2000, len(missed)))
    low, high = np.percentile(missed[drawn].sum(axis=1), [2.5, 97.5]) / launched.sum()
    return float(missed.sum() / launched.sum()), [round(float(low), 5), round(float(high), 5)]


def cost(quick: bool) -> Rows:
    workload = workloads()[0]
    loads()
    found: dict[str, dict[str, Any]] = {}
    for mode, begun in MODES.items():
        with begun() as spans:
            chunks(workload, STEADY_S)
            moments = chunks(workload, QUICK_COST_S if quick else COST_S)
        if not spans:  # what the estimate is off by where nothing is read
            spans = [(moment, moment) for moment in range(moments[0], moments[-1], WHILE_NS)]
        share, interval = slowdown(moments, np.array(spans))
        found[mode] = {
            "value": round(share, 5),
            "95 % interval": interval,
            "readings": len(spans),
            "ns per launch": round(float(np.diff(moments).mean()) / COST_CHUNK, 1),
        }
        progress(f"{mode}: {found[mode]}")
    detail = {"workload": workload.name, "where nothing is read": found["nothing"]}
    return {
        f"{mode}_cost": {"value": found[mode].pop("value"), "detail": {**found[mode], **detail}}
        for mode in ("samples", "monitor")
    }


def single_launches() -> Any:
    """ns of each launch of a round, without those behind which the host waits for the device."""
    kernels = loads().kernels
    launch, clock = kernels.saxpy, time.perf_counter_ns
    chunks, until = [], clock() + ROUND_S * SECOND
    while clock() < until:
        moments = [clock()]
        for _ in range(CHUNK):
            launch(16)
            moments.append(clock())
        chunks.append(moments)
        kernels.synchronize()
    return np.diff(np.array(chunks), axis=1).reshape(-1)


def launches(quick: bool) -> Rows:
    gc.disable()
    try:
        found = in_turns(QUICK_LATENCY_ROUNDS if quick else LATENCY_ROUNDS, single_launches)
    finally:
        gc.enable()
    taken = {name: np.concatenate(rounds) for name, rounds in found.items()}
    usual = float(np.median(taken["nothing"]))
    detail = {
        name: {
            "launches": len(values),
            "us at 50, 99, 99.99 %": [round(float(q) / 1e3, 2) for q in np.percentile(values, [50, 99, 99.99])],
            "longest us": round(float(values.max()) / 1e3, 1),
            "later by 100 us, of a million": round(1e6 * float((values > usual + LATE_NS).mean()), 2),
        }
        for name, values in taken.items()
    }
    late = {name: float(np.percentile(values, 99.99)) for name, values in taken.items()}
    worst = max(late[mode] - late["nothing"] for mode in ("samples", "monitor"))
    return {"launch_delay": {"value": round(worst / 1e3, 2), "detail": detail}}


def samplers_cpu_s() -> dict[str, float]:
    """CPU time that each thread of a sampler has run for, by its name."""
    found: dict[str, float] = {}
    for thread, spent_s in measure.thread_cpu_s().items():
        with contextlib.suppress(OSError):  # it ended meanwhile
            name = Path(f"/proc/self/task/{thread}/comm").read_text().strip()
            if name in SAMPLERS:
                found[name] = spent_s
    return found


def shares_of_core(load: Load, seconds: tuple[float, float]) -> dict[str, float]:
    """Of each thread of a sampler, while the GPU works, so that its counters go on."""
    loads().play(load, seconds[0])
    began, before = time.perf_counter(), samplers_cpu_s()
    loads().play(load, seconds[1])
    after, took = samplers_cpu_s(), time.perf_counter() - began
    return {name: round((after[name] - spent) / took, 5) for name, spent in before.items()}


def cpu(quick: bool) -> Rows:
    import gpuscope as gs

    fma, seconds = loads().fma(), QUICK_CPU_S if quick else CPU_S
    with gs.profile(activities=[gs.ProfilerActivity.CUDA], device_samples=INTERVAL_S) as prof:
        recorded = shares_of_core(fma, seconds)
    info = prof.trace.info
    of_recording = {
        "of the whole": round(int(info["audit.device_samples_cpu_ns"]) / SECOND / sum(seconds), 5),
        "longest ms": round(int(info["audit.device_samples_longest_ns"]) / MS, 2),
        "values of energy": int((prof.trace.device_counters.energy_mj >= 0).sum()),
        "samples": len(prof.trace.device_samples),
    }
    with gs.GPUMonitor(None, interval=INTERVAL_S) as monitor:
        watched = shares_of_core(fma, seconds)
        told = monitor.cost
    of_monitor = {
        "of the whole": round(told.cpu_ratio, 5),
        "rounds": told.rounds,
        "skipped": told.skipped,
        "mean, p99 ms": [round(1e3 * told.mean_s, 3), round(1e3 * told.p99_s, 3)],
    }
    return {
        "samples_cpu": {"value": round(sum(recorded.values()), 5), "detail": {**recorded, **of_recording}},
        "monitor_cpu": {"value": round(sum(watched.values()), 5), "detail": {**watched, **of_monitor}},
    }


# -- agreement with other tools --------------------------------------------------------------------------------------


Reading = tuple[int, dict[str, float]]  # ns since the epoch, and figures as nvidia-smi names them


def of_nvidia_smi(seconds: float) -> list[Reading]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotHere("nvidia-smi is not installed")
    query = f"--query-gpu=timestamp,{','.join(PAIRS)}"
    command = [program, "-i", loads().uuid, query, "--format=csv,noheader,nounits"]
    tool = subprocess.Popen([*command, "-lms", "100"], stdout=subprocess.PIPE, text=True)
    time.sleep(seconds)
    tool.terminate()
    text, _ = tool.communicate(timeout=20)
    until = time.monotonic() + seconds
    while text.count("\n") < 3 and time.monotonic() < until:  # it may keep its lines to itself until it ends
        text += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        when, *cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(PAIRS):
            continue  # it was ended within a line
        moment = datetime.datetime.strptime(when, "%Y/%m/%d %H:%M:%S.%f").astimezone()
        values = {name: float(cell) for name, cell in zip(PAIRS, cells, strict=True) if is_number(cell)}
        found.append((round(moment.timestamp() * 1e3) * MS, values))
    return found


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def of_pynvml(seconds: float) -> list[Reading]:
    import pynvml  # type: ignore[import-not-found]

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByUUID(loads().uuid)
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.time_ns()
        values = {
            "utilization.gpu": pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "memory.used": pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).used / (1 << 20),
            "power.draw": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "clocks.sm": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "clocks.mem": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
            "temperature.gpu": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
            "power.limit": pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
        }
        found.append(((began + time.time_ns()) // 2, values))
        time.sleep(0.08)
    return found


def compared(samples: list[Any], readings: list[Reading]) -> dict[str, Any]:
    """By figure: of how many pairs of the same 50 ms how many agree, and the worst difference."""
    moments = np.array([sample.time_ns for sample in samples])
    differences: dict[str, list[float]] = {}
    for when, values in readings:
        near = int(np.argmin(np.abs(moments - when)))
        if abs(int(moments[near]) - when) > PAIR_NS:
            continue
        for name, theirs in values.items():
            figure, unit, allowed = PAIRS[name]
            ours = getattr(samples[near].gpu, figure)
            if ours is not None:
                off = abs(ours / unit - theirs)
                differences.setdefault(name, []).append(off / theirs if 0 < allowed < 1 else off)
    return {
        name: {
            "pairs": len(values),
            "agree": sum(value <= PAIRS[name][2] + 1e-6 for value in values),
            "worst": round(max(values), 4),
            "allowed": PAIRS[name][2],
        }
        for name, values in differences.items()
    }


def agreement(quick: bool) -> Rows:
    """On a GPU that works evenly; ours is read each 50 ms, so that pairs are less than that apart."""
    import gpuscope as gs

    seconds = 3.0 if quick else 9.0
    tools = {"nvidia-smi": of_nvidia_smi, "pynvml": of_pynvml}
    readings: dict[str, list[Reading]] = {}
    why: dict[str, str] = {}

    def read(tool: str) -> None:
        try:
            readings[tool] = tools[tool](seconds)
        except Exception as error:  # the other tool's figures stay
            why[tool] = f"{type(error).__name__}: {error}"

    fma = loads().fma()
    threads = [threading.Thread(target=read, args=(tool,)) for tool in tools]
    with gs.GPUMonitor(None, interval=INTERVAL_S / 2) as monitor:  # to begin takes 0.2 s, in which the GPU rests
        loads().play(fma, EVEN_S)
        for thread in threads:
            thread.start()
        loads().play(fma, seconds + 0.3)
        while any(thread.is_alive() for thread in threads):
            loads().play(fma, 0.1)
        samples = of_first_gpu(monitor.take())
    by_tool = {tool: compared(samples, found) for tool, found in readings.items()}
    shares = [
        1 - row["agree"] / row["pairs"] for figures in by_tool.values() for row in figures.values() if row["pairs"]
    ]
    if not shares:
        return {"agreement": {"skipped": f"no reading lies near one of ours: {why}"}}
    return {"agreement": {"value": round(max(shares), 4), "detail": {**by_tool, "remarks": why}}}


# -- performance counters --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """A figure over windows that lie within a load, and the load in the time that these cover."""

    time_ns: list[int]  # of their ends
    values: list[float]
    shares: list[float]  # of that time
    played: Played

    @property
    def mean(self) -> float:
        return sum(value * share for value, share in zip(self.values, self.shares, strict=True))

    def far(self, known: float, by: float) -> list[list[float]]:
        """Those that differ by more: seconds since the load began, and the figure."""
        pairs = zip(self.time_ns, self.values, strict=True)
        begin_ns = self.played.begin_ns
        return [[round((at - begin_ns) / SECOND, 3), round(value, 4)] for at, value in pairs if abs(value - known) > by]


def inside(samples: list[Any], played: Played, figure: str) -> Windows:
    """Each reading is a mean since the one before, and stands in all samples until the next: they are told apart by
    another value, and the first within the load begins the first window."""
    chosen = [sample for sample in of_first_gpu(samples) if played.begin_ns <= sample.time_ns <= played.end_ns]
    told = [sample for sample in chosen if getattr(sample.gpu, figure) is not None]
    if not told:
        raise NotHere(chosen[-1].gpu.why.get(figure, "no sample") if chosen else "no sample lies within the load")
    new = [
        after for before, after in itertools.pairwise(told) if getattr(before.gpu, figure) != getattr(after.gpu, figure)
    ]
    if len(new) < 2:
        raise NotHere(f"{figure} was read less than twice within the load")
    covered = played.within(new[0].time_ns, new[-1].time_ns)
    spans = [
        (after.time_ns - before.time_ns) / (new[-1].time_ns - new[0].time_ns)
        for before, after in itertools.pairwise(new)
    ]
    return Windows([each.time_ns for each in new[1:]], [getattr(each.gpu, figure) for each in new[1:]], spans, covered)


def counted(
    name: str,
    load: Load,
    figure: str,
    expect: Callable[[Played, float], float],
    quick: bool,
) -> Rows:
    """The worst difference, in points, over loads of several duties. `expect`: what the figure ought to be, of the load
    and the clock in Hz that multiprocessors had."""
    import gpuscope as gs

    detail: dict[str, Any] = {}
    clock = SmClock()
    with gs.GPUMonitor(None, interval=INTERVAL_S) as monitor:
        for duty in DUTIES:
            loads().play(load, WARM_S, duty)
            monitor.take()
            before = clock.read()
            played = loads().play(load, QUICK_PLAY_S if quick else PLAY_S, duty)
            clock_hz = clock.mean_hz(before, clock.read())
            time.sleep(0.02)
            samples = monitor.take()
            windows = inside(samples, played, figure)
            found, known = windows.mean, expect(windows.played, clock_hz)
            detail[f"duty {duty:.0%}"] = {
                "known": round(known, 4),
                "found": round(found, 4),
                "points": round(100 * (found - known), 2),
                "relative": round(found / known - 1, 4),
                "samples": len(windows.values),
                "of them": [round(min(windows.values), 4), round(max(windows.values), 4)],
                "far ones: s, figure": windows.far(known, 0.03),
                "of the whole load": round(expect(played, clock_hz), 4),
                "clock MHz": round(clock_hz / 1e6, 1),
                "by NVML": clocks_mhz(of_first_gpu(samples)),
            }
            progress(f"{name} {duty:.0%}: {detail[f'duty {duty:.0%}']}")
    worst = max(abs(entry["points"]) for entry in detail.values())
    return {name: {"value": worst, "detail": detail}}


def clocks_mhz(samples: list[Any]) -> list[float]:
    """Lowest, mean and highest."""
    clocks = [sample.gpu.sm_hz / 1e6 for sample in samples if sample.gpu.sm_hz]
    return [min(clocks), round(statistics.mean(clocks), 1), max(clocks)] if clocks else []


def sm_active(quick: bool) -> Rows:
    """Every multiprocessor works, or one of them: that of the thread which spins meanwhile."""
    alone = 1 / loads().limits["multiprocessors"]

    def expect(played: Played, _: float) -> float:
        return float(played.duty + (1 - played.duty) * alone)

    return counted("gpm_sm_active", loads().fma(), "sm_active_ratio", expect, quick)


def tensor(quick: bool) -> Rows:
    """Operations made, of those that the tensor cores could make in the time at the clock that they had."""
    size = 4096
    capability = loads().limits["capability"]
    if capability not in TENSOR_FLOPS:
        raise NotHere(f"what the tensor cores of {capability} can do in a cycle is not written down here")
    per_cycle = TENSOR_FLOPS[capability] * loads().limits["multiprocessors"]

    def expect(played: Played, clock_hz: float) -> float:
        return float(played.calls * 2 * size**3 / (played.ns / SECOND * clock_hz * per_cycle))

    return counted("gpm_tensor", loads().product(size, zeros=True), "tensor_active_ratio", expect, quick)


def dram(quick: bool) -> Rows:
    """Bytes read and written, of those that width and clock of the memory allow."""
    peak = loads().limits["memory_bandwidth"]

    def expect(played: Played, _: float) -> float:
        return float(played.calls * 2 * COPY_BYTES / (played.ns / SECOND * peak))

    return counted("gpm_dram", loads().copy(COPY_BYTES), "dram_bandwidth_ratio", expect, quick)


def pcie(quick: bool) -> Rows:
    """Bytes a second beside those copied and their packets' headers, by performance counters and NVML's own."""
    import gpuscope as gs

    payload, by_whom = payload_limit(loads().uuid)
    detail: dict[str, Any] = {}
    ways = {
        "to the GPU": (TO_GPU_BYTES, "pcie_received_bytes_per_s", "pcie_received_bytes"),
        "to the host": (TO_HOST_BYTES, "pcie_sent_bytes_per_s", "pcie_sent_bytes"),
    }
    for way, (around, rate, counter) in ways.items():
        load = loads().link(LINK_BYTES, to_gpu=around == TO_GPU_BYTES)
        with gs.GPUMonitor(None, interval=0.05) as monitor:  # 32 bits wrap sooner than in 0.1 s
            for duty in (0.5, 1.0):
                loads().play(load, WARM_S, duty)
                monitor.take()
                played = loads().play(load, QUICK_PLAY_S if quick else PLAY_S, duty)
                time.sleep(0.12)
                samples = of_first_gpu(monitor.take())
                windows = inside(samples, played, rate)
                copied = windows.played.calls * LINK_BYTES / (windows.played.ns / SECOND)
                known, found = copied * (1 + around / payload), windows.mean
                begin_ns, end_ns = played.begin_ns + SECOND // 5, played.end_ns - SECOND // 10
                grown = gs.monitor.growth(samples, begin_ns, end_ns)
                growth = getattr(grown, counter)
                row = {
                    "copied GB/s": round(copied / 1e9, 3),
                    "known GB/s": round(known / 1e9, 3),
                    "found GB/s": round(found / 1e9, 3),
                    "relative": round(found / known - 1, 4),
                    "relative to copied": round(found / copied - 1, 4),
                    "by NVML's counter": round(growth.per_second / known - 1, 4) if growth else grown.why.get(counter),
                }
                detail[f"{way}, duty {duty:.0%}"] = row
                progress(f"pcie {way} {duty:.0%}: {row}")
    worst = max(abs(entry["relative"]) for entry in detail.values())
    packets = {"most bytes of data": payload, "by": by_whom, "bytes around them": [TO_GPU_BYTES, TO_HOST_BYTES]}
    return {"gpm_pcie": {"value": worst, "detail": {**detail, "packets": packets}}}


# -- counters of energy and of throttled time ------------------------------------------------------------------------


def kernel_spans(trace: Any) -> dict[str, tuple[int, int, int]]:
    """By region: when its first kernel began, when its last one ended, and how long they ran together."""
    kernels = trace.kernels
    names = [trace.string(int(name)) for name in trace.paths.name]
    path = np.append(trace.regions.path.astype(np.int64), -1)
    of_kernel = path[np.minimum(np.where(kernels.region == NO_REGION, len(path) - 1, kernels.region), len(path) - 1)]
    start, length = kernels.start_ns, kernels.duration_ns
    return {
        names[number]: (
            int(start[of_kernel == number].min()),
            int((start + length)[of_kernel == number].max()),
            int(length[of_kernel == number].sum()),
        )
        for number in np.unique(of_kernel[of_kernel >= 0]).tolist()
    }


def short_series(region: str, load: Load, repeats: int) -> None:
    """Regions of 5 ms, and pauses of many lengths between them: the host runs ahead."""
    import gpuscope as gs

    drawn = random.Random(0)
    calls = max(1, round(5 * MS / load.ns))
    for _ in range(repeats):
        with gs.record_function(region):
            for _ in range(calls):
                load.call()
        loads().pause(drawn.randrange(2 * MS, 20 * MS))
    loads().kernels.synchronize()


def energy(quick: bool) -> Rows:
    """The same work runs before and after each region of a second, so that the counter grows evenly at its edges."""
    import gpuscope as gs

    made = {"copy": loads().copy(COPY_BYTES), "fma": loads().fma()}
    with contextlib.suppress(ImportError, NotHere):
        made["product"] = loads().product(4096, zeros=False)
    short = {f"{name}, 5 ms": load for name, load in made.items() if name != "fma"}
    with (
        Watched(Nvml(loads().uuid).energy_j) as counter,
        gs.profile(activities=[gs.ProfilerActivity.CUDA], device_samples=INTERVAL_S) as prof,
    ):
        time.sleep(0.7)
        with gs.record_function("pause"):
            for _ in range(30):
                loads().pause(50 * MS)
            loads().kernels.synchronize()
        for name, load in made.items():
            loads().play(load, 0.4)
            with gs.record_function(name):
                loads().play(load, 1.2)
            loads().play(load, 0.3)
        for region, load in short.items():
            short_series(region, load, 100 if quick else 200)
        time.sleep(0.4)
    found = prof.energy()[0]
    if found.total is None:
        raise NotHere(found.why["energy"])
    spans = kernel_spans(prof.trace)
    begin, end, _ = spans["pause"]
    pause_w = counter.grown(begin, end) / (end - begin) * SECOND
    seconds: dict[str, Any] = {}
    for name in made:
        begin, end, ran = spans[name]
        grown = counter.grown(begin, end)
        row = beside(found[name], grown - pause_w * (end - begin - ran) / SECOND)  # ours is of the time that work ran
        mean_w = round(grown / (end - begin) * SECOND, 1)
        seconds[name] = row | {"with pauses J": round(grown, 2), "W": mean_w, "GPU busy": round(ran / (end - begin), 4)}
    shorts: dict[str, Any] = {}
    for region in short:
        begin, end, ran = spans[region]
        known = counter.grown(begin, end) - pause_w * (end - begin - ran) / SECOND
        steady_w = seconds[region.partition(",")[0]]["W"]
        row = {"why": found[region].why} if found[region].energy is None else beside(found[region], known)
        shorts[region] = row | {"W": round(known / ran * SECOND, 1), "W of the region of a second": steady_w}
    detail = {**seconds, **shorts, "pause W": round(pause_w, 1), "idle W": found.idle_power_w}
    return {"energy_second": {"value": max(abs(row["relative"]) for row in seconds.values()), "detail": detail}}


def beside(row: Any, known: float) -> dict[str, Any]:
    found = row.energy
    return {
        "known J": round(known, 2),
        "found J": round(found.joules, 2),
        "interval J": [round(found.low, 2), round(found.high, 2)],
        "relative": round(found.joules / known - 1, 4),
        "repeats": row.count,
    }


def throttled(quick: bool) -> Rows:
    """Products of random numbers, which draw all the power that the GPU may."""
    import gpuscope as gs

    reason = "sw_power_cap"
    load = loads().product(8192, zeros=False)
    with (
        Watched(Nvml(loads().uuid).throttled_s) as counter,
        gs.GPUMonitor(None, interval=INTERVAL_S) as monitor,
        gs.profile(activities=[gs.ProfilerActivity.CUDA], device_samples=INTERVAL_S) as prof,
    ):
        time.sleep(0.3)
        with gs.record_function("products"):
            played = loads().play(load, 3.5 if quick else 8.0)
        time.sleep(0.3)
        samples = of_first_gpu(monitor.take())
    begin, end, _ = kernel_spans(prof.trace)["products"]
    ours = prof.energy()[0]["products"].throttled[reason]
    if ours is None:
        raise NotHere(f"{reason} is not known: {prof.energy()[0].why.get(reason)}")
    theirs = counter.grown(begin, end) / (end - begin) * SECOND
    readings = sorted({s.slow_time_ns for s in samples if played.begin_ns <= s.slow_time_ns <= played.end_ns})
    first, last = readings[0], readings[-1]
    grown = gs.monitor.growth(samples, first, last).throttled_s[reason]
    of_monitor = {
        "found": grown.value / grown.seconds,
        "at least": grown.low / grown.seconds,
        "known": counter.grown(first, last) / (last - first) * SECOND,
    }
    of_region = {"found": ours, "known": theirs}
    worst = max(abs(row["found"] - row["known"]) for row in (of_region, of_monitor))
    detail = {"a region's": of_region, "GPUMonitor's": of_monitor, "reason": reason, "was limited": theirs > 0.01}
    return {"throttled": {"value": round(worst, 4), "detail": detail}}


# -- all of it -------------------------------------------------------------------------------------------------------


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only {', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    reason = measure.why_not_available(gpu=True)
    run: dict[str, Callable[[bool], Rows]] = {
        "cost": cost,
        "launches": launches,
        "cpu": cpu,
        "agreement": agreement,
        "sm_active": sm_active,
        "tensor": tensor,
        "dram": dram,
        "pcie": pcie,
        "energy": energy,
        "throttled": throttled,
    }
    rows: Rows = {}
    for part in chosen:
        began = time.monotonic()
        try:
            found = {name: {"skipped": reason} for name in PARTS[part]} if reason else run[part](options.quick)
        except (ImportError, NotHere) as missing:
            found = {name: {"skipped": str(missing)} for name in PARTS[part]}
        except Exception as error:  # one part that fails ends no other
            found = {name: {"error": f"{type(error).__name__}: {error}"} for name in PARTS[part]}
        rows |= found
        progress(f"{part}, {time.monotonic() - began:.1f} s: {json.dumps(found)}")
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
