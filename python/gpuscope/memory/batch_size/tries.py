# SPDX-License-Identifier: Apache-2.0
"""Trying one batch size: it fits or it does not, what it took, and afterwards nothing of it is left."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from gpuscope.memory.batch_size.measuring import GpuMeter, HostMeter, failures_of_torch, finish, release
from gpuscope.memory.batch_size.search import line
from gpuscope.memory.out_of_memory_errors import first_line, in_the_wake, is_out_of_memory
from gpuscope.memory.sizes import size_text

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
        peak = "" if self.peak is None else f", {size_text(self.peak)} at its peak"
        return f"batch size {self.size}: {what}{peak if self.fits else ''}, {self.seconds:.2f} s"


class Tries:
    """Runs a function at one batch size after the other, within the memory of GPU and host.

    Attributes:
        done: those that ran to an answer, in their order.

    Args:
        step: called with the batch size.
        steps: how often, as what an allocator holds after the first differs from what it held before.
        device: ordinal of the GPU; None is the one in use.
        on_host: the work is known to be the host's.
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
        failures = failures_of_torch()
        error = ""
        started = perf_counter()
        try:
            for _ in range(self._steps):
                finish(self._step(size))
        except Exception as raised:
            ran_out = in_the_wake(raised) and failures_of_torch() > failures
            if not ran_out and not is_out_of_memory(raised):
                self._say_where(raised, size)
                release()
                raise
            error = first_line(raised)
            _forget(raised)
        seconds = perf_counter() - started
        host, gpu = self._host.peak(), self._gpu.peak() if self._gpu is not None else None
        if host is not None and not error:
            self._host_peaks.append((size, host))
        release()
        return Try(size, not error, host if gpu is None else gpu, seconds, error)

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
        return f"{NOT_TRIED}: the host would need {size_text(expected)} and has {size_text(HOST_SHARE * room)} for it"

    def _say_where(self, raised: BaseException, size: int) -> None:
        ran = max((each.size for each in self.done if each.fits), default=0)
        if hasattr(raised, "add_note"):  # of Python 3.11
            raised.add_note(f"raised at batch size {size}; " + (f"{ran} ran" if ran else "none ran before"))


def _forget(error: BaseException | None) -> None:
    """Lets go of what the frames that an error came through hold."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
