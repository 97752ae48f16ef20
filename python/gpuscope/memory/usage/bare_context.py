# SPDX-License-Identifier: Apache-2.0
"""GPU memory that the CUDA driver uses for itself, measured in an otherwise idle child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from gpuscope.threads import shared_lock

_SECONDS = 20
# These load tools into the child, whose GPU memory would be counted.
_TOOLS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")
# For each service: the declaration of the function, and a call of it in a kernel.
_CALLS = {
    "assert": (
        ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);",
        "{.param .b64 a, b, d, e; .param .b32 c; st.param.b64 [a], %z; st.param.b64 [b], %z; st.param.b32 [c], %n;"
        " st.param.b64 [d], %z; st.param.b64 [e], %z; call.uni __assertfail, (a, b, c, d, e);}",
    ),
    "printf": (
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);",
        "{.param .b64 a, b; .param .b32 r; st.param.b64 [a], %z; st.param.b64 [b], %z; call.uni (r), vprintf, (a, b);}",
    ),
    "malloc": (
        ".extern .func (.param .b64 r) malloc (.param .b64 a);",
        "{.param .b64 a, r; st.param.b64 [a], %z; call.uni (r), malloc, (a);}",
    ),
}
# Launched with 0, the kernel returns at once. The driver allocates when a kernel with such calls is loaded; the heap of
# malloc at the first launch.
_KERNEL = """
.version 6.0
.target sm_50
.address_size 64
{declarations}
.visible .entry kernel(.param .u32 wanted)
{{
  .reg .pred %p;
  .reg .b32 %n;
  .reg .b64 %z;
  ld.param.u32 %n, [wanted];
  setp.eq.u32 %p, %n, 0;
  @%p bra done;
  mov.u64 %z, 0;
{calls}
done:
  ret;
}}
"""
# Prints the bytes that NVML reports for the child with a context (and CUPTI, if its path is given), and the increase
# after the given kernel has run. Needs only the standard library.
_PROGRAM = """
import ctypes, os, sys
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
def check(code):
    if code:
        sys.exit(f"a call failed with {code}")
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gpu", ctypes.c_uint), ("part", ctypes.c_uint)]
if sys.argv[3]:
    cupti, tool = ctypes.CDLL(sys.argv[3]), ctypes.c_void_p()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)(lambda *_: None)
    check(cupti.cuptiSubscribe(ctypes.byref(tool), callback, None))
    check(cupti.cuptiEnableCallback(1, tool, 1, 243))  # cuMemAlloc_v2 of the driver
device, context, uuid, handle = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1])))
check(cuda.cuDeviceGetUuid_v2(uuid, device))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
digits = bytes(uuid).hex()
parts = [digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]
check(nvml.nvmlInit_v2())
check(nvml.nvmlDeviceGetHandleByUUID(("GPU-" + "-".join(parts)).encode(), ctypes.byref(handle)))
count, listed = ctypes.c_uint(), (Process * 1024)()
def own():
    count.value = 1024
    check(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), listed))
    return sum(p.bytes for p in listed[:count.value] if p.pid == os.getpid() and p.bytes != 2**64 - 1)
bare = more = own()
if sys.argv[2]:
    module, function, wanted = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(0)
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), sys.argv[2].encode()))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"kernel"))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(wanted))
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
    check(cuda.cuCtxSynchronize())
    more = own()
print(bare, more - bare)
"""
_lock = shared_lock()
_measured: dict[tuple[int, tuple[str, ...], str], tuple[int, int]] = {}


def bare_context_bytes(device: int) -> int | None:
    """Bytes of a fresh primary context, measured once in a child process; None if that fails."""
    found = _known(device, (), "")
    return found and found[0]


def additions_bytes(device: int, cupti: str, services: Sequence[str]) -> tuple[int, int] | None:
    """Bytes that CUPTI adds to a context, and bytes that the driver keeps for `services`; None if not measurable.

    Args:
        device: ordinal of the GPU.
        cupti: path of the library, "" for none.
        services: any of "assert", "printf" and "malloc". They share some memory.
    """
    bare, found = bare_context_bytes(device), _known(device, tuple(sorted(services)), cupti)
    return None if bare is None or found is None else (max(0, found[0] - bare), found[1])


def kernel_text(services: Sequence[str]) -> str:
    """PTX of a kernel that contains calls of the services; "" for none."""
    calls = [_CALLS[service] for service in services]
    declarations, bodies = ("\n".join(parts) for parts in zip(*calls, strict=True)) if calls else ("", "")
    return _KERNEL.format(declarations=declarations, calls=bodies) if calls else ""


def _known(device: int, services: tuple[str, ...], cupti: str) -> tuple[int, int] | None:
    with _lock:
        if (device, services, cupti) not in _measured:
            found = _measure(device, services, cupti)
            if found is None:
                return None
            _measured[device, services, cupti] = found
        return _measured[device, services, cupti]


def _measure(device: int, services: Sequence[str], cupti: str) -> tuple[int, int] | None:
    """Bytes of a context, and bytes that the services add."""
    if not sys.executable:
        return None
    variables = {name: value for name, value in os.environ.items() if name not in _TOOLS}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(device), kernel_text(services), cupti],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env=variables,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 2 or not all(word.isdigit() for word in words) or words[0] == "0":
        return None
    return int(words[0]), int(words[1])
