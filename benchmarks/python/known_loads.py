# SPDX-License-Identifier: Apache-2.0
"""GPU work of known size and duty, its link, and NVML's counters read by themselves: what ours are held against."""

from __future__ import annotations

import bisect
import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MS = 1_000_000
SECOND = 1_000_000_000
BATCH_NS = 60 * MS  # of work between two waits for the device, whose gaps of some 30 us are 0.05 %
PIECE_NS = 2 * MS  # of work between two pauses: many of both in each 0.1 s that counters are read over
TRIES = 20
MOST_UNEVEN_MS = 25.0  # a quarter of a period: beyond, even moments are no better than those that were seen
PERIOD_NS = 99.5 * MS  # of NVML's counters of energy and of throttled time, as measured on an H100

USUAL_PAYLOAD = 256  # bytes of data in a packet of PCIe
FIELD_SW_POWER_CAP = 74  # NVML_FI_DEV_PERF_POLICY_POWER: ns for which the power limit held clocks back


class NotHere(Exception):  # noqa: N818 - nothing went wrong
    """What this machine cannot be asked, and why."""


@dataclass(frozen=True)
class Load:
    """Work that can be launched over and over: what one call takes on the GPU, alone and without a pause."""

    call: Callable[[], Any]
    ns: float


@dataclass(frozen=True)
class Played:
    """What a load really was: calls between two moments of the Unix clock, and ns of pauses by the GPU's own clock.

    `batches`: the same of the parts between two waits for the device, in order.
    """

    begin_ns: int
    end_ns: int
    calls: int
    pause_ns: int
    batches: tuple[Played, ...] = ()

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def duty(self) -> float:
        return 1 - self.pause_ns / self.ns

    def within(self, begin_ns: int, end_ns: int) -> Played:
        """What it was between two moments, to a batch: that at an edge counts where most of it lies inside."""
        inside = [each for each in self.batches if begin_ns <= (each.begin_ns + each.end_ns) // 2 <= end_ns]
        if not inside:
            raise ValueError("no batch of the load lies between these moments")
        return joined(inside)


def joined(batches: list[Played]) -> Played:
    """Those batches, one after the other, as one load."""
    calls, pause_ns = sum(each.calls for each in batches), sum(each.pause_ns for each in batches)
    return Played(batches[0].begin_ns, batches[-1].end_ns, calls, pause_ns, tuple(batches))


class Loads:
    """Loads for the first GPU: FMAs on every multiprocessor, copies, and products where torch is."""

    def __init__(self) -> None:
        from gpuscope import _core

        self.kernels: Any = _core.Kernels()
        self.limits = _core.device_limits(0)
        self.uuid = _core.environment()["devices"][0]["uuid"]

    def load(self, call: Callable[[], Any]) -> Load:
        """Finds out what a call takes, warm."""
        for _ in range(2):
            began = time.perf_counter_ns()
            for _ in range(TRIES):
                call()
            self.kernels.synchronize()
            took = (time.perf_counter_ns() - began) / TRIES
        return Load(call, took)

    def fma(self) -> Load:
        rounds = 1000
        once = self.load(lambda: self.kernels.fma(rounds))
        rounds = max(1, round(rounds * PIECE_NS / once.ns))
        return self.load(lambda: self.kernels.fma(rounds))

    def copy(self, size: int) -> Load:
        return self.load(lambda: self.kernels.copy(size))

    def product(self, size: int, *, zeros: bool) -> Load:
        """A product of torch's in bfloat16; of zeros it draws little power, so that clocks stay."""
        import torch

        if not torch.cuda.is_available():
            raise NotHere("torch finds no GPU")
        make = torch.zeros if zeros else torch.randn
        a = make(size, size, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(a)
        return self.load(lambda: torch.mm(a, a, out=out))

    def link(self, size: int, *, to_gpu: bool) -> Load:
        """Bytes over the link to the host: of pinned memory where torch is."""
        try:
            import torch

            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            device = torch.empty(size, dtype=torch.uint8, device="cuda")
        except (ImportError, RuntimeError, AssertionError):
            call = self.kernels.copy_in if to_gpu else self.kernels.copy_out
            return self.load(lambda: call(size))
        to, source = (device, host) if to_gpu else (host, device)
        return self.load(lambda: to.copy_(source, non_blocking=True))

    def play(self, load: Load, seconds: float, duty: float = 1.0) -> Played:
        """Keeps the GPU at the load; between its pieces one thread spins, so that the host's pace does not matter."""
        piece = max(1, round(PIECE_NS / load.ns))
        pause_ns = round(piece * load.ns * (1 - duty) / duty)
        pieces = max(1, round(BATCH_NS / (piece * load.ns + pause_ns)))
        self.kernels.spun()
        begin_ns = time.time_ns()
        edges = [begin_ns]
        while edges[-1] - begin_ns < seconds * SECOND:
            for _ in range(pieces):
                for _ in range(piece):
                    load.call()
                if pause_ns:
                    self.kernels.spin(pause_ns)
            self.kernels.synchronize()
            edges.append(time.time_ns())
        each_ns = self.kernels.spun()[1] // max(1, len(edges) - 1)  # every batch has as many pauses
        return joined([Played(*span, pieces * piece, each_ns) for span in itertools.pairwise(edges)])

    def pause(self, ns: int) -> None:
        """One thread spins for so long."""
        self.kernels.spin(ns)


def payload_limit(uuid: str) -> tuple[int, str]:
    """The most bytes of data in a packet of the GPU's link, and who says so."""
    import gpuscope as gs

    gpu = next(gpu for gpu in gs.gpu_snapshot() if gpu.uuid == uuid)
    address = gpu.pci_address[-12:].lower()  # NVML spells the domain with eight digits, the kernel with four
    try:
        limit = written_payload(Path(f"/sys/bus/pci/devices/{address}/config").read_bytes())
    except OSError:
        limit = None
    return (limit, "/sys") if limit else (USUAL_PAYLOAD, "assumed: /sys does not tell, which it does root alone")


def written_payload(config: bytes) -> int | None:
    """Max_Payload_Size of a PCI configuration space; None where it is not in what may be read of it."""
    place, express = config[0x34] & 0xFC if len(config) > 0x34 else 0, 0x10  # the list of capabilities
    for _ in range(48):  # as many fit
        if place < 0x40 or place + 10 > len(config):
            return None
        if config[place] == express:
            return 128 << (config[place + 8] >> 5)  # Device Control, bits 7 to 5
        place = config[place + 1] & 0xFC
    return None


class SmClock:
    """Cycles that multiprocessors of the first GPU really have: NVML tells the clock that was set, and not that a load
    held it back by 3 % for some ms at a time."""

    _PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry read_clocks(.param .u64 rows)
{
  .reg .u64 %row, %now, %cycles;
  .reg .u32 %sm;
  ld.param.u64 %row, [rows];
  mov.u32 %sm, %smid;
  mad.wide.u32 %row, %sm, 16, %row;
  mov.u64 %now, %globaltimer;
  mov.u64 %cycles, %clock64;
  st.global.v2.u64 [%row], {%now, %cycles};
  ret;
}
"""
    _MOST = 512  # multiprocessors: more than any GPU has

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._cuda.cuInit(0))
        self._check(self._cuda.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self._cuda.cuCtxSetCurrent(context))
        module, self._kernel, self._rows = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), self._PTX))
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(self._kernel), module, b"read_clocks"))
        self._check(self._cuda.cuMemAlloc_v2(ctypes.byref(self._rows), ctypes.c_size_t(16 * self._MOST)))

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise OSError(f"CUDA answered {code}")

    def read(self) -> Any:
        """ns and cycles of each multiprocessor, when all launched before has ended; zeros for those there are not."""
        rows = np.zeros((self._MOST, 2), dtype=np.uint64)
        size = ctypes.c_size_t(rows.nbytes)
        self._check(self._cuda.cuMemsetD8_v2(self._rows, ctypes.c_ubyte(0), size))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self._rows))
        grid = (self._MOST, 1, 1, 1, 1, 1)
        self._check(self._cuda.cuLaunchKernel(self._kernel, *grid, 0, None, parameters, None))
        self._check(self._cuda.cuMemcpyDtoH_v2(rows.ctypes.data_as(ctypes.c_void_p), self._rows, size))
        return rows

    @staticmethod
    def mean_hz(before: Any, after: Any) -> float:
        """Between two readings; the median multiprocessor."""
        both = (before[:, 0] > 0) & (after[:, 0] > 0)
        ns, cycles = (after - before)[both].T
        return float(np.median(cycles / ns)) * SECOND


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t of nvml.h."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("time_us", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    )


class Nvml:
    """Two counters of a GPU, asked of libnvidia-ml itself. Raises OSError where it does not tell."""

    def __init__(self, uuid: str) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._check(self._library.nvmlInit_v2())
        self._check(self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._device)))

    @staticmethod
    def _check(code: int) -> None:
        if code != 0:
            raise OSError(f"NVML answered {code}")

    def energy_j(self) -> float:
        value = ctypes.c_ulonglong()
        self._check(self._library.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(value)))
        return float(value.value) / 1e3

    def throttled_s(self) -> float:
        """Seconds for which the power limit held clocks back."""
        value = _FieldValue(field=FIELD_SW_POWER_CAP)
        self._check(self._library.nvmlDeviceGetFieldValues(self._device, 1, ctypes.byref(value)))
        self._check(value.code)
        return float(value.value) / 1e9


def even(times_ns: list[float]) -> Any:
    """These moments, some of which may be missing, as those of an even clock that are nearest to them."""
    times = np.array(times_ns)
    if len(times) < 3:
        return times
    steps = np.diff(times)
    period = float(np.median(steps[steps < 1.5 * np.median(steps)]))
    numbers = np.append(0, np.cumsum(np.round(steps / period)))
    slope, first = np.polyfit(numbers, times - times[0], 1)
    return times[0] + first + slope * numbers


class Watched:
    """A counter read each 5 ms on a thread of its own, so that the moments are known at which it went on.

    The thread waits for the interpreter, by some ms now and then; the counter goes on evenly, so that all moments
    together know each better than it was seen. Where it does not go on evenly they stay as they were seen.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._times: list[float] = []  # at which it took a value
        self._values: list[float] = []
        self._ends = threading.Event()
        self._why = ""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        before_ns = time.time_ns()
        while not self._ends.wait(0.005):
            begin_ns = time.time_ns()
            try:
                value = self._read()
            except OSError as error:
                self._why = str(error)
                return
            if not self._values or value != self._values[-1]:
                self._times.append((before_ns + time.time_ns()) / 2)
                self._values.append(value)
            before_ns = begin_ns

    @property
    def uneven_ms(self) -> float:
        """How far the moments at which it was seen to go on are from even ones, the root of the mean square."""
        return float(np.sqrt(np.mean((np.array(self._times) - even(self._times)) ** 2))) / MS

    def at(self, moment_ns: float) -> float:
        """What it had: what a tick adds was added evenly since the tick before, or where that is long ago, 0.1 s."""
        if self._why or not self._values:
            raise OSError(self._why or "the counter was not read")
        times = even(self._times).tolist() if self.uneven_ms < MOST_UNEVEN_MS else self._times
        right = bisect.bisect_right(times, moment_ns)
        if right == 0:
            raise OSError("the counter was not read before")
        if right == len(times):
            return self._values[-1]
        low, high, end_ns = self._values[right - 1], self._values[right], times[right]
        begin_ns = max(times[right - 1], end_ns - 1.2 * PERIOD_NS)
        return low + (high - low) * max(0.0, moment_ns - begin_ns) / (end_ns - begin_ns)

    def grown(self, begin_ns: float, end_ns: float) -> float:
        return self.at(end_ns) - self.at(begin_ns)
