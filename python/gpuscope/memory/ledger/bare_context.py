# SPDX-License-Identifier: Apache-2.0
"""What a CUDA context costs before it is used, measured in a process that does nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

_SECONDS = 20
# Tools that would come along into the child, and what they take onto the GPU.
_TOOLS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")

# Prints what NVML counts for the child itself once it has a context. Needs only the standard library.
_PROGRAM = """
import ctypes, os, sys
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
def check(code):
    if code:
        sys.exit(f"a call failed with {code}")
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("part", ctypes.c_uint)]
device, context, uuid, handle = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1])))
check(cuda.cuDeviceGetUuid_v2(uuid, device))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
digits = bytes(uuid).hex()
parts = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
check(nvml.nvmlInit_v2())
check(nvml.nvmlDeviceGetHandleByUUID(("GPU-" + "-".join(parts)).encode(), ctypes.byref(handle)))
count, listed = ctypes.c_uint(1024), (Process * 1024)()
check(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), listed))
own = [p.bytes for p in listed[:count.value] if p.pid == os.getpid() and p.bytes != 2**64 - 1]
print(sum(own))
"""

_lock = threading.Lock()
_measured: dict[int, int] = {}


def bare_context_bytes(device: int) -> int | None:
    """Bytes of a fresh primary context on a device; None where that cannot be measured.

    The first call for a device starts a child process and takes about 0.3 s; what it found is kept.
    """
    with _lock:
        if device not in _measured:
            found = _measure(device)
            if found is None:
                return None
            _measured[device] = found
        return _measured[device]


def _measure(device: int) -> int | None:
    if not sys.executable:
        return None
    variables = {name: value for name, value in os.environ.items() if name not in _TOOLS}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(device)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env=variables,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout.strip()
    return int(text) or None if done.returncode == 0 and text.isdigit() else None
