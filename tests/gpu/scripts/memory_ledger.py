# SPDX-License-Identifier: Apache-2.0
"""Holds GPU memory with the frameworks named on the command line and prints what ledger, NVML and frameworks say of it.

Among the names may be "watch" (allocations are watched from the start) and "bare" (memory straight from the CUDA
runtime, through ctypes).
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

MIB = 1 << 20
BARE_MIB = 96


def watch() -> None:
    from gpuscope import _core

    if not hasattr(_core, "watch_allocations"):
        sys.exit(print(json.dumps({"skip": "this build cannot watch allocations"})))
    why = _core.watch_allocations()
    if why:
        sys.exit(print(json.dumps({"skip": f"allocations cannot be watched: {why}"})))


def hold_torch() -> object:
    import torch

    x = torch.randn(4096, 4096, device="cuda")
    y = x @ x
    spare = torch.empty(64 * MIB, device="cuda", dtype=torch.uint8)
    del spare
    torch.cuda.synchronize()
    return x, y


def hold_cupy() -> object:
    import cupy

    x = cupy.ones((4096, 4096), dtype=cupy.float32)
    y = x @ x
    spare = cupy.empty(64 * MIB, dtype=cupy.uint8)
    del spare
    cupy.cuda.Device().synchronize()
    return x, y


def hold_cupy_async() -> object:
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    return hold_cupy()


def hold_jax() -> object:
    import jax

    if not any(device.platform == "gpu" for device in jax.devices()):
        sys.exit(print(json.dumps({"skip": "this JAX has no GPU"})))
    x = jax.numpy.ones((4096, 4096))
    y = (x @ x).block_until_ready()
    return x, y


def hold_bare() -> object:
    """Memory that the program takes itself, with the runtime library that is loaded already."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    (path, *_) = {line.split()[-1] for line in maps.splitlines() if "libcudart" in line}
    runtime, pointer = ctypes.CDLL(path), ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(BARE_MIB * MIB)) == 0
    return pointer


HOLDERS = {
    "torch": hold_torch,
    "cupy": hold_cupy,
    "cupy-async": hold_cupy_async,
    "jax": hold_jax,
    "bare": hold_bare,
}


def torchs_figures() -> dict[str, int]:
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.get_allocator_backend() != "native":
        return {}
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def main() -> None:
    names = sys.argv[1:]
    if "watch" in names:
        watch()
    try:
        held = [HOLDERS[name]() for name in names if name != "watch"]
    except ImportError as error:
        print(json.dumps({"skip": str(error)}))
        return
    from gpuscope.memory.usage.ledger import memory_ledger
    from gpuscope.memory.usage.snapshot import memory_snapshot

    snapshot, ledger = memory_snapshot(0), memory_ledger(0)
    print(ledger, file=sys.stderr)
    print(
        json.dumps(
            {"ledger": ledger.to_dict(), "snapshot": snapshot.to_dict(), "torch": torchs_figures(), "held": len(held)}
        )
    )


if __name__ == "__main__":
    main()
