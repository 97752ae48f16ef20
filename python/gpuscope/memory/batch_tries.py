# SPDX-License-Identifier: Apache-2.0
"""Trying one batch size: it fits or it does not, what it took, and afterwards nothing of it is left."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from gpuscope.frameworks import cupy as cupy_pools
from gpuscope.frameworks import jax as jax_pools
from gpuscope.frameworks import torch_memory
from gpuscope.memory import host
from gpuscope.memory.out_of_memory_errors import is_out_of_memory, may_be_out_of_memory
from gpuscope.units import first_line, format_bytes

NOT_TRIED = "not tried"
HOST_SHARE = 0.9  # of what the host has: it swaps and kills before the last byte is taken


@dataclass(frozen=True)
class Try:
    """One batch size that was tried.

    Attributes:
        size: samples.
        fits: whether all its steps ran.
        peak: the most bytes in use at a time: of the GPU where torch, CuPy or JAX use one, else of the host; None when
            not known.
        seconds: of its steps together.
        error: what did not fit, in words; "" where it fits.
    """

    size: int
    fits: bool
    peak: int | None
    seconds: float
    error: str

    def __str__(self) -> str:
        failed = self.error if self.error.startswith(NOT_TRIED) else f"does not fit: {self.error}"
        what = "fits" if self.fits else failed
        peak = "" if self.peak is None else f", {format_bytes(self.peak)} at its peak"
        return f"batch size {self.size}: {what}{peak if self.fits else ''}, {self.seconds:.2f} s"


class Tries:
    """Runs a function at one batch size after the other, `steps` times each, within the memory of GPU and host.

    Attributes:
        done: those that ran to an answer, in their order.
    """

    def __init__(self, step: Callable[[int], object], steps: int, device: int | None, on_host: bool) -> None:
        self.done: list[Try] = []
        self._step = step
        self._steps = steps
        self._gpu = None if on_host else GpuMeter(device)
        self._host = HostMeter()
        self._host_peaks: list[tuple[int, int]] = []
        self._host_before = 0
        release()

    def run(self, size: int) -> Try:
        """Tries one size, and adds it to `done`. What is raised for other reasons than memory goes on."""
        refused = self._more_than_the_host_has(size)
        tried = Try(size, False, None, 0.0, refused) if refused else self._run(size)
        self.done.append(tried)
        return tried

    def predicted(self) -> int | None:
        """The largest size that the peaks so far and the memory there is now speak for."""
        meter = self._gpu if self._gpu is not None and self._gpu.peak() else self._host
        room, found = meter.room(), self.line()
        if room is None or found is None or found[1] <= 0:
            return None
        if meter is self._gpu:
            return max(0, int((room - found[0]) // found[1]))
        # The host is approached by doubling only: there, one size too far is one too many.
        most = max(0, int((HOST_SHARE * room - found[0]) // found[1]))
        return most if most <= 2 * max(each.size for each in self.done if each.fits) else None

    def line(self) -> tuple[float, float] | None:
        """Bytes that no sample adds to, and bytes of each sample, through the peaks of what fits."""
        return line((each.size, each.peak) for each in self.done if each.fits and each.peak is not None)

    def room(self) -> int | None:
        """Bytes that a peak can come to now."""
        gpu = self._gpu.room() if self._gpu is not None else None
        return self._host.room() if gpu is None else gpu

    def _run(self, size: int) -> Try:
        for meter in (self._gpu, self._host):
            if meter is not None:
                meter.start()
        self._host_before = self._host.now() or 0
        failures = torch_memory.count_failures()
        error = ""
        started = perf_counter()
        try:
            for _ in range(self._steps):
                finish(self._step(size))
        except Exception as raised:
            ran_out = may_be_out_of_memory(raised) and torch_memory.count_failures() > failures
            if not ran_out and not is_out_of_memory(raised):
                self._add_note(raised, size)
                release()
                raise
            error = first_line(raised)
            _clear_frames(raised)
        seconds = perf_counter() - started
        on_host, on_gpu = self._host.peak(), self._gpu.peak() if self._gpu is not None else None
        if on_host is not None and not error:
            self._host_peaks.append((size, on_host))
        release()
        return Try(size, not error, on_host if on_gpu is None else on_gpu, seconds, error)

    def _more_than_the_host_has(self, size: int) -> str:
        """Why a size is not tried: the host would swap, or kill the process. Empty when it may be."""
        room = self._host.room()
        if room is None or not self._host_peaks:
            return ""
        known, peak = max(self._host_peaks)
        found = line(self._host_peaks)
        growth = max(0, peak - self._host_before) / known if found is None else max(0.0, found[1])
        expected = peak + growth * (size - known)
        if size <= known or expected <= HOST_SHARE * room:
            return ""
        return (
            f"{NOT_TRIED}: the host would need {format_bytes(expected)} and has "
            f"{format_bytes(HOST_SHARE * room)} for it"
        )

    def _add_note(self, raised: BaseException, size: int) -> None:
        ran = max((each.size for each in self.done if each.fits), default=0)
        if hasattr(raised, "add_note"):  # of Python 3.11
            raised.add_note(f"raised at batch size {size}; " + (f"{ran} ran" if ran else "none ran before"))


def _clear_frames(error: BaseException | None) -> None:
    """Releases what the frames that an error came through hold."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def release() -> None:
    """Gives what is not in use back to the driver."""
    gc.collect()
    torch, cupy = torch_memory.imported(), cupy_pools.in_use()
    if torch is not None:
        torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def finish(result: object) -> None:
    """Waits for the work of a step, whose errors come out here at the latest."""
    torch, cupy, jax = torch_memory.imported(), cupy_pools.in_use(), sys.modules.get("jax")
    if torch is not None:
        torch.cuda.synchronize()
    if cupy is not None:
        cupy.cuda.Device().synchronize()
    if jax is not None and hasattr(jax, "block_until_ready"):
        jax.block_until_ready(result)


class GpuMeter:
    """The memory of torch, CuPy and JAX on a GPU, None for the current one; None for figures that no library has."""

    def __init__(self, device: int | None = None) -> None:
        self._device = device
        self._jax_before: int | None = None

    def start(self) -> None:
        """A try begins."""
        torch = torch_memory.imported()
        self._jax_before = jax_pools.memory_stat(self._device, "peak_bytes_in_use")
        if torch is not None:
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int | None:
        """The most bytes in use at a time since `start`. Of CuPy what its pool holds; of JAX only what is a record."""
        torch, cupy = torch_memory.imported(), cupy_pools.in_use()
        peak = int(torch.cuda.max_memory_allocated(self._device)) if torch is not None else 0
        peak += int(cupy.get_default_memory_pool().total_bytes()) if cupy is not None else 0
        if peak:
            return peak
        record = jax_pools.memory_stat(self._device, "peak_bytes_in_use")
        return None if record == self._jax_before else record

    def room(self) -> int | None:
        """Bytes that `peak` can come to: what is free now, with other users of the GPU, and what is held already."""
        torch, cupy = torch_memory.imported(), cupy_pools.in_use()
        if torch is not None:
            free, total = torch.cuda.mem_get_info(self._device)
        elif cupy is not None:
            free, total = cupy.cuda.runtime.memGetInfo()
        else:
            return jax_pools.memory_stat(self._device, "bytes_limit")
        held = int(torch.cuda.memory_reserved(self._device)) if torch is not None else 0
        held += int(cupy.get_default_memory_pool().total_bytes()) if cupy is not None else 0
        room = int(free) + held
        share = getattr(torch.cuda, "get_per_process_memory_fraction", None) if torch is not None else None
        return room if share is None else min(room, int(share(self._device) * total))


class HostMeter:
    """The memory of this process on the host."""

    def start(self) -> None:
        """A try begins."""
        host.reset_peak_resident()

    def now(self) -> int | None:
        """Bytes resident."""
        return host.resident()

    def peak(self) -> int | None:
        """The most bytes resident since `start`."""
        return host.peak_resident()

    def room(self) -> int | None:
        """Bytes that can be resident before the host swaps."""
        free, _ = host.available_memory()
        held = self.now()
        return None if free is None or held is None else free + held


def line(points: Iterable[tuple[int, int]]) -> tuple[float, float] | None:
    """Bytes at size 0, and bytes a sample, by least squares through (size, bytes); None of fewer than two sizes."""
    sizes, peaks = np.array(list(points), dtype=np.float64).reshape(-1, 2).T
    if len(np.unique(sizes)) < 2:
        return None
    centred = sizes - sizes.mean()
    slope = float((centred * (peaks - peaks.mean())).sum() / (centred**2).sum())
    return float(peaks.mean() - slope * sizes.mean()), slope
