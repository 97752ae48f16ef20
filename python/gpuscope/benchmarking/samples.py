# SPDX-License-Identifier: Apache-2.0
"""Samples: times of calls in call order, each with the state of the GPU at that time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import _core
from gpuscope.arguments import Quantity
from gpuscope.benchmarking.kernel_times import Kernel

# NVML's reasons for lower clocks (nvml.h): thermal or electrical emergencies, and the power limit's own regulation.
_THROTTLED = 0x8 | 0x20 | 0x40 | 0x80
_POWER_CAPPED = 0x4
# A clock this far from the reference is another state of the chip.
_CLOCK_SHIFT = 0.02


@dataclass(frozen=True)
class Samples:
    """One entry per call, in call order; or per row of repeated short CPU calls, with its mean time.

    `capped`: the power limit lowered the clock, which is normal for work that uses the whole chip. `signature`: equal
    for calls that ran the same kernels; zeros if not known. `calls`: number of calls behind each time; empty if one.
    """

    which: NDArray[np.uint32]  # the function called, by its index
    seconds: dict[Quantity, NDArray[np.float64]]  # nan where a call has no such time
    clock_hz: NDArray[np.float64]  # the SM clock of the call's chunk; nan if not known
    throttled: NDArray[np.bool_]  # the chunk ran throttled, or with a clock 2 % off the reference
    valid: NDArray[np.bool_]  # by record counts, never by value
    kernels: tuple[tuple[Kernel, ...], ...] = ()  # per function, of its valid calls; empty without CUPTI
    capped: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    signature: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    calls: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))

    @property
    def calls_per_sample(self) -> int:
        """Most calls behind one time; rows that took too long have fewer."""
        return int(self.calls.max(initial=1))

    def calls_of(self, quantity: Quantity) -> int:
        """Number of calls behind the valid times."""
        usable = np.isfinite(self.times(quantity))
        return int(self.calls[usable].sum() if len(self.calls) else usable.sum())

    def times(self, quantity: Quantity) -> NDArray[np.float64]:
        """Seconds of each call; nan where it is not valid or has no such time."""
        return np.where(self.valid, self.seconds[quantity], np.nan)

    def first(self, count: int) -> Samples:
        """The first rows, with the `kernels` of all."""
        if count == len(self.which):
            return self
        arrays: dict[str, Any] = {
            column.name: getattr(self, column.name)[:count]
            for column in fields(Samples)
            if column.name not in ("seconds", "kernels")
        }
        seconds = {quantity: times[:count] for quantity, times in self.seconds.items()}
        return Samples(seconds=seconds, kernels=self.kernels, **arrays)


def joined(parts: Sequence[Samples]) -> Samples:
    """Concatenates samples of one kind of pass; `kernels` are averaged by valid calls."""
    if len(parts) == 1:
        return parts[0]
    arrays: dict[str, Any] = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])
        for column in fields(Samples)
        if column.name not in ("seconds", "kernels")
    }
    shared = [quantity for quantity in parts[0].seconds if all(quantity in part.seconds for part in parts)]
    seconds = {quantity: np.concatenate([part.seconds[quantity] for part in parts]) for quantity in shared}
    return Samples(seconds=seconds, kernels=_joined_kernels(parts), **arrays)


def _joined_kernels(parts: Sequence[Samples]) -> tuple[tuple[Kernel, ...], ...]:
    kernels = []
    for function in range(max((len(part.kernels) for part in parts), default=0)):
        calls = [int(np.count_nonzero(part.valid & (part.which == function))) for part in parts]
        rows = [part.kernels[function] if function < len(part.kernels) else () for part in parts]
        kernels.append(mean_kernels(list(zip(rows, calls, strict=True))))
    return tuple(kernels)


def mean_kernels(parts: Sequence[tuple[Sequence[Kernel], int]]) -> tuple[Kernel, ...]:
    """The kernels of a call, averaged over parts weighted by their calls; the longest first."""
    sums: dict[str, list[float]] = {}
    for kernels, calls in parts:
        for kernel in kernels:
            total = sums.setdefault(kernel.name, [0.0, 0.0])
            total[0] += kernel.count * calls
            total[1] += kernel.seconds * calls
    every = max(1, sum(calls for _, calls in parts))
    rows = [Kernel(name, count / every, seconds / every) for name, (count, seconds) in sums.items()]
    return tuple(sorted(rows, key=lambda kernel: -kernel.seconds))


class Chunks:
    """Collects the sampler's chunks and the state of the clocks in each; `device` is None without a GPU.

    Attributes:
        calls: number of calls in the chunks.
    """

    def __init__(self, device: int | None, reference_hz: float) -> None:
        self.calls = 0
        self._device, self._reference = device, reference_hz
        self._columns: dict[str, list[NDArray[Any]]] = {}

    def add(self, chunk: dict[str, Any], calls: int) -> None:
        """Adds one chunk; its SM clock is counted on the GPU, or else reported by NVML."""
        self.calls += calls
        state = _core.clock_state(self._device) if self._device is not None else {}
        clock, reasons = float(chunk.get("clock_hz", np.nan)), int(state.get("reasons") or 0)
        if not np.isfinite(clock) or clock <= 0:
            clock = float(state.get("sm_hz") or np.nan)
        row = {name: column for name, column in chunk.items() if isinstance(column, np.ndarray)}
        row["clock_hz"] = np.full(calls, clock)
        row["throttled"] = np.full(calls, bool(reasons & _THROTTLED))
        row["capped"] = np.full(calls, bool(reasons & _POWER_CAPPED))
        row["held"] = np.full(calls, bool(chunk.get("held", True)))
        row.setdefault("calls", np.ones(calls, np.uint32))
        for name, column in row.items():
            self._columns.setdefault(name, []).append(column)

    def column(self, name: str) -> NDArray[Any]:
        """A column of all chunks."""
        parts = self._columns.get(name)
        return np.concatenate(parts) if parts else np.zeros(0)

    def samples(
        self, which: NDArray[np.uint32], seconds: dict[Quantity, NDArray[np.float64]], **others: Any
    ) -> Samples:
        """The times as samples, with the state of the clocks."""
        clock = self.column("clock_hz")
        known = clock[np.isfinite(clock)]
        reference = self._reference if np.isfinite(self._reference) else float(np.median(known)) if len(known) else 1.0
        shifted = np.abs(np.where(np.isfinite(clock), clock, reference) / reference - 1) > _CLOCK_SHIFT
        facts: dict[str, Any] = {
            "valid": np.ones(len(which), bool),
            "signature": np.zeros(len(which), np.uint64),
            **others,
        }
        throttled = self.column("throttled").astype(bool) | shifted
        columns: dict[str, Any] = {"capped": self.column("capped").astype(bool), "calls": self.column("calls")}
        return Samples(which, seconds, clock, throttled, **columns, **facts)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python's garbage collector from running inside a sample."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
