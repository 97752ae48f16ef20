# SPDX-License-Identifier: Apache-2.0
"""How much memory a try took, and how much there is now: of the GPU by what its libraries say, and of the host."""

from __future__ import annotations

import gc
import sys
from typing import Any

from gpuscope.memory import resident
from gpuscope.memory.host_room import host_room


def torch_on_gpu() -> Any:
    """The module torch when it works on a GPU already; else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized() else None


def cupy_in_use() -> Any:
    """The module cupy when it has been imported where it can work; else None."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not hasattr(cupy, "get_default_memory_pool"):
        return None
    try:
        return cupy if cupy.cuda.runtime.getDeviceCount() else None
    except Exception:  # CuPy on a machine that it cannot use; its errors have no common root
        return None


def release() -> None:
    """Gives what is not in use back to the driver."""
    gc.collect()
    torch, cupy = torch_on_gpu(), cupy_in_use()
    if torch is not None:
        torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def finish(result: object) -> None:
    """Waits for the work of a step, whose errors come out here at the latest."""
    torch, cupy, jax = torch_on_gpu(), cupy_in_use(), sys.modules.get("jax")
    if torch is not None:
        torch.cuda.synchronize()
    if cupy is not None:
        cupy.cuda.Device().synchronize()
    if jax is not None and hasattr(jax, "block_until_ready"):
        jax.block_until_ready(result)


def failures_of_torch() -> int:
    """How often torch could not get memory of a GPU, also where it went on without."""
    torch = torch_on_gpu()
    if torch is None:
        return 0
    try:
        devices = range(torch.cuda.device_count())
        return sum(int(torch.cuda.memory_stats(device).get("num_ooms", 0)) for device in devices)
    except RuntimeError:  # an allocator that keeps no such figures
        return 0


class GpuMeter:
    """The memory of torch, CuPy and JAX on one GPU. Figures are None where no library gives them.

    Args:
        device: ordinal of the GPU; None is the one that each library works on.
    """

    def __init__(self, device: int | None = None) -> None:
        self._device = device
        self._jax_before: int | None = None

    def start(self) -> None:
        """A try begins."""
        torch = torch_on_gpu()
        self._jax_before = _of_jax(self._device, "peak_bytes_in_use")
        if torch is not None:
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int | None:
        """The most bytes in use at a time since `start`. Of CuPy what its pool holds; of JAX only what is a record."""
        torch, cupy = torch_on_gpu(), cupy_in_use()
        peak = int(torch.cuda.max_memory_allocated(self._device)) if torch is not None else 0
        peak += int(cupy.get_default_memory_pool().total_bytes()) if cupy is not None else 0
        if peak:
            return peak
        record = _of_jax(self._device, "peak_bytes_in_use")
        return None if record == self._jax_before else record

    def room(self) -> int | None:
        """Bytes that `peak` can come to: what is free now, whoever else uses the GPU, and what is held already."""
        torch, cupy = torch_on_gpu(), cupy_in_use()
        if torch is not None:
            free, total = torch.cuda.mem_get_info(self._device)
        elif cupy is not None:
            free, total = cupy.cuda.runtime.memGetInfo()
        else:
            return _of_jax(self._device, "bytes_limit")
        held = int(torch.cuda.memory_reserved(self._device)) if torch is not None else 0
        held += int(cupy.get_default_memory_pool().total_bytes()) if cupy is not None else 0
        room = int(free) + held
        share = getattr(torch.cuda, "get_per_process_memory_fraction", None) if torch is not None else None
        return room if share is None else min(room, int(share(self._device) * total))


class HostMeter:
    """The memory of this process on the host."""

    def start(self) -> None:
        """A try begins."""
        resident.reset_peak()

    def now(self) -> int | None:
        """Bytes resident."""
        return resident.resident()

    def peak(self) -> int | None:
        """The most bytes resident since `start`."""
        return resident.peak_resident()

    def room(self) -> int | None:
        """Bytes that can be resident before the host swaps."""
        free, _ = host_room()
        held = self.now()
        return None if free is None or held is None else free + held


def _of_jax(device: int | None, figure: str) -> int | None:
    jax = sys.modules.get("jax")
    bridge = sys.modules.get("jax._src.xla_bridge")
    # Asking for devices would make JAX take one; its memory is of interest only once it has.
    if jax is None or bridge is None or not getattr(bridge, "_backends", None):
        return None
    try:
        found = (jax.local_devices()[device or 0].memory_stats() or {}).get(figure)
    except Exception:  # no such device, or one that tells nothing; JAX's errors have no common root
        return None
    return None if found is None else int(found)
