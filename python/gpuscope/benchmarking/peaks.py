# SPDX-License-Identifier: Apache-2.0
"""What this GPU reaches, measured: bytes a second of its memory, floating-point operations a second.

Figures of merit are said against these, as a data sheet's are reached by nobody (Hoefler and Belli, "Scientific
benchmarking of parallel computing systems", SC 2015, rule 11). Each is measured once a process and device.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpuscope import _core, errors, streams

Kind = Literal["bandwidth", "float32", "float16", "bfloat16", "tf32"]

REPEATS = 15
SETTLE = 3  # repetitions before those that count

# Sizes of what is copied, in caches' worth: the two largest that fit; of less the caches would keep a part.
CACHES = (16, 8, 4)
SHARE_OF_MEMORY = 4  # a quarter of what is free at most

FMA_ROUNDS = 1 << 12
FMA_SECONDS = 1e-3  # a launch of this length hides its own beginning and end
MOST_FMA_ROUNDS = 1 << 24

MATRIX = 8192
MATRIX_FLOPS = 2 * MATRIX**3

# Dense operations of one multiprocessor a clock in float16 with sums in float32, by compute capability, of NVIDIA's
# papers on each architecture; bfloat16 has the same, TensorFloat-32 half of it, from 8.0 on.
_TENSOR_FLOPS_A_CLOCK = {"7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 512, "8.9": 1024, "9.0": 4096, "10.0": 8192}


@dataclass(frozen=True)
class Peak:
    """One upper bound.

    Attributes:
        kind: "bandwidth" or the type of number.
        unit: "B/s" or "FLOP/s".
        measured: what a kernel made for it reached; None when it could not be measured.
        theoretical: width times clock; None when unknown.
        reason: why `measured` is None; empty when it is not.
    """

    kind: str
    unit: str
    measured: float | None
    theoretical: float | None
    reason: str = ""


@dataclass(frozen=True)
class Peaks:
    """The bounds of one device. The three of the tensor cores need torch or CuPy in the process."""

    device: int
    bandwidth: Peak
    float32: Peak
    float16: Peak
    bfloat16: Peak
    tf32: Peak


_lock = threading.Lock()
_measured: dict[tuple[int, str], Peak] = {}


def measured(device: int = 0) -> Peaks:
    """All of a device's bounds; about a quarter of a second the first time.

    Raises:
        NotAvailable: there is no such GPU.
    """
    kinds: tuple[Kind, ...] = ("bandwidth", "float32", "float16", "bfloat16", "tf32")
    return Peaks(device, *(peak(kind, device) for kind in kinds))


def peak(kind: Kind, device: int = 0) -> Peak:
    """One of a device's bounds, measured at the first asking.

    Raises:
        NotAvailable: there is no such GPU.
    """
    with _lock:
        found = _measured.get((device, kind))
        if found is None:
            found = _measure(kind, device)
            # A framework may be imported later: only what was measured is kept.
            if found.measured is not None:
                _measured[device, kind] = found
        return found


def _measure(kind: Kind, device: int) -> Peak:
    limits = _core.device_limits(device)
    unit = "B/s" if kind == "bandwidth" else "FLOP/s"
    theoretical = theoretical_limit(kind, limits)
    try:
        stream = streams.current(device).handle
        sampler = _core.Sampler(device, stream)
        if kind == "bandwidth":
            value = _bandwidth(sampler, stream, device, int(limits["l2_bytes"]))
        elif kind == "float32":
            value = _float32(sampler, stream, device)
        else:
            value = _tensor_cores(kind, sampler, device)
    except (errors.GpuscopeError, RuntimeError, MemoryError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Peak(kind, unit, None, theoretical, lines[0])
    return Peak(kind, unit, value, theoretical)


def theoretical_limit(kind: str, limits: dict[str, Any]) -> float | None:
    """Width times clock of `_core.device_limits()`, at the highest clock; None where the width is not known."""
    if kind in ("bandwidth", "float32"):
        limit = limits.get("memory_bandwidth" if kind == "bandwidth" else "fp32_flops")
        return float(limit) if limit else None
    capability = str(limits.get("capability"))
    width, clock = _TENSOR_FLOPS_A_CLOCK.get(capability), limits.get("sm_hz_max")
    if width is None or not clock or (kind != "float16" and int(capability.partition(".")[0]) < 8):
        return None
    return float(width * limits["multiprocessors"] * clock / (2 if kind == "tf32" else 1))


def seconds(sampler: _core.Sampler, function: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median time of a call on the sampler's stream, with nothing between it and the clock."""
    function()  # what a first call allocates or loads may wait for the GPU, which a closed gate would hold
    sampler.synchronize()
    order = np.zeros(SETTLE + repeats, dtype=np.uint32)
    chunk = sampler.sample([function], order, gate=True, flush=False)
    return float(np.median(chunk["stream_s"][SETTLE:]))


def _bandwidth(sampler: _core.Sampler, stream: int, device: int, l2_bytes: int) -> float:
    """The best of copies and fills of two sizes. A copy reads and writes each byte, a fill writes it."""
    most = _free_bytes(device) // SHARE_OF_MEMORY
    unit = max(l2_bytes, 16 << 20) // 16 * 16
    sizes = [caches * unit for caches in CACHES if 2 * caches * unit <= most]  # a copy's two halves
    if not sizes:
        needed, free = 2 * CACHES[-1] * unit * SHARE_OF_MEMORY >> 20, most * SHARE_OF_MEMORY >> 20
        raise errors.NotAvailable(f"the bandwidth: it takes {needed} MiB of free memory, and there are {free}")
    kernels = _core.Kernels(device)
    found = []
    for size in sizes[:2]:
        found.append(2 * size / seconds(sampler, functools.partial(kernels.copy, size, stream)))
        found.append(size / seconds(sampler, functools.partial(kernels.fill, size, stream)))
    return max(found)


def _float32(sampler: _core.Sampler, stream: int, device: int) -> float:
    kernels = _core.Kernels(device)
    rounds = FMA_ROUNDS
    taken = seconds(sampler, functools.partial(kernels.fma, rounds, stream), 3)
    while taken < FMA_SECONDS and rounds < MOST_FMA_ROUNDS:
        rounds = min(MOST_FMA_ROUNDS, max(2 * rounds, int(rounds * FMA_SECONDS / max(taken, 1e-6))))
        taken = seconds(sampler, functools.partial(kernels.fma, rounds, stream), 3)
    return float(kernels.fma_flops(rounds)) / seconds(sampler, functools.partial(kernels.fma, rounds, stream))


def _tensor_cores(kind: Kind, sampler: _core.Sampler, device: int) -> float:
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if _free_bytes(device) // SHARE_OF_MEMORY < 3 * 4 * MATRIX**2:
        raise errors.NotAvailable(f"the {kind} rate: its matrices take over a quarter of the free memory")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        with _torch_product(torch, kind, device) as product:
            return MATRIX_FLOPS / seconds(sampler, product)
    if cupy is not None and kind == "float16":
        return MATRIX_FLOPS / seconds(sampler, _cupy_product(cupy, device))
    raise errors.NotAvailable(f"the {kind} rate: it takes a matrix product of torch, which has not used the GPU here")


@contextlib.contextmanager
def _torch_product(torch: Any, kind: Kind, device: int) -> Iterator[Callable[[], object]]:
    """A matrix product of random numbers: of zeros it would need less power, and so run at a higher clock."""
    before = torch.get_float32_matmul_precision()
    with torch.cuda.device(device), torch.no_grad():
        # A generator of its own: the program's goes on where it was.
        random = torch.Generator(torch.device("cuda", device)).manual_seed(0)
        dtype = torch.float32 if kind == "tf32" else getattr(torch, kind)
        a, b = (torch.randn(MATRIX, MATRIX, device=random.device, generator=random).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        if kind == "tf32":
            torch.set_float32_matmul_precision("high")
        try:
            yield lambda: torch.mm(a, b, out=out)
            torch.cuda.synchronize(device)
        finally:
            if kind == "tf32":
                torch.set_float32_matmul_precision(before)


def _cupy_product(cupy: Any, device: int) -> Callable[[], object]:
    with cupy.cuda.Device(device):
        random = cupy.random.RandomState(0)
        a, b = (random.standard_normal((MATRIX, MATRIX), dtype="float32").astype("float16") for _ in range(2))
        out = cupy.empty_like(a)
    return lambda: cupy.matmul(a, b, out=out)


def _free_bytes(device: int) -> int:
    """Free memory where a framework can tell, else all of the device's."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return int(torch.cuda.mem_get_info(device)[0])
    if "cupy" in sys.modules:
        with sys.modules["cupy"].cuda.Device(device) as current:
            return int(current.mem_info[0])
    return int(_core.environment()["devices"][device]["memory_bytes"])
